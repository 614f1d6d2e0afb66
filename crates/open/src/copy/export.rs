//! Copying a volume, or a range of it, to an output.
//!
//! Runs of plaintext zeroes become holes of a regular output file, and holes of an unencrypted source are not read. A
//! hole of an encrypted image does not decrypt to zeroes, so its decryption is copied. The part of a zone behind its
//! write pointer was never written, and becomes a hole of the output.

use std::path::PathBuf;

use inlock_engine::zoned::Zone;
use inlock_engine::{self as engine, BlockingDevice};

use super::{CHUNK, runs, within};
use crate::error::{Result, ResultExt as _};
use crate::output::Output;
use crate::range::Range;
use crate::source::OpenOptions;
use crate::unlocked::LockedStores;
use crate::zones;

/// A copy out of a volume.
pub struct Export<'a> {
    /// Keeps the locks.
    stores: &'a LockedStores,
    image: PathBuf,
    start: u64,
    len: u64,
}

impl<'a> Export<'a> {
    /// Returns a copy of a range of a volume, which was opened with `source`. `None`: of all of it.
    pub fn new(stores: &'a LockedStores, source: &OpenOptions, range: Option<Range>) -> Result<Self> {
        let (start, len) = within(range, stores.device.len())?;
        Ok(Self { stores, image: source.image.clone(), start, len })
    }

    /// Returns the number of bytes to copy.
    pub fn total(&self) -> u64 {
        self.len
    }

    /// Copies to an output that has begun. `progress` takes the number of bytes that were copied since its last call.
    pub fn copy_to(&self, output: &mut Output, mut progress: impl FnMut(u64)) -> Result<()> {
        let Self { stores, image, start, len } = self;
        let device = &BlockingDevice::new(stores.device.clone());
        let holes = Holes::of(device.device(), *start, *len)?;
        let mut buffer = vec![0; CHUNK];
        let mut done = 0;
        while done < *len {
            let (at, left) = (start + done, len - done);
            let step = match holes.next(at, left) {
                Some(hole) => {
                    let step = hole.min(left);
                    output.zeroes(step)?;
                    step
                }
                None => {
                    let want = left.min(CHUNK as u64).min(holes.written_from(at));
                    let chunk = &mut buffer[..want as usize];
                    device
                        .read_at(chunk, at)
                        .with_context(|| format!("cannot read {want} bytes at {at} of {}", image.display()))?;
                    write(output, chunk)?;
                    want
                }
            };
            done += step;
            progress(step);
        }
        Ok(())
    }
}

/// Parts of a volume that were never written, and would decrypt to noise, or are holes that read as zeroes.
struct Holes<'a> {
    device: &'a engine::Device,
    /// Zones of a range.
    zones: Vec<Zone>,
}

impl<'a> Holes<'a> {
    fn of(device: &'a engine::Device, start: u64, len: u64) -> Result<Self> {
        Ok(Self { device, zones: zones::report(device, start, start + len)? })
    }

    /// Returns the length of a hole that starts at `at`, at most `len`.
    fn next(&self, at: u64, len: u64) -> Option<u64> {
        if let Some(zone) = zones::at(&self.zones, at) {
            return (at >= zones::written_to(zone)).then(|| zone.start + zone.len - at);
        }
        let mapping = self.device.mapping();
        if mapping.is_encrypted() && !mapping.has_zero_holes() {
            return None;
        }
        self.device.block_status(at, len).ok().filter(|run| run.hole && run.len > 0).map(|run| run.len)
    }

    /// Returns the number of bytes from `at`, which is in no hole, to the next hole.
    fn written_from(&self, at: u64) -> u64 {
        zones::at(&self.zones, at).map_or(u64::MAX, |zone| zones::written_to(zone) - at)
    }
}

/// Writes data without the zeroes that the output need not have.
fn write(output: &mut Output, data: &[u8]) -> Result<()> {
    if !output.is_sparse() {
        return output.write(data);
    }
    runs(data).try_for_each(|(_, bytes, zero)| match zero {
        true => output.zeroes(bytes.len() as u64),
        false => output.write(bytes),
    })
}
