//! The client of a control socket.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use inlock_frontend::connect;
use inlock_volume::Printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::info::{RuntimeInfo, VolumeStatus};
use super::line::{self, Answer};
use super::metrics::Sample;
use super::name::Name;
use super::state_file::{StateFile, Unusable};
use crate::error::{Error, Result};
use crate::socket;
use inlock_open::Context;

/// Timeout of a query, which needs no I/O.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a killed process may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a command: requests in flight have to complete, and data to reach the disk.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum length of an answer, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// A connection to the process of a running volume.
pub struct Client {
    files: Files,
    socket: UnixStream,
    pid: u32,
}

/// State of a name.
pub enum Found {
    /// Its process accepts connections.
    Active(Client),
    /// Its process has died without cleaning up.
    Gone(Box<RuntimeInfo>),
    /// Its process has died, and this version cannot read all of its state file.
    Unusable(Box<Unusable>),
    /// The name is not in use.
    Inactive,
}

/// Connects to the control socket of a process, and says so if that takes long.
pub fn connect(context: &Context, path: &Path) -> io::Result<UnixStream> {
    let limit = connect::TIME_LIMIT;
    let text = || format!("{} takes no client yet; waiting for {} s", path.display(), limit.as_secs());
    let waiting = || context.warn(text());
    connect::unix(path, limit, waiting)
}

/// Whether a process that refuses or closes a connection exits: its lock goes last, after its socket.
fn is_exiting(files: &Files) -> bool {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        if !files.is_alive() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Client {
    /// Connects to the process that holds the name.
    pub fn find(context: &Context, name: &Name) -> Result<Found> {
        Self::find_at(context, Files::of(name)?)
    }

    /// Connects to the process that holds the name of these files.
    pub fn find_at(context: &Context, files: Files) -> Result<Found> {
        let gone = |state: StateFile| match state {
            StateFile::Missing => Found::Inactive,
            StateFile::Whole(info) => Found::Gone(info),
            StateFile::Unusable(unusable) => Found::Unusable(unusable),
        };
        let state = files.state();
        if !files.is_alive() {
            return Ok(gone(state));
        }
        let is_attaching = matches!(&state, StateFile::Whole(info) if info.is_attaching());
        let pid = state.pid().filter(|_| !is_attaching).unwrap_or(0);
        match connect(context, &files.socket()) {
            Ok(socket) => Ok(Found::Active(Self { files, socket, pid })),
            Err(_) if is_exiting(&files) => Ok(gone(files.state())),
            Err(_) => Err(Error::Unreachable { name: files.name().to_string(), pid, source: None }),
        }
    }

    /// Like [`Client::find`], and fails unless the name is active.
    pub fn of(context: &Context, name: &Name) -> Result<Self> {
        match Self::find(context, name)? {
            Found::Active(client) => Ok(client),
            Found::Gone(_) => Err(Error::Gone { name: name.to_string() }),
            Found::Unusable(unusable) => Err(Files::of(name)?.error_of(&unusable)),
            Found::Inactive => Err(Error::Inactive { name: name.to_string() }),
        }
    }

    /// Returns the status of the volume.
    pub fn status(&mut self) -> Result<VolumeStatus> {
        let answer = self.ask(&json!({"command": "status"}), None, QUERY_TIMEOUT)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Returns a sample of the metrics.
    pub fn sample(&mut self) -> Result<Sample> {
        let answer = self.ask(&json!({"command": "stats"}), None, QUERY_TIMEOUT)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Sends a command, with a pipe if it needs a secret, and returns the reply.
    pub fn command(&mut self, request: &Value, pipe: Option<&OwnedFd>) -> Result<Map<String, Value>> {
        self.ask(request, pipe, COMMAND_TIMEOUT)
    }

    /// Closes the volume, and waits until its process has exited and released all its devices.
    pub fn close(mut self, request: &Value) -> Result<()> {
        let process = self.process();
        self.command(request, None)?;
        // The process exits right after the reply.
        self.socket.set_read_timeout(Some(QUERY_TIMEOUT))?;
        let _ = self.socket.read(&mut [0]);
        if let Some(process) = process {
            let soon = Timespec { tv_sec: QUERY_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&soon));
        }
        Ok(())
    }

    /// Returns a descriptor of the process, `None` if the kernel has no such descriptors.
    fn process(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid.cast_signed()).filter(|_| self.pid != std::process::id())?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    }

    fn ask(&mut self, request: &Value, pipe: Option<&OwnedFd>, timeout: Duration) -> Result<Map<String, Value>> {
        let answer = exchange(&mut self.socket, request, pipe, (timeout, ANSWER_MAX));
        fields_of(&answer.map_err(|error| self.explain(error))?, self.files.name())
    }

    fn explain(&self, error: io::Error) -> Error {
        let name = self.files.name().to_string();
        let gone = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => !self.files.is_alive(),
            _ => is_exiting(&self.files),
        };
        match gone {
            true => Error::Gone { name },
            false => Error::Unreachable { name, pid: self.pid, source: Some(error) },
        }
    }
}

/// Sends a request, with a pipe if it needs one, and receives the line of the reply. Blocks, for `timeout` at most.
pub fn exchange(
    socket: &mut UnixStream,
    request: &Value,
    pipe: Option<&OwnedFd>,
    (timeout, max_len): (Duration, usize),
) -> io::Result<Vec<u8>> {
    let mut line = Printable::json(&request.to_string()).to_string().into_bytes();
    line.push(b'\n');
    socket.set_write_timeout(Some(QUERY_TIMEOUT))?;
    socket::send(socket, &line, pipe)?;
    let deadline = Instant::now() + timeout;
    let mut line = Vec::new();
    let mut room = [0; 4096];
    while line.last() != Some(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || line.len() > max_len {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => line.extend_from_slice(&room[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// Returns the fields of a reply, or its error. `server`: the name of the process for messages.
pub fn fields_of(line: &[u8], server: impl fmt::Display) -> Result<Map<String, Value>> {
    match line::answer(line)? {
        Some(Answer::Done(fields)) => Ok(fields),
        Some(Answer::Failed(told)) => Err(Error::Told(Box::new(told))),
        None => Err(Error::InvalidReply { server: server.to_string() }),
    }
}
