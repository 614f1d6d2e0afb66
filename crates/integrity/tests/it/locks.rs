//! Locks between threads: one is held at a call of the store, and another one comes.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_engine::store::read_all;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityStore, JournalWriter, Mode, OpenOptions, Stores};
use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
use inlock_tests::wait::{eventually, spawn_until_it_waits, spawn_watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const LEN: usize = 1 << 20;

fn options() -> FormatOptions {
    FormatOptions {
        tag_size: Some(60),
        internal_hash: Some(hash("hmac-sha256")),
        interleave_sectors: 256,
        journal_sectors: Some(256),
        sectors_per_bit: 16,
        ..FormatOptions::default()
    }
}

/// Opens a volume whose first 200 blocks have value 1, on a store that `script` sees.
fn open(mode: Mode, script: impl Fn(Call<'_>) -> Verdict + Send + Sync + 'static) -> (IntegrityDevice, Arc<Image>) {
    let image = memory(formatted(&options(), LEN, None).0);
    let open = |store: Arc<dyn BackingStore>, mode| {
        let options = OpenOptions { allow_discards: true, ..open_options(mode, &options()) };
        IntegrityDevice::open(Stores::interleaved(store), options).unwrap()
    };
    let first = open(image.clone(), Mode::Direct);
    (0..200).for_each(|block| first.write(block, &fill(block, 1, 512), &[]).unwrap());
    first.close().unwrap();
    (open(Arc::new(ScriptedStore::new(image.clone(), script)), mode), image)
}

type Image = inlock_engine::store::memory::MemoryStore;

fn value(device: &IntegrityDevice, block: u64) -> Option<u8> {
    let mut data = [0; 512];
    device.read(block, &mut data, &mut []).unwrap();
    (0..=9).find(|value| data[..] == fill(block, *value, 512))
}

/// Returns a script that holds the `nth` call that `is_meant`, and those after it.
fn held(
    gate: &Arc<Gate>,
    nth: usize,
    is_meant: impl Fn(Call<'_>) -> bool + Send + Sync + 'static,
) -> impl Fn(Call<'_>) -> Verdict + Send + Sync + 'static {
    let (gate, calls) = (Arc::clone(gate), AtomicUsize::new(0));
    move |call| {
        if is_meant(call) && calls.fetch_add(1, Ordering::SeqCst) + 1 >= nth {
            gate.pass();
        }
        Verdict::Pass
    }
}

/// A read has the tag of a block, and waits for its data: no write may change them meanwhile, nor the thread that
/// copies the journal to its places.
#[test]
fn read_sees_data_and_tag_of_one_write() {
    for mode in [Mode::Journal, Mode::Bitmap, Mode::Direct] {
        const BLOCK: u64 = 7;
        let gate = Arc::new(Gate::default());
        let layout = open(mode, |_| Verdict::Pass).0;
        let at = layout.layout().data_position(BLOCK).0;
        let is_read = move |call: Call<'_>| matches!(call, Call::Read { offset, .. } if offset == at);
        let (device, _) = open(mode, held(&gate, 1, is_read));
        gate.close();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| value(&device, BLOCK));
            eventually("a read", || gate.waiting(), |waiting| *waiting == 1);
            let write = spawn_until_it_waits(scope, || {
                device.write(BLOCK, &fill(BLOCK, 2, 512), &[])?;
                device.close()
            });
            gate.open();
            assert_eq!(read.join().unwrap(), Some(1), "{mode:?}");
            write.join().unwrap().unwrap();
        });
        assert_eq!(value(&device, BLOCK), Some(2), "{mode:?}");
    }
}

/// A read of three blocks has seen that the last one is not in the journal, and waits for the first. Meanwhile the last
/// one is written, and is being copied to its place: the read has to wait for data and tag.
#[test]
fn read_that_has_missed_an_entry_waits_until_it_is_copied() {
    // The last two have another lock.
    const FIRST: u64 = 63;
    let [first, copied, last] = [0, 1, 2].map(|n| {
        let device = open(Mode::Journal, |_| Verdict::Pass).0;
        device.layout().data_position(FIRST + n).0
    });
    let [first_read, copy, last_read] = [(); 3].map(|()| Arc::new(Gate::default()));
    let gates = [&first_read, &copy, &last_read].map(Arc::clone);
    let (device, _) = open(Mode::Journal, move |call| {
        match call {
            Call::Read { offset, .. } if offset == first => gates[0].pass(),
            Call::Write { offset, .. } if offset == copied => gates[1].pass(),
            Call::Read { offset, .. } if offset == last => gates[2].pass(),
            _ => {}
        }
        Verdict::Pass
    });
    // The middle one is in the journal, so that the others are read one after the other.
    device.write(FIRST + 1, &fill(FIRST + 1, 2, 512), &[]).unwrap();
    [&first_read, &copy, &last_read].iter().for_each(|gate| gate.close());
    std::thread::scope(|scope| {
        let (read, is_waiting) = spawn_watched(scope, || {
            let mut data = [0; 3 * 512];
            device.read(FIRST, &mut data, &mut []).map(|()| data)
        });
        eventually("a read", || first_read.waiting(), |waiting| *waiting == 1);
        let close = scope.spawn(|| {
            device.write(FIRST + 2, &fill(FIRST + 2, 2, 512), &[])?;
            device.close()
        });
        eventually("a copy", || copy.waiting(), |waiting| *waiting == 1);
        first_read.open();
        eventually("the rest of the read", || first_read.waiting() == 0 && is_waiting(), |waits| *waits);
        copy.open();
        close.join().unwrap().unwrap();
        last_read.open();
        let data = read.join().unwrap().unwrap();
        let blocks = [(FIRST, 1), (FIRST + 1, 2), (FIRST + 2, 2)].map(|(block, value)| fill(block, value, 512));
        assert!(data[..] == blocks.concat());
    });
}

/// Syncs are made one after the other; one that waited while another failed fails, too.
#[test]
fn sync_that_waits_for_one_that_fails_fails() {
    for fails in [false, true] {
        let gate = Arc::new(Gate::default());
        // The first one fails that is counted from 0.
        let (held, syncs) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(1)));
        let counted = Arc::clone(&syncs);
        let (device, _) = open(Mode::Bitmap, move |call| match call {
            Call::Sync => {
                held.pass();
                let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
                if is_first && fails { Verdict::Fail(Errno::NOSPC) } else { Verdict::Pass }
            }
            _ => Verdict::Pass,
        });
        gate.close();
        syncs.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| device.flush());
            eventually("a sync", || gate.waiting(), |waiting| *waiting == 1);
            // It makes the bit of its region durable.
            let write = spawn_until_it_waits(scope, || device.write(40, &[1; 512], &[]));
            assert_eq!(gate.waiting(), 1, "one sync at a time");
            gate.open();
            assert_eq!(flush.join().unwrap(), if fails { Err(Errno::NOSPC) } else { Ok(()) });
            assert_eq!(write.join().unwrap(), if fails { Err(Errno::IO) } else { Ok(()) });
        });
        assert_eq!(syncs.load(Ordering::SeqCst), if fails { 1 } else { 2 });
    }
}

