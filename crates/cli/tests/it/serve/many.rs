//! `serve --config`: many volumes in one process.

use super::stop_child;
use crate::harness::{Dir, call, inlock, noise};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const START: &str = "hint: start the server with --control SOCKET, or check the path\n";

/// A server, and the files of its test.
pub(crate) struct Many {
    pub(crate) dir: Dir,
    pub(crate) child: Child,
    pub(crate) nbd: PathBuf,
    pub(crate) control: String,
}

impl Many {
    pub(crate) fn start(dir: Dir, config: &str) -> Self {
        Self::start_with(dir, config, &[])
    }

    /// Starts a server with more options.
    pub(crate) fn start_with(dir: Dir, config: &str, more: &[&str]) -> Self {
        Self::start_by(inlock(), dir, config, more)
    }

    /// Starts a server with a command that ends in that of Inlock.
    pub(crate) fn start_by(mut command: Command, dir: Dir, config: &str, more: &[&str]) -> Self {
        let config = dir.file("volumes.toml", config.as_bytes());
        let (nbd, control) = (dir.path("nbd"), dir.name("control"));
        let address = format!("unix:{}", nbd.display());
        command.args(["serve", "--config", &config, "--nbd", &address, "--control", &control]).args(more);
        // The server has settings of its own: with these, memory that is free would stay with the process.
        command.env("MALLOC_TRIM_THRESHOLD_", "1000000000").env("MALLOC_ARENA_MAX", "1000");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut uri = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
        assert!(uri.starts_with("nbd+unix:"), "{uri}");
        Self { dir, child, nbd, control }
    }

    /// Connects to a volume.
    pub(crate) fn client(&self, name: &str) -> Result<Connection, String> {
        let mut client = Connection::haggle(&self.nbd, Duration::from_secs(300)).expect("a server");
        client.go(name.as_bytes()).map_err(|error| error.to_string())?;
        Ok(client)
    }

    /// Runs a command, and returns its output. Lists are JSON.
    pub(crate) fn control(&self, words: &[&str]) -> String {
        let words = if words == ["list"] { &["list", "--json"] } else { words };
        call(["control", &self.control].iter().copied().chain(words.iter().copied())).works().text().to_owned()
    }

    pub(crate) fn rewrite(&self, config: &str) {
        self.dir.file("volumes.toml", config.as_bytes());
    }

    pub(crate) fn stop(self) -> String {
        self.stop_with(0)
    }

