//! `reload`: puts another table in place of what a running volume is.

use std::path::Path;

use anyhow::Context;
use inlock_volume::HeaderPolicy;
use inlock_volume::table::ShowKeys;
use serde_json::json;

use crate::control::{Client, Name, pipe};
use crate::exit::Problem;
use crate::table::{self, TableArg};

pub(crate) fn run(name: &Name, table: &TableArg, policy: &HeaderPolicy) -> anyhow::Result<()> {
    let table = table.take()?;
    table::check_policy(&table, policy)?;
    // The process that serves may be in another directory.
    let relative = |device: &&str| !Path::new(device).is_absolute() && !device.contains([':', '=']);
    if let Some(device) = table.devices().into_iter().find(relative) {
        return Err(Problem::refused(format!("Device {device} is a relative path."), "a table names whole paths"));
    }
    let text = table.to_text(ShowKeys::Yes);
    let pipe = pipe::filled(text.as_bytes()).context("cannot hand over the table")?;
    Client::of(name)?.command(&json!({"command": "reload"}), Some(&pipe)).map(drop)
}
