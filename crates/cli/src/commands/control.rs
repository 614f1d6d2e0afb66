//! `control`: commands to a server of many volumes.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::status::add_common_names;
use super::top::{self, Source};
use crate::args::action::{Action, Prepared};
use crate::error::CliError;
use crate::host::context;
use crate::ui::columns::Columns;
use crate::ui::print::print;
use inlock_open::error::cannot_open;
use inlock_serve::many::control::{self, request};
use inlock_serve::many::status::{Listed, ListedStatus};

/// Maximum length of a file with the keys of a volume in bytes.
const MAX_KEYS: u64 = 65_536;

pub(crate) const ACTION: Action = Action {
    name: "control",
    aliases: &[],
    arguments: &["<socket>", "<command>", "[<volume>]", "[<key>=<value>...]"],
    options: &[&["json", "once", "force", "config"]],
    about: "control a server of many volumes",
    prepare: |options, mut arguments| {
        let (socket, command) = (arguments.path()?, arguments.word()?);
        let volume = arguments.optional().map(|volume| volume.to_string_lossy().into_owned());
        let mut pairs = Vec::new();
        while let Some(pair) = arguments.optional() {
            pairs.push(pair.to_string_lossy().into_owned());
        }
        let command = Command::new(&command, volume, &pairs, (options.config, options.once))?;
        let (json, force) = (options.json, options.force);
        check_options(&command, json, force, options.once)?;
        Ok(Prepared::new(move || run(&socket, &command, json, force)))
    },
};

/// A command to a server.
enum Command {
    List,
    Reload,
    Close(String),
    Add(String, Keys),
    Remove(String),
    Status(String),
    Top { once: bool },
}

/// The keys of a volume: TOML, or a file with it (`-`: standard input).
enum Keys {
    Text(String),
    File(PathBuf),
}

impl Command {
    fn new(
        command: &str,
        volume: Option<String>,
        pairs: &[String],
        (file, once): (Option<PathBuf>, bool),
    ) -> anyhow::Result<Self> {
        let has_keys = !pairs.is_empty() || file.is_some();
        if has_keys && command != "add" {
            return Err(CliError::usage(format!("Command {command} takes no keys of a volume.")));
        }
        match (command, volume) {
            ("list", None) => Ok(Self::List),
            ("top", None) => Ok(Self::Top { once }),
            ("reload", None) => Ok(Self::Reload),
            ("list" | "reload" | "top", Some(_)) => Err(CliError::usage(format!("Command {command} takes no volume."))),
            ("close", Some(volume)) => Ok(Self::Close(volume)),
            ("remove", Some(volume)) => Ok(Self::Remove(volume)),
            ("status", Some(volume)) => Ok(Self::Status(volume)),
            ("add", Some(volume)) => match (pairs, file) {
                ([], None) => Err(CliError::usage("Command add requires KEY=VALUE or --config.")),
                ([], Some(file)) => Ok(Self::Add(volume, Keys::File(file))),
                (pairs, None) => {
                    Ok(Self::Add(volume, Keys::Text(pairs.iter().map(|pair| toml(pair)).collect::<Result<_, _>>()?)))
                }
                (_, Some(_)) => Err(CliError::usage("Command add takes KEY=VALUE or --config, not both.")),
            },
            ("close" | "remove" | "status" | "add", None) => {
                Err(CliError::usage(format!("Command {command} requires a volume.")))
            }
            _ => {
                let known = "list, status, top, add, remove, close, reload";
                Err(CliError::usage(format!("Command '{command}' is none of {known}.")))
            }
        }
    }
}

fn check_options(command: &Command, json: bool, force: bool, once: bool) -> anyhow::Result<()> {
    if json && !matches!(command, Command::List | Command::Status(_) | Command::Top { .. }) {
        return Err(CliError::usage("Option --json is allowed only with list, status and top."));
    }
    if once && !matches!(command, Command::Top { .. }) {
        return Err(CliError::usage("Option --once is allowed only with top."));
    }
    if force && !matches!(command, Command::Remove(_) | Command::Close(_)) {
        return Err(CliError::usage("Option --force is allowed only with remove and close."));
    }
    Ok(())
}

