//! `serve --config`: volumes that are added, removed and changed while the server runs.

use super::many::{Many, volume};
use crate::harness::{Dir, Ended, call, call_with, noise};
use inlock_tests::nbd::{Connection, command};
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

impl Many {
    /// Runs a command that may fail.
    fn call(&self, words: &[&str]) -> Ended {
        call(["control", &self.control].iter().chain(words))
    }

    /// Returns the volume as it is listed, or null.
    pub(crate) fn listed(&self, name: &str) -> Value {
        let list: Vec<Value> = serde_json::from_str(&self.control(&["list"])).expect("JSON");
        list.into_iter().find(|volume| volume["name"] == name).unwrap_or_default()
    }

    /// Blocks until a field of the listed volume has a value.
    #[track_caller]
    pub(crate) fn wait_until(&self, name: &str, field: &str, value: impl Into<Value>) {
        let value = value.into();
        let what = format!("{field} of volume {name} is {value}");
        eventually(&what, || self.listed(name), |listed| listed[field] == value);
    }
}

fn raw(name: &str, image: &str, rest: &str) -> String {
    volume(name, image, &format!("type = \"raw\"\n{rest}"))
}

#[test]
fn volumes_are_added_and_removed_while_others_are_served() {
    let dir = Dir::new();
    let images: Vec<_> = ["a", "b", "c", "d"].map(|name| dir.image(name, 1)).into();
    let (key, luks) = (dir.file("key", &noise(32)), dir.luks2("luks"));
    let secret = dir.file("secret", b"secret");
    let many = Many::start(dir, &format!("idle-timeout = 1000\n{}", raw("a", &images[0], "")));
    let mut first = many.client("a").unwrap();
    let image = |number: usize| format!("image={}", images[number]);
    // As arguments, from a file, and from standard input.
    let get = format!("key-command=[\"/bin/cat\", \"{key}\"]");
    let words = ["add", "b", &image(1), "type=plain", &get, "max-bytes=12M", "listed=false", "max-clients=2"];
    assert_eq!(many.control(&words).trim(), "b is added");
    let keys = many.dir.file("keys", format!("image = \"{luks}\"\nkey-file = \"{secret}\"\n").as_bytes());
    many.control(&["add", "c", "--config", &keys]);
    let keys = format!("image = \"{}\"\ntype = \"raw\"\n", images[3]);
    call_with(keys.as_bytes(), ["control", &many.control, "add", "d", "--config", "-"]).works();
    let listed = many.listed("b");
    assert_eq!(
        (&listed["state"], &listed["max_bytes"], &listed["max_clients"]),
        (&"closed".into(), &(12 << 20).into(), &2.into())
    );
    assert_eq!((&listed["added"], &many.listed("a")["added"]), (&true.into(), &false.into()));
    let mut opened = 0;
    for name in ["b", "c", "d"] {
        let mut client = many.client(name).unwrap();
        client.write(4096, &noise(4096)).unwrap();
        assert!(client.read(4096, 4096).unwrap() == noise(4096), "{name}");
        client.flush().unwrap();
        client.disconnect().unwrap();
        opened += 1;
    }
    first.read(0, 512).unwrap();
    let table = many.call(&["list"]).works().text().to_owned();
    assert!(table.starts_with("NAME  STATE") && table.lines().count() == 5, "{table}");
    // One with a client stays, unless it is forced.
    let mut client = many.client("b").unwrap();
    many.call(&["remove", "b"]).fails(5, &["Volume b is in use by ", "--force"]);
    assert!(client.read(4096, 4096).unwrap() == noise(4096), "a refused command has closed the volume");
    assert_eq!(many.control(&["remove", "b", "--force"]).trim(), "b is removed");
    assert!(client.read(0, 512).is_err() && many.client("b").is_err());
    let words = ["export", &images[1], "-", "--type", "plain", "-d", &key, "--range", "4096:4096"];
    assert!(call(words).works().out == noise(4096), "a write is lost, or the image is locked");
    for name in ["c", "d"] {
        many.wait_until(name, "clients", 0);
        many.control(&["remove", name]);
        let removed = many.call(&["remove", name]);
        removed.fails(4, &[&format!("Volume {name} does not exist."), "hint: run `inlock control SOCKET list`\n"]);
        assert!(many.client(name).is_err());
    }
    assert_eq!(many.control(&["list"]).matches("\"name\"").count(), 1);
    // Its image can be that of another one now, and its name be used again.
    many.control(&["add", "b", &image(3), "type=raw"]);
    assert!(many.client("b").unwrap().read(4096, 4096).unwrap() == noise(4096));
    first.read(0, 512).unwrap();
    count("many_volumes_added_and_used", opened);
    many.stop();
}

