//! Commands that name a volume know the open ones of `serve --config`.

use super::many::{Many, volume};
use crate::harness::control::Run;
use crate::harness::storage::Thin;
use crate::harness::{Dir, inlock, memory, noise};
use inlock_tests::server::Server;
use inlock_tests::wait::eventually;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// Starts a server in a run directory of its own.
fn start(run: &Run, dir: Dir, config: &str) -> Many {
    let mut command = inlock();
    command.env("INLOCK_RUN_DIR", run.path(""));
    Many::start_by(command, dir, config, &[])
}

fn raw(dir: &Dir, name: &str, rest: &str) -> String {
    volume(name, &dir.image(name, 1), &format!("type = \"raw\"\n{rest}"))
}

fn luks(dir: &Dir, name: &str, rest: &str) -> String {
    let secret = dir.file("secret", b"secret");
    volume(name, &dir.luks2(name), &format!("key-file = \"{secret}\"\n{rest}"))
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), signal).expect("it runs");
}

fn state(run: &Run, name: &str) -> Option<String> {
    let listed = run.json(&["list", "--json"]);
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == name)?;
    row["state"].as_str().map(str::to_owned)
}

#[test]
fn open_volumes_are_listed_and_have_a_status_and_rates() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = [raw(&dir, "a", ""), luks(&dir, "b", ""), raw(&dir, "c", "")].concat();
    let many = start(&run, dir, &config);
    let (mut a, mut b) = (many.client("a").unwrap(), many.client("b").unwrap());
    a.write(0, &[1; 4096]).unwrap();
    b.write(0, &[2; 4096]).unwrap();
    let listed = run.json(&["list", "--json"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| (&row["name"], &row["state"])).collect();
    assert_eq!(names, [(&json!("a"), &json!("active")), (&json!("b"), &json!("active"))], "{listed}");
    assert_eq!((&listed[1]["type"], &listed[1]["via"]), (&json!("LUKS2"), &json!("nbd")));
    assert!(run.call(&["list"]).works().text().contains("LUKS2"));
    let uri = listed[1]["endpoint"].as_str().unwrap().to_owned();
    assert!(uri.starts_with("nbd+unix:///b?socket="), "{uri}");
    let status = run.json(&["status", "b", "--json"]);
    assert_eq!((&status["pid"], &status["address"]), (&json!(many.child.id()), &json!(uri)));
    assert_eq!((&status["counters"]["writes"], &status["key_present"]), (&json!(1), &json!(true)));
    assert_eq!((&status["active"], &status["state"]), (&json!(true), &json!("active")));
    let text = run.call(&["status", "b"]).works().text().to_owned();
    assert!(text.starts_with("b is active.\n  type:    LUKS2\n") && text.contains(&uri), "{text}");
    for words in [&["top", "--once", "--json", "b"][..], &["top", "--once", "--json"]] {
        let rates: Value = serde_json::from_str(run.call(words).works().text()).unwrap();
        let row = rates.as_array().unwrap().iter().find(|row| row["name"] == "b").unwrap();
        assert_eq!(row["state"], "active", "{rates}");
        assert!(row["reads"].is_number() || row["rates"].is_object() || row["reads_per_s"].is_number(), "{rates}");
    }
    run.call(&["status", "c"]).fails(4, &[]);
    run.call(&["top", "--once", "c"]).fails(4, &["c is not active"]);
    drop((a, b));
    many.stop();
    assert_eq!(run.left(), [] as [String; 0]);
}

#[test]
fn suspended_volume_has_no_key_and_its_requests_wait_until_it_is_resumed() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = [luks(&dir, "a", ""), luks(&dir, "b", "")].concat();
    let image = dir.name("a");
    let many = start(&run, dir, &config);
    let dump = crate::harness::call_with(
        b"secret",
        ["luksDump", "--dump-volume-key", "-q", &image, "--volume-key-file", &many.dir.name("vk")],
    );
    dump.works();
    let key = std::fs::read(many.dir.path("vk")).unwrap();
    let (mut a, mut b) = (many.client("a").unwrap(), many.client("b").unwrap());
    a.write(0, &[1; 4096]).unwrap();
    let keys = || memory::count(Pid::from_raw(many.child.id() as i32).unwrap(), &[&key[..32], &key[32..]]);
    assert!(keys().is_none_or(|found| found > 0), "the key is not found where it must be");
    run.call(&["suspend", "a"]).works();
    assert!(keys().is_none_or(|found| found == 0), "the key stays");
    assert_eq!(state(&run, "a").as_deref(), Some("suspended"));
    assert_eq!(run.json(&["status", "a", "--json"])["key_present"], false);
    run.call(&["suspend", "a"]).fails(1, &["already suspended", "hint: "]);
    run.call(&["resize", "a"]).fails(1, &["suspended and cannot be resized"]);
    b.write(0, &[3; 4096]).unwrap();
    assert!(b.read(0, 4096).unwrap() == [3; 4096], "another volume waits");
    run.call_with(b"wrong", &["resume", "a"]).fails(2, &["No key available"]);
    a.set_patience(Duration::from_millis(200)).unwrap();
    assert!(a.read(0, 4096).is_err(), "a suspended volume answers");
    run.call_with(b"secret", &["resume", "a"]).works();
    run.call_with(b"secret", &["resume", "a"]).fails(1, &["not suspended"]);
    drop(a);
    let mut a = many.client("a").unwrap();
    assert!(a.read(0, 4096).unwrap() == [1; 4096]);
    drop((a, b));
    many.stop();
}

