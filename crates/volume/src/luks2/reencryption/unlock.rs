//! Unlocking both keys of a volume that is re-encrypted.

use super::{PieceState, Reencryption, ReencryptionMode, digest, refused};
use crate::attempts::Attempts;
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::luks2::Luks2;
use crate::luks2::digest::computable;
use crate::luks2::token::{TokenError, TokenHandler, TokenOptions, of_keyslots};
use crate::luks2::unlock::by_priority;
use crate::pbkdf::KdfLimits;
use crate::secret::Secret;
use crate::unlock::{Payload, UnlockOptions};
use inlock_cipher::VolumeKey;

/// The volume keys of a re-encryption, which the header's digests have confirmed.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReencryptionKeys {
    /// The key of the old data; `None`: plaintext.
    pub old: Option<VolumeKey>,
    /// The key of the new data; `None`: plaintext, or the old key.
    pub new: Option<VolumeKey>,
    /// The keyslot that the passphrase opened: of the new data, if they have one.
    pub keyslot: Option<u32>,
}

impl ReencryptionKeys {
    /// Returns keys that the caller has verified.
    pub fn new(old: Option<VolumeKey>, new: Option<VolumeKey>) -> Self {
        Self { old, new, keyslot: None }
    }

    /// Returns the key of data that are new, or old. `None`: only plaintext is.
    pub fn of(&self, state: PieceState) -> Option<&VolumeKey> {
        match state {
            // With a kept key, there is one.
            PieceState::New => self.new.as_ref().or(self.old.as_ref()),
            PieceState::Old | PieceState::Hot => self.old.as_ref(),
        }
    }

    /// Returns both keys as one, for another process.
    pub fn joined(&self) -> VolumeKey {
        let keys = [&self.old, &self.new].into_iter().flatten();
        let mut joined = VolumeKey::zeroed(keys.clone().map(VolumeKey::len).sum());
        let mut at = 0;
        for key in keys {
            joined.as_mut_bytes()[at..at + key.len()].copy_from_slice(key.as_bytes());
            at += key.len();
        }
        joined
    }
}

