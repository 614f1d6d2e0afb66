//! Sessions of an export with limits.

use super::*;
use crate::nbd::memory::Supply;
use crate::nbd::protocol::command_flag;
use crate::nbd::throttle::Piece;
use std::num::NonZeroU64;
use std::time::Duration;

fn limits(in_flight: u64) -> ExportLimits {
    ExportLimits { in_flight: Some(in_flight), ..ExportLimits::default() }
}

impl Fixture {
    /// Has the session be a client of an export with limits.
    fn limit(&mut self, shared: &Arc<SharedLimits>) {
        let throttle = Throttle::new(shared);
        self.session.allowance = Some(Allowance::new(&throttle, Instant::now()));
        self.throttle = Some(throttle);
    }

    /// Another client of the export.
    fn other(&self) -> Allowance {
        Allowance::new(self.throttle.as_ref().unwrap(), Instant::now())
    }
}

/// A session, and the limits of its export.
fn fixture(in_flight: u64) -> (Fixture, Arc<SharedLimits>) {
    let mut fixture = Fixture::in_transmission();
    let shared = SharedLimits::new(limits(in_flight), 1, Instant::now());
    fixture.limit(&shared);
    (fixture, shared)
}

fn in_flight(fixture: &Fixture) -> u64 {
    fixture.throttle.as_ref().unwrap().stats(Instant::now()).in_flight
}

fn reads(count: usize) -> Vec<u8> {
    header(command::READ, 0, UNIT).repeat(count)
}

#[test]
fn session_at_the_limit_reads_no_header() {
    // Half of the limit is for other clients.
    let (mut fixture, _) = fixture(4 * UNIT);
    let all = reads(5);
    let header_len = all.len() / 5;
    assert!(matches!(fixture.arrive(&all), Next::Throttled));
    let unread = |fixture: &Fixture| fixture.session.inbox.unread().len() / header_len;
    assert_eq!((fixture.requests.len(), unread(&fixture), in_flight(&fixture)), (2, 3, 2 * UNIT));
    assert_eq!(fixture.pool.outstanding(), 2, "more buffers than the limit has room for");
    // A reply that has not left holds its buffer.
    fixture.finish(Ok(()));
    assert!(matches!(fixture.process(), Next::Throttled));
    assert_eq!((fixture.requests.len(), fixture.pool.outstanding()), (1, 2));
    fixture.send();
    assert!(matches!(fixture.process(), Next::Throttled));
    assert_eq!((fixture.requests.len(), unread(&fixture), fixture.pool.outstanding()), (2, 2, 2));
    // One that fails has no data to send.
    fixture.finish(Err(RequestError::Io(Errno::IO)));
    assert!(matches!(fixture.process(), Next::Throttled));
    assert_eq!((fixture.requests.len(), unread(&fixture)), (2, 1));
    for _ in 0..3 {
        while !fixture.requests.is_empty() {
            fixture.finish(Ok(()));
        }
        fixture.send();
        fixture.process();
    }
    assert_eq!((in_flight(&fixture), fixture.requests.len()), (0, 0));
}

#[test]
fn request_longer_than_the_limit_is_carried_out_alone() {
    for kind in [command::READ, command::WRITE, command::WRITE_ZEROES] {
        let (mut fixture, _) = fixture(1);
        let first = match kind {
            command::WRITE => with_payload(kind, 0, 2 * PIECE),
            _ => header(kind, 0, 2 * PIECE),
        };
        let next = fixture.arrive(&[first, reads(1)].concat());
        assert!(fixture.session.throttled.is_some(), "{kind}: {next:?}");
        let mut replies = Vec::new();
        for _ in 0..4 {
            while !fixture.requests.is_empty() {
                fixture.finish(Ok(()));
            }
            replies.extend(fixture.send());
            fixture.begin_waiting();
            fixture.process();
        }
        let data = if kind == command::READ { 2 * PIECE } else { 0 };
        assert_eq!(replies.len() as u64, 2 * 16 + data + UNIT, "{kind}: a request has no reply");
        assert_eq!(in_flight(&fixture), 0);
    }
}

#[test]
fn rest_of_a_simple_reply_waits_until_what_came_before_has_left() {
    let (mut fixture, _) = fixture(1);
    fixture.arrive(&header(command::READ, 0, 2 * PIECE));
    assert_eq!(fixture.requests.len(), 1);
    fixture.finish(Ok(()));
    fixture.begin_waiting();
    assert!(fixture.requests.is_empty() && in_flight(&fixture) > 0, "the client has not taken what is there");
    fixture.send();
    fixture.begin_waiting();
    assert_eq!(fixture.requests.len(), 1);
}