#[test]
fn suspended_volume_is_not_closed_for_idleness() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = [luks(&dir, "a", "idle-timeout = 1"), raw(&dir, "b", "idle-timeout = 3")].concat();
    let many = start(&run, dir, &config);
    drop(many.client("a").unwrap());
    run.call(&["suspend", "a"]).works();
    drop(many.client("b").unwrap());
    // It was idle for longer when this one is closed.
    eventually("b is closed", || state(&run, "b"), Option::is_none);
    assert_eq!(state(&run, "a").as_deref(), Some("suspended"));
    run.call_with(b"secret", &["resume", "a"]).works();
    eventually("a is closed", || state(&run, "a"), Option::is_none);
    many.stop();
}

#[test]
fn length_table_and_flags_of_an_open_volume_change_by_its_name() {
    let (run, dir) = (Run::new(), Dir::new());
    let (image, other) = (dir.image("t", 1), dir.image("other", 1));
    let table = dir.file("table", format!("0 2048 linear {image} 0\n").as_bytes());
    let new = dir.file("new", format!("0 2048 linear {image} 0\n2048 2048 linear {image} 0\n").as_bytes());
    let config = [raw(&dir, "a", ""), luks(&dir, "f", ""), format!("[volumes.t]\ntable = \"{table}\"\n")].concat();
    let many = start(&run, dir, &config);
    let (_a, mut t, _f) = (many.client("a").unwrap(), many.client("t").unwrap(), many.client("f").unwrap());
    std::fs::File::options().write(true).open(many.dir.path("a")).unwrap().set_len(2 << 20).unwrap();
    run.call(&["resize", "a"]).works();
    assert_eq!(run.json(&["status", "a", "--json"])["sectors"], 4096);
    t.write(0, &[5; 512]).unwrap();
    run.call(&["suspend", "t"]).works();
    run.call(&["reload", "t", "--table", &new]).works();
    run.call(&["resume", "t"]).works();
    assert_eq!(run.json(&["status", "t", "--json"])["sectors"], 4096);
    assert!(t.read(0, 512).unwrap() == [5; 512]);
    let elsewhere = many.dir.file("elsewhere", format!("0 2048 linear {other} 0\n").as_bytes());
    run.call(&["reload", "t", "--table", &elsewhere]).fails(1, &["hint: "]);
    run.call_with(b"secret", &["refresh", "--allow-discards", "f"]).works();
    assert_eq!(run.json(&["status", "f", "--json"])["allow_discards"], true);
    // The file of the server is loaded again by the same word without a volume.
    assert!(many.control(&["reload"]).contains("0 changed"));
    drop((_a, t, _f));
    many.stop();
}

#[test]
fn volume_in_use_is_closed_by_force_only_and_never_later() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = [raw(&dir, "a", ""), raw(&dir, "b", "")].concat();
    let many = start(&run, dir, &config);
    let (mut a, mut b) = (many.client("a").unwrap(), many.client("b").unwrap());
    run.call(&["close", "a"]).fails(5, &["Volume a is in use by 1 clients.", "hint: "]);
    run.call(&["close", "--deferred", "a"]).fails(1, &["cannot be closed later", "hint: "]);
    run.call(&["close", "--cancel-deferred", "a"]).fails(1, &["not closed later"]);
    a.read(0, 512).unwrap();
    run.call(&["close", "--force", "a"]).works();
    assert!(a.read(0, 512).is_err(), "a closed volume answers");
    run.call(&["close", "a"]).fails(4, &["a is not active"]);
    b.read(0, 512).unwrap();
    drop(b);
    eventually("b has no client", || run.call(&["close", "b"]).code, |code| *code == 0);
    // The next client opens it again.
    many.client("b").unwrap().read(0, 512).unwrap();
    many.stop();
}

#[test]
fn suspended_volume_is_closed_and_opens_again() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = luks(&dir, "a", "");
    let many = start(&run, dir, &config);
    let mut client = many.client("a").unwrap();
    client.write(4096, &noise(4096)).unwrap();
    drop(client);
    run.call(&["suspend", "a"]).works();
    eventually("a is closed", || run.call(&["close", "a"]).code, |code| *code == 0);
    let mut client = many.client("a").unwrap();
    assert!(client.read(4096, 4096).unwrap() == noise(4096));
    drop(client);
    many.stop();
}

