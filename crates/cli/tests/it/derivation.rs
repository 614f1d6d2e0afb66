//! Key derivations and the memory of the machine.

// The lint exempts test functions only.

use crate::harness::{Dir, FAST1, call, call_with, have, inlock, run};
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

/// Whether two of these processes have half of the memory of a derivation at the same time, until all have ended.
fn derive_at_once(mut children: Vec<Child>, memory_kib: u64) -> bool {
    let mut at_once = false;
    loop {
        let running = children.iter_mut().filter_map(|child| match child.try_wait().unwrap() {
            None => Some(child.id()),
            Some(status) => {
                assert!(status.success(), "{status}");
                None
            }
        });
        let running: Vec<u32> = running.collect();
        at_once |= running.iter().filter(|pid| kib(**pid, "VmRSS") > memory_kib / 2).count() > 1;
        if running.is_empty() {
            return at_once;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn unlocks_of_processes_take_turns_if_asked_to() {
    if !is_root() {
        return;
    }
    const MEMORY_KIB: u64 = 96 << 10;
    let dir = Dir::new();
    let image = volume(&dir, &MEMORY_KIB.to_string(), "8");
    let start_all = |options: &[&str]| -> Vec<Child> {
        let open = || {
            let mut command = inlock();
            command.args(["open", "--test-passphrase", &image]).args(options);
            start(command)
        };
        (0..3).map(|_| open()).collect()
    };
    assert!(!derive_at_once(start_all(&["--serialize-memory-hard-pbkdf"]), MEMORY_KIB), "two at once");
    // Control: without the option they are seen at once.
    assert!(derive_at_once(start_all(&[]), MEMORY_KIB), "the test sees no two processes at once");
}

/// The lock file is the one of cryptsetup.
#[test]
fn unlock_waits_for_lock_of_derivations() {
    if !is_root() || !have("flock") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let key = dir.file("key", b"secret");
    let script = "mkdir -p -m 0700 /run/cryptsetup; exec 9<>/run/cryptsetup/LN_memory-hard-access; flock --exclusive 9
        \"$0\" open --test-passphrase --serialize-memory-hard-pbkdf -d \"$2\" \"$1\" 9>&- & pid=$!
        sleep 1; kill -0 $pid || exit 9; flock --unlock 9; wait $pid";
    let ended = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_inlock"), &image, &key]).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "9: it did not wait: {ended:?}");
}

/// Runs `inlock` with the passphrase, and returns its messages and the maximum of its resident memory in KiB.
fn peak_kib(words: &[&str]) -> (String, u64) {
    let script = "import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let mut command = Command::new("python3");
    let ended = run(command.args(["-c", script, env!("CARGO_BIN_EXE_inlock")]).args(words), b"secret");
    assert_eq!(ended.code, 0, "{ended:?}");
    let last = ended.text().lines().last().unwrap().parse().unwrap();
    (ended.err.clone(), last)
}

/// The memory that `--verbose` reports before it is taken: the process takes it, and not more.
#[test]
fn memory_of_unlock_is_what_was_reported() {
    if !have("python3") {
        return;
    }
    let dir = Dir::new();
    let image = volume(&dir, "65536", "4");
    let key = dir.file("key", b"secret");
    let add = ["luksAddKey", "-q", &image, "-d", &key, "--new-keyfile", &key];
    let larger = ["--pbkdf-memory", "131072", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
    call(add.iter().chain(&larger)).works();
    call(add.iter().chain(&["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"])).works();
    let (_, base) = peak_kib(&["luksUUID", &image]);
    let reported = |err: &str| -> u64 {
        let (_, rest) = err.split_once("Unlocking takes at most ").unwrap();
        rest.split_once(" KiB of memory.").unwrap().0.parse().unwrap()
    };
    for (slot, memory) in [("0", 65_536), ("1", 131_072), ("2", 0)] {
        let (err, peak) = peak_kib(&["open", "-v", "--test-passphrase", &image, "-S", slot]);
        let (bound, taken) = (reported(&err), peak.saturating_sub(base));
        assert!((memory..memory + memory / 16 + 1024).contains(&bound), "keyslot {slot}: {err}");
        // Other actions take some MiB more or less for the program itself.
        assert!(taken <= bound + (6 << 10), "keyslot {slot} took {taken} KiB, more than {bound} KiB");
        assert!(taken + (6 << 10) >= memory, "keyslot {slot} took only {taken} KiB of {memory} KiB");
    }
    // Any keyslot may be the one: the maximum.
    let (err, _) = peak_kib(&["open", "-v", "--test-passphrase", &image]);
    assert!(reported(&err) >= 131_072, "{err}");
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
