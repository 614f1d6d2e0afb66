//! Servers that carry out and reply in an order of their own, over several connections: what a flush covers, and in
//! which order lost writes are made again.

use crate::fake::{After, Asked, FLAGS, Facts, Fake, Lie, MULTI_CONN, Pause, Stage, Style, quick, receive};
use inlock_engine::{BackingStore, Errno};
use inlock_nbd_store::{NbdStore, StoreOptions};
use inlock_tests::nbd::command;
use inlock_tests::wait::eventually;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Place of a write that overlaps no other.
const AT: usize = 1 << 19;

/// Holds a request at a stage until it is told to go on.
#[derive(Default)]
struct Gate {
    /// Whether a request is or was there, and whether it may go on.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    /// A pause of the first request of a kind.
    fn pause(self: &Arc<Self>, kind: u16, stage: Stage) -> Pause {
        let gate = Arc::clone(self);
        Arc::new(move |asked: &Asked, now| {
            if (asked.kind, now) == (kind, stage) {
                let mut state = gate.state.lock().unwrap();
                if !std::mem::replace(&mut state.0, true) {
                    gate.changed.notify_all();
                    drop(gate.changed.wait_while(state, |state| !state.1).unwrap());
                }
            }
        })
    }

    fn wait(&self) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(120);
        let (state, _) = self.changed.wait_timeout_while(state, limit, |state| !state.0).unwrap();
        assert!(state.0, "the server has no such request");
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

fn options(replay: Option<u64>) -> StoreOptions {
    let mut options = quick();
    options.replay = replay;
    options
}

/// A server with two connections that pauses.
fn start(pause: Pause, replay: Option<u64>) -> (Fake, NbdStore) {
    let fake = Fake::start(Facts { flags: FLAGS | MULTI_CONN, pause: Some(pause), ..Facts::default() });
    let store = fake.open(&options(replay)).unwrap();
    assert_eq!(fake.connections(), 2);
    (fake, store)
}

/// The server carries out a flush, acknowledges a later write, replies to the flush, and loses power.
#[test]
fn flush_covers_no_write_acknowledged_after_it_was_sent() {
    for replay in [None, Some(StoreOptions::MIN_REPLAY)] {
        let gate = Arc::new(Gate::default());
        let (fake, store) = start(gate.pause(command::FLUSH, Stage::Done), replay);
        store.write_at(&[1; BLOCK], 0).unwrap();
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| store.sync());
            gate.wait();
            store.write_at(&[2; BLOCK], AT as u64).unwrap();
            gate.open();
            assert_eq!(flush.join().unwrap(), Ok(()));
        });
        fake.lose_power(|| false);
        fake.rise();
        let next = store.sync();
        let stable = &fake.disk().stable;
        assert!(stable[..BLOCK] == [1; BLOCK], "the flush covers the write before it");
        match replay {
            None => assert_eq!(next, Err(Errno::IO), "the second write is lost"),
            Some(_) => assert!(next == Ok(()) && stable[AT..AT + BLOCK] == [2; BLOCK], "{next:?}: it is made again"),
        }
    }
}

/// A flush of the store's own, which makes room in the log, covers no more either.
#[test]
fn flush_of_the_log_keeps_writes_acknowledged_after_it_was_sent() {
    let gate = Arc::new(Gate::default());
    let (fake, store) = start(gate.pause(command::FLUSH, Stage::Done), Some(StoreOptions::MIN_REPLAY));
    let long = vec![1; AT];
    // The last one finds the log more than half full, is behind a flush, and is acknowledged before it.
    (0..5).for_each(|_| assert_eq!(store.write_at(&long, 0), Ok(AT)));
    store.write_at(&[2; BLOCK], AT as u64).unwrap();
    gate.wait();
    gate.open();
    eventually("the flush has its reply", || fake.replies(), |replies| *replies == 7);
    // A reply that was sent counts, though the connection is lost.
    fake.lose_power(|| false);
    fake.rise();
    assert_eq!(store.sync(), Ok(()));
    let stable = &fake.disk().stable;
    assert!(stable[..AT] == long && stable[AT..AT + BLOCK] == [2; BLOCK], "a write left the log before its flush");
}