/// A write that comes while a bitmap is closed finds it closed: nothing of it is left behind the end of the bitmap.
#[test]
fn write_during_a_close_is_refused_or_complete() {
    let gate = Arc::new(Gate::default());
    let (device, image) = open(Mode::Bitmap, held(&gate, 1, |call| call == Call::Sync));
    device.write(3, &fill(3, 2, 512), &[]).unwrap();
    gate.close();
    let written = std::thread::scope(|scope| {
        let close = scope.spawn(|| device.close());
        eventually("the first sync", || gate.waiting(), |waiting| *waiting == 1);
        let write = spawn_until_it_waits(scope, || device.write(4, &fill(4, 2, 512), &[]));
        gate.open();
        close.join().unwrap().unwrap();
        write.join().unwrap()
    });
    // No flush: the volume is marked as clean.
    drop(device);
    let device = IntegrityDevice::open(Stores::interleaved(image), open_options(Mode::Bitmap, &options())).unwrap();
    assert_eq!((value(&device, 3), value(&device, 4)), (Some(2), Some(if written.is_ok() { 2 } else { 1 })));
}

/// A flush stands for all that waited when it began, and for nothing that came later.
#[test]
fn one_commit_is_that_of_all_that_wait() {
    let gates = [Arc::new(Gate::default()), Arc::new(Gate::default())];
    let syncs = Arc::new(AtomicUsize::new(usize::MAX));
    let (held, counted) = (gates.clone(), Arc::clone(&syncs));
    let (device, _) = open(Mode::Journal, move |call| {
        let is_counted = call == Call::Sync && counted.load(Ordering::SeqCst) != usize::MAX;
        if let Some(held) = is_counted.then(|| counted.fetch_add(1, Ordering::SeqCst)).and_then(|n| held.get(n)) {
            held.pass();
        }
        Verdict::Pass
    });
    let write = |block| device.write(block, &fill(block, 2, 512), &[]).unwrap();
    gates.iter().for_each(|gate| gate.close());
    syncs.store(0, Ordering::SeqCst);
    let before = device.metrics().commits;
    std::thread::scope(|scope| {
        write(1);
        let first = scope.spawn(|| device.flush());
        eventually("the first commit", || gates[0].waiting(), |waiting| *waiting == 1);
        write(2);
        let others = [(); 2].map(|()| spawn_until_it_waits(scope, || device.flush()));
        gates[0].open();
        eventually("the second commit", || gates[1].waiting(), |waiting| *waiting == 1);
        // Neither flush is for it.
        write(3);
        gates[1].open();
        first.join().unwrap().unwrap();
        others.into_iter().for_each(|flush| flush.join().unwrap().unwrap());
    });
    assert_eq!(device.metrics().commits - before, 2);
    device.flush().unwrap();
    assert_eq!(device.metrics().commits - before, 3, "that of the last write");
    let (used, synced) = (device.metrics().journal_sections_used, syncs.load(Ordering::SeqCst));
    device.flush().unwrap();
    let after = device.metrics();
    let is_same = (after.commits - before, after.journal_sections_used, syncs.load(Ordering::SeqCst));
    assert_eq!(is_same, (3, used, synced), "there is nothing to write");
    device.close().unwrap();
    assert_eq!(device.metrics().journal_sections_used, 0);
}

