//! Named servers, in a run directory of their own.

use super::{Ended, inlock, run};
use inlock_tests::nbd::{Connection, Mode};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A temporary run directory.
pub(crate) struct Run {
    root: tempfile::TempDir,
    dir: PathBuf,
}

impl Run {
    pub(crate) fn new() -> Self {
        Self::deep(3)
    }

    /// Returns one whose path has `len` bytes.
    pub(crate) fn deep(len: usize) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("r".repeat(len));
        Self { root, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the path of a socket.
    pub(crate) fn socket(&self, name: &str) -> String {
        self.root.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Returns the files in it.
    pub(crate) fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).expect("readable");
        entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8")).collect()
    }

    /// Runs `inlock` with this run directory.
    pub(crate) fn call(&self, words: &[&str]) -> Ended {
        self.call_with(b"", words)
    }

    /// Runs `inlock` with this run directory and `input` on its standard input.
    pub(crate) fn call_with(&self, input: &[u8], words: &[&str]) -> Ended {
        run(inlock().env("INLOCK_RUN_DIR", &self.dir).args(words), input)
    }

    /// Runs `inlock`, and parses its output as JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        self.json_of(0, words)
    }

    /// Like `json`, with another exit status.
    #[track_caller]
    pub(crate) fn json_of(&self, status: i32, words: &[&str]) -> Value {
        let ended = self.call(words);
        assert_eq!(ended.code, status, "{ended:?}");
        serde_json::from_slice(&ended.out).expect("JSON")
    }
}

/// A named server.
pub(crate) struct Named {
    child: Option<Child>,
    /// Its NBD socket.
    pub(crate) socket: String,
}

impl Named {
    /// Connects a client.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(Path::new(&self.socket), Duration::from_secs(120), Mode::Simple).expect("as it should")
    }

    /// Starts a server with these arguments and the passphrase `secret`, and waits until clients can connect.
    pub(crate) fn start(run: &Run, name: &str, words: &[&str]) -> Self {
        Self::start_by(inlock(), run, name, words)
    }

    /// Starts `integrity serve`.
    pub(crate) fn start_integrity(run: &Run, name: &str, words: &[&str]) -> Self {
        let mut command = inlock();
        command.arg("integrity");
        Self::start_by(command, run, name, words)
    }

    /// Like `start`, with a soft and a hard limit of descriptors. Needs prlimit.
    pub(crate) fn start_with_descriptors(limits: (u64, u64), run: &Run, name: &str, words: &[&str]) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={}:{}", limits.0, limits.1)).arg(env!("CARGO_BIN_EXE_inlock"));
        Self::start_by(command, run, name, words)
    }

    fn start_by(mut command: Command, run: &Run, name: &str, words: &[&str]) -> Self {
        let socket = run.socket(&format!("{}.nbd", &name[..name.len().min(8)]));
        command.env("INLOCK_RUN_DIR", &run.dir).args(["serve", "--name", name, "--nbd", &format!("unix:{socket}")]);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // A server without a passphrase does not read it.
        let _ = child.stdin.take().expect("a pipe").write_all(b"secret");
        let mut uri = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
        let named = Self { child: Some(child), socket };
        if uri.is_empty() {
            panic!("the server did not start: {:?}", named.ended());
        }
        named
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was started").id()
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let child = self.child.as_mut().expect("it was started");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Waits until it exits, and returns its status and its errors.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().expect("it was started");
        let mut err = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        (child.wait().expect("it ends").code(), err)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
