//! Servers that die under load and lose what was not flushed: no flushed write is lost, and no flush succeeds falsely.

use crate::fake::{After, FLAGS, Facts, Fake, Lie, MULTI_CONN, Style, quick};
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::{Access, BackingStore, BlockingDevice, Device, Errno, RequestError};
use inlock_nbd_store::{NbdStore, StoreOptions};
use inlock_tests::nbd::command;
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const WRITERS: u64 = 3;
/// Blocks of one writer.
const BLOCKS: u64 = 16;

fn device(store: &Arc<NbdStore>) -> BlockingDevice {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(BLOCK as u32).unwrap());
    let key = VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8));
    BlockingDevice::new(Arc::new(Device::new(&[segment], &key, Arc::clone(store) as _, Access::default()).unwrap()))
}

/// Knowledge of a writer.
struct Written {
    /// Version of each block that the last successful flush covers.
    flushed: Vec<u64>,
    /// Last version written, acknowledged or not.
    tried: Vec<u64>,
    flushes: u64,
    failed_flushes: u64,
}

/// Writes versions to blocks of its own and flushes, until told to stop.
fn write(device: &BlockingDevice, writer: u64, seed: u64, stop: &AtomicBool, version: &AtomicU64) -> Written {
    let mut random = Random::new(seed);
    let mut written =
        Written { flushed: vec![0; BLOCKS as usize], tried: vec![0; BLOCKS as usize], flushes: 0, failed_flushes: 0 };
    let mut acknowledged = written.flushed.clone();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..1 + random.below(6) {
            let block = random.below(BLOCKS);
            let now = version.fetch_add(1, Ordering::Relaxed) + 1;
            written.tried[block as usize] = now;
            let data: Vec<u8> = now.to_be_bytes().into_iter().cycle().take(BLOCK).collect();
            // A store that waits for its server fails nothing within the test.
            device.write_at(&data, (writer * BLOCKS + block) * BLOCK as u64).unwrap();
            acknowledged[block as usize] = now;
        }
        match device.flush() {
            Ok(()) => {
                written.flushed.clone_from(&acknowledged);
                written.flushes += 1;
            }
            Err(error) => {
                assert_eq!(error, RequestError::Io(Errno::IO));
                written.failed_flushes += 1;
                // From now on nothing is promised.
                return written;
            }
        }
    }
    written
}

struct Outcome {
    flushes: u64,
    failed_flushes: u64,
    /// Blocks whose last acknowledged write is gone.
    lost: u64,
}