/// Of writes that overlap, the later one wins in a replay over several connections, though the server keeps the first
/// replayed one as long as others come.
#[test]
fn overlapping_writes_are_made_again_one_after_the_other() {
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let counted = Arc::clone(&arrived);
    let pause: Pause = Arc::new(move |asked, stage| {
        if (asked.kind, stage) == (command::WRITE, Stage::Arrived) {
            let (count, changed) = &*counted;
            let mut count = count.lock().unwrap();
            *count += 1;
            changed.notify_all();
            let is_first = *count == 1;
            if is_first {
                // One that comes meanwhile overtakes it.
                drop(changed.wait_timeout_while(count, Duration::from_millis(500), |count| *count < 2).unwrap());
            }
        }
    });
    let (fake, store) = start(Arc::new(|_, _| ()), Some(StoreOptions::MIN_REPLAY));
    for version in 1..=3 {
        store.write_at(&[version; 2 * BLOCK], u64::from(version) * 512).unwrap();
    }
    let expected = fake.disk().cached.clone();
    fake.lose_power(|| false);
    fake.change(|facts| facts.pause = Some(pause));
    fake.rise();
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(*arrived.0.lock().unwrap(), 3, "all are made again");
    assert!(fake.disk().stable == expected, "an older write over a newer one");
}

/// Writes that failed leave room for others: the store waits for nothing that never ends.
#[test]
fn failed_writes_take_no_room_of_the_log() {
    static IS_FULL: AtomicBool = AtomicBool::new(true);
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    let full: Lie = |client, asked| {
        IS_FULL.load(Ordering::SeqCst).then(|| {
            REFUSED.fetch_add(1, Ordering::SeqCst);
            // A client that leaves sees nothing of it.
            let _ = receive(client, asked.len as usize).and_then(|_| client.write_all(&asked.error(28)));
            After::Ignore
        })
    };
    let fake = Fake::start(Facts { lie: Some(full), lie_to: Some(command::WRITE), ..Facts::default() });
    let store = fake.open(&options(Some(StoreOptions::MIN_REPLAY))).unwrap();
    let data = vec![3; AT];
    // More than the log holds.
    let count = StoreOptions::MIN_REPLAY as usize / AT + 4;
    (0..count).for_each(|n| assert_eq!(store.write_at(&data, 0), Err(Errno::NOSPC), "write {n}"));
    assert_eq!(REFUSED.load(Ordering::SeqCst), count, "the server has refused each of them");
    IS_FULL.store(false, Ordering::SeqCst);
    let before = fake.requests();
    assert_eq!(store.write_at(&data, 0), Ok(AT));
    assert_eq!(fake.requests() - before, 1, "and no flush made room");
    assert!(fake.connections() == 1 && fake.disk().cached[..AT] == data);
}

/// A reply counts though the bytes behind it end the connection: its write is one that may be lost.
#[test]
fn write_acknowledged_in_front_of_garbage_is_lost_with_the_connection() {
    let garbled: Lie = |client, asked| {
        let reply = receive(client, asked.len as usize).map(|_| [asked.done(), vec![0xa5; 64]].concat());
        let _ = reply.and_then(|reply| client.write_all(&reply));
        Some(After::Close)
    };
    let fake = Fake::start(Facts { lie: Some(garbled), lie_to: Some(command::WRITE), ..Facts::default() });
    let store = fake.open(&options(None)).unwrap();
    assert_eq!(store.write_at(&[1; BLOCK], 0), Ok(BLOCK));
    assert_eq!(store.sync(), Err(Errno::IO));
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Ok(BLOCK), "over another connection");
}

/// An abort does not wait for the server.
#[test]
fn abort_fails_requests_that_the_server_has() {
    let gate = Arc::new(Gate::default());
    let fake = Fake::start(Facts { pause: Some(gate.pause(command::READ, Stage::Arrived)), ..Facts::default() });
    let mut options = options(None);
    options.store_timeout = Duration::from_secs(120);
    let store = fake.open(&options).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| store.read_at(&mut [0; BLOCK], 0));
        gate.wait();
        store.asynchronous().unwrap().abort();
        assert_eq!(read.join().unwrap(), Err(Errno::IO));
    });
    gate.open();
}

