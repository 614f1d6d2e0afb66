//! The client of a control socket.

use std::collections::BTreeMap;
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
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::files::Files;
use super::info::{Described, RuntimeInfo, VolumeStatus};
use super::line::{self, Answer};
use super::metrics::Sample;
use super::name::Name;
use super::servers::ServerFiles;
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

/// Maximum length of an answer about all volumes of a server.
const ANSWER_OF_ALL_MAX: usize = 256 << 20;

/// A connection to the process of a running volume.
pub struct Client {
    place: Place,
    socket: UnixStream,
    pid: u32,
}

/// Process of a volume.
enum Place {
    /// It has the name of the volume.
    Own(Files),
    /// A server of many volumes.
    Server(ServerFiles, Name),
}

impl Place {
    fn name(&self) -> &Name {
        match self {
            Self::Own(files) => files.name(),
            Self::Server(_, name) => name,
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Own(files) => files.is_alive(),
            Self::Server(server, _) => server.is_alive(),
        }
    }

    fn is_exiting(&self) -> bool {
        is_exiting(|| self.is_alive())
    }

    /// Returns the error for a process that has died.
    fn gone(&self) -> Error {
        let name = self.name().to_string();
        match self {
            Self::Own(_) => Error::Gone { name },
            Self::Server(server, _) => Error::ServerGone { name, pid: server.pid() },
        }
    }
}

/// Whether a process that refuses or closes a connection exits: its lock goes last, after its socket.
fn is_exiting(is_alive: impl Fn() -> bool) -> bool {
    is_soon(|| !is_alive())
}

/// Connects to a process that may be about to listen, or to exit. Returns whether it has exited.
fn listens_or_exits<T>(connect: impl Fn() -> Option<T>, is_alive: impl Fn() -> bool) -> (Option<T>, bool) {
    let mut socket = None;
    let is_decided = is_soon(|| {
        socket = connect();
        socket.is_some() || !is_alive()
    });
    let has_exited = is_decided && socket.is_none();
    (socket, has_exited)
}

