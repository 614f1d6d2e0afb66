//! Cancelling receives, and taking sockets out of a ring.

use super::{both, next, receive};
use crate::errno::Errno;
use crate::ring::{Returned, Token, Wait};
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;

#[test]
fn receive_that_is_cancelled_loses_no_byte() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut file = ring.add_socket(theirs.into()).unwrap();
        let (mut sent, mut received) = (0_u8, Vec::new());
        for round in 0..300 {
            ring.submit(file, receive(0..100, false), Token(1));
            let mut done = VecDeque::new();
            ring.turn(Wait::No, &mut done).unwrap();
            if done.is_empty() {
                assert!(ring.take_socket(file).is_none(), "an operation uses it");
            }
            // Before the cancellation, between it and its completion, or not at all.
            let mut send = |now: bool| {
                if now {
                    ours.write_all(&[sent]).unwrap();
                    sent = sent.wrapping_add(1);
                }
            };
            send(round % 3 == 0);
            ring.cancel_receive(file);
            send(round % 3 == 1);
            while done.is_empty() {
                ring.turn(Wait::Forever, &mut done).unwrap();
            }
            let done = done.pop_front().unwrap();
            let Returned::Buffer(buffer) = done.returned else { panic!("no buffer") };
            match done.result {
                Ok(len) => received.extend_from_slice(&buffer.data()[..len]),
                Err(error) => assert_eq!(error, Errno::CANCELED),
            }
            // It works as well in the ring, with another number, after it was out of it.
            let socket = ring.take_socket(file).expect("no operation uses it");
            assert!(ring.take_socket(file).is_none());
            file = ring.add_socket(socket).unwrap();
        }
        ring.cancel_receive(file);
        drop(ours);
        loop {
            ring.submit(file, receive(0..100, false), Token(1));
            let done = next(&mut ring);
            let Returned::Buffer(buffer) = done.returned else { panic!("no buffer") };
            match done.result.unwrap() {
                0 => break,
                len => received.extend_from_slice(&buffer.data()[..len]),
            }
        }
        assert_eq!(received, (0..200).collect::<Vec<u8>>());
    });
}
