//! Power cuts of two devices that lose what they have not synced each for itself, and of discards.

use crate::crash::{BLOCKS, Request, Step, allowed, bad_blocks, base, state, write};
use crate::support::{Numbers, formatted, hash, memory, open_options};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno, Geometry};
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, OpenOptions, Stores};
use std::sync::{Arc, Mutex};

const DATA_LEN: usize = 64 << 10;
const META_LEN: usize = 128 << 10;

/// Steps of both stores in their order: which store, and a write or a sync of it.
type Log = Arc<Mutex<Vec<(usize, Step)>>>;

/// One of two stores.
struct Half {
    inner: MemoryStore,
    number: usize,
    log: Log,
}

impl BackingStore for Half {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.inner.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.log.lock().unwrap().push((self.number, Step::Write { at: offset as usize, data: data.to_vec() }));
        self.inner.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.log.lock().unwrap().push((self.number, Step::Sync));
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Returns what a store has after a power cut: all, or what it had synced.
fn left(before: &[u8], log: &[(usize, Step)], number: usize, keeps: bool) -> Arc<MemoryStore> {
    let own = log.iter().filter(|(of, _)| *of == number).map(|(_, step)| step);
    let own: Vec<&Step> = own.collect();
    let synced = own.iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
    let mut bytes = before.to_vec();
    for step in &own[..if keeps { own.len() } else { synced }] {
        if let Step::Write { at, data } = step {
            bytes[*at..*at + data.len()].copy_from_slice(data);
        }
    }
    memory(bytes)
}

/// Flushed data is on both devices, also if one of them keeps more than it has synced.
#[test]
fn two_devices_survive_power_cuts() {
    let mut states = 0;
    for (mode, seed) in [Mode::Journal, Mode::Bitmap].into_iter().flat_map(|mode| (1..5).map(move |seed| (mode, seed)))
    {
        let format = FormatOptions { block_len: 512, ..base(None, Some("sha256")) };
        let (data, meta) = formatted(&format, DATA_LEN, Some(META_LEN));
        let (first, first_meta) = (memory(data), memory(meta.unwrap()));
        let options = open_options(mode, &format);
        let stores = Stores::separate(first.clone(), first_meta.clone());
        let device = IntegrityDevice::open(stores, options.clone()).unwrap();
        (0..BLOCKS).for_each(|block| write(&device, block, 1, 1, false));
        device.close().unwrap();
        let before = [first.contents(), first_meta.contents()];
        let log = Log::default();
        let half = |number: usize| {
            let inner = MemoryStore::new(before[number].clone());
            Arc::new(Half { inner, number, log: Arc::clone(&log) })
        };
        let device = IntegrityDevice::open(Stores::separate(half(0), half(1)), options.clone()).unwrap();
        let (mut random, mut script, mut acknowledged) = (Numbers(seed * 6007), Vec::new(), Vec::new());
        for n in 0..30 {
            let block = random.below(BLOCKS);
            let request = match random.below(6) {
                0..=3 => Request::Write { block, count: 1 + random.below(6).min(BLOCKS - block - 1), value: 2 + n },
                4 => Request::Flush,
                _ => Request::Maintain,
            };
            match request {
                Request::Write { block, count, value } => write(&device, block, count, value, false),
                Request::Flush => device.flush().unwrap(),
                Request::Maintain => device.maintain().unwrap(),
            }
            acknowledged.push(log.lock().unwrap().len());
            script.push(request);
        }
        let log = log.lock().unwrap().clone();
        for cut in 0..=log.len() {
            let done = acknowledged.iter().filter(|len| **len <= cut).count();
            let allowed = allowed(&script, done);
            for keeps in [[false, false], [true, false], [false, true]] {
                let [data, meta] = [0, 1].map(|number| left(&before[number], &log[..cut], number, keeps[number]));
                let device = IntegrityDevice::open(Stores::separate(data, meta), options.clone()).unwrap();
                // Regions with bits are calculated from what is there.
                assert_eq!(
                    bad_blocks(&device, &allowed, false),
                    0,
                    "{mode:?} {seed}: {cut} of {}, {keeps:?}",
                    log.len()
                );
                states += 1;
            }
        }
    }
    println!("COUNT integrity_two_device_states {states}");
    assert!(states >= 1000, "{states} states");
}

/// A power cut tears the filler of discarded blocks, whose tags lie on both sides of a sector's end. They can be read.
#[test]
fn discards_in_a_bitmap_survive_power_cuts() {
    const USED: u64 = 60;
    let format = FormatOptions { block_len: 512, ..base(None, Some("sha1")) };
    let options = OpenOptions { allow_discards: true, ..open_options(Mode::Bitmap, &format) };
    let mut states = 0;
    for seed in 1..5 {
        let mut random = Numbers(seed * 4001);
        let first = memory(formatted(&format, 192 << 10, None).0);
        let device = IntegrityDevice::open(Stores::interleaved(first.clone()), options.clone()).unwrap();
        assert_eq!(device.layout().journal.tag_size, hash("sha1").len());
        (0..USED).for_each(|block| write(&device, block, 1, 1, false));
        device.close().unwrap();
        let before = first.contents();
        let log = inlock_testing::Log::<()>::default();
        let store = Arc::new(log.store(memory(before.clone()), false));
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), options.clone()).unwrap();
        for _ in 0..12 {
            let block = random.below(USED);
            device.discard(block, 1 + random.below(USED - block)).unwrap();
            device.flush().unwrap();
            device.maintain().unwrap();
        }
        let log = log.steps().clone();
        for cut in 0..=log.len() {
            for _ in 0..4 {
                let bytes = state(&before, &log, cut, &mut random);
                let device = IntegrityDevice::open(Stores::interleaved(memory(bytes)), options.clone()).unwrap();
                for block in 0..USED {
                    let read = device.read(block, &mut [0; 512], &mut []);
                    assert!(read.is_ok(), "block {block} after {cut} of {} steps, seed {seed}: {read:?}", log.len());
                }
                states += 1;
            }
        }
    }
    println!("COUNT integrity_discard_states {states}");
    assert!(states >= 300, "{states} states");
}

/// A bitmap whose bits stand for other numbers of blocks than the volume was formatted with is told so in the
/// superblock: after a power cut it is read as it was written.
#[test]
fn superblock_has_the_granularity_of_its_bitmap() {
    let format = FormatOptions { block_len: 512, ..base(None, Some("crc32c")) };
    for sectors in [8, 32, 256] {
        let mut options = open_options(Mode::Bitmap, &format);
        options.sectors_per_bit = Some(sectors);
        let store = memory(formatted(&format, 192 << 10, None).0);
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), options.clone()).unwrap();
        write(&device, 100, 1, 1, false);
        let cut = IntegrityDevice::open(Stores::interleaved(memory(store.contents())), options).unwrap();
        assert_eq!(u32::from(cut.superblock().log2_blocks_per_bitmap_bit), sectors.ilog2(), "{sectors} sectors");
        // Its data are stored, its tag is not.
        cut.read(100, &mut [0; 512], &mut []).unwrap();
        assert!(cut.read(100 ^ u64::from(sectors), &mut [0; 512], &mut []).is_err(), "a region that is not set");
    }
}
