//! `list`: prints all names in use, and those of processes that died.

use serde_json::{Value, json};

use crate::args::action::{Action, Prepared};
use crate::error::message_of;
use crate::host::context;
use crate::ui::columns::Columns;
use crate::ui::print::{print, warn};
use inlock_open::path_text;
use inlock_serve::Error;
use inlock_serve::control::client::{self, Client, Found};
use inlock_serve::control::files::Files;
use inlock_serve::control::info::{Described, RuntimeInfo};
use inlock_serve::control::servers::ServerFiles;
use inlock_serve::control::state_file::StateFile;

pub(crate) const ACTION: Action = Action {
    name: "list",
    aliases: &[],
    arguments: &[],
    options: &[&["json"]],
    about: "list running volumes",
    prepare: |options, _| Ok(Prepared::new(move || run(options.json))),
};

/// Headings, and the keys of [`row`] below them.
const COLUMNS: [(&str, &str); 8] = [
    ("NAME", "name"),
    ("STATE", "state"),
    ("TYPE", "type"),
    ("VIA", "via"),
    ("ZONES", "zones"),
    ("ERRORS", "errors"),
    ("ENDPOINT", "endpoint"),
    ("DEVICE", "device"),
];

fn run(json: bool) -> anyhow::Result<()> {
    let mut rows: Vec<Value> = Files::all()?.into_iter().filter_map(row).collect();
    for server in ServerFiles::all()? {
        match client::open_volumes(context(), &server) {
            Ok(volumes) => rows.extend(volumes.iter().map(of_server)),
            Err(_) => rows.push(silent(&server)),
        }
    }
    rows.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    if json {
        return print(format_args!("{:#}\n", Value::Array(rows)));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns = Columns::new(&COLUMNS.map(|(heading, _)| heading));
    for row in &rows {
        columns.row(COLUMNS.iter().map(|(_, key)| text(&row[key])).collect());
    }
    print(columns)?;
    for error in rows.iter().filter_map(|row| row["error"].as_str()) {
        warn(error);
    }
    Ok(())
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Describes a name. `None`: it was closed meanwhile.
fn row(files: Files) -> Option<Value> {
    let mut row = match files.state() {
        StateFile::Missing => return None,
        StateFile::Whole(info) => described(&info),
        StateFile::Unusable(unusable) => {
            let remains = unusable.remains.as_ref();
            let node = remains.and_then(|remains| remains.node.as_deref()).map(path_text::text_of);
            let device = remains.and_then(|remains| remains.device.as_deref()).map(path_text::text_of);
            json!({
                "name": files.name().as_str(), "type": null, "via": remains.map(|remains| &remains.via),
                "endpoint": node, "place": node, "errors": null, "device": device, "zones": null,
                "pid": remains.map(|remains| remains.pid), "started": null,
            })
        }
    };
    let state = match Client::find_at(context(), files.clone()) {
        Ok(Found::Active(mut client)) => match client.status() {
            Ok(status) => {
                row = described(&status.info);
                row["errors"] = status.counters.store_errors.into();
                if status.suspended { "suspended" } else { "active" }
            }
            Err(_) => "unreachable",
        },
        Ok(Found::Gone(_)) => "gone",
        Ok(Found::Unusable(unusable)) => {
            row["error"] = message_of(&files.error_of(&unusable).into()).into();
            unusable.state()
        }
        Ok(Found::Inactive) => return None,
        Err(Error::Unreachable { pid: 0, .. }) => "starting",
        Err(_) => "unreachable",
    };
    row["state"] = state.into();
    Some(row)
}

/// Describes a server of many volumes that does not tell them.
fn silent(server: &ServerFiles) -> Value {
    let error = Error::ServerUnresponsive { pid: server.pid() };
    json!({
        "name": format!("~{}", server.pid()), "state": "unreachable", "type": null, "via": "nbd", "endpoint": null,
        "place": null, "errors": null, "device": null, "zones": null, "pid": server.pid(), "started": null,
        "error": message_of(&error.into()),
    })
}

/// Describes an open volume of a server of many.
fn of_server(volume: &Described) -> Value {
    let mut row = described(&volume.info);
    row["errors"] = volume.store_errors.into();
    row["state"] = match (volume.closing, volume.suspended) {
        (true, _) => "closing",
        (false, true) => "suspended",
        (false, false) => "active",
    }
    .into();
    row
}

fn described(info: &RuntimeInfo) -> Value {
    json!({
        "name": info.name, "type": info.kind, "via": info.via, "endpoint": info.endpoint(), "place": info.endpoint(),
        "errors": null, "device": path_text::text_of(&info.device),
        "zones": info.zoned.as_ref().map(|zoned| zoned.zones), "pid": info.pid, "started": info.started,
    })
}