/// Runs writers over a server that loses power `kills` times, and compares what it kept with what was flushed.
fn storm(options: &StoreOptions, style: Style, kills: u64, seed: u64) -> Outcome {
    let fake = Fake::start(Facts { style, flags: FLAGS | MULTI_CONN, ..Facts::default() });
    let store = Arc::new(fake.open(options).unwrap());
    let device = device(&store);
    let (stop, version) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut random = Random::new(seed);
    let written: Vec<Written> = std::thread::scope(|scope| {
        let write = |writer| {
            let (device, stop, version) = (&device, &stop, &version);
            scope.spawn(move || write(device, writer, seed * 100 + writer, stop, version))
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        for _ in 0..kills {
            let from = fake.requests();
            let wanted = from + 5 + random.below(40) as usize;
            let begun = Instant::now();
            while fake.requests() < wanted && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_micros(200));
            }
            fake.lose_power(|| random.below(2) == 0);
            std::thread::sleep(Duration::from_millis(random.below(8)));
            fake.rise();
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    drop(device);
    drop(store);
    // What a power cut leaves now.
    fake.lose_power(|| false);
    fake.rise();
    let store = Arc::new(fake.open(&quick()).unwrap());
    let device = self::device(&store);
    let mut outcome = Outcome { flushes: 0, failed_flushes: 0, lost: 0 };
    for (writer, written) in written.iter().enumerate() {
        outcome.flushes += written.flushes;
        outcome.failed_flushes += written.failed_flushes;
        for block in 0..BLOCKS {
            let (flushed, tried) = (written.flushed[block as usize], written.tried[block as usize]);
            if tried == 0 {
                continue;
            }
            let mut data = vec![0; BLOCK];
            device.read_at(&mut data, (writer as u64 * BLOCKS + block) * BLOCK as u64).unwrap();
            let found = u64::from_be_bytes(data[..8].try_into().unwrap());
            let is_whole = data.chunks(8).all(|chunk| chunk == found.to_be_bytes());
            if flushed > 0 {
                assert!(is_whole, "seed {seed}: block {block} is torn");
                assert!((flushed..=tried).contains(&found), "seed {seed}: block {block} {flushed}..={tried}: {found}");
            }
            outcome.lost += u64::from(found != tried);
        }
    }
    outcome
}

fn replaying(bytes: u64) -> StoreOptions {
    let mut options = quick();
    options.replay = Some(bytes);
    options
}

/// Without a replay log the first flush after a loss fails, and none succeeds afterwards.
fn without_replay(rounds: u64) -> (u64, u64) {
    let (mut flushes, mut failed) = (0, 0);
    for round in 0..rounds {
        let outcome = storm(&quick(), Style::Structured, 1, 1000 + round);
        flushes += outcome.flushes;
        failed += outcome.failed_flushes;
    }
    (flushes, failed)
}

#[test]
fn flushed_writes_survive_every_restart_without_replay() {
    let (flushes, failed) = without_replay(12);
    count("nbd_store_restarts_without_replay", 12);
    assert!(flushes > 0 && failed > 0, "{flushes} flushes, {failed} failed");
}

#[test]
fn replay_makes_lost_writes_again_and_flushes_succeed() {
    let mut lost = 0;
    for (style, limit) in [(Style::Structured, 64 << 20), (Style::Extended, StoreOptions::MIN_REPLAY)] {
        let outcome = storm(&replaying(limit), style, 10, 7 + limit);
        assert_eq!(outcome.failed_flushes, 0);
        assert!(outcome.flushes > 10, "{} flushes", outcome.flushes);
        lost += outcome.lost;
    }
    count("nbd_store_restarts_with_replay", 20);
    // The server does lose writes: those after the last flush.
    println!("{lost} blocks with a later, unflushed version lost at the end");
}

/// The long form: `cargo test -p inlock-nbd-store --test it -- --ignored hundred`
#[test]
#[ignore = "takes a minute"]
fn hundred_restarts_lose_no_flushed_write() {
    let (flushes, failed) = without_replay(100);
    let outcome = storm(&replaying(StoreOptions::MIN_REPLAY), Style::Structured, 100, 5);
    println!("100 restarts without replay: {flushes} flushes, {failed} failed, 0 false; 0 flushed writes lost");
    println!("100 restarts with replay: {} flushes, {} failed", outcome.flushes, outcome.failed_flushes);
    assert_eq!(outcome.failed_flushes, 0);
}

/// One writer, one loss: exactly the promise.
#[test]
fn flush_after_a_lost_unflushed_write_fails_for_ever() {
    let fake = Fake::start(Facts::default());
    let store = fake.open(&quick()).unwrap();
    store.write_at(&[1; BLOCK], 0).unwrap();
    store.sync().unwrap();
    // Nothing is unflushed: a lost connection loses nothing.
    fake.fall();
    fake.rise();
    store.sync().unwrap();
    store.write_fua_at(&[4; BLOCK], 8192).unwrap();
    fake.fall();
    fake.rise();
    store.sync().unwrap();
    store.write_at(&[2; BLOCK], 4096).unwrap();
    fake.lose_power(|| false);
    fake.rise();
    assert_eq!(store.sync(), Err(Errno::IO));
    store.write_at(&[3; BLOCK], 4096).unwrap();
    assert_eq!(store.sync(), Err(Errno::IO));
    let kept = fake.disk().stable[..BLOCK].to_vec();
    assert!(kept == [1; BLOCK]);
}

/// With a log the same writes are there again, in their order, and the flush is true.
#[test]
fn replay_restores_the_last_version_of_overlapping_writes() {
    let fake = Fake::start(Facts::default());
    let store = fake.open(&replaying(StoreOptions::MIN_REPLAY)).unwrap();
    for version in 1..=40u8 {
        store.write_at(&[version; 2 * BLOCK], u64::from(version % 4) * 2048 / 512 * 512).unwrap();
    }
    // A durable write over earlier ones stays, too, and so do later ones over it.
    store.write_fua_at(&[99; 512], 0).unwrap();
    for version in 41..=60u8 {
        store.write_at(&[version; 2 * BLOCK], 512 + u64::from(version % 4) * 2048).unwrap();
    }
    let expected = fake.disk().cached.clone();
    fake.lose_power(|| false);
    assert!(fake.disk().cached != expected, "the server has lost writes");
    fake.rise();
    store.sync().unwrap();
    assert!(fake.disk().stable == expected);
}

/// A FUA write is never under an older one that is made again, even if the server is lost during the replay.
#[test]
fn fua_write_survives_a_replay_that_ends_early() {
    let fake = Fake::start(Facts::default());
    let mut options = replaying(StoreOptions::MIN_REPLAY);
    options.reconnect_delay = Duration::from_secs(1);
    let store = fake.open(&options).unwrap();
    store.write_at(&[1; 2 * BLOCK], 0).unwrap();
    store.write_fua_at(&[2; BLOCK], BLOCK as u64).unwrap();
    assert!(fake.disk().stable[BLOCK..2 * BLOCK] == [2; BLOCK]);
    // The next request is the server's last.
    fake.change(|facts| facts.falls_after = Some(1));
    fake.fall();
    fake.rise();
    let before = fake.requests();
    let _ = store.read_at(&mut [0; BLOCK], 0);
    assert!(fake.requests() > before, "the server has come back");
    assert!(fake.disk().cached[BLOCK..2 * BLOCK] == [2; BLOCK], "an older write replaces a durable one");
}

/// A server that announces its end in its reply to a flush of the store's own costs no write of the log.
#[test]
fn announced_end_during_a_flush_of_the_log_loses_nothing() {
    let closing: Lie = |client, asked| {
        let _ = client.write_all(&asked.error(108));
        Some(After::GoOn)
    };
    let lie_to = Some(command::FLUSH);
    let fake = Fake::start(Facts { lie: Some(closing), lie_to, ..Facts::default() });
    let store = fake.open(&replaying(StoreOptions::MIN_REPLAY)).unwrap();
    let data = vec![8; 1 << 19];
    for _ in 0..12 {
        store.write_at(&data, 0).unwrap();
    }
    assert!(fake.connections() > 1, "the flush of the full log was refused");
    fake.lose_power(|| false);
    fake.rise();
    assert_eq!(store.sync(), Ok(()));
    assert!(fake.disk().stable[..1 << 19] == data);
}

/// Lets a server keep the first write until it is told to carry it out.
struct Keep {
    has_write: AtomicBool,
    may_go_on: AtomicBool,
}

impl Keep {
    const fn new() -> Self {
        Self { has_write: AtomicBool::new(false), may_go_on: AtomicBool::new(false) }
    }

    fn wait(&self) -> Option<After> {
        self.has_write.store(true, Ordering::SeqCst);
        while !self.may_go_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Starts a server with two connections, of which the first has the write and the second ends.
    fn begin(&self, lie: Lie) -> (Fake, Arc<NbdStore>, std::thread::JoinHandle<Result<usize, Errno>>) {
        let lie_to = Some(command::WRITE);
        let fake = Fake::start(Facts { flags: FLAGS | MULTI_CONN, lie: Some(lie), lie_to, ..Facts::default() });
        let store = Arc::new(fake.open(&quick()).unwrap());
        assert_eq!(fake.connections(), 2);
        let writing = Arc::clone(&store);
        let writer = std::thread::spawn(move || writing.write_at(&[1; BLOCK], 0));
        eventually("the server has the write", || self.has_write.load(Ordering::SeqCst), |has_write| *has_write);
        fake.cut(1);
        (fake, store, writer)
    }
}

/// One of two connections ends. The write that the server has over the other one is not made again meanwhile, and so
/// cannot replace a later one.
#[test]
fn write_of_a_whole_connection_is_not_made_twice() {
    static KEEP: Keep = Keep::new();
    let (fake, store, writer) = KEEP.begin(|_, _| KEEP.wait());
    std::thread::sleep(Duration::from_millis(500));
    let is_early = writer.is_finished();
    if is_early {
        store.write_at(&[2; BLOCK], 0).unwrap();
    }
    KEEP.may_go_on.store(true, Ordering::SeqCst);
    assert_eq!(writer.join().unwrap(), Ok(BLOCK));
    std::thread::sleep(Duration::from_millis(200));
    if !is_early {
        store.write_at(&[2; BLOCK], 0).unwrap();
    }
    assert!(fake.disk().cached[..BLOCK] == [2; BLOCK], "the older write was carried out last");
    assert!(!is_early, "the write was made again while the server had it");
}

/// A server that neither replies nor closes may carry out the write at any time: it fails, and so does every flush.
#[test]
fn write_that_the_server_keeps_fails_and_no_flush_succeeds() {
    static KEEP: Keep = Keep::new();
    let (fake, store, writer) = KEEP.begin(|_, _| KEEP.wait());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| store.read_at(&mut [0; BLOCK], 0));
        assert_eq!(writer.join().unwrap(), Err(Errno::IO));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(read.join().unwrap(), Ok(BLOCK), "what the server does not have only waits");
    });
    assert_eq!(store.sync(), Err(Errno::IO));
    assert_eq!(store.write_at(&[2; BLOCK], 0), Ok(BLOCK));
    assert!(fake.connections() > 2);
    KEEP.may_go_on.store(true, Ordering::SeqCst);
    assert_eq!(store.sync(), Err(Errno::IO));
}

