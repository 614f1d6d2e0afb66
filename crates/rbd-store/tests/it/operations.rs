//! Operations that succeed, fail, come late or never.

use crate::fake::{Log, libraries, open, open_with, options};
use inlock_engine::store::StoreOperation;
use inlock_engine::store::asynchronous::{AsyncStore, call};
use inlock_engine::{BackingStore, BlockStatus, Buffer, Errno};
use inlock_tests::random::Random;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

#[test]
fn operations_of_many_threads_reach_their_place() {
    let store = open(":fake_late=1").unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for round in 0..16 {
                    let offset = (thread * 16 + round) * BLOCK as u64;
                    let data = random.bytes(BLOCK);
                    assert_eq!(store.write_at(&data, offset), Ok(BLOCK));
                    store.sync().unwrap();
                    let mut found = vec![0; BLOCK];
                    assert_eq!(store.read_at(&mut found, offset), Ok(BLOCK));
                    assert_eq!(found, data, "thread {thread} round {round}");
                    store.discard(offset, BLOCK as u64).unwrap();
                    done.fetch_add(4, Ordering::Relaxed);
                }
            });
        }
    });
    println!("COUNT rbd_operations {}", done.into_inner());
}

#[test]
fn short_read_is_zero_in_the_image_and_ends_at_its_end() {
    let store = open(":fake_from=2:fake_read=1000").unwrap();
    assert_eq!(store.write_at(&[7; BLOCK], 0), Ok(BLOCK));
    let mut buffer = Buffer::new(BLOCK);
    buffer.data_mut().fill(1);
    let (result, read) = call(&store, StoreOperation::Read { offset: 0, buffer, range: 0..BLOCK });
    assert_eq!(result, Ok(BLOCK));
    let StoreOperation::Read { buffer, .. } = read else { panic!("{read:?}") };
    let found = buffer.data();
    assert!(found[..1000].iter().all(|byte| *byte == 7) && found[1000..].iter().all(|byte| *byte == 0));
    // A read over the end, which librbd cuts.
    let size = store.geometry().len;
    let mut found = [1; 2 * BLOCK];
    assert_eq!(store.read_at(&mut found, size - BLOCK as u64), Ok(BLOCK));
    assert!(found[..BLOCK].iter().all(|byte| *byte == 0));
    assert_eq!(store.read_at(&mut found, size), Ok(0));
    assert_eq!(store.write_at(&[0; BLOCK], size), Err(Errno::NOSPC));
    assert_eq!(store.write_at(&[0; 2 * BLOCK], size - BLOCK as u64), Err(Errno::NOSPC));
    assert_eq!(store.discard(size, 1), Err(Errno::NOSPC));
    // Up to the end of the image.
    assert_eq!(store.write_at(&[0; BLOCK], size - BLOCK as u64), Ok(BLOCK));
    store.discard(size - BLOCK as u64, BLOCK as u64).unwrap();
    assert!(store.discard(u64::MAX, 2).is_err());
}

#[test]
fn result_longer_than_the_read_is_an_error() {
    let store = open(":fake_read=4097").unwrap();
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO));
}

#[test]
fn errors_reach_the_caller_and_none_is_repeated_without_end() {
    let quota = Errno::from_raw_os_error(122);
    assert_eq!(quota, Errno::DQUOT);
    for (number, error) in [
        (5, Errno::IO),
        (122, Errno::NOSPC),
        (28, Errno::NOSPC),
        (11, Errno::IO),
        (4, Errno::IO),
        (110, Errno::TIMEDOUT),
    ] {
        for kind in ["read", "write", "flush", "discard"] {
            let store = open(&format!(":fake_{kind}=-{number}")).unwrap();
            let results = [
                store.read_at(&mut [0; BLOCK], 0).map(drop),
                store.write_at(&[0; BLOCK], 0).map(drop),
                store.sync(),
                store.discard(0, BLOCK as u64),
            ];
            let failing = ["read", "write", "flush", "discard"].map(|other| other == kind);
            for (result, failing) in results.into_iter().zip(failing) {
                assert_eq!(result, if failing { Err(error) } else { Ok(()) }, "{kind} {number}");
            }
        }
    }
}

#[test]
fn operation_that_does_not_start_fails() {
    let store = open(":fake_start=12").unwrap();
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::NOMEM));
    assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::NOMEM));
    assert_eq!(store.sync(), Err(Errno::NOMEM));
    assert_eq!(store.discard(0, 1), Err(Errno::NOMEM));
    let mut options = options();
    options.library_dir = Some(libraries("full"));
    let store = open_with("rbd:pool/image", &options, false).unwrap();
    assert_eq!(store.sync(), Err(Errno::NOMEM));
}