/// Two writes of parts of one block of the server come one after the other: neither is lost.
#[test]
fn writes_of_parts_of_a_block_do_not_overtake_each_other() {
    let gate = Arc::new(Gate::default());
    let (flags, pause) = (FLAGS | MULTI_CONN, Some(gate.pause(command::READ, Stage::Done)));
    let fake = Fake::start(Facts { flags, pause, blocks: Some([4096, 4096, 1 << 20]), ..Facts::default() });
    let store = fake.open(&options(None)).unwrap();
    let overtaken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.write_at(&[1; 100], 0));
        gate.wait();
        let second = scope.spawn(|| {
            let written = store.write_at(&[2; 100], 100);
            overtaken.store(true, Ordering::SeqCst);
            written
        });
        // One that does not wait for the first is done meanwhile.
        let begun = std::time::Instant::now();
        while !overtaken.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_millis(300) {
            std::thread::yield_now();
        }
        gate.open();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(100), Ok(100)));
    });
    assert!(fake.disk().cached[..100] == [1; 100] && fake.disk().cached[100..200] == [2; 100], "a write is lost");
}

/// A store without a log makes nothing again, and does not say so.
#[test]
fn store_without_a_log_reports_no_writes_made_again() {
    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let fake = Fake::start(Facts::default());
    let mut options = options(None);
    options.notify = Some(|_, event| EVENTS.lock().unwrap().push(event.to_owned()));
    let store = fake.open(&options).unwrap();
    fake.fall();
    fake.rise();
    assert_eq!(store.sync(), Ok(()));
    let events = EVENTS.lock().unwrap();
    assert!(events.iter().any(|event| event == "connected again"), "{events:?}");
    assert!(!events.iter().any(|event| event.contains("made again")), "{events:?}");
}

#[test]
fn connection_without_lost_writes_makes_none_again() {
    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let fake = Fake::start(Facts::default());
    let mut options = options(Some(StoreOptions::MIN_REPLAY));
    options.notify = Some(|_, event| EVENTS.lock().unwrap().push(event.to_owned()));
    let store = fake.open(&options).unwrap();
    store.write_at(&[1; BLOCK], 0).unwrap();
    store.sync().unwrap();
    for is_lost in [false, true] {
        if is_lost {
            store.write_at(&[2; BLOCK], 0).unwrap();
        }
        fake.lose_power(|| false);
        fake.rise();
        assert_eq!(store.sync(), Ok(()));
        let events = std::mem::take(&mut *EVENTS.lock().unwrap());
        assert!(events.iter().any(|event| event == "connected again"), "{events:?}");
        assert_eq!(events.iter().any(|event| event.contains("made again")), is_lost, "{events:?}");
    }
}

/// Extents need structured replies.
#[test]
fn options_are_asked_for_in_order_and_extents_not_without_structured_replies() {
    static ASKED: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    for (style, expected) in
        [(Style::Simple, &[11, 8, 7][..]), (Style::Structured, &[11, 8, 10, 7]), (Style::Extended, &[11, 10, 7])]
    {
        let note = |_: &mut std::os::unix::net::UnixStream, option| {
            ASKED.lock().unwrap().push(option);
            None
        };
        let fake = Fake::start(Facts { style, option_lie: Some(note), ..Facts::default() });
        fake.open(&options(None)).unwrap();
        assert_eq!(std::mem::take(&mut *ASKED.lock().unwrap()), expected, "{style:?}");
    }
}

/// One connection is lost while the server has a write of the other one: as soon as the write has its reply there, new
/// connections are made and it is made again. Nothing waits for a time.
#[test]
fn reply_on_a_connection_that_is_given_up_is_noticed() {
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    let gate = Arc::new(Gate::default());
    let mut options = options(None);
    let long = Duration::from_secs(200);
    (options.connect_timeout, options.reconnect_delay, options.store_timeout) = (long, long, long);
    options.notify = Some(|_, event| {
        IS_LOST.fetch_or(event.contains("connecting again"), Ordering::SeqCst);
    });
    let pause = gate.pause(command::WRITE, Stage::Arrived);
    let fake = Fake::start(Facts { flags: FLAGS | MULTI_CONN, pause: Some(pause), ..Facts::default() });
    let store = fake.open(&options).unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| store.write_at(&[1; BLOCK], 0));
        gate.wait();
        // The write is with the first one.
        fake.cut(1);
        eventually("the connection is lost", || IS_LOST.load(Ordering::SeqCst), |is_lost| *is_lost);
        assert_eq!(fake.connections(), 2);
        gate.open();
        eventually("the write is made again", || write.is_finished(), |is_finished| *is_finished);
        assert_eq!(write.join().unwrap(), Ok(BLOCK));
    });
    assert_eq!((fake.connections(), fake.requests()), (4, 2));
}
