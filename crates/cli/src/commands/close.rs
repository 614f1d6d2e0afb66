//! `close`: ends the process of a name when everything is written, or cleans up after one that is gone.

use serde_json::json;

use crate::control::client::{Client, Found};
use crate::control::{Claim, Name};
use crate::exit::Problem;

/// `deferred`: when nobody uses it any more.
pub(crate) fn run(name: &Name, deferred: bool) -> anyhow::Result<()> {
    match Client::find(name)? {
        // Its process may go on for long.
        Found::Active(mut client) if deferred => {
            client.command(&json!({"command": "close", "deferred": true}), None).map(drop)
        }
        Found::Active(client) => client.close(&json!({"command": "close"})),
        // Taking the name cleans up; giving it back at once leaves nothing.
        Found::Gone(_) => Claim::take(name).map(drop),
        Found::Inactive => Err(Problem::Inactive { name: name.to_string() }.into()),
    }
}
