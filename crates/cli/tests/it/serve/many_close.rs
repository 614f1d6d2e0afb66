//! `serve --config`: what is left of a volume that was closed or removed, and workers that cannot start.

use super::many::{Many, volume};
use super::many_verbs::Store;
use crate::harness::{Dir, FAST, call, call_with, memory};
use inlock_tests::nbd::{Connection, command, go_data, option_bytes};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use rustix::fs::OFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// NBD_OPT_INFO
const INFO: u32 = 6;

impl Many {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Connects a client that asks for a volume, and stays in its handshake.
    fn asking(&self, name: &str) -> Connection {
        let mut client = Connection::haggle(&self.nbd, Duration::from_secs(300)).expect("a server");
        client.send(&option_bytes(INFO, &go_data(name.as_bytes(), &[]))).expect("a connection");
        client.option_replies().expect("replies");
        client
    }

    /// Whether the server has the file open.
    pub(crate) fn has_open(&self, path: &str) -> bool {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a process");
        let mut links = files.filter_map(|file| std::fs::read_link(file.expect("a file").path()).ok());
        links.any(|link| link == std::path::Path::new(path))
    }

    /// Returns the number of threads whose names begin with this.
    fn threads(&self, prefix: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process");
        let name = |thread: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(thread.expect("a thread").path().join("comm")).unwrap_or_default()
        };
        threads.map(name).filter(|name| name.starts_with(prefix)).count()
    }

    pub(crate) fn workers(&self) -> usize {
        self.threads("inlock-w")
    }

    /// Returns the first number that the next file of the server may get.
    fn first_free_descriptor(&self) -> u64 {
        let free = |number: &u64| !std::path::Path::new(&format!("/proc/{}/fd/{number}", self.child.id())).is_symlink();
        (0..).find(free).expect("a number")
    }
}

/// How a volume is closed, and what its clients do then.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Removed after its client has left.
    Idle,
    /// Removed while its worker has ended, and its client is at rest.
    Parked,
    /// Removed with a client that is connected.
    Forced,
    /// Removed while a client is in its handshake.
    Asking,
    /// Closed, not removed.
    Closed,
}

const WAYS: [Way; 5] = [Way::Idle, Way::Parked, Way::Forced, Way::Asking, Way::Closed];

fn write_and_read(client: &mut Connection, random: &mut Random) {
    for len in [512, 5000, 300_000] {
        let data = random.bytes(len);
        client.write(1000, &data).expect("a reply");
        assert!(client.read(1000, len).expect("a reply") == data);
    }
}

#[test]
fn key_is_in_memory_no_longer_after_a_volume_was_closed() {
    const ROUNDS: usize = 6;
    let dir = Dir::new();
    let (image, key, other) = (dir.image("image", 4), dir.name("key"), dir.image("other", 1));
    let many = Many::start(dir, &volume("other", &other, "type = \"raw\""));
    // The process is at work meanwhile.
    let mut busy = many.client("other").unwrap();
    let mut random = Random::new(47);
    let mut searches = 0;
    for round in 0..ROUNDS {
        for way in WAYS {
            let bytes = random.bytes(32);
            std::fs::write(&key, &bytes).unwrap();
            let get = match round % 2 {
                0 => format!("key-file={key}"),
                _ => format!("key-command=[\"/bin/cat\", \"{key}\"]"),
            };
            many.control(&["add", "v", &format!("image={image}"), "type=plain", &get, "threads=2"]);
            let mut client = many.client("v").unwrap();
            write_and_read(&mut client, &mut random);
            let round_keys = bytes.chunks_exact(16).flat_map(memory::aes128_round_keys).collect::<Vec<_>>();
            let needles: Vec<&[u8]> = round_keys.iter().map(<[u8; 16]>::as_slice).collect();
            let search = || memory::count(many.pid(), &needles);
            let Some(before) = search() else {
                many.stop();
                return;
            };
            assert!(before >= needles.len(), "the schedule is not found while it is in use: {before}");
            let (mut kept, mut asking) = (None, None);
            match way {
                Way::Idle | Way::Closed => client.disconnect().unwrap(),
                Way::Parked => {
                    let busy_and_others = || {
                        busy.read(0, 512).unwrap();
                        many.workers()
                    };
                    eventually("workers of a client at rest have ended", busy_and_others, |number| *number <= 1);
                    kept = Some(client);
                }
                Way::Forced => kept = Some(client),
                Way::Asking => {
                    client.disconnect().unwrap();
                    asking = Some(many.asking("v"));
                }
            }
            match way {
                Way::Closed => many.control(&["close", "v", "--force"]),
                _ => many.control(&["remove", "v", "--force"]),
            };
            assert_eq!(search(), Some(0), "round {round}, {way:?}, {before} before: the key is still there");
            assert!(!many.has_open(&image), "round {round}, {way:?}: the image is still open");
            if let Way::Closed = way {
                many.control(&["remove", "v"]);
            }
            if let Some(mut client) = kept {
                assert!(client.read(0, 512).is_err(), "a client of a removed volume is connected");
            }
            if let Some(mut client) = asking {
                assert!(client.go(b"v").is_err(), "a client gets a removed volume");
            }
            searches += 1;
        }
    }
    count("searches for the key of a closed volume", searches);
    many.stop();
}

