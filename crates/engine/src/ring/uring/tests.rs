//! Tests of what only this backend has: its queue and its memory.

use super::super::{Backend, IoMode, Ring};
use super::*;
use crate::buffer::{Buffer, HEADROOM};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn uring(ring: &mut Ring) -> &mut Uring {
    match &mut ring.backend {
        Backend::Uring(uring) => uring,
        Backend::Sync(_) => panic!("no io_uring"),
    }
}

#[test]
fn backlog_fills_the_queue_as_often_as_that_is_empty() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let uring = uring(&mut ring);
    let entry = || opcode::Nop::new().build().user_data(WAKER);
    while uring.try_push(&entry()) {}
    uring.backlog.extend((0..SUBMISSIONS + 44).map(|_| entry()));
    assert!(!uring.push_backlog());
    assert_eq!(uring.backlog.len(), SUBMISSIONS as usize + 44, "the queue is full");
    uring.ring.submit().unwrap();
    assert!(!uring.push_backlog());
    assert_eq!((uring.queued(), uring.backlog.len()), (SUBMISSIONS as usize, 44));
    uring.ring.submit().unwrap();
    assert!(uring.push_backlog());
    assert_eq!((uring.queued(), uring.backlog.len()), (44, 0));
}

#[test]
fn memory_is_reserved_for_all_operations_and_the_waker() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    ring.reserve(3000);
    ring.reserve_writev(3);
    let Uring { in_flight, free, done, backlog, vectors, .. } = uring(&mut ring);
    assert!(in_flight.capacity() >= 3000 && free.capacity() >= 3000 && done.capacity() >= 3000);
    assert!(backlog.capacity() > 3000);
    assert_eq!(vectors.len(), 3);
}

#[test]
fn kernel_threads_are_limited_to_one_on_request() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let limits = |ring: &mut Ring| {
        let mut limits = [0; 2];
        uring(ring).ring.submitter().register_iowq_max_workers(&mut limits).unwrap();
        limits
    };
    assert!(limits(&mut ring)[0] > 1);
    ring.set_iowq_max_workers().unwrap();
    assert_eq!(limits(&mut ring), [1; 2]);
}

#[test]
fn turn_with_completions_waits_for_nothing() {
    for wait in [Wait::Forever, Wait::Until(Duration::from_secs(40))] {
        let mut ring = Ring::new(IoMode::Uring).unwrap();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        let begin = Instant::now();
        // The second turn enters the kernel, since entries may wait for that.
        for _ in 0..2 {
            ring.submit(file, Operation::Send(vec![(Buffer::new(1), HEADROOM..HEADROOM + 1)]), Token(1));
            let mut done = VecDeque::new();
            ring.turn(wait, &mut done).unwrap();
            assert_eq!(done.len(), 1);
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{wait:?}");
    }
}
