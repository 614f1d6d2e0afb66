//! A volume whose re-encryption was interrupted: unlocking it, recovering its last zone, and opening it as it is.

use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::reencryption::{PieceState, Reencryption, ReencryptionKeys};
use inlock_volume::{Hash, HeaderPolicy, KdfKind, KdfRequest, UnlockError, UnlockOptions, Volume, VolumeKey};

use super::driver::{Devices, Driver, Recovered};
use crate::device::{Device, OpenMode};
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_edit, cannot_unlock};
use crate::header::{Header, unlock_options};
use crate::host::Context;
use crate::lock::{self, Mode, VolumeName};
use crate::secret;
use crate::secret::Ask;
use crate::source::{HeaderOptions, KeyOptions, Luks, VolumeKeyOptions, VolumeKeyOrigin};
use crate::token;

/// Most positions of lost blocks in a warning.
const MAX_LISTED: usize = 8;

/// Returns the state of the re-encryption of a volume, `None` if there is none.
pub(crate) fn state_of(header: &Header) -> Result<Option<Reencryption>> {
    match &header.volume {
        Volume::Luks2(luks2) => luks2.reencryption().map_err(cannot_unlock(header.path())),
        _ => Ok(None),
    }
}

/// Whether the volume is in re-encryption.
pub fn is_begun(header: &Header) -> Result<bool> {
    Ok(state_of(header)?.is_some())
}

/// Whether a zone of the volume was being written when its process or the machine stopped, and has to be recovered.
pub fn is_hot(header: &Header) -> Result<bool> {
    Ok(state_of(header)?.is_some_and(|state| state.pieces.hot().is_some()))
}

/// Asks for passphrases until one unlocks both keys of a volume that is re-encrypted. `false`: it is not.
///
/// # Errors
///
/// Fails if no passphrase does, or the header has a re-encryption that cannot be used.
pub fn try_passphrase(header: &Header, key: &KeyOptions, policy: &HeaderPolicy, ask: Ask<'_>) -> Result<bool> {
    if state_of(header)?.is_none() {
        return Ok(false);
    }
    header.unlock_reencryption(key, policy, ask).map(|_| true)
}

/// Whether the volume has a re-encryption that no digest confirms ([`confirm`]).
pub fn is_unconfirmed(header: &Header) -> bool {
    matches!(&header.volume, Volume::Luks2(luks2) if luks2.has_unconfirmed_reencryption())
}

/// Adds the digest of a re-encryption that has none, which a passphrase unlocks: that of an old program, or one that an
/// attacker has put into the header. Whoever calls this says that it is not the latter.
///
/// # Errors
///
/// Fails before it writes if the passphrase is wrong, or the header has no such re-encryption.
pub fn confirm(context: &Context, at: &HeaderOptions, key: &KeyOptions, ask: Ask<'_>) -> Result<()> {
    let data = Device::open(context, &at.image, OpenMode::Write)?;
    data.check_writable()?;
    let _data = lock::storage(&data, Mode::Exclusive)?;
    let header = at.header.as_deref().map(|path| Device::open(context, path, OpenMode::Header)).transpose()?;
    let mut header = Header::load_from(header.unwrap_or_else(|| data.duplicate()), at.luks, false)?;
    header.check_luks2()?;
    let _volume = lock::volume(&data, &VolumeName::of(&header.volume), Mode::Exclusive)?;
    let _lock = lock::reencryption(&data, header.volume.uuid(), Mode::Exclusive)?;
    header.volume = Header::load_again(&header.device, at.luks)?;
    let (device, path) = (header.device.header()?, header.path().to_owned());
    let options = unlock_options(None, at.policy.clone());
    let luks2 = luks2_of(&header)?;
    let ((state, keys), _) = header.ask_until_opened(key, ask, |passphrase| {
        let _serial = lock::memory_hard_pbkdf(context)?;
        let _lock = lock::header(&header.device, Mode::Shared)?;
        luks2.unlock_unconfirmed_reencryption(&device, passphrase, &options).map_err(cannot_unlock(&path))
    })?;
    let mut luks2 = luks2.clone();
    let _lock = lock::header(&header.device, Mode::Exclusive)?;
    let costs = (Hash::Sha256, &KdfRequest::new(KdfKind::Pbkdf2));
    luks2.add_reencryption_digest(&device, &state, &keys, costs).map_err(cannot_edit(&path))
}

/// Returns the header of a volume that is re-encrypted.
pub(crate) fn luks2_of(header: &Header) -> Result<&Luks2> {
    match &header.volume {
        Volume::Luks2(luks2) => Ok(luks2),
        _ => Err(Error::not_luks2(header.path())),
    }
}

impl Header {
    /// Tries tokens, and asks for passphrases, until one unlocks both keys of a volume that is re-encrypted.
    pub(crate) fn unlock_reencryption(
        &self,
        key: &KeyOptions,
        policy: &HeaderPolicy,
        ask: Ask<'_>,
    ) -> Result<(Reencryption, ReencryptionKeys)> {
        let (luks2, device) = (luks2_of(self)?, self.device.header()?);
        let options = unlock_options(None, policy.clone());
        if let Some(first) = &key.volume_key {
            return self.unlock_reencryption_with_keys(first, key.second_volume_key.as_ref(), &options);
        }
        if let Some(by_token) = token::unlock_reencryption(luks2, &self.device, key, &options, ask)? {
            return Ok(by_token);
        }
        let (unlocked, _) = self.ask_until_opened(key, ask, |passphrase| {
            let _serial = lock::memory_hard_pbkdf(self.device.context())?;
            let _lock = lock::header(&self.device, Mode::Shared)?;
            match luks2.unlock_reencryption(&device, passphrase, &options) {
                // A re-encryption without keyslots for the new key.
                Err(UnlockError::NoUsableKeyslot) => Err(needs_keys(self.path())),
                unlocked => unlocked.map_err(cannot_unlock(self.path())),
            }
        })?;
        Ok(unlocked)
    }

