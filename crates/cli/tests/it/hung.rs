//! Sockets of processes that are stopped: nothing waits for one without end or without a word.

use crate::harness::{Dir, call, inlock};
use inlock_tests::nbd::{Connection, option, option_reply};
use inlock_tests::server::Server;
use inlock_tests::wait::eventually;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// A process that is stopped: it listens, and its queue of clients is full.
struct Hung(#[expect(dead_code, reason = "holds the queue")] Vec<OwnedFd>);

impl Hung {
    fn new(path: &str) -> Self {
        let socket =
            || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).expect("a socket");
        let address = SocketAddrUnix::new(Path::new(path)).expect("a socket");
        let listener = socket();
        bind(&listener, &address).expect("a socket");
        listen(&listener, 0).expect("a socket");
        let mut held = vec![listener];
        held.extend(std::iter::from_fn(|| Some(socket()).filter(|client| connect(client, &address).is_ok())));
        assert!(held.len() > 1);
        Self(held)
    }
}

/// Returns the threads of a process with this name.
fn threads_named(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

#[test]
fn export_of_a_stopped_server_is_given_up_in_time_with_a_word() {
    let dir = Dir::new();
    let _hung = Hung::new(&dir.name("hung"));
    let uri = format!("nbd+unix:///?socket={}", dir.name("hung"));
    let ended = call(["luksDump", &uri, "--connect-timeout", "1"]);
    ended.fails(4, &["no answer yet; waiting for 1 s", "no answer from", "within 1 s", "--connect-timeout"]);
    // A server goes on, and no thread of it waits for ever.
    let config = format!("[volumes.a]\nimage = \"{uri}\"\ntype = \"raw\"\n");
    let config = dir.file("volumes.toml", config.as_bytes());
    let socket = dir.path("many.sock");
    let mut command = inlock();
    command.args(["serve", "--config", &config, "--connect-timeout", "1"]);
    command.args(["--nbd", &format!("unix:{}", socket.display())]);
    let server = Server::start(command, socket.clone()).unwrap();
    let mut client = Connection::haggle(&socket, Duration::from_secs(60)).unwrap();
    let reply = client.ask(option::GO, &inlock_tests::nbd::go_data(b"a", &[])).unwrap();
    assert!(reply.kind & option_reply::ERROR != 0, "{reply:?}");
    eventually("no thread connects", || threads_named(server.pid(), "inlock-dial"), |threads| *threads == 0);
}

/// A path where a stopped process listens is in use, at once.
#[test]
fn address_of_a_stopped_process_is_in_use() {
    let dir = Dir::new();
    let hung = dir.name("hung");
    let _hung = Hung::new(&hung);
    let image = dir.image("image", 1);
    call(["serve", "--type", "raw", &image, "--nbd", &format!("unix:{hung}"), "--run", "true"])
        .fails(5, &["is in use", "hint: "]);
    let config = dir.file("volumes.toml", format!("[volumes.a]\nimage = \"{image}\"\ntype = \"raw\"\n").as_bytes());
    let nbd = format!("unix:{}", dir.name("nbd"));
    call(["serve", "--config", &config, "--nbd", &nbd, "--control", &hung]).fails(5, &["is in use"]);
}

/// Commands to a stopped server of volumes.
#[test]
fn command_to_a_stopped_server_ends_with_a_word() {
    let dir = Dir::new();
    let hung = dir.name("hung");
    let _hung = Hung::new(&hung);
    call(["control", &hung, "list"]).fails(4, &["takes no client yet; waiting for 10 s", "cannot be reached"]);
}
