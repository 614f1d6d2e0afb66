//! Control of a running volume: names, status, list, close, and misbehaving clients.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, call};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn socket_and_state_file_are_private_and_removed_on_close() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
    let mode = |path| std::fs::metadata(run.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data.sock"), mode("data.json"), mode("data.lock"), mode("")), (0o600, 0o600, 0o600, 0o700));
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
    assert_eq!(run.left(), [] as [String; 0]);
    run.call(&["close", "data"]).fails(4, &["data is not active", "inlock list"]);
}

#[test]
fn status_reads_like_cryptsetup() {
    let dir = Dir::new();
    let run = Run::new();
    let (two, one) = (dir.luks2("two"), dir.luks1("one"));
    let _two = Named::start(&run, "two", &["--allow-discards", &two]);
    let text = run.call(&["status", "two"]).works().text().to_owned();
    let lines: Vec<&str> = text.lines().collect();
    let image = std::fs::canonicalize(&two).unwrap();
    let wanted = [
        "two is active.",
        "  type:    LUKS2",
        "  cipher:  aes-xts-plain64",
        "  keysize: 512 [bits]",
        "  key location: process memory",
        &format!("  device:  {}", image.display()),
        "  sector size:  4096 [bytes]",
        "  offset:  32768 [512-byte units] (16777216 [bytes])",
        "  size:    16384 [512-byte units] (8388608 [bytes])",
        "  mode:    read/write",
        "  flags:   discards",
    ];
    assert_eq!(lines[..wanted.len()], wanted, "{text}");
    assert!(lines[wanted.len()].starts_with("  served:  nbd nbd+unix:///?socket=/"), "{text}");

    let _one = Named::start(&run, "one", &["-r", &one]);
    let text = run.call(&["status", "one"]).works().text().to_owned();
    for line in ["  type:    LUKS1", "  sector size:  512 [bytes]", "  mode:    readonly"] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }

    let plain = dir.image("plain", 1);
    let words = ["--type", "plain", "--skip", "8", "--offset", "16", "-c", "aes-cbc-essiv:sha256", &plain];
    let _plain = Named::start(&run, "plain", &words);
    let text = run.call(&["status", "plain"]).works().text().to_owned();
    for line in [
        "  type:    PLAIN",
        "  cipher:  aes-cbc-essiv:sha256",
        "  keysize: 256 [bits]",
        "  offset:  16 [512-byte units] (8192 [bytes])",
        "  skipped: 8 [512-byte units]",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }

    let list = run.call(&["list"]).works().text().to_owned();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["NAME", "one", "plain", "two"], "{list}");
    let list = run.json(&["list", "--json"]);
    let states: Vec<[&str; 3]> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| ["name", "state", "type"].map(|column| row[column].as_str().unwrap()))
        .collect();
    assert_eq!(states, [["one", "active", "LUKS1"], ["plain", "active", "PLAIN"], ["two", "active", "LUKS2"]]);
}

#[test]
fn name_in_use_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    let (first, second) = (dir.image("first", 1), dir.image("second", 1));
    let server = Named::start(&run, "data", &["--type", "raw", &first]);
    let refused = run.call(&["serve", "--name", "data", "--type", "raw", &second, "--run", "true"]);
    refused.fails(5, &["data already exists", &format!("process {}", server.pid())]);
    run.call(&["status", "data"]).works();
    run.call(&["close", "data"]).works();
    run.call(&["serve", "--name", "data", "--type", "raw", &second, "--run", "true"]).works();
    assert_eq!(run.left(), [] as [String; 0]);
}

#[test]
fn closed_volume_opens_again_at_once() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 1);
    for _ in 0..5 {
        let _server = Named::start(&run, "data", &["--type", "raw", &image]);
        run.call(&["close", "data"]).works();
    }
}

#[test]
fn files_of_killed_process_are_reported_and_cleaned_up() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 1);
    let mut server = Named::start(&run, "data", &["--type", "raw", &image]);
    let pid = server.pid();
    server.kill();
    assert!(run.path("data.json").exists() && run.path("data.sock").exists());
    let gone = run.call(&["status", "data"]);
    gone.fails(4, &["has died", &pid.to_string(), "inlock close data"]);
    assert_eq!(gone.text(), "data is inactive.\n");
    assert_eq!(run.json_of(4, &["status", "data", "--json"])["active"], false);
    assert_eq!(run.json(&["list", "--json"])[0]["state"], "gone");
    run.call(&["suspend", "data"]).fails(4, &["has died"]);
    run.call(&["close", "data"]).works();
    assert_eq!(run.left(), [] as [String; 0]);

    // A new server takes over the name of a dead one without `close`.
    Named::start(&run, "data", &["--type", "raw", &image]).kill();
    let _server = Named::start(&run, "data", &["--type", "raw", &image]);
    assert_eq!(run.json(&["status", "data", "--json"])["active"], true);
}

