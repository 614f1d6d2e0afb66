//! `suspend`: suspends I/O of a running volume, and wipes its key.

use serde_json::json;

use super::running_key::check_header;
use crate::args::action::{Action, Alias, NAME, Prepared};
use crate::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "suspend",
    aliases: &[Alias::new("luksSuspend")],
    arguments: &[NAME],
    options: &[&["header", "disable-locks"]],
    about: "suspend I/O and wipe the key from memory",
    prepare: |options, mut arguments| {
        let (name, header) = (arguments.name()?, options.header);
        Ok(Prepared::new(move || {
            let mut client = Client::of(&name)?;
            check_header(&client.status()?.info, header.as_deref())?;
            client.command(&json!({"command": "suspend"}), None).map(drop)
        }))
    },
};
