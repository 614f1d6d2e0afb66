//! Promises that are easily broken by a change that looks harmless: order, time, and requests that are long, short or
//! in bits.

use crate::client::*;
use crate::support::*;
use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, BlockStatus, Geometry};
use inlock_frontend::nbd::server::Limits;
use inlock_testing::{ScriptedStore, Verdict};
use inlock_tests::wait::eventually;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Long enough for a scan of the limits, which is made every half second.
const BEYOND: Duration = Duration::from_millis(1200);

fn short_limits() -> Limits {
    let limit = Duration::from_millis(400);
    limits(limit, limit, limit)
}

/// The end of the stream, with or without complaint; anything but waiting until [`TIMEOUT`] is over.
fn assert_disconnected(stream: &mut UnixStream) {
    let end = stream.read_to_end(&mut Vec::new());
    assert!(!end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "the server leaves a client waiting");
}

/// Two replies in pieces are not mixed, and do not wait for each other's memory for ever.
#[test]
fn long_simple_replies_come_one_after_the_other() {
    for io in rings() {
        let served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let mut client = Client::open(served.path(), Mode::Simple);
        let long = [0, MIB].map(|offset| client.send(READ, 0, offset, 32 * MIB));
        long.into_iter().for_each(|cookie| assert_eq!(client.wait(cookie).error, 0));
        // Short ones behind a long one hold memory that the long one may need.
        client.send(READ, 0, 0, 32 * MIB);
        (0..200).for_each(|n| {
            client.send(READ, 0, n * 65_536, 65_536);
        });
        while client.in_flight() > 0 {
            client.receive();
        }
    }
}

/// The chunk that ends a reply is the last one, even if the chunks before it have not left.
#[test]
fn error_chunk_does_not_overtake_data_before_it() {
    for (io, mode) in rings().into_iter().flat_map(|io| [Mode::Structured, Mode::Extended].map(|s| (io, s))) {
        let store = FaultyStore::new(40 * MIB);
        let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
        let mut client = Client::open(served.path(), mode);
        store.set(Faults { bad_reads: Some((3 * MIB..4 * MIB, Errno::IO)), ..Faults::default() });
        let failing = client.send(READ, 0, 0, 16 * MIB);
        // Nothing is taken from the socket until the read has failed.
        eventually("a read has failed", || store.failed.load(Ordering::SeqCst), |failed| *failed > 0);
        assert_eq!(client.wait(failing).error, errno::IO, "{io:?}, {mode:?}");
        client.read(0, 4096);
    }
}

/// The kernel's list of ready sockets may be full when the last client is disconnected.
#[test]
fn server_with_many_idle_clients_stops() {
    for io in rings() {
        let mut served = Served::new(device(memory(MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let clients: Vec<_> = (0..64).map(|_| Client::open(served.path(), Mode::Simple)).collect();
        served.stop().expect("a good end");
        drop(clients);
    }
}

/// The idle time of a client does not count as a delay in taking replies.
#[test]
fn client_that_was_idle_is_not_late_when_memory_is_short() {
    for io in rings() {
        // Shorter than the idle time, and much longer than a healthy client takes.
        let mut limits = Limits::default();
        limits.stall = BEYOND - Duration::from_millis(200);
        let served = Served::with_limits(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1, limits);
        let mut clients = [(); 4].map(|()| Client::open(served.path(), Mode::Structured));
        clients.iter_mut().for_each(|c| assert_eq!(c.read(0, 4096).len(), 4096));
        std::thread::sleep(BEYOND);
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| {
                    (0..12).for_each(|n| {
                        client.send(READ, 0, n * 2 * MIB, 2 * MIB);
                    });
                    while client.in_flight() > 0 {
                        client.receive();
                    }
                });
            }
        });
    }
}

/// A client may pause while no other client needs the memory.
#[test]
fn paused_reader_without_others_is_not_dropped() {
    for io in rings() {
        let served = Served::with_limits(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1, short_limits());
        let mut client = Client::open(served.path(), Mode::Structured);
        let long = client.send(READ, 0, 0, 32 * MIB);
        std::thread::sleep(BEYOND);
        assert_eq!(client.wait(long).error, 0);
    }
}

