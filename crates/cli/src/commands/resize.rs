//! `resize`: gives a running volume another length, or grows it with its device.

use serde_json::json;

use super::running_key::RunningKey;
use crate::args::action::{Action, KEY, NAME, Prepared, REMOTE, TOKENS, UNLOCK};
use crate::args::options::Options;
use crate::error::CliError;
use crate::host::context;
use inlock_serve::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "resize",
    aliases: &[],
    arguments: &[NAME],
    options: &[
        KEY,
        TOKENS,
        UNLOCK,
        REMOTE,
        &["size", "device-size", "key-size", "policy", "serialize-memory-hard-pbkdf"],
    ],
    about: "resize a volume: to --size, or to the current length of its device",
    prepare: |options, mut arguments| {
        let (name, key, sectors) = (arguments.name()?, RunningKey::new(&options)?, sectors_of(&options)?);
        let volume_type = options.volume_type;
        Ok(Prepared::new(move || {
            let mut client = Client::of(context(), &name)?;
            let info = client.status()?.info;
            super::running_key::check_type(&info, volume_type.as_deref())?;
            key.check(&info)?;
            // The first connection may have been dropped while the user was asked.
            Client::of(context(), &name)?.command(&json!({"command": "resize", "sectors": sectors}), None)?;
            Ok(())
        }))
    },
};

/// Converts `--size` and `--device-size`. `None`: to the end of the device.
pub(super) fn sectors_of(options: &Options) -> anyhow::Result<Option<u64>> {
    let sectors = match (options.size, options.device_size) {
        (Some(_), Some(_)) => {
            return Err(CliError::usage("Options --device-size and --size cannot be combined."));
        }
        (None, Some(bytes)) if !bytes.is_multiple_of(512) => {
            return Err(CliError::usage("Device size must be multiple of 512 bytes sector."));
        }
        (sectors, bytes) => sectors.or(bytes.map(|bytes| bytes / 512)),
    };
    // As in cryptsetup, 0 stands for the device's length.
    Ok(sectors.filter(|sectors| *sectors > 0))
}
