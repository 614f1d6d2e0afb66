//! Descriptors that NBD clients leave to the rest of a server.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, have};
use inlock_tests::nbd::{Connection, Mode};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const RAW: [&str; 2] = ["--type", "raw"];

/// Idle clients in transmission: `most`, or as many as the server accepts.
fn idle_clients(server: &Named, most: usize) -> Vec<Connection> {
    let open = |_| Connection::open(server.socket.as_ref(), Duration::from_secs(20), Mode::Simple);
    (0..most).map_while(|n| open(n).ok()).collect()
}

/// Returns the CPU time of the process, in ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(')').next().expect("a name in brackets").split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// Returns the number of times that the accepting thread has slept.
fn sleeps_of_acceptor(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let read = |name: &str, task: &std::path::Path| std::fs::read_to_string(task.join(name)).expect("it runs");
    let task =
        tasks.map(|task| task.expect("it runs").path()).find(|task| read("comm", task).starts_with("inlock-accept"));
    let status = read("status", &task.expect("there is one"));
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}

#[test]
fn control_works_while_idle_clients_use_up_descriptors() {
    if !have("prlimit") {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Named::start_with_descriptors((256, 256), &run, "data", &[&image]);
    let clients = idle_clients(&server, 400);
    assert!((64..200).contains(&clients.len()), "{} clients were taken", clients.len());
    // Further clients are disconnected at once, and cost no descriptor.
    let mut refused: Vec<_> = (0..300).map(|_| UnixStream::connect(&server.socket).expect("it listens")).collect();
    for stream in &mut refused {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        assert_eq!(stream.read(&mut [0]).expect("the server disconnects"), 0);
    }
    let before = ticks(server.pid());
    std::thread::sleep(Duration::from_secs(1));
    let spent = ticks(server.pid()) - before;
    assert!(spent < 50, "{spent} ticks for clients that ask for nothing");
    run.call(&["status", "data"]).works();
    run.call(&["suspend", "data"]).works();
    run.call_with(b"secret", &["resume", "data"]).works();
    run.call(&["resize", "data"]).works();
    run.call(&["close", "data"]).works();
    drop(clients);
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn soft_limit_is_raised_for_maximum_of_clients() {
    if !have("prlimit") {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let server =
        Named::start_with_descriptors((64, 4096), &run, "data", &[&RAW[..], &[&dir.image("image", 1)]].concat());
    let clients = idle_clients(&server, 500);
    assert_eq!(clients.len(), 500);
    run.call(&["status", "data"]).works();
}

#[test]
fn acceptor_waits_for_free_descriptor() {
    if !have("prlimit") {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &[&RAW[..], &[&dir.image("image", 1)]].concat());
    let limit = |most: u32| {
        let (pid, most) = (server.pid().to_string(), format!("--nofile={most}:"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &most]).status().expect("it runs").success());
    };
    limit(4);
    let mut client = UnixStream::connect(&server.socket).expect("it listens");
    std::thread::sleep(Duration::from_millis(200));
    let before = sleeps_of_acceptor(server.pid());
    std::thread::sleep(Duration::from_secs(1));
    let sleeps = sleeps_of_acceptor(server.pid()) - before;
    assert!((1..40).contains(&sleeps), "{sleeps} attempts in a second");
    limit(1024);
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    client.read_exact(&mut [0; 18]).expect("it was not forgotten");
}