#[test]
fn close_tells_of_an_idle_volume_whose_closing_has_failed() {
    let (run, dir) = (Run::new(), Dir::new());
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    let config = volume("a", &thin.device.0, "type = \"raw\"\nidle-timeout = 1");
    let many = start(&run, dir, &config);
    let mut client = many.client("a").unwrap();
    for piece in 0..24 {
        client.write(piece << 20, &noise(1 << 20)).unwrap();
    }
    drop(client);
    eventually("a is closed", || state(&run, "a"), Option::is_none);
    run.call(&["close", "a"]).fails(1, &["may be lost"]);
    run.call(&["status", "a"]).fails(4, &["a is not active"]);
    many.stop_with(1);
}

/// A server of two volumes on stores of their own: `a`, whose store hangs over an acknowledged write, and `b`.
struct Hung {
    run: Run,
    many: Many,
    store: Server,
    _other: Server,
    config_of_b: String,
}

impl Hung {
    fn new() -> Self {
        let (run, dir) = (Run::new(), Dir::new());
        let store = |name: &str| {
            let (image, socket) = (dir.image(&format!("{name}.img"), 1), dir.path(name));
            let mut command = inlock();
            command.args(["serve", "--type", "raw", &image, "--nbd", &format!("unix:{}", socket.display())]);
            Server::start(command, socket).unwrap()
        };
        let (first, other) = (store("first"), store("second"));
        let of = |name: &str, store: &Server| {
            volume(name, &format!("nbd+unix:///?socket={}", store.socket().display()), "type = \"raw\"")
        };
        let config_of_b = of("b", &other);
        let many = start(&run, dir, &[of("a", &first), config_of_b.clone()].concat());
        let mut a = many.client("a").unwrap();
        a.write(0, &[1; 4096]).unwrap();
        signal(first.pid(), Signal::STOP);
        drop(a);
        eventually("the client has left", || many.control(&["list"]), |list| !list.contains("\"clients\": 1"));
        Self { run, many, store: first, _other: other, config_of_b }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        signal(self.store.pid(), Signal::CONT);
    }
}

/// A store that does not answer is given up for its own volume alone, and what is lost is told.
#[test]
fn forced_close_gives_up_a_hung_store_and_no_other() {
    let hung = Hung::new();
    let mut b = hung.many.client("b").unwrap();
    hung.run.call(&["close", "--force", "a"]).fails(1, &["may be lost"]);
    assert_eq!(state(&hung.run, "a"), None);
    b.write(0, &[2; 4096]).unwrap();
    b.flush().unwrap();
}

/// As many commands wait as the server executes at the same time.
#[test]
fn forced_close_beside_many_waiting_ones_tells_of_the_loss() {
    let hung = Hung::new();
    std::thread::scope(|scope| {
        let closes: Vec<_> = (0..34).map(|_| scope.spawn(|| hung.run.call(&["close", "a"]).code)).collect();
        eventually("a is being closed", || state(&hung.run, "a"), |state| state.as_deref() == Some("closing"));
        hung.run.call(&["status", "a"]).fails(5, &["Volume a is closing."]);
        hung.run.call(&["close", "--force", "a"]).fails(1, &["may be lost"]);
        for close in closes {
            let code = close.join().unwrap();
            assert!(code == 1 || code == 5, "a close without a flush has status {code}");
        }
    });
}

/// The server executes as many commands as it can, all for `a`.
#[test]
fn forced_close_that_is_not_executed_gives_up_no_store() {
    let hung = Hung::new();
    let mut b = hung.many.client("b").unwrap();
    std::thread::scope(|scope| {
        let mut closes: Vec<_> = (0..66).map(|_| scope.spawn(|| hung.run.call(&["close", "a"]).code)).collect();
        let refused = || closes.iter().filter(|close| close.is_finished()).count();
        eventually("no more commands are executed", refused, |refused| *refused > 0);
        hung.run.call(&["close", "--force", "b"]).fails(5, &["executes as many commands as it can", "hint: "]);
        b.write(0, &[3; 4096]).unwrap();
        b.flush().unwrap();
        signal(hung.store.pid(), Signal::CONT);
        for close in closes.drain(..) {
            assert!(matches!(close.join().unwrap(), 0 | 4 | 5));
        }
    });
}