#[test]
fn json_has_names_in_common_and_no_fingerprint() {
    let dir = Dir::new();
    let run = Run::new();
    let (image, key) = (dir.image("image", 1), dir.file("key", &[7; 32]));
    let mut server = Named::start(&run, "data", &["--type", "plain", "--key-file", &key, &image]);
    let (status, listed) = (run.json(&["status", "data", "--json"]), run.json(&["list", "--json"]));
    assert_eq!((&status["state"], &listed[0]["state"]), (&"active".into(), &"active".into()));
    assert!(status["endpoint"].as_str().is_some_and(|uri| uri.starts_with("nbd+unix:")), "{status}");
    assert_eq!((&listed[0]["endpoint"], &listed[0]["place"]), (&status["endpoint"], &status["endpoint"]));
    assert_eq!(status["segments"][0]["iv_large_sectors"], false);
    server.kill();
    let left: serde_json::Value = serde_json::from_slice(&std::fs::read(run.path("data.json")).unwrap()).unwrap();
    assert!(left["key_fingerprint"].is_object());
    let gone = run.json_of(4, &["status", "data", "--json"]);
    assert_eq!((&gone["state"], &gone["endpoint"]), (&"gone".into(), &status["endpoint"]));
    assert!(gone.get("key_fingerprint").is_none(), "{gone}");
}

#[test]
fn status_of_unknown_name_is_inactive() {
    let run = Run::new();
    let none = run.call(&["status", "data"]);
    assert_eq!((none.code, none.text(), none.err.as_str()), (4, "data is inactive.\n", ""));
    assert_eq!(run.json_of(4, &["status", "data", "--json"])["state"], "inactive");
    assert_eq!(run.json_of(4, &["status", "data", "--json"])["active"], false);
    assert_eq!(run.call(&["list"]).works().text(), "");
    assert_eq!(run.json(&["list", "--json"]).as_array().unwrap().len(), 0);
    for action in ["suspend", "resume", "close"] {
        run.call(&[action, "data"]).fails(4, &["data is not active"]);
    }
    for name in ["a/b", "..", "a b", ""] {
        assert_eq!(run.call(&["status", name]).code, 1, "{name:?}");
    }
}

/// Stops a process, and waits until all its threads are stopped.
fn stop_all_threads(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::STOP).expect("it runs");
    let state = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("readable").path().join("stat")).expect("readable");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
    };
    let states = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("readable").map(state).collect::<Vec<_>>();
    eventually("all threads are stopped", states, |states| states.iter().all(|state| *state == 'T'));
}

#[test]
fn unresponsive_process_is_named() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
    stop_all_threads(server.pid());
    run.call(&["status", "data"]).fails(5, &["does not respond", &server.pid().to_string()]);
    kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::CONT).unwrap();
    run.call(&["status", "data"]).works();
    // Without its socket a live process cannot be reached.
    std::fs::remove_file(run.path("data.sock")).unwrap();
    run.call(&["status", "data"]).fails(5, &["does not respond", &server.pid().to_string()]);
    assert_eq!(run.json(&["list", "--json"])[0]["state"], "unreachable");
}

#[test]
fn silent_and_wrong_clients_delay_no_other() {
    let dir = Dir::new();
    let run = Run::new();
    let _server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
    let connect = || UnixStream::connect(run.path("data.sock")).unwrap();
    // More clients than the server keeps, some of them in the middle of a line.
    let silent: Vec<UnixStream> = (0..100)
        .map(|number| {
            let mut client = connect();
            if number % 2 == 0 {
                let _ = client.write_all(b"{\"command\":");
            }
            client
        })
        .collect();
    run.call(&["status", "data"]).works();

    let ask = |line: &[u8]| {
        let mut client = connect();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = client.write_all(line);
        let mut answer = String::new();
        let _ = BufReader::new(client).read_line(&mut answer);
        answer
    };
    for line in
        [&b"\n"[..], b"{}\n", b"[]\n", b"null\n", b"{\"command\":7}\n", b"{\"command\":\"dance\"}\n", b"\xff\xfe\n"]
    {
        assert!(ask(line).starts_with("{\"ok\":false,\"error\":"), "{line:?}: {}", ask(line));
    }
    let deep = [vec![b'['; 3000], b"\n".to_vec()].concat();
    assert!(ask(&deep).contains("\"exit\":1"), "{}", ask(&deep));
    let long = [vec![b' '; 1 << 20], b"\n".to_vec()].concat();
    assert!(ask(&long).contains("at most 4096 bytes"), "{}", ask(&long));
    // Several lines at once are answered in order.
    let mut client = connect();
    client.write_all(&b"{\"command\":\"status\"}\n".repeat(20)).unwrap();
    let answers = BufReader::new(&client).lines().take(20).map(|line| line.unwrap());
    assert!(answers.into_iter().all(|line| line.contains("\"name\":\"data\"")));
    drop(silent);
    run.call(&["status", "data"]).works();
}

