//! `suspend`: suspends I/O of a running volume, and wipes its key.

use serde_json::json;

use super::running_key::{check_header, check_type};
use crate::args::action::{Action, Alias, NAME, Prepared};
use crate::host::context;
use inlock_serve::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "suspend",
    aliases: &[Alias { volume_type: Some("luks"), ..Alias::new("luksSuspend") }],
    arguments: &[NAME],
    options: &[&["header", "disable-locks"]],
    about: "suspend I/O and wipe the key from memory",
    prepare: |options, mut arguments| {
        let (name, header, volume_type) = (arguments.name()?, options.header, options.volume_type);
        Ok(Prepared::new(move || {
            let mut client = Client::of(context(), &name)?;
            let info = client.status()?.info;
            check_type(&info, volume_type.as_deref())?;
            check_header(&info, header.as_deref())?;
            client.command(&json!({"command": "suspend"}), None)?;
            Ok(())
        }))
    },
};