    /// Stops the server, which exits with a status, and returns its messages.
    pub(crate) fn stop_with(mut self, status: i32) -> String {
        let (code, err) = stop_child(&mut self.child, Signal::TERM);
        assert_eq!(code, Some(status), "{err}");
        assert!(!self.nbd.exists() && !self.dir.path("control").exists(), "a socket stays");
        err
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        // It runs still if a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn volume(name: &str, image: &str, rest: &str) -> String {
    format!("[volumes.{name}]\nimage = \"{image}\"\n{rest}\n")
}

#[test]
fn name_chooses_volume_and_its_key() {
    let dir = Dir::new();
    let (luks, plain, third) = (dir.luks2("luks"), dir.image("plain", 1), dir.image("third", 1));
    let (secret, key) = (dir.file("secret", b"secret"), dir.file("key", &noise(32)));
    let config = format!(
        "default = \"plain\"\n{}{}{}{}",
        volume("luks", &luks, &format!("key-file = \"{secret}\"")),
        volume("plain", &plain, &format!("type = \"plain\"\nkey-command = [\"/bin/cat\", \"{key}\"]")),
        volume("hidden", &third, "type = \"raw\"\nlisted = false\nread-only = true"),
        volume("missing", "/nonexistent/image", "type = \"raw\""),
    );
    let many = Many::start(dir, &config);
    assert_eq!(many.control(&["list"]).matches("\"closed\"").count(), 4, "a volume is open before its first client");
    let (mut a, mut b) = (many.client("luks").unwrap(), many.client("plain").unwrap());
    a.write(4096, &[1; 8192]).unwrap();
    b.write(4096, &[2; 8192]).unwrap();
    assert!(a.read(4096, 8192).unwrap() == [1; 8192] && b.read(4096, 8192).unwrap() == [2; 8192]);
    let mut unnamed = many.client("").unwrap();
    assert!(unnamed.read(4096, 8192).unwrap() == [2; 8192], "the empty name is not the default");
    let mut hidden = many.client("hidden").unwrap();
    assert!(hidden.write(0, &[1; 512]).is_err(), "a read-only volume was written");
    assert!(many.client("none").is_err());
    assert!(many.client("missing").is_err());
    // The failure of one costs the others nothing.
    assert!(a.read(4096, 8192).unwrap() == [1; 8192]);
    let mut asking = Connection::haggle(&many.nbd, Duration::from_secs(300)).unwrap();
    asking.send(&inlock_tests::nbd::option_bytes(3, b"")).unwrap();
    let listed: Vec<_> = asking.option_replies().unwrap().into_iter().map(|reply| format!("{reply:?}")).collect();
    assert_eq!(listed.len(), 4, "three names and the end: {listed:?}");
    drop((a, b, unnamed, hidden, asking));
    let text = many.stop();
    assert!(text.contains("volume missing: ") && text.contains("/nonexistent/image"), "{text}");
}

#[test]
fn meaning_of_holes_is_one_of_the_volume() {
    let dir = Dir::new();
    let secret = dir.file("secret", b"secret");
    let luks = |name: &str, holes: &str| {
        volume(name, &dir.luks2(name), &format!("key-file = \"{secret}\"\nholes = \"{holes}\""))
    };
    let config = [luks("exact", "zero"), luks("usual", "noise")].concat();
    let many = Many::start(dir, &config);
    assert!(many.client("exact").is_err(), "a file has no exact holes");
    let mut client = many.client("usual").unwrap();
    client.read(0, 512).unwrap();
    let status: serde_json::Value = serde_json::from_str(&many.control(&["status", "usual", "--json"])).unwrap();
    assert_eq!(status["zero_holes"], false);
    drop(client);
    let text = many.stop();
    assert!(text.contains("volume exact: Option --holes zero needs an image of Ceph RBD"), "{text}");
}

#[test]
fn ciphertext_is_that_of_the_volumes_key() {
    let dir = Dir::new();
    let (image, key) = (dir.image("plain", 1), dir.file("key", &noise(32)));
    let config = volume("v", &image, &format!("type = \"plain\"\nkey-command = [\"/bin/cat\", \"{key}\"]"));
    let many = Many::start(dir, &config);
    let mut client = many.client("v").unwrap();
    client.write(0, &noise(65536)).unwrap();
    client.flush().unwrap();
    // Closed, the volume can be opened by another process.
    many.control(&["close", "v", "--force"]);
    assert!(client.read(0, 512).is_err(), "a client of a closed volume is connected");
    let words = ["export", &image, "-", "--type", "plain", "-d", &key, "--range", "0:65536"];
    assert!(call(words).works().out == noise(65536));
    // The next client opens it again.
    assert!(many.client("v").unwrap().read(0, 65536).unwrap() == noise(65536));
    many.stop();
}

#[test]
fn key_command_that_fails_costs_its_volume_only() {
    let dir = Dir::new();
    let good = dir.image("good", 1);
    let mut config = volume("good", &good, "type = \"raw\"");
    let cases = [
        ("status", "exit 3", "exited with status 3"),
        ("nothing", "true", "printed no key"),
        ("long", "head -c 5000 /dev/zero", "printed more than 4096 bytes"),
        ("slow", "sleep 600", "did not finish within 1 s"),
        ("wrong", "printf x", "No key available"),
    ];
    for (name, script, _) in cases {
        let image = if name == "wrong" { dir.luks2(name) } else { dir.image(name, 24) };
        let kind = if name == "wrong" { "luks2" } else { "plain" };
        let rest = format!("type = \"{kind}\"\nkey-timeout = {}\nkey-command = [\"/bin/sh\", \"-c\", \"{script}\"]", {
            if name == "slow" { 1 } else { 300 }
        });
        config += &volume(name, &image, &rest);
    }
    let many = Many::start(dir, &config);
    for (name, ..) in cases {
        assert!(many.client(name).is_err(), "{name}");
        many.client("good").unwrap().read(0, 512).unwrap();
    }
    let err = many.stop();
    for (name, _, text) in cases {
        assert!(
            err.lines().any(|line| line.starts_with(&format!("inlock: volume {name}: ")) && line.contains(text)),
            "{err}"
        );
    }
}

#[test]
fn idle_volume_is_closed() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let many = Many::start(dir, &format!("idle-timeout = 1\n{}", volume("a", &image, "type = \"raw\"")));
    let client = many.client("a").unwrap();
    many.wait_until("a", "state", "open");
    // The image is locked as long as the volume is open.
    call(["serve", "--type", "raw", &image, "--run", "true"]).fails(5, &["is in use"]);
    drop(client);
    many.wait_until("a", "state", "closed");
    call(["serve", "--type", "raw", &image, "--run", "true"]).works();
    many.client("a").unwrap().read(0, 512).unwrap();
    many.stop();
}

