//! The terminal: asking for a passphrase without showing it, and for a YES.
//!
//! Bytes are taken as they come, so a passphrase need not be UTF-8. The echo comes back however the prompt ends, by Ctrl-C
//! and Ctrl-Z too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::exit::{Problem, say};
use crate::signals::{self, Caught};

/// The longest passphrase that is read from a terminal, in bytes.
const PASSPHRASE_MAX: usize = 512;

/// Whether passphrases are typed: whether standard input is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stdin())
}

/// Asks on the controlling terminal, or on standard input and error where there is none.
pub(crate) fn ask_passphrase(prompt: &str, timeout_secs: Option<u64>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let deadline = timeout_secs.and_then(|secs| Instant::now().checked_add(Duration::from_secs(secs)));
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(tty) => ask(tty.as_fd(), &tty, prompt, deadline),
        Err(_) => ask(rustix::stdio::stdin(), io::stderr(), prompt, deadline),
    }
}

/// Whether [`ask_passphrase`] has somebody to ask although standard input is taken.
pub(crate) fn has_controlling_terminal() -> bool {
    File::options().read(true).write(true).open("/dev/tty").is_ok()
}

fn ask(
    input: BorrowedFd<'_>,
    mut output: impl Write,
    prompt: &str,
    deadline: Option<Instant>,
) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let caught = signals::catch()?;
    loop {
        let quiet = EchoOff::set(input)?;
        write!(output, "{prompt}")?;
        output.flush()?;
        let line = read_line(input, &caught, deadline);
        drop(quiet);
        writeln!(output)?;
        match line {
            Err(error) => match error.downcast_ref::<Problem>() {
                Some(Problem::Interrupted(number)) if *number == Signal::TSTP.as_raw() => {
                    signals::default_action(*number);
                    // Continued: ask again, with the terminal as whoever had it meanwhile left it.
                }
                _ => return Err(error),
            },
            line => return line,
        }
    }
}

fn read_line(input: BorrowedFd<'_>, caught: &Caught, deadline: Option<Instant>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(PASSPHRASE_MAX + 1));
    let mut byte = Zeroizing::new([0_u8]);
    loop {
        wait(input, caught, deadline)?;
        let read = match rustix::io::read(input, &mut byte[..]) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            read => read.context("Error reading passphrase from terminal.")?,
        };
        match byte[0] {
            _ if read == 0 && line.is_empty() => {
                return Err(Problem::refused("Nothing to read on input.", "the terminal was closed"));
            }
            _ if read == 0 => return Ok(line),
            b'\n' => return Ok(line),
            _ if line.len() == PASSPHRASE_MAX => {
                let _ = rustix::termios::tcflush(input, rustix::termios::QueueSelector::IFlush);
                return Err(Problem::refused(
                    format!("The passphrase is longer than {PASSPHRASE_MAX} characters."),
                    "a longer one can be given in a file: --key-file",
                ));
            }
            byte => line.push(byte),
        }
    }
}

/// Until there is something to read.
fn wait(input: BorrowedFd<'_>, caught: &Caught, deadline: Option<Instant>) -> anyhow::Result<()> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let woken = caught.fd();
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => return Err(Problem::PromptTimeout.into()),
            Ok(_) => {}
        }
        if let Some(number) = caught.take() {
            return Err(Problem::Interrupted(number).into());
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// The terminal shows nothing of what is typed until this is dropped.
struct EchoOff<'a> {
    terminal: BorrowedFd<'a>,
    before: Option<Termios>,
}

impl<'a> EchoOff<'a> {
    fn set(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        if !rustix::termios::isatty(terminal) {
            return Ok(Self { terminal, before: None });
        }
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // What was typed before the prompt is not thrown away: scripts with a terminal send it early.
        tcsetattr(terminal, OptionalActions::Now, &quiet)?;
        Ok(Self { terminal, before: Some(before) })
    }
}

impl Drop for EchoOff<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(self.terminal, OptionalActions::Now, before);
        }
    }
}

/// Asks whether to go on: only `YES` in capital letters is a yes.
pub(crate) fn confirm(warning: &str) -> anyhow::Result<()> {
    say(&format!("\nWARNING!\n========\n{warning}\n"));
    eprint_flush("Are you sure? (Type 'yes' in capital letters): ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    // A terminal that was closed leaves the cursor behind the question.
    if !answer.ends_with('\n') {
        say("");
    }
    if answer.trim_end_matches('\n') == "YES" { Ok(()) } else { Err(Problem::NotConfirmed.into()) }
}

fn eprint_flush(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
