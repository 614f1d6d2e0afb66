//! Key derivations and the memory of the machine.

// The lint exempts test functions only.
#![allow(clippy::unwrap_used)]

mod harness;

use harness::{Dir, FAST1, call_with, inlock};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the value of a line of `/proc/PID/status`, in KiB.
fn kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Creates a volume whose key derivation needs this much memory.
fn volume(dir: &Dir, kib: &str, passes: &str) -> String {
    let image = dir.image("image", 20);
    let costs = ["--pbkdf-force-iterations", passes, "--pbkdf-memory", kib, "--pbkdf-parallel", "1"];
    call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(&costs)).works();
    image
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"secret").unwrap();
    child
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: only root protects its process");
    }
    root
}

/// The gigabyte of a derivation must not be locked, and its process must not be exempt from the OOM killer.
#[test]
fn derivation_of_foreground_open_is_unlocked_and_oom_killable() {
    if !is_root() {
        return;
    }
    const MEMORY_KIB: u64 = 256 << 10;
    let dir = Dir::new();
    let image = volume(&dir, &MEMORY_KIB.to_string(), "16");
    let mut command = inlock();
    command.env("INLOCK_RUN_DIR", dir.path("run")).args(["open", &image, "name", "--foreground", "--via", "fuse"]);
    let mut child = start(command);
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let began = Instant::now();
    while kib(child.id(), "VmRSS") < MEMORY_KIB / 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it derived a key");
        assert!(began.elapsed() < Duration::from_secs(120), "it derives no key");
        std::thread::sleep(Duration::from_millis(1));
    }
    let locked = kib(child.id(), "VmLck");
    let adjusted = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(locked < 1024, "{locked} KiB are locked while the key is derived");
    assert_eq!(adjusted, own, "it was out of the OOM killer's reach while the key is derived");
}

/// A cgroup inside this process's, removed when dropped. `None`: no limit on memory is possible here.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(limit: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = |controller: &str| own.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(controller));
        let name = format!("inlock-test-{}", std::process::id());
        let inside = |root: &str, path: &str| Path::new(root).join(path.trim_start_matches('/'));
        // In version 2 a group with processes cannot delegate limits, so this one is created next to it.
        let (dir, limit_file) = match (path("memory:"), path(":")) {
            (Some(path), _) => (inside("/sys/fs/cgroup/memory", path).join(name), "memory.limit_in_bytes"),
            (None, Some(path)) => (inside("/sys/fs/cgroup", path).parent()?.join(name), "memory.max"),
            (None, None) => return None,
        };
        std::fs::create_dir(&dir).ok()?;
        let cgroup = Self(dir);
        std::fs::write(cgroup.0.join(limit_file), limit.to_string()).ok()?;
        Some(cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may still be exiting.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn derivation_over_cgroup_limit_is_3_and_not_killed() {
    let Some(cgroup) = Cgroup::new(256 << 20) else {
        println!("SKIPPED: no cgroup with a limit on memory can be made here");
        return;
    };
    let dir = Dir::new();
    let image = volume(&dir, "524288", "4");
    let inside = |words: &[&str]| {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", cgroup.0.display());
        command.args(["-c", &script, env!("CARGO_BIN_EXE_inlock")]).args(words);
        let output = start(command).wait_with_output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, err) = inside(&["open", "--test-passphrase", &image]);
    assert_eq!(status.code(), Some(3), "{status}: {err}");
    assert!(err.contains("524288 KiB") && err.contains("available") && err.contains("hint: "), "{err}");
    // A new volume uses the memory that is available.
    let new = dir.image("new", 20);
    let (status, err) = inside(&["luksFormat", "-q", &new, "--pbkdf-force-iterations", "4"]);
    assert_eq!(status.code(), Some(0), "{status}: {err}");
    let (status, err) = inside(&["open", "--test-passphrase", &new]);
    assert_eq!(status.code(), Some(0), "{status}: {err}");
}

/// 900 million iterations are within the limit for one block of output; a key of 64 bytes takes four blocks of SHA-1.
#[test]
fn pbkdf2_cost_over_limit_is_refused_at_once() {
    let dir = Dir::new();
    let image = dir.image("image", 4);
    let format = ["luksFormat", "-q", &image, "-h", "sha1", "-s", "512"];
    call_with(b"secret", format.iter().chain(&FAST1)).works();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&900_000_000_u32.to_be_bytes(), 212).unwrap();
    let words = ["pbkdf2 iterations times blocks of output 3600000000 exceeds the limit", "hint: "];
    call_with(b"secret", ["open", "--test-passphrase", &image]).fails(3, &words);
}
