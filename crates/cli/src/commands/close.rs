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
    options: &[&["deferred", "cancel-deferred", "header", "disable-locks"]],
    about: "close an open or served volume when all writes are durable",
    prepare: |options, mut arguments| {
        let (name, deferred) = (arguments.name()?, options.deferred);
        if deferred && options.cancel_deferred {
            return Err(CliError::usage("Options --cancel-deferred and --deferred cannot be used at the same time."));
        }
        let (header, cancel) = (options.header, options.cancel_deferred);
        Ok(Prepared::new(move || {
            if header.is_some() {
                check_header(&Client::of(&name)?.status()?.info, header.as_deref())?;
            }
            if cancel {
                return Client::of(&name)?.command(&json!({"command": "cancel_deferred"}), None).map(drop);
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
        Found::Active(client) => client.close(&json!({"command": "close"})),
        // Taking the name cleans up; releasing it removes the files.
        Found::Gone(_) => Claim::take(name).map(drop),
        Found::Inactive => Err(CliError::Inactive { name: name.to_string() }.into()),
    }
}
