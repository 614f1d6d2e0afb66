//! `suspend`: suspends I/O of a running volume, and wipes its key.

use serde_json::json;

use crate::args::action::{Action, Alias, NAME, Prepared};
use crate::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "suspend",
    aliases: &[Alias::new("luksSuspend")],
    arguments: &[NAME],
    options: &[],
    about: "suspend I/O and wipe the key from memory",
    prepare: |_, mut arguments| {
        let name = arguments.name()?;
        Ok(Prepared::new(move || Client::of(&name)?.command(&json!({"command": "suspend"}), None).map(drop)))
    },
};
