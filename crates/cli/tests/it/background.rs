//! Background processes: inherited descriptors, files left behind, and failures at startup.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, call_with, inlock, run};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, getsid, kill_process, test_kill_process};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

/// A passphrase that can be found in memory.
const SECRET: &[u8] = b"a passphrase of this test alone";

fn luks(dir: &Dir) -> String {
    let image = dir.image("image", 24);
    call_with(SECRET, ["luksFormat", "-q", &image].into_iter().chain(FAST)).works();
    image
}

/// Starts a server in the background, and returns its output and its process.
fn background(run: &Run, name: &str, input: &[u8], words: &[&str]) -> (String, Pid) {
    let all = [&["serve", "--background", "--name", name][..], words].concat();
    let started = run.call_with(input, &all);
    let uri = started.works().text().to_owned();
    let pid = run.json(&["status", name, "--json"])["pid"].as_i64().expect("as it should");
    (uri, Pid::from_raw(pid as i32).expect("as it should"))
}

#[test]
fn background_server_is_ready_on_return_and_runs_until_close() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = luks(&dir);
    let socket = runs.socket("nbd");
    let (uri, pid) = background(&runs, "data", SECRET, &[&image, "--nbd", &format!("unix:{socket}")]);
    assert_eq!(uri, format!("nbd+unix:///?socket={socket}\n"));
    assert_eq!(getsid(Some(pid)).unwrap(), pid, "it has no session of its own");
    let proc = |file: &str| format!("/proc/{}/{file}", pid.as_raw_nonzero());
    assert_eq!(std::fs::read_to_string(proc("comm")).unwrap(), "inlock\n");
    if let Ok(cwd) = std::fs::read_link(proc("cwd")) {
        assert_eq!(cwd.to_str(), Some("/"));
        let log = runs.path("data.log");
        let files = [0, 1, 2].map(|fd| std::fs::read_link(proc(&format!("fd/{fd}"))).unwrap());
        assert_eq!(files, ["/dev/null".into(), log.clone(), log]);
    } else {
        println!("SKIPPED: only root looks into a process that is not dumpable");
    }
    crate::harness::call(["serve", &image, "--run", "true"]).fails(5, &["is in use"]);
    runs.call(&["close", "data"]).works();
    assert_eq!(runs.left(), [] as [String; 0]);
    // The process has exited when `close` returns.
    assert!(test_kill_process(pid).is_err() || is_zombie(pid));
    call_with(SECRET, ["serve", &image, "--run", "true"]).works();
}

#[test]
fn inherited_descriptors_are_closed_in_background() {
    let dir = Dir::new();
    let runs = Run::new();
    let (image, other) = (dir.image("image", 1), dir.name("other"));
    dir.file("other", b"of the caller");
    let mut shell = std::process::Command::new("sh");
    shell.env("INLOCK_RUN_DIR", runs.path("")).arg("-c");
    // Except a descriptor that an argument names.
    shell.arg(r#"exec 7<"$2" 8<>"$3"; exec "$1" serve --background --type raw /dev/fd/8 --name data --nbd "unix:$4""#);
    shell.args(["sh", env!("CARGO_BIN_EXE_inlock"), &other, &image, &runs.socket("nbd")]);
    run(&mut shell, &[]).works();
    let pid = runs.json(&["status", "data", "--json"])["pid"].as_i64().expect("as it should");
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(open) => {
            let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect();
            assert!(!open.contains(&other.into()) && open.contains(&image.into()), "{open:?}");
        }
        Err(_) => println!("SKIPPED: only root looks into a process that is not dumpable"),
    }
    runs.call(&["close", "data"]).works();
}

/// Whether the process has exited, and its new parent has not reaped it.
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z') || rest.is_empty())
}

