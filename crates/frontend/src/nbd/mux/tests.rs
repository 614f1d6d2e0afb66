//! The queues of the frontend, with a worker, clients and sockets, but without waiting: the tests run each turn.

use super::*;
use crate::nbd::handshake::option_bytes;
use crate::nbd::protocol::{REQUEST_MAGIC, command, option};
use crate::nbd::throttle::{ExportLimits, SharedLimits};
use inlock_engine::buffer::BufferClass;
use inlock_engine::ring::Ring;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::worker::{Mailbox, Worker};
use inlock_engine::{Buffer, BufferPool, Device};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

const DEVICE_LEN: u64 = 16 << 20;
const READ_LEN: u64 = 8 << 20;
const GREETING_LEN: usize = 18;
const REPLY_LEN: usize = 16;
/// Time of a test, with room for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The frontend, which has the worker never wait, and notes how long it would.
struct Watched {
    nbd: NbdFrontend,
    wait: Wait,
    elsewhere: Vec<Buffer>,
    /// Each wait for a message seems to have taken an hour, and limits are checked in each turn.
    is_slow: bool,
    /// It goes on whenever all receives are cancelled, as if a message had come in that moment.
    is_called_back: bool,
}

/// Message of the tests.
enum Told {
    Nbd(Message),
    /// Take all buffers out of the pool.
    EmptyPool,
    /// Let waits seem to take an hour.
    BeSlow,
    /// Rest at once, and go on instead of leaving.
    Rest,
}

impl Frontend for Watched {
    type Message = Told;

    fn on_message(&mut self, cx: &mut Context<'_>, message: Told) {
        if self.is_slow {
            self.nbd.now = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        }
        match message {
            Told::BeSlow => self.is_slow = true,
            Told::Rest => {
                let fresh = NbdFrontend::new(Arc::clone(&self.nbd.export), Arc::default(), self.nbd.limits);
                self.nbd = std::mem::replace(&mut self.nbd, fresh).with_rest(Duration::ZERO);
                self.is_called_back = true;
            }
            Told::Nbd(message) => self.nbd.on_message(cx, message),
            Told::EmptyPool => self.elsewhere.extend(std::iter::from_fn(|| cx.pool.take(1, 1))),
        }
    }

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        self.nbd.on_completion(cx, done);
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        self.nbd.on_finished(cx, done);
    }

    fn process(&mut self, cx: &mut Context<'_>) -> bool {
        self.nbd.process(cx)
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if self.is_slow {
            self.nbd.next_scan = Instant::now();
        }
        let is_receiving = |connection: &Connection| connection.session.is_receiving();
        if self.is_called_back && !self.nbd.connections.iter().flatten().any(is_receiving) {
            self.nbd.stay_if_leaving();
        }
        let (flow, wait) = self.nbd.end_turn(cx);
        self.wait = wait;
        (flow, Wait::No)
    }
}

struct Fixture {
    device: Arc<Device>,
    worker: Worker<Watched>,
    mailbox: Arc<Mailbox<Told>>,
    begun: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    fn with_limits(limits: Limits) -> Self {
        Self::throttled(limits, None)
    }

    /// A server whose export has limits.
    fn throttled(limits: Limits, throttle: Option<Arc<Throttle>>) -> Self {
        let store = Arc::new(MemoryStore::new(vec![0; DEVICE_LEN as usize]));
        let device = Arc::new(Device::raw(store, Access::default()));
        let pool = BufferPool::new(&[BufferClass { capacity: 64 << 10, count: 64 }]);
        let export = Export {
            name: String::new(),
            description: String::new(),
            // Each handshake reads it from the device.
            size: 0,
            flags: 1,
            preferred_block: 4096,
        };
        let nbd = NbdFrontend { throttle, ..NbdFrontend::new(Arc::new(export), Arc::default(), limits) };
        let watched = Watched { nbd, wait: Wait::No, elsewhere: Vec::new(), is_slow: false, is_called_back: false };
        let worker = Worker::new(Arc::clone(&device), Ring::new(IoMode::Sync).unwrap(), pool, watched);
        Self { mailbox: worker.mailbox(), device, worker, begun: Instant::now() }
    }

