//! Other lengths of a volume.

use crate::crash::state;
use crate::support::{Numbers, fill, formatted, hash, memory, open_options};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, NewBlocks, OpenOptions, ReadError, Stores, resize};
use inlock_testing::{Call, Gate, Log, ScriptedStore, Step, Verdict};
use inlock_tests::wait::eventually;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LEN: usize = 1 << 20;

fn options(block_len: usize) -> FormatOptions {
    FormatOptions {
        internal_hash: Some(hash("hmac-sha256")),
        journal_mac: Some(hash("hmac-sha256")),
        block_len,
        interleave_sectors: 256,
        ..FormatOptions::default()
    }
}

/// Returns the stores of a volume on longer devices than those that it was made on.
fn grown(format: &FormatOptions, meta: Option<usize>, mode: Mode) -> (Stores, u64) {
    let (mut data, meta) = formatted(format, LEN, meta);
    data.resize(2 * LEN, 0);
    let stores = Stores { data: memory(data), meta: meta.map(|meta| memory(meta) as _), start: 0 };
    let device = IntegrityDevice::open(stores.clone(), open_options(mode, format)).unwrap();
    let blocks = device.layout().blocks();
    for block in 0..blocks {
        let sector = block * device.layout().sectors_per_block();
        device.write(sector, &fill(block, 3, format.block_len), &[]).unwrap();
    }
    match mode {
        // The last writes are in the journal only.
        Mode::Journal => device.flush().unwrap(),
        _ => device.close().unwrap(),
    }
    (stores, blocks)
}