/// Returns a server of the volumes v, whose image is on another server, and other.
fn volume_on_a_server_and_other() -> (Store, Many) {
    let dir = Dir::new();
    let other = volume("other", &dir.image("other", 1), "type = \"raw\"");
    let (store, uri) = Store::start(&dir);
    let config = format!("{other}{}", volume("v", &uri, "type = \"raw\""));
    let many = Many::start_with(dir, &config, &["--reconnect-delay", "1"]);
    (store, many)
}

#[test]
fn close_that_fails_on_one_thread_is_reported_on_all() {
    let (store, many) = volume_on_a_server_and_other();
    let mut client = many.client("v").unwrap();
    client.write(0, &[1; 4096]).unwrap();
    store.signal(Signal::STOP);
    let command = |words: &'static [&'static str]| {
        let control = many.control.clone();
        std::thread::spawn(move || call(["control", &control].iter().chain(words)))
    };
    // The flush at the end waits for the server of the image.
    let first = command(&["close", "v", "--force"]);
    many.wait_until("v", "state", "closing");
    let second = command(&["remove", "v"]);
    drop(store);
    first.join().unwrap().fails(1, &["Writes to ", "may be lost"]);
    second.join().unwrap().fails(1, &["Volume v is removed, but its last writes may be lost"]);
    assert!(many.client("v").is_err(), "a removed volume is there");
    many.client("other").unwrap().read(0, 512).unwrap();
    many.stop_with(1);
}

#[test]
fn closing_that_failed_is_remembered_after_the_volume_was_opened_again() {
    let (store, many) = volume_on_a_server_and_other();
    many.client("other").unwrap().write(0, &[1; 512]).unwrap();
    many.client("v").unwrap().write(0, &[1; 4096]).unwrap();
    drop(store);
    call(["control", &many.control, "close", "v"]).fails(1, &["Writes to ", "may be lost"]);
    let _store = Store::start(&many.dir);
    let mut client = many.client("v").unwrap();
    client.write(0, &[2; 4096]).unwrap();
    client.disconnect().unwrap();
    let failed = |name: &str| many.listed(name)["closing_failed"] == true;
    assert_eq!((many.listed("v")["state"].as_str(), failed("v"), failed("other")), (Some("open"), true, false));
    let words = "  writes may be lost: an earlier closing has failed\n";
    assert!(many.control(&["status", "v"]).contains(words) && !many.control(&["status", "other"]).contains(words));
    let table = call(["control", &many.control, "list"]).works().text().to_owned();
    assert_eq!(table.lines().map(|line| line.rsplit(' ').next().unwrap()).collect::<Vec<_>>(), ["FAILED", "no", "yes"]);
    // This closing works.
    many.control(&["close", "v", "--force"]);
    many.stop_with(1);
}

