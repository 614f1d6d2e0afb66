//! The device agrees with a `Vec<u8>`: partial, overlapping and concurrent requests, on every path.

use crate::scripted::{self, Ask, MAX_LEN};
use crate::support::with;
use crate::support::{DATA_OFFSET, Random, device, image_of, independent_plaintext, key};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::Errno;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BlockStatus, Geometry};
use inlock_engine::{Access, BackingStore, BlockingDevice, Device, RequestError};
use std::fs::File;
use std::sync::Arc;

const LEN: u64 = 512 << 10;
const UNITS: [u32; 4] = [512, 4096, 16384, 65536];

fn script(random: &mut Random, unit: u32, steps: usize) -> Vec<Ask> {
    let step = |_| {
        let (offset, len) = random.range(LEN, unit.into());
        let len = len.min(MAX_LEN);
        match random.below(8) {
            0..=2 => Ask::Read { offset, len },
            3..=5 => Ask::Write { offset, data: random.bytes(len as usize), durable: random.below(4) == 0 },
            6 => Ask::Zeroes { offset, len },
            _ => Ask::Flush,
        }
    };
    (0..steps).map(step).collect()
}

/// Applies the script to the model, one request after the other, and returns the expected answers.
fn model_answers(model: &mut [u8], script: &[Ask]) -> Vec<Vec<u8>> {
    let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
    let answer = |ask: &Ask| match ask {
        Ask::Read { offset, len } => Some(model[range(*offset, *len)].to_vec()),
        Ask::Write { offset, data, .. } => {
            model[range(*offset, data.len() as u64)].copy_from_slice(data);
            None
        }
        Ask::Zeroes { offset, len } => {
            model[range(*offset, *len)].fill(0);
            None
        }
        Ask::Flush | Ask::Discard { .. } | Ask::DurableDiscard { .. } => None,
    };
    script.iter().map(answer).map(Option::unwrap_or_default).collect()
}

fn check_one_by_one(store: &Arc<dyn BackingStore>, mode: IoMode, unit: u32, seed: u64, contents: &dyn Fn() -> Vec<u8>) {
    let mut random = Random::new(seed);
    let device = device(Arc::clone(store), unit);
    let mut model = independent_plaintext(&contents(), unit);
    let script = script(&mut random, unit, 400);
    let expected = model_answers(&mut model, &script);
    let answers = scripted::run(&device, mode, 1, script.clone());
    for (index, ((ask, answer), expected)) in script.iter().zip(answers).zip(expected).enumerate() {
        let answer = answer.unwrap_or_else(|e| panic!("seed {seed} step {index} {ask:?}: {e}"));
        if matches!(ask, Ask::Read { .. }) {
            assert!(answer == expected, "seed {seed} unit {unit} step {index}: a read differs from the model");
        }
    }
    assert!(independent_plaintext(&contents(), unit) == model, "seed {seed} unit {unit}: the image differs");
}

fn file(len: usize, mode: IoMode) -> (tempfile::NamedTempFile, Arc<dyn BackingStore>) {
    // With `Auto`, where there is one, on a file system in memory: short requests are then called inline, long ones
    // not.
    let memory = std::path::Path::new("/dev/shm");
    let dir = if mode == IoMode::Auto && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let named = tempfile::NamedTempFile::new_in(dir).unwrap();
    named.as_file().set_len(len as u64).unwrap();
    let opened = File::options().read(true).write(true).open(named.path()).unwrap();
    let store = FileStore::new(opened, mode).unwrap();
    (named, Arc::new(store))
}

#[test]
fn one_by_one_in_memory() {
    for unit in UNITS {
        for seed in 1..=4 {
            let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + LEN as usize]));
            let shared: Arc<dyn BackingStore> = Arc::clone(&store) as _;
            check_one_by_one(&shared, IoMode::Auto, unit, seed, &|| store.contents());
        }
    }
}

#[test]
fn one_by_one_on_a_file_through_both_rings() {
    for mode in [IoMode::Uring, IoMode::Sync, IoMode::Auto] {
        for unit in UNITS {
            let (named, store) = file(DATA_OFFSET + LEN as usize, mode);
            check_one_by_one(&store, mode, unit, 11, &|| std::fs::read(named.path()).unwrap());
        }
    }
}

/// A store with a descriptor on the plain ring: what `sync` does where the store is not called inline.
#[test]
fn descriptor_on_the_sync_ring_agrees_with_the_model() {
    let (named, store) = file(DATA_OFFSET + LEN as usize, IoMode::Uring);
    check_one_by_one(&store, IoMode::Sync, 4096, 12, &|| std::fs::read(named.path()).unwrap());
}

