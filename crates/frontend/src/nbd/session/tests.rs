//! Every transition of a session's input, without a socket and without a ring: the tests play both.

use super::*;
use crate::nbd::active::After;
use crate::nbd::handshake::ReplyStyle;
use crate::nbd::protocol::{Export, INIT_MAGIC, OPTION_MAGIC, REQUEST_MAGIC, command, option};
use crate::nbd::throttle::{Allowance, ExportLimits, SharedLimits, Throttle};
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::Errno;
use inlock_engine::buffer::BufferClass;
use inlock_engine::request::Operation;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::worker::{Finished, Request};
use inlock_engine::{Access, Device, Mapping, RequestError};

mod failures;
mod held;
mod resized;
mod waiting;

const DEVICE_LEN: u64 = 4 << 20;
/// Data units in a buffer of the fixture's pool: a write of more is carried in pieces.
const UNITS: u64 = 3;
const UNIT: u64 = 4096;
const PIECE: u64 = UNITS * UNIT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Handshake,
    Header,
    AwaitBuffer,
    Payload,
    PayloadInRing,
    Skip,
    Closed,
}

/// A session, and everything that a worker would lend it.
struct Fixture {
    session: Session,
    active: ActiveTable,
    pool: BufferPool,
    /// Buffers that other sessions hold.
    elsewhere: Vec<Buffer>,
    device: Device,
    mapping: Arc<Mapping>,
    requests: VecDeque<Request>,
    export: Export,
    handshakes: Arc<AtomicUsize>,
    turn: u64,
    is_draining: bool,
    throttle: Option<Arc<Throttle>>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_buffers(PIECE as usize)
    }

    /// A fixture whose pool has buffers of `capacity` bytes.
    fn with_buffers(capacity: usize) -> Self {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
        let store = Arc::new(MemoryStore::new(vec![0; DEVICE_LEN as usize]));
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        let device = Device::new(&[segment], &key, store, Access::default()).unwrap();
        let pool = BufferPool::new(&[BufferClass { capacity, count: 8 }]);
        let handshakes = Arc::default();
        let session = Session::new(0, Instant::now(), CountGuard::new(&handshakes), &pool);
        let export = Export {
            name: "export".into(),
            description: String::new(),
            size: DEVICE_LEN,
            flags: 1,
            preferred_block: 4096,
        };
        Self {
            session,
            active: ActiveTable::new(),
            pool,
            elsewhere: Vec::new(),
            mapping: device.mapping(),
            device,
            requests: VecDeque::new(),
            export,
            handshakes,
            turn: 1,
            is_draining: false,
            throttle: None,
        }
    }

    /// A session that has negotiated simple replies.
    fn in_transmission() -> Self {
        Self::new().negotiate()
    }

    fn negotiate(self) -> Self {
        let mut fixture = self;
        fixture.send();
        let options = [3u32.to_be_bytes().to_vec(), option_bytes(option::GO, &[0; 6])].concat();
        assert!(matches!(fixture.arrive(&options), Next::Receive(_)));
        fixture.send();
        assert_eq!(fixture.state(), State::Header);
        fixture.put(&[]);
        fixture
    }

    fn state(&self) -> State {
        match self.session.input {
            Input::Handshake(_) => State::Handshake,
            Input::Header => State::Header,
            Input::AwaitBuffer(_) => State::AwaitBuffer,
            Input::Payload { .. } => State::Payload,
            Input::PayloadInRing { .. } => State::PayloadInRing,
            Input::Skip { .. } => State::Skip,
            Input::Closed(_) => State::Closed,
        }
    }

    fn with_turn<T>(&mut self, f: impl FnOnce(&mut Session, &mut ActiveTable, &mut Turn<'_>) -> T) -> T {
        let mut turn = Turn {
            pool: &mut self.pool,
            device: &self.device,
            mapping: &self.mapping,
            requests: &mut self.requests,
            export: &self.export,
            number: self.turn,
            now: Instant::now(),
            is_draining: self.is_draining,
            must_wait: false,
        };
        f(&mut self.session, &mut self.active, &mut turn)
    }

    fn step(&mut self) -> Next {
        self.with_turn(|session, active, turn| session.step(active, turn))
    }

    fn process(&mut self) -> Next {
        self.with_turn(|session, active, turn| session.process_input(active, turn))
    }

    /// Completes a receive with `bytes`.
    fn complete(&mut self, receive: Receive, bytes: &[u8]) {
        let Receive { mut buffer, range, target } = receive;
        assert!(bytes.len() <= range.len());
        buffer.data_mut()[range.start..range.start + bytes.len()].copy_from_slice(bytes);
        self.session.on_received(buffer, bytes.len(), target, &mut self.active, &mut self.pool);
    }

    /// Has `bytes` arrive in the inbox, in which nothing is unread. A receive that is in the ring ends with them.
    fn put(&mut self, bytes: &[u8]) {
        assert!(self.session.inbox.unread().is_empty());
        let mut buffer = Buffer::new(INBOX_LEN);
        buffer.data_mut()[..bytes.len()].copy_from_slice(bytes);
        self.session.inbox = Inbox::Here { buffer, unread: 0..bytes.len() };
    }

    /// Has `bytes` arrive, and reads them as far as that goes.
    fn arrive(&mut self, bytes: &[u8]) -> Next {
        self.put(bytes);
        self.process()
    }

    /// Sends what is queued.
    fn send(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(parts) = self.session.output.next_send(Instant::now()) {
            parts.iter().for_each(|(buffer, range)| sent.extend_from_slice(&buffer.frame()[range.clone()]));
            self.session.on_sent(parts, &mut self.pool);
        }
        sent
    }

    /// Ends the request that the worker was given first.
    fn finish(&mut self, result: Result<(), RequestError>) -> After {
        let Request { id, data, spare, .. } = self.requests.pop_front().expect("the worker has a request");
        self.with_turn(|session, active, turn| {
            let after = active.on_finished(Finished { id, result, data, spare }, &mut session.owner(), turn);
            if matches!(after, After::NextPiece | After::Data { is_last: false, .. }) {
                session.wait(id as u32);
            }
            after
        })
    }

    fn begin_waiting(&mut self) -> Next {
        self.turn += 1;
        self.active.begin_turn();
        self.with_turn(|session, active, turn| session.begin_waiting(active, turn))
    }

    /// Takes buffers from the pool until `left` are left.
    fn leave_in_pool(&mut self, left: usize) {
        while self.pool.len() - self.pool.outstanding() > left {
            self.elsewhere.extend(self.pool.take(1, 1));
        }
    }

    /// Checks that the session holds nothing: no buffer, no active request.
    fn assert_holds_nothing(&self) {
        assert_eq!(self.pool.outstanding(), self.elsewhere.len(), "buffers of the pool");
        assert!(self.session.memory.is_empty());
        assert!(!self.session.has_waiting());
        assert_eq!(self.session.output.unanswered, 0);
    }
}

fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [OPTION_MAGIC.to_be_bytes().as_slice(), &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// The header of a request with cookie 7.
fn header(kind: u16, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    bytes
}

/// A simple reply without data to a request of [`header`].
fn reply(error: u8) -> Vec<u8> {
    [0x67, 0x44, 0x66, 0x98, 0, 0, 0, error, 0, 0, 0, 0, 0, 0, 0, 7].to_vec()
}

fn payload(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn with_payload(kind: u16, offset: u64, len: u64) -> Vec<u8> {
    [header(kind, offset, len), payload(len)].concat()
}

#[test]
fn handshake_without_whole_option_receives_more() {
    let mut fixture = Fixture::new();
    let greeting = fixture.send();
    assert_eq!((greeting.len(), &greeting[..8]), (18, INIT_MAGIC.to_be_bytes().as_slice()));
    assert!(matches!(fixture.step(), Next::Receive(Receive { target: Target::Inbox, .. })));
    assert_eq!(fixture.state(), State::Handshake);
    assert_eq!(fixture.handshakes.load(Ordering::Relaxed), 1);
}

#[test]
fn handshake_with_unsent_reply_reads_no_option() {
    let mut fixture = Fixture::new();
    fixture.put(&3u32.to_be_bytes());
    assert!(matches!(fixture.step(), Next::Wait), "the greeting is queued");
    let parts = fixture.session.output.next_send(Instant::now()).unwrap();
    assert!(matches!(fixture.step(), Next::Wait), "and is being sent");
    fixture.session.on_sent(parts, &mut fixture.pool);
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.session.inbox.unread(), []);
}

#[test]
fn handshake_that_is_accepted_reads_headers() {
    let fixture = Fixture::in_transmission();
    assert_eq!(fixture.session.negotiated.style, ReplyStyle::Simple);
    assert_eq!(fixture.session.handshake_since(), None);
    assert_eq!(fixture.handshakes.load(Ordering::Relaxed), 0);
}

#[test]
fn handshake_that_is_aborted_closes_after_its_reply() {
    let mut fixture = Fixture::new();
    fixture.send();
    fixture.arrive(&[3u32.to_be_bytes().to_vec(), option_bytes(option::ABORT, &[])].concat());
    assert_eq!(fixture.state(), State::Closed);
    assert!(!fixture.session.is_finished(), "the reply is not sent");
    assert!(fixture.session.handshake_since().is_some(), "the limit of the handshake still holds");
    assert_eq!(fixture.send().len(), 20);
    assert!(fixture.session.is_finished());
}

#[test]
fn handshake_violation_disconnects() {
    let mut fixture = Fixture::new();
    fixture.send();
    assert!(matches!(fixture.arrive(&u32::MAX.to_be_bytes()), Next::Disconnect));
}

#[test]
fn header_without_payload_begins_request_and_reads_next() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&[header(command::WRITE_ZEROES, 512, 4096), header(command::FLUSH, 0, 0)].concat());
    for operation in [Operation::WriteZeroes { durable: false }, Operation::Flush] {
        assert!(matches!(fixture.step(), Next::Again));
        assert_eq!(fixture.state(), State::Header);
        assert_eq!(fixture.requests.back().map(|request| request.operation), Some(operation));
    }
    assert_eq!(fixture.session.output.unanswered, 2);
    fixture.finish(Ok(()));
    assert_eq!(fixture.send(), reply(0));
}

