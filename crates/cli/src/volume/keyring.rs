//! Volume keys in the kernel's keyring.

use anyhow::Context;
use inlock_volume::VolumeKey;
use linux_keyutils::{Key, KeyRing, KeyRingIdentifier, KeySerialId};

use crate::error::CliError;

/// Reads a volume key of `len` bytes. `name`: as in keyctl(1) `%user:DESCRIPTION`, where the type may be left out, or
/// the number of a key. A description, also one of digits, is searched for in the session keyring first.
pub(super) fn read(name: &str, len: usize) -> anyhow::Result<VolumeKey> {
    let cannot_read = || format!("Failed to read key '{name}' from the keyring.");
    let key = find(name)?;
    let mut volume_key = VolumeKey::zeroed(len);
    match key.read(&mut volume_key.as_mut_bytes()).map_err(anyhow::Error::msg).with_context(cannot_read)? {
        found if found == len => Ok(volume_key),
        found => {
            let lengths = anyhow::anyhow!("key '{name}' has {found} bytes; the volume key has {len}");
            Err(lengths.context(CliError::WrongVolumeKey))
        }
    }
}

fn find(name: &str) -> anyhow::Result<Key> {
    let description = match name.strip_prefix('%').and_then(|rest| rest.split_once(':')) {
        Some(("user", description)) => description,
        None if !name.starts_with('%') => name,
        _ => {
            return Err(CliError::refused(
                format!("Key '{name}' cannot be read."),
                "name a key of type user: %user:DESCRIPTION; programs cannot read keys of other types",
            ));
        }
    };
    let session = KeyRing::from_special_id(KeyRingIdentifier::Session, false).map_err(anyhow::Error::msg);
    let session = session.context("This system has no kernel keyring for --volume-key-keyring.")?;
    let found = session.search(description).map_err(anyhow::Error::msg);
    if found.is_err()
        && let Ok(number) = name.parse()
    {
        return Ok(Key::from_id(KeySerialId(number)));
    }
    found.with_context(|| format!("Failed to find key '{name}' in the session keyring."))
}