#[test]
fn longest_name_and_run_directory_work() {
    let dir = Dir::new();
    let run = Run::deep(100);
    let name = "n".repeat(127);
    let _server = Named::start(&run, &name, &["--type", "raw", &dir.image("image", 1)]);
    assert_eq!(run.json(&["status", &name, "--json"])["name"], name.as_str());
    run.call(&["close", &name]).works();
}

#[test]
fn run_directory_writable_by_others_is_refused() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    std::fs::set_permissions(dir.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = crate::harness::inlock();
    command
        .env("INLOCK_RUN_DIR", dir.path("run"))
        .args(["serve", "--name", "x", "--type", "raw", &image, "--run", "true"]);
    let named = format!("Directory {} of INLOCK_RUN_DIR cannot be used.", dir.name("run"));
    crate::harness::run(&mut command, b"").fails(1, &[&named, "hint: set INLOCK_RUN_DIR to"]);
    call(["serve", "--name", "a/b", "--type", "raw", &image, "--run", "true"]).fails(1, &["--name", "letters"]);
}

/// Runs `inlock` in `run` for at most a minute; status 124: it hung.
fn call_within_a_minute(run: &Run, input: &[u8], words: &[&str]) -> crate::harness::Ended {
    let mut command = Command::new("timeout");
    command.env("INLOCK_RUN_DIR", run.path("")).args(["60", env!("CARGO_BIN_EXE_inlock")]).args(words);
    crate::harness::run(&mut command, input)
}

/// Passes several kinds of descriptors with a command, which is refused.
fn hand_over(run: &Run, command: &str, kind: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hand_over.py");
    let line = format!("{{\"command\":\"{command}\"}}");
    let mut python = Command::new("python3");
    let answer = crate::harness::run(python.arg(script).arg(run.path("data.sock")).args([&line, kind]), b"");
    assert!(answer.out.starts_with(b"{\"ok\":false,"), "{kind}, {command}: {answer:?}");
    call_within_a_minute(run, b"", &["status", "data"]).works();
}

#[test]
fn received_descriptor_that_blocks_delays_no_command() {
    if !crate::harness::have("python3") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    for kind in ["socket_below_its_low_water_mark", "pipe_that_others_read", "silent_pipe", "/dev/zero"] {
        let run = Run::new();
        let server = Named::start(&run, "data", &[&image]);
        run.call(&["suspend", "data"]).works();
        hand_over(&run, "reload", kind);
        hand_over(&run, "resume", kind);
        call_within_a_minute(&run, b"secret", &["resume", "data"]).works();
        call_within_a_minute(&run, b"", &["close", "data"]).works();
        assert_eq!(server.ended(), (Some(0), String::new()), "{kind}");
    }
}

#[test]
fn received_file_of_suspended_volume_is_not_read() {
    if !crate::harness::have("python3") {
        return;
    }
    if !crate::harness::has_fuse() {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let opened = run.call_with(b"secret", &["open", "--via", "fuse", &image, "data"]);
    let file = opened.works().text().trim().to_owned();
    run.call(&["suspend", "data"]).works();
    // A read of it blocks until the volume is resumed.
    hand_over(&run, "resume", &file);
    call_within_a_minute(&run, b"secret", &["resume", "data"]).works();
    call_within_a_minute(&run, b"", &["close", "data"]).works();
}

#[test]
fn silent_clients_do_not_delay_shutdown() {
    let dir = Dir::new();
    for by_signal in [false, true] {
        let run = Run::new();
        let server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
        let connect = || UnixStream::connect(run.path("data.sock")).unwrap();
        let _silent: Vec<_> = (0..8).map(|_| connect()).collect();
        let mut half = connect();
        half.write_all(b"{\"command\":\"cl").unwrap();
        match by_signal {
            true => kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::TERM).unwrap(),
            false => drop(call_within_a_minute(&run, b"", &["close", "data"]).works()),
        }
        assert_eq!(server.ended(), (Some(0), String::new()));
    }
}

