//! Clients of NBD leave descriptors to all else that a server does.

mod harness;

use harness::control::{Named, Run};
use harness::{Dir, have};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const RAW: [&str; 2] = ["--type", "raw"];

/// Whether the server has greeted a client; else it has hung up without a word.
fn is_greeted(mut stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let mut greeting = [0; 18];
    stream.read(&mut greeting).expect("the server takes the client or hangs up") > 0
}

fn connect(server: &Named, clients: usize) -> Vec<UnixStream> {
    (0..clients).map(|_| UnixStream::connect(&server.socket).expect("the server listens")).collect()
}

/// Ticks of processor time that the process has taken.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(')').next().expect("a name in brackets").split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// How often the thread that accepts has gone to sleep.
fn sleeps_of_acceptor(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let read = |name: &str, task: &std::path::Path| std::fs::read_to_string(task.join(name)).expect("it runs");
    let task =
        tasks.map(|task| task.expect("it runs").path()).find(|task| read("comm", task).starts_with("inlock-accept"));
    let status = read("status", &task.expect("there is one"));
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}

fn has_prlimit() -> bool {
    have("prlimit")
}

#[test]
fn control_works_while_idle_clients_use_up_descriptors() {
    if !has_prlimit() {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Named::start_with_descriptors((256, 256), &run, "data", &[&image]);
    let clients = connect(&server, 400);
    let greeted = clients.iter().filter(|client| is_greeted(client)).count();
    assert!((64..256).contains(&greeted), "{greeted} clients were taken");
    let before = ticks(server.pid());
    std::thread::sleep(Duration::from_secs(1));
    let spent = ticks(server.pid()) - before;
    assert!(spent < 50, "{spent} ticks for clients that ask for nothing");
    run.call(&["status", "data"]).works();
    run.call(&["suspend", "data"]).works();
    run.call_with(b"secret", &["resume", "data"]).works();
    run.call(&["resize", "data"]).works();
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn soft_limit_is_raised_for_as_many_clients_as_are_taken() {
    if !has_prlimit() {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let server =
        Named::start_with_descriptors((64, 4096), &run, "data", &[&RAW[..], &[&dir.image("image", 1)]].concat());
    let clients = connect(&server, 500);
    assert!(clients.iter().all(is_greeted));
    run.call(&["status", "data"]).works();
}

#[test]
fn acceptor_waits_while_no_descriptor_is_left() {
    if !has_prlimit() {
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
    let clients = connect(&server, 1);
    std::thread::sleep(Duration::from_millis(200));
    let before = sleeps_of_acceptor(server.pid());
    std::thread::sleep(Duration::from_secs(1));
    let sleeps = sleeps_of_acceptor(server.pid()) - before;
    assert!((1..40).contains(&sleeps), "{sleeps} attempts in a second");
    limit(1024);
    assert!(is_greeted(&clients[0]), "it was not forgotten");
}