    /// Returns a server whose clients may move a byte a second.
    fn with_a_byte_a_second() -> (Arc<Throttle>, Self) {
        let limits = ExportLimits { bytes: Some(1), ..ExportLimits::default() };
        let throttle = Throttle::new(&SharedLimits::new(limits, 1, Instant::now()));
        let fixture = Self::throttled(Limits::default(), Some(Arc::clone(&throttle)));
        (throttle, fixture)
    }

    fn nbd(&self) -> &NbdFrontend {
        &self.worker.front().nbd
    }

    /// Runs turns until so many clients are left, or for a while. Returns how many there are.
    fn clients_left(&mut self, wanted: usize) -> usize {
        let begin = Instant::now();
        loop {
            let count = self.nbd().connections.iter().flatten().count();
            if count == wanted || begin.elapsed() > 2 * SCAN {
                return count;
            }
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn turn(&mut self) {
        assert!(self.begun.elapsed() < PATIENCE, "a test waits in vain");
        assert_eq!(self.worker.turn().unwrap(), Flow::Continue);
    }

    /// Connects a client that has got no further than the greeting.
    fn greeted(&mut self) -> Client {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let live = CountGuard::new(&self.nbd().live);
        self.mailbox.post(Told::Nbd(Message::Accept(theirs.into(), live)));
        let mut client = Client { socket, received: Vec::new() };
        self.run_until(&mut [&mut client], GREETING_LEN);
        client
    }

    /// Connects a client that may send commands.
    fn connected(&mut self) -> Client {
        let mut client = self.greeted();
        // An export of any name, and no information beyond what always comes.
        client.put(&[3u32.to_be_bytes().to_vec(), option_bytes(option::GO, &[0; 6])].concat());
        let both = (20 + 12) + 20;
        self.run_until(&mut [&mut client], both);
        while self.nbd().handshakes.load(Ordering::Relaxed) > 0 {
            self.turn();
        }
        client
    }

    /// Runs turns until each client has received `len` bytes, and drops them.
    fn run_until(&mut self, clients: &mut [&mut Client], len: usize) {
        for _ in 0..100_000 {
            self.turn();
            clients.iter_mut().for_each(|client| client.take());
            if clients.iter().all(|client| client.received.len() >= len) {
                return clients.iter_mut().for_each(|client| drop(client.received.drain(..len)));
            }
        }
        panic!("a client waits in vain");
    }
}

struct Client {
    socket: UnixStream,
    received: Vec<u8>,
}

fn command_bytes(kind: u16, len: u64) -> Vec<u8> {
    let [magic, cookie] = [REQUEST_MAGIC.to_be_bytes(), 7u32.to_be_bytes()];
    [&magic, &[0, 0][..], &kind.to_be_bytes(), &[0; 4], &cookie, &[0; 8], &(len as u32).to_be_bytes()].concat()
}

impl Client {
    fn put(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn command(&mut self, kind: u16, len: u64) {
        self.put(&command_bytes(kind, len));
    }

    /// Takes what has been sent to the client.
    fn take(&mut self) {
        let mut room = [0; 64 << 10];
        loop {
            match self.socket.read(&mut room) {
                Ok(0) => return,
                Ok(len) => self.received.extend_from_slice(&room[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn client_that_leaves_the_turn_queue_leaves_the_others_in_it() {
    let mut fixture = Fixture::new();
    let mut clients = [(); 3].map(|()| fixture.connected());
    clients.iter_mut().for_each(|client| client.command(command::READ, READ_LEN));
    let [mut first, second, mut third] = clients;
    // The server notices it by a send that fails, with all three in the queue.
    drop(second);
    let mut most = 0;
    while fixture.nbd().connections.iter().flatten().count() == 3 {
        fixture.turn();
        most = most.max(fixture.nbd().turn_queue.len());
    }
    assert_eq!(most, 3);
    fixture.run_until(&mut [&mut first, &mut third], REPLY_LEN + READ_LEN as usize);
    while fixture.nbd().connections.iter().flatten().any(|connection| connection.is_queued) {
        fixture.turn();
    }
    assert_eq!((fixture.nbd().turn_queue.len(), fixture.worker.front().wait), (0, Wait::Forever));
}

#[test]
fn next_turn_waits_for_nothing_while_clients_have_more_to_begin() {
    for count in 1..=3 {
        let mut fixture = Fixture::new();
        let mut clients: Vec<Client> = (0..count).map(|_| fixture.connected()).collect();
        fixture.turn();
        assert_eq!(fixture.worker.front().wait, Wait::Forever, "no client is in its handshake");
        // Each flush is as much as a client may begin in a turn.
        clients.iter_mut().for_each(|client| (0..9).for_each(|_| client.command(command::FLUSH, 0)));
        let mut ready_turns = 0;
        for _ in 0..20 {
            fixture.turn();
            ready_turns += u32::from(fixture.worker.front().wait == Wait::No);
        }
        assert!(ready_turns >= 7, "{count} clients, {ready_turns}");
        let mut waiting: Vec<&mut Client> = clients.iter_mut().collect();
        fixture.run_until(&mut waiting, 9 * REPLY_LEN);
        assert_eq!(fixture.worker.front().wait, Wait::Forever);
        let _handshake = fixture.greeted();
        assert!(matches!(fixture.worker.front().wait, Wait::Until(limit) if limit <= SCAN));
    }
}

#[test]
fn client_without_memory_stays_in_front_of_those_that_begin() {
    let mut fixture = Fixture::new();
    let [mut busy, mut blocked] = [(); 2].map(|()| fixture.connected());
    fixture.mailbox.post(Told::EmptyPool);
    fixture.turn();
    // The client takes no reply, so its own buffers are used up, and the rest waits for others.
    blocked.command(command::READ, READ_LEN);
    for _ in 0..1000 {
        fixture.turn();
    }
    assert_eq!(fixture.nbd().turn_queue, [1]);
    assert!(matches!(fixture.worker.front().wait, Wait::Until(limit) if limit <= SCAN), "for others' memory");
    // One piece a turn.
    busy.command(command::CACHE, DEVICE_LEN);
    let mut turns = 0;
    while busy.received.is_empty() {
        fixture.turn();
        busy.take();
        if fixture.nbd().turn_queue.len() == 2 {
            turns += 1;
            assert_eq!(fixture.nbd().turn_queue, [1, 0]);
        }
    }
    assert!(turns > 10, "{turns}");
}

#[test]
fn export_of_a_new_client_has_length_and_discards_of_the_device() {
    let mut fixture = Fixture::new();
    let device = Arc::clone(&fixture.device);
    for allowed in [false, true, false] {
        device.allow_discards(allowed);
        let _client = fixture.connected();
        let Export { size, flags, preferred_block, .. } = *fixture.nbd().export;
        assert_eq!((size, preferred_block), (DEVICE_LEN, 4096));
        assert_eq!(flags, if allowed { 1 | transmission_flag::SEND_TRIM } else { 1 });
    }
}

const SHORT: Duration = Duration::from_millis(20);

#[test]
fn client_that_stays_in_its_handshake_is_dropped() {
    let mut fixture = Fixture::with_limits(Limits { handshake: SHORT, ..Limits::default() });
    let _waiting = fixture.greeted();
    while fixture.nbd().connections.iter().flatten().all(|connection| !connection.is_dropped) {
        fixture.turn();
    }
    assert!(fixture.nbd().connections[0].is_some(), "the ring still has its buffer, so its place is not free");
    assert_eq!(fixture.clients_left(0), 0);
    let mut fixture = Fixture::with_limits(Limits { stall: SHORT, drain: SHORT, ..Limits::default() });
    let _waiting = fixture.greeted();
    assert_eq!(fixture.clients_left(0), 1);
}

#[test]
fn client_that_holds_memory_and_takes_no_replies_is_dropped_while_another_waits() {
    let mut fixture = Fixture::with_limits(Limits { stall: SHORT, ..Limits::default() });
    let mut clients = [(); 2].map(|()| fixture.connected());
    fixture.mailbox.post(Told::EmptyPool);
    fixture.turn();
    clients[0].command(command::READ, READ_LEN);
    assert_eq!(fixture.clients_left(1), 2, "no other waits");
    clients[1].command(command::READ, READ_LEN);
    assert!(fixture.clients_left(0) < 2);
}

#[test]
fn new_client_is_not_late_because_the_worker_has_waited_for_long() {
    let limits = Limits { handshake: Duration::from_secs(1800), ..Limits::default() };
    let mut fixture = Fixture::with_limits(limits);
    fixture.mailbox.post(Told::BeSlow);
    let _client = fixture.greeted();
    (0..10).for_each(|_| fixture.turn());
    assert!(fixture.nbd().connections[0].as_ref().is_some_and(|connection| !connection.is_dropped));
}

#[test]
fn clients_of_a_worker_that_goes_on_instead_of_resting_are_received_from() {
    let mut fixture = Fixture::new();
    let mut clients = [(); 3].map(|()| fixture.connected());
    fixture.mailbox.post(Told::Rest);
    for _ in 0..20 {
        (0..5).for_each(|_| fixture.turn());
        for client in &mut clients {
            client.command(command::FLUSH, 0);
            fixture.run_until(&mut [client], REPLY_LEN);
        }
    }
}

/// Returns limits of bytes in flight.
fn in_flight(bytes: u64) -> (Arc<SharedLimits>, Arc<Throttle>) {
    let limits = ExportLimits { in_flight: Some(bytes), ..ExportLimits::default() };
    let shared = SharedLimits::new(limits, 1, Instant::now());
    let throttle = Throttle::new(&shared);
    (shared, throttle)
}

#[test]
fn client_that_holds_bytes_in_flight_and_takes_no_replies_is_dropped_while_another_waits() {
    let (_, throttle) = in_flight(1);
    let limits = Limits { stall: SHORT, ..Limits::default() };
    let mut fixture = Fixture::throttled(limits, Some(Arc::clone(&throttle)));
    let mut clients = [(); 3].map(|()| fixture.connected());
    clients[0].command(command::READ, READ_LEN);
    assert_eq!(fixture.clients_left(2), 3, "no other waits");
    // A client with nothing to read does not wait, and one that waits is served then.
    clients[1].command(command::READ, 4096);
    assert_eq!(fixture.clients_left(2), 2);
    fixture.run_until(&mut [&mut clients[1]], REPLY_LEN + 4096);
    while throttle.stats(Instant::now()).in_flight > 0 {
        fixture.turn();
    }
}

/// A client that has more requests in its socket does not keep another one waiting until they are done.
#[test]
fn clients_at_the_limit_of_bytes_in_flight_are_served_in_turn() {
    const BACKLOG: usize = 200;
    let (_shared, throttle) = in_flight(1);
    let mut fixture = Fixture::throttled(Limits::default(), Some(throttle));
    let mut clients = [(); 2].map(|()| fixture.connected());
    (0..BACKLOG).for_each(|_| clients[0].command(command::READ, 4096));
    fixture.turn();
    clients[1].command(command::READ, 4096);
    let [first, second] = &mut clients;
    fixture.run_until(&mut [second], REPLY_LEN + 4096);
    first.take();
    let answered = first.received.len() / (REPLY_LEN + 4096);
    assert!(answered < BACKLOG / 4, "{answered} replies to the first client came before");
    fixture.run_until(&mut [first], BACKLOG * (REPLY_LEN + 4096));
}

/// A client that waits for many bytes gets its part, though others take a few as soon as some come back.
#[test]
fn long_read_gets_its_part_of_bytes_in_flight_next_to_many_short_ones() {
    const AHEAD: usize = 100;
    const SHORT_REPLY: usize = REPLY_LEN + 4096;
    let (_shared, throttle) = in_flight(3 * (64 << 10));
    let mut fixture = Fixture::throttled(Limits::default(), Some(throttle));
    let [mut long, mut others @ ..] = [(); 3].map(|()| fixture.connected());
    long.command(command::READ, READ_LEN);
    let mut sent = [0; 2];
    while long.received.len() < READ_LEN as usize {
        for (client, sent) in others.iter_mut().zip(&mut sent) {
            let wanted = AHEAD + client.received.len() / SHORT_REPLY;
            (*sent..wanted).for_each(|_| client.command(command::READ, 4096));
            *sent = wanted;
        }
        fixture.turn();
        others.iter_mut().chain([&mut long]).for_each(Client::take);
    }
    let lens = others.map(|client| client.received.len());
    assert!(lens.iter().all(|len| *len < 2 * READ_LEN as usize), "{lens:?} bytes of others");
}

#[test]
fn turn_after_the_limit_is_not_waited_for() {
    let (shared, throttle) = in_flight(1);
    let mut fixture = Fixture::throttled(Limits::default(), Some(throttle));
    let mut client = fixture.connected();
    client.command(command::READ, READ_LEN);
    client.command(command::READ, 4096);
    while !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    assert!(matches!(fixture.worker.front().wait, Wait::Until(limit) if limit <= SCAN), "nothing else would wake it");
    // The limit changes between the look at it and the end of the turn: the next turn comes at once.
    shared.set(ExportLimits::default(), Instant::now());
    fixture.turn();
    assert!(!fixture.nbd().throttled.is_some);
    fixture.run_until(&mut [&mut client], REPLY_LEN + READ_LEN as usize + REPLY_LEN + 4096);
}

#[test]
fn worker_waits_no_longer_than_until_the_turn_of_a_client_at_a_rate() {
    let limits = ExportLimits { operations: Some(2000), ..ExportLimits::default() };
    let throttle = Throttle::new(&SharedLimits::new(limits, 1, Instant::now()));
    let mut fixture = Fixture::throttled(Limits::default(), Some(throttle));
    let mut client = fixture.connected();
    (0..200).for_each(|_| client.command(command::FLUSH, 0));
    let mut waits = 0;
    while client.received.len() < 200 * REPLY_LEN {
        fixture.turn();
        client.take();
        let (nbd, wait) = (fixture.nbd(), fixture.worker.front().wait);
        if let (Some(turn), Wait::Until(time)) = (nbd.throttled.until, wait) {
            waits += 1;
            let ends = [turn, nbd.next_scan, nbd.next_departure_scan];
            assert_eq!(time, ends.into_iter().min().unwrap().saturating_duration_since(nbd.now));
        }
    }
    assert!(waits > 0);
}

/// Clients that take no replies hold all that they may, and one that comes later is served a piece at a time.
#[test]
fn client_is_served_while_others_take_no_replies() {
    const COUNT: usize = 100;
    let (_shared, throttle) = in_flight(256 << 10);
    let mut fixture = Fixture::throttled(Limits::default(), Some(Arc::clone(&throttle)));
    let mut clients = [(); 4].map(|()| fixture.connected());
    let [others @ .., last] = &mut clients;
    others.iter_mut().for_each(|client| (0..3).for_each(|_| client.command(command::READ, READ_LEN)));
    while throttle.stats(Instant::now()).in_flight < 256 << 10 || !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    for _ in 0..COUNT {
        last.command(command::READ, 4096);
        fixture.run_until(&mut [last], REPLY_LEN + 4096);
    }
    last.command(command::READ, READ_LEN);
    fixture.run_until(&mut [last], REPLY_LEN + READ_LEN as usize);
    assert!(throttle.stats(Instant::now()).in_flight >= 256 << 10, "others have taken replies");
}

#[test]
fn client_that_leaves_while_it_waits_for_a_limit_is_counted_no_longer() {
    let (throttle, mut fixture) = Fixture::with_a_byte_a_second();
    let mut client = fixture.connected();
    // The debt of the first is paid in months, and its reply is longer than the socket.
    client.command(command::READ, READ_LEN);
    client.command(command::READ, 4096);
    while !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    let after = |secs| throttle.stats(Instant::now() + Duration::from_secs(secs)).throttled;
    assert!(after(1000) > Duration::from_secs(999), "it is not counted while it waits");
    drop(client);
    assert_eq!(fixture.clients_left(0), 0);
    fixture.turn();
    assert_eq!(after(1000), after(2000), "nothing waits");
}

#[test]
fn client_that_leaves_without_a_reply_to_send_is_noticed_while_it_waits_for_a_limit() {
    let (throttle, mut fixture) = Fixture::with_a_byte_a_second();
    let mut clients = [(); 2].map(|()| fixture.connected());
    clients[0].command(command::READ, 4096);
    fixture.run_until(&mut [&mut clients[0]], REPLY_LEN + 4096);
    clients.iter_mut().for_each(|client| client.command(command::READ, 4096));
    while !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    let [first, second] = clients;
    drop(first);
    assert_eq!(fixture.clients_left(1), 1, "it counts until its request is read");
    let after = |secs| throttle.stats(Instant::now() + Duration::from_secs(secs)).throttled;
    assert!(after(1000) > Duration::from_secs(999), "the other one waits still");
    drop(second);
    assert_eq!(fixture.clients_left(0), 0);
    fixture.turn();
    assert_eq!(after(1000), after(2000), "nothing waits");
}

#[test]
fn client_has_until_the_limit_to_take_its_replies_when_the_server_stops() {
    for (drain, left) in [(SHORT, 0), (Duration::from_secs(10), 1)] {
        let mut fixture = Fixture::with_limits(Limits { drain, ..Limits::default() });
        let mut client = fixture.connected();
        client.command(command::READ, READ_LEN);
        (0..100).for_each(|_| fixture.turn());
        fixture.mailbox.post(Told::Nbd(Message::Drain));
        let begin = Instant::now();
        while fixture.worker.turn().unwrap() == Flow::Continue && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fixture.nbd().connections.iter().flatten().count(), left, "{drain:?}");
    }
}

#[test]
fn clients_that_wait_for_memory_are_known_by_how_long_they_do() {
    let mut fixture = Fixture::new();
    let mut clients = [(); 3].map(|()| fixture.connected());
    fixture.mailbox.post(Told::EmptyPool);
    for client in [1, 2, 0] {
        clients[client].command(command::READ, READ_LEN);
        (0..300).for_each(|_| fixture.turn());
    }
    let longest = fixture.nbd().blocked_since(Instant::now());
    assert_eq!(longest.map(|found| found.map(|(_, index)| index)), [Some(1), Some(2)]);
}

#[test]
fn one_turn_begins_no_more_than_eight_clients_may() {
    let mut fixture = Fixture::new();
    let mut clients: Vec<Client> = (0..10).map(|_| fixture.connected()).collect();
    clients.iter_mut().for_each(|client| client.command(command::CACHE, DEVICE_LEN));
    (0..3).for_each(|_| fixture.turn());
    for _ in 0..5 {
        fixture.turn();
        let number = fixture.nbd().turn - 1;
        let spent = |connection: &Connection| connection.session.spent_in(number);
        let spent: Vec<u64> =
            fixture.nbd().connections.iter().flatten().map(spent).filter(|spent| *spent > 0).collect();
        assert_eq!(spent, [QUANTUM; 8]);
    }
}

#[test]
fn client_that_finds_no_memory_moves_in_front_of_those_that_begin() {
    let mut fixture = Fixture::new();
    let [mut busy, mut blocked] = [(); 2].map(|()| fixture.connected());
    fixture.mailbox.post(Told::EmptyPool);
    (0..100).for_each(|_| busy.command(command::CACHE, DEVICE_LEN));
    while fixture.nbd().turn_queue.is_empty() {
        fixture.turn();
    }
    blocked.command(command::READ, READ_LEN);
    let order_after = |fixture: &mut Fixture, turns: u32| {
        (0..turns).for_each(|_| fixture.turn());
        fixture.nbd().turn_queue.clone()
    };
    assert_eq!(order_after(&mut fixture, 2), [0, 1], "both begin something in each turn");
    // The client takes no reply, so its own buffers are used up.
    assert_eq!(order_after(&mut fixture, 500), [1, 0]);
}

#[test]
fn queues_have_room_for_all_connections_twice() {
    let mut fixture = Fixture::new();
    let clients: Vec<Client> = (0..40).map(|_| fixture.greeted()).collect();
    let nbd = fixture.nbd();
    for queue in [&nbd.input_queue, &nbd.send_queue, &nbd.turn_queue, &nbd.served] {
        assert!(queue.capacity() >= 2 * clients.len());
    }
}

/// At a rate, each would keep its turn.
#[test]
fn clients_that_leave_while_they_wait_for_a_rate_are_dropped_before_the_next_scan() {
    let (_, mut fixture) = Fixture::with_a_byte_a_second();
    let mut staying = fixture.connected();
    staying.command(command::READ, 4096);
    fixture.run_until(&mut [&mut staying], REPLY_LEN + 4096);
    let mut leaving = [(); 3].map(|()| fixture.connected());
    leaving.iter_mut().for_each(|client| client.command(command::READ, 4096));
    while !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    fixture.worker.front_mut().nbd.next_scan = Instant::now() + PATIENCE;
    drop(leaving);
    assert_eq!(fixture.clients_left(1), 1);
}

#[test]
fn refused_requests_are_a_part_of_each_turn() {
    const REFUSED: usize = 1000;
    let mut fixture = Fixture::new();
    let mut client = fixture.connected();
    client.received.clear();
    client.put(&command_bytes(99, 512).repeat(REFUSED));
    let (mut before, mut turns) = (0, 0);
    while before < REFUSED as u64 {
        fixture.turn();
        let refused = fixture.device.stats().snapshot().refused;
        assert!(refused - before <= 64, "{} in a turn", refused - before);
        turns += u64::from(refused > before);
        before = refused;
        client.take();
    }
    assert!(before == REFUSED as u64 && turns >= REFUSED as u64 / 64, "{before} in {turns} turns");
}

#[test]
fn limit_keeps_nothing_waiting_when_the_last_client_that_waits_for_it_has_left() {
    let (_, mut fixture) = Fixture::with_a_byte_a_second();
    let mut client = fixture.connected();
    client.command(command::READ, 4096);
    fixture.run_until(&mut [&mut client], REPLY_LEN + 4096);
    client.command(command::READ, 4096);
    while !fixture.nbd().throttled.is_some {
        fixture.turn();
    }
    drop(client);
    while fixture.nbd().connections.iter().any(Option::is_some) {
        fixture.turn();
    }
    // In the turn that has dropped it.
    assert!(!fixture.nbd().throttled.is_some && fixture.worker.front().wait == Wait::Forever);
}

/// Nothing but the first reply fails.
#[test]
fn long_requests_of_a_client_that_leaves_go_on_without_a_limit() {
    const COUNT: u64 = 4;
    let mut fixture = Fixture::new();
    let mut client = fixture.connected();
    // One piece a turn, of each in turn.
    (0..COUNT).for_each(|_| client.command(command::CACHE, DEVICE_LEN));
    drop(client);
    while fixture.nbd().connections.iter().any(Option::is_some) {
        fixture.worker.front_mut().nbd.next_departure_scan = Instant::now();
        fixture.turn();
    }
    let pieces = COUNT * DEVICE_LEN / QUANTUM;
    let begun = fixture.device.stats().snapshot().prefetches;
    assert!(begun > pieces / 2, "{begun} of {pieces}");
}
