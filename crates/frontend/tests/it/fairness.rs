//! Limits of one client on its worker: memory, requests, and time. Measured in operations of the store, not by a clock.

use crate::client::*;
use crate::support::*;
use inlock_engine::Errno;
use inlock_engine::store::file::FileStore;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, BlockStatus, Geometry};
use inlock_frontend::nbd::server::{Limits, Listen, Server, ServerOptions};
use inlock_tests::wait::eventually;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Limits with which no client is dropped during a test.
fn no_limits() -> Limits {
    let limit = Duration::from_secs(3600);
    limits(limit, limit, Duration::from_millis(100))
}

/// Operation of a [`RecordingStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Read(u64),
    Write(u64),
    Sync,
    Discard,
    Prefetch,
    Run,
}

/// A store that records its operations, and blocks writes on demand.
struct RecordingStore {
    inner: MemoryStore,
    entries: Mutex<Vec<Entry>>,
    held: Mutex<bool>,
    changed: Condvar,
    waits: AtomicBool,
}

impl RecordingStore {
    fn new(len: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(vec![0; store_len(len) as usize]),
            entries: Mutex::default(),
            held: Mutex::default(),
            changed: Condvar::new(),
            waits: AtomicBool::new(false),
        })
    }

    fn note(&self, entry: Entry) {
        self.entries.lock().expect("no test panics with it").push(entry);
    }

    fn entries(&self) -> Vec<Entry> {
        self.entries.lock().expect("no test panics with it").clone()
    }

    fn hold(&self, held: bool) {
        *self.held.lock().expect("no test panics with it") = held;
        self.changed.notify_all();
    }

    /// Blocks until there has been no operation for a while.
    fn wait_until_idle(&self) {
        let mut before = usize::MAX;
        while before != self.entries().len() {
            before = self.entries().len();
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl BackingStore for RecordingStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.note(Entry::Read(offset - store_len(0)));
        self.inner.read_at(data, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let held = self.held.lock().expect("no test panics with it");
        self.waits.store(*held, Ordering::SeqCst);
        drop(self.changed.wait_while(held, |held| *held).expect("no test panics with it"));
        self.note(Entry::Write(offset - store_len(0)));
        self.inner.write_at(data, offset)
    }
    fn sync(&self) -> Result<(), Errno> {
        self.note(Entry::Sync);
        Ok(())
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        self.note(Entry::Discard);
        Ok(())
    }
    fn prefetch(&self, _offset: u64, _len: u64) {
        self.note(Entry::Prefetch);
    }
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.note(Entry::Run);
        Ok(BlockStatus::allocated(offset, len.min(4096)))
    }
}

/// A client that has sent reads of `len` bytes and takes no reply.
fn paused(served: &Served, mode: Mode, reads: u64, len: u64) -> Client {
    let mut client = Client::open(served.path(), mode);
    let requests: Vec<u8> = (0..reads).flat_map(|n| client.header(READ, 0, (n * len) % (32 * MIB), len).0).collect();
    // The server may stop reading first.
    client.connection.stream.set_nonblocking(true).expect("a socket can be told");
    let _ = client.connection.stream.write(&requests);
    client
}

/// Sends requests of every kind and checks their replies.
fn short_work(served: &Served, mode: Mode) {
    let mut client = Client::open(served.path(), mode);
    for n in 0..3 {
        let at = 33 * MIB + n * 10_000;
        assert_eq!(client.write(0, at, &pattern(n, 4096)), 0);
        assert_eq!(client.read(at, 4096), pattern(n, 4096));
        assert_eq!(client.call(WRITE_ZEROES, 0, at + 5, 5000).error, 0);
        assert_eq!(client.call(FLUSH, 0, 0, 0).error, 0);
        assert_eq!(client.write(0, at, &pattern(n + 1, 300_000)), 0);
        assert_eq!(client.read(at, 300_000), pattern(n + 1, 300_000));
    }
    if mode != Mode::Simple {
        assert!(!client.call(BLOCK_STATUS, 0, 0, MIB).extents.is_empty());
    }
    client.disconnect();
}

#[test]
fn client_without_memory_is_served_while_others_hold_the_pool() {
    for io in rings() {
        // First more requests than a worker carries; always more memory than it has.
        for (clients, reads, len) in [(40, 1200, 4096), (12, 100, 65_536), (12, 20, MIB)] {
            let store = RecordingStore::new(40 * MIB);
            let served =
                Served::with_limits(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1, no_limits());
            let held: Vec<Client> = (0..clients).map(|n| paused(&served, MODES[n % 3], reads, len)).collect();
            store.wait_until_idle();
            for mode in MODES {
                short_work(&served, mode);
            }
            drop(held);
        }
    }
}

