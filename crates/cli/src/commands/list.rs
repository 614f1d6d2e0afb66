//! `list`: prints all names in use, and those of processes that died.

use serde_json::{Value, json};

use crate::args::action::{Action, Prepared};
use crate::control::client::{Client, Found};
use crate::control::files::Files;
use crate::path_text;
use crate::ui::columns::Columns;
use crate::ui::print::print;

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
    let rows: Vec<Value> = Files::all()?.into_iter().filter_map(row).collect();
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
    print(columns)
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
    let mut info = files.info()?;
    let mut errors = None;
    let state = match Client::find_at(files) {
        Ok(Found::Active(mut client)) => match client.status() {
            Ok(status) => {
                let state = if status.suspended { "suspended" } else { "active" };
                info = status.info;
                errors = Some(status.counters.store_errors);
                state
            }
            Err(_) => "unreachable",
        },
        Ok(Found::Gone(_)) => "gone",
        Ok(Found::Inactive) => return None,
        Err(_) => "unreachable",
    };
    Some(json!({
        "name": info.name, "state": state, "type": info.kind, "via": info.via, "endpoint": info.endpoint(),
        "place": info.endpoint(), "errors": errors, "device": path_text::text_of(&info.device),
        "zones": info.zoned.map(|zoned| zoned.zones), "pid": info.pid, "started": info.started,
    }))
}
