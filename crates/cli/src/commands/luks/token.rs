//! `token`: adds, removes, imports, exports and unassigns tokens of a LUKS2 volume.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_volume::luks2::Luks2;
use inlock_volume::{EditError, Volume, bytes_of_text, text_of_bytes};
use serde_json::{Map, Value, json};

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::options::Options;
use crate::args::source::header_args;
use crate::error::CliError;
use crate::host::context;
use crate::output::{self, Existing};
use crate::ui::print::{print, print_stderr, print_verbose};
use crate::ui::terminal;
use inlock_open::header::Header;
use inlock_open::remote::DeviceHeader;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "token",
    aliases: &[],
    arguments: &["<add|remove|import|export|unassign>", IMAGE],
    options: &[
        HEADER,
        &["token-id", "key-slot", "key-description", "json-file", "token-replace", "unbound", "disable-keyring"],
    ],
    about: "manipulate LUKS2 tokens",
    prepare: |options, mut arguments| {
        let (command, image) = (arguments.word()?, arguments.path()?);
        let command = Command::new(&options, &command)?;
        let stdout_is_data = matches!(command, Command::Export { .. });
        let args = header_args(&options, image)?;
        Ok(Prepared::new(move || run(&args, &command)).with_data_on_stdout(stdout_is_data))
    },
};

/// Keyslots that a new token is assigned to.
#[derive(Clone, Copy)]
enum Keyslots {
    All,
    One(u32),
    None,
}

/// A checked `token COMMAND`.
enum Command {
    Add { number: Option<u32>, replace: bool, description: String, keyslots: Keyslots },
    Import { number: Option<u32>, replace: bool, file: Option<PathBuf>, keyslot: Option<u32> },
    Export { number: u32, file: Option<PathBuf>, batch: bool },
    Remove { number: u32 },
    Unassign { number: u32, keyslot: u32 },
}

impl Command {
    fn new(options: &Options, command: &str) -> anyhow::Result<Self> {
        let known: &[&str] = match command {
            "add" => &["key-slot", "key-description", "token-replace", "unbound"],
            "import" => &["key-slot", "json-file", "token-replace"],
            "export" => &["json-file"],
            "remove" => &[],
            "unassign" => &["key-slot"],
            _ => return Err(CliError::usage("Invalid token action.")),
        };
        if options.unbound && command != "add" {
            return Err(CliError::usage("Option --unbound is valid only with token add action."));
        }
        let given = [
            (options.key_slot.is_some(), "key-slot"),
            (options.key_description.is_some(), "key-description"),
            (options.json_file.is_some(), "json-file"),
            (options.token_replace, "token-replace"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, option)| *given && !known.contains(option)) {
            return Err(CliError::usage(format!("Option --{option} is not allowed with token {command}.")));
        }
        let specific = || {
            options.token_id.ok_or_else(|| CliError::usage("Action requires specific token. Use --token-id parameter."))
        };
        let file = options.json_file.clone().filter(|path| path.as_os_str() != "-");
        let (number, replace) = (options.token_id, options.token_replace);
        Ok(match command {
            "add" => Self::Add {
                number,
                replace,
                description: options
                    .key_description
                    .clone()
                    .ok_or_else(|| CliError::usage("--key-description parameter is mandatory for token add action."))?,
                keyslots: match (options.key_slot, options.unbound) {
                    (Some(_), true) => {
                        return Err(CliError::usage("Options --key-slot and --unbound cannot be combined."));
                    }
                    (Some(keyslot), false) => Keyslots::One(keyslot),
                    (None, true) => Keyslots::None,
                    (None, false) => Keyslots::All,
                },
            },
            "import" => Self::Import { number, replace, file, keyslot: options.key_slot },
            "export" => Self::Export { number: specific()?, file, batch: options.batch_mode },
            "remove" => Self::Remove { number: specific()? },
            _ => {
                let keyslot = options
                    .key_slot
                    .ok_or_else(|| CliError::usage("Action requires specific keyslot. Use --key-slot parameter."))?;
                Self::Unassign { number: specific()?, keyslot }
            }
        })
    }
}

fn run(args: &HeaderOptions, command: &Command) -> anyhow::Result<()> {
    if let Command::Export { number, file, batch } = command {
        let header = Header::load(context(), args, false)?;
        let token = token(luks2_of(&header.volume, header.path())?, *number)?;
        let Some(path) = file else { return print(token) };
        let inputs: Vec<&Path> = std::iter::once(&*args.image).chain(args.header.as_deref()).collect();
        return output::write(path, &inputs, Existing::Replaced { batch: *batch }, &bytes_of_text(&token))
            .with_context(|| format!("Failed to open file {} for write.", path.display()));
    }
    // Standard input before the lock.
    let imported = match command {
        Command::Import { file, keyslot, .. } => read_token(file.as_deref(), *keyslot)?,
        _ => String::new(),
    };
    let mut header = Header::load_to_edit(context(), args)?;
    header.check_luks2()?;
    header.edit(&[], |volume, device| {
        let Volume::Luks2(luks2) = volume else { return Err(EditError::NeedsLuks2("a token")) };
        Ok(change(luks2, device, command, &imported))
    })?
}