#[test]
fn grown_volume_keeps_its_blocks_and_has_new_ones() {
    for (block_len, meta, mode) in
        [(512, None, Mode::Journal), (4096, Some(LEN), Mode::Journal), (4096, None, Mode::Bitmap)]
    {
        let format = options(block_len);
        let (stores, blocks) = grown(&format, meta, mode);
        let open = open_options(mode, &format);
        let (before, superblock) = resize(&stores, &open, None).unwrap();
        let per_block = block_len as u64 / 512;
        assert_eq!(before, blocks * per_block);
        assert!(superblock.provided_data_sectors > before * 19 / 10, "{superblock:?}");
        let device = IntegrityDevice::open(stores.clone(), open_options(Mode::Direct, &format)).unwrap();
        let mut data = vec![0; block_len];
        for block in 0..blocks {
            device.read(block * per_block, &mut data, &mut []).unwrap();
            assert!(data == fill(block, 3, block_len), "{block_len} {block}");
        }
        assert_eq!(device.read(before, &mut data, &mut []), Err(ReadError::Mismatch(vec![before])));
        let end = device.wipe(before, 2, |_, _, _| Ok(()), |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(end, superblock.provided_data_sectors);
        device.read(end - per_block, &mut data, &mut []).unwrap();
        device.read(before - per_block, &mut data, &mut []).unwrap();
        device.close().unwrap();
        let (_, smaller) = resize(&stores, &open, Some(8)).unwrap();
        assert_eq!(smaller.provided_data_sectors, 8);
        IntegrityDevice::open(stores, open).unwrap().read(0, &mut data, &mut []).unwrap();
    }
}

#[test]
fn impossible_length_is_refused_unchanged() {
    let format = options(4096);
    let (data, _) = formatted(&format, LEN, None);
    let store = memory(data.clone());
    let stores = Stores::interleaved(store.clone());
    let refused = |sectors| resize(&stores, &open_options(Mode::Journal, &format), sectors).unwrap_err().to_string();
    for sectors in [0, 7, 9, LEN as u64 / 512, u64::MAX] {
        assert!(refused(Some(sectors)).starts_with("option size: "), "{sectors}");
    }
    let unkeyed = FormatOptions { journal_mac: None, ..format.clone() };
    let error = resize(&stores, &open_options(Mode::Journal, &unkeyed), None).unwrap_err().to_string();
    assert!(error.contains("journal-integrity"), "{error}");
    assert!(store.contents() == data);
    let device = IntegrityDevice::open(stores.clone(), open_options(Mode::Bitmap, &format)).unwrap();
    device.write(0, &[1; 4096], &[]).unwrap();
    drop(device);
    let before = store.contents();
    assert!(refused(None).contains("integrity-legacy-recalculate"));
    let legacy = OpenOptions { legacy_recalculate: true, ..open_options(Mode::Journal, &format) };
    assert!(resize(&stores, &legacy, None).unwrap_err().to_string().contains("still to be computed"));
    assert!(store.contents() == before);
}

/// Returns the combinations of modes, devices and new blocks that an open volume is resized with.
fn open_cases() -> Vec<(Mode, Option<usize>, NewBlocks)> {
    let mut cases = Vec::new();
    for mode in [Mode::Journal, Mode::Bitmap, Mode::Direct] {
        for meta in [None, Some(LEN / 2)] {
            cases.extend([NewBlocks::Recalculate, NewBlocks::Wipe].map(|new| (mode, meta, new)));
        }
    }
    cases
}

fn unkeyed(block_len: usize) -> FormatOptions {
    FormatOptions { internal_hash: Some(hash("crc32c")), sectors_per_bit: 64, journal_mac: None, ..options(block_len) }
}

fn stored(stores: &[&Arc<MemoryStore>]) -> Vec<Vec<u8>> {
    stores.iter().map(|store| store.contents()).collect()
}

/// Every block is read while the volume is open, and again from what its stores have before a close.
#[test]
fn open_volume_shrinks_and_grows() {
    for (mode, meta, new) in open_cases() {
        let case = format!("{mode:?} {meta:?} {new:?}");
        let format = unkeyed(4096);
        let (mut data, meta) = formatted(&format, LEN, meta);
        data.resize(2 * LEN, 0x77);
        let (data, meta) = (memory(data), meta.map(memory));
        let stores = Stores { data: data.clone(), meta: meta.clone().map(|meta| meta as _), start: 0 };
        let open = |stores: Stores| IntegrityDevice::open(stores, open_options(mode, &format)).unwrap();
        let device = open(stores);
        let old = device.layout().provided_data_sectors;
        let block = |n: u64| fill(n, 3, 4096);
        for n in 0..old / 8 {
            device.write(n * 8, &block(n), &[]).unwrap();
        }
        let mut read = vec![0; 4096];
        // Twice, before the first tags are computed.
        let ends = [Some(old + 64), None].map(|sectors| device.resize(sectors, new).unwrap());
        for n in 0..ends[1] / 8 {
            assert_eq!(device.read(n * 8, &mut read, &mut []), Ok(()), "{case} {ends:?} {n}");
        }
        assert_eq!(device.resize(Some(64), new).unwrap(), 64, "{case}");
        assert_eq!(device.read(64, &mut read, &mut []), Err(ReadError::Io(Errno::INVAL)), "{case}");
        assert_eq!(device.write(64, &read, &[]), Err(Errno::INVAL), "{case}");
        let reopened = || {
            let all: Vec<_> = [Some(&data), meta.as_ref()].into_iter().flatten().collect();
            let mut copies = stored(&all).into_iter().map(|bytes| memory(bytes) as Arc<dyn BackingStore>);
            open(Stores { data: copies.next().unwrap(), meta: copies.next(), start: 0 })
        };
        assert_eq!(reopened().layout().provided_data_sectors, 64, "{case}");
        let grown = device.resize(None, new).unwrap();
        assert!(grown >= old * 19 / 10, "{case}: {grown}");
        let is_right = |device: &IntegrityDevice, when: &str| {
            assert_eq!(device.layout().provided_data_sectors, grown, "{case} {when}");
            let mut read = vec![0; 4096];
            for n in 0..grown / 8 {
                assert_eq!(device.read(n * 8, &mut read, &mut []), Ok(()), "{case} {when} {n}");
                assert!(n >= 8 || read == block(n), "{case} {when} {n}");
                assert!(n < 8 || new != NewBlocks::Wipe || read == [0; 4096], "{case} {when} {n}");
            }
        };
        assert_eq!(device.is_recalculating(), new == NewBlocks::Recalculate, "{case}");
        is_right(&device, "at once");
        let cut = reopened();
        is_right(&cut, "after a power cut");
        for (device, when) in [(&device, "computed"), (&cut, "computed after a power cut")] {
            while !device.recalculate_step().unwrap() {}
            assert!(!device.is_recalculating() && !device.superblock().is_recalculating(), "{case}");
            is_right(device, when);
        }
        // A block of the old end, and the last one.
        for n in [7, 8, grown / 8 - 1] {
            device.write(n * 8, &fill(n, 9, 4096), &[]).unwrap();
        }
        device.close().unwrap();
        let closed = reopened();
        for n in [7, 8, grown / 8 - 1] {
            closed.read(n * 8, &mut read, &mut []).unwrap();
            assert!(read == fill(n, 9, 4096), "{case} {n}");
        }
        assert!(!closed.is_recalculating(), "{case}");
    }
}

/// The power fails after each step of the stores. The volume has the old or the new length, and every block that it had
/// before and after has its value.
#[test]
fn power_cut_of_a_resize_leaves_the_old_or_the_new_length() {
    let mut states = 0;
    for (mode, _, new) in open_cases().into_iter().filter(|(_, meta, _)| meta.is_none()) {
        let format = unkeyed(4096);
        let (mut image, _) = formatted(&format, LEN / 4, None);
        image.resize(LEN / 2, 0x77);
        let open = |store| IntegrityDevice::open(Stores::interleaved(store), open_options(mode, &format)).unwrap();
        let device = open(memory(image.clone()));
        let old = device.layout().provided_data_sectors;
        let first = memory(image);
        let device = open(first.clone());
        (0..old / 8).for_each(|n| device.write(n * 8, &fill(n, 3, 4096), &[]).unwrap());
        device.close().unwrap();
        let (before, log) = (first.contents(), Log::default());
        let device = open(Arc::new(log.store(memory(before.clone()), false)));
        let lens = [device.resize(None, new).unwrap(), device.resize(Some(64), new).unwrap()];
        log.mark(());
        let steps = log.steps().clone();
        let (mut random, mut seen) = (Numbers(7), BTreeSet::new());
        for cut in (0..=steps.len()).flat_map(|cut| [cut; 8]) {
            let device = open(memory(state(&before, &steps, cut, &mut random)));
            let len = device.layout().provided_data_sectors;
            assert!([old, lens[0], lens[1]].contains(&len), "{mode:?} {new:?} {cut}: {len}");
            seen.insert(len);
            assert!(cut < steps.len() || len == 64, "{mode:?} {new:?}");
            let mut read = vec![0; 4096];
            for finished in [false, true] {
                for n in 0..len / 8 {
                    assert_eq!(device.read(n * 8, &mut read, &mut []), Ok(()), "{mode:?} {new:?} {cut} {n} {finished}");
                    assert!(n >= old / 8 || read == fill(n, 3, 4096), "{mode:?} {new:?} {cut} {n} {finished}");
                }
                while !device.recalculate_step().unwrap() {}
            }
            states += 1;
        }
        assert_eq!(seen.len(), 3, "{mode:?} {new:?}");
    }
    println!("COUNT integrity_resize_states {states}");
}

#[test]
fn impossible_length_of_an_open_volume_is_refused_unchanged() {
    let format = options(4096);
    let (data, _) = formatted(&format, LEN, None);
    let store = memory([data, vec![0; LEN]].concat());
    let open = |options| IntegrityDevice::open(Stores::interleaved(store.clone()), options).unwrap();
    let device = open(open_options(Mode::Journal, &format));
    let before = store.contents();
    for sectors in [0, 7, 9, 2 * LEN as u64 / 512, u64::MAX] {
        let error = device.resize(Some(sectors), NewBlocks::Recalculate).unwrap_err().to_string();
        assert!(error.starts_with("option size: "), "{sectors}: {error}");
    }
    assert!(store.contents() == before && device.layout().provided_data_sectors < LEN as u64 / 512);
    let read_only = open(OpenOptions { read_only: true, ..open_options(Mode::Journal, &format) });
    assert!(read_only.resize(None, NewBlocks::Wipe).is_err());
    assert!(store.contents() == before);
    // Its superblock is signed.
    device.resize(None, NewBlocks::Recalculate).unwrap();
    let unsigned = FormatOptions { journal_mac: None, ..format };
    let (data, _) = formatted(&unsigned, LEN, None);
    let store = memory([data, vec![0; LEN]].concat());
    let device =
        IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Journal, &unsigned)).unwrap();
    let before = store.contents();
    let error = device.resize(None, NewBlocks::Recalculate).unwrap_err().to_string();
    assert!(error.contains("have to be wiped"), "{error}");
    assert!(store.contents() == before);
    device.resize(None, NewBlocks::Wipe).unwrap();
}

