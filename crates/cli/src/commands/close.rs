//! `close`: closes a volume when all writes are on stable storage, or cleans up after a process that died.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::running_key::check_header;
use crate::args::action::{Action, Alias, NAME, Prepared};
use crate::args::options::Options;
use crate::error::CliError;
use crate::host::context;
use inlock_serve::Error;
use inlock_serve::control::claim::{Claim, Purpose};
use inlock_serve::control::client::{Client, Found};
use inlock_serve::control::name::Name;

/// How long a forced close tries the usual way.
const FORCE_AFTER: Duration = Duration::from_secs(5);

/// How long a forced close waits for other commands after that.
const FORCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between tries.
const RETRY: Duration = Duration::from_millis(100);

pub(crate) const ACTION: Action = Action {
    name: "close",
    aliases: &[Alias::new("remove"), Alias::new("luksClose"), Alias::new("plainClose")],
    arguments: &[NAME],
    options: &[&["deferred", "cancel-deferred", "force", "header", "disable-locks"]],
    about: "close an open or served volume when all writes are durable",
    prepare: |options, mut arguments| prepare(&options, arguments.name()?),
};

/// Checks the options, and returns what closes the volume.
pub(super) fn prepare(options: &Options, name: Name) -> anyhow::Result<Prepared> {
    let (deferred, cancel, force) = (options.deferred, options.cancel_deferred, options.force);
    if deferred && cancel {
        return Err(CliError::usage("Options --cancel-deferred and --deferred cannot be used at the same time."));
    }
    if force && deferred {
        return Err(CliError::usage("Options --force and --deferred cannot be used at the same time."));
    }
    let header = options.header.clone();
    Ok(Prepared::new(move || {
        if header.is_some() {
            check_header(&Client::of(context(), &name)?.status()?.info, header.as_deref())?;
        }
        if cancel {
            Client::of(context(), &name)?.command(&json!({"command": "cancel_deferred"}), None)?;
            return Ok(());
        }
        Ok(if force { run_forced(&name) } else { run(&name, deferred) }?)
    }))
}

/// Closes the volume; with `deferred`, as soon as it is no longer in use.
pub(super) fn run(name: &Name, deferred: bool) -> Result<(), Error> {
    close(name, deferred, Purpose::Close)
}

/// `purpose`: how to clean up after a process that died.
fn close(name: &Name, deferred: bool, purpose: Purpose) -> Result<(), Error> {
    match Client::find(context(), name)? {
        // Its process may continue for a long time.
        Found::Active(mut client) if deferred => {
            client.command(&json!({"command": "close", "deferred": true}), None).map(drop)
        }
        Found::Active(client) => {
            match client.close(&json!({"command": "close", "force": purpose == Purpose::ForcedClose})) {
                // The process died after it had accepted the connection.
                Err(Error::Gone { .. }) => clean_up(name, purpose),
                closed => closed,
            }
        }
        Found::Gone(_) | Found::Unusable(_) => clean_up(name, purpose),
        Found::Inactive => Err(Error::Inactive { name: name.to_string() }),
    }
}

/// Closes the volume like [`run`], and disconnects its clients. Only if that takes long, also since another command of
/// the volume waits for the underlying device, fails what waits for it: a device that works loses nothing, and one in
/// use stays.
fn run_forced(name: &Name) -> Result<(), Error> {
    let wait = Arc::new(Mutex::new(Wait::Tries(Instant::now())));
    let (ended, waiting) = mpsc::channel::<()>();
    let (aborted, seen) = (name.clone(), Arc::clone(&wait));
    let abort = std::thread::spawn(move || {
        let mut limit = FORCE_AFTER;
        while let Err(RecvTimeoutError::Timeout) = waiting.recv_timeout(limit) {
            if lock(&seen).is_for_device() {
                return abort_if_active(&aborted);
            }
            limit = RETRY;
        }
        Ok(())
    });
    let deadline = Instant::now() + FORCE_AFTER + FORCE_TIMEOUT;
    let mut has_waited = false;
    let closed = loop {
        *lock(&wait) = Wait::Tries(Instant::now());
        match close(name, false, Purpose::ForcedClose) {
            Err(error) if error.is_in_progress() && Instant::now() < deadline => {
                *lock(&wait) = if error.is_not_executed() { Wait::Server } else { Wait::OtherCommand };
                has_waited = true;
                std::thread::sleep(RETRY);
            }
            // The other command was a close.
            Err(Error::Inactive { .. }) if has_waited => break Ok(()),
            closed => break closed,
        }
    };
    drop(ended);
    // The abort may have come too late.
    let _ = abort.join();
    closed
}

/// Reason why a forced close waits.
enum Wait {
    /// The reply to a try, since then.
    Tries(Instant),
    /// Another command of the volume.
    OtherCommand,
    /// The server, which executes commands of other volumes.
    Server,
}

impl Wait {
    /// Whether the device of the volume seems not to answer. A server that executes nothing more replies at once.
    fn is_for_device(&self) -> bool {
        match self {
            Self::Tries(since) => since.elapsed() > Duration::from_secs(1),
            Self::OtherCommand => true,
            Self::Server => false,
        }
    }
}

fn lock(wait: &Mutex<Wait>) -> MutexGuard<'_, Wait> {
    wait.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails what waits for the underlying device of the volume, and everything later.
fn abort_if_active(name: &Name) -> Result<(), Error> {
    match Client::find(context(), name)? {
        Found::Active(mut client) => client.command(&json!({"command": "abort"}), None).map(drop),
        Found::Gone(_) | Found::Unusable(_) | Found::Inactive => Ok(()),
    }
}

/// Taking the name cleans up; releasing it removes the files.
fn clean_up(name: &Name, purpose: Purpose) -> Result<(), Error> {
    Claim::take(context(), name, purpose).map(drop)
}