/// Clients that take no replies hold all memory until others need it.
#[test]
fn paused_readers_are_dropped_while_others_wait() {
    for io in rings() {
        let served = Served::with_limits(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1, short_limits());
        // So many that what is reserved for clients without memory is taken as well.
        let mut paused: Vec<_> = (0..30).map(|_| Client::open(served.path(), Mode::Structured)).collect();
        for client in &mut paused {
            (0..200).for_each(|n| {
                client.send(READ, 0, n * 65_536, 130_000);
            });
        }
        let mut good = Client::open(served.path(), Mode::Structured);
        // In one chunk, which a client's own buffers do not hold.
        assert_eq!(good.call(READ, DF, 0, MIB).data.len() as u64, MIB);
        let mut cut_off = 0;
        for client in &mut paused {
            client.connection.stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout can be set");
            let end = client.connection.stream.read_to_end(&mut Vec::new());
            cut_off += usize::from(!end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        }
        assert!(cut_off > 0, "{io:?}: no client was dropped; the memory came from none");
    }
}

#[test]
fn client_with_endless_handshake_is_dropped() {
    for io in rings() {
        // Long enough for a busy machine to negotiate.
        let mut limits = Limits::default();
        limits.handshake = BEYOND;
        let served = Served::with_limits(device(memory(MIB), 4096, READ_WRITE_DISCARD), io, 1, limits);
        let mut negotiated = Client::open(served.path(), Mode::Simple);
        let mut silent = greet(served.path(), 3);
        assert_disconnected(&mut silent.stream);
        assert_eq!(negotiated.read(0, 512).len(), 512, "the limit ends with the handshake");
    }
}

#[test]
fn client_that_takes_no_replies_does_not_delay_stop() {
    for io in rings() {
        let mut served = Served::with_limits(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1, short_limits());
        let mut client = Client::open(served.path(), Mode::Structured);
        client.send(READ, 0, 0, 32 * MIB);
        // The first bytes are there, so the request was taken on.
        client.connection.receive(16).expect("the head of a reply");
        served.stop().expect("a good end without that client");
    }
}

/// DF concerns chunks, which simple replies do not have.
#[test]
fn unfragmented_reads_are_advertised_with_structured_replies_only() {
    const SEND_DF: u16 = 1 << 7;
    let served = Served::new(device(memory(MIB), 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    for mode in MODES {
        let flags = Client::open(served.path(), mode).flags();
        assert_eq!(flags & SEND_DF != 0, mode != Mode::Simple, "{mode:?}");
    }
}

/// Requests of other clients are carried out between the pieces of a long request.
#[test]
fn long_write_zeroes_lets_other_requests_through() {
    for io in rings() {
        let served = Served::new(device(memory(256 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let [mut zeroing, mut reading] = [(); 2].map(|()| Client::open(served.path(), Mode::Simple));
        let (over, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        let zeroes = zeroing.send(WRITE_ZEROES, 0, 0, 256 * MIB);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    reading.read(0, 4096);
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            });
            zeroing.wait(zeroes);
            let count = reads.load(Ordering::SeqCst);
            over.store(true, Ordering::SeqCst);
            assert!(count > 4, "{io:?}: {count} reads of another client during the zeroes");
        });
    }
}

/// The payload of a write may become whole in the turn in which the server begins to stop.
#[test]
fn write_that_arrives_while_server_stops_does_not_hang() {
    const REST: usize = 50_000;
    for io in rings() {
        let store = FaultyStore::new(40 * MIB);
        let mut served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
        let [mut late, mut held] = [(); 2].map(|()| Client::open(served.path(), Mode::Simple));
        let (header, _) = late.header(WRITE, 0, 0, 3 * MIB);
        let piece = vec![7; MIB as usize];
        let (first, rest) = piece.split_at(piece.len() - REST);
        late.connection.stream.write_all(&[&header, first].concat()).expect("the server reads");
        std::thread::sleep(Duration::from_millis(300));
        // The worker is held inside of the store; the rest and the end then come together.
        store.set(Faults { hold_writes: true, ..Faults::default() });
        let write = held.send_write(0, 20 * MIB, &[1; 4096]);
        eventually("a write waits", || store.waiting.load(Ordering::SeqCst), |waiting| *waiting > 0);
        late.connection.stream.write_all(rest).expect("the socket holds it");
        let stopping = std::thread::spawn(move || served.stop());
        std::thread::sleep(Duration::from_millis(300));
        store.set(Faults::default());
        assert_eq!(held.wait(write).error, 0);
        // The client is disconnected, with or without an error.
        assert_disconnected(&mut late.connection.stream);
        stopping.join().expect("no panic").expect("a good end");
    }
}

/// The stack must not grow with the number of short transfers.
#[test]
fn thousands_of_short_transfers_make_one_request() {
    let memory = Arc::new(MemoryStore::new(vec![0; store_len(8 * MIB) as usize]));
    let store = Arc::new(ScriptedStore::new(memory, |_| Verdict::Short(512)));
    let served = Served::new(device(store, 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    let mut client = Client::open(served.path(), Mode::Simple);
    assert_eq!(client.write(0, 0, &pattern(1, MIB)), 0);
    assert!(client.read(0, MIB) == pattern(1, MIB));
}

/// Requests of every kind that need more memory than there is: all are answered in the end.
#[test]
fn mixed_requests_beyond_memory_are_all_answered() {
    for (io, threads) in rings().into_iter().flat_map(|io| [(io, 1), (io, 4)]) {
        let served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, threads);
        std::thread::scope(|scope| {
            for n in 0..6u64 {
                let mut client = Client::open(served.path(), MODES[n as usize % 3]);
                scope.spawn(move || {
                    let small = |client: &mut Client| {
                        (0..60).for_each(|i| {
                            client.send(READ, 0, i * 65_536 + n, 65_536);
                        });
                    };
                    small(&mut client);
                    (0..2).for_each(|i| {
                        client.send(READ, 0, i * MIB + 1, 18 * MIB);
                    });
                    if n % 3 > 0 {
                        (0..8).for_each(|i| {
                            client.send(READ, DF, i * MIB, MIB);
                        });
                    }
                    small(&mut client);
                    while client.in_flight() > 0 {
                        client.receive();
                    }
                    assert_eq!(client.write(0, n + 1, &pattern(n, 4 * MIB)), 0);
                });
            }
        });
    }
}

/// A store of many TiB that records its operations, and whose extents are single data units.
#[derive(Default)]
struct HugeStore {
    discards: Mutex<Vec<(u64, u64)>>,
    prefetches: Mutex<Vec<u64>>,
    runs: AtomicUsize,
    syncs: AtomicUsize,
}

const TIB: u64 = 1 << 40;

impl BackingStore for HugeStore {
    fn geometry(&self) -> Geometry {
        Geometry::new(store_len(8 * TIB))
    }
    fn read_at(&self, data: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        data.fill(0);
        Ok(data.len())
    }
    fn write_at(&self, data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Ok(data.len())
    }
    fn sync(&self) -> Result<(), Errno> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.discards.lock().expect("no test panics with it").push((offset - store_len(0), len));
        Ok(())
    }
    fn prefetch(&self, _offset: u64, len: u64) {
        self.prefetches.lock().expect("no test panics with it").push(len);
    }
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok(BlockStatus::allocated(offset, len.min(4096)))
    }
}

fn huge_store() -> (Arc<HugeStore>, Served) {
    let store = Arc::new(HugeStore::default());
    let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    (store, served)
}

#[test]
fn block_status_of_fragmented_file_is_bounded() {
    let (store, served) = huge_store();
    let mut client = Client::open(served.path(), Mode::Extended);
    for flags in [0, REQ_ONE] {
        let before = store.runs.load(Ordering::SeqCst);
        let answer = client.call(BLOCK_STATUS, flags, 4096, 7 * TIB);
        let asked = store.runs.load(Ordering::SeqCst) - before;
        assert!((1..=1024).contains(&asked), "{asked} runs were looked at for one request");
        assert_eq!(answer.extents, [(asked as u64 * 4096, 0)], "what was looked at is told");
    }
}

#[test]
fn long_trims_and_prefetches_go_in_pieces() {
    let (store, served) = huge_store();
    let mut client = Client::open(served.path(), Mode::Extended);
    assert_eq!(client.call(TRIM, 0, 5000, TIB).error, 0);
    let discards = std::mem::take(&mut *store.discards.lock().expect("no test panics with it"));
    assert!(discards.len() >= 1024 && discards.iter().all(|d| d.1 <= 1 << 30));
    assert!(discards.windows(2).all(|d| d[0].0 + d[0].1 == d[1].0), "no data unit at a seam is left out");
    let end = discards.last().map(|d| d.0 + d.1);
    assert_eq!((discards[0].0, end), (8192, Some((5000 + TIB) / 4096 * 4096)));
    assert_eq!(client.call(CACHE, 0, 5, 100 * MIB).error, 0);
    let prefetches = store.prefetches.lock().expect("no test panics with it");
    assert!(prefetches.iter().all(|len| *len <= 8 * MIB));
    assert_eq!(prefetches.iter().sum::<u64>(), 100 * MIB);
}

#[test]
fn fua_trim_is_synced_before_its_answer() {
    let (store, served) = huge_store();
    let mut client = Client::open(served.path(), Mode::Simple);
    for (flags, syncs) in [(0, 0), (FUA, 1)] {
        assert_eq!(client.call(TRIM, flags, 0, MIB).error, 0);
        assert_eq!(store.syncs.load(Ordering::SeqCst), syncs);
    }
    let store = FaultyStore::new(MIB);
    let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    let mut client = Client::open(served.path(), Mode::Simple);
    store.set(Faults { bad_sync: Some(Errno::IO), ..Faults::default() });
    assert_eq!(client.call(TRIM, FUA, 0, MIB).error, errno::IO);
    assert_eq!(client.call(TRIM, FUA, 0, MIB).error, errno::IO, "as with any other failed flush");
    assert_eq!(client.call(TRIM, 0, 0, MIB).error, 0);
}

/// A full disk with FUA of its own fails the request. It fails later flushes too only if bytes were lost that others
/// were told of.
#[test]
fn native_fua_write_without_room_syncs_for_lost_writes() {
    for (errno, lost) in [Errno::NOSPC, Errno::DQUOT].into_iter().flat_map(|e| [(e, false), (e, true)]) {
        let store = FaultyStore::new(MIB);
        store.native_fua.store(true, Ordering::SeqCst);
        let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
        let mut client = Client::open(served.path(), Mode::Simple);
        let bad_sync = lost.then_some(Errno::IO);
        store.set(Faults { bad_writes: Some((0..4096, errno)), bad_sync, ..Faults::default() });
        assert_eq!(client.write(0, 0, &[1; 4096]), errno::NOSPC);
        assert_eq!(store.syncs.load(Ordering::SeqCst), 0, "without FUA there is nothing to ask for");
        assert_eq!(client.write(FUA, 0, &[1; 4096]), errno::NOSPC, "the reason is told as it is");
        store.set(Faults::default());
        assert_eq!(client.call(FLUSH, 0, 0, 0).error, if lost { errno::IO } else { 0 }, "{errno:?}, lost: {lost}");
        assert_eq!(client.write(FUA, 0, &[1; 4096]), if lost { errno::IO } else { 0 });
    }
}

/// Without native FUA, a FUA write is a write and a sync. A failed write does not mean that others are lost.
#[test]
fn fua_write_that_fails_is_not_synced() {
    let store = FaultyStore::new(MIB);
    let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    let mut client = Client::open(served.path(), Mode::Simple);
    store.set(Faults { bad_writes: Some((0..4096, Errno::IO)), ..Faults::default() });
    assert_eq!(client.write(FUA, 0, &[1; 4096]), errno::IO);
    assert_eq!(store.syncs.load(Ordering::SeqCst), 0);
    store.set(Faults::default());
    assert_eq!(client.write(FUA, 0, &[1; 4096]), 0);
    assert_eq!((store.syncs.load(Ordering::SeqCst), client.call(FLUSH, 0, 0, 0).error), (1, 0));
}

/// Clients read the plaintext.
#[test]
fn socket_is_its_owners_and_replaces_that_of_dead_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a new socket"));
    let served = Served::at(&path, device(memory(MIB), 4096, READ_WRITE_DISCARD), IoMode::Sync, 1, Limits::default());
    let served = served.expect("the dead socket is no obstacle");
    let mode = std::fs::metadata(&path).expect("the socket is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Client::open(&path, Mode::Simple).disconnect();
    let second = Served::at(&path, device(memory(MIB), 4096, READ_WRITE_DISCARD), IoMode::Sync, 1, Limits::default());
    assert!(second.is_err_and(|e| e.to_string().contains("in use")), "a living server is");
    Client::open(served.path(), Mode::Simple).disconnect();
}