#[test]
fn reload_adds_removes_and_limits() {
    let dir = Dir::new();
    let images: Vec<_> = ["a", "b", "c"].map(|name| dir.image(name, 1)).into();
    let raw = |name: &str, image: &str, rest: &str| volume(name, image, &format!("type = \"raw\"\n{rest}"));
    let (a, b) = (raw("a", &images[0], ""), raw("b", &images[1], ""));
    let many = Many::start(dir, &format!("{a}{b}"));
    let (mut keeps, mut leaves) = (many.client("a").unwrap(), many.client("b").unwrap());
    leaves.write(0, &[7; 4096]).unwrap();
    // An invalid file changes nothing.
    many.rewrite(&format!("{a}colour = 1\n"));
    call(["control", &many.control, "reload"]).fails(1, &["line 5, volumes.a.colour: unknown key"]);
    leaves.read(0, 512).unwrap();
    many.client("b").unwrap();
    let limited = raw("a", &images[0], "max-bytes = 123456\n");
    many.rewrite(&format!("{limited}{}", raw("c", &images[2], "")));
    assert_eq!(many.control(&["reload"]).trim(), "1 volumes added, 1 removed, 1 changed");
    assert!(leaves.read(0, 512).is_err(), "a client of a removed volume is connected");
    assert!(many.client("b").is_err());
    assert_eq!(std::fs::read(&images[1]).unwrap()[..4096], [7; 4096]);
    // New limits apply without a new connection.
    keeps.read(0, 512).unwrap();
    assert!(many.control(&["list"]).contains("123456"));
    many.client("c").unwrap().read(0, 512).unwrap();
    // The signal does the same.
    many.rewrite(&raw("a", &images[0], ""));
    kill_process(Pid::from_child(&many.child), Signal::HUP).unwrap();
    eventually("volume c is removed", || many.listed("c"), Value::is_null);
    keeps.read(0, 512).unwrap();
    assert!(many.stop().contains("0 volumes added, 1 removed, 1 changed"));
}

/// As `nohup` starts it. The signal asks for something here, however the server was started.
#[test]
fn signal_reloads_although_the_parent_ignores_it() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let raw = |name: &str| volume(name, &image, "type = \"raw\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_inlock")]);
    let many = Many::start_by(shell, dir, &raw("a"), &[]);
    for name in ["b", "c"] {
        many.rewrite(&raw(name));
        kill_process(Pid::from_child(&many.child), Signal::HUP).unwrap();
        eventually("another volume is listed", || many.listed(name), |row| !row.is_null());
    }
    assert_eq!(many.stop().matches("1 volumes added, 1 removed, 0 changed").count(), 2);
}

