//! `refresh`: gives a running volume the flags that its header or its table says, and those that are named.

use inlock_volume::table::CryptOptions;
use serde_json::json;

use crate::control::{Client, Name};

pub(crate) fn run(name: &Name, flags: &CryptOptions) -> anyhow::Result<()> {
    Client::of(name)?.command(&json!({"command": "refresh", "flags": flags.names()}), None).map(drop)
}