#[test]
fn header_in_part_is_completed_by_next_receive() {
    let mut fixture = Fixture::in_transmission();
    let read = header(command::READ, 4096, 512);
    // What is unread moves to the front of the inbox.
    fixture.put(&[header(command::WRITE_ZEROES, 0, 1).as_slice(), &read[..20]].concat());
    assert!(matches!(fixture.step(), Next::Again));
    let Next::Receive(receive) = fixture.step() else { panic!("the rest is not here") };
    assert_eq!((receive.range.clone(), receive.target), (20..INBOX_LEN, Target::Inbox));
    assert!(matches!(fixture.step(), Next::Wait), "the inbox is in the ring");
    fixture.complete(receive, &read[20..]);
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Header, 2));
    assert_eq!((fixture.requests[1].operation, fixture.requests[1].offset), (Operation::Read, 4096));
}

#[test]
fn header_of_disconnect_closes_input() {
    let mut fixture = Fixture::in_transmission();
    let zeroes = header(command::WRITE_ZEROES, 0, 512);
    fixture.put(&[zeroes.as_slice(), &header(command::DISC, 0, 0), &zeroes].concat());
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Closed, 1));
    assert!(!fixture.session.is_finished());
    fixture.finish(Ok(()));
    fixture.send();
    assert!(fixture.session.is_finished(), "what was asked before is answered");
}