/// Many requests at a time, each in its own bytes but sharing units with its neighbours: nothing may be lost.
#[test]
fn concurrent_partial_writes_lose_nothing() {
    for mode in [IoMode::Uring, IoMode::Sync] {
        for unit in UNITS {
            let mut random = Random::new(unit.into());
            let (named, store) = file(DATA_OFFSET + LEN as usize, mode);
            let device = device(store, unit);
            let mut model = independent_plaintext(&std::fs::read(named.path()).unwrap(), unit);
            let mut script = Vec::new();
            let mut at = 0;
            while at < LEN {
                let len = (1 + random.below(u64::from(unit) / 2 + 700)).min(LEN - at).min(MAX_LEN);
                script.push(Ask::Write { offset: at, data: random.bytes(len as usize), durable: false });
                at += len;
            }
            for index in (1..script.len()).rev() {
                script.swap(index, random.below(index as u64 + 1) as usize);
            }
            model_answers(&mut model, &script);
            for answer in scripted::run(&device, mode, 32, script) {
                answer.unwrap();
            }
            assert!(independent_plaintext(&std::fs::read(named.path()).unwrap(), unit) == model, "unit {unit}");
        }
    }
}

/// Threads with a blocking device each and a worker write to the same units concurrently.
#[test]
fn threads_and_a_worker_share_units() {
    // With memory for all of them, and for one that the others wait for.
    share_units(32);
    share_units(1);
}

fn share_units(calls: usize) {
    const THREADS: u64 = 4;
    let unit = 4096;
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + LEN as usize]));
    let device = device(Arc::clone(&store) as _, unit);
    let blocking = BlockingDevice::with_calls(Arc::clone(&device), calls);
    blocking.write_zeroes(0, LEN).unwrap();
    // Thread t owns every byte whose index is t modulo 8, in runs of 100 bytes.
    let mine = |t: u64| (0..LEN / 100).filter(move |i| i % (THREADS + 1) == t).map(|i| i * 100);
    let value = |t: u64, offset: u64| (t * 41 + offset / 100 + 1) as u8;
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let blocking = blocking.clone();
            scope.spawn(move || {
                for offset in mine(t) {
                    blocking.write_at(&[value(t, offset); 100], offset).unwrap();
                }
            });
        }
        let ask = |offset| Ask::Write { offset, data: vec![value(THREADS, offset); 100], durable: false };
        let answers = scripted::run(&device, IoMode::Auto, 16, mine(THREADS).map(ask).collect());
        assert!(answers.iter().all(Result::is_ok));
    });
    let plain = independent_plaintext(&store.contents(), unit);
    for t in 0..=THREADS {
        for offset in mine(t) {
            assert_eq!(plain[offset as usize..][..100], [value(t, offset); 100], "thread {t} at {offset}");
        }
    }
}

#[test]
fn blocking_device_agrees_with_the_model() {
    for unit in UNITS {
        let mut random = Random::new(5);
        let mut model = random.bytes(LEN as usize);
        let store = Arc::new(MemoryStore::new(image_of(&model, unit)));
        let device = BlockingDevice::new(device(Arc::clone(&store) as _, unit));
        for _ in 0..500 {
            let (offset, len) = random.range(LEN, unit.into());
            let range = offset as usize..(offset + len) as usize;
            match random.below(3) {
                0 => {
                    let mut got = vec![0; len as usize];
                    device.read_at(&mut got, offset).unwrap();
                    assert!(got == model[range], "unit {unit}: {len} bytes at {offset}");
                }
                1 => {
                    let data = random.bytes(len as usize);
                    device.write_at(&data, offset).unwrap();
                    model[range].copy_from_slice(&data);
                }
                _ => {
                    device.write_zeroes(offset, len).unwrap();
                    model[range].fill(0);
                }
            }
        }
        device.flush().unwrap();
        assert!(independent_plaintext(&store.contents(), unit) == model);
    }
}