/// Events that stores have reported, by the name of their image.
static EVENTS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

fn remember(name: &str, event: &str) {
    EVENTS.lock().expect("no test panics with it").push((name.to_owned(), event.to_owned()));
}

fn events_of(image: &str) -> Vec<String> {
    let events = EVENTS.lock().expect("no test panics with it");
    events.iter().filter(|(name, _)| name.contains(image)).map(|(_, event)| event.clone()).collect()
}

#[test]
fn store_whose_client_is_refused_or_whose_image_is_gone_fails_for_good() {
    for (image, at, instructions, event) in [
        ("refused-read", 0, "fake_read=-108", "no longer accepts this client"),
        ("refused-write", 1, "fake_write=-108", "no longer accepts this client"),
        ("refused-flush", 2, "fake_flush=-108", "no longer accepts this client"),
        ("removed", 1, "fake_write=-2", "has been removed"),
        ("removed-flush", 2, "fake_flush=-2", "has been removed"),
        ("unlocked", 1, "fake_write=-30", "another client has the image's lock"),
    ] {
        let mut options = options();
        options.notify = Some(remember);
        let log = Log::new();
        let name = format!("rbd:pool/{image}:{instructions}:fake_from=4{}", log.instruction());
        let store = open_with(&name, &options, false).unwrap();
        // Before, everything works.
        store.write_at(&[1; BLOCK], 0).unwrap();
        store.read_at(&mut [1; BLOCK], 0).unwrap();
        store.sync().unwrap();
        let first =
            [store.read_at(&mut [0; BLOCK], 0).map(drop), store.write_at(&[0; BLOCK], 0).map(drop), store.sync()];
        assert!(first[..at].iter().all(Result::is_ok), "{image}: {first:?}");
        assert!(first[at..].iter().all(Result::is_err), "{image}: {first:?}");
        let lost = log.lines().len();
        assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO), "{image}");
        assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO), "{image}");
        assert_eq!(store.sync(), Err(Errno::IO), "{image}");
        assert_eq!(store.discard(0, 512), Err(Errno::IO), "{image}");
        assert_eq!(log.lines().len(), lost, "{image}: operations are started still");
        let events = events_of(image);
        assert!(events.len() == 1 && events[0].contains(event), "{image}: {events:?}");
    }
}

#[test]
fn store_whose_pool_or_image_is_removed_fails_without_a_write() {
    let mut options = options();
    options.notify = Some(remember);
    let store = open_with("rbd:pool/pool-removed:fake_pool_lookup=-2", &options, false).unwrap();
    while events_of("pool-removed").is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(events_of("pool-removed"), ["the pool of the image has been removed"]);
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO));
    assert_eq!(store.sync(), Err(Errno::IO));
    // The image alone, and a client that the cluster refuses, without a request.
    for (image, instructions, event) in [
        ("image-removed", "fake_later_size=2", "has been removed"),
        ("refused-idle", "fake_later_size=108", "no longer accepts"),
        ("header-removed", "fake_lost=1:fake_watchers=2", "has been removed"),
        ("refused-lock", "fake_is_owner=108", "no longer accepts"),
    ] {
        let store = open_with(&format!("rbd:pool/{image}:{instructions}"), &options, false).unwrap();
        while events_of(image).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(events_of(image)[0].contains(event), "{:?}", events_of(image));
        assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO));
        assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO));
    }
    // A cluster that does not answer has not removed it, nor has one that has forgotten the client.
    let stores = ["fake_is_owner=110", "fake_lost=1"].map(|instructions| open(&format!(":{instructions}")).unwrap());
    std::thread::sleep(Duration::from_secs(6));
    for store in stores {
        assert_eq!(store.sync(), Ok(()));
    }
    let store = open(":fake_later_size=110").unwrap();
    while store.revalidate_len() != Err(Errno::TIMEDOUT) {}
    assert_eq!(store.sync(), Ok(()));
    let store = open(":fake_pool_lookup=-110:fake_resize=4194304").unwrap();
    while store.geometry().len == 8 << 20 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.sync(), Ok(()));
}

#[test]
fn aborted_store_fails_what_waits_and_keeps_its_memory() {
    let log = Log::new();
    let hold = log.path("go");
    let store = Arc::new(open(&format!(":fake_hold={}{}", hold.display(), log.instruction())).unwrap());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4u64)
            .map(|number| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let mut found = vec![9; 64 * BLOCK];
                    match number {
                        0 => store.sync().map(|()| 0),
                        1 => store.write_at(&found, 0),
                        _ => store.read_at(&mut found, 0),
                    }
                })
            })
            .collect();
        while log.lines().iter().filter(|line| line.starts_with(['r', 'w', 'f']) && !line.contains("full")).count() < 4
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        store.abort();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(Errno::IO));
        }
    });
    assert_eq!(store.read_at(&mut [0; 1], 0), Err(Errno::IO));
    // librbd completes them later, and writes to the memory of the reads.
    std::fs::write(&hold, b"").unwrap();
    drop(store);
}