#[test]
fn header_with_wrong_magic_disconnects() {
    let mut fixture = Fixture::in_transmission();
    assert!(matches!(fixture.arrive(&[0; 28]), Next::Disconnect));
}

#[test]
fn header_of_write_reads_payload_into_buffer() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&with_payload(command::WRITE, 100, 1000));
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.state(), State::Payload);
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.state(), State::Header);
    let request = fixture.requests.back().unwrap();
    assert_eq!(request.operation, Operation::Write { durable: false });
    let (mapped, buffer) = request.data.as_ref().unwrap();
    assert_eq!((mapped.offset, &buffer.data()[mapped.requested()]), (100, payload(1000).as_slice()));
    assert!(request.spare.is_some(), "room for the edges");
    fixture.finish(Ok(()));
    assert_eq!(fixture.send(), reply(0));
    fixture.assert_holds_nothing();
}

#[test]
fn header_of_write_without_memory_awaits_buffer() {
    let mut fixture = Fixture::in_transmission();
    fixture.leave_in_pool(1);
    fixture.put(&[with_payload(command::WRITE, 0, UNIT), with_payload(command::WRITE, UNIT, UNIT)].concat());
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::AwaitBuffer, 1));
    assert!(fixture.session.has_waiting());
    assert!(fixture.session.blocked_since(Instant::now()).is_some());
    fixture.begin_waiting();
    assert_eq!(fixture.state(), State::AwaitBuffer, "there is still none");
    fixture.finish(Ok(()));
    fixture.begin_waiting();
    assert_eq!(fixture.state(), State::Payload);
    assert!(matches!(fixture.process(), Next::Receive(Receive { target: Target::Inbox, .. })));
    let (mapped, buffer) = fixture.requests[0].data.as_ref().unwrap();
    assert_eq!((mapped.offset, &buffer.data()[mapped.requested()]), (UNIT, payload(UNIT).as_slice()));
}

#[test]
fn header_of_refused_write_skips_payload_before_reply() {
    let mut fixture = Fixture::in_transmission();
    let write = with_payload(command::WRITE, DEVICE_LEN, 5000);
    fixture.put(&write[..3000]);
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.state(), State::Skip);
    let Next::Receive(receive) = fixture.step() else { panic!("the rest of the payload is not here") };
    assert_eq!(fixture.state(), State::Skip);
    assert!(!fixture.session.output.has_queued());
    fixture.complete(receive, &[&write[3000..], &header(command::FLUSH, 0, 0)].concat());
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!((fixture.state(), fixture.send()), (State::Header, reply(28)));
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.requests.len(), 1, "the stream is in step");
}

#[test]
fn header_after_quantum_waits_for_next_turn() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&[header(command::FLUSH, 0, 0), header(command::FLUSH, 0, 0)].concat());
    assert!(matches!(fixture.process(), Next::Queue), "a flush is a whole quantum");
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Header, 1));
    fixture.turn += 1;
    assert!(matches!(fixture.process(), Next::Queue));
    assert_eq!(fixture.requests.len(), 2);
    fixture.turn += 1;
    let Next::Receive(_in_ring) = fixture.process() else { panic!("there is no more input") };
    fixture.session.spent = (fixture.turn, QUANTUM);
    assert!(matches!(fixture.process(), Next::Wait), "without input no turn is needed");
}

#[test]
fn header_beyond_limits_of_session_waits() {
    let mut fixture = Fixture::in_transmission();
    let longest = Output::MAX_UNANSWERED;
    for turn in 0..longest as u64 {
        fixture.turn = turn + 2;
        fixture.put(&header(command::FLUSH, 0, 0));
        assert!(matches!(fixture.step(), Next::Again));
    }
    fixture.turn += 1;
    fixture.put(&header(command::FLUSH, 0, 0));
    assert!(matches!(fixture.step(), Next::Wait));
    fixture.finish(Ok(()));
    assert!(matches!(fixture.step(), Next::Again));
}

