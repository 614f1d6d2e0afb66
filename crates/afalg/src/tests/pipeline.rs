//! The pipeline on other sockets than the kernel's: their peers invert the data, or fail.

use crate::api::Session;
use crate::pipeline::{LANES, Pipeline};
use crate::sockets::Operations;
use inlock_engine::Direction;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::sync::atomic::{AtomicUsize, Ordering};

const UNIT: usize = 4096;

/// Answer of a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The inverted data.
    Inverted,
    /// Inverted data without the last byte.
    Short,
    /// Nothing: it closes its socket.
    End,
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Returns a pipeline and its peers; `None`, and prints a line, without io_uring.
fn pipeline() -> Option<(Pipeline, Vec<OwnedFd>)> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("inlock-afalg-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let bound = socket();
    rustix::net::bind(&bound, &address).unwrap();
    rustix::net::listen(&bound, LANES as i32).unwrap();
    let connect = |_| {
        let peer = socket();
        rustix::net::connect(&peer, &address).unwrap();
        peer
    };
    // Accepted in this order.
    let peers: Vec<OwnedFd> = (0..LANES).map(connect).collect();
    match Pipeline::new(bound.as_fd()) {
        Ok(pipeline) => Some((pipeline, peers)),
        Err(_) => {
            println!("SKIPPED: io_uring is not allowed here");
            None
        }
    }
}

/// Takes `units` messages, and answers the last one first. A socket that ended gets no message.
fn answer(peers: &mut [Option<OwnedFd>], units: usize, answer_of: impl Fn(usize) -> Answer) {
    let mut answers = Vec::new();
    for (lane, place) in peers.iter_mut().enumerate().take(units) {
        let mut data = vec![0; UNIT + 1];
        if answer_of(lane) == Answer::End {
            *place = None;
        }
        let Some(peer) = place else { continue };
        let len = rustix::io::read(&*peer, &mut data).unwrap();
        assert_eq!(len, UNIT, "a message is one data unit");
        data.truncate(len);
        answers.push((lane, data));
    }
    for (lane, mut data) in answers.into_iter().rev() {
        data.iter_mut().for_each(|byte| *byte = !*byte);
        let len = if answer_of(lane) == Answer::Short { UNIT - 1 } else { UNIT };
        rustix::io::write(peers[lane].as_ref().unwrap(), &data[..len]).unwrap();
    }
}

/// Answers every message, until the other socket is closed.
fn answer_to_end(peer: &OwnedFd) {
    let mut data = [0; UNIT];
    while let Ok(len @ 1..) = rustix::io::read(peer, &mut data) {
        rustix::io::write(peer, &inverted(&data[..len])).unwrap();
    }
}

fn plain(units: usize) -> Vec<u8> {
    (0..units * UNIT).map(|at| (at / 7) as u8).collect()
}

fn inverted(data: &[u8]) -> Vec<u8> {
    data.iter().map(|byte| !byte).collect()
}

#[test]
fn units_that_complete_in_reverse_order_are_in_their_places() {
    let Some((mut pipeline, peers)) = pipeline() else { return };
    let sizes = [1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES, 64];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut peers: Vec<_> = peers.into_iter().map(Some).collect();
            for units in sizes {
                for done in (0..units).step_by(LANES) {
                    answer(&mut peers, LANES.min(units - done), |_| Answer::Inverted);
                }
            }
        });
        for units in sizes {
            let mut data = plain(units);
            let done = pipeline.process(Direction::Encrypt, &vec![[7; 16]; units], &mut data);
            assert_eq!(done, units);
            assert!(data == inverted(&plain(units)), "{units} units");
        }
    });
}

#[test]
fn operations_of_one_socket_end_at_the_first_that_fails() {
    for fault in [Answer::Short, Answer::End] {
        let (ours, peer) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let peer = std::thread::spawn(move || {
            let mut peers = [Some(peer)];
            for number in 0..6 {
                answer(&mut peers, 1, |_| if number == 5 { fault } else { Answer::Inverted });
            }
        });
        let mut data = plain(9);
        let mut operations = Operations::new(ours);
        assert_eq!(operations.process(Direction::Encrypt, &[[7; 16]; 2], &mut data[..2 * UNIT]), 2);
        assert_eq!(operations.process(Direction::Encrypt, &[[7; 16]; 7], &mut data[2 * UNIT..]), 3);
        assert!(data[..5 * UNIT] == inverted(&plain(5)) && data[5 * UNIT..] == plain(9)[5 * UNIT..]);
        peer.join().unwrap();
    }
}

#[test]
fn units_behind_one_that_fails_are_unchanged() {
    for fault in [Answer::Short, Answer::End] {
        for (units, lane) in [(1, 0), (LANES, 0), (LANES, 5), (LANES, LANES - 1), (7, 3), (LANES + 4, 5)] {
            let Some((mut pipeline, peers)) = pipeline() else { return };
            let peer = std::thread::spawn(move || {
                let mut peers: Vec<_> = peers.into_iter().map(Some).collect();
                answer(&mut peers, units, |number| if number == lane { fault } else { Answer::Inverted });
                std::thread::scope(|scope| {
                    for peer in peers.iter().flatten() {
                        scope.spawn(|| answer_to_end(peer));
                    }
                });
            });
            let mut data = plain(units);
            let done = pipeline.process(Direction::Decrypt, &vec![[7; 16]; units], &mut data);
            assert_eq!(done, lane, "of {units} units");
            let (before, behind) = data.split_at(done * UNIT);
            assert!(before == inverted(&plain(units)[..done * UNIT]) && behind == &plain(units)[done * UNIT..]);
            // Its sockets are closed.
            drop(pipeline);
            peer.join().unwrap();
        }
    }
}