fn panic(_: &str, event: &str) {
    panic!("{event}");
}

/// The thread that asks for the image's length ends by a panic of the caller's function.
#[test]
fn store_whose_thread_panics_fails_for_good() {
    let mut options = options();
    options.notify = Some(panic);
    let store = open_with("rbd:pool/image:fake_resize=4194304", &options, false).unwrap();
    while store.sync().is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO));
    assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO));
}

/// The thread that takes completions ends by a panic of the caller's function while librbd still has memory of a read.
#[test]
fn memory_of_a_read_outlives_a_thread_that_panics() {
    let log = Log::new();
    let (hold, done) = (log.path("go"), log.path("done"));
    let mut options = options();
    options.notify = Some(panic);
    let holds = format!("fake_read_hold={}:fake_read_done={}", hold.display(), done.display());
    let name = format!("rbd:pool/image:fake_write=-108:{holds}{}", log.instruction());
    let store = Arc::new(open_with(&name, &options, false).unwrap());
    let other = Arc::clone(&store);
    let waiting = std::thread::spawn(move || {
        // Memory of this length is the system's again as soon as it is freed: a later access ends the process.
        let buffer = Buffer::new(64 << 20);
        call(&*other, StoreOperation::Read { offset: 0, buffer, range: 0..BLOCK }).0
    });
    while !log.lines().iter().any(|line| line.starts_with("r ")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO));
    assert_eq!(waiting.join().unwrap(), Err(Errno::IO));
    // What comes later fails, too.
    assert_eq!(store.sync(), Err(Errno::IO));
    drop(store);
    std::fs::write(&hold, b"").unwrap();
    while !done.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!log.lines().contains(&"close".to_owned()), "{:?}", log.lines());
}

/// As long as the image is open, no other store of this process gets its lock.
#[test]
fn image_is_closed_when_the_last_operation_that_was_given_up_ends() {
    let log = Log::new();
    let hold = log.path("go");
    let name = format!(":fake_hold={}{}", hold.display(), log.instruction());
    let store = Arc::new(open(&name).unwrap());
    let other = Arc::clone(&store);
    let waiting = std::thread::spawn(move || other.read_at(&mut [0; BLOCK], 0));
    while !log.lines().iter().any(|line| line.starts_with("r ")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    store.abort();
    assert_eq!(waiting.join().unwrap(), Err(Errno::IO));
    drop(store);
    assert!(!log.lines().contains(&"close".to_owned()), "{:?}", log.lines());
    std::fs::write(&hold, b"").unwrap();
    while log.lines().last().is_none_or(|line| line != "shutdown") {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(log.lines()[log.lines().len() - 3..], ["close", "destroy", "shutdown"]);
}

#[test]
fn operation_that_does_not_end_in_time_fails_and_ends_the_store() {
    let log = Log::new();
    let mut options = options();
    options.store_timeout = Duration::from_millis(100);
    let hold = log.path("go");
    let name = format!("rbd:pool/image:fake_hold={}", hold.display());
    let store = open_with(&name, &options, false).unwrap();
    let begun = Instant::now();
    assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO));
    assert!(begun.elapsed() >= options.store_timeout);
    // The write may be carried out now, over a newer one.
    std::fs::write(&hold, b"").unwrap();
    assert_eq!(store.write_at(&[0; BLOCK], 0), Err(Errno::IO));
    assert_eq!(store.sync(), Err(Errno::IO));
}

#[test]
fn aborted_store_is_closed_though_the_cluster_does_not_answer() {
    let log = Log::new();
    let mut options = options();
    options.connect_timeout = Duration::from_secs(1 << 20);
    let name = format!("rbd:pool/image:fake_extents_hold={}{}", log.path("never").display(), log.instruction());
    let store = open_with(&name, &options, false).unwrap();
    // The thread that asks is with librbd from now on.
    assert_eq!(store.block_status(0, 512).unwrap(), BlockStatus::allocated(0, 512));
    store.abort();
    drop(store);
    assert!(!log.lines().contains(&"close".to_owned()), "{:?}", log.lines());
}

#[test]
fn closed_image_frees_its_lock_and_its_client() {
    let log = Log::new();
    drop(open(&log.instruction()).unwrap());
    assert_eq!(log.lines(), ["connect", "full_try", "open", "lock", "close", "destroy", "shutdown"]);
}

