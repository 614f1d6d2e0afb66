//! Output of the command: results on standard output; errors, hints and warnings on standard error.
//!
//! Paths, names and texts of headers, programs and servers are in all of it, so all of it passes through [`Printable`]
//! here: an escape sequence in a path must not reach the terminal.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::sync::OnceLock;

use inlock_volume::Printable;

use super::log_file;
use crate::error::{CliError, Status, hint_of, kind_of, message_of, own_error, status_of};
use inlock_open::ErrorKind;

/// Prints a result to standard output, with escapes as JSON strings have them.
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = Escaping { out: io::stdout().lock(), result: Ok(()) };
    // Fails only as `out.result` says.
    let _ = write!(out, "{text}");
    match out.result.and_then(|()| out.out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::OutputClosed.into()),
        other => Ok(other?),
    }
}

/// Escapes what is written piece by piece, since a text of all may contain a key.
struct Escaping<W> {
    out: W,
    result: io::Result<()>,
}

impl<W: Write> fmt::Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.result = write!(self.out, "{}", Printable::with_layout(text));
        if self.result.is_ok() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Where `--verbose` prints details; unset: nowhere.
static VERBOSE: OnceLock<Details> = OnceLock::new();

/// Output of `--verbose`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Details {
    Stdout,
    /// Standard output carries data.
    Stderr,
}

/// Turns on `--verbose`.
pub(crate) fn set_verbose(to: Details) {
    let _ = VERBOSE.set(to);
}

/// Whether `--verbose` is given.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.get().is_some()
}

/// Output of `--debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Debug {
    Plain,
    /// With the metadata of LUKS2 headers.
    WithJson,
}

/// `--debug`; unset: not given.
static DEBUG: OnceLock<Debug> = OnceLock::new();

/// Turns on `--debug`. Its lines go where those of `--verbose` go.
pub(crate) fn set_debug(debug: Debug) {
    let _ = DEBUG.set(debug);
}

/// Prints a diagnosis after `# `, with `--debug` only. It has no secrets.
pub(crate) fn print_debug(line: impl Display) {
    if DEBUG.get().is_some() {
        print_verbose(format_args!("# {line}"));
    }
}

/// Prints the metadata of a header, with `--debug-json` only.
pub(crate) fn print_debug_json(json: &str) {
    if DEBUG.get() == Some(&Debug::WithJson) {
        json.lines().for_each(print_debug);
    }
}

/// Prints a detail, with `--verbose` only. Errors are ignored.
pub(crate) fn print_verbose(line: impl Display) {
    match VERBOSE.get() {
        Some(Details::Stdout) => drop(print(format_args!("{}\n", Printable::new(&line.to_string())))),
        Some(Details::Stderr) => print_stderr(line),
        None => {}
    }
}

/// Prints one line to standard error. Errors are ignored.
pub(crate) fn print_stderr(line: impl Display) {
    print_stderr_text(Printable::new(&line.to_string()), "\n");
}

/// Prints lines or a part of one to standard error, in one write, so that lines of several processes do not mix. Errors
/// are ignored.
pub(crate) fn print_stderr_text(text: impl Display, end: &str) {
    let text = format!("{text}{end}");
    let text = Printable::with_layout(&text).to_string();
    let mut err = io::stderr().lock();
    if log_file::make_room(text.len()) {
        let _ = err.write_all(text.as_bytes());
    }
}

/// Prints what is to control the terminal, and text that is escaped already.
pub(crate) fn print_controls(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: impl Display) {
    print_stderr(format_args!("inlock: warning: {text}"));
}

/// Prints an error with its hint, unless it is silent, and returns the status to exit with.
pub(crate) fn report(error: &anyhow::Error) -> Status {
    let is_silent = |error: &CliError| matches!(error, CliError::No | CliError::Silent(_) | CliError::OutputClosed);
    let silent = own_error(error).is_some_and(is_silent) || kind_of(error) == Some(ErrorKind::OutputClosed);
    if !silent {
        lines_of(error).for_each(print_stderr);
    }
    status_of(error)
}

/// Returns the lines that tell a user of an error: its message, and its hint if there is one.
pub(crate) fn lines_of(error: &anyhow::Error) -> impl Iterator<Item = String> {
    let hint = hint_of(error).map(|hint| format!("hint: {hint}"));
    std::iter::once(format!("inlock: {}", message_of(error))).chain(hint)
}
