//! Requests in pieces on a device whose length changes.

use super::*;

impl Fixture {
    /// Sets the device's length, which the worker finds at once.
    fn resize(&mut self, len: u64) {
        self.device.set_len(len).unwrap();
        self.mapping = self.device.mapping();
    }
}

#[test]
fn read_that_goes_on_beyond_a_new_end_is_an_error_or_disconnects() {
    for style in [ReplyStyle::Simple, ReplyStyle::Structured] {
        let mut fixture = Fixture::in_transmission();
        fixture.session.negotiated.style = style;
        fixture.arrive(&header(command::READ, 0, 3 * PIECE));
        assert!(matches!(fixture.finish(Ok(())), After::Data { is_last: false, .. }));
        fixture.resize(2 * PIECE);
        let next = fixture.begin_waiting();
        assert!(fixture.requests.is_empty() && !fixture.session.has_waiting(), "{style:?}");
        if style == ReplyStyle::Simple {
            assert!(matches!(next, Next::Disconnect));
            fixture.session.release(&mut fixture.active, &mut fixture.pool);
        } else {
            assert!(matches!(next, Next::Again));
            // Behind the data: the chunk of an error without a message.
            assert!(fixture.send().ends_with(&[0, 0, 0, 22, 0, 0]));
        }
        fixture.assert_holds_nothing();
    }
}

#[test]
fn read_that_waits_for_memory_beyond_a_new_end_is_an_error() {
    let mut fixture = Fixture::in_transmission();
    fixture.leave_in_pool(1);
    fixture.arrive(&[header(command::READ, 0, UNIT), header(command::READ, UNIT, 2 * UNIT)].concat());
    assert!(fixture.requests.len() == 1 && fixture.session.has_waiting());
    fixture.resize(2 * UNIT);
    fixture.begin_waiting();
    assert_eq!(fixture.send(), reply(22));
    fixture.finish(Ok(()));
    fixture.send();
    fixture.assert_holds_nothing();
}

#[test]
fn write_beyond_a_new_end_is_answered_after_its_payload_and_its_pieces() {
    let write = with_payload(command::WRITE, 0, 4 * PIECE);
    let (begun, rest) = write.split_at(28 + 2 * PIECE as usize);
    for skips_first in [true, false] {
        let mut fixture = Fixture::in_transmission();
        let Next::Receive(second) = fixture.arrive(&begun[..28 + PIECE as usize]) else { panic!("bytes are missing") };
        assert_eq!((second.target, second.range.len() as u64), (Target::Payload, PIECE));
        fixture.resize(2 * PIECE);
        fixture.complete(second, &begun[28 + PIECE as usize..]);
        let Next::Receive(third) = fixture.process() else { panic!("bytes are missing") };
        assert_eq!((fixture.state(), third.target, fixture.requests.len()), (State::Skip, Target::Inbox, 2));
        let skip = |fixture: &mut Fixture, receive| {
            fixture.complete(receive, rest);
            fixture.process();
            assert_eq!(fixture.state(), State::Header);
        };
        if skips_first {
            skip(&mut fixture, third);
            fixture.finish(Ok(()));
            assert_eq!(fixture.send(), []);
            fixture.finish(Ok(()));
        } else {
            fixture.finish(Ok(()));
            fixture.finish(Err(RequestError::OutOfRange));
            assert_eq!(fixture.send(), []);
            skip(&mut fixture, third);
        }
        assert_eq!(fixture.send(), reply(28));
        fixture.assert_holds_nothing();
    }
}

#[test]
fn write_that_awaits_a_buffer_beyond_a_new_end_skips_its_payload() {
    let mut fixture = Fixture::in_transmission();
    fixture.leave_in_pool(1);
    fixture.arrive(&[with_payload(command::WRITE, 0, UNIT), with_payload(command::WRITE, 2 * UNIT, UNIT)].concat());
    assert_eq!((fixture.state(), fixture.requests.len()), (State::AwaitBuffer, 1));
    fixture.resize(2 * UNIT);
    fixture.begin_waiting();
    assert_eq!(fixture.state(), State::Skip);
    fixture.process();
    assert_eq!((fixture.state(), fixture.send()), (State::Header, reply(28)));
    fixture.finish(Ok(()));
    fixture.send();
    fixture.assert_holds_nothing();
}

/// With pieces that the worker has, and without.
#[test]
fn client_that_leaves_while_its_write_is_skipped_leaves_nothing() {
    for (has_pieces, is_dropped) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut fixture = Fixture::in_transmission();
        let Next::Receive(second) = fixture.arrive(&with_payload(command::WRITE, 0, 4 * PIECE)[..28 + PIECE as usize])
        else {
            panic!("bytes are missing")
        };
        fixture.resize(2 * PIECE);
        fixture.complete(second, &payload(PIECE));
        fixture.process();
        assert_eq!((fixture.state(), fixture.requests.len()), (State::Skip, 2));
        fixture.put(&[]);
        if !has_pieces {
            fixture.finish(Ok(()));
            fixture.finish(Ok(()));
        }
        if is_dropped {
            fixture.session.release(&mut fixture.active, &mut fixture.pool);
        } else {
            fixture.session.close_input(&mut fixture.active, &mut fixture.pool);
        }
        while let Some(Request { id, data, spare, .. }) = fixture.requests.pop_front() {
            let done = Finished { id, result: Ok(()), data, spare };
            fixture.active.on_finished_dropped(done, &mut fixture.session.owner(), &mut fixture.pool);
        }
        fixture.assert_holds_nothing();
        assert!(fixture.session.is_idle());
    }
}

#[test]
fn zeroes_beyond_a_new_end_are_an_error() {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::WRITE_ZEROES, 0, 3 * PIECE));
    assert_eq!(fixture.finish(Ok(())), After::NextPiece);
    fixture.resize(2 * PIECE);
    fixture.begin_waiting();
    assert_eq!(fixture.send(), reply(28));
    fixture.assert_holds_nothing();
}

/// A worker finds a new length after its device.
#[test]
fn request_ahead_of_the_mapping_waits_for_it_and_holds_up_no_other() {
    let mut fixture = Fixture::in_transmission();
    let short = fixture.mapping.clone();
    fixture.resize(DEVICE_LEN / 2);
    let shorter = std::mem::replace(&mut fixture.mapping, short);
    fixture.resize(DEVICE_LEN);
    let whole = std::mem::replace(&mut fixture.mapping, shorter);
    fixture.arrive(&[header(command::READ, DEVICE_LEN - UNIT, UNIT), header(command::READ, 0, UNIT)].concat());
    assert_eq!((fixture.requests.len(), fixture.requests[0].offset), (1, 0));
    fixture.finish(Ok(()));
    fixture.begin_waiting();
    assert!(fixture.requests.is_empty() && fixture.session.has_waiting());
    fixture.mapping = whole;
    fixture.begin_waiting();
    assert_eq!(fixture.requests[0].offset, DEVICE_LEN - UNIT);
    fixture.finish(Ok(()));
    fixture.send();
    fixture.assert_holds_nothing();
}
