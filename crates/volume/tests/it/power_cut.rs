//! Power cuts: every state that a disk may be left in, from the log of writes and syncs; and devices that fail.
//!
//! Writes before the last completed sync are there. Any subset of the others may be there, and one of them may be torn
//! at any sector, or have only some of its sectors.

use inlock_volume::{HeaderDevice, MemoryDevice};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to a [`RecordingDevice`].
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write { offset: u64, data: Vec<u8> },
    Sync,
}

/// A device in memory that logs writes and syncs.
pub(crate) struct RecordingDevice {
    inner: MemoryDevice,
    pub(crate) log: Mutex<Vec<Step>>,
}

impl RecordingDevice {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { inner: MemoryDevice::new(bytes), log: Mutex::new(Vec::new()) }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.inner.to_vec()
    }
}

impl HeaderDevice for RecordingDevice {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.log.lock().unwrap().push(Step::Write { offset, data: data.to_vec() });
        self.inner.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.log.lock().unwrap().push(Step::Sync);
        Ok(())
    }
}

/// A device on which a write or a sync fails. Nothing may be written or synced after it.
pub(crate) struct FailingDevice {
    inner: RecordingDevice,
    failing: usize,
    has_failed: AtomicBool,
}

impl FailingDevice {
    /// Returns a device that does `failing` writes and syncs.
    pub(crate) fn new(bytes: Vec<u8>, failing: usize) -> Self {
        Self { inner: RecordingDevice::new(bytes), failing, has_failed: AtomicBool::new(false) }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.inner.to_vec()
    }

    fn step(&self) -> io::Result<()> {
        assert!(!self.has_failed.load(Ordering::Relaxed), "the failure of step {} was ignored", self.failing);
        let fails = self.inner.log.lock().unwrap().len() >= self.failing;
        self.has_failed.store(fails, Ordering::Relaxed);
        if fails { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

impl HeaderDevice for FailingDevice {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.step()?;
        self.inner.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.step()?;
        self.inner.sync()
    }
}

/// Number of states for each write where only some sectors, not next to each other, are written.
const SCATTERED_TEARS: usize = 4;

/// Whether a sector belongs to one of the scattered sets, each of which has about half of all sectors.
fn is_scattered(seed: usize, sector: usize) -> bool {
    (sector + 1).wrapping_mul(0x9e37_79b9 * (2 * seed + 1)) >> 16 & 1 == 1
}

/// Calls `check` with every state between `before` and the end of `log`, and returns their number.
pub(crate) fn each_state(before: &[u8], log: &[Step], check: &mut dyn FnMut(&[u8])) -> usize {
    let mut durable = before.to_vec();
    let mut count = 0;
    for epoch in log.split(|step| matches!(step, Step::Sync)) {
        let writes: Vec<(usize, &[u8])> = epoch
            .iter()
            .map(|step| match step {
                Step::Write { offset, data } => (*offset as usize, data.as_slice()),
                Step::Sync => unreachable!("split at syncs"),
            })
            .collect();
        assert!(writes.len() <= 12, "{} writes in one epoch are too many for all subsets", writes.len());
        for subset in 0u32..1 << writes.len() {
            let mut bytes = durable.clone();
            let chosen = |index: usize| subset >> index & 1 == 1;
            for (_, (offset, data)) in writes.iter().enumerate().filter(|(index, _)| chosen(*index)) {
                bytes[*offset..offset + data.len()].copy_from_slice(data);
            }
            check(&bytes);
            count += 1;
        }
        for (index, (offset, data)) in writes.iter().enumerate() {
            let sectors = data.len() / 512;
            let step = (sectors / 32).max(1);
            for cut in (1..sectors).step_by(step) {
                let mut bytes = durable.clone();
                for (offset, data) in &writes[..index] {
                    bytes[*offset..offset + data.len()].copy_from_slice(data);
                }
                let torn = &data[..cut * 512];
                let mut other_end = bytes.clone();
                bytes[*offset..offset + torn.len()].copy_from_slice(torn);
                check(&bytes);
                let torn = &data[cut * 512..];
                let start = offset + cut * 512;
                other_end[start..start + torn.len()].copy_from_slice(torn);
                check(&other_end);
                count += 2;
            }
            // A disk that reorders writes any of the sectors first.
            for seed in 1..=SCATTERED_TEARS {
                let mut bytes = durable.clone();
                for (sector, data) in data.chunks(512).enumerate().filter(|(sector, _)| is_scattered(seed, *sector)) {
                    bytes[offset + sector * 512..][..data.len()].copy_from_slice(data);
                }
                check(&bytes);
                count += 1;
            }
        }
        for (offset, data) in writes {
            durable[offset..offset + data.len()].copy_from_slice(data);
        }
    }
    check(&durable);
    count + 1
}
