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
use crate::error::{CliError, Status};
use crate::system::socket;
use crate::ui::print::warn;

/// Timeout of a query, which needs no I/O.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a killed process may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a command: requests in flight have to complete, and data to reach the disk.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum length of an answer, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// A connection to the process of a running volume.
pub(crate) struct Client {
    files: Files,
    socket: UnixStream,
    pid: u32,
}

/// State of a name.
pub(crate) enum Found {
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
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let limit = connect::TIME_LIMIT;
    let waiting = || warn(format_args!("{} takes no client yet; waiting for {} s", path.display(), limit.as_secs()));
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
    pub(crate) fn find(name: &Name) -> anyhow::Result<Found> {
        Self::find_at(Files::of(name)?)
    }

    /// Connects to the process that holds the name of these files.
    pub(crate) fn find_at(files: Files) -> anyhow::Result<Found> {
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
        match connect(&files.socket()) {
            Ok(socket) => Ok(Found::Active(Self { files, socket, pid })),
            Err(_) if is_exiting(&files) => Ok(gone(files.state())),
            Err(_) => Err(CliError::Unreachable { name: files.name().to_string(), pid }.into()),
        }
    }

    /// Like [`Client::find`], and fails unless the name is active.
    pub(crate) fn of(name: &Name) -> anyhow::Result<Self> {
        match Self::find(name)? {
            Found::Active(client) => Ok(client),
            Found::Gone(_) => Err(CliError::Gone { name: name.to_string() }.into()),
            Found::Unusable(unusable) => Err(Files::of(name)?.error_of(&unusable)),
            Found::Inactive => Err(CliError::Inactive { name: name.to_string() }.into()),
        }
    }

    /// Returns the status of the volume.
    pub(crate) fn status(&mut self) -> anyhow::Result<VolumeStatus> {
        let answer = self.ask(&json!({"command": "status"}), None, QUERY_TIMEOUT)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Returns a sample of the metrics.
    pub(crate) fn sample(&mut self) -> anyhow::Result<Sample> {
        let answer = self.ask(&json!({"command": "stats"}), None, QUERY_TIMEOUT)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Sends a command, with a pipe if it needs a secret, and returns the reply.
    pub(crate) fn command(&mut self, request: &Value, pipe: Option<&OwnedFd>) -> anyhow::Result<Map<String, Value>> {
        self.ask(request, pipe, COMMAND_TIMEOUT)
    }

    /// Closes the volume, and waits until its process has exited and released all its devices.
    pub(crate) fn close(mut self, request: &Value) -> anyhow::Result<()> {
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

    fn ask(
        &mut self,
        request: &Value,
        pipe: Option<&OwnedFd>,
        timeout: Duration,
    ) -> anyhow::Result<Map<String, Value>> {
        let answer = exchange(&mut self.socket, request, pipe, (timeout, ANSWER_MAX));
        fields_of(&answer.map_err(|error| self.explain(error))?, self.files.name())
    }

    fn explain(&self, error: io::Error) -> anyhow::Error {
        let name = self.files.name().to_string();
        let gone = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => !self.files.is_alive(),
            _ => is_exiting(&self.files),
        };
        match gone {
            true => CliError::Gone { name }.into(),
            false => anyhow::Error::from(error).context(CliError::Unreachable { name, pid: self.pid }),
        }
    }
}

/// Sends a request, with a pipe if it needs one, and receives the line of the reply. Blocks, for `timeout` at most.
pub(crate) fn exchange(
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
pub(crate) fn fields_of(line: &[u8], server: impl fmt::Display) -> anyhow::Result<Map<String, Value>> {
    match line::answer(line)? {
        Some(Answer::Done(fields)) => Ok(fields),
        Some(Answer::Failed(message, hint, status)) => {
            Err(CliError::Remote(message, hint, Status::from_number(status)).into())
        }
        None => anyhow::bail!("The process serving {server} sent an invalid reply."),
    }
}
