//! `status`: prints the status of a volume, in cryptsetup's form.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::running_key::check_header;
use crate::args::action::{Action, NAME, Prepared};
use crate::control::client::{Client, Found};
use crate::control::info::RuntimeInfo;
use crate::control::name::Name;
use crate::error::{CliError, Status};
use crate::ui::print::{print, print_stderr};

pub(crate) const ACTION: Action = Action {
    name: "status",
    aliases: &[],
    arguments: &[NAME],
    options: &[&["json", "header", "disable-locks"]],
    about: "show the status of a volume",
    prepare: |options, mut arguments| {
        let name = arguments.name()?;
        Ok(Prepared::new(move || run(&name, options.header.as_deref(), options.json)))
    },
};

/// Prints the status of a running volume.
pub(super) fn run(name: &Name, header: Option<&Path>, json: bool) -> anyhow::Result<()> {
    match Client::find(name)? {
        Found::Active(mut client) => {
            let status = client.status()?;
            check_header(&status.info, header)?;
            if json { print(format_args!("{:#}\n", with_state(&status, true)?)) } else { print(&status) }
        }
        Found::Gone(info) => gone(name, &info, json),
        Found::Inactive => {
            if json {
                print(format_args!("{:#}\n", json!({"name": name.as_str(), "active": false})))?;
            } else {
                print(format_args!("{name} is inactive.\n"))?;
            }
            Err(CliError::Silent(Status::Device).into())
        }
    }
}

fn gone(name: &Name, info: &RuntimeInfo, json: bool) -> anyhow::Result<()> {
    if json {
        print(format_args!("{:#}\n", with_state(info, false)?))?;
        return Err(CliError::Silent(Status::Device).into());
    }
    print(format_args!("{name} is inactive.\n"))?;
    print_stderr(format_args!("inlock: Process {}, which served {}, has died.", info.pid, info.device.display()));
    Err(CliError::Gone { name: name.to_string() }.into())
}

fn with_state(shown: &impl Serialize, active: bool) -> anyhow::Result<Value> {
    let mut shown = serde_json::to_value(shown)?;
    shown["active"] = active.into();
    Ok(shown)
}
