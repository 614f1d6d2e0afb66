//! Requests of which a piece fails, and requests in several pieces.

use super::*;

const EIO: Result<(), RequestError> = Err(RequestError::Io(Errno::IO));

#[test]
fn read_that_fails_before_its_first_data_is_answered_and_later_one_disconnects() {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::READ, 0, 512));
    assert_eq!(fixture.finish(EIO), After::Nothing);
    assert_eq!(fixture.send(), reply(5));
    fixture.assert_holds_nothing();
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::READ, 0, 2 * PIECE));
    assert!(matches!(fixture.finish(Ok(())), After::Data { is_last: false, .. }));
    fixture.begin_waiting();
    assert_eq!(fixture.finish(EIO), After::Disconnect);
}

#[test]
fn write_that_fails_is_answered_after_the_rest_of_its_payload() {
    let mut fixture = Fixture::in_transmission();
    let Next::Receive(rest) = fixture.arrive(&with_payload(command::WRITE, 0, 2 * PIECE)[..28 + PIECE as usize]) else {
        panic!("the rest of the payload is not here")
    };
    assert_eq!((rest.target, rest.range.len() as u64), (Target::Payload, PIECE));
    assert_eq!(fixture.finish(EIO), After::Nothing);
    assert_eq!(fixture.send(), []);
    fixture.complete(rest, &payload(PIECE));
    fixture.process();
    assert_eq!((fixture.state(), fixture.send()), (State::Header, reply(5)));
    fixture.assert_holds_nothing();
}

#[test]
fn zeroes_that_fail_are_answered_without_the_rest() {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::WRITE_ZEROES, 0, 2 * PIECE));
    assert_eq!(fixture.finish(EIO), After::Nothing);
    assert_eq!(fixture.send(), reply(5));
    fixture.assert_holds_nothing();
}

#[test]
fn end_of_another_request_leaves_a_long_read_the_only_one() {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&[header(command::READ, 0, 2 * PIECE), header(command::FLUSH, 0, 0)].concat());
    assert_eq!((fixture.requests.len(), fixture.session.output.long_read), (2, Some(0)));
    assert!(matches!(fixture.finish(Ok(())), After::Data { is_last: false, .. }));
    fixture.finish(Ok(()));
    assert_eq!((fixture.requests.len(), fixture.session.output.long_read), (0, Some(0)));
    fixture.begin_waiting();
    assert!(matches!(fixture.finish(Ok(())), After::Data { is_last: true, .. }));
    assert_eq!(fixture.session.output.long_read, None);
}

#[test]
fn pieces_without_buffer_end_at_multiples_of_their_length() {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::CACHE, 512, 3 << 20));
    let mut pieces = Vec::new();
    while let Some(request) = fixture.requests.front() {
        assert_eq!(request.operation, Operation::Prefetch);
        pieces.push((request.offset, request.len));
        fixture.finish(Ok(()));
        fixture.begin_waiting();
    }
    assert_eq!(pieces, [(512, (1 << 20) - 512), (1 << 20, 1 << 20), (2 << 20, 1 << 20), (3 << 20, 512)]);
    assert_eq!(fixture.send(), reply(0));
}

#[test]
fn discards_are_one_at_a_time() {
    let mut fixture = Fixture::in_transmission();
    fixture.device.allow_discards(true);
    fixture.put(&[header(command::TRIM, 0, UNIT), header(command::TRIM, UNIT, UNIT)].concat());
    assert!(matches!(fixture.process(), Next::Queue));
    fixture.turn += 1;
    fixture.process();
    assert!(fixture.session.has_waiting());
    let operations: Vec<_> = fixture.requests.iter().map(|request| (request.operation, request.offset)).collect();
    assert_eq!(operations, [(Operation::Discard { durable: false }, 0)]);
    fixture.finish(Ok(()));
    fixture.begin_waiting();
    assert_eq!(fixture.requests[0].offset, UNIT);
}

#[test]
fn read_in_one_chunk_needs_a_second_buffer_only_if_the_mapping_splits_it() {
    let mut fixture = Fixture::in_transmission();
    fixture.session.negotiated.style = ReplyStyle::Structured;
    let mut read = header(command::READ, 0, UNIT);
    read[5] = 4;
    fixture.arrive(&read);
    assert_eq!((fixture.requests.len(), fixture.requests[0].spare.is_some()), (1, false));
}