#[test]
fn volume_that_the_file_has_no_longer_is_given_up_by_its_name() {
    let hung = Hung::new();
    hung.many.rewrite(&hung.config_of_b);
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| crate::harness::call(["control", &hung.many.control, "reload"]));
        eventually("a is being closed", || state(&hung.run, "a"), |state| state.as_deref() == Some("closing"));
        // Others change meanwhile.
        let image = hung.many.dir.image("c", 1);
        hung.many.control(&["add", "c", &format!("image={image}"), "type=raw"]);
        hung.run.call(&["close", "--force", "a"]).fails(1, &["may be lost"]);
        reload.join().unwrap().fails(1, &["0 volumes added, 1 removed", "may be lost"]);
    });
    assert_eq!(hung.many.control(&["list"]).matches("\"name\"").count(), 2);
}

#[test]
fn volume_of_a_server_that_stops_is_given_up_by_its_name() {
    let mut hung = Hung::new();
    signal(hung.many.child.id(), Signal::TERM);
    eventually("a is being closed", || state(&hung.run, "a"), |state| state.as_deref() == Some("closing"));
    hung.run.call(&["close", "--force", "a"]);
    assert_eq!(hung.many.child.wait().unwrap().code(), Some(1), "the loss is not told");
    assert_eq!(hung.run.left(), [] as [String; 0]);
}

#[test]
fn name_of_volumes_of_two_servers_is_ambiguous() {
    let run = Run::new();
    let servers: Vec<_> = (0..2)
        .map(|_| {
            let dir = Dir::new();
            let config = raw(&dir, "a", "");
            start(&run, dir, &config)
        })
        .collect();
    let clients: Vec<_> = servers.iter().map(|many| many.client("a").unwrap()).collect();
    let pid = servers[1].child.id().to_string();
    run.call(&["suspend", "a"]).fails(1, &["Several servers have opened a: processes ", &pid, "hint: "]);
    assert_eq!(run.json(&["list", "--json"]).as_array().unwrap().len(), 2);
    drop(clients);
}

#[test]
fn volume_of_a_server_that_does_not_reply_is_not_called_inactive() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = raw(&dir, "a", "");
    let many = start(&run, dir, &config);
    let _a = many.client("a").unwrap();
    signal(many.child.id(), Signal::STOP);
    let pid = many.child.id().to_string();
    for words in [&["status", "a"][..], &["close", "a"], &["suspend", "a"]] {
        run.call(words).fails(5, &["does not respond; it may serve a", &pid, "hint: "]);
    }
    run.call(&["list"]).fails(0, &["does not respond", &pid]);
    let listed = run.json(&["list", "--json"]);
    assert_eq!((&listed[0]["state"], &listed[0]["pid"]), (&json!("unreachable"), &json!(many.child.id())));
    signal(many.child.id(), Signal::CONT);
    run.call(&["status", "a"]).works();
}

#[test]
fn server_that_was_killed_has_no_volumes_and_the_next_one_removes_its_files() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = raw(&dir, "a", "");
    let mut many = start(&run, dir, &config);
    let a = many.client("a").unwrap();
    many.child.kill().unwrap();
    many.child.wait().unwrap();
    drop(a);
    run.call(&["status", "a"]).fails(4, &[]);
    assert_eq!(run.json(&["list", "--json"]), json!([]));
    assert!(!run.left().is_empty(), "nothing is left to remove");
    let dir = Dir::new();
    let config = raw(&dir, "b", "");
    let next = start(&run, dir, &config);
    let of_next = format!("~{}.", next.child.id());
    assert!(run.left().iter().all(|file| file.starts_with(&of_next)), "{:?}", run.left());
    next.client("b").unwrap().read(0, 512).unwrap();
    next.stop();
    assert_eq!(run.left(), [] as [String; 0]);
}

/// The connection is lost, and the server lives: the volume may be open.
#[test]
fn close_without_a_reply_of_a_living_server_fails() {
    let run = Run::new();
    run.call(&["list"]).works();
    let lock = std::fs::File::create(run.path("~1.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let listener = UnixListener::bind(run.path("~1.sock")).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("\"state\""));
        client.write_all(b"{\"ok\":true,\"state\":\"open\"}\n").unwrap();
        assert!(lines.next().unwrap().unwrap().contains("\"close\""));
    });
    run.call(&["close", "a"]).fails(5, &["The process serving a does not respond"]);
    serving.join().unwrap();
}

#[test]
fn name_of_a_volume_that_is_served_alone_comes_first() {
    let (run, dir) = (Run::new(), Dir::new());
    let config = raw(&dir, "data", "");
    let many = start(&run, dir, &config);
    let _client = many.client("data").unwrap();
    let dir = Dir::new();
    let alone = crate::harness::control::Named::start(&run, "data", &["--type", "raw", &dir.image("x", 2)]);
    assert_eq!(run.json(&["status", "data", "--json"])["pid"], alone.pid());
    run.call(&["close", "data"]).works();
    assert_eq!(run.json(&["status", "data", "--json"])["pid"], many.child.id());
}
