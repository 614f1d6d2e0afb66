//! Running a helper (docs/guide/tokens.md describes the protocol).
//!
//! The helper gets the token on standard input and prints the passphrase. Its time and its output are limited.

use crate::error::{Result, ResultExt as _, interrupted};
use crate::host::{Context, Interruptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use inlock_volume::luks2::{TokenFailure, TokenRequest};
use inlock_volume::{Printable, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::super::secret::{KEY_FILE_MAX, append};
use crate::helper_process::{self, Helper};

/// Descriptor from which a helper reads the PIN.
const PIN_FD: i32 = 3;

/// Maximum number of bytes that are printed of a helper's standard error.
const MAX_MESSAGES: usize = 4096;

/// Maximum number of lines of them.
const MAX_LINES: usize = 40;

/// Maximum number of blocks that are read before signals and the time are checked again: as many as fit a pipe.
const MAX_BLOCKS: usize = 256;

/// Interval of checks whether the helper has exited, while other processes may still have its output open.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A run of a helper.
pub(super) struct Run<'a> {
    pub context: &'a Context,
    pub helper: &'a Path,
    pub pin: Option<&'a Secret>,
    pub timeout: Duration,
}

/// The reason why a helper has no passphrase, and a text about it, unless it is an expected one.
pub(super) struct Failure {
    pub failure: TokenFailure,
    pub text: Option<String>,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self { failure: TokenFailure::Failed, text: Some(text.into()) }
    }
}

impl Run<'_> {
    /// Returns the passphrase of a token. Blocks until the helper ends. Fails if a signal arrives meanwhile.
    pub(super) fn passphrase(&self, token: &TokenRequest<'_>) -> Result<Result<Secret, Failure>> {
        let caught = self.context.host().interruptions().context("cannot catch signals")?;
        let mut helper = match self.start(token) {
            Ok(helper) => helper,
            Err(error) => return Ok(Err(Failure::new(format!("cannot run {}: {error}", self.helper.display())))),
        };
        let mut streams = Streams::new(self.context, &mut helper.0, token)?;
        let deadline = Instant::now().checked_add(self.timeout);
        let status = loop {
            if let Some(signal) = caught.as_ref().and_then(|caught| caught.take()) {
                return Err(interrupted(signal));
            }
            if let Some(failure) = streams.transfer() {
                return Ok(Err(failure));
            }
            if let Some(status) = helper.exited()? {
                break status;
            }
            let left = deadline.map_or(POLL_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let text = format!("its helper did not finish within {} s", self.timeout.as_secs());
                return Ok(Err(Failure::new(text)));
            }
            streams.wait(caught.as_deref(), left.min(POLL_INTERVAL))?;
        };
        // What it wrote before it exited.
        Ok(match streams.transfer() {
            Some(failure) => Err(failure),
            None => streams.finish(status),
        })
    }

    fn start(&self, token: &TokenRequest<'_>) -> io::Result<Helper> {
        let mut command = helper_process::command(self.helper, PIN_FD);
        command.env("INLOCK_TOKEN_PROTOCOL", "1").env("INLOCK_TOKEN_ID", token.number.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(pin) = self.pin {
            let (reader, mut writer) = io::pipe()?;
            // Nothing reads it yet.
            rustix::io::ioctl_fionbio(&writer, true)?;
            writer.write_all(pin.as_bytes()).map_err(|_| io::Error::other("the PIN does not fit a pipe"))?;
            let mapping = FdMapping { parent_fd: reader.into(), child_fd: PIN_FD };
            command.fd_mappings(vec![mapping]).map_err(io::Error::other)?;
            command.env("INLOCK_TOKEN_PIN_FD", PIN_FD.to_string());
        }
        command.spawn().map(Helper)
    }
}

/// The ends of a helper's pipes, none of which blocks. `None`: closed.
struct Streams<'a> {
    context: &'a Context,
    token: &'a TokenRequest<'a>,
    input: Option<std::process::ChildStdin>,
    /// Bytes of the token that are not written yet.
    to_write: Vec<u8>,
    output: Option<std::process::ChildStdout>,
    passphrase: Zeroizing<Vec<u8>>,
    messages: Option<std::process::ChildStderr>,
    line: Vec<u8>,
    /// Bytes of standard error so far.
    message_len: usize,
    /// Lines of them that were printed.
    line_count: usize,
}