/// Whether something becomes true within the time that a process takes to exit.
fn is_soon(mut is_true: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while !is_true() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
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

impl Client {
    /// Connects to the process that holds the name, or to a server of many volumes that has opened a volume of this
    /// name.
    pub fn find(context: &Context, name: &Name) -> Result<Found> {
        match Self::find_at(context, Files::of(name)?)? {
            Found::Inactive => Self::find_at_servers(context, name),
            found => Ok(found),
        }
    }

    fn find_at_servers(context: &Context, name: &Name) -> Result<Found> {
        let (mut found, mut silent) = (Vec::new(), None);
        for server in ServerFiles::all()? {
            match Self::find_at_server(context, server, name) {
                Ok(client) => found.extend(client),
                Err(error) => silent = Some(error),
            }
        }
        if found.len() > 1 {
            let pids: Vec<String> = found.iter().map(|client| client.pid.to_string()).collect();
            return Err(Error::Ambiguous { name: name.to_string(), pids: pids.join(", ") });
        }
        // One that does not reply may have it, too.
        match (found.pop(), silent) {
            (Some(client), _) => Ok(Found::Active(client)),
            (None, Some(silent)) => Err(silent),
            (None, None) => Ok(Found::Inactive),
        }
    }

    /// Connects to a server of many volumes. `None`: it has no volume of this name, or has closed it without a failure,
    /// or it exits.
    pub fn find_at_server(context: &Context, server: ServerFiles, name: &Name) -> Result<Option<Self>> {
        let (path, pid) = (server.socket(), server.pid());
        let place = Place::Server(server, name.clone());
        let silent = || Error::ServerSilent { name: name.to_string(), pid };
        let Ok(socket) = connect(context, &path) else {
            return if place.is_exiting() { Ok(None) } else { Err(silent()) };
        };
        let mut client = Self { place, socket, pid };
        match client.ask(&json!({"command": "state"}), None, QUERY_TIMEOUT) {
            Ok(fields) => {
                let state = fields.get("state").and_then(Value::as_str).unwrap_or_default();
                // One that opens or closes may hang, and a failed closing is to be told.
                let has_failed = fields.get("close_failed") == Some(&true.into());
                Ok((has_failed || matches!(state, "opening" | "open" | "closing")).then_some(client))
            }
            Err(Error::ServerGone { .. }) => Ok(None),
            Err(_) => Err(silent()),
        }
    }

    /// Connects to the process that holds the name of these files.
    pub fn find_at(context: &Context, files: Files) -> Result<Found> {
        let gone = |state: StateFile| match state {
            StateFile::Missing => Found::Inactive,
            StateFile::Whole(info) => Found::Gone(info),
            StateFile::Unusable(unusable) => Found::Unusable(unusable),
        };
        if !files.is_alive() {
            return Ok(gone(files.state()));
        }
        let (socket, has_exited) = listens_or_exits(|| connect(context, &files.socket()).ok(), || files.is_alive());
        let state = files.state();
        let is_attaching = matches!(&state, StateFile::Whole(info) if info.is_attaching());
        let pid = state.pid().filter(|_| !is_attaching).unwrap_or(0);
        match socket {
            Some(socket) => Ok(Found::Active(Self { place: Place::Own(files), socket, pid })),
            None if has_exited => Ok(gone(state)),
            None => Err(Error::Unreachable { name: files.name().to_string(), pid, source: None }),
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
        // Of a server of many volumes.
        match answer.get("state").and_then(Value::as_str) {
            None | Some("open") => {}
            Some("closed") => return Err(Error::Inactive { name: self.place.name().to_string() }),
            Some(state) => {
                return Err(Error::NotOpen { name: self.place.name().to_string(), state: state.to_owned() });
            }
        }
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Returns the process that serves the volume.
    pub fn pid(&self) -> u32 {
        self.pid
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

    /// Closes the volume, and waits until its process has released all its devices: it has exited, unless it serves
    /// others.
    pub fn close(mut self, request: &Value) -> Result<()> {
        if matches!(self.place, Place::Server(..)) {
            return self.command(request, None).map(drop);
        }
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
        let mut request = request.clone();
        if let Place::Server(_, name) = &self.place {
            request["volume"] = name.as_str().into();
        }
        let answer = exchange(&mut self.socket, &request, pipe, (timeout, ANSWER_MAX));
        fields_of(&answer.map_err(|error| self.explain(error))?, self.place.name())
    }

    fn explain(&self, error: io::Error) -> Error {
        let gone = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => !self.place.is_alive(),
            _ => self.place.is_exiting(),
        };
        match gone {
            true => self.place.gone(),
            false => Error::Unreachable { name: self.place.name().to_string(), pid: self.pid, source: Some(error) },
        }
    }
}

/// Returns what a server of many volumes tells of its open volumes.
///
/// # Errors
/// It does not reply. A server that exits has no volumes.
pub fn open_volumes(context: &Context, server: &ServerFiles) -> Result<Vec<Described>> {
    of_all(context, server, "open", "volumes")
}

/// Returns samples of the open volumes of a server of many.
///
/// # Errors
/// As those of [`open_volumes`].
pub fn samples(context: &Context, server: &ServerFiles) -> Result<BTreeMap<String, Sample>> {
    of_all(context, server, "stats", "samples")
}

fn of_all<T: DeserializeOwned + Default>(
    context: &Context,
    server: &ServerFiles,
    command: &str,
    field: &str,
) -> Result<T> {
    let asked = connect(context, &server.socket()).and_then(|mut socket| {
        exchange(&mut socket, &json!({"command": command}), None, (QUERY_TIMEOUT, ANSWER_OF_ALL_MAX))
    });
    match asked {
        Ok(line) => {
            let mut fields = fields_of(&line, format_args!("process {}", server.pid()))?;
            Ok(serde_json::from_value(fields.remove(field).unwrap_or_default())?)
        }
        Err(_) if is_exiting(|| server.is_alive()) => Ok(T::default()),
        Err(_) => Err(Error::ServerUnresponsive { pid: server.pid() }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LONG: Duration = Duration::from_secs(600);

    fn ask(limits: (Duration, usize), act: impl FnOnce(&mut UnixStream)) -> (io::Result<Vec<u8>>, UnixStream) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        act(&mut theirs);
        (exchange(&mut ours, &serde_json::json!({"command": "status"}), None, limits), ours)
    }

    #[test]
    fn reply_is_a_line_of_limited_length_in_limited_time() {
        let write = |bytes: &'static [u8]| move |server: &mut UnixStream| server.write_all(bytes).unwrap();
        let (reply, socket) = ask((LONG, 100), write(b"{}\n"));
        assert_eq!(reply.unwrap(), b"{}\n");
        assert_eq!(socket.write_timeout().unwrap(), Some(QUERY_TIMEOUT));
        for (limits, sent) in [((LONG, 100), &[b'x'; 5000][..]), ((Duration::ZERO, 100), b"{}\n")] {
            assert_eq!(ask(limits, write(sent)).0.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn request_to_a_server_that_has_left_fails() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let failed = exchange(&mut ours, &serde_json::json!({}), None, (LONG, 100));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn process_that_is_about_to_listen_is_waited_for() {
        let calls = std::cell::Cell::new(0);
        let third = || {
            calls.set(calls.get() + 1);
            (calls.get() % 3 == 0).then_some(calls.get())
        };
        assert_eq!(listens_or_exits(third, || true), (Some(3), false));
        assert_eq!(listens_or_exits(|| None::<u32>, || third().is_none()), (None, true));
        assert_eq!(listens_or_exits(|| None::<u32>, || true), (None, false));
    }

    #[test]
    fn process_that_closes_is_not_waited_for_as_long_as_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        let ours = socket.try_clone().unwrap();
        let client = Client { place: Place::Own(files), pid: std::process::id(), socket };
        theirs.write_all(b"{\"ok\":true}\n").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        client.close(&json!({"command": "close"})).unwrap();
        assert_eq!(ours.read_timeout().unwrap(), Some(QUERY_TIMEOUT));
    }
}
