//! `list`: every name in use, and names that a process left behind.

use serde_json::{Value, json};

use crate::control::Table;
use crate::control::client::{Client, Found};
use crate::control::name::Files;
use crate::exit;

pub(crate) fn run(json: bool) -> anyhow::Result<()> {
    let rows: Vec<Value> = Files::all()?.into_iter().filter_map(row).collect();
    if json {
        return exit::print(format_args!("{:#}\n", Value::Array(rows)));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let columns = ["name", "state", "type", "via", "zones", "errors", "place", "device"];
    let mut table = Table::new(&columns.map(str::to_ascii_uppercase).each_ref().map(String::as_str));
    for row in &rows {
        table.row(columns.iter().map(|column| text(&row[column])).collect());
    }
    exit::print(table)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// `None`: it ended just now.
fn row(files: Files) -> Option<Value> {
    let mut facts = files.facts()?;
    let mut errors = None;
    let state = match Client::find_at(files) {
        Ok(Found::Active(mut client)) => match client.status() {
            Ok(status) => {
                let state = if status.suspended { "suspended" } else { "active" };
                facts = status.facts;
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
        "name": facts.name, "state": state, "type": facts.kind, "via": facts.via, "place": facts.place(),
        "errors": errors, "device": facts.device, "zones": facts.zoned.map(|zoned| zoned.zones), "pid": facts.pid, "started": facts.started,
    }))
}
