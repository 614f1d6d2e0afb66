//! A running `inlock serve`, or another NBD server to compare with, stopped when dropped.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// Timeout for a server to start or to exit.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server process that listens on a unix socket.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts `inlock serve SOURCE --key-file KEY --nbd unix:DIR/NAME.sock` with further arguments.
    pub fn inlock(dir: &Path, name: &str, source: &Path, key: Option<&Path>, more: &[&str]) -> Result<Self> {
        let socket = dir.join(format!("{name}.sock"));
        let mut command = process::bare(process::inlock_path()?);
        command.arg("serve").arg(source).args(["--nbd", &format!("unix:{}", socket.display())]).args(more);
        if let Some(key) = key {
            command.arg("--key-file").arg(key);
        }
        Self::start(command, socket)
    }

    /// Starts a server command that will listen on `socket`.
    pub fn start(mut command: Command, socket: PathBuf) -> Result<Self> {
        let log = socket.with_extension("log");
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Self { child, socket, log };
        let started = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended with {status}: {}", server.log_text());
            }
            if started.elapsed() > PATIENCE {
                bail!("{command:?} does not listen: {}", server.log_text());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Returns the path of the unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the URI for NBD tools.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its output so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns its exit status, if it has exited.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns a field of /proc/PID/status in KiB (VmRSS, VmHWM), or a plain number (Threads).
    pub fn status_field(&self, field: &str) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).context("the server is gone")?;
        let line = text.lines().find(|l| l.split(':').next() == Some(field));
        let value = line.and_then(|l| l.split_whitespace().nth(1)).with_context(|| format!("no {field} in {text}"))?;
        value.parse().with_context(|| format!("{field} is no number: {value}"))
    }

    /// Returns the number of its file descriptors.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Sends a signal by name (TERM, INT, KILL).
    pub fn signal(&self, name: &str) -> Result<()> {
        process::text(process::program("kill").args([&format!("-{name}"), &self.pid().to_string()])).map(drop)
    }

    /// Waits until it exits. Fails if it does not.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > PATIENCE {
                bail!("the server does not end: {}", self.log_text());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM, and waits until it exits.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the server has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
