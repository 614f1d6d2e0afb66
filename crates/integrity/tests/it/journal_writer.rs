//! The thread that empties the journal.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_engine::{BackingStore, Errno, Geometry, store::memory::MemoryStore};
use inlock_integrity::{FormatOptions, IntegrityDevice, JournalWriter, Mode, Stores};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 512;

/// Memory that counts the writes of each thread by its name.
struct Watched {
    inner: Arc<MemoryStore>,
    writes: Mutex<HashMap<String, usize>>,
}

impl Watched {
    fn writes_of(&self, name: &str) -> usize {
        self.writes.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl BackingStore for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.inner.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        *self.writes.lock().unwrap().entry(name).or_default() += 1;
        self.inner.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.inner.sync()
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
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
    let watched = Arc::new(Watched { inner: bytes.clone(), writes: Mutex::default() });
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
    assert!(watched.writes_of("inlock-journal") > 0, "{:?}", watched.writes.lock().unwrap());
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
    let watched = Arc::new(Watched { inner: bytes, writes: Mutex::default() });
    let device = open(watched.clone());
    drop(JournalWriter::start(Arc::clone(&device)).unwrap().unwrap());
    assert_eq!(watched.writes_of("inlock-journal"), 0);
    let mut model = HashMap::new();
    for block in 0..8000 {
        device.write(block, &fill(block, 7, BLOCK), &[]).unwrap();
        model.insert(block, 7);
    }
    assert_eq!(watched.writes_of("inlock-journal"), 0);
    let own = std::thread::current().name().unwrap().to_owned();
    assert!(watched.writes_of(&own) > 0);
    check(&device, &model);
    let again = JournalWriter::start(Arc::clone(&device)).unwrap();
    assert!(again.is_some(), "the place of the first one is free");
    while watched.writes_of("inlock-journal") == 0 {
        device.write(0, &fill(0, 8, BLOCK), &[]).unwrap();
    }
    model.insert(0, 8);
    check(&device, &model);
}

#[test]
fn volume_without_a_journal_needs_no_thread() {
    let bytes = memory(formatted(&options(), 16 << 20, None).0);
    let device = IntegrityDevice::open(Stores::interleaved(bytes), open_options(Mode::Direct, &options())).unwrap();
    assert!(JournalWriter::start(Arc::new(device)).unwrap().is_none());
}