#[test]
fn session_that_is_dropped_holds_no_bytes_in_flight() {
    let (mut fixture, _) = fixture(100 * UNIT);
    let write = header(command::WRITE, 0, UNIT);
    assert!(matches!(fixture.arrive(&[reads(2), write].concat()), Next::Receive(_)));
    fixture.finish(Ok(()));
    assert_eq!(in_flight(&fixture), 3 * UNIT);
    let Fixture { session, active, pool, .. } = &mut fixture;
    session.release(active, pool);
    // A read is with the worker.
    assert_eq!(in_flight(&fixture), UNIT);
    let Request { id, data, spare, .. } = fixture.requests.pop_front().unwrap();
    let Fixture { session, active, pool, .. } = &mut fixture;
    active.on_finished_dropped(Finished { id, result: Ok(()), data, spare }, &mut session.owner(), pool);
    assert_eq!(in_flight(&fixture), 0);
}

#[test]
fn new_limit_holds_for_requests_that_wait() {
    let (mut fixture, shared) = fixture(2 * UNIT);
    assert!(matches!(fixture.arrive(&reads(3)), Next::Throttled));
    assert_eq!(fixture.requests.len(), 1);
    shared.set(limits(4 * UNIT), Instant::now());
    assert!(matches!(fixture.process(), Next::Throttled));
    assert_eq!(fixture.requests.len(), 2);
    shared.set(ExportLimits::default(), Instant::now());
    assert!(matches!(fixture.process(), Next::Receive(_)));
    assert_eq!(fixture.requests.len(), 3);
}

#[test]
fn session_waits_for_others_only_with_a_request() {
    let (mut fixture, _) = fixture(8 * UNIT);
    let now = Instant::now();
    assert!(matches!(fixture.arrive(&reads(1)), Next::Receive(_)), "a session that has nothing to read is held");
    let of_other = fixture.other().begin_piece(7 * UNIT);
    fixture.put(&[]);
    assert_eq!(fixture.session.blocked_since(now), None);
    assert!(matches!(fixture.arrive(&reads(1)), Next::Throttled));
    assert_eq!(fixture.session.throttled, Some(Blocked::Others));
    assert!(fixture.session.blocked_since(now).is_some());
    drop(of_other);
    assert!(matches!(fixture.process(), Next::Receive(_)));
    assert_eq!(fixture.session.blocked_since(now), None);
}

#[test]
fn session_that_may_hold_no_more_waits_for_its_own_client() {
    let (mut fixture, _) = fixture(100 * PIECE);
    let _of_other = fixture.other().begin_piece(100 * PIECE);
    let next = fixture.arrive(&[header(command::READ, 0, 100 * PIECE), reads(1)].concat());
    assert!(matches!(next, Next::Throttled), "{next:?}");
    let kept_waiting =
        |fixture: &Fixture| fixture.session.allowance.as_ref().unwrap().kept_waiting_since(Instant::now());
    assert!(kept_waiting(&fixture).is_some());
    let Fixture { session, pool, .. } = &mut fixture;
    let mut held = Vec::new();
    while !session.memory.is_full() {
        let supply = &mut Supply { pool, may_use_reserve: true, is_behind: false, now: Instant::now() };
        held.extend(session.memory.take(supply, PIECE as usize, PIECE as usize));
    }
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!(kept_waiting(&fixture), None, "others would be blamed for it");
}

/// Returns how many bytes an export with a rate is charged for a command, all pieces of which end with `result`.
fn charged(fixture: &mut Fixture, command: &[u8], mut result: impl FnMut(&Request) -> Result<(), RequestError>) -> u64 {
    const CREDIT: i64 = 1 << 40;
    let limits = ExportLimits { bytes: Some(1), ..ExportLimits::default() };
    fixture.limit(&SharedLimits::new(limits, 1, Instant::now()));
    let allowance = |fixture: &mut Fixture| fixture.session.allowance.take().unwrap();
    fixture.session.allowance = Some(allowance(fixture).with_credit(CREDIT));
    // With a part of the next header nothing is given back.
    fixture.arrive(&[command, &[0x25]].concat());
    while !fixture.requests.is_empty() || fixture.session.has_waiting() {
        if let Some(request) = fixture.requests.front() {
            let result = result(request);
            if fixture.finish(result) == After::NextPiece {
                fixture.begin_waiting();
            }
        }
    }
    fixture.send();
    (CREDIT - allowance(fixture).credit()) as u64
}

