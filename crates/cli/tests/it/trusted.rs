//! Programs and configurations that another user can replace. Needs root, to make files of another user.

use crate::harness::killed::Killed;
use crate::harness::{Dir, Ended, call, call_with, inlock, run};
use inlock_tests::nbd::Connection;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// A user that is not root.
const OTHER: u32 = 65534;

/// Prints the passphrase of the images.
const SCRIPT: &str = "#!/bin/sh\nprintf secret\n";

/// A file with everything on the way to it.
struct Place {
    name: &'static str,
    path: PathBuf,
    is_trusted: bool,
}

/// Whether files of another user can be made here.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root makes files of another user");
    }
    is_root
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("as it should");
}

fn new_dir(path: PathBuf, owner: u32, mode: u32) -> PathBuf {
    fs::create_dir(&path).expect("as it should");
    set(&path, mode);
    chown(&path, Some(owner), None).expect("as it should");
    path
}

/// Makes a link that belongs to `owner`.
fn link(target: &Path, path: PathBuf, owner: u32) -> PathBuf {
    symlink(target, &path).expect("as it should");
    lchown(&path, Some(owner), Some(owner)).expect("as it should");
    path
}

/// Makes the same file in places where another user can replace it, and where not.
fn places(dir: &Dir, name: &str, content: &str) -> Vec<Place> {
    let root = new_dir(dir.path("places"), 0, 0o755);
    let file = |dir: &Path, owner: u32, group: u32, mode: u32| {
        let path = dir.join(name);
        fs::write(&path, content).expect("as it should");
        chown(&path, Some(owner), Some(group)).expect("as it should");
        set(&path, mode);
        path
    };
    let made = |part: &str, owner, mode| new_dir(root.join(part), owner, mode);
    let linked = |part: &str| made(part, 0, 0o1777).join(name);
    let good = file(&made("good", 0, 0o755), 0, 0, 0o755);
    let others = made("others", OTHER, 0o755);
    let links = made("links", 0, 0o1777);
    let through = link(good.parent().expect("as it should"), links.join("through"), OTHER);
    let own = link(good.parent().expect("as it should"), links.join("own"), 0);
    let absolute = link(&good, links.join("absolute"), OTHER);
    let trusted = |name, path| Place { name, path, is_trusted: true };
    let untrusted = |name, path| Place { name, path, is_trusted: false };
    vec![
        trusted("own link in a sticky directory", link(&good, linked("own-link"), 0)),
        trusted("relative link", link(&Path::new("../good").join(name), linked("relative"), 0)),
        trusted("own link to the directory", own.join(name)),
        trusted("own file in a sticky directory", file(&made("sticky", 0, 0o1777), 0, 0, 0o755)),
        trusted("other way", good.parent().expect("as it should").join("../good").join(name)),
        untrusted("file of another user", file(&made("owner", 0, 0o755), OTHER, 0, 0o755)),
        untrusted("another's file in a sticky directory", file(&made("foreign", 0, 0o1777), OTHER, 0, 0o755)),
        untrusted("writable file", file(&made("writable", 0, 0o755), 0, 0, 0o757)),
        untrusted("file of another group", file(&made("group", 0, 0o755), 0, OTHER, 0o775)),
        untrusted("directory of another user", file(&others, 0, 0, 0o755)),
        untrusted("sticky directory of another user", file(&made("theirs", OTHER, 0o1777), 0, 0, 0o755)),
        untrusted("writable directory", file(&made("open", 0, 0o777), 0, 0, 0o755)),
        untrusted("another's link in a sticky directory", link(&good, linked("link"), OTHER)),
        untrusted("another's link to the directory", through.join(name)),
        untrusted("own link to another's", link(&absolute, linked("chain"), 0)),
        untrusted("link through another's directory", link(&others.join("../good").join(name), linked("detour"), 0)),
        trusted("own file", good),
    ]
}

#[test]
fn helper_that_another_user_can_replace_is_not_run() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let token = "{\"type\":\"helper\",\"keyslots\":[\"0\"]}";
    call_with(token.as_bytes(), ["token", "import", &image]).works();
    for place in places(&dir, "helper", SCRIPT) {
        let helpers = place.path.parent().expect("as it should").to_str().expect("as it should");
        let open = ["open", "--test-passphrase", &image, "--token-only", "--external-tokens-path", helpers];
        let ended = call(open);
        assert_eq!(ended.code, i32::from(!place.is_trusted), "{}: {ended:?}", place.name);
        assert_eq!(
            ended.err.contains("its helper is not run, because "),
            !place.is_trusted,
            "{}: {ended:?}",
            place.name
        );
    }
}

/// Starts a server with a configuration that is not TOML: status 1 if it is read, 2 if it is refused.
fn serve(config: &Path, more: &[&str]) -> Ended {
    run(inlock().args(["serve", "--nbd", "unix:/nonexistent/nbd", "--config"]).arg(config).args(more), b"")
}