/// A write of parts of blocks has read the first and waits for the last one: no write changes the first meanwhile.
#[test]
fn write_of_parts_of_blocks_takes_no_other_write_back() {
    const LAST: u64 = 100;
    let gate = Arc::new(Gate::default());
    let at = open(Mode::Direct, |_| Verdict::Pass).0.layout().data_position(LAST).0;
    let is_read = move |call: Call<'_>| matches!(call, Call::Read { offset, .. } if offset == at);
    let (device, _) = open(Mode::Direct, held(&gate, 1, is_read));
    let store = IntegrityStore::new(Arc::new(device)).unwrap();
    gate.close();
    std::thread::scope(|scope| {
        let parts = scope.spawn(|| store.write_at(&[8; (LAST * 512) as usize], 256));
        eventually("a read", || gate.waiting(), |waiting| *waiting == 1);
        let whole = spawn_until_it_waits(scope, || store.write_at(&[9; 512], 0));
        gate.open();
        assert_eq!(parts.join().unwrap(), Ok((LAST * 512) as usize));
        assert_eq!(whole.join().unwrap(), Ok(512));
    });
    let mut data = [0; 512];
    read_all(&store, &mut data, 0).unwrap();
    assert_eq!(data[..256], [9; 256], "the other write came first and was taken back");
}

