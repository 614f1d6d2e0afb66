//! `refresh` and `open --refresh`: set the flags of a running volume to those of its header or table, and those given.
//!
//! The key of the volume stays, so none is needed; one that is given is checked.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::persistent;
use super::running_key::{RunningKey, check_type};
use crate::args::action::{Action, Arguments, KEY, NAME, Prepared, REMOTE, THREAD_FLAGS, TOKENS, UNLOCK};
use crate::args::options::Options;
use crate::args::source::flags_of;
use crate::error::CliError;
use crate::host::context;
use inlock_serve::control::client::Client;
use inlock_serve::control::info::RuntimeInfo;

pub(crate) const ACTION: Action = Action {
    name: "refresh",
    aliases: &[],
    arguments: &["[<source>]", NAME],
    options: &[
        THREAD_FLAGS,
        KEY,
        UNLOCK,
        REMOTE,
        TOKENS,
        &["allow-discards", "persistent", "refresh", "key-size", "policy", "serialize-memory-hard-pbkdf"],
    ],
    about: "set the flags of a volume to its header's plus those given",
    prepare,
};

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    persistent::check_options(&options)?;
    let source = if arguments.count() > 1 { Some(arguments.path()?) } else { None };
    let (name, flags, key) = (arguments.name()?, flags_of(&options), RunningKey::new(&options)?);
    let (volume_type, is_persistent) = (options.volume_type, options.persistent);
    Ok(Prepared::new(move || {
        let info = Client::of(context(), &name)?.status()?.info;
        check_source(&info, source.as_deref())?;
        check_type(&info, volume_type.as_deref())?;
        key.check(&info)?;
        if is_persistent {
            persistent::check_header(&info.device, info.header.as_deref())?;
        }
        let request = json!({"command": "refresh", "flags": flags.names(), "persistent": is_persistent});
        Client::of(context(), &name)?.command(&request, None)?;
        if is_persistent { persistent::store(&name) } else { Ok(()) }
    }))
}

/// Fails unless the running volume is on this device.
fn check_source(info: &RuntimeInfo, source: Option<&Path>) -> anyhow::Result<()> {
    let resolved = source.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path)));
    if resolved.is_none_or(|path| path == info.device) {
        return Ok(());
    }
    let message = format!("Volume {} is on device {}.", info.name, info.device.display());
    Err(CliError::refused(message, "name this device, or only the volume"))
}
