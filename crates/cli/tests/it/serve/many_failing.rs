//! `serve --config`: volumes that cannot be opened, that are in use, and that hang.

use super::many::{Many, volume};
use crate::harness::{Dir, call};
use inlock_tests::nbd::{Connection, go_data, option, option_bytes, option_reply};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Returns the configuration of a volume whose key-command notes that it ran, and fails unless the file `good` exists.
fn failing(dir: &Dir, name: &str) -> String {
    let (ran, good, key) = (dir.name("ran"), dir.name("good"), dir.file("key", &[3; 32]));
    let script = format!("echo {name} >> {ran}; test -e {good} && cat {key}");
    let rest = format!("type = \"plain\"\nkey-command = [\"/bin/sh\", \"-c\", \"{script}\"]");
    volume(name, &dir.image(name, 1), &rest)
}

fn attempts(many: &Many) -> u64 {
    std::fs::read_to_string(many.dir.path("ran")).unwrap_or_default().lines().count() as u64
}

/// Asks for exports in one handshake; returns the replies.
fn ask(many: &Many, names: &[&str]) -> Vec<u32> {
    let mut client = Connection::haggle(&many.nbd, Duration::from_secs(300)).expect("a server");
    let reply = |name: &&str| client.ask(option::INFO, &go_data(name.as_bytes(), &[])).expect("a reply").kind;
    names.iter().map(reply).collect()
}

#[test]
fn volume_that_fails_costs_two_attempts_in_a_handshake_and_few_a_minute() {
    let dir = Dir::new();
    let config = ["a", "b", "c"].map(|name| failing(&dir, name)).concat();
    let many = Many::start(dir, &config);
    let begun = Instant::now();
    // Three volumes fail, and the third is not even tried.
    let replies = ask(&many, &["a", "b", "c", "c"].repeat(6));
    assert!(replies.iter().all(|kind| *kind == option_reply::ERR_POLICY), "{replies:?}");
    assert_eq!(attempts(&many), 2);
    // Other handshakes find the failure, and each attempt doubles the wait.
    for _ in 0..40 {
        assert!(many.client("a").is_err());
    }
    let most = 4 + begun.elapsed().as_secs();
    assert!(attempts(&many) <= most, "{} attempts", attempts(&many));
    // A command forgets the failure.
    many.dir.file("good", b"");
    many.control(&["close", "a"]);
    assert!(many.client("a").is_ok());
    let tried = attempts(&many);
    let text = many.stop();
    let lines = text.lines().filter(|line| line.contains("exited with status 1")).count() as u64;
    assert!(lines < tried && text.contains("(tried again after 1 s)"), "{text}");
}

#[test]
fn volume_in_use_is_closed_only_by_force() {
    let dir = Dir::new();
    let config = volume("v", &dir.image("v", 1), "type = \"raw\"");
    let many = Many::start(dir, &config);
    let mut client = many.client("v").unwrap();
    call(["control", &many.control, "close", "v"]).fails(5, &["Volume v is in use by 1 clients", "--force"]);
    client.write(0, &[1; 512]).unwrap();
    many.control(&["close", "v", "--force"]);
    assert!(client.read(0, 512).is_err(), "a client of a closed volume is connected");
    assert!(many.client("v").unwrap().read(0, 512).unwrap() == [1; 512]);
    many.wait_until("v", "clients", 0);
    many.control(&["close", "v"]);
    many.stop();
}

/// A volume whose key does not come delays the end of no other.
#[test]
fn server_that_stops_closes_other_volumes_while_one_hangs() {
    let dir = Dir::new();
    let fifo = dir.name("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let hangs = format!("type = \"plain\"\nkey-timeout = 600\nkey-command = [\"/bin/cat\", \"{fifo}\"]");
    let image = dir.image("z", 1);
    // As many as are closed at the same time, and before the other one in the file.
    const HANGING: usize = 32;
    let plain = dir.image("plain", 1);
    let mut config = volume("z", &image, "type = \"raw\"");
    for number in 0..HANGING {
        let copy = dir.name(&format!("image{number}"));
        std::fs::copy(&plain, &copy).unwrap();
        config += &volume(&format!("a{number}"), &copy, &hangs);
    }
    let mut many = Many::start(dir, &config);
    let mut client = many.client("z").unwrap();
    client.write(0, &[1; 4096]).unwrap();
    let ask = |number: usize| {
        let mut waits = Connection::haggle(&many.nbd, Duration::from_secs(300)).unwrap();
        let name = format!("a{number}");
        waits.send(&option_bytes(option::INFO, &go_data(name.as_bytes(), &[]))).unwrap();
        many.wait_until(&name, "state", "opening");
        waits
    };
    let waits: Vec<_> = (0..HANGING).map(ask).collect();
    kill_process(Pid::from_child(&many.child), Signal::TERM).unwrap();
    eventually("the other volume is closed", || many.has_open(&image), |open| !open);
    // The first has not: its helper still waits.
    assert!(many.child.try_wait().unwrap().is_none(), "the server has ended");
    // Each helper finds the end of the pipe, as soon as it has opened it.
    let mut options = std::fs::OpenOptions::new();
    options.write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let ended = || {
        drop(options.open(&fifo));
        many.child.try_wait().unwrap()
    };
    let status = eventually("the server ends", ended, Option::is_some);
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    drop(waits);
}