/// Changes the tokens, under the lock of the header.
fn change(luks2: &mut Luks2, device: &DeviceHeader, command: &Command, imported: &str) -> anyhow::Result<()> {
    match command {
        Command::Add { number, replace, description, keyslots } => {
            let keyslots = match keyslots {
                Keyslots::All => luks2.metadata().keyslots.keys().copied().collect(),
                Keyslots::One(keyslot) => vec![active(luks2, *keyslot)?],
                Keyslots::None => Vec::new(),
            };
            let keyslots: Vec<String> = keyslots.iter().map(ToString::to_string).collect();
            let token = json!({"type": "luks2-keyring", "keyslots": keyslots, "key_description": description});
            let added = put(luks2, device, *number, *replace, &token.to_string());
            print_created(added.map_err(explain("Failed to add luks2-keyring token."))?);
        }
        Command::Import { number, replace, keyslot, .. } => {
            if let Some(keyslot) = keyslot {
                active(luks2, *keyslot)?;
            }
            print_created(put(luks2, device, *number, *replace, imported).map_err(explain(CANNOT_IMPORT))?);
        }
        Command::Remove { number } => {
            luks2.remove_token(device, *number).map_err(explain("Failed to remove the token."))?;
            print_verbose(format_args!("Token {number} removed."));
        }
        Command::Unassign { number, keyslot } => unassign(luks2, device, *number, *keyslot)?,
        Command::Export { .. } => {}
    }
    Ok(())
}

fn print_created(number: u32) {
    print_verbose(format_args!("Token {number} created."));
}

const CANNOT_IMPORT: &str = "Failed to import token from file.";

/// Returns the LUKS2 header, or fails for LUKS1.
fn luks2_of<'a>(volume: &'a Volume, path: &Path) -> anyhow::Result<&'a Luks2> {
    match volume {
        Volume::Luks2(luks2) => Ok(luks2),
        _ => Err(inlock_open::Error::not_luks2(path).into()),
    }
}

/// Adds a token, or replaces the one of this number.
fn put(
    luks2: &mut Luks2,
    device: &DeviceHeader,
    number: Option<u32>,
    replace: bool,
    token: &str,
) -> Result<u32, EditError> {
    match number {
        Some(number) if replace => luks2.replace_token(device, number, token).map(|()| number),
        number => luks2.add_token(device, number, token),
    }
}

fn unassign(luks2: &mut Luks2, device: &DeviceHeader, number: u32, keyslot: u32) -> anyhow::Result<()> {
    match luks2.unassign_token(device, number, Some(keyslot)) {
        Err(EditError::TokenNotAssigned { .. } | EditError::TokenInactive(_) | EditError::KeyslotInactive(_)) => {
            Err(CliError::refused(format!("Token {number} is not assigned to keyslot {keyslot}."), LIST))
        }
        other => other.map_err(explain(&format!("Failed to unassign token {number} from keyslot {keyslot}."))),
    }
}

/// Returns the number of a keyslot if it is active.
fn active(luks2: &Luks2, keyslot: u32) -> anyhow::Result<u32> {
    match luks2.metadata().keyslots.contains_key(&keyslot) {
        true => Ok(keyslot),
        false => Err(CliError::refused(format!("Keyslot {keyslot} is not active."), LIST)),
    }
}

const LIST: &str = "run `inlock luksDump` to list tokens and keyslots";

/// Explains, in cryptsetup's words, why a token cannot be changed; `otherwise`: the words for any other reason.
fn explain(otherwise: &str) -> impl FnOnce(EditError) -> anyhow::Error {
    let otherwise = otherwise.to_owned();
    move |error| match error {
        EditError::TokenInvalid { number, .. } => {
            CliError::refused(format!("Token {number} is invalid."), "use a number from 0 to 31")
        }
        EditError::TokenInUse(number) => {
            CliError::refused(format!("Token {number} in use."), "use --token-replace to replace it, or another number")
        }
        EditError::TokenInactive(number) => CliError::refused(format!("Token {number} is not in use."), LIST),
        EditError::NoFreeToken => CliError::refused("All tokens are in use.", "remove one: inlock token remove"),
        error => anyhow::Error::from(error).context(otherwise),
    }
}

/// Reads the JSON text of a token, and assigns it to a keyslot.
fn read_token(file: Option<&Path>, keyslot: Option<u32>) -> anyhow::Result<String> {
    let mut text = Vec::new();
    // As long as the largest metadata area.
    const MAX: u64 = 4 << 20;
    match file {
        Some(path) => {
            let open = || format!("Failed to open file {} in read-only mode.", path.display());
            let file = File::open(path).with_context(open)?;
            file.take(MAX + 1).read_to_end(&mut text).context(CANNOT_IMPORT)?;
        }
        None => {
            if terminal::stdin_is_terminal() {
                print_stderr("Provide valid LUKS2 token JSON:");
            }
            io::stdin().take(MAX + 1).read_to_end(&mut text).context(CANNOT_IMPORT)?;
        }
    }
    if text.len() as u64 > MAX {
        return Err(CliError::refused(CANNOT_IMPORT, "a token must fit the metadata area of the header"));
    }
    let text = text_of_bytes(&text).into_owned();
    let Some(keyslot) = keyslot else { return Ok(text) };
    let mut token: Map<String, Value> = serde_json::from_str(&text).context(CANNOT_IMPORT)?;
    let number = Value::String(keyslot.to_string());
    if let Some(keyslots) = token.get_mut("keyslots").and_then(Value::as_array_mut).filter(|all| !all.contains(&number))
    {
        keyslots.push(number);
    }
    Ok(Value::Object(token).to_string())
}

fn token(luks2: &Luks2, number: u32) -> anyhow::Result<String> {
    luks2.token_json(number).ok_or_else(|| CliError::refused(format!("Failed to get token {number} for export."), LIST))
}