#[test]
fn volume_that_cannot_be_added_changes_nothing() {
    let dir = Dir::new();
    let images: Vec<_> = ["a", "b", "r"].map(|name| dir.image(name, 1)).into();
    let link = dir.name("link");
    std::os::unix::fs::symlink(&images[0], &link).unwrap();
    let config = format!("{}{}", raw("a", &images[0], ""), raw("r", &images[2], "read-only = true"));
    let many = Many::start(dir, &config);
    let mut client = many.client("a").unwrap();
    let before = many.control(&["list"]);
    let (a, b, r) = (&format!("image={}", images[0]), &format!("image={}", images[1]), &format!("image={}", images[2]));
    let link = &format!("image={link}");
    let cases: [(&[&str], i32, &str); 17] = [
        (&["add", "a", b, "type=raw"], 5, "Volume a already exists"),
        (&["add", "x", a, "type=raw"], 1, "is the image of volume a too"),
        (&["add", "x", link, "type=raw"], 1, "is the image of volume a too"),
        (&["add", "x", r, "type=raw"], 1, "is the image of volume r too"),
        (&["add", "x", b, "type=raw", "colour=red"], 1, "volumes.x.colour: unknown key"),
        (&["add", "x", b], 1, "exactly one of key-file"),
        (&["add", "x", "type=raw"], 1, "image is missing"),
        (&["add", "x", b, b, "type=raw"], 1, "duplicate key"),
        (&["add", "x", b, "type=raw", "max-in-flight=0"], 1, "volumes.x.max-in-flight: "),
        (&["add", "x\u{1}", b, "type=raw"], 1, "a name has 1 to 255 bytes"),
        (&["add", "x", "image"], 1, "Argument 'image' is not KEY=VALUE"),
        (&["add", "x"], 1, "requires KEY=VALUE or --config"),
        (&["add", "x", b, "--config", "/nonexistent/keys"], 1, "not both"),
        (&["add", "x", "--config", "/nonexistent/keys"], 4, "/nonexistent/keys"),
        (&["remove", "x"], 4, "Volume x does not exist."),
        (&["close", "x"], 4, "Volume x does not exist."),
        (&["remove", "a", "type=raw"], 1, "takes no keys"),
    ];
    for (words, code, text) in &cases {
        many.call(words).fails(*code, &[text]);
        assert_eq!(many.control(&["list"]), before, "{words:?}");
    }
    client.read(0, 512).unwrap();
    count("many_additions_refused", cases.len());
    many.stop();
}

