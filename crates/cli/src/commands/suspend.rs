//! `suspend`: lets all requests of a running volume wait, and wipes its key.

use serde_json::json;

use crate::control::{Client, Name};

pub(crate) fn run(name: &Name) -> anyhow::Result<()> {
    Client::of(name)?.command(&json!({"command": "suspend"}), None).map(drop)
}
