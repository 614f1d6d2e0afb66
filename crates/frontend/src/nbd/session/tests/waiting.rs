//! The order in which requests that wait begin their next pieces.

use super::*;

/// A session with a reply that has not left, and requests whose first piece has ended.
fn fixture_with(requests: &[Vec<u8>]) -> Fixture {
    let mut fixture = Fixture::in_transmission();
    fixture.arrive(&header(command::READ, 0, UNIT));
    assert_eq!(fixture.finish(Ok(())), After::Data { is_last: true, is_long: false });
    for request in requests {
        fixture.put(request);
        assert!(matches!(fixture.step(), Next::Again));
    }
    for _ in requests {
        fixture.finish(Ok(()));
    }
    assert_eq!(fixture.session.waiting.len(), requests.len());
    fixture
}

/// Ends everything and checks that the session then holds nothing.
fn end(mut fixture: Fixture) {
    fixture.elsewhere.drain(..).for_each(|buffer| fixture.pool.give(buffer));
    while fixture.session.has_waiting() || !fixture.requests.is_empty() {
        while !fixture.requests.is_empty() {
            fixture.finish(Ok(()));
        }
        fixture.send();
        fixture.begin_waiting();
    }
    fixture.send();
    fixture.assert_holds_nothing();
}

#[test]
fn request_without_memory_is_not_overtaken_by_one_that_needs_less() {
    // The last piece of the first needs a second buffer, for the edge.
    let mut fixture =
        fixture_with(&[header(command::WRITE_ZEROES, 0, PIECE + 100), header(command::WRITE_ZEROES, 0, 2 * PIECE)]);
    let order = fixture.session.waiting.clone();
    // One buffer of the pool is reserved for sessions that hold none.
    fixture.leave_in_pool(2);
    fixture.begin_waiting();
    assert!(fixture.requests.is_empty());
    assert_eq!(fixture.session.waiting, order);
    fixture.pool.give(fixture.elsewhere.pop().unwrap());
    fixture.begin_waiting();
    assert_eq!(fixture.requests.iter().map(|request| request.len).collect::<Vec<_>>(), [100]);
    assert_eq!(fixture.session.waiting, [order[1]]);
    end(fixture);
}

#[test]
fn request_that_needs_no_memory_does_not_wait_for_it() {
    let mut fixture =
        fixture_with(&[header(command::WRITE_ZEROES, 0, 2 * PIECE), header(command::CACHE, 0, DEVICE_LEN)]);
    fixture.leave_in_pool(1);
    fixture.begin_waiting();
    let operations: Vec<Operation> = fixture.requests.iter().map(|request| request.operation).collect();
    assert_eq!(operations, [Operation::Prefetch]);
    assert_eq!(fixture.session.waiting.len(), 1);
    end(fixture);
}

#[test]
fn unfinished_simple_reply_continues_while_another_request_has_no_memory() {
    let mut fixture = fixture_with(&[header(command::WRITE_ZEROES, 0, 2 * PIECE), header(command::READ, 0, 2 * PIECE)]);
    fixture.leave_in_pool(0);
    fixture.begin_waiting();
    let operations: Vec<Operation> = fixture.requests.iter().map(|request| request.operation).collect();
    assert_eq!(operations, [Operation::Read]);
    assert_eq!(fixture.session.waiting.len(), 1);
    end(fixture);
}