#[test]
fn length_stays_if_new_blocks_cannot_be_wiped() {
    let format = unkeyed(4096);
    let (data, _) = formatted(&format, LEN, None);
    let store = memory([data, vec![0; LEN]].concat());
    let full = |call: Call<'_>| match call {
        Call::Write { offset, .. } if offset >= LEN as u64 * 3 / 2 => Verdict::Fail(Errno::NOSPC),
        _ => Verdict::Pass,
    };
    let store = Arc::new(ScriptedStore::new(store, full));
    let device = IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Direct, &format)).unwrap();
    let old = device.layout().provided_data_sectors;
    assert!(device.resize(None, NewBlocks::Wipe).is_err());
    assert_eq!(device.layout().provided_data_sectors, old);
    assert_eq!(device.superblock().provided_data_sectors, old);
    assert_eq!(device.read(old, &mut [0; 4096], &mut []), Err(ReadError::Io(Errno::INVAL)));
}

/// A power cut after the return leaves what was synced, and no more.
#[test]
fn new_length_is_durable() {
    let format = options(512);
    let (data, _) = formatted(&format, LEN, None);
    let log = Log::<()>::default();
    let stores = Stores::interleaved(Arc::new(log.store(memory(data.clone()), false)));
    resize(&stores, &open_options(Mode::Journal, &format), Some(64)).unwrap();
    let mut synced = data;
    let steps = log.steps();
    let end = steps.iter().rposition(|step| *step == Step::Sync).unwrap();
    for step in &steps[..end] {
        if let Step::Write { at, data } = step {
            synced[*at..][..data.len()].copy_from_slice(data);
        }
    }
    let device = IntegrityDevice::open(Stores::interleaved(memory(synced)), open_options(Mode::Direct, &format));
    assert_eq!(device.unwrap().layout().provided_data_sectors, 64);
}

