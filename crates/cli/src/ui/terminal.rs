//! The terminal: asking for a passphrase without echo, and for confirmation.
//!
//! A passphrase is a sequence of bytes and need not be UTF-8. The echo is restored however the prompt ends, also by
//! Ctrl-C and Ctrl-Z.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use inlock_volume::Printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::error::CliError;
use crate::system::signals::{self, Caught};
use crate::ui::print::{print_stderr, print_stderr_text};

/// Maximum length of a typed passphrase, in bytes.
const PASSPHRASE_MAX: usize = 512;

/// Whether standard input is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stdin())
}

/// Asks on the controlling terminal, or without one on standard input and error.
pub(crate) fn ask_passphrase(prompt: &str, timeout: Option<Duration>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(tty) => ask(tty.as_fd(), &tty, prompt, deadline),
        Err(_) => ask(rustix::stdio::stdin(), io::stderr(), prompt, deadline),
    }
}

/// Whether [`ask_passphrase`] can ask although standard input carries data.
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
        write!(output, "{}", Printable::new(prompt))?;
        output.flush()?;
        let line = read_line(input, &caught, deadline);
        drop(quiet);
        writeln!(output)?;
        match line {
            Err(error) => match error.downcast_ref::<CliError>() {
                Some(CliError::Interrupted(number)) if *number == Signal::TSTP.as_raw() => {
                    signals::default_action(*number);
                    // After SIGCONT: ask again, with the terminal settings that other programs have left.
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
                return Err(CliError::NothingToRead.into());
            }
            _ if read == 0 => return Ok(line),
            b'\n' => return Ok(line),
            _ if line.len() == PASSPHRASE_MAX => {
                let _ = rustix::termios::tcflush(input, rustix::termios::QueueSelector::IFlush);
                return Err(CliError::refused(
                    format!("The passphrase is longer than {PASSPHRASE_MAX} characters."),
                    "pass a longer one in a file with --key-file",
                ));
            }
            byte => line.push(byte),
        }
    }
}

/// Blocks until input can be read.
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
            Ok(0) => return Err(CliError::PromptTimeout.into()),
            Ok(_) => {}
        }
        if let Some(number) = caught.take() {
            return Err(CliError::Interrupted(number).into());
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Disables the echo of a terminal until dropped.
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
        // Keeps earlier input: scripts with a terminal send it before the prompt.
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

/// Asks for confirmation: only `YES` in capital letters confirms. Otherwise fails with `aborted`.
pub(crate) fn confirm(warning: &str, aborted: CliError) -> anyhow::Result<()> {
    print_stderr_text(format_args!("\nWARNING!\n========\n{warning}\n"), "\n");
    print_stderr_text("Are you sure? (Type 'yes' in capital letters): ", "");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    // After end of file the cursor is on the line of the question.
    if !answer.ends_with('\n') {
        print_stderr("");
    }
    if answer.trim_end_matches('\n') == "YES" { Ok(()) } else { Err(aborted.into()) }
}

/// Asks the user at the terminal to confirm a change of a header, unless `batch`. Without a terminal, it is confirmed.
pub(crate) fn confirm_change(batch: bool, warning: &str, aborted: &'static str) -> anyhow::Result<()> {
    match batch || !stdin_is_terminal() {
        true => Ok(()),
        false => confirm(warning, CliError::Declined(aborted)),
    }
}