#[test]
fn payload_with_more_pieces_begins_each() {
    let mut fixture = Fixture::in_transmission();
    let len = 2 * PIECE + 5;
    fixture.put(&with_payload(command::WRITE, 0, len));
    for (state, requests) in [(State::Payload, 0), (State::Payload, 1), (State::Payload, 2), (State::Header, 3)] {
        assert!(matches!(fixture.step(), Next::Again));
        assert_eq!((fixture.state(), fixture.requests.len()), (state, requests));
    }
    let written: Vec<u8> = fixture
        .requests
        .iter()
        .flat_map(|request| {
            let (mapped, buffer) = request.data.as_ref().unwrap();
            buffer.data()[mapped.requested()].to_vec()
        })
        .collect();
    assert_eq!(written, payload(len));
    (0..2).for_each(|_| assert_eq!(fixture.finish(Ok(())), After::Nothing));
    assert!(!fixture.session.output.has_queued(), "the last piece is in flight");
    fixture.finish(Ok(()));
    assert_eq!(fixture.send(), reply(0));
    fixture.assert_holds_nothing();
}

#[test]
fn payload_with_more_pieces_without_memory_awaits_buffer() {
    let mut fixture = Fixture::in_transmission();
    fixture.leave_in_pool(1);
    fixture.put(&with_payload(command::WRITE, 0, 2 * PIECE));
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::AwaitBuffer, 1));
    fixture.finish(Ok(()));
    fixture.begin_waiting();
    assert_eq!(fixture.state(), State::Payload);
    assert!(matches!(fixture.process(), Next::Receive(Receive { target: Target::Inbox, .. })));
    fixture.finish(Ok(()));
    assert_eq!(fixture.send(), reply(0));
    fixture.assert_holds_nothing();
}

#[test]
fn payload_after_failed_piece_is_read_and_not_written() {
    let mut fixture = Fixture::in_transmission();
    let write = with_payload(command::WRITE, 0, 3 * PIECE);
    let mut pieces = write[28..].chunks(PIECE as usize);
    fixture.put(&write[..28 + PIECE as usize]);
    pieces.next();
    let Next::Receive(receive) = fixture.process() else { panic!("the second piece is not here") };
    fixture.finish(Err(RequestError::Io(Errno::NOSPC)));
    assert!(!fixture.session.output.has_queued(), "the payload is not over");
    fixture.complete(receive, pieces.next().unwrap());
    let Next::Receive(receive) = fixture.process() else { panic!("the third piece is not here") };
    assert!(!fixture.session.output.has_queued(), "nor after the second piece");
    fixture.complete(receive, pieces.next().unwrap());
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Header, 0));
    assert_eq!(fixture.send(), reply(28));
    fixture.assert_holds_nothing();
}

#[test]
fn payload_that_is_missing_is_received_into_buffer() {
    let mut fixture = Fixture::in_transmission();
    let write = with_payload(command::WRITE, 4000, 2000);
    fixture.put(&write[..28 + 500]);
    assert!(matches!(fixture.step(), Next::Again));
    let Next::Receive(receive) = fixture.step() else { panic!("bytes are missing") };
    assert_eq!((receive.range.clone(), receive.target), (4500..6000, Target::Payload));
    assert_eq!(fixture.state(), State::PayloadInRing);
    assert!(matches!(fixture.step(), Next::Wait));
    assert!(fixture.session.owes_since().is_some());
    assert!(!fixture.session.is_idle());
    fixture.complete(receive, &write[28 + 500..]);
    assert_eq!(fixture.state(), State::Payload);
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.state(), State::Header);
    let (mapped, buffer) = fixture.requests[0].data.as_ref().unwrap();
    assert_eq!(buffer.data()[mapped.requested()], payload(2000));
    assert!(fixture.session.owes_since().is_none());
}