/// The journal is full, and its thread is held: a write of a whole block and one of a part of it wait for room. Both
/// are there in the end.
#[test]
fn write_of_a_part_waits_for_one_of_the_whole_block() {
    let gate = Arc::new(Gate::default());
    let is_sync = |call: Call<'_>| call == Call::Sync;
    let (device, _) = open(Mode::Journal, held(&gate, 1, is_sync));
    let device = Arc::new(device);
    let writer = JournalWriter::start(Arc::clone(&device)).unwrap().unwrap();
    let store = IntegrityStore::new(Arc::clone(&device)).unwrap();
    gate.close();
    let layout = device.layout().journal;
    let entries = layout.entries as u64 * (u64::from(layout.sections) + 1);
    std::thread::scope(|scope| {
        // As many as it takes without a free section.
        (0..entries).for_each(|n| device.write(50 + n % 100, &fill(n, 3, 512), &[]).unwrap());
        eventually("the thread", || gate.waiting(), |waiting| *waiting == 1);
        let whole = spawn_until_it_waits(scope, || store.write_at(&[6; 512], 512));
        let part = spawn_until_it_waits(scope, || store.write_at(&[7; 256], 512));
        assert!(!whole.is_finished() && !part.is_finished(), "the journal is not full");
        gate.open();
        assert_eq!((whole.join().unwrap(), part.join().unwrap()), (Ok(512), Ok(256)));
    });
    drop(writer);
    let mut data = [0; 512];
    read_all(&store, &mut data, 512).unwrap();
    assert!(data[256..] == [6; 256], "the whole write was taken back");
    assert!(data[..256] == [7; 256] || data[..256] == [6; 256]);
}

/// A step of a recalculation has read the tags of its blocks, and waits for the data. Others fill the cache meanwhile,
/// so that the tags are read once more before they are changed: if that fails, so does the step.
#[test]
fn recalculation_fails_if_tags_that_left_the_cache_cannot_be_read() {
    const TAG: usize = 250;
    let format =
        FormatOptions { tag_size: Some(TAG), internal_hash: Some(hash("crc32c")), recalculate: true, ..options() };
    let (data, meta) = formatted(&format, 36 << 20, Some(24 << 20));
    let (gate, is_broken) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
    let held = Arc::clone(&gate);
    let data = ScriptedStore::new(memory(data), move |call| {
        if matches!(call, Call::Read { offset: 0, .. }) {
            held.pass();
        }
        Verdict::Pass
    });
    let breaks = Arc::clone(&is_broken);
    let meta = ScriptedStore::new(memory(meta.unwrap()), move |call| {
        let is_read = matches!(call, Call::Read { .. }) && breaks.load(Ordering::SeqCst);
        if is_read { Verdict::Fail(Errno::NOSPC) } else { Verdict::Pass }
    });
    let stores = Stores { data: Arc::new(data), meta: Some(Arc::new(meta)), start: 0 };
    let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &format)).unwrap();
    gate.close();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| device.recalculate_step());
        eventually("the data", || gate.waiting(), |waiting| *waiting == 1);
        // Four groups of 16 pieces that share a part of the cache with the first one: as many as it holds.
        for piece in [1024, 2048, 3072, 4096].into_iter().flat_map(|first| first..first + 16) {
            device.read((piece * 4096 / TAG + 1) as u64, &mut [0; 512], &mut []).unwrap();
        }
        is_broken.store(true, Ordering::SeqCst);
        gate.open();
        assert_eq!(step.join().unwrap(), Err(Errno::NOSPC));
    });
    is_broken.store(false, Ordering::SeqCst);
    while !device.recalculate_step().unwrap() {}
    device.read(0, &mut [0; 512], &mut []).unwrap();
}