/// A full log is emptied by a flush of the store's own.
#[test]
fn full_log_forces_flushes_and_stays_bounded() {
    let fake = Fake::start(Facts { flags: FLAGS | MULTI_CONN, ..Facts::default() });
    let store = fake.open(&replaying(StoreOptions::MIN_REPLAY)).unwrap();
    let data = vec![6; 1 << 19];
    for _ in 0..40 {
        store.write_at(&data, 0).unwrap();
    }
    // 20 MiB through a log of 4: at least four flushes, none of them requested.
    assert!(fake.requests() >= 44, "{} requests", fake.requests());
    fake.lose_power(|| false);
    fake.rise();
    store.sync().unwrap();
    assert!(fake.disk().stable[..1 << 19] == data);
}

/// Changed facts after a restart end the store.
#[test]
fn changed_export_after_a_restart_fails_everything() {
    type Change = (&'static str, fn(&mut Facts));
    let changes: [Change; 11] = [
        ("size", |facts| facts.size -= 4096),
        ("read-only", |facts| facts.flags |= 2),
        ("least block", |facts| facts.blocks = Some([4096, 4096, 1 << 20])),
        ("payload", |facts| facts.blocks = Some([1, 4096, 65536])),
        ("no flush", |facts| facts.flags &= !4),
        ("no FUA", |facts| facts.flags &= !8),
        ("no flags", |facts| facts.flags = 0),
        ("longer", |facts| facts.size += 4096),
        ("nothing left", |facts| facts.size = 0),
        ("largest size", |facts| facts.size = i64::MAX as u64),
        ("other ways of replies and read-only", |facts| (facts.style, facts.flags) = (Style::Simple, facts.flags | 2)),
    ];
    for (name, change) in changes {
        let fake = Fake::start(Facts::default());
        let store = fake.open(&replaying(StoreOptions::MIN_REPLAY)).unwrap();
        store.write_at(&[1; BLOCK], 0).unwrap();
        fake.fall();
        fake.change(change);
        fake.rise();
        assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO), "{name}");
        assert_eq!(store.write_at(&[1; BLOCK], 0), Err(Errno::IO), "{name}");
        assert_eq!(store.sync(), Err(Errno::IO), "{name}");
    }
}