#[test]
fn payload_that_returns_short_abandons_write() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&header(command::WRITE, 1, 2000));
    let Next::Receive(receive) = fixture.process() else { panic!("bytes are missing") };
    fixture.complete(receive, &[1; 1999]);
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Closed, 0));
    fixture.assert_holds_nothing();
    assert!(fixture.session.is_finished());
}

#[test]
fn stream_that_ends_closes_input() {
    for state in [State::Header, State::Skip] {
        let (mut fixture, _) = bring_to(state);
        let Next::Receive(receive) = fixture.process() else { panic!("there is no more input") };
        fixture.complete(receive, &[]);
        assert_eq!(fixture.state(), State::Closed);
        assert!(fixture.session.is_finished() && fixture.session.is_idle());
    }
}

#[test]
fn client_owes_only_while_session_holds_memory() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&[header(command::READ, 0, 100), header(command::FLUSH, 0, 0)].concat());
    assert!(matches!(fixture.process(), Next::Queue));
    let flush = fixture.requests.pop_back();
    fixture.finish(Ok(()));
    fixture.requests.extend(flush);
    let data = fixture.session.output.next_send(Instant::now()).unwrap();
    assert!(fixture.session.owes_since().is_some(), "the data of a read");
    fixture.session.on_sent(data, &mut fixture.pool);
    fixture.finish(Ok(()));
    let small_reply = fixture.session.output.next_send(Instant::now());
    assert!(small_reply.is_some() && fixture.session.owes_since().is_none());
}

/// Brings a session into a state; a receive that is in the ring then.
fn bring_to(state: State) -> (Fixture, Option<Receive>) {
    if state == State::Handshake {
        return (Fixture::new(), None);
    }
    let mut fixture = Fixture::in_transmission();
    let mut receive = None;
    match state {
        State::Payload => {
            fixture.put(&header(command::WRITE, 1, 2000));
            assert!(matches!(fixture.step(), Next::Again));
        }
        State::PayloadInRing => {
            fixture.put(&header(command::WRITE, 1, 2000));
            let Next::Receive(started) = fixture.process() else { panic!("bytes are missing") };
            receive = Some(started);
        }
        State::AwaitBuffer => {
            fixture.leave_in_pool(1);
            fixture.put(&with_payload(command::WRITE, 0, 2 * PIECE));
            assert!(matches!(fixture.process(), Next::Wait));
        }
        State::Skip => {
            fixture.put(&header(command::WRITE, DEVICE_LEN, 5000));
            assert!(matches!(fixture.step(), Next::Again));
        }
        State::Closed => {
            fixture.put(&header(command::DISC, 0, 0));
            assert!(matches!(fixture.process(), Next::Wait));
        }
        State::Handshake | State::Header => {}
    }
    assert_eq!(fixture.state(), state);
    (fixture, receive)
}

const STATES: [State; 7] = [
    State::Handshake,
    State::Header,
    State::AwaitBuffer,
    State::Payload,
    State::PayloadInRing,
    State::Skip,
    State::Closed,
];

#[test]
fn input_in_any_state_closes_and_returns_memory() {
    for state in STATES {
        let (mut fixture, receive) = bring_to(state);
        fixture.session.close_input(&mut fixture.active, &mut fixture.pool);
        if let Some(receive) = receive {
            assert_eq!(fixture.state(), State::PayloadInRing, "its buffer returns first");
            fixture.complete(receive, &[]);
        }
        assert_eq!(fixture.state(), State::Closed, "{state:?}");
        assert!(!fixture.session.has_waiting());
        while !fixture.requests.is_empty() {
            fixture.finish(Ok(()));
            assert_eq!(fixture.send(), reply(5), "{state:?}: a write that was written in part");
        }
        fixture.assert_holds_nothing();
        fixture.send();
        assert!(fixture.session.is_finished() && fixture.session.is_idle(), "{state:?}");
    }
}