    /// Reads both volume keys of a volume that is re-encrypted, in any order, or the only one.
    fn unlock_reencryption_with_keys(
        &self,
        first: &VolumeKeyOptions,
        second: Option<&VolumeKeyOrigin>,
        options: &UnlockOptions,
    ) -> Result<(Reencryption, ReencryptionKeys)> {
        let luks2 = luks2_of(self)?;
        let second = second.map(|origin| VolumeKeyOptions { origin: origin.clone(), len: None });
        for (old, new) in [(Some(first), second.as_ref()), (second.as_ref(), Some(first))] {
            let read = |key: Option<&VolumeKeyOptions>, state| {
                let len = luks2.reencryption_key_len(state).or(first.len);
                key.map(|key| secret::read_volume_key(&VolumeKeyOptions { len, ..key.clone() }, None)).transpose()
            };
            // A key of the other side may be too short for this one.
            let keys = match (read(old, PieceState::Old), read(new, PieceState::New)) {
                (Ok(old), Ok(new)) => ReencryptionKeys::new(old, new),
                (Err(error), _) | (_, Err(error)) if error.kind() != ErrorKind::VolumeKeyFileTooShort => {
                    return Err(error);
                }
                _ => continue,
            };
            match luks2.confirm_reencryption_of(keys, options) {
                Err(UnlockError::WrongPassphrase) => {}
                unlocked => return unlocked.map_err(cannot_unlock(self.path())),
            }
        }
        Err(Error::wrong_volume_key())
    }

    /// Verifies both keys of a volume that is re-encrypted, which another process has unlocked.
    pub(crate) fn confirm_reencryption(
        &self,
        joined: &VolumeKey,
        policy: &HeaderPolicy,
    ) -> Result<(Reencryption, ReencryptionKeys)> {
        let options = unlock_options(None, policy.clone());
        luks2_of(self)?.confirm_reencryption(joined, &options).map_err(cannot_unlock(self.path()))
    }
}

/// Recovers the zone that was being written, in which holes stay holes if `keeps_holes`. `header` can be written. Tells
/// what was found, and loads it again.
pub(crate) fn recover(data: &Device, header: &mut Header, keys: &ReencryptionKeys, keeps_holes: bool) -> Result<()> {
    let Some(state) = state_of(header)? else { return Ok(()) };
    let store = data.store(IoMode::Sync, false, false);
    let store = store.with_context(|| format!("cannot use {}", data.path.display()))?;
    let written = header.device.header()?;
    let lock = || lock::header(&header.device, Mode::Exclusive);
    let sync = || store.sync().context("cannot flush");
    let syncs_header = header.device.is_synced_with(data);
    let devices = Devices { header: &written, data: &*store, sync: &sync, syncs_header, lock: &lock };
    let mut driver = Driver::new(devices, luks2_of(header)?.clone(), state, keys, None)?;
    if keeps_holes {
        driver.keep_holes()?;
    }
    if let Some(recovered) = driver.recover()? {
        tell(data, &recovered);
    }
    header.volume = Header::load_again(&header.device, Luks::Two)?;
    Ok(())
}

/// Tells what a recovery has found.
pub(super) fn tell(data: &Device, recovered: &Recovered) {
    let Recovered { zone, torn, unknown } = recovered;
    let (path, context) = (data.path.display(), data.context());
    context.notice(format_args!("{path}: recovered bytes {} to {} of the volume.", zone.start, zone.end));
    if *torn > 0 {
        context.notice(format_args!("{path}: {torn} blocks were written in parts, and are whole again."));
    }
    if !unknown.is_empty() {
        let listed: Vec<_> = unknown.iter().take(MAX_LISTED).map(u64::to_string).collect();
        let more = if unknown.len() > MAX_LISTED { ", …" } else { "" };
        context.warn(format_args!(
            "{path}: {} blocks are neither old nor new; check the data at these bytes of the volume: {}{more}",
            unknown.len(),
            listed.join(", ")
        ));
    }
}

/// The error of a re-encryption that only both volume keys can go on with.
fn needs_keys(path: &Path) -> Error {
    let text = format!("The volume on {} is in re-encryption, and one of both keys has no keyslot.", path.display());
    Error::new(ErrorKind::NeedsBothKeys, text).about(path)
}

/// The error of a zone that has to be recovered first.
pub(crate) fn needs_recovery(header: &Header) -> Error {
    let path = header.path();
    let text = format!("The re-encryption of {} was interrupted in a zone, which has to be recovered.", path.display());
    Error::new(ErrorKind::ZoneHot, text).about(path)
}

/// The error of a volume whose re-encryption has ended with the recovery of its last zone: it opens as any other.
pub(crate) fn has_ended(header: &Header) -> Error {
    let path = header.path();
    let text = format!("The re-encryption of {} has ended with the recovery of its last zone.", path.display());
    Error::new(ErrorKind::NotReencrypted, text).about(path)
}
