//! Sessions of an export with limits.

use super::*;
use crate::nbd::protocol::command_flag;
use std::num::NonZeroU64;

fn limits(in_flight: u64) -> ExportLimits {
    ExportLimits { in_flight: Some(in_flight), ..ExportLimits::default() }
}

/// A session, and the limits of its export.
fn fixture(in_flight: u64) -> (Fixture, Arc<SharedLimits>) {
    let mut fixture = Fixture::in_transmission();
    let shared = SharedLimits::new(limits(in_flight), 1, Instant::now());
    fixture.throttle = Some(Throttle::new(&shared, Instant::now()));
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
    let (mut fixture, _) = fixture(2 * UNIT);
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
        assert!(matches!(next, Next::Throttled), "{kind}: {next:?}");
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
    let (mut fixture, shared) = fixture(UNIT);
    assert!(matches!(fixture.arrive(&reads(3)), Next::Throttled));
    assert_eq!(fixture.requests.len(), 1);
    shared.set(limits(2 * UNIT), Instant::now());
    assert!(matches!(fixture.process(), Next::Throttled));
    assert_eq!(fixture.requests.len(), 2);
    shared.set(ExportLimits::default(), Instant::now());
    assert!(matches!(fixture.process(), Next::Receive(_)));
    assert_eq!(fixture.requests.len(), 3);
}

#[test]
fn session_waits_for_others_only_with_a_request() {
    let (mut fixture, _) = fixture(UNIT);
    let now = Instant::now();
    assert!(matches!(fixture.arrive(&reads(1)), Next::Receive(_)), "a session that has nothing to read is held");
    assert_eq!(fixture.session.blocked_since(now), None);
    fixture.put(&[]);
    assert!(matches!(fixture.arrive(&reads(1)), Next::Throttled));
    assert!(fixture.session.blocked_since(now).is_some());
    fixture.finish(Ok(()));
    fixture.send();
    fixture.process();
    assert_eq!(fixture.session.blocked_since(now), None);
}

#[test]
fn session_that_may_hold_no_more_waits_for_its_own_client() {
    let (mut fixture, _) = fixture(1);
    let next = fixture.arrive(&[header(command::READ, 0, 100 * PIECE), reads(1)].concat());
    assert!(matches!(next, Next::Throttled), "{next:?}");
    assert!(fixture.session.held_since.is_some());
    // Pieces of the first request take all the memory that the session may have.
    while !fixture.session.memory.is_full() {
        fixture.turn += 1;
        fixture.begin_waiting();
        fixture.finish(Ok(()));
    }
    assert!(matches!(fixture.process(), Next::Wait));
    assert_eq!(fixture.session.held_since, None, "others would be blamed for it");
}

/// Returns for how many seconds a command keeps an export of 1 byte a second waiting.
fn debt(fixture: &mut Fixture, command: &[u8]) -> u64 {
    let limits = ExportLimits { bytes: Some(1), ..ExportLimits::default() };
    fixture.throttle = Some(Throttle::new(&SharedLimits::new(limits, 1, Instant::now()), Instant::now()));
    fixture.arrive(command);
    debt_left(fixture)
}

fn debt_left(fixture: &Fixture) -> u64 {
    let now = Instant::now();
    match fixture.throttle.as_ref().unwrap().blocked(now) {
        // Rounded up: some of it is paid by now.
        Some(Blocked::Until(until)) => until.duration_since(now).as_secs() + 1,
        Some(Blocked::InFlight) => panic!("no limit"),
        None => 0,
    }
}

#[test]
fn zeroes_are_charged_as_the_bytes_that_are_written() {
    let zeroes = |flags: u16, offset, len| {
        let mut command = header(command::WRITE_ZEROES, offset, len);
        command[4..6].copy_from_slice(&flags.to_be_bytes());
        command
    };
    let mut fixture = Fixture::in_transmission();
    assert_eq!(debt(&mut fixture, &zeroes(0, 0, 8 * PIECE)), 8 * PIECE, "all of it, before its second piece begins");
    assert_eq!(fixture.requests.len(), 1);

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
    assert_eq!(debt(&mut with_holes(), &zeroes(0, offset, len)), 3 * UNIT, "what is around the holes");
    assert_eq!(debt(&mut with_holes(), &zeroes(command_flag::NO_HOLE, offset, len)), len);
    // A discard moves nothing.
    assert_eq!(debt(&mut with_holes(), &header(command::TRIM, 0, 4 * PIECE)), 0);
    // The store cannot make the hole after all.
    let mut fixture = with_holes();
    assert_eq!(debt(&mut fixture, &zeroes(0, 0, 2 * PIECE)), 0);
    fixture.finish(Err(RequestError::Unsupported));
    assert_eq!(debt_left(&fixture), 2 * PIECE);
}
