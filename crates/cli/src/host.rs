//! The command as the program around the library: it prints what the library tells, and asks the user at the terminal.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use inlock_open::error::interrupted;
use inlock_open::host::{Context, Host, Input, Interruptions, Level};
use inlock_open::settings::Settings;
use inlock_open::{Error, ErrorKind, secret};
use inlock_serve::Told;
use inlock_serve::log::Log;
use inlock_serve::program::Program;
use rustix::process::Signal;
use zeroize::Zeroizing;

use crate::error::{CliError, told};
use crate::system::signals::{self, Caught};
use crate::ui::print::{is_verbose, print_debug, print_debug_json, print_stderr, print_verbose, warn};
use crate::ui::terminal;

/// The context of this process, which the command line sets.
static CONTEXT: OnceLock<Context> = OnceLock::new();

/// Whether standard input carries data, and thus no passphrase.
static STDIN_IS_DATA: AtomicBool = AtomicBool::new(false);

/// Returns the context of this process.
pub(crate) fn context() -> &'static Context {
    CONTEXT.get_or_init(|| Context::new(CommandLine, Settings::default()))
}

/// Sets the settings of this process. Only the first call counts, and there is one.
pub(crate) fn set_settings(settings: Settings) {
    let _ = CONTEXT.set(Context::new(CommandLine, settings));
}

/// Returns this process as the program around running volumes.
pub(crate) fn program() -> Arc<dyn Program> {
    Arc::new(CommandLine)
}

impl Program for CommandLine {
    fn context(&self) -> &Context {
        context()
    }

    fn tell(&self, error: inlock_serve::Error) -> Told {
        told(&error.into())
    }

    fn log(&self, subject: &dyn Display, text: &dyn Display) {
        log().about(subject, text);
    }
}

/// Returns the log of this process, for threads that must not wait for standard error.
pub(crate) fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::new("inlock: ", |line| print_stderr(line)))
}

/// Keeps passphrases off standard input, which carries data.
pub(crate) fn take_stdin_for_data() {
    STDIN_IS_DATA.store(true, Ordering::Relaxed);
}

/// A command at a terminal or in a script.
pub(crate) struct CommandLine;

fn stdin_is_data() -> bool {
    STDIN_IS_DATA.load(Ordering::Relaxed)
}

impl Host for CommandLine {
    fn tell(&self, level: Level, text: &dyn Display) {
        match level {
            Level::Warning => warn(text),
            Level::Failure => print_stderr(format_args!("inlock: {text}")),
            Level::Detail => print_verbose(text),
            Level::Debug => print_debug(text),
            Level::Metadata => print_debug_json(&text.to_string()),
            _ => print_stderr(text),
        }
    }

    fn is_wanted(&self, level: Level) -> bool {
        level != Level::Detail || is_verbose()
    }

    fn can_ask(&self) -> bool {
        if stdin_is_data() { terminal::has_controlling_terminal() } else { terminal::stdin_is_terminal() }
    }

    fn ask(&self, prompt: &str, timeout: Option<Duration>) -> inlock_open::Result<Zeroizing<Vec<u8>>> {
        terminal::ask_passphrase(prompt, timeout).map_err(library_error)
    }

    fn read(&self, input: Input) -> inlock_open::Result<Zeroizing<Vec<u8>>> {
        if stdin_is_data() {
            let (what, hint) = match input {
                Input::Pin => ("PIN", "use a passphrase in a file with --key-file"),
                _ => ("passphrase", "give the passphrase in a file with --key-file"),
            };
            let text = format!("Standard input carries the data, and there is no terminal to ask for the {what}.");
            return Err(library_error(CliError::refused(text, hint)));
        }
        let stdin = rustix::stdio::stdin();
        match input {
            Input::All { offset, size } => secret::read_all(stdin, offset, size),
            Input::Line { size, verify } => {
                if verify {
                    print_stderr("Can't do passphrase verification on non-tty inputs.");
                }
                secret::first_line(stdin, size)
            }
            _ => secret::first_line(stdin, None),
        }
    }

    fn interruptions(&self) -> inlock_open::Result<Option<Box<dyn Interruptions>>> {
        Ok(Some(Box::new(Signals(signals::catch()?))))
    }

    fn before_end(&self, act: Box<dyn FnOnce() + Send>) -> inlock_open::Result<Box<dyn Send>> {
        Ok(Box::new(signals::clean_up_before(act)?))
    }
}

/// Returns an error of the command as one of the library: it is the cause, and is found in the chain.
pub(crate) fn library_error(error: anyhow::Error) -> Error {
    match error.downcast_ref() {
        Some(CliError::Interrupted(signal)) => interrupted(*signal),
        Some(CliError::PromptTimeout) => Error::new(ErrorKind::PromptTimeout, error.to_string()),
        Some(CliError::NothingToRead) => Error::nothing_to_read(),
        _ => Error::from_source(ErrorKind::NoInput, error.reallocate_into_boxed_dyn_error_without_backtrace()),
    }
}

/// Signals that end the wait for a helper.
struct Signals(Caught);

impl Interruptions for Signals {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn take(&self) -> Option<i32> {
        let signal = self.0.take()?;
        if signal == Signal::TSTP.as_raw() {
            signals::default_action(signal);
            return None;
        }
        Some(signal)
    }
}
