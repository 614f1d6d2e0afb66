//! Stores whose operations threads carry out: equal to a model, several at once for one worker, and none lost to a
//! panic or to the end.

use crate::asynchronous::{LEN, agrees_with_model};
use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of};
use inlock_engine::Errno;
use inlock_engine::StoreProfile;
use inlock_engine::store::asynchronous::{self, AsyncStore};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::threaded::ThreadedStore;
use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
use inlock_tests::wait::eventually;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Memory whose calls take long, and the most of them at a time. A write at `panics_at` panics.
fn slow_memory(image: Vec<u8>, panics_at: Option<u64>) -> (Arc<ScriptedStore>, Arc<AtomicUsize>) {
    let (running, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let script = move |call: Call<'_>| {
        let at = if let Call::Write { offset, .. } = call { Some(offset) } else { None };
        assert!(at.is_none() || at != panics_at, "as the test wants");
        seen.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        running.fetch_sub(1, Ordering::SeqCst);
        Verdict::Pass
    };
    (Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(image)), script)), most)
}

#[test]
fn threaded_store_agrees_with_the_model() {
    for (seed, unit, threads) in [(1, 512, 3), (2, 4096, 1), (3, 512, 2)] {
        let mut random = Random::new(seed);
        let model = random.bytes(LEN);
        let (memory, _) = slow_memory(image_of(&model, unit), None);
        let store = ThreadedStore::start(Arc::clone(&memory) as _, threads).unwrap();
        agrees_with_model(Arc::new(store), unit, &mut random, model, || memory.inner().contents());
    }
}

#[test]
fn operations_of_one_worker_run_at_once() {
    let (memory, most) = slow_memory(image_of(&vec![0; LEN], 4096), None);
    let store = Arc::new(ThreadedStore::start(memory, 2).unwrap());
    let writes = (0..16).map(|n| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false }).collect();
    let answers = scripted::run(&device(store as _, 4096), IoMode::Auto, 8, writes);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn panic_of_a_call_fails_its_request_only() {
    let offset = DATA_OFFSET as u64;
    let (memory, _) = slow_memory(image_of(&vec![0; LEN], 4096), Some(offset));
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
    let (memory, _) = slow_memory(vec![0; LEN], None);
    let store = ThreadedStore::start(Arc::clone(&memory) as _, 2).unwrap();
    assert_eq!(asynchronous::write_at(&store, &[1; 512], 0, false), Ok(512));
    let mut found = [0; 512];
    assert_eq!(asynchronous::read_at(&store, &mut found, 0), Ok(512));
    assert_eq!(found, [1; 512]);
    store.abort();
    assert_eq!(asynchronous::sync(&store), Err(Errno::IO));
    assert_eq!(asynchronous::write_at(&store, &[2; 512], 0, false), Err(Errno::IO));
    assert_eq!(memory.inner().contents()[..512], [1; 512]);
}

/// All threads wait: what comes fails in time, and is not carried out later. What was begun is.
#[test]
fn operation_that_waits_for_a_thread_fails_in_time() {
    let gate = Arc::new(Gate::closed());
    let writes = Arc::clone(&gate);
    let stuck = Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(vec![0; LEN])), move |call| {
        if let Call::Write { .. } = call {
            writes.pass();
        }
        Verdict::Pass
    }));
    let store = ThreadedStore::start(Arc::clone(&stuck) as _, 2).unwrap();
    let store = store.with_wait_limit(Duration::from_secs(1)).unwrap();
    std::thread::scope(|scope| {
        let store = &store;
        let write = |byte: u8| asynchronous::write_at(store, &[byte; 512], u64::from(byte) * 512, false);
        let begun = [1, 2].map(|byte| scope.spawn(move || write(byte)));
        eventually("two writes wait", || gate.waiting(), |waiting| *waiting == 2);
        // A sync that failed would make all later ones fail.
        let sync = scope.spawn(move || asynchronous::sync(store));
        let late = [3, 4].map(|byte| scope.spawn(move || write(byte)));
        assert_eq!(late.map(|late| late.join().unwrap()), [Err(Errno::IO); 2]);
        assert_eq!(write(6), Err(Errno::IO), "the limit is one for each operation");
        assert!(!sync.is_finished(), "a sync does not wait for a thread");
        gate.open();
        assert_eq!(begun.map(|begun| begun.join().unwrap()), [Ok(512); 2]);
        assert_eq!(sync.join().unwrap(), Ok(()));
        assert_eq!(write(5), Ok(512));
    });
    let written: Vec<u8> = stuck.inner().contents()[..7 * 512].iter().step_by(512).copied().collect();
    assert_eq!(written, [0, 1, 2, 0, 0, 5, 0]);
}

