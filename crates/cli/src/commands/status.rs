//! `status`: prints the status of a volume, in cryptsetup's form.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::running_key::check_header;
use crate::args::action::{Action, NAME, Prepared};
use crate::error::{CliError, Status, message_of, status_of};
use crate::host::context;
use crate::ui::print::{print, print_stderr};
use inlock_serve::control::client::{Client, Found};
use inlock_serve::control::files::Files;
use inlock_serve::control::info::RuntimeInfo;
use inlock_serve::control::name::Name;

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
    match Client::find(context(), name)? {
        Found::Active(mut client) => {
            let status = client.status()?;
            check_header(&status.info, header)?;
            let state = if status.suspended { "suspended" } else { "active" };
            if json { print(format_args!("{:#}\n", with_state(&status, state)?)) } else { print(&status) }
        }
        Found::Gone(info) => gone(name, &info, json),
        Found::Unusable(unusable) => {
            let error = anyhow::Error::from(Files::of(name)?.error_of(&unusable));
            if !json {
                print(format_args!("{name} is inactive.\n"))?;
                return Err(error);
            }
            let fields = json!({
                "name": name.as_str(), "state": unusable.state(), "active": false, "error": message_of(&error)
            });
            print(format_args!("{fields:#}\n"))?;
            Err(CliError::Silent(status_of(&error)).into())
        }
        Found::Inactive => {
            if json {
                print(format_args!("{:#}\n", json!({"name": name.as_str(), "state": "inactive", "active": false})))?;
            } else {
                print(format_args!("{name} is inactive.\n"))?;
            }
            Err(CliError::Silent(Status::Device).into())
        }
    }
}

fn gone(name: &Name, info: &RuntimeInfo, json: bool) -> anyhow::Result<()> {
    if json {
        // The fingerprint of the key is for a process that recovers the device.
        let info = RuntimeInfo { key_fingerprint: None, next: None, ..info.clone() };
        print(format_args!("{:#}\n", with_state(&info, "gone")?))?;
        return Err(CliError::Silent(Status::Device).into());
    }
    print(format_args!("{name} is inactive.\n"))?;
    print_stderr(format_args!("inlock: Process {}, which served {}, has died.", info.pid, info.device.display()));
    Err(inlock_serve::Error::Gone { name: name.to_string() }.into())
}

/// Returns the JSON of a volume with this state, which `list` has, too.
fn with_state(shown: &impl Serialize, state: &str) -> anyhow::Result<Value> {
    let mut shown = serde_json::to_value(shown)?;
    shown["state"] = state.into();
    shown["active"] = matches!(state, "active" | "suspended").into();
    add_common_names(&mut shown);
    Ok(shown)
}

/// Adds the names that `list` and `table` have for values of a volume.
pub(super) fn add_common_names(volume: &mut Value) {
    let Some(segments) = volume.get_mut("segments").and_then(Value::as_array_mut) else { return };
    for segment in segments {
        segment["iv_large_sectors"] = segment["large_iv"].clone();
    }
    let endpoint = volume.get("node").or_else(|| volume.get("address")).cloned();
    volume["endpoint"] = endpoint.unwrap_or_else(|| "".into());
}
