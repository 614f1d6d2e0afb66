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
use inlock_engine::store::{BackingStore, Geometry, StoreProfile};
use inlock_tests::wait::eventually;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
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
    for (seed, unit, threads) in [(1, 512, 3), (2, 4096, 1), (3, 512, 2)] {
        let mut random = Random::new(seed);
        let model = random.bytes(LEN);
        let memory = SlowMemory::new(image_of(&model, unit), None);
        let store = ThreadedStore::start(Arc::clone(&memory) as _, threads).unwrap();
        agrees_with_model(Arc::new(store), unit, &mut random, model, || memory.memory.contents());
    }
}

#[test]
fn operations_of_one_worker_run_at_once() {
    let memory = SlowMemory::new(image_of(&vec![0; LEN], 4096), None);
    let store = Arc::new(ThreadedStore::start(Arc::clone(&memory) as _, 2).unwrap());
    let writes = (0..16).map(|n| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false }).collect();
    let answers = scripted::run(&device(store as _, 4096), IoMode::Auto, 8, writes);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(memory.most.load(Ordering::SeqCst), 2);
}

#[test]
fn panic_of_a_call_fails_its_request_only() {
    let offset = DATA_OFFSET as u64;
    let memory = SlowMemory::new(image_of(&vec![0; LEN], 4096), Some(offset));
    for threads in [1, 3] {
        let store = Arc::new(ThreadedStore::start(Arc::clone(&memory) as _, threads).unwrap());
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
    let store = ThreadedStore::start(Arc::clone(&memory) as _, 2).unwrap();
    assert_eq!(asynchronous::write_at(&store, &[1; 512], 0, false), Ok(512));
    let mut found = [0; 512];
    assert_eq!(asynchronous::read_at(&store, &mut found, 0), Ok(512));
    assert_eq!(found, [1; 512]);
    store.abort();
    assert_eq!(asynchronous::sync(&store), Err(Errno::IO));
    assert_eq!(asynchronous::write_at(&store, &[2; 512], 0, false), Err(Errno::IO));
    assert_eq!(memory.memory.contents()[..512], [1; 512]);
}

/// Memory whose writes wait until they are let go on.
struct StuckMemory {
    memory: MemoryStore,
    begun: Mutex<usize>,
    is_free: Mutex<bool>,
    changed: Condvar,
}

impl BackingStore for StuckMemory {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.memory.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        *self.begun.lock().unwrap() += 1;
        drop(self.changed.wait_while(self.is_free.lock().unwrap(), |is_free| !*is_free).unwrap());
        self.memory.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.memory.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.memory.discard(offset, len)
    }
}

/// All threads wait: what comes fails in time, and is not carried out later. What was begun is.
#[test]
fn operation_that_waits_for_a_thread_fails_in_time() {
    let (begun, is_free, changed) = Default::default();
    let stuck = Arc::new(StuckMemory { memory: MemoryStore::new(vec![0; LEN]), begun, is_free, changed });
    let store = ThreadedStore::start(Arc::clone(&stuck) as _, 2).unwrap();
    let store = store.with_wait_limit(Duration::from_secs(1)).unwrap();
    std::thread::scope(|scope| {
        let store = &store;
        let write = |byte: u8| asynchronous::write_at(store, &[byte; 512], u64::from(byte) * 512, false);
        let begun = [1, 2].map(|byte| scope.spawn(move || write(byte)));
        eventually("two writes wait", || *stuck.begun.lock().unwrap(), |begun| *begun == 2);
        // A sync that failed would make all later ones fail.
        let sync = scope.spawn(move || asynchronous::sync(store));
        let late = [3, 4].map(|byte| scope.spawn(move || write(byte)));
        assert_eq!(late.map(|late| late.join().unwrap()), [Err(Errno::IO); 2]);
        assert_eq!(write(6), Err(Errno::IO), "the limit is one for each operation");
        assert!(!sync.is_finished(), "a sync does not wait for a thread");
        *stuck.is_free.lock().unwrap() = true;
        stuck.changed.notify_all();
        assert_eq!(begun.map(|begun| begun.join().unwrap()), [Ok(512); 2]);
        assert_eq!(sync.join().unwrap(), Ok(()));
        assert_eq!(write(5), Ok(512));
    });
    let written: Vec<u8> = stuck.memory.contents()[..7 * 512].iter().step_by(512).copied().collect();
    assert_eq!(written, [0, 1, 2, 0, 0, 5, 0]);
}

#[test]
fn long_limit_fails_nothing_and_delays_no_end() {
    let memory = SlowMemory::new(image_of(&vec![0; LEN], 4096), None);
    let store = ThreadedStore::start(Arc::clone(&memory) as _, 1).unwrap();
    let store = store.with_wait_limit(Duration::from_secs(86_400)).unwrap();
    let writes = (0..16).map(|n| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false }).collect();
    let answers = scripted::run(&device(Arc::new(store), 4096), IoMode::Auto, 8, writes);
    assert!(answers.iter().all(Result::is_ok));
}

/// Memory that says so, and keeps the length of each read with the first letters of its thread's name.
struct Watched {
    memory: MemoryStore,
    in_memory: bool,
    reads: Mutex<Vec<(usize, String)>>,
}

impl BackingStore for Watched {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        profile.in_memory = self.in_memory;
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let thread = std::thread::current().name().unwrap_or_default().chars().take(8).collect();
        self.reads.lock().unwrap().push((data.len(), thread));
        self.memory.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.memory.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.memory.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.memory.discard(offset, len)
    }
}

/// Waking a thread costs more than a short copy; long ones are made by the store's threads, not by the copy thread.
#[test]
fn threads_read_what_is_long_or_not_in_memory() {
    for in_memory in [false, true] {
        let memory = MemoryStore::new(image_of(&vec![7; 2 * LEN], 4096));
        let watched = Arc::new(Watched { memory, in_memory, reads: Mutex::default() });
        let store = Arc::new(ThreadedStore::start(Arc::clone(&watched) as _, 2).unwrap());
        let read = |kib: u64| Ask::Read { offset: 0, len: kib << 10 };
        let script = [4, 32, 36, 64, 128, 256].map(read).into();
        let answers = scripted::run(&device(store as _, 4096), IoMode::Auto, 1, script);
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 7))));
        let reads = watched.reads.lock().unwrap();
        assert_eq!(reads.len(), 6);
        for (len, thread) in &*reads {
            assert_eq!(thread == "inlock-s", !in_memory || *len > 32 << 10, "{len} bytes by {thread}: {in_memory}");
        }
    }
}

/// The store's owner says which calls take less time than waking a thread.
#[test]
fn short_calls_are_left_to_the_worker() {
    let memory = MemoryStore::new(image_of(&vec![7; 2 * LEN], 4096));
    let watched = Arc::new(Watched { memory, in_memory: false, reads: Mutex::default() });
    let store = ThreadedStore::start(Arc::clone(&watched) as _, 2).unwrap().with_inline(8 << 10, 0);
    let read = |kib: u64| Ask::Read { offset: 0, len: kib << 10 };
    let answers = scripted::run(&device(Arc::new(store), 4096), IoMode::Auto, 1, [4, 8, 12].map(read).into());
    assert!(answers.iter().all(Result::is_ok));
    for (len, thread) in &*watched.reads.lock().unwrap() {
        assert_eq!(thread == "inlock-s", *len > 8 << 10, "{len} bytes by {thread}");
    }
}