impl Luks2 {
    /// Searches for keyslots of the old and of the new key that `passphrase` opens, verifies the keys in them, and
    /// verifies with them that the header's re-encryption is one that was begun with these keys.
    ///
    /// A volume that is encrypted or decrypted has plaintext, which the policy does not refuse: the digest confirms
    /// that it is to have some.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlock`](crate::Volume::unlock); [`UnlockError::Reencryption`] if there is no re-encryption, or its
    /// digest does not confirm it.
    pub fn unlock_reencryption(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<(Reencryption, ReencryptionKeys), UnlockError> {
        let Some(found) = self.reencryption()? else { return refused("there is none") };
        self.check_policy_of(&found, options)?;
        let keys = self.unlock_sides(&found, device, passphrase, options)?;
        self.verify_reencryption(&found, &keys, &options.limits)?;
        Ok((found, keys))
    }

    /// Unlocks both keys of a volume that is re-encrypted with the passphrase of a token, as
    /// [`Luks2::unlock_with_tokens`] does.
    ///
    /// # Errors
    ///
    /// As [`Luks2::unlock_with_tokens`], and as [`Luks2::unlock_reencryption`].
    pub fn unlock_reencryption_with_tokens(
        &self,
        device: &dyn HeaderDevice,
        handler: &mut dyn TokenHandler,
        tokens: &TokenOptions,
        options: &UnlockOptions,
    ) -> Result<(u32, (Reencryption, ReencryptionKeys)), TokenError> {
        let bound: Vec<u32> = self.metadata.digests.values().flat_map(|digest| digest.keyslots.clone()).collect();
        let mut failure = UnlockError::NoUsableKeyslot;
        let mut open = |passphrase: &Secret, _: &[u32]| {
            self.unlock_reencryption(device, passphrase, options).map_err(|error| failure = error).ok()
        };
        let outcome = self.try_tokens(handler, tokens, (&bound, options.keyslot), &mut open);
        outcome.map_err(|worst| of_keyslots(worst, failure))
    }

    /// Like [`Luks2::unlock_reencryption`], for a re-encryption that no digest confirms: nothing says that the header
    /// is as the owner of the keys has begun it.
    ///
    /// # Errors
    ///
    /// As [`Luks2::unlock_reencryption`], and if there is a digest.
    pub fn unlock_unconfirmed_reencryption(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<(Reencryption, ReencryptionKeys), UnlockError> {
        if !self.has_unconfirmed_reencryption() {
            return refused("it has a digest");
        }
        let found = Reencryption::described(&self.metadata)?.with_progress(&self.metadata)?;
        self.check_policy_of(&found, options)?;
        let keys = self.unlock_sides(&found, device, passphrase, options)?;
        Ok((found, keys))
    }

    /// Searches for keyslots of the old and of the new key that `passphrase` opens, and verifies the keys in them.
    fn unlock_sides(
        &self,
        found: &Reencryption,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<ReencryptionKeys, UnlockError> {
        let sides = [&found.old, &found.new];
        let unlock = |at: usize| -> Result<Option<(u32, VolumeKey)>, UnlockError> {
            let Some(number) = sides[at].digest else { return Ok(None) };
            let bound = &self.metadata.digests[&number];
            let computable = computable(number, bound)?;
            computable.kdf.check(computable.len(), &options.limits)?;
            let payload = Payload::Segments(vec![sides[at].segment(0, None, 0)]);
            let keyslots = by_priority(&self.metadata, &bound.keyslots);
            let mut attempts = Attempts::new(&options.limits);
            let opened = self.open_any(device, passphrase, &keyslots, &payload, &|_| Ok(computable), &mut attempts);
            opened.map(Some).ok_or_else(|| attempts.into_error())
        };
        let old = unlock(0)?;
        let new = if found.new.digest == found.old.digest { None } else { unlock(1)? };
        let keyslot = new.as_ref().or(old.as_ref()).map(|(number, _)| *number);
        Ok(ReencryptionKeys { old: old.map(|(_, key)| key), new: new.map(|(_, key)| key), keyslot })
    }

    /// Verifies keys that another process has unlocked, as [`ReencryptionKeys::joined`] returns them, and with them the
    /// header's re-encryption.
    ///
    /// # Errors
    ///
    /// As [`Luks2::unlock_reencryption`].
    pub fn confirm_reencryption(
        &self,
        joined: &VolumeKey,
        options: &UnlockOptions,
    ) -> Result<(Reencryption, ReencryptionKeys), UnlockError> {
        let Some(found) = self.reencryption()? else { return refused("there is none") };
        let mut rest = joined.as_bytes();
        let mut take = |digest: Option<u32>| -> Result<Option<VolumeKey>, UnlockError> {
            let Some(number) = digest else { return Ok(None) };
            let len = self.key_len_of(number).unwrap_or(rest.len());
            let (key, others) = rest.split_at_checked(len).ok_or(UnlockError::WrongPassphrase)?;
            rest = others;
            Ok(Some(VolumeKey::new(key)))
        };
        let old = take(found.old.digest)?;
        let new = if found.new.digest == found.old.digest { None } else { take(found.new.digest)? };
        self.confirm_reencryption_of(ReencryptionKeys::new(old, new), options)
    }

    /// Returns the length in bytes of the key of the old or of the new data of a volume that is re-encrypted. `None`:
    /// it has no keyslot, or there is no such key.
    pub fn reencryption_key_len(&self, side: PieceState) -> Option<usize> {
        let found = self.reencryption().ok()??;
        let side = if side == PieceState::New { found.new } else { found.old };
        self.key_len_of(side.digest?)
    }

    /// Returns the length in bytes of the key of a digest. `None`: it has no keyslot.
    fn key_len_of(&self, digest: u32) -> Option<usize> {
        let keyslots = &self.metadata.digests.get(&digest)?.keyslots;
        let slot = keyslots.iter().find_map(|number| self.metadata.keyslots.get(number));
        slot.map(|slot| slot.key_len as usize)
    }

    /// Verifies keys, and with them the header's re-encryption.
    ///
    /// # Errors
    ///
    /// As [`Luks2::unlock_reencryption`].
    pub fn confirm_reencryption_of(
        &self,
        keys: ReencryptionKeys,
        options: &UnlockOptions,
    ) -> Result<(Reencryption, ReencryptionKeys), UnlockError> {
        let Some(found) = self.reencryption()? else { return refused("there is none") };
        self.check_policy_of(&found, options)?;
        let new_digest = found.new.digest.filter(|new| found.old.digest != Some(*new));
        for (digest, key) in [(found.old.digest, &keys.old), (new_digest, &keys.new)] {
            let is_right = match (digest, key) {
                (None, None) => true,
                (Some(number), Some(key)) => {
                    let bound = &self.metadata.digests[&number];
                    computable(number, bound)?.verify(key, &options.limits)?
                }
                _ => false,
            };
            if !is_right {
                return Err(UnlockError::WrongPassphrase);
            }
        }
        self.verify_reencryption(&found, &keys, &options.limits)?;
        Ok((found, keys))
    }

    /// Fails unless the digest confirms the keyslot, the segments and the keys.
    fn verify_reencryption(
        &self,
        found: &Reencryption,
        keys: &ReencryptionKeys,
        limits: &KdfLimits,
    ) -> Result<(), UnlockError> {
        let Some(number) = self.digest_of(found.number) else { return refused("its keyslot has no digest") };
        let sequence = digest::sequence(found, keys.old.as_ref(), keys.new.as_ref())?;
        let computable = computable(number, &self.metadata.digests[&number])?;
        if !computable.verify(&sequence, limits)? {
            return refused("its digest does not confirm it: the header was changed since it began");
        }
        Ok(())
    }

    /// Checks the header and the segments against a policy.
    fn check_policy_of(&self, found: &Reencryption, options: &UnlockOptions) -> Result<(), UnlockError> {
        let payload = Payload::Segments(found.segments().into_iter().map(|(segment, _)| segment).collect());
        let mut keyslots: Vec<u32> = Vec::new();
        for digest in [found.old.digest, found.new.digest].into_iter().flatten() {
            keyslots.extend(&self.metadata.digests[&digest].keyslots);
        }
        let mut policy = options.policy.clone();
        policy.allow_linear_segment |= found.keyslot.mode != ReencryptionMode::Reencrypt;
        Ok(policy.check_header(&self.facts(&payload, &keyslots))?)
    }
}
