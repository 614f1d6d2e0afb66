//! The thread that empties the journal.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{Numbers, fill, formatted, hash, memory, open_options};
use inlock_engine::BackingStore;
use inlock_engine::store::{memory::MemoryStore, read_all, write_all};
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityStore, JournalWriter, Mode, OpenOptions, Stores};
use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: usize = 512;

/// Number of writes of each thread, by its name.
#[derive(Clone, Debug, Default)]
struct Writes(Arc<Mutex<HashMap<String, usize>>>);

impl Writes {
    fn of(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    /// Returns a store that counts its writes here.
    fn watch(&self, inner: Arc<MemoryStore>) -> Arc<ScriptedStore> {
        let Self(writes) = self.clone();
        Arc::new(ScriptedStore::new(inner, move |call| {
            if let Call::Write { .. } = call {
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                *writes.lock().unwrap().entry(name).or_default() += 1;
            }
            Verdict::Pass
        }))
    }
}

fn options() -> FormatOptions {
    FormatOptions { internal_hash: Some(hash("sha256")), journal_sectors: Some(2048), ..FormatOptions::default() }
}

fn open(store: Arc<dyn BackingStore>) -> Arc<IntegrityDevice> {
    Arc::new(IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Journal, &options())).unwrap())
}

fn check(device: &IntegrityDevice, model: &HashMap<u64, u8>) {
    for (block, value) in model {
        let mut data = [0; BLOCK];
        device.read(*block, &mut data, &mut []).unwrap();
        assert!(data[..] == fill(*block, *value, BLOCK), "block {block}");
    }
}

/// A journal that is half full is emptied by the thread, and by writers only if it is full.
#[test]
fn thread_empties_the_journal_while_others_write() {
    const WRITERS: u64 = 4;
    const BLOCKS: u64 = 400;
    let bytes = memory(formatted(&options(), 16 << 20, None).0);
    let writes = Writes::default();
    let watched = writes.watch(bytes.clone());
    let device = open(watched.clone());
    let writer = JournalWriter::start(Arc::clone(&device)).unwrap().unwrap();
    assert!(JournalWriter::start(Arc::clone(&device)).unwrap().is_none(), "one thread for a device");
    let write = |number: u64| {
        let mut model = HashMap::new();
        for round in 1..=20u8 {
            for at in 0..BLOCKS {
                let block = number * BLOCKS + (at * 37 + u64::from(round)) % BLOCKS;
                device.write(block, &fill(block, round, BLOCK), &[]).unwrap();
                model.insert(block, round);
            }
            check(&device, &model);
            device.flush().unwrap();
        }
        model
    };
    let model: HashMap<_, _> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || write(number))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(writes.of("inlock-journal") > 0, "{:?}", writes);
    check(&device, &model);
    drop(writer);
    // Power is cut: everything was flushed.
    check(&open(memory(bytes.contents().clone())), &model);
    device.close().unwrap();
    check(&open(bytes), &model);
    println!("COUNT journal_writer_blocks {}", model.len());
}

/// Writers empty the journal themselves as soon as there is no thread.
#[test]
fn writers_empty_the_journal_after_the_thread_has_ended() {
    let bytes = memory(formatted(&options(), 16 << 20, None).0);
    let writes = Writes::default();
    let watched = writes.watch(bytes);
    let device = open(watched.clone());
    drop(JournalWriter::start(Arc::clone(&device)).unwrap().unwrap());
    assert_eq!(writes.of("inlock-journal"), 0);
    let mut model = HashMap::new();
    for block in 0..8000 {
        device.write(block, &fill(block, 7, BLOCK), &[]).unwrap();
        model.insert(block, 7);
    }
    assert_eq!(writes.of("inlock-journal"), 0);
    let own = std::thread::current().name().unwrap().to_owned();
    assert!(writes.of(&own) > 0);
    check(&device, &model);
    let again = JournalWriter::start(Arc::clone(&device)).unwrap();
    assert!(again.is_some(), "the place of the first one is free");
    while writes.of("inlock-journal") == 0 {
        device.write(0, &fill(0, 8, BLOCK), &[]).unwrap();
    }
    model.insert(0, 8);
    check(&device, &model);
}

