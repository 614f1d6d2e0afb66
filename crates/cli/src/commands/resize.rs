//! `resize`: makes a volume that goes to the end of its device as long as the device is now.

use serde_json::json;

use crate::control::{Client, Name};

pub(crate) fn run(name: &Name) -> anyhow::Result<()> {
    Client::of(name)?.command(&json!({"command": "resize"}), None).map(drop)
}
