//! The `inlock` command: cryptsetup's options, prompts, messages and exit statuses, for volumes in user space.
//!
//! [`args`] turns the command line into a checked action, [`commands`] has one file for each action, and [`error`] maps
//! errors to messages, hints and exit statuses.

#![forbid(unsafe_code)]

mod args;
mod background;
mod commands;
mod error;
mod host;
mod output;
mod system;
mod ui;
mod values;

use std::process::ExitCode;

use args::parse::Request;
use commands::ACTIONS;
use error::{CliError, Status, in_action, kind_of};
use inlock_open::ErrorKind;
use system::signals;
use ui::print::{Details, print, print_debug, print_stderr, report, set_debug, set_verbose};

fn main() -> ExitCode {
    system::harden::harden();
    signals::survive_size_limit();
    let invocation = match args::parse::parse(ACTIONS, std::env::args_os().skip(1)) {
        Ok(invocation) => invocation,
        Err(error) => return ExitCode::from(report(&error) as u8),
    };
    host::set_settings(invocation.settings);
    let stdout_is_data = matches!(&invocation.request, Request::Run(prepared) if prepared.stdout_is_data);
    if invocation.verbose {
        set_verbose(if stdout_is_data { Details::Stderr } else { Details::Stdout });
    }
    if let Some(debug) = invocation.debug {
        set_debug(debug);
        let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let shown: Vec<_> = words.iter().map(|word| inlock_open::remote::shown(word)).collect();
        print_debug(format_args!("inlock {} processing \"{}\"", env!("CARGO_PKG_VERSION"), shown.join(" ")));
    }
    let status = match run(invocation.request) {
        Ok(code) if code != 0 => return ExitCode::from(code),
        Ok(_) => Status::Ok,
        Err(error) => {
            die_by_signal(&error);
            report(&in_action(error, invocation.action))
        }
    };
    if invocation.verbose {
        print_result(status, stdout_is_data);
    }
    ExitCode::from(status as u8)
}

/// Runs the request, and returns the exit status: not 0 only from a program that it ran.
fn run(request: Request) -> anyhow::Result<u8> {
    match request {
        Request::Help(action) => args::help::print_help(ACTIONS, action)?,
        Request::Usage(action) => args::help::print_usage(action)?,
        Request::Version => print(concat!("inlock ", env!("CARGO_PKG_VERSION"), "\n"))?,
        Request::TestArgs => print("No action taken. Invoked with --test-args option.\n")?,
        Request::Run(prepared) => return prepared.run(),
    }
    Ok(0)
}

/// Terminates the process by the signal that interrupted it, so that its parent sees that.
fn die_by_signal(error: &anyhow::Error) {
    let signal = match (kind_of(error), error.downcast_ref()) {
        (Some(ErrorKind::Interrupted(number)), _) => number,
        (_, Some(CliError::Interrupted(number))) => *number,
        (Some(ErrorKind::OutputClosed), _) | (_, Some(CliError::OutputClosed)) => {
            rustix::process::Signal::PIPE.as_raw()
        }
        _ => return,
    };
    signals::default_action(signal);
}

/// Prints cryptsetup's last line under `--verbose`.
fn print_result(status: Status, stdout_is_data: bool) {
    let line = match status {
        Status::Ok => "Command successful.".to_owned(),
        _ => format!("Command failed with code -{} ({}).", status as u8, status.describe()),
    };
    if stdout_is_data {
        print_stderr(line);
    } else {
        // An earlier error is already reported, and a closed output is one.
        let _ = print(format_args!("{line}\n"));
    }
}