/// A pipe whose reader reads nothing.
#[test]
fn standard_error_that_takes_nothing_delays_no_volume() {
    const REFUSED: usize = 600;
    let dir = Dir::new();
    let config = [
        volume("a", &dir.image("a", 1), "type = \"raw\"\nidle-timeout = 1"),
        volume("missing", "/nonexistent/image", "type = \"raw\""),
    ];
    let mut many = Many::start(dir, &config.concat());
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let mut pipe = options.open(format!("/proc/{}/fd/2", many.child.id())).unwrap();
    let mut filled = 0;
    while let Ok(len) = pipe.write(&[b'\n'; 1 << 10]) {
        filled += len;
    }
    // The thread that looks for idle volumes reports this.
    // Each of them is refused with a message of its own, since a failure is remembered.
    let missing = |number: usize| volume(&format!("m{number}"), &format!("/nonexistent/{number}"), "type = \"raw\"");
    many.rewrite(&std::iter::once(config[0].clone()).chain((0..REFUSED).map(missing)).collect::<String>());
    rustix::process::kill_process(many.pid(), Signal::HUP).unwrap();
    eventually("a volume is removed", || many.listed("missing"), Value::is_null);
    for number in 0..REFUSED {
        let mut client = Connection::haggle(&many.nbd, Duration::from_secs(20)).unwrap();
        let refused = format!("{:#}", client.go(format!("m{number}").as_bytes()).unwrap_err());
        assert!(!refused.contains("os error"), "a client waits for standard error: {refused}");
    }
    many.client("a").unwrap().disconnect().unwrap();
    many.wait_until("a", "state", "closed");
    // What waited is printed as soon as it is read.
    let mut messages = BufReader::new(many.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let message = messages.by_ref().find(|line| !line.is_empty());
    assert_eq!(message.as_deref(), Some("inlock: 600 volumes added, 1 removed, 0 changed"));
    let (mut printed, mut dropped) = (0, 0);
    while dropped == 0 {
        let line = messages.next().unwrap();
        match line.strip_suffix(" messages were dropped: standard error was not read") {
            Some(number) => dropped = number.trim_start_matches("inlock: ").parse().unwrap(),
            None => printed += usize::from(line.contains(": volume m")),
        }
    }
    assert_eq!(printed + dropped, REFUSED, "{printed} printed, {filled} bytes were in the pipe");
    rustix::process::kill_process(many.pid(), Signal::TERM).unwrap();
    assert_eq!(many.child.wait().unwrap().code(), Some(0));
}

#[test]
fn idle_volume_that_cannot_be_closed_delays_no_other() {
    let dir = Dir::new();
    let idle = "type = \"raw\"\nidle-timeout = 1";
    let others = ["a", "b"].map(|name| volume(name, &dir.image(name, 1), idle)).concat();
    let (store, uri) = Store::start(&dir);
    let many = Many::start(dir, &format!("{others}{}", volume("v", &uri, idle)));
    let mut client = many.client("v").unwrap();
    client.write(0, &[1; 4096]).unwrap();
    store.signal(Signal::STOP);
    client.disconnect().unwrap();
    // The flush at the end waits for the server of the image.
    many.wait_until("v", "state", "closing");
    for name in ["a", "b"] {
        many.client(name).unwrap().disconnect().unwrap();
        many.wait_until(name, "state", "closed");
        assert_eq!(many.listed("v")["state"], "closing");
    }
    store.signal(Signal::CONT);
    many.wait_until("v", "state", "closed");
    count("volumes that are closed while another one hangs", 2);
    many.stop();
}

#[test]
fn clients_of_a_worker_that_cannot_start_wait() {
    for io in ["uring", "sync"] {
        let dir = Dir::new();
        let image = dir.image("a", 4);
        let mut many = Many::start(dir, &volume("a", &image, &format!("type = \"raw\"\nio = \"{io}\"")));
        let mut lines = BufReader::new(many.child.stderr.take().expect("a pipe")).lines();
        let mut clients = [(); 3].map(|()| many.client("a").unwrap());
        clients[0].write(0, &[7; 4096]).unwrap();
        eventually("all workers have ended", || many.workers(), |number| *number == 0);
        // Nothing can be opened: neither a ring, nor what wakes a worker.
        let pid = many.pid();
        let limit = |current| {
            let before = rustix::process::getrlimit(Resource::Nofile);
            prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum: before.maximum }).unwrap()
        };
        let before = limit(many.first_free_descriptor());
        clients[0].request(0, command::READ, 0, 4096).unwrap();
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("volume a: cannot run a worker: ") && line.ends_with("; its clients wait"), "{line}");
        // One leaves while it waits, and another one asks then.
        let [first, second, third] = clients;
        drop(second);
        let mut third = third;
        third.request(0, command::READ, 0, 4096).unwrap();
        limit(before.current.unwrap_or(u64::MAX));
        for mut client in [first, third] {
            let reply = client.reply(4096).unwrap();
            assert!(reply.error == 0 && reply.data == [7; 4096], "{io}");
        }
        let line = lines.next().unwrap().unwrap();
        assert!(line.ends_with("volume a: its clients are served again"), "{line}");
        assert_eq!((many.listed("a")["state"].as_str(), many.client("a").is_ok()), (Some("open"), true));
        rustix::process::kill_process(many.pid(), Signal::TERM).unwrap();
        assert_eq!(many.child.wait().unwrap().code(), Some(0));
        assert_eq!(lines.next().map(|line| line.unwrap()), None, "more than two lines");
    }
    count("workers that started after failures", 2);
}

#[test]
fn idle_threads_of_integrity_volumes_end() {
    let dir = Dir::new();
    let (image, secret) = (dir.image("image", 32), dir.file("secret", b"secret"));
    let words = ["luksFormat", "-q", "--integrity", "hmac-sha256", "--integrity-lazy", &image];
    call_with(b"secret", words.into_iter().chain(FAST)).works();
    let many = Many::start(dir, &volume("v", &image, &format!("key-file = \"{secret}\"")));
    let mut client = many.client("v").unwrap();
    for round in 0..2 {
        let data = Random::new(round).bytes(1 << 20);
        client.write(round << 20, &data).unwrap();
        client.flush().unwrap();
        eventually("idle threads have ended", || many.threads("inlock-s"), |number| *number <= 1);
        assert!(client.read(round << 20, 1 << 20).unwrap() == data);
    }
    many.stop();
}