#[test]
fn background_accepts_plain_raw_key_files_and_relative_paths() {
    let dir = Dir::new();
    let runs = Run::new();
    dir.image("image", 1);
    dir.file("key", &[7; 64]);
    let words: [&[&str]; 4] = [
        &["--type", "plain", "image"],
        &["--type", "plain", "image", "-d", "key"],
        &["--type", "plain", "image", "-d", "-"],
        &["--type", "raw", "--", "image"],
    ];
    for words in words {
        let mut command = inlock();
        command.current_dir(dir.path("")).env("INLOCK_RUN_DIR", runs.path(""));
        command.args(["serve", "--background", "--name", "data", "--nbd", "unix:socket"]).args(words);
        let started = run(&mut command, &[5; 32]);
        assert_eq!(started.works().text(), format!("nbd+unix:///?socket={}\n", dir.name("socket")), "{words:?}");
        runs.call(&["close", "data"]).works();
        assert!(!dir.path("socket").exists());
    }
}

#[test]
fn startup_failure_in_background_has_its_own_status() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = luks(&dir);
    let address = format!("unix:{}", runs.socket("nbd"));
    let start = |input: &[u8], words: &[&str]| {
        let all = [&["serve", "--background", "--nbd", &address][..], words].concat();
        let ended = runs.call_with(input, &all);
        assert!(ended.out.is_empty(), "{ended:?}");
        ended
    };
    start(b"wrong", &["--name", "data", &image]).fails(2, &["No key available with this passphrase."]);
    start(b"", &["--name", "data", &image]).fails(1, &["Nothing to read on input."]);
    start(SECRET, &["--name", "data", "/nonexistent"]).fails(4, &["does not exist"]);
    start(SECRET, &["--name", "data", &dir.image("empty", 1)]).fails(1, &["is not a valid LUKS device"]);
    start(SECRET, &[&image]).fails(1, &["--background needs --name"]);
    start(SECRET, &["--name", "data", &image, "--run", "true"]).fails(1, &["--background is not allowed with --run"]);
    let bad = format!("unix:{}", dir.name("no/such/dir"));
    start(SECRET, &["--name", "data", &image, "--nbd", &bad]).fails(1, &["cannot listen", "No such file"]);
    assert_eq!(runs.left(), [] as [String; 0]);

    let _other = Named::start(&runs, "data", &["--type", "raw", &dir.image("other", 1)]);
    start(SECRET, &["--name", "data", &image]).fails(5, &["data already exists"]);
    start(SECRET, &["--name", "new", "--type", "raw", &dir.name("other")]).fails(5, &["is in use"]);
    crate::harness::call(["serve", "--launched", &image, "--run", "true"])
        .fails(1, &["Option --launched is internal."]);
}

#[test]
fn background_child_of_killed_command_exits() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = luks(&dir);
    let mut command = inlock();
    command.env("INLOCK_RUN_DIR", runs.path("")).args(["serve", "--background", "--name", "data", &image]);
    command.args(["--nbd", &format!("unix:{}", runs.socket("nbd"))]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Standard input stays open, so the command waits for the passphrase, and its child holds name and device.
    eventually("the name is locked", || runs.path("data.lock").exists(), |locked| *locked);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("no file is left", || runs.left(), Vec::is_empty);
    call_with(SECRET, ["serve", &image, "--run", "true"]).works();
}

#[test]
fn signal_drains_and_killed_server_is_gone() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = luks(&dir);
    let address = format!("unix:{}", runs.socket("nbd"));
    let (_, pid) = background(&runs, "data", SECRET, &[&image, "--nbd", &address]);
    kill_process(pid, Signal::TERM).unwrap();
    eventually("no file is left", || runs.left(), Vec::is_empty);
    let (_, pid) = background(&runs, "data", SECRET, &[&image, "--nbd", &address]);
    kill_process(pid, Signal::KILL).unwrap();
    eventually("the server has died", || runs.call(&["status", "data"]), |status| status.err.contains("has died"));
    let (_, _) = background(&runs, "data", SECRET, &[&image, "--nbd", &address]);
    runs.call(&["close", "data"]).works();
    assert_eq!(runs.left(), [] as [String; 0]);
}