/// Returns a line of TOML for KEY=VALUE. A value that is no number, truth value or array of TOML, nor quoted, is a
/// string.
fn toml(pair: &str) -> anyhow::Result<String> {
    let wrong = || CliError::usage(format!("Argument '{pair}' is not KEY=VALUE."));
    let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
    let is_bare = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if key.is_empty() || !is_bare(key) {
        return Err(wrong());
    }
    // More keys would be those of lines behind the value.
    let table = toml::from_str::<toml::Table>(&format!("x = {value}")).ok().filter(|table| table.len() == 1);
    let parsed = table.and_then(|mut table| table.remove("x"));
    let value = match parsed {
        Some(value) if !value.is_datetime() && !value.is_table() && !value.is_float() => value,
        _ => toml::Value::String(value.to_owned()),
    };
    Ok(format!("{key} = {value}\n"))
}

impl Keys {
    fn read(&self) -> anyhow::Result<String> {
        let (input, path): (Box<dyn Read>, _) = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::File(path) if path.as_os_str() == "-" => (Box::new(stdin()), Path::new("standard input")),
            Self::File(path) => (Box::new(std::fs::File::open(path).map_err(cannot_open(path, false))?), &**path),
        };
        let mut text = String::new();
        let cannot = || format!("cannot read {}", path.display());
        input.take(MAX_KEYS + 1).read_to_string(&mut text).with_context(cannot)?;
        if text.len() as u64 > MAX_KEYS {
            return Err(CliError::usage(format!("File {} has more than {MAX_KEYS} bytes.", path.display())));
        }
        Ok(text)
    }
}

fn run(socket: &Path, command: &Command, json: bool, force: bool) -> anyhow::Result<()> {
    let (request, keys) = match command {
        Command::List => return list(socket, json),
        Command::Top { once } => return top::run(Source::Server(socket), *once, json),
        Command::Status(volume) => return status(socket, volume, json),
        Command::Reload => (request("reload", None), None),
        Command::Close(volume) => (json!({"command": "close", "volume": volume, "force": force}), None),
        Command::Add(volume, keys) => (request("add", Some(volume)), Some(keys.read()?)),
        Command::Remove(volume) => (json!({"command": "remove", "volume": volume, "force": force}), None),
    };
    let reply = control::call(context(), socket, &request, keys.as_deref())?;
    print(format_args!("{}\n", reply.get("outcome").and_then(Value::as_str).unwrap_or_default()))
}

fn list(socket: &Path, json: bool) -> anyhow::Result<()> {
    let mut reply = control::call(context(), socket, &request("list", None), None)?;
    let volumes = reply.remove("volumes").unwrap_or_default();
    if json {
        return print(format_args!("{volumes:#}\n"));
    }
    let headings = ["NAME", "STATE", "CLIENTS", "MAX OPS/s", "MAX BYTES/s", "MAX IN FLIGHT", "ADDED", "CLOSING FAILED"];
    let mut columns = Columns::new(&headings);
    for volume in serde_json::from_value::<Vec<Listed>>(volumes)? {
        let limit = |limit: Option<u64>| limit.map_or("-".to_owned(), |limit| limit.to_string());
        let shown = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
        let mut cells = vec![volume.name, volume.state, volume.clients.to_string()];
        cells.extend([volume.max_operations, volume.max_bytes, volume.max_in_flight].map(limit));
        cells.extend([volume.added, volume.closing_failed].map(shown));
        columns.row(cells);
    }
    print(columns)
}

fn status(socket: &Path, volume: &str, json: bool) -> anyhow::Result<()> {
    let mut status = Value::Object(control::call(context(), socket, &request("status", Some(volume)), None)?);
    if !json {
        return print(ListedStatus::parse(&status)?);
    }
    add_common_names(&mut status);
    print(format_args!("{status:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_without_type_is_a_string() {
        for (pair, expected) in [
            ("image=/srv/a.img", "image = \"/srv/a.img\"\n"),
            ("max-bytes=200M", "max-bytes = \"200M\"\n"),
            ("max-operations=100", "max-operations = 100\n"),
            ("read-only=true", "read-only = true\n"),
            ("key-file=\"1\"", "key-file = \"1\"\n"),
            ("key-command=[\"/bin/get\", \"a\"]", "key-command = [\"/bin/get\", \"a\"]\n"),
            ("expect-uuid=1979-05-27", "expect-uuid = \"1979-05-27\"\n"),
            ("image=", "image = \"\"\n"),
            ("image=/a=b", "image = \"/a=b\"\n"),
            // Nothing of a value becomes another key.
            ("image=1\nlisted = false", "image = \"\"\"\n1\nlisted = false\"\"\"\n"),
        ] {
            assert_eq!(toml(pair).unwrap(), expected);
        }
        for wrong in ["image", "=x", "a b=x", "[a]=x", "a.b=x"] {
            toml(wrong).unwrap_err();
        }
    }
}