#[test]
fn full_backlog_of_stopped_process_times_out() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
    stop_all_threads(server.pid());
    let address = rustix::net::SocketAddrUnix::new(run.path("data.sock")).unwrap();
    let mut waiting = Vec::new();
    loop {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        if connect(&client, &address).is_err() {
            break;
        }
        waiting.push(client);
    }
    assert!(waiting.len() > 1);
    for words in [&["status", "data"][..], &["suspend", "data"]] {
        call_within_a_minute(&run, b"", words).fails(5, &["does not respond", &server.pid().to_string()]);
    }
    kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::CONT).unwrap();
    drop(waiting);
    run.call(&["status", "data"]).works();
}

#[test]
fn resize_is_advertised_to_new_clients_of_every_type() {
    let dir = Dir::new();
    let run = Run::new();
    let open =
        |server: &Named| Connection::open(server.socket.as_ref(), Duration::from_secs(60), Mode::Simple).unwrap();
    let plain = dir.image("plain", 4);
    for (name, words, image) in [
        ("raw", &["--type", "raw"][..], dir.image("raw", 4)),
        ("plain", &["--type", "plain", "-c", "aes-xts-plain64", "-s", "512", "--hash", "sha256"], plain),
        ("luks1", &[], dir.luks1("luks1")),
        ("luks2", &[], dir.luks2("luks2")),
    ] {
        let server = Named::start(&run, name, &[words, &[&image]].concat());
        let mut before = open(&server);
        let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(file.metadata().unwrap().len() + (3 << 20)).unwrap();
        run.call(&["resize", name]).works();
        let mut after = open(&server);
        assert_eq!(after.size, before.size + (3 << 20), "{name}");
        after.write(before.size + 5000, &[7; 9000]).unwrap();
        assert_eq!(before.read(before.size + 5000, 9000).unwrap(), [7; 9000], "{name}");
        run.call(&["close", name]).works();
        assert_eq!(server.ended(), (Some(0), String::new()));
    }
}

#[test]
fn resize_sets_length_and_options_of_running_volume_are_checked() {
    let dir = Dir::new();
    let run = Run::new();
    let (image, other) = (dir.luks2("image"), dir.luks2("other"));
    let (good, wrong) = (dir.file("good", b"secret"), dir.file("wrong", b"wrong"));
    call(["luksUUID", "-q", "--uuid", "11111111-2222-3333-4444-555555555555", &other]).works();
    let server = Named::start(&run, "data", &[&image]);
    let size = |run: &Run| {
        let text = run.call(&["status", "data"]).works().text().to_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("  size:    ").map(str::to_owned));
        line.and_then(|line| line.split(' ').next()?.parse::<u64>().ok()).expect("a size")
    };
    let full = size(&run);
    run.call(&["resize", "data", "--size", "800"]).works();
    assert_eq!(size(&run), 800);
    run.call(&["resize", "data", "--device-size", "512K", "-d", &good, "--header", &image]).works();
    assert_eq!(size(&run), 1024);
    let refused = "The volume cannot be resized: ";
    run.call(&["resize", "data", "--size", "801"]).fails(1, &[refused, "hint: give a --size of whole encryption"]);
    run.call(&["resize", "data", "--size", "99999999992"]).fails(1, &[refused, "hint: enlarge the image first"]);
    run.call(&["resize", "data", "--size", "800", "-d", &wrong]).fails(2, &["No key available with this passphrase."]);
    let not_its_header = "does not have the header of data.";
    run.call(&["resize", "data", "--size", "800", "--header", &other]).fails(1, &[not_its_header]);
    assert_eq!(size(&run), 1024);
    run.call(&["resize", "data"]).works();
    assert_eq!(size(&run), full);

    run.call(&["status", "/dev/mapper/data", "--header", &image]).works();
    run.call(&["status", "data", "--header", &other]).fails(1, &[not_its_header]);
    run.call(&["suspend", "data", "--header", &other]).fails(1, &[not_its_header]);
    run.call(&["suspend", "/dev/inlock/data", "--header", &image]).works();
    run.call(&["resume", "data", "-d", &good, "--type", "luks1"]).fails(1, &["has type luks2, not luks1"]);
    run.call(&["resume", "data", "-d", &good, "--type", "luks2", "--header", &image]).works();
    run.call(&["refresh", &image, "data", "-d", &good, "--type", "luks"]).works();
    run.call(&["open", "--refresh", &image, "data"]).works();
    run.call(&["refresh", &other, "data"]).fails(1, &["Volume data is on device "]);
    run.call(&["refresh", "data", "-d", &wrong]).fails(2, &["No key available with this passphrase."]);
    run.call(&["refresh", "data", "--type", "plain"]).fails(1, &["has type luks2, not plain"]);
    run.call(&["close", "data", "--header", &other]).fails(1, &[not_its_header]);
    run.call(&["close", "data", "--cancel-deferred"]).fails(1, &["This volume is not closed later."]);
    run.call(&["close", "/dev/mapper/data", "--header", &image]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}