#[test]
fn closed_images_leave_no_descriptor() {
    let count = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target.as_os_str() == "anon_inode:[eventfd]").count()
    };
    let (before, stores) = (count(), 100);
    (0..stores).for_each(|_| drop(open("").unwrap()));
    // Other tests of this process have some.
    assert!(count() < before + stores / 2, "{before} before, {} after", count());
}

/// The cluster is asked for the lock after an interval, however often it is asked for something else.
#[test]
fn cluster_is_not_asked_for_the_lock_all_the_time() {
    let (log, begun) = (Log::new(), Instant::now());
    let store = open(&log.instruction()).unwrap();
    (0..40).for_each(|at| assert_eq!(store.block_status(at, 1).unwrap().len, 1));
    drop(store);
    let asked = log.lines().iter().filter(|line| *line == "ask for the lock").count();
    assert!(begun.elapsed() >= Duration::from_secs(5) * asked as u32, "{asked} times in {:?}", begun.elapsed());
}

#[test]
fn long_discard_is_made_piece_by_piece() {
    let log = Log::new();
    let store = open(&format!(":fake_size={}{}", 5u64 << 30, log.instruction())).unwrap();
    store.discard(4096, (2 << 30) + 512).unwrap();
    let discards: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("d ")).collect();
    assert_eq!(discards, ["d 4096+1073741824", "d 1073745920+1073741824", "d 2147487744+512"]);
    let store = open(&format!(":fake_size={}:fake_from=2:fake_discard=-5", 5u64 << 30)).unwrap();
    assert_eq!(store.discard(0, 2 << 30), Err(Errno::IO));
}

#[test]
fn extents_are_cut_to_the_range_and_joined() {
    let store = open(":fake_extents=0+4096,4096+4096,16384+4096").unwrap();
    let status = |offset, len| store.block_status(offset, len).unwrap();
    assert_eq!(status(0, 1 << 20), BlockStatus::allocated(0, 8192));
    assert_eq!(status(512, 1024), BlockStatus::allocated(512, 1024));
    assert_eq!(status(8192, 1 << 20), BlockStatus::hole(8192, 8192));
    assert_eq!(status(8192, 512), BlockStatus::hole(8192, 512));
    assert_eq!(status(16384, 1 << 20), BlockStatus::allocated(16384, 4096));
    assert_eq!(status(1 << 20, 1 << 30), BlockStatus::hole(1 << 20, 7 << 20));
    // Behind the end there is nothing to ask for.
    assert_eq!(status(8 << 20, 512), BlockStatus::allocated(8 << 20, 512));
    // Without an answer, a range counts as allocated.
    let failing = open(":fake_diff=5").unwrap();
    assert_eq!(failing.block_status(0, 512).unwrap(), BlockStatus::allocated(0, 512));
    // Nor where objects alternate.
    let striped = open(":fake_stripes=2:fake_extents=1048576+4096,0+4096").unwrap();
    assert_eq!(striped.block_status(0, 1 << 20).unwrap(), BlockStatus::allocated(0, 1 << 20));
}

#[test]
fn extents_that_come_late_count_as_allocated_until_they_come_again() {
    let log = Log::new();
    let hold = log.path("go");
    let store = open(&format!(":fake_extents_hold={}{}", hold.display(), log.instruction())).unwrap();
    for at in [0, 512, 1024] {
        assert_eq!(store.block_status(at, 512).unwrap(), BlockStatus::allocated(at, 512));
    }
    std::fs::write(&hold, b"").unwrap();
    while !store.block_status(2048, 512).unwrap().hole {
        std::thread::sleep(Duration::from_millis(20));
    }
    let asked = |at| log.lines().contains(&format!("extents {at}+512"));
    assert_eq!([0, 512, 1024, 2048].map(asked), [true, false, false, true]);
}

#[test]
fn length_that_another_client_changes_is_noticed() {
    let mut options = options();
    options.notify = Some(remember);
    let store = open_with("rbd:pool/resized:fake_resize=4194304", &options, false).unwrap();
    while store.geometry().len == 8 << 20 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.geometry().len, 4 << 20);
    let other = open(":fake_resize=4194304").unwrap();
    assert_eq!((other.revalidate_len(), other.geometry().len), (Ok(4 << 20), 4 << 20));
    assert_eq!(store.revalidate_len(), Ok(4 << 20));
    assert_eq!(store.write_at(&[0; BLOCK], 4 << 20), Err(Errno::NOSPC));
    while events_of("resized").is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(events_of("resized"), ["the image was resized from 8388608 to 4194304 bytes"]);
}