#[test]
fn bad_files_are_refused() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let raw = |name: &str| volume(name, &image, "type = \"raw\"");
    for (config, expected) in [
        (format!("{}{}", raw("a"), raw("b")), "line 4, volumes.b.image: "),
        (format!("{}{}", raw("a"), raw("a")), "line 4: duplicate key"),
        (volume("a", &image, ""), "exactly one of key-file, key-command and volume-key-file"),
        ("volumes = 1".to_owned(), "line 1: expected a table for each volume, [volumes.NAME]"),
        ("idle-timeout = -1".to_owned(), "line 1, idle-timeout: expected a number of at least 0."),
    ] {
        let file = dir.file("bad.toml", config.as_bytes());
        call(["serve", "--config", &file, "--nbd", "unix:/nonexistent/x"]).fails(1, &["bad.toml, ", expected]);
    }
    let file = dir.file("good.toml", raw("a").as_bytes());
    call(["serve", "--config", &file]).fails(1, &["--nbd is required with --config"]);
    call(["serve", &image, "--config", &file, "--nbd", "unix:x"]).fails(1, &["<source> is not allowed with --config"]);
    call(["serve", "--config", &dir.name("none"), "--nbd", "unix:x"]).fails(4, &["none"]);
    for words in [&["list"][..], &["top", "--once"]] {
        let unreachable = call(["control", &dir.name("none")].iter().copied().chain(words.iter().copied()));
        unreachable.fails(4, &["The server at ", "cannot be reached: No such file", START]);
    }
    call(["control", &file, "list"]).fails(4, &["cannot be reached: Connection refused", START]);
}

#[test]
fn options_of_stores_hold_for_every_volume() {
    let dir = Dir::new();
    let silent = dir.path("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let uri = format!("nbd+unix:///?socket={}", silent.display());
    let many = Many::start_with(dir, &volume("v", &uri, "type = \"raw\""), &["--connect-timeout", "1"]);
    assert!(many.client("v").is_err());
    let text = many.stop();
    assert!(text.contains("no answer from") && text.contains("within 1 s"), "{text}");
}

#[test]
fn hostile_handshakes_disturb_no_other_client() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let many = Many::start(dir, &volume("a", &image, "type = \"raw\"\nmax-clients = 2"));
    let greet = || Connection::haggle(&many.nbd, Duration::from_secs(300)).unwrap();
    let silent: Vec<_> = (0..20).map(|_| greet()).collect();
    let mut magic = greet();
    magic.send(&[0; 16]).unwrap();
    magic.expect_closed().unwrap();
    let mut unknown = greet();
    unknown.send(&inlock_tests::nbd::option_bytes(1, b"none")).unwrap();
    unknown.expect_closed().unwrap();
    let mut long = greet();
    long.send(&inlock_tests::nbd::option_bytes(7, &vec![0; 20_000])).unwrap();
    assert!(format!("{:?}", long.option_reply().unwrap()).contains(&format!("{}", (1_u32 << 31) | 9)));
    long.go(b"a").unwrap();
    long.read(0, 512).unwrap();
    let second = many.client("a").unwrap();
    assert!(many.client("a").is_err(), "a third client is over the limit");
    drop((silent, second));
    many.stop();
}

#[test]
fn any_of_two_thousand_closed_volumes_opens() {
    let dir = Dir::new();
    let key = dir.file("key", &noise(32));
    let mut config = String::new();
    for number in 0..2000 {
        let image = dir.path(&format!("i{number}"));
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let _ = write!(config, "[volumes.v{number}]\nimage = \"{}\"\n", image.display());
        let _ = write!(config, "type = \"plain\"\nkey-file = \"{key}\"\n");
    }
    let many = Many::start(dir, &config);
    for number in [0, 999, 1999] {
        let mut client = many.client(&format!("v{number}")).unwrap();
        client.write(0, &[3; 4096]).unwrap();
        assert!(client.read(0, 4096).unwrap() == [3; 4096]);
    }
    assert_eq!(many.control(&["list"]).matches("\"name\"").count(), 2000);
    many.stop();
}

