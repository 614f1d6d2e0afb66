//! The other end of a control socket.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value, json};

use super::facts::Status;
use super::figures::Sample;
use super::line::{self, Answer};
use super::name::Files;
use super::{Facts, Name, socket};
use crate::exit::{self, Problem};

/// How long an answer that is there at once may take.
const SOON: Duration = Duration::from_secs(5);

/// How long a process may take to end after it was killed.
const ENDING: Duration = Duration::from_secs(1);

/// How long a change may take: requests under way have to end, data has to reach a disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest answer, in bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// A connection to the process of a running volume.
pub(crate) struct Client {
    files: Files,
    socket: UnixStream,
    pid: u32,
}

/// What can be known of a name.
pub(crate) enum Found {
    /// Its process answers.
    Active(Client),
    /// Its process is gone without having cleaned up.
    Gone(Box<Facts>),
    /// Nothing has that name.
    Inactive,
}

/// Whether a process that takes no connection is just ending: its lock goes last, some time after its socket.
fn ends(files: &Files) -> bool {
    let deadline = Instant::now() + ENDING;
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

    pub(crate) fn find_at(files: Files) -> anyhow::Result<Found> {
        let facts = files.facts();
        if !files.is_alive() {
            return Ok(facts.map_or(Found::Inactive, |facts| Found::Gone(Box::new(facts))));
        }
        let pid = facts.map_or(0, |facts| facts.pid);
        match socket::connect(&files.socket()) {
            Ok(socket) => Ok(Found::Active(Self { files, socket, pid })),
            Err(_) if ends(&files) => Ok(files.facts().map_or(Found::Inactive, |facts| Found::Gone(Box::new(facts)))),
            Err(_) => Err(Problem::Unreachable { name: files.name().to_string(), pid }.into()),
        }
    }

    /// As [`Client::find`], where nothing else will do.
    pub(crate) fn of(name: &Name) -> anyhow::Result<Self> {
        match Self::find(name)? {
            Found::Active(client) => Ok(client),
            Found::Gone(_) => Err(Problem::Gone { name: name.to_string() }.into()),
            Found::Inactive => Err(Problem::Inactive { name: name.to_string() }.into()),
        }
    }

    /// How the volume is.
    pub(crate) fn status(&mut self) -> anyhow::Result<Status> {
        let answer = self.ask(&json!({"command": "status"}), None, SOON)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// What the volume has done.
    pub(crate) fn sample(&mut self) -> anyhow::Result<Sample> {
        let answer = self.ask(&json!({"command": "stats"}), None, SOON)?;
        Ok(serde_json::from_value(Value::Object(answer))?)
    }

    /// Has something done, with a pipe for a secret if it needs one.
    pub(crate) fn command(&mut self, request: &Value, pipe: Option<&OwnedFd>) -> anyhow::Result<Map<String, Value>> {
        self.ask(request, pipe, PATIENCE)
    }

    /// Has the volume closed, and waits until its process has ended: only then is all that it had open free for others.
    pub(crate) fn close(mut self, request: &Value) -> anyhow::Result<()> {
        let process = self.process();
        self.command(request, None)?;
        // The end of the process comes right after the answer.
        self.socket.set_read_timeout(Some(SOON))?;
        let _ = self.socket.read(&mut [0]);
        if let Some(process) = process {
            let soon = Timespec { tv_sec: SOON.as_secs().cast_signed(), tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&soon));
        }
        Ok(())
    }

    /// The other end's process. None where the kernel has no descriptors for processes.
    fn process(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid.cast_signed()).filter(|_| self.pid != std::process::id())?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    }

    fn ask(
        &mut self,
        request: &Value,
        pipe: Option<&OwnedFd>,
        patience: Duration,
    ) -> anyhow::Result<Map<String, Value>> {
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        self.socket.set_write_timeout(Some(SOON))?;
        let sent = socket::send(&self.socket, &line, pipe);
        let answer = sent.and_then(|()| self.receive(patience)).map_err(|error| self.explain(error))?;
        match line::answer(&answer)? {
            Some(Answer::Done(fields)) => Ok(fields),
            Some(Answer::Failed(message, hint, status)) => {
                Err(Problem::Told(message, hint, exit::Status::from_number(status)).into())
            }
            None => anyhow::bail!("the process of {} gave no object", self.files.name()),
        }
    }

    /// One line.
    fn receive(&mut self, patience: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + patience;
        let mut line = Vec::new();
        let mut room = [0; 4096];
        while line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || line.len() as u64 > ANSWER_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(&mut room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => line.extend_from_slice(&room[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(line)
    }

    fn explain(&self, error: io::Error) -> anyhow::Error {
        let name = self.files.name().to_string();
        if self.files.is_alive() {
            anyhow::Error::from(error).context(Problem::Unreachable { name, pid: self.pid })
        } else {
            Problem::Gone { name }.into()
        }
    }
}
