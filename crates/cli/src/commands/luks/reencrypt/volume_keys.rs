//! Volume keys of a re-encryption that takes no passphrase.

use inlock_open::reencryption::Offline;
use inlock_open::source::{VolumeKeyOptions, VolumeKeyOrigin};

use super::ReencryptArgs;
use crate::args::options::Options;
use crate::args::source::key_bytes;
use crate::error::CliError;

impl ReencryptArgs {
    /// Refuses to drop keyslots without being asked to, and a new key that would be lost.
    pub(super) fn check_without_keyslots(&self, offline: &Offline) -> anyhow::Result<()> {
        if self.new_key.is_none() && !self.keeps_key {
            return Err(CliError::usage("Option --volume-key-file needs --new-volume-key-file, or --keep-key."));
        }
        if !offline.keyslots().is_empty() && !self.keeps_key && !self.drops_keyslots {
            return Err(CliError::refused(
                "Use --force-no-keyslots to reencrypt device with active keyslots by passing volume keys directly.",
                "all keyslots are removed then; keep a copy of the new key until `inlock luksAddKey` has added one",
            ));
        }
        Ok(())
    }
}

/// Whether the volume is unlocked by its volume key.
pub(super) fn has_volume_key(options: &Options) -> bool {
    options.volume_key_file.is_some() || options.volume_key_keyring.is_some()
}

/// Returns where the new volume key comes from; `None`: it is random.
pub(super) fn new_key_of(options: &Options) -> anyhow::Result<Option<VolumeKeyOptions>> {
    let origin = match (&options.new_volume_key_keyring, &options.new_volume_key_file) {
        (Some(key), _) => VolumeKeyOrigin::Keyring(key.clone()),
        (None, Some(file)) => VolumeKeyOrigin::File(file.clone()),
        (None, None) => return Ok(None),
    };
    let len = options.new_key_size.map(key_bytes).transpose()?;
    if len.is_none() && has_volume_key(options) && options.new_volume_key_keyring.is_none() {
        return Err(CliError::usage("Option --new-volume-key-file must be paired with --new-key-size."));
    }
    Ok(Some(VolumeKeyOptions { origin, len }))
}