#[test]
fn configuration_that_another_user_can_replace_is_not_read() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    for place in places(&dir, "config", "no TOML\n") {
        let ended = serve(&place.path, &[]);
        match place.is_trusted {
            true => ended.fails(1, &["line 1: "]),
            false => ended.fails(2, &["is not used, because ", "--allow-untrusted-config"]),
        }
        serve(&place.path, &["--allow-untrusted-config"]).fails(1, &["line 1: "]);
    }
    serve(&dir.path("missing"), &[]).fails(4, &["does not exist or access denied"]);
    // A descriptor was opened by the caller.
    let foreign = dir.path("places/owner/config");
    let mut command = inlock();
    command.args(["serve", "--nbd", "unix:/nonexistent/nbd", "--config", "/dev/stdin"]);
    let output = command.stdin(fs::File::open(&foreign).expect("as it should")).output().expect("as it should");
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1: "), "{output:?}");
    run(inlock().args(["serve", "--nbd", "unix:/nonexistent/nbd", "--config", "/dev/stdin"]), b"no TOML")
        .fails(1, &["line 1: "]);
}

/// A server of many volumes, killed when dropped.
struct Server(Killed);

impl Server {
    /// Starts a server, lets a client connect to each volume, and returns which of them it can use, and the log.
    fn open(dir: &Dir, config: &str, volumes: &[Place], more: &[&str]) -> (Vec<bool>, String) {
        let nbd = dir.path("nbd");
        let mut command = inlock();
        command.args(["serve", "--config", config, "--nbd", &format!("unix:{}", nbd.display())]).args(more);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("as it should");
        let mut server = Self(Killed(child));
        let mut uri = String::new();
        BufReader::new(server.0.stdout.take().expect("as it should")).read_line(&mut uri).expect("as it should");
        let opens = |(number, _): (usize, &Place)| {
            let mut client = Connection::haggle(&nbd, Duration::from_secs(300)).expect("as it should");
            client.go(format!("v{number}").as_bytes()).is_ok()
        };
        let opened = volumes.iter().enumerate().map(opens).collect();
        rustix::process::kill_process(rustix::process::Pid::from_child(&server.0), rustix::process::Signal::TERM)
            .expect("as it should");
        let mut log = String::new();
        server.0.stderr.take().expect("as it should").read_to_string(&mut log).expect("as it should");
        server.0.wait().expect("as it should");
        (opened, log)
    }
}

#[test]
fn key_command_that_another_user_can_replace_is_not_run() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let places = places(&dir, "key", SCRIPT);
    let mut config = String::new();
    for (number, place) in places.iter().enumerate() {
        let image = dir.luks2(&format!("image{number}"));
        let key = place.path.display();
        writeln!(config, "[volumes.v{number}]\nimage = \"{image}\"\nkey-command = [\"{key}\"]").expect("as it should");
    }
    let config = dir.file("config", config.as_bytes());
    let (opened, log) = Server::open(&dir, &config, &places, &[]);
    for (place, opened) in places.iter().zip(&opened) {
        assert_eq!(*opened, place.is_trusted, "{}: {log}", place.name);
        let refusal = format!("Program {} is not used, because ", place.path.display());
        assert_eq!(log.contains(&refusal), !place.is_trusted, "{}: {log}", place.name);
    }
    let (opened, log) = Server::open(&dir, &config, &places, &["--allow-untrusted-config"]);
    assert!(opened.iter().all(|opened| *opened), "{opened:?} {log}");
}

#[test]
fn user_reads_own_configuration_and_that_of_root() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    set(&dir.path(""), 0o755);
    let program = dir.path("inlock");
    fs::copy(env!("CARGO_BIN_EXE_inlock"), &program).expect("as it should");
    let home = new_dir(dir.path("home"), OTHER, 0o755);
    for (name, owner, mode, status) in
        [("own", OTHER, 0o600, 1), ("roots", 0, 0o644, 1), ("writable", OTHER, 0o666, 2), ("third", 12345, 0o644, 2)]
    {
        let config = home.join(name);
        fs::write(&config, "no TOML\n").expect("as it should");
        chown(&config, Some(owner), Some(owner)).expect("as it should");
        set(&config, mode);
        let mut command = std::process::Command::new(&program);
        command.uid(OTHER).gid(OTHER).args(["serve", "--nbd", "unix:/nonexistent/nbd", "--config"]).arg(&config);
        run(&mut command, b"").fails(status, &[]);
    }
}

#[test]
fn policy_that_another_user_can_replace_is_warned_of() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let policy = dir.file("policy", b"");
    let open = ["open", "--test-passphrase", "--policy", &policy, &image];
    call_with(b"secret", open).works();
    chown(&policy, Some(OTHER), None).expect("as it should");
    call_with(b"secret", open).fails(0, &["warning: policy ", "protects little, because ", "belongs to user 65534"]);
}