#[test]
fn replies_have_the_form_that_was_negotiated() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let many = Many::start(dir, &format!("default = \"a\"\n{}", volume("a", &image, "type = \"raw\"")));
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let mut client = Connection::open(&many.nbd, Duration::from_secs(300), mode).unwrap();
        client.write(512, &[mode as u8 + 1; 512]).unwrap();
        assert!(client.read(512, 512).unwrap() == [mode as u8 + 1; 512], "{mode:?}");
    }
    many.stop();
}

/// The bound of a release build is 100 KiB.
#[test]
fn open_idle_volumes_are_small() {
    const NUMBER: u64 = 200;
    /// Most of it comes once, with any number of volumes.
    const CLOSED_KIB: u64 = 12;
    let dir = Dir::new();
    let key = dir.file("key", &noise(32));
    let mut config = String::new();
    for number in 0..NUMBER {
        let image = dir.image(&format!("i{number}"), 1);
        let kind = format!("type = \"plain\"\nkey-file = \"{key}\"");
        config += &volume(&format!("v{number}"), &image, &kind);
    }
    let many = Many::start(dir, &config);
    let process = format!("/proc/{}", many.child.id());
    let resident = || {
        let text = std::fs::read_to_string(format!("{process}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let threads = || std::fs::read_dir(format!("{process}/task")).unwrap().count();
    let (before, least) = (resident(), threads());
    let mut clients: Vec<_> = (0..NUMBER).map(|number| many.client(&format!("v{number}")).unwrap()).collect();
    for round in 0..2 {
        for client in &mut clients {
            client.write(0, &[round + 1; 4096]).unwrap();
            assert!(client.read(0, 4096).unwrap() == [round + 1; 4096]);
        }
        eventually("all workers have ended", threads, |number| *number <= least);
        let each = resident().saturating_sub(before) / NUMBER;
        assert!(each <= 100, "round {round}: an open idle volume takes {each} KiB");
    }
    // Closed again, they leave little behind.
    drop(clients);
    many.rewrite(&format!("idle-timeout = 1\n{config}"));
    many.control(&["reload"]);
    let open = || many.control(&["list"]).matches("\"open\"").count();
    eventually("all volumes are closed", open, |number| *number == 0);
    let each = || resident().saturating_sub(before) / NUMBER;
    eventually("KiB that a closed volume leaves", each, |kib| *kib <= CLOSED_KIB);
    many.stop();
}

/// A key-command that does not end keeps clients of its own volume waiting, and no others.
#[test]
fn hanging_key_commands_lock_no_other_volume_out() {
    const HANGING: usize = 300;
    let dir = Dir::new();
    let (plain, healthy) = (dir.image("plain", 1), dir.image("healthy", 1));
    let fifo = dir.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut config = volume("healthy", &healthy, "type = \"raw\"");
    for number in 0..HANGING {
        let image = dir.name(&format!("image{number}"));
        std::fs::copy(&plain, &image).unwrap();
        let rest = format!("type = \"plain\"\nkey-timeout = 600\nkey-command = [\"/bin/cat\", \"{}\"]", fifo.display());
        config += &volume(&format!("hanging{number}"), &image, &rest);
    }
    let many = Many::start(dir, &config);
    let waiting: Vec<_> = (0..HANGING)
        .map(|number| {
            let mut client = Connection::haggle(&many.nbd, Duration::from_secs(300)).unwrap();
            let name = format!("hanging{number}");
            let go = inlock_tests::nbd::go_data(name.as_bytes(), &[]);
            client.send(&inlock_tests::nbd::option_bytes(inlock_tests::nbd::option::GO, &go)).unwrap();
            client
        })
        .collect();
    let opening = || many.control(&["list"]).matches("\"opening\"").count();
    eventually("all volumes wait for their keys", opening, |number| *number == HANGING);
    for _ in 0..20 {
        many.client("healthy").unwrap().read(0, 512).unwrap();
    }
    // Each helper finds the end of the pipe, also one that opens it late.
    let end = || {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        drop(rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()));
        opening()
    };
    eventually("all have failed", end, |number| *number == 0);
    drop(waiting);
    many.stop();
}