#[test]
fn reload_keeps_volumes_that_were_added_and_restores_those_of_the_file() {
    let dir = Dir::new();
    let images: Vec<_> = ["a", "b", "c"].map(|name| dir.image(name, 1)).into();
    let (a, b) = (raw("a", &images[0], ""), raw("b", &images[1], ""));
    let many = Many::start(dir, &format!("{a}{b}"));
    let image = format!("image={}", images[2]);
    many.control(&["add", "c", &image, "type=raw"]);
    many.control(&["remove", "b"]);
    let mut client = many.client("c").unwrap();
    let reload = || many.control(&["reload"]).trim().to_owned();
    assert_eq!(reload(), "1 volumes added, 0 removed, 0 changed");
    assert_eq!(many.listed("b")["added"], false, "a removed volume of the file does not come back");
    client.read(0, 512).unwrap();
    // The file must agree with what was added.
    many.rewrite(&format!("{a}{}", raw("x", &images[2], "")));
    many.call(&["reload"]).fails(1, &["volumes.x.image", "is the image of volume c"]);
    // A file that has the volume takes it over, and a later one without it removes it.
    many.rewrite(&format!("{a}{b}{}", raw("c", &images[2], "max-operations = 77")));
    assert_eq!(reload(), "0 volumes added, 0 removed, 1 changed");
    assert_eq!((&many.listed("c")["added"], &many.listed("c")["max_operations"]), (&false.into(), &77.into()));
    client.read(0, 512).unwrap();
    many.rewrite(&a);
    assert_eq!(reload(), "0 volumes added, 2 removed, 0 changed");
    assert!(client.read(0, 512).is_err());
    many.stop();
}

/// A server whose volume `slow` opens when the file `go` appears.
fn with_slow_volume() -> (Many, impl Fn(&str) -> String) {
    let dir = Dir::new();
    let (image, other, go) = (dir.image("slow", 1), dir.image("other", 1), dir.name("go"));
    let key = dir.file("key", &noise(32));
    let script = format!("while [ ! -e {go} ]; do sleep 0.05; done; cat {key}");
    let config = move |rest: &str| {
        let get = format!("type = \"plain\"\nkey-timeout = 86400\nkey-command = [\"/bin/sh\", \"-c\", \"{script}\"]");
        format!("{}{}", raw("other", &other, ""), volume("slow", &image, &format!("{get}\n{rest}")))
    };
    (Many::start(dir, &config("")), config)
}

#[test]
fn reload_does_not_wait_for_a_volume_that_opens() {
    let (many, config) = with_slow_volume();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| many.client("slow"));
        many.wait_until("slow", "state", "opening");
        // Limits, then options of opening, and other volumes.
        many.rewrite(&config("max-operations = 1234\n"));
        assert_eq!(many.control(&["reload"]).trim(), "0 volumes added, 0 removed, 1 changed");
        let listed = many.listed("slow");
        assert_eq!((&listed["state"], &listed["max_operations"]), (&"opening".into(), &1234.into()));
        many.rewrite(&config("max-operations = 1234\nread-only = true\n"));
        many.control(&["reload"]);
        assert_eq!(many.listed("slow")["state"], "opening");
        many.call(&["remove", "slow"]).fails(5, &["Volume slow is in use by 1 clients"]);
        many.client("other").unwrap().read(0, 512).unwrap();
        many.dir.file("go", b"");
        let mut client = client.join().unwrap().unwrap();
        client.read(0, 512).unwrap();
        assert!(client.write(0, &[1; 512]).is_err(), "it has the options that it began to open with");
        assert_eq!(many.listed("slow")["max_operations"], 1234);
    });
    many.stop();
}

#[test]
fn volume_that_is_removed_while_it_opens_is_closed_again() {
    for by_command in [false, true] {
        let (many, config) = with_slow_volume();
        let image = many.dir.name("slow");
        std::thread::scope(|scope| {
            let client = scope.spawn(|| many.client("slow").map(drop));
            many.wait_until("slow", "state", "opening");
            let removed = by_command.then(|| scope.spawn(|| many.control(&["remove", "slow", "--force"])));
            if !by_command {
                many.rewrite(config("").split("[volumes.slow]").next().unwrap());
                assert_eq!(many.control(&["reload"]).trim(), "0 volumes added, 1 removed, 0 changed");
            }
            many.wait_until("slow", "state", "closing");
            assert!(!client.is_finished(), "the client of a volume that opens is refused early");
            many.dir.file("go", b"");
            assert!(client.join().unwrap().is_err(), "a client has a volume that was removed");
            removed.map(std::thread::ScopedJoinHandle::join).transpose().unwrap();
        });
        eventually("it is forgotten", || many.listed("slow"), Value::is_null);
        // Nothing has it open.
        call(["serve", "--type", "raw", &image, "--run", "true"]).works();
        many.stop();
    }
}