#[test]
fn long_limit_fails_nothing_and_delays_no_end() {
    let (memory, _) = slow_memory(image_of(&vec![0; LEN], 4096), None);
    let store = ThreadedStore::start(Arc::clone(&memory) as _, 1).unwrap();
    let store = store.with_wait_limit(Duration::from_secs(86_400)).unwrap();
    let writes = (0..16).map(|n| Ask::Write { offset: n * 4096, data: vec![1; 4096], durable: false }).collect();
    let answers = scripted::run(&device(Arc::new(store), 4096), IoMode::Auto, 8, writes);
    assert!(answers.iter().all(Result::is_ok));
}

/// Lengths of calls, each with the name of its thread.
type Calls = Arc<Mutex<Vec<(usize, String)>>>;

/// Returns memory that says so, and the length of each read with the first letters of its thread's name.
fn watched(image: Vec<u8>, in_memory: bool) -> (Arc<ScriptedStore>, Calls) {
    let mut profile = StoreProfile::default();
    profile.in_memory = in_memory;
    let reads = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&reads);
    let script = move |call: Call<'_>| {
        if let Call::Read { len, .. } = call {
            let thread = std::thread::current().name().unwrap_or_default().chars().take(8).collect();
            noted.lock().unwrap().push((len, thread));
        }
        Verdict::Pass
    };
    let memory = Arc::new(MemoryStore::new(image));
    (Arc::new(ScriptedStore::new(memory, script).with_profile(profile)), reads)
}

/// Waking a thread costs more than a short copy; long ones are made by the store's threads, not by the copy thread.
#[test]
fn threads_read_what_is_long_or_not_in_memory() {
    for in_memory in [false, true] {
        let (watched, reads) = watched(image_of(&vec![7; 2 * LEN], 4096), in_memory);
        let store = Arc::new(ThreadedStore::start(watched, 2).unwrap());
        let read = |kib: u64| Ask::Read { offset: 0, len: kib << 10 };
        let script = [4, 32, 36, 64, 128, 256].map(read).into();
        let answers = scripted::run(&device(store as _, 4096), IoMode::Auto, 1, script);
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 7))));
        let reads = reads.lock().unwrap();
        assert_eq!(reads.len(), 6);
        for (len, thread) in &*reads {
            assert_eq!(thread == "inlock-s", !in_memory || *len > 32 << 10, "{len} bytes by {thread}: {in_memory}");
        }
    }
}

/// The store's owner says which calls take less time than waking a thread.
#[test]
fn short_calls_are_left_to_the_worker() {
    let (watched, reads) = watched(image_of(&vec![7; 2 * LEN], 4096), false);
    let store = ThreadedStore::start(watched, 2).unwrap().with_inline(8 << 10, 0);
    let read = |kib: u64| Ask::Read { offset: 0, len: kib << 10 };
    let answers = scripted::run(&device(Arc::new(store), 4096), IoMode::Auto, 1, [4, 8, 12].map(read).into());
    assert!(answers.iter().all(Result::is_ok));
    for (len, thread) in &*reads.lock().unwrap() {
        assert_eq!(thread == "inlock-s", *len > 8 << 10, "{len} bytes by {thread}");
    }
}
