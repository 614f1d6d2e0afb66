//! Shared parts of the tests: running the command, and images.

pub(crate) mod control;
pub(crate) mod keyring;
pub(crate) mod killed;
pub(crate) mod memory;
pub(crate) mod storage;
pub(crate) mod superblock;
pub(crate) mod terminal;
pub(crate) mod traced;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Cheap key derivation, for tests only.
pub(crate) const FAST: [&str; 6] = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32", "--pbkdf-parallel", "1"];
/// Cheap key derivation for LUKS1.
pub(crate) const FAST1: [&str; 4] = ["--type", "luks1", "--pbkdf-force-iterations", "1000"];

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("the output is text")
    }

    /// Checks the exit status, and that standard error contains each of `words`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {self:?}");
        }
        let broken = self.err.contains("panicked") || self.err.contains("RUST_BACKTRACE");
        assert!(!broken, "{self:?}");
    }

    /// Checks for success, without errors or warnings.
    #[track_caller]
    pub(crate) fn works(&self) -> &Self {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        self
    }
}

/// Returns the command under test.
pub(crate) fn inlock() -> Command {
    Command::new(env!("CARGO_BIN_EXE_inlock"))
}

/// Runs `command` with `input` on its standard input.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that does not read its input may close it early.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the command ends");
    writer.join().expect("the writer ends");
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `inlock` with nothing on its standard input.
pub(crate) fn call<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    run(inlock().args(args), b"")
}

/// Runs `inlock` with `input` on its standard input.
pub(crate) fn call_with<S: AsRef<OsStr>>(input: &[u8], args: impl IntoIterator<Item = S>) -> Ended {
    run(inlock().args(args), input)
}

/// A temporary directory for images.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a path as text.
    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Creates a file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).expect("writable");
        self.name(name)
    }

    /// Creates an empty image of this length in MiB.
    pub(crate) fn image(&self, name: &str, mib: u64) -> String {
        let file = std::fs::File::create(self.path(name)).expect("writable");
        file.set_len(mib << 20).expect("writable");
        self.name(name)
    }

    /// Creates a LUKS2 volume with the passphrase `secret`.
    pub(crate) fn luks2(&self, name: &str) -> String {
        let image = self.image(name, 24);
        call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(FAST)).works();
        image
    }

    /// Creates a LUKS1 volume with the passphrase `secret`.
    pub(crate) fn luks1(&self, name: &str) -> String {
        let image = self.image(name, 4);
        call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(FAST1)).works();
        image
    }
}

/// Whether a program that a test needs is installed. Reports a skip otherwise.
pub(crate) fn have(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .chain(["/sbin".into(), "/usr/sbin".into()])
        .any(|dir| dir.join(program).is_file());
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// Returns a command of the newest cryptsetup's package, which `tests/newest.sh` installs. Reports a skip
/// otherwise.
pub(crate) fn newest(program: &str) -> Option<Command> {
    let command = std::env::var("INLOCK_NEW_CRYPTSETUP").unwrap_or_default();
    let Some((first, rest)) =
        command.split_whitespace().collect::<Vec<_>>().split_first().map(|(f, r)| (*f, r.to_vec()))
    else {
        println!("SKIPPED: no newer cryptsetup");
        return None;
    };
    let mut command = Command::new(if rest.is_empty() { sibling(first, program) } else { first.into() });
    if let Some((last, rest)) = rest.split_last() {
        command.args(rest).arg(sibling(last, program));
    }
    Some(command)
}

/// Returns the path of another program of the same directory.
fn sibling(path: &str, program: &str) -> std::path::PathBuf {
    std::path::Path::new(path).with_file_name(program)
}

/// Whether volumes can be mounted with FUSE. Reports a skip otherwise.
pub(crate) fn has_fuse() -> bool {
    let opens = std::fs::File::open("/dev/fuse").is_ok();
    if !opens {
        println!("SKIPPED: nothing can be mounted with FUSE here");
    }
    opens
}

/// Returns pseudo-random bytes, the same in every run.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the allocated bytes of a file.
pub(crate) fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).expect("readable").blocks() * 512
}