#[test]
fn client_without_memory_gets_reserve_for_long_chunk() {
    for io in rings() {
        let store = RecordingStore::new(40 * MIB);
        let served = Served::with_limits(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1, no_limits());
        // Each holds as much as it may; together they ask for more than there is.
        let held: Vec<Client> = (0..5).map(|_| paused(&served, Mode::Structured, 300, MIB)).collect();
        store.wait_until_idle();
        let mut client = Client::open(served.path(), Mode::Structured);
        assert_eq!(client.call(READ, DF, 0, MIB).pieces, 1);
        drop(held);
    }
}

/// Returns how many of `clients` the server has dropped.
fn count_dropped(clients: &mut [Client]) -> usize {
    let mut count = 0;
    for client in clients {
        client.connection.stream.set_nonblocking(false).expect("a socket can be told");
        client.connection.stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout can be set");
        let end = client.connection.stream.read_to_end(&mut Vec::new());
        count += usize::from(!end.is_err_and(|e| e.kind() == ErrorKind::WouldBlock));
    }
    count
}

fn short_stall() -> Limits {
    let mut limits = no_limits();
    limits.stall = Duration::from_millis(400);
    limits
}

#[test]
fn client_that_sends_and_takes_no_replies_is_dropped() {
    for io in rings() {
        let store = RecordingStore::new(40 * MIB);
        let served =
            Served::with_limits(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1, short_stall());
        // None holds as much as it may, so that the server still reads from each.
        let mut hostile: Vec<Client> = (0..30).map(|_| paused(&served, Mode::Structured, 3, MIB)).collect();
        store.wait_until_idle();
        let (over, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let mut streams: Vec<_> =
                hostile.iter().map(|h| h.connection.stream.try_clone().expect("a descriptor")).collect();
            let (over, begun) = (&over, &begun);
            scope.spawn(move || {
                // A request, byte by byte, which takes longer than the test.
                let header = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0].into_iter().chain(std::iter::repeat(0));
                for byte in header.take_while(|_| !over.load(Ordering::SeqCst)).take(27) {
                    streams.iter_mut().for_each(|stream| drop(stream.write(&[byte])));
                    begun.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let mut client = Client::open(served.path(), Mode::Structured);
            // More at a time than what is reserved.
            let reads: Vec<u64> = (0..6).map(|n| client.send(READ, DF, n * MIB, MIB)).collect();
            reads.into_iter().for_each(|read| assert_eq!(client.wait(read).error, 0));
            assert!(begun.load(Ordering::SeqCst) < 27, "{io:?}: no client was dropped while it sent bytes");
            over.store(true, Ordering::SeqCst);
        });
        assert!(count_dropped(&mut hostile) > 0, "{io:?}: the memory came from no client");
    }
}

#[test]
fn client_that_stops_sending_payload_is_dropped_while_others_wait() {
    for io in rings() {
        let served = Served::with_limits(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1, short_stall());
        let mut hostile: Vec<Client> = (0..26)
            .map(|_| {
                let mut client = Client::open(served.path(), Mode::Simple);
                let (header, _) = client.header(WRITE, 0, 0, 32 * MIB);
                client.connection.stream.write_all(&[header, vec![1; 200_000]].concat()).expect("the server reads");
                client
            })
            .collect();
        let mut client = Client::open(served.path(), Mode::Structured);
        assert_eq!(client.call(READ, DF, 0, MIB).error, 0);
        assert!(count_dropped(&mut hostile) > 0, "{io:?}: the memory came from no client");
    }
}

/// A client may owe as long as no other waits: its time counts from the beginning of the wait.
#[test]
fn client_that_owes_for_long_gets_the_full_limit_when_another_waits() {
    let mut limits = no_limits();
    // More than the time between two looks at the clients.
    limits.stall = Duration::from_millis(1200);
    for io in rings() {
        let store = RecordingStore::new(40 * MIB);
        let served = Served::with_limits(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1, limits);
        // Each holds one of the longest buffers, asks for nothing else, and so waits for no other.
        let owe = |_| {
            let mut client = Client::open(served.path(), Mode::Simple);
            let (header, _) = client.header(WRITE, 0, 0, MIB);
            // More than sockets hold: the server has the buffer when this ends.
            client.connection.stream.write_all(&[header, vec![1; 900_000]].concat()).expect("the server reads");
            client
        };
        let mut owing: Vec<Client> = (0..20).map(owe).collect();
        std::thread::sleep(limits.stall);
        let mut client = Client::open(served.path(), Mode::Structured);
        let begun = Instant::now();
        assert_eq!(client.call(READ, DF, 0, MIB).error, 0);
        assert!(begun.elapsed() >= limits.stall, "{io:?}: a client was dropped after {:?}", begun.elapsed());
        assert!(count_dropped(&mut owing) > 0, "{io:?}: the memory came from no client");
    }
}

/// Counts operations for greedy clients before that of a request that arrives with theirs.
#[test]
fn short_request_waits_for_no_more_than_a_turn_of_others() {
    const GREEDY: usize = 10;
    const FAR: u64 = 39 * MIB;
    for io in rings() {
        for (kind, entry, most) in [
            (FLUSH, Entry::Sync, 1),
            (CACHE, Entry::Prefetch, 1),
            (TRIM, Entry::Discard, 1),
            // As many as one reply looks at.
            (BLOCK_STATUS, Entry::Run, 1024),
        ] {
            let store = RecordingStore::new(40 * MIB);
            let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
            let mut clients: Vec<Client> = (0..GREEDY).map(|_| Client::open(served.path(), Mode::Extended)).collect();
            let [mut busy, mut good] = [(); 2].map(|()| Client::open(served.path(), Mode::Simple));
            store.hold(true);
            let write = busy.send_write(0, 0, &[1; 4096]);
            eventually("a write waits", || store.waits.load(Ordering::SeqCst), |waits| *waits);
            for client in &mut clients {
                (0..200).for_each(|_| {
                    client.send(kind, 0, 0, 4 * MIB);
                });
            }
            let read = good.send(READ, 0, FAR, 4096);
            store.hold(false);
            assert_eq!(good.wait(read).error, 0);
            let entries = store.entries();
            let place = entries.iter().position(|e| *e == Entry::Read(FAR)).expect("it was read");
            let before = entries[..place].iter().filter(|e| **e == entry).count();
            // The turn in which all of it arrives, and the one after.
            assert!(before <= 2 * GREEDY * most, "{io:?}, {entry:?}: {before} before the read of another client");
            assert_eq!(busy.wait(write).error, 0);
            while clients.iter().any(|client| client.in_flight() > 0) {
                clients.iter_mut().filter(|client| client.in_flight() > 0).for_each(Client::receive);
            }
        }
    }
}

/// The pieces of a FUA write are durable one by one; the reply has the first failure.
#[test]
fn long_fua_write_fails_if_any_piece_fails() {
    for (io, mode) in rings().into_iter().flat_map(|io| MODES.map(|mode| (io, mode))) {
        let bytes = pattern(1, 4 * MIB);
        for piece in 0..4 {
            let store = FaultyStore::new(8 * MIB);
            let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
            let mut client = Client::open(served.path(), mode);
            let bad = piece * MIB + 8192;
            store.set(Faults { bad_writes: Some((bad..bad + 1, Errno::NOSPC)), ..Faults::default() });
            assert_eq!(client.write(FUA, 0, &bytes), errno::NOSPC, "{io:?}, {mode:?}, piece {piece}");
            store.set(Faults::default());
            assert_eq!(client.write(FUA, 0, &bytes), 0);
            assert_eq!(client.call(WRITE_ZEROES, FUA, 0, 4 * MIB).error, 0);
        }
    }
}

#[test]
fn new_client_after_growth_is_told_new_size() {
    for io in rings() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(store_len(MIB)).expect("a sparse file");
        let store = FileStore::new(file.reopen().expect("it is there"), io).expect("a regular file");
        let served = Served::new(device(Arc::new(store), 4096, READ_WRITE_DISCARD), io, 2);
        let mut old = Client::open(served.path(), Mode::Structured);
        assert_eq!(old.size(), MIB);
        assert_eq!(old.call(READ, 0, MIB, 4096).error, errno::INVAL);
        file.as_file().set_len(store_len(3 * MIB)).expect("a longer file");
        assert_eq!(served.device.grow().expect("it has grown"), 3 * MIB);
        // As many as there are workers, and one more.
        for mode in MODES {
            let mut new = Client::open(served.path(), mode);
            assert_eq!(new.size(), 3 * MIB, "{io:?}, {mode:?}");
            assert_eq!(new.write(0, 3 * MIB - 4096, &pattern(3, 4096)), 0);
            new.disconnect();
        }
        assert_eq!(old.size(), MIB);
        assert_eq!(old.read(3 * MIB - 4096, 4096), pattern(3, 4096), "what is there is there for all");
    }
}

