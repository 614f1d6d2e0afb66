//! `refresh`: sets the flags of a running volume to those of its header or table, and those given.

use serde_json::json;

use super::persistent;
use crate::args::action::{Action, NAME, Prepared, THREAD_FLAGS};
use crate::args::source::flags_of;
use crate::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "refresh",
    aliases: &[],
    arguments: &[NAME],
    options: &[THREAD_FLAGS, &["allow-discards", "persistent", "disable-locks"]],
    about: "set the flags of a volume to its header's plus those given",
    prepare: |options, mut arguments| {
        persistent::check_options(&options)?;
        let (name, flags) = (arguments.name()?, flags_of(&options));
        Ok(Prepared::new(move || {
            let request = json!({"command": "refresh", "flags": flags.names()});
            Client::of(&name)?.command(&request, None)?;
            if options.persistent { persistent::store(&name) } else { Ok(()) }
        }))
    },
};
