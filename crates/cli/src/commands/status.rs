//! `status`: what is served under a name, in cryptsetup's words, and how it is.

use serde::Serialize;
use serde_json::{Value, json};

use crate::control::client::{Client, Found};
use crate::control::{Facts, Name};
use crate::exit::{self, Problem, say};

pub(crate) fn run(name: &Name, json: bool) -> anyhow::Result<()> {
    match Client::find(name)? {
        Found::Active(mut client) => {
            let status = client.status()?;
            if json { exit::print(format_args!("{:#}\n", with_state(&status, true)?)) } else { exit::print(&status) }
        }
        Found::Gone(facts) => gone(name, &facts, json),
        Found::Inactive => {
            if json {
                exit::print(format_args!("{:#}\n", json!({"name": name.as_str(), "active": false})))?;
            } else {
                exit::print(format_args!("{name} is inactive.\n"))?;
            }
            Err(Problem::Silent(exit::Status::Device).into())
        }
    }
}

fn gone(name: &Name, facts: &Facts, json: bool) -> anyhow::Result<()> {
    if json {
        exit::print(format_args!("{:#}\n", with_state(facts, false)?))?;
        return Err(Problem::Silent(exit::Status::Device).into());
    }
    exit::print(format_args!("{name} is inactive.\n"))?;
    say(&format!("inlock: process {}, which served {}, is gone.", facts.pid, facts.device.display()));
    Err(Problem::Gone { name: name.to_string() }.into())
}

fn with_state(shown: &impl Serialize, active: bool) -> anyhow::Result<Value> {
    let mut shown = serde_json::to_value(shown)?;
    shown["active"] = active.into();
    Ok(shown)
}