/// The kernel's table of TCP sockets shows the timer of each; for the server's end it is that of keep-alive.
#[test]
fn silent_tcp_client_is_probed() {
    let device = device(memory(MIB), 4096, READ_WRITE_DISCARD);
    let listen = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::start(device, &listen, &ServerOptions::default()).expect("a free port");
    let Listen::Tcp(address) = server.listen().clone() else { panic!("it listens on TCP") };
    let mut client = std::net::TcpStream::connect(address).expect("the server listens");
    client.read_exact(&mut [0; 18]).expect("a greeting");
    let local = format!(":{:04X}", address.port());
    let table = || std::fs::read_to_string("/proc/self/net/tcp").expect("the kernel's table");
    let timer = || {
        let line = table().lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).find(
            // Established.
            |fields| fields[1].ends_with(&local) && fields[3] == "01",
        );
        line.expect("the server's end")[5].clone()
    };
    // While the greeting is not acknowledged, another timer runs.
    let shown = eventually("the timer is that of keepalive", timer, |shown| shown.starts_with("02:"));
    let (kind, when) = shown.split_once(':').expect("a timer and when it runs out");
    let when = u64::from_str_radix(when, 16).expect("ticks");
    assert!(kind == "02" && when <= 60 * 100, "{shown}");
    server.stop().expect("a good end");
}