/// With a metadata device the tags may have less room than the data.
#[test]
fn volume_grows_as_far_as_its_tags_do() {
    let format = FormatOptions { tag_size: Some(255), ..options(512) };
    let (stores, blocks) = grown(&format, Some(LEN * 3 / 4), Mode::Direct);
    let (before, superblock) = resize(&stores, &open_options(Mode::Direct, &format), None).unwrap();
    assert_eq!(before, blocks);
    let most = superblock.provided_data_sectors;
    assert!((before + 8..2 * LEN as u64 / 512).contains(&most), "{most}");
    assert!(resize(&stores, &open_options(Mode::Direct, &format), Some(most + 8)).is_err());
}

/// The new end comes before the place where the tags are computed, and goes again.
#[test]
fn blocks_of_an_interrupted_recalculation_are_computed_after_a_shrink() {
    for mode in [Mode::Journal, Mode::Bitmap] {
        let format = unkeyed(512);
        let (data, _) = formatted(&format, LEN / 2, None);
        let store = memory([data, vec![0x77; LEN]].concat());
        let open = || IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(mode, &format)).unwrap();
        let device = open();
        device.resize(None, NewBlocks::Recalculate).unwrap();
        for _ in 0..2 {
            assert!(!device.recalculate_step().unwrap(), "{mode:?}");
        }
        device.resize(Some(64), NewBlocks::Recalculate).unwrap();
        let end = device.resize(None, NewBlocks::Recalculate).unwrap();
        while !device.recalculate_step().unwrap() {}
        device.close().unwrap();
        let device = open();
        for sector in 64..end {
            assert_eq!(device.read(sector, &mut [0; 512], &mut []), Ok(()), "{mode:?} {sector}");
        }
    }
}

/// A recalculation of an earlier resize goes on while new blocks are wiped: the superblock is valid at every step.
#[test]
fn recalculation_beside_a_wipe_stays_within_the_stored_length() {
    let format = unkeyed(512);
    let (data, _) = formatted(&format, LEN / 2, None);
    let (held, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Gate::default()));
    let (is_held, passed) = (held.clone(), gate.clone());
    let store = memory([data, vec![0; 5 * LEN]].concat());
    let script = move |call: Call<'_>| {
        // Not of the first part, whose blocks are locked until it is written.
        let is_late = matches!(call, Call::Write { offset, .. } if offset > 4 * LEN as u64);
        if is_late && is_held.load(Ordering::SeqCst) {
            passed.pass();
        }
        Verdict::Pass
    };
    let stores = Stores::interleaved(Arc::new(ScriptedStore::new(store.clone(), script)));
    let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &format)).unwrap();
    let old = device.resize(Some(1200), NewBlocks::Recalculate).unwrap();
    gate.close();
    held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let wiping = scope.spawn(|| device.resize(None, NewBlocks::Wipe).unwrap());
        eventually("the wipe waits", || gate.waiting(), |waiting| *waiting > 0);
        // Farther than the old end; the new one is not stored.
        for _ in 0..6 {
            device.recalculate_step().unwrap();
        }
        let image = memory(store.contents());
        let cut = IntegrityDevice::open(Stores::interleaved(image), open_options(Mode::Direct, &format));
        gate.open();
        assert_eq!(cut.unwrap().layout().provided_data_sectors, old);
        assert!(wiping.join().unwrap() > old);
    });
}

/// Entries of blocks that are no longer there are in the journal until others are written over them.
#[test]
fn shorter_volume_is_recalculated() {
    let format = unkeyed(512);
    let (data, _) = formatted(&format, LEN, None);
    let store = memory(data);
    let open = |options| IntegrityDevice::open(Stores::interleaved(store.clone()), options);
    let device = open(open_options(Mode::Journal, &format)).unwrap();
    device.write(1000, &[7; 512], &[]).unwrap();
    device.flush().unwrap();
    device.resize(Some(64), NewBlocks::Recalculate).unwrap();
    device.close().unwrap();
    for recalculate in [false, true] {
        open(OpenOptions { recalculate, ..open_options(Mode::Journal, &format) }).unwrap();
    }
}