/// Threads write whole sections of the journal, and blocks of the section that all share; each reads what it wrote, and
/// what it has flushed is there after a power cut.
#[test]
fn sections_of_several_threads_keep_the_order_of_their_writes() {
    const WRITERS: u64 = 4;
    const BLOCKS: u64 = 700;
    const ROUNDS: u8 = 30;
    let format = FormatOptions {
        tag_size: Some(28),
        journal_sectors: Some(1024),
        interleave_sectors: 64,
        ..FormatOptions::default()
    };
    let bytes = memory(formatted(&format, 16 << 20, None).0);
    let open = |store: Arc<MemoryStore>| {
        let device = IntegrityDevice::open(Stores::interleaved(store), OpenOptions::new(Mode::Journal)).unwrap();
        let device = Arc::new(device);
        let writer = JournalWriter::start(Arc::clone(&device)).unwrap().unwrap();
        (IntegrityStore::sealed(device, with_tags_of(28, &gcm(), BLOCK as u32, 1)).unwrap(), writer)
    };
    let (store, writer) = open(bytes.clone());
    let section = store.device().layout().journal.entries as u64;
    assert!(section * 4 < BLOCKS, "{section}");
    let data_of = |range: std::ops::Range<u64>, value: u8| -> Vec<u8> {
        range.flat_map(|block| fill(block, value, BLOCK)).collect()
    };
    let check = |store: &IntegrityStore, first: u64, model: &[u8]| {
        for (block, value) in (first..).zip(model) {
            let mut data = [0; BLOCK];
            read_all(store, &mut data, block * BLOCK as u64).unwrap();
            assert!(data[..] == fill(block, *value, BLOCK), "block {block} is not of round {value}");
        }
    };
    let run = |number: u64| {
        let (first, mut numbers) = (number * BLOCKS, Numbers(number + 77));
        let mut model = vec![0; BLOCKS as usize];
        write_all(&store, &data_of(first..first + BLOCKS, 0), first * BLOCK as u64).unwrap();
        for round in 1..=ROUNDS {
            for _ in 0..6 {
                let most = if numbers.below(2) == 0 { 5 } else { 4 * section };
                let at = numbers.below(BLOCKS);
                let end = (at + 1 + numbers.below(most)).min(BLOCKS);
                model[at as usize..end as usize].fill(round);
                write_all(&store, &data_of(first + at..first + end, round), (first + at) * BLOCK as u64).unwrap();
            }
            check(&store, first, &model);
            store.sync().unwrap();
        }
        model
    };
    let models: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || run(number))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(writer);
    let (cut, _writer) = open(memory(bytes.contents()));
    for (number, model) in (0..).zip(&models) {
        check(&store, number * BLOCKS, model);
        check(&cut, number * BLOCKS, model);
    }
}

/// A flush in flight has taken its sections before, and one that makes room does not take the open section:
/// neither makes a write durable that was acknowledged meanwhile.
#[test]
fn flush_that_began_before_a_write_does_not_stand_for_the_next_one() {
    const BLOCKS: u64 = 1100;
    let bytes = memory(formatted(&options(), 16 << 20, None).0);
    let gate = Arc::new(Gate::default());
    let syncs = Arc::clone(&gate);
    let gated = Arc::new(ScriptedStore::new(bytes.clone(), move |call| {
        if call == Call::Sync {
            syncs.pass();
        }
        Verdict::Pass
    }));
    let device = open(gated.clone());
    let _writer = JournalWriter::start(Arc::clone(&device)).unwrap();
    device.write(1, &fill(1, 1, BLOCK), &[]).unwrap();
    gate.close();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| device.flush().unwrap());
        while gate.waiting() == 0 {
            std::thread::yield_now();
        }
        // More than half of the journal, so that the thread waits to empty it, and not all.
        let layout = device.layout().journal;
        let entries = layout.entries as u64 * u64::from(layout.sections);
        assert!((entries / 2 + layout.entries as u64..entries).contains(&BLOCKS), "{entries}");
        (0..BLOCKS).for_each(|n| device.write(3, &fill(3, n as u8, BLOCK), &[]).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        device.write(2, &fill(2, 2, BLOCK), &[]).unwrap();
        let second = scope.spawn(|| device.flush().unwrap());
        // Time for it to wait, too.
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        first.join().unwrap();
        second.join().unwrap();
    });
    check(&open(memory(bytes.contents())), &HashMap::from([(1, 1), (2, 2)]));
}

#[test]
fn volume_without_a_journal_needs_no_thread() {
    let bytes = memory(formatted(&options(), 16 << 20, None).0);
    let device = IntegrityDevice::open(Stores::interleaved(bytes), open_options(Mode::Direct, &options())).unwrap();
    assert!(JournalWriter::start(Arc::new(device)).unwrap().is_none());
}
