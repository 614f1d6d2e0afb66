//! Stores whose operations threads carry out: equal to a model, several at once for one worker, and none lost to a
//! panic or to the end.

use crate::asynchronous::{LEN, agrees_with_model};
use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of};
use inlock_engine::Errno;
use inlock_engine::store::asynchronous::{self, AsyncStore};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::threaded::ThreadedStore;
use inlock_engine::store::{BackingStore, Geometry};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Memory whose calls take long, and panic where `panics` says so.
struct SlowMemory {
    memory: MemoryStore,
    panics_at: Option<u64>,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl SlowMemory {
    fn new(image: Vec<u8>, panics_at: Option<u64>) -> Arc<Self> {
        let (running, most) = Default::default();
        Arc::new(Self { memory: MemoryStore::new(image), panics_at, running, most })
    }

    fn slowly<T>(&self, call: impl FnOnce() -> T) -> T {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        let result = call();
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl BackingStore for SlowMemory {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.slowly(|| self.memory.read_at(data, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        assert!(self.panics_at != Some(offset), "as the test wants");
        self.slowly(|| self.memory.write_at(data, offset))
    }

    fn sync(&self) -> Result<(), Errno> {
        self.slowly(|| self.memory.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.slowly(|| self.memory.discard(offset, len))
    }
}

#[test]
fn threaded_store_agrees_with_the_model() {
    for (seed, unit, threads, workers_help) in [(1, 512, 3, true), (2, 4096, 1, true), (3, 512, 2, false)] {
        let mut random = Random::new(seed);
        let model = random.bytes(LEN);
        let memory = SlowMemory::new(image_of(&model, unit), None);
        let store = ThreadedStore::start(Arc::clone(&memory) as _, threads, workers_help).unwrap();
        agrees_with_model(Arc::new(store), unit, &mut random, model, || memory.memory.contents());
    }
}

#[test]
fn operations_of_one_worker_run_at_once_on_a_single_thread_and_the_worker() {
    let memory = SlowMemory::new(image_of(&vec![0; LEN], 4096), None);
    let store = Arc::new(ThreadedStore::start(Arc::clone(&memory) as _, 1, true).unwrap());
    let writes = (0..16).map(|n| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false }).collect();
    let answers = scripted::run(&device(store as _, 4096), IoMode::Auto, 8, writes);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(memory.most.load(Ordering::SeqCst), 2);
}

#[test]
fn panic_of_a_call_fails_its_request_only() {
    let offset = DATA_OFFSET as u64;
    let memory = SlowMemory::new(image_of(&vec![0; LEN], 4096), Some(offset));
    for workers_help in [false, true] {
        let store = Arc::new(ThreadedStore::start(Arc::clone(&memory) as _, 1, workers_help).unwrap());
        let device = device(store as _, 4096);
        let write = |n: u64| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false };
        let answers = scripted::run(&device, IoMode::Auto, 4, (0..8).map(write).collect());
        let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
        assert_eq!(failed, [true, false, false, false, false, false, false, false], "{answers:?}");
    }
}

#[test]
fn aborted_threaded_store_refuses_what_comes() {
    let memory = SlowMemory::new(vec![0; LEN], None);
    let store = ThreadedStore::start(Arc::clone(&memory) as _, 2, true).unwrap();
    assert_eq!(asynchronous::write_at(&store, &[1; 512], 0, false), Ok(512));
    let mut found = [0; 512];
    assert_eq!(asynchronous::read_at(&store, &mut found, 0), Ok(512));
    assert_eq!(found, [1; 512]);
    store.abort();
    assert_eq!(asynchronous::sync(&store), Err(Errno::IO));
    assert_eq!(asynchronous::write_at(&store, &[2; 512], 0, false), Err(Errno::IO));
    assert_eq!(memory.memory.contents()[..512], [1; 512]);
}