#[test]
fn service_manager_is_notified() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = dir.image("image", 1);
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut room = [0; 1000];
        let len = manager.recv(&mut room).unwrap();
        String::from_utf8(room[..len].to_vec()).unwrap()
    };
    let mut command = inlock();
    command.env("INLOCK_RUN_DIR", runs.path("")).env("NOTIFY_SOCKET", dir.path("notify"));
    command.args([
        "serve",
        "--name",
        "data",
        "--type",
        "raw",
        &image,
        "--nbd",
        &format!("unix:{}", runs.socket("nbd")),
    ]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready = told();
    assert!(ready.contains("READY=1\n") && ready.contains(&format!("MAINPID={}\n", child.id())), "{ready}");
    runs.call(&["close", "data"]).works();
    assert!(told().contains("STOPPING=1"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn background_process_never_has_passphrase() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = luks(&dir);
    let (_, pid) = background(&runs, "data", SECRET, &[&image, "--nbd", &format!("unix:{}", runs.socket("nbd"))]);
    if let Some(found) = crate::harness::memory::count(pid, &[SECRET]) {
        assert_eq!(found, 0, "the passphrase is in the memory of the process");
    }
    // Control: the passphrase is found in a process that has it.
    let mut command = std::process::Command::new("cat");
    let mut cat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = cat.stdin.take().unwrap();
    stdin.write_all(SECRET).unwrap();
    std::io::Read::read_exact(cat.stdout.as_mut().unwrap(), &mut [0; 31]).unwrap();
    if let Some(found) = crate::harness::memory::count(Pid::from_child(&cat), &[SECRET]) {
        assert!(found > 0, "the search does not find what is there");
    }
    drop(stdin);
    cat.wait().unwrap();
    runs.call(&["close", "data"]).works();
}

#[test]
fn key_in_arguments_of_background_process_is_refused() {
    let dir = Dir::new();
    let runs = Run::new();
    let image = dir.image("image", 1);
    let key = "000102030405060708090a0b0c0d0e0f";
    let line = format!("0 2048 crypt aes-cbc-plain {key} 0 {image} 0");
    let nbd = format!("unix:{}", runs.socket("nbd"));
    let serve = |table: &str| runs.call(&["serve", "--background", "--name", "data", "--nbd", &nbd, "--table", table]);
    serve(&line).fails(1, &["would be an argument", "--table FILE"]);
    for table in [dir.file("table", line.as_bytes()), "0 2048 zero".to_owned()] {
        serve(&table).works();
        let pid = runs.json(&["status", "data", "--json"])["pid"].as_u64().unwrap();
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(arguments.contains(&table) && !arguments.contains(key));
        runs.call(&["close", "data"]).works();
    }
}

/// A log is bounded, and has the newest lines: a server that goes away and comes back makes one each time.
#[test]
fn log_of_background_server_is_bounded_and_keeps_the_newest_lines() {
    let (dir, runs) = (Dir::new(), Run::new());
    let image = dir.image("image", 4);
    // A name that is long makes lines that are long.
    let export = "e".repeat(1000);
    let serve = || Named::start(&runs, "below", &["--type", "raw", "--export-name", &export, &image]);
    let mut below = serve();
    let uri = format!("nbd+unix:///{export}?socket={}", below.socket);
    let address = format!("unix:{}", runs.socket("nbd"));
    let words = ["--type", "raw", "--log-limit", "4096", "--nbd", &address, &uri];
    background(&runs, "data", b"", &words);
    let len = |file: &str| std::fs::metadata(runs.path(file)).map_or(0, |found| found.len());
    let read = |file: &str| std::fs::read_to_string(runs.path(file)).unwrap_or_default();
    let ends_with = |event: &'static str| eventually(event, || read("data.log"), |log| log.ends_with(event));
    for round in 0..4 {
        below.kill();
        ends_with("; connecting again\n");
        below = serve();
        ends_with(": connected again\n");
        assert!(len("data.log") <= 4096 && len("data.log.1") <= 4096, "{round}");
    }
    // The last line of one is followed by the first one of the other.
    let kept = read("data.log.1") + &read("data.log");
    assert!(!read("data.log.1").is_empty() && kept.lines().count() > 3, "{kept}");
    let mode = std::fs::metadata(runs.path("data.log")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    runs.call(&["close", "data"]).works();
    drop(below);
}