#[test]
fn session_in_any_state_releases_everything() {
    for state in STATES {
        let (mut fixture, receive) = bring_to(state);
        fixture.session.release(&mut fixture.active, &mut fixture.pool);
        assert_eq!(fixture.session.is_idle(), receive.is_none() && fixture.requests.is_empty(), "{state:?}");
        if let Some(Receive { buffer, target, .. }) = receive {
            fixture.session.on_received_dropped(buffer, target, &mut fixture.pool);
        }
        while let Some(Request { id, data, spare, .. }) = fixture.requests.pop_front() {
            let done = Finished { id, result: Ok(()), data, spare };
            fixture.active.on_finished_dropped(done, &mut fixture.session.owner(), &mut fixture.pool);
        }
        fixture.assert_holds_nothing();
        assert!(fixture.session.is_idle(), "{state:?}");
        assert_eq!(fixture.handshakes.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn header_while_server_drains_is_not_read() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&header(command::FLUSH, 0, 0));
    fixture.is_draining = true;
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Closed, 0));
}

#[test]
fn piece_that_arrives_while_server_drains_is_the_last() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&header(command::WRITE, 0, 2 * PIECE));
    let Next::Receive(receive) = fixture.process() else { panic!("bytes are missing") };
    fixture.is_draining = true;
    fixture.session.close_input(&mut fixture.active, &mut fixture.pool);
    fixture.complete(receive, &payload(PIECE));
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!((fixture.state(), fixture.requests.len()), (State::Closed, 1));
    fixture.finish(Ok(()));
    assert_eq!(fixture.send(), reply(5), "the rest was not written");
    fixture.assert_holds_nothing();
    assert!(fixture.session.is_finished());
}

#[test]
fn reply_with_much_data_leaves_at_once() {
    let mut fixture = Fixture::with_buffers(256 << 10).negotiate();
    for (len, is_long) in [((128 << 10) - 1, false), (128 << 10, true)] {
        fixture.put(&header(command::READ, 0, len));
        assert!(matches!(fixture.step(), Next::Again));
        assert_eq!(fixture.finish(Ok(())), After::Data { is_last: true, is_long });
        assert_eq!(fixture.send().len() as u64, 16 + len);
    }
    fixture.assert_holds_nothing();
}

#[test]
fn simple_read_that_fails_after_first_data_disconnects() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&[header(command::READ, 0, 2 * PIECE), header(command::READ, 0, 1)].concat());
    assert!(matches!(fixture.process(), Next::Receive(_)));
    assert!(fixture.session.has_waiting(), "a read behind an unfinished simple reply waits");
    assert_eq!(fixture.finish(Ok(())), After::Data { is_last: false, is_long: false });
    fixture.begin_waiting();
    assert_eq!(fixture.requests.len(), 1);
    assert_eq!(fixture.requests[0].offset, PIECE);
    assert_eq!(fixture.finish(Err(RequestError::Io(Errno::IO))), After::Disconnect);
    fixture.session.release(&mut fixture.active, &mut fixture.pool);
    fixture.assert_holds_nothing();
}

#[test]
fn long_write_zeroes_waits_for_turn_between_pieces() {
    let mut fixture = Fixture::in_transmission();
    fixture.put(&header(command::WRITE_ZEROES, 0, 2 * PIECE));
    assert!(matches!(fixture.step(), Next::Again));
    assert_eq!(fixture.finish(Ok(())), After::NextPiece);
    assert!(fixture.requests.is_empty() && fixture.session.has_waiting());
    fixture.begin_waiting();
    assert_eq!(fixture.finish(Ok(())), After::Nothing);
    assert_eq!(fixture.send(), reply(0));
    fixture.assert_holds_nothing();
}
