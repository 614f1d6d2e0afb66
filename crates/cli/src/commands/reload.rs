//! `reload`: replaces the table of a running volume.

use std::path::Path;

use anyhow::Context;
use inlock_volume::HeaderPolicy;
use inlock_volume::table::ShowKeys;
use serde_json::json;

use crate::args::action::{Action, NAME, Prepared};
use crate::args::source::policy_of;
use crate::error::CliError;
use crate::host::context;
use inlock_open::table::{self, TableSource};
use inlock_serve::control::client::Client;
use inlock_serve::control::name::Name;
use inlock_serve::pipe;

pub(crate) const ACTION: Action = Action {
    name: "reload",
    aliases: &[],
    arguments: &[NAME],
    options: &[&["table", "allow-null-cipher", "require-cipher"]],
    about: "replace the table of a volume (--table)",
    prepare: |options, mut arguments| {
        let name = arguments.name()?;
        let table =
            options.table.as_deref().ok_or_else(|| CliError::usage("Option --table is required for reload action."))?;
        let (table, policy) = (TableSource::parse(table)?, policy_of(&options)?);
        Ok(Prepared::new(move || run(&name, &table, &policy)))
    },
};

fn run(name: &Name, table: &TableSource, policy: &HeaderPolicy) -> anyhow::Result<()> {
    let table = table.take()?;
    table::check_any_policy(&table, policy)?;
    // The process of the volume may have another working directory.
    let is_relative = |device: &&str| !Path::new(device).is_absolute() && !device.contains([':', '=']);
    if let Some(device) = table.devices().into_iter().find(is_relative) {
        return Err(CliError::refused(format!("Device {device} is a relative path."), "use absolute paths in a table"));
    }
    let text = table.to_text(ShowKeys::Yes);
    let pipe = pipe::filled(text.as_bytes()).context("cannot pass the table")?;
    Client::of(context(), name)?.command(&json!({"command": "reload"}), Some(&pipe))?;
    Ok(())
}