#[test]
fn refused_requests_change_nothing() {
    let before = image_of(&Random::new(9).bytes(8192), 512);
    let store = Arc::new(MemoryStore::new(before.clone()));
    let shared: Arc<dyn BackingStore> = Arc::clone(&store) as _;
    let segments = [crate::support::segment(512)];
    let new = |access| Arc::new(Device::new(&segments, &crate::support::key(), Arc::clone(&shared), access).unwrap());
    let read_only = new(Access { read_only: true, allow_discards: true });
    let plain = new(Access::default());
    let write = |offset, len| Ask::Write { offset, data: vec![1; len], durable: true };
    let of = |device, ask| scripted::run(device, IoMode::Auto, 1, vec![ask]).remove(0);
    assert_eq!(of(&read_only, write(0, 512)), Err(RequestError::ReadOnly));
    assert_eq!(of(&read_only, Ask::Zeroes { offset: 0, len: 5 }), Err(RequestError::ReadOnly));
    assert_eq!(of(&read_only, Ask::Discard { offset: 0, len: 512 }), Err(RequestError::ReadOnly));
    assert_eq!(of(&plain, Ask::Discard { offset: 0, len: 512 }), Err(RequestError::Unsupported));
    assert_eq!(of(&plain, write(8192 - 511, 512)), Err(RequestError::OutOfRange));
    assert_eq!(of(&plain, Ask::Read { offset: u64::MAX, len: 2 }), Err(RequestError::OutOfRange));
    let blocking = BlockingDevice::new(Arc::clone(&plain));
    assert_eq!(blocking.write_at(&[0; 2], 8191), Err(RequestError::OutOfRange));
    assert_eq!(blocking.discard(0, 512), Err(RequestError::Unsupported));
    assert!(store.contents() == before);
    plain.allow_discards(true);
    assert_eq!(of(&plain, Ask::Discard { offset: 0, len: 512 }), Ok(Vec::new()));
    plain.allow_discards(false);
    assert_eq!(of(&plain, Ask::Discard { offset: 512, len: 512 }), Err(RequestError::Unsupported));
}

#[test]
fn discard_gives_back_whole_units_only() {
    let plain = Random::new(3).bytes(8192);
    let store = Arc::new(MemoryStore::new(image_of(&plain, 4096)));
    let device = device(Arc::clone(&store) as _, 4096);
    let before = store.contents();
    let ask = Ask::Discard { offset: 1, len: 8190 };
    scripted::run(&device, IoMode::Auto, 1, vec![ask]).remove(0).unwrap();
    assert!(store.contents() == before, "no unit lies wholly within the range");
    scripted::run(&device, IoMode::Auto, 1, vec![Ask::Discard { offset: 1, len: 8191 }]).remove(0).unwrap();
    let after = store.contents();
    assert!(after[..DATA_OFFSET + 4096] == before[..DATA_OFFSET + 4096]);
    assert!(after[DATA_OFFSET + 4096..].iter().all(|b| *b == 0));
}

#[test]
fn holes_are_reported_as_holes_of_whole_units() {
    let (_named, store) = file(DATA_OFFSET + (64 << 10), IoMode::Auto);
    let device = device(store, 4096);
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let run = |offset, len| device.block_status(offset, len).map(|r| (r.len, r.hole)).unwrap();
    let before = run(0, 64 << 10);
    blocking.write_at(&[1; 4096], 8192).unwrap();
    blocking.flush().unwrap();
    if before != (64 << 10, true) {
        panic!("a sparse file's system that reports no holes: {before:?}");
    }
    let mut at = 0;
    let mut data = 0;
    while at < 64 << 10 {
        let (len, hole) = run(at, (64 << 10) - at);
        assert!(len > 0 && at.is_multiple_of(4096) && len.is_multiple_of(4096));
        assert!(!hole || !(at..at + len).contains(&8192), "data reported as a hole");
        data += if hole { 0 } else { len };
        at += len;
    }
    assert!((4096..=16384).contains(&data), "{data} bytes of data reported for one unit");
}

/// A store of sectors, some of which are holes. It reads as zeroes.
struct Holes(Vec<bool>);

impl BackingStore for Holes {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.0.len() as u64 * 512)
    }
    fn read_at(&self, data: &mut [u8], _: u64) -> Result<usize, Errno> {
        data.fill(0);
        Ok(data.len())
    }
    fn write_at(&self, data: &[u8], _: u64) -> Result<usize, Errno> {
        Ok(data.len())
    }
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        assert!(len > 0 && offset + len <= self.0.len() as u64 * 512, "{offset}+{len}");
        let sectors = &self.0[(offset / 512) as usize..(offset + len).div_ceil(512) as usize];
        let same = sectors.iter().take_while(|hole| **hole == sectors[0]).count() as u64;
        let len = len.min(same * 512 - offset % 512);
        Ok(if sectors[0] { BlockStatus::hole(offset, len) } else { BlockStatus::allocated(offset, len) })
    }
}