impl<'a> Streams<'a> {
    fn new(context: &'a Context, child: &mut Child, token: &'a TokenRequest<'a>) -> io::Result<Self> {
        let streams = Self {
            context,
            token,
            input: child.stdin.take(),
            to_write: format!("{}\n", token.json).into_bytes(),
            output: child.stdout.take(),
            passphrase: Zeroizing::new(Vec::new()),
            messages: child.stderr.take(),
            line: Vec::new(),
            message_len: 0,
            line_count: 0,
        };
        for fd in streams.fds().into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(streams)
    }

    fn fds(&self) -> [Option<BorrowedFd<'_>>; 3] {
        [
            self.input.as_ref().map(AsFd::as_fd),
            self.output.as_ref().map(AsFd::as_fd),
            self.messages.as_ref().map(AsFd::as_fd),
        ]
    }

    /// Blocks until a stream is ready, a signal arrives, or for `most`.
    fn wait(&self, caught: Option<&dyn Interruptions>, most: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let [input, output, messages] = self.fds();
        let reading = [caught.map(|caught| caught.fd()), output, messages];
        let mut fds: Vec<PollFd<'_>> =
            reading.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        fds.extend(input.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes and reads what is possible without blocking. Returns a failure if the output is too long.
    fn transfer(&mut self) -> Option<Failure> {
        self.write_token();
        let mut block = Zeroizing::new([0_u8; 4096]);
        for _ in 0..MAX_BLOCKS {
            let Some(len) = read(&mut self.output, &mut block[..]) else { break };
            if (self.passphrase.len() + len) as u64 > KEY_FILE_MAX {
                return Some(Failure::new(format!("its helper printed more than {} KiB", KEY_FILE_MAX / 1024)));
            }
            append(&mut self.passphrase, &block[..len]);
        }
        for _ in 0..MAX_BLOCKS {
            let Some(len) = read(&mut self.messages, &mut block[..]) else { break };
            self.print_messages(&block[..len]);
        }
        None
    }

    fn write_token(&mut self) {
        while let Some(input) = &mut self.input {
            match input.write(&self.to_write) {
                Ok(len) => drop(self.to_write.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A helper may not need the token.
                Err(_) => self.to_write.clear(),
            }
            if self.to_write.is_empty() {
                self.input = None;
            }
        }
    }

    /// Prints whole lines, each with the token that it is about, up to the limit.
    fn print_messages(&mut self, bytes: &[u8]) {
        let left = MAX_MESSAGES.saturating_sub(self.message_len);
        self.message_len = self.message_len.saturating_add(bytes.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(left)]);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            self.line_count += 1;
            if self.line_count <= MAX_LINES {
                self.print_line(&line[..end]);
            }
        }
    }

    fn print_line(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let kind = Printable::new(self.token.kind);
        self.context.notice(format_args!("token {} ({kind}): {}", self.token.number, Printable::new(text.trim_end())));
    }

    /// Returns the passphrase of a helper that has exited.
    fn finish(mut self, status: ExitStatus) -> Result<Secret, Failure> {
        if !self.line.is_empty() {
            self.print_line(&self.line);
        }
        if self.message_len > MAX_MESSAGES || self.line_count > MAX_LINES {
            self.print_line(b"(more messages are left out)");
        }
        let failure = match (status.code(), status.signal()) {
            (Some(0), _) if self.passphrase.is_empty() => return Err(Failure::new("its helper printed no passphrase")),
            (Some(0), _) => return Ok(std::mem::take(&mut self.passphrase).into()),
            (Some(2), _) => TokenFailure::PinRequired,
            (Some(3), _) => TokenFailure::ResourceMissing,
            (Some(4), _) => TokenFailure::Unsupported,
            (Some(code), _) => return Err(Failure::new(format!("its helper exited with status {code}"))),
            (None, Some(signal)) => return Err(Failure::new(format!("its helper was killed by signal {signal}"))),
            (None, None) => return Err(Failure::new("its helper failed")),
        };
        Err(Failure { failure, text: None })
    }
}

/// Reads a block. `None`: nothing to read now, or the end, which closes the stream.
fn read(stream: &mut Option<impl AsFd>, block: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::io::read(stream.as_ref()?, &mut *block) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            Ok(0) | Err(_) => {
                *stream = None;
                return None;
            }
            Ok(len) => return Some(len),
        }
    }
}
