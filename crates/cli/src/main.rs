//! The `inlock` command: cryptsetup's options, prompts, messages and exit statuses, over volumes served in user space.
//!
//! [`args`] turns words into a checked command without acting, [`commands`] has one file a verb, and [`exit`] is the one
//! place where an error becomes a message, a hint and a status.

#![forbid(unsafe_code)]

mod args;
mod backing;
mod bench;
mod captive;
mod commands;
mod control;
mod copy;
mod daemon;
mod device;
mod durable;
mod exit;
mod help;
mod holders;
#[cfg(not(all(feature = "fuse", feature = "ublk")))]
mod left_out;
mod lock;
mod options;
mod output;
mod progress;
mod run_dir;
mod secret;
mod signals;
mod source;
mod table;
mod terminal;
mod values;
mod way;
mod zones;

use std::process::ExitCode;

use args::{Command, Invocation};
use exit::{Problem, Status, say};

fn main() -> ExitCode {
    secret::harden();
    signals::survive_size_limit();
    let invocation = match args::parse(std::env::args_os().skip(1)) {
        Ok(invocation) => invocation,
        Err(error) => return ExitCode::from(exit::report(&error) as u8),
    };
    let result = run(&invocation);
    let status = match &result {
        Ok(code) if *code != 0 => return ExitCode::from(*code),
        Ok(_) => Status::Ok,
        Err(error) => {
            end_by_signal(error);
            exit::report(error)
        }
    };
    if invocation.verbose {
        show_status(&invocation.command, status);
    }
    ExitCode::from(status as u8)
}

/// Runs the command; the status that it gives itself is that of a program it ran.
fn run(invocation: &Invocation) -> anyhow::Result<u8> {
    let batch = invocation.batch;
    match &invocation.command {
        Command::Help(verb) => help::print(*verb)?,
        Command::Version => exit::print(concat!("inlock ", env!("CARGO_PKG_VERSION"), "\n"))?,
        Command::LuksFormat(args) => commands::luks_format::run(args, batch)?,
        Command::IsLuks(args) => commands::is_luks::run(args)?,
        Command::LuksUuid(args) => commands::luks_uuid::run(args)?,
        Command::LuksDump { at, json } => commands::luks_dump::run(at, *json)?,
        Command::TestPassphrase(args) => commands::test_passphrase::run(args)?,
        Command::Serve(args) => return commands::serve::run(args),
        Command::Status { name, json } => commands::status::run(name, *json)?,
        Command::List { json } => commands::list::run(*json)?,
        Command::Top { names, once, json } => commands::top::run(names, *once, *json)?,
        Command::Suspend(name) => commands::suspend::run(name)?,
        Command::Reload { name, table, policy } => commands::reload::run(name, table, policy)?,
        Command::Refresh { name, flags } => commands::refresh::run(name, flags)?,
        Command::Resume(args) => commands::resume::run(args)?,
        Command::Open(args) => return commands::open::run(args),
        Command::Mount(args) => return commands::mount::run(args),
        Command::Umount { dir, deferred } => commands::umount::run(dir, *deferred)?,
        Command::Resize(name) => commands::resize::run(name)?,
        Command::Close { name, deferred } => commands::close::run(name, *deferred)?,
        Command::Export(args) => commands::export::run(args, batch)?,
        Command::Import(args) => commands::import::run(args, batch)?,
        Command::Benchmark(args) => commands::benchmark::run(args)?,
        Command::Bench(args) => return bench::run(args),
        Command::Table { source, showkeys, json } => commands::table::run(source, *showkeys, *json)?,
        Command::Zoned(args) => commands::zoned::run(args)?,
    }
    Ok(0)
}

/// Whoever waits for this program shall see that a signal ended it.
fn end_by_signal(error: &anyhow::Error) {
    match error.downcast_ref() {
        Some(Problem::Interrupted(number)) => signals::default_action(*number),
        Some(Problem::OutputClosed) => signals::default_action(rustix::process::Signal::PIPE.as_raw()),
        _ => {}
    }
}

/// cryptsetup's last line under `--verbose`.
fn show_status(command: &Command, status: Status) {
    let line = match status {
        Status::Ok => "Command successful.".to_owned(),
        _ => format!("Command failed with code -{} ({}).", status as u8, status.describe()),
    };
    let stdout_is_data = matches!(command, Command::Export(args) if args.other.is_none());
    if stdout_is_data {
        say(&line);
    } else {
        // An error was told already, and a closed output is one.
        let _ = exit::print(format_args!("{line}\n"));
    }
}
