//! `resize`: grows a volume that extends to the end of its device.

use serde_json::json;

use crate::args::action::{Action, NAME, Prepared};
use crate::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "resize",
    aliases: &[],
    arguments: &[NAME],
    options: &[],
    about: "grow a volume to the current length of its device",
    prepare: |_, mut arguments| {
        let name = arguments.name()?;
        Ok(Prepared::new(move || Client::of(&name)?.command(&json!({"command": "resize"}), None).map(drop)))
    },
};