/// An NBD server that can stand still. It is killed when dropped.
pub(crate) struct Store(Child);

impl Store {
    pub(crate) fn start(dir: &Dir) -> (Self, String) {
        let (image, socket) = (dir.image("stored", 4), dir.name("store"));
        let mut command = crate::harness::inlock();
        command.args(["serve", "--type", "raw", &image, "--nbd", &format!("unix:{socket}")]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut uri = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
        (Self(child), uri.trim().to_owned())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Receives the replies to reads of `len` bytes.
fn receive(client: &mut Connection, number: usize, len: u64) {
    for _ in 0..number {
        let reply = client.reply(len as usize).expect("a reply");
        assert_eq!((reply.error, reply.data.len() as u64), (0, len));
    }
}

#[test]
fn bytes_in_flight_are_limited_while_the_store_stands_still() {
    let dir = Dir::new();
    let (store, uri) = Store::start(&dir);
    // A worker has many buffers of this length, so that only the limit holds requests up.
    const LEN: u64 = 4096;
    let config = |limit: u64| raw("v", &uri, &format!("max-in-flight = {limit}"));
    let many = Many::start(dir, &config(4 * LEN));
    let mut clients = [(); 2].map(|()| many.client("v").unwrap());
    store.signal(Signal::STOP);
    let holds = |requests: u64| {
        many.wait_until("v", "in_flight_bytes", requests * LEN);
        for _ in 0..5 {
            assert_eq!(many.listed("v")["in_flight_bytes"], requests * LEN);
        }
    };
    for (client, held) in clients.iter_mut().zip([2, 4]) {
        for number in 0..40 {
            client.request(0, command::READ, number * LEN, LEN).unwrap();
        }
        // Half of the limit for each.
        holds(held);
    }
    // Exactly as many as the limit has room for, for connected clients too.
    for limit in [4, 20, 20] {
        many.rewrite(&config(limit * LEN));
        many.control(&["reload"]);
        holds(limit);
    }
    assert!(many.listed("v")["throttled_ns"].as_u64().unwrap() > 0);
    let text = many.control(&["status", "v"]);
    assert!(text.contains("  in flight: 81920 bytes, throttled for "), "{text}");
    store.signal(Signal::CONT);
    clients.iter_mut().for_each(|client| receive(client, 40, LEN));
    many.wait_until("v", "in_flight_bytes", 0);
    let throttled = many.listed("v")["throttled_ns"].clone();
    assert_eq!(many.listed("v")["throttled_ns"], throttled, "it counts although nothing waits");
    count("many_requests_held_in_their_sockets", 2 * 40 - 20);
    drop(clients);
    many.stop();
}

#[test]
fn limit_below_one_request_holds_up_none() {
    const LEN: u64 = 16 << 10;
    let dir = Dir::new();
    let image = dir.image("a", 4);
    let many = Many::start(dir, &raw("a", &image, "max-in-flight = 1\nthreads = 2"));
    let mut clients = [(); 4].map(|()| many.client("a").unwrap());
    for client in &mut clients {
        for number in 0..40 {
            client.request(0, command::READ, number * LEN, LEN).unwrap();
        }
    }
    clients.iter_mut().for_each(|client| receive(client, 40, LEN));
    clients[0].write(0, &noise(3 << 20)).unwrap();
    assert!(clients[1].read(0, 3 << 20).unwrap() == noise(3 << 20));
    many.stop();
}