/// An export that was read-only and becomes writable is another one, too.
#[test]
fn read_only_export_that_becomes_writable_is_refused() {
    let fake = Fake::start(Facts { flags: FLAGS | 2, ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Ok(BLOCK));
    fake.fall();
    fake.change(|facts| facts.flags = FLAGS);
    fake.rise();
    assert_eq!(store.read_at(&mut [0; BLOCK], 0), Err(Errno::IO));
}

/// Requests wait for a lost server as long as the options say, and an abort ends the wait.
#[test]
fn requests_wait_for_a_lost_server_and_fail_in_time() {
    let mut options = quick();
    options.reconnect_delay = Duration::from_millis(300);
    let fake = Fake::start(Facts::default());
    let store = fake.open(&options).unwrap();
    fake.fall();
    let begun = Instant::now();
    assert_eq!(store.read_at(&mut [0; 512], 0), Err(Errno::IO));
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(200) && waited < Duration::from_secs(3), "{waited:?}");
    // Back again: the store connects by itself.
    fake.rise();
    let begun = Instant::now();
    while store.read_at(&mut [0; 512], 0).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    // A long wait, cut short.
    options.reconnect_delay = Duration::from_secs(3600);
    options.store_timeout = Duration::from_secs(3600);
    let fake = Fake::start(Facts::default());
    let store = Arc::new(fake.open(&options).unwrap());
    fake.fall();
    let waiting = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || store.read_at(&mut [0; 512], 0))
    };
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    store.asynchronous().unwrap().abort();
    assert_eq!(waiting.join().unwrap(), Err(Errno::IO));
    assert_eq!(store.sync(), Err(Errno::IO));
    assert!(begun.elapsed() < Duration::from_secs(1));
    fake.rise();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(store.read_at(&mut [0; 512], 0), Err(Errno::IO), "an aborted store stays so");
}
