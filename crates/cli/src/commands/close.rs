//! `close`: closes a volume when all writes are on stable storage, or cleans up after a process that died.

use serde_json::json;

use super::running_key::check_header;
use crate::args::action::{Action, Alias, NAME, Prepared};
use crate::control::claim::Claim;
use crate::control::client::{Client, Found};
use crate::control::name::Name;
use crate::error::CliError;

pub(crate) const ACTION: Action = Action {
    name: "close",
    aliases: &[Alias::new("remove"), Alias::new("luksClose"), Alias::new("plainClose")],
    arguments: &[NAME],
    options: &[&["deferred", "cancel-deferred", "force", "header", "disable-locks"]],
    about: "close an open or served volume when all writes are durable",
    prepare: |options, mut arguments| {
        let (name, deferred) = (arguments.name()?, options.deferred);
        if deferred && options.cancel_deferred {
            return Err(CliError::usage("Options --cancel-deferred and --deferred cannot be used at the same time."));
        }
        let (header, cancel, force) = (options.header, options.cancel_deferred, options.force);
        if force && deferred {
            return Err(CliError::usage("Options --force and --deferred cannot be used at the same time."));
        }
        Ok(Prepared::new(move || {
            if header.is_some() {
                check_header(&Client::of(&name)?.status()?.info, header.as_deref())?;
            }
            if cancel {
                return Client::of(&name)?.command(&json!({"command": "cancel_deferred"}), None).map(drop);
            }
            if force && let Found::Active(mut client) = Client::find(&name)? {
                client.command(&json!({"command": "abort"}), None)?;
            }
            run(&name, deferred)
        }))
    },
};

/// Closes the volume; with `deferred`, as soon as it is no longer in use.
pub(super) fn run(name: &Name, deferred: bool) -> anyhow::Result<()> {
    match Client::find(name)? {
        // Its process may continue for a long time.
        Found::Active(mut client) if deferred => {
            client.command(&json!({"command": "close", "deferred": true}), None).map(drop)
        }
        Found::Active(client) => match client.close(&json!({"command": "close"})) {
            // The process died after it had accepted the connection.
            Err(error) if is_gone(&error) => clean_up(name),
            closed => closed,
        },
        Found::Gone(_) => clean_up(name),
        Found::Inactive => Err(CliError::Inactive { name: name.to_string() }.into()),
    }
}

/// Taking the name cleans up; releasing it removes the files.
fn clean_up(name: &Name) -> anyhow::Result<()> {
    Claim::take(name).map(drop)
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CliError::Gone { .. }))
}
