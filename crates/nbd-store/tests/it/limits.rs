//! Limits of requests: whole blocks of a discard, the room of the replay log, queries without an answer.

use crate::fake::{After, FLAGS, Facts, Fake, Lie, MULTI_CONN, Pause, Stage, quick, receive};
use inlock_engine::store::asynchronous;
use inlock_engine::{BackingStore, BlockStatus, Errno};
use inlock_nbd_store::StoreOptions;
use inlock_tests::nbd::command;
use inlock_tests::wait::eventually;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Offsets and lengths.
type Ranges<'a> = &'a [(u64, u64)];

/// The server zeroes no byte that the caller did not name, and all whole blocks that it did.
#[test]
fn discard_is_of_whole_blocks_within_its_range() {
    static TRIMS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let note: Lie = |client, asked| {
        TRIMS.lock().unwrap().push((asked.offset, asked.len));
        client.write_all(&asked.done()).map(|()| After::Ignore).ok()
    };
    let size = 3 * (1 << 30) + 5 * BLOCK + 512;
    let blocks = Some([BLOCK as u32, BLOCK as u32, 1 << 20]);
    let fake = Fake::start(Facts { size, blocks, lie: Some(note), lie_to: Some(command::TRIM), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    let longest = 1 << 30;
    let cases: [(u64, u64, Ranges<'_>); 10] = [
        (100, 50, &[]),
        (1, BLOCK - 1, &[]),
        (1, 2 * BLOCK - 2, &[]),
        (0, BLOCK, &[(0, BLOCK)]),
        (1, 2 * BLOCK - 1, &[(BLOCK, BLOCK)]),
        (BLOCK - 1, 2 * BLOCK + 2, &[(BLOCK, 2 * BLOCK)]),
        (0, longest, &[(0, longest)]),
        (BLOCK, longest + BLOCK, &[(BLOCK, longest), (BLOCK + longest, BLOCK)]),
        (size - 512 - BLOCK, 1 << 20, &[(size - 512 - BLOCK, BLOCK)]),
        (size, BLOCK, &[]),
    ];
    for (offset, len, expected) in cases {
        assert_eq!(store.discard(offset, len), Ok(()), "{len} bytes at {offset}");
        assert_eq!(std::mem::take(&mut *TRIMS.lock().unwrap()), expected, "{len} bytes at {offset}");
    }
}

/// Takes writes to places that the export does not have.
const TAKE: Lie = |client, asked| {
    receive(client, asked.len as usize).and_then(|_| client.write_all(&asked.done())).map(|()| After::Ignore).ok()
};

/// A write that finds no room next to others, though the log is less than half full, makes room itself: nothing else
/// would.
#[test]
fn write_that_fills_the_log_waits_only_for_a_flush() {
    let limit = StoreOptions::MIN_REPLAY;
    let lie_to = Some(command::WRITE);
    let fake = Fake::start(Facts { size: 4 * limit, lie: Some(TAKE), lie_to, ..Facts::default() });
    let mut options = quick();
    options.replay = Some(limit);
    let store = fake.open(&options).unwrap();
    let write = |len: u64| asynchronous::write_at(&store, &vec![1; len as usize], 0, false);
    assert_eq!(write(limit / 4), Ok(limit as usize / 4));
    assert_eq!(write(limit * 3 / 4), Ok(limit as usize * 3 / 4));
    assert_eq!(fake.requests(), 0, "both fit");
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(write(limit / 4), Ok(limit as usize / 4));
    assert_eq!(write(limit), Ok(limit as usize));
    assert_eq!(fake.requests(), 2, "a flush of the store's own");
}

/// A write that is longer than the log is made in parts that fit.
#[test]
fn write_longer_than_the_log_is_cut() {
    let limit = StoreOptions::MIN_REPLAY + 512;
    let (lie_to, blocks) = (Some(command::WRITE), Some([4096, 4096, 32 << 20]));
    let fake = Fake::start(Facts { size: 4 << 22, blocks, lie: Some(TAKE), lie_to, ..Facts::default() });
    let mut options = quick();
    options.replay = Some(limit);
    let store = fake.open(&options).unwrap();
    let moved = asynchronous::write_at(&store, &vec![1; 2 << 22], 0, false);
    assert_eq!(moved, Ok(StoreOptions::MIN_REPLAY as usize), "whole blocks that the log can hold");
}

/// A server that leaves one query unanswered is asked no other one over the connection.
#[test]
fn unanswered_query_is_the_last() {
    static QUERIES: AtomicUsize = AtomicUsize::new(0);
    let ignore: Lie = |_, _| {
        QUERIES.fetch_add(1, Ordering::SeqCst);
        Some(After::Ignore)
    };
    let lie_to = Some(command::BLOCK_STATUS);
    let fake = Fake::start(Facts { lie: Some(ignore), lie_to, ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    for _ in 0..3 {
        assert_eq!(store.block_status(0, BLOCK), Ok(BlockStatus::allocated(0, BLOCK)));
    }
    // What was asked before has arrived.
    assert_eq!(store.read_at(&mut [0; 512], 0), Ok(512));
    assert_eq!(QUERIES.load(Ordering::SeqCst), 1);
}

/// A replayed write that the server refuses is lost, however well all others go.
#[test]
fn refused_replay_fails_every_flush() {
    let refuse: Lie = |client, asked| {
        receive(client, asked.len as usize).and_then(|_| client.write_all(&asked.error(5))).map(|()| After::Ignore).ok()
    };
    let facts = Facts { lie: Some(refuse), lie_to: Some(command::WRITE), lie_on: 1, ..Facts::default() };
    let fake = Fake::start(facts);
    let mut options = quick();
    options.replay = Some(StoreOptions::MIN_REPLAY);
    let store = fake.open(&options).unwrap();
    for at in 0..3 {
        assert_eq!(store.write_at(&[1; BLOCK as usize], at * BLOCK), Ok(BLOCK as usize));
    }
    fake.lose_power(|| false);
    fake.rise();
    for _ in 0..2 {
        assert_eq!(store.sync(), Err(Errno::IO));
    }
    assert_eq!(store.read_at(&mut [0; 512], 0), Ok(512), "the store is of use otherwise");
}

/// An abort ends a write that a server keeps over a connection that was given up.
#[test]
fn abort_fails_writes_of_lost_connections() {
    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    // Whether the server has the write, and whether it may go on.
    let state = Arc::new((Mutex::new((false, false)), Condvar::new()));
    let kept = Arc::clone(&state);
    let pause: Pause = Arc::new(move |asked, stage| {
        if (asked.kind, stage) == (command::WRITE, Stage::Arrived) {
            let mut state = kept.0.lock().unwrap();
            state.0 = true;
            drop(kept.1.wait_while(state, |(_, may_go_on)| !*may_go_on).unwrap());
        }
    });
    let fake = Fake::start(Facts { flags: FLAGS | MULTI_CONN, pause: Some(pause), ..Facts::default() });
    let mut options = quick();
    (options.connect_timeout, options.store_timeout) = (Duration::from_secs(600), Duration::from_secs(600));
    options.reconnect_delay = Duration::from_secs(600);
    options.notify = Some(|_, event| EVENTS.lock().unwrap().push(event.to_owned()));
    let store = Arc::new(fake.open(&options).unwrap());
    let writer = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || store.write_at(&[1; BLOCK as usize], 0))
    };
    eventually("the server has the write", || state.0.lock().unwrap().0, |has_it| *has_it);
    fake.cut(1);
    let given_up = |events: &Vec<String>| events.iter().any(|event| event.contains("connecting again"));
    eventually("the connections are given up", || EVENTS.lock().unwrap().clone(), given_up);
    store.asynchronous().unwrap().abort();
    eventually("the write ends", || writer.is_finished(), |is_finished| *is_finished);
    assert_eq!(writer.join().unwrap(), Err(Errno::IO));
    state.0.lock().unwrap().1 = true;
    state.1.notify_all();
}

/// Times without an end are those of a year.
#[test]
fn endless_times_are_taken() {
    let fake = Fake::start(Facts::default());
    let mut options = StoreOptions::default();
    (options.connect_timeout, options.store_timeout) = (Duration::MAX, Duration::MAX);
    options.reconnect_delay = Duration::MAX;
    let store = fake.open(&options).unwrap();
    fake.fall();
    fake.rise();
    assert_eq!(store.read_at(&mut [0; 512], 0), Ok(512));
}

/// The store makes room in the log before it is full, but not before it is more than half full.
#[test]
fn log_is_flushed_when_it_is_more_than_half_full() {
    let fake = Fake::start(Facts::default());
    let mut options = quick();
    options.replay = Some(8 * BLOCK);
    let store = fake.open(&options).unwrap();
    for (count, requests) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 7)] {
        assert_eq!(store.write_at(&[1; BLOCK as usize], count * BLOCK), Ok(BLOCK as usize));
        assert_eq!(fake.requests(), requests, "after {count} writes");
    }
}

/// The memory of a call is bounded, however much the server takes.
#[test]
fn call_moves_no_more_than_a_mebibyte() {
    const MIB: usize = 1 << 20;
    let answer: Lie = |client, asked| match asked.kind {
        command::READ => {
            let data = asked.data(asked.offset, &vec![0; asked.len as usize], true);
            client.write_all(&data).map(|()| After::Ignore).ok()
        }
        command::WRITE => TAKE(client, asked),
        _ => None,
    };
    let fake = Fake::start(Facts { size: 8 << 20, lie: Some(answer), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    assert!(store.facts().max_payload as usize >= 2 * MIB);
    assert_eq!(store.read_at(&mut vec![0; 2 * MIB], 0), Ok(MIB));
    assert_eq!(store.write_at(&vec![0; 2 * MIB], 0), Ok(MIB));
}

#[test]
fn server_is_not_asked_for_extents_of_nothing() {
    let fake = Fake::start(Facts::default());
    let store = fake.open(&quick()).unwrap();
    assert_eq!(store.block_status(0, 0), Ok(BlockStatus::allocated(0, 0)));
    assert_eq!(fake.requests(), 0);
}

/// An extent that ends where the range begins is none of it.
#[test]
fn extent_in_front_of_the_range_says_nothing_about_it() {
    let short: Lie = |client, asked| client.write_all(&asked.extent(512, 3)).map(|()| After::Ignore).ok();
    let (lie_to, blocks) = (Some(command::BLOCK_STATUS), Some([4096, 4096, 1 << 20]));
    let fake = Fake::start(Facts { blocks, lie: Some(short), lie_to, ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    assert_eq!(store.block_status(512, 512), Ok(BlockStatus::allocated(512, 512)));
    assert_eq!(store.block_status(511, 512), Ok(BlockStatus::hole(511, 1)));
}