/// A byte is in a hole if and only if its data unit is, wherever a query begins and ends.
#[test]
fn holes_are_the_same_for_every_alignment_of_a_query() {
    let mut random = Random::new(86);
    let encrypted = UNITS.map(|unit| (Some(CipherSpec::AES_XTS_PLAIN64), unit));
    for (cipher, unit) in encrypted.into_iter().chain([(None, 512)]) {
        for data_offset in [0, 3, 8, 128] {
            let segment = with!(
                Segment::whole(cipher, DataUnitSize::new(unit).unwrap()); data_offset: Sector(data_offset)
            );
            let unit = if cipher.is_some() { u64::from(unit) } else { 1 };
            // Runs of up to four units, some of which end within one.
            let mut sectors = vec![false; data_offset as usize];
            while (sectors.len() as u64) < data_offset + 24 * unit.div_ceil(512) {
                let run = 1 + random.below(4 * unit.div_ceil(512));
                sectors.extend(vec![random.below(2) == 0; run as usize]);
            }
            sectors.truncate((data_offset + 24 * unit.div_ceil(512)) as usize);
            let is_hole = |at: u64| {
                let first = at / unit * unit + data_offset * 512;
                sectors[(first / 512) as usize..(first + unit).div_ceil(512) as usize].iter().all(|hole| *hole)
            };
            let store = Arc::new(Holes(sectors.clone()));
            let key = if cipher.is_some() { key() } else { VolumeKey::new(&[]) };
            let device = Device::new(&[segment], &key, store, Access::default()).unwrap();
            for _ in 0..200 {
                let (start, len) = random.range(device.len(), unit);
                let mut at = start;
                while at < start + len {
                    let asked = (start + len - at).min(1 + random.below(3 * unit.max(512)));
                    let found = device.block_status(at, asked).unwrap();
                    assert!(found.offset == at && found.len > 0 && found.len <= asked, "{found:?} of {at}+{asked}");
                    // Nothing changes within a sector.
                    let mut bytes = (at..at + found.len).step_by(if unit == 1 { 1 } else { 512 });
                    let last = at + found.len - 1;
                    assert!(bytes.all(|at| is_hole(at) == found.hole) && is_hole(last) == found.hole, "{found:?}");
                    at += found.len;
                }
            }
        }
    }
}

#[test]
fn offload_pool_gives_the_same_bytes() {
    scripted::offloaded(|| {
        one_by_one_in_memory();
        one_by_one_on_a_file_through_both_rings();
        concurrent_partial_writes_lose_nothing();
    });
}

#[test]
fn copy_thread_gives_the_same_bytes() {
    scripted::carried(1024, || {
        one_by_one_in_memory();
        one_by_one_on_a_file_through_both_rings();
        concurrent_partial_writes_lose_nothing();
    });
}

/// Writes in two halves, and lets others run in between.
struct HalfwayStore {
    inner: MemoryStore,
    halfway: std::sync::mpsc::SyncSender<()>,
}

impl BackingStore for HalfwayStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.inner.read_at(data, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let half = data.len() / 2;
        self.inner.write_at(&data[..half], offset)?;
        let _ = self.halfway.try_send(());
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.inner.write_at(&data[half..], offset + half as u64)?;
        Ok(data.len())
    }
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

/// With CBC, a change of the first block garbles the rest of a half-written unit; no reader may see that.
#[test]
fn bytes_that_nobody_writes_do_not_change_while_others_of_their_unit_do() {
    for through_worker in [false, true] {
        let (halfway, reached) = std::sync::mpsc::sync_channel(1);
        let store = Arc::new(HalfwayStore { inner: MemoryStore::new(vec![0; DATA_OFFSET + 8192]), halfway });
        let cipher = Some("aes-cbc-plain64".parse().unwrap());
        let segment = with!(crate::support::segment(4096); cipher: cipher);
        let key = inlock_cipher::VolumeKey::new(&[5; 32]);
        let device = Arc::new(Device::new(&[segment], &key, store, Access::default()).unwrap());
        let blocking = BlockingDevice::new(Arc::clone(&device));
        blocking.write_at(&[0x55; 4096], 0).unwrap();
        let _ = reached.try_recv();
        std::thread::scope(|scope| {
            let writer = blocking.clone();
            scope.spawn(move || writer.write_at(&[0xaa; 8], 0).unwrap());
            reached.recv().unwrap();
            let ask = Ask::Read { offset: 8, len: 4088 };
            let mut bytes = vec![0; 4088];
            if through_worker {
                bytes = scripted::run(&device, IoMode::Auto, 1, vec![ask]).remove(0).unwrap();
            } else {
                blocking.read_at(&mut bytes, 8).unwrap();
            }
            assert!(bytes.iter().all(|b| *b == 0x55), "through a worker: {through_worker}");
        });
    }
}