#[test]
fn zeroes_are_charged_as_the_bytes_that_are_written() {
    let zeroes = |flags: u16, offset, len| {
        let mut command = header(command::WRITE_ZEROES, offset, len);
        command[4..6].copy_from_slice(&flags.to_be_bytes());
        command
    };
    let done = |_: &Request| Ok(());
    assert_eq!(charged(&mut Fixture::in_transmission(), &zeroes(0, 0, 8 * PIECE), done), 8 * PIECE);

    // A device with holes that read as zeroes.
    let with_holes = || {
        let hole = NonZeroU64::new(PIECE).unwrap();
        let store = MemoryStore::new(vec![0; DEVICE_LEN as usize]).with_exact_holes(hole);
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
        let (key, access) = (VolumeKey::new(&[9; 64]), Access { read_only: false, allow_discards: true });
        let device = Device::new(&[segment], &key, Arc::new(store), access).unwrap().with_zero_holes().unwrap();
        let fixture = Fixture { mapping: device.mapping(), device, ..Fixture::new() };
        fixture.negotiate()
    };
    let (offset, len) = (PIECE - UNIT, UNIT + 2 * PIECE + 2 * UNIT);
    let charged_of = |command: &[u8]| charged(&mut with_holes(), command, done);
    assert_eq!(charged_of(&zeroes(0, offset, len)), 3 * UNIT, "what is around the holes");
    assert_eq!(charged_of(&zeroes(command_flag::NO_HOLE, offset, len)), len);
    // A discard moves nothing.
    assert_eq!(charged_of(&header(command::TRIM, 0, 4 * PIECE)), 0);
    assert_eq!(charged_of(&zeroes(0, 0, 2 * PIECE)), 0);
    // The store cannot make the hole after all.
    let refused = |request: &Request| match request.data {
        None => Err(RequestError::Unsupported),
        Some(_) => Ok(()),
    };
    assert_eq!(charged(&mut with_holes(), &zeroes(0, 0, 2 * PIECE), refused), 2 * PIECE);
}

#[test]
fn refused_requests_are_operations() {
    let mut fixture = Fixture::in_transmission();
    let limits = ExportLimits { operations: Some(1), ..ExportLimits::default() };
    fixture.limit(&SharedLimits::new(limits, 1, Instant::now()));
    let refused = header(command::READ, DEVICE_LEN, UNIT);
    assert!(matches!(fixture.arrive(&refused.repeat(3)), Next::Throttled));
    assert_eq!(fixture.send().len(), 16, "one reply");
    assert_eq!(fixture.session.inbox.unread().len(), 2 * refused.len());
}

#[test]
fn session_with_nothing_to_begin_gives_back_what_it_has_reserved() {
    let mut fixture = Fixture::in_transmission();
    let limits = ExportLimits { bytes: Some(1), ..ExportLimits::default() };
    fixture.limit(&SharedLimits::new(limits, 1, Instant::now()));
    fixture.session.allowance = fixture.session.allowance.take().map(|allowance| allowance.with_credit(5000));
    let credit = |fixture: &Fixture| fixture.session.allowance.as_ref().unwrap().credit();
    // The rest of the header may come at any time.
    assert!(matches!(fixture.arrive(&[0x25]), Next::Receive(_)));
    assert_eq!(credit(&fixture), 5000);
    assert!(matches!(fixture.arrive(&[]), Next::Receive(_)));
    assert_eq!(credit(&fixture), 0);
}

#[test]
fn session_has_waited_since_the_first_of_what_it_waits_for() {
    for is_memory_first in [true, false] {
        let (mut fixture, _) = fixture(8 * UNIT);
        let first = Instant::now();
        let [second, now] = [100, 200].map(|millis| first + Duration::from_millis(millis));
        let (for_memory, for_limit) = if is_memory_first { (first, second) } else { (second, first) };
        fixture.leave_in_pool(0);
        let Fixture { session, pool, .. } = &mut fixture;
        let supply = &mut Supply { pool, may_use_reserve: false, is_behind: false, now: for_memory };
        assert!(session.memory.take(supply, UNIT as usize, UNIT as usize).is_none());
        let _of_other = fixture.other().begin_piece(8 * UNIT);
        let allowance = fixture.session.allowance.as_mut().unwrap();
        allowance.piece(Piece::first(UNIT), for_limit).unwrap();
        assert_eq!(fixture.session.blocked_since(now), Some(first));
    }
}
