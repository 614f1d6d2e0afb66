//! Unlocking a LUKS1 volume with a passphrase or a volume key.

use super::{HEADER, Keyslot, Luks1};
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::key_material::KeyMaterial;
use crate::luks_cipher;
use crate::pbkdf::{Hash, Kdf, KdfLimits, KdfWork};
use crate::printable::Excerpt;
use crate::secret::Secret;
use crate::unlock::{Attempts, UnlockOptions, Unlocked, finish};
use inlock_cipher::{Cipher, CipherError, CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

impl Luks1 {
    /// Searches for a keyslot that `passphrase` opens, and verifies the key in it.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlock`](crate::Volume::unlock).
    pub fn unlock(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<Unlocked, UnlockError> {
        let (cipher, hash) = self.algorithms()?;
        let segments = self.segments_of(cipher);
        options.policy.check_header(self.uuid(), &segments)?;
        let digest = self.digest_kdf(hash);
        digest.check(self.digest.len(), &options.limits)?;
        let keyslots = match options.keyslot {
            Some(number) if self.active_keyslots().contains(&number) => vec![number],
            Some(number) => return Err(UnlockError::KeyslotInactive(number)),
            None => self.active_keyslots(),
        };
        let mut attempts = Attempts::new(&options.limits);
        for number in keyslots {
            let slot = &self.keyslots[number as usize];
            let kdf = Kdf::Pbkdf2 { hash, iterations: slot.iterations };
            let digest = (&digest, self.digest.len());
            if !attempts.affords(number, KdfWork::of_keyslot((&kdf, self.key_len()), digest, &options.limits)) {
                continue;
            }
            let key = self.open_keyslot(device, passphrase, slot, cipher, hash, &options.limits);
            if let Some(key) = attempts.record(key) {
                return Ok(finish(key, Some(number), segments, Default::default()));
            }
        }
        Err(attempts.into_error())
    }

    /// Unlocks with the caller's volume key, after verifying it.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlock_with_volume_key`](crate::Volume::unlock_with_volume_key).
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        let (cipher, hash) = self.algorithms()?;
        options.policy.check_header(self.uuid(), &self.segments_of(cipher))?;
        if key.len() != self.key_len() || !self.is_volume_key(&key, hash, &options.limits)? {
            return Err(UnlockError::WrongPassphrase);
        }
        Ok(finish(key, None, self.segments_of(cipher), Default::default()))
    }

    /// Returns the only segment, without a key.
    ///
    /// # Errors
    ///
    /// Fails if the cipher is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        self.algorithms().map(|(cipher, _)| self.segments_of(cipher))
    }

    /// Returns cipher and hash, if Inlock has them and they can protect a key of this length.
    fn algorithms(&self) -> Result<(CipherSpec, Hash), UnlockError> {
        let name = self.cipher();
        let unknown = |part| UnlockError::UnsupportedCipher { place: HEADER, name: Excerpt::new(&name), part };
        let cipher = luks_cipher::parse(&name).map_err(unknown)?;
        if cipher.cipher == Cipher::Null {
            // The keyslots have the cipher of the payload: their key material would be in the clear.
            return Err(UnlockError::NullCipherKeyslot {
                keyslot: self.active_keyslots().first().copied().unwrap_or(0),
            });
        }
        if !cipher.can_use_key_len(self.key_len()) {
            return Err(CipherError::KeyLength { spec: cipher, len: self.key_len() }.into());
        }
        let unsupported = |_| UnlockError::UnsupportedHash { place: HEADER, name: Excerpt::new(&self.hash_spec) };
        Ok((cipher, self.hash_spec.parse().map_err(unsupported)?))
    }

    /// Returns the key in a keyslot. `None`: the passphrase does not open it.
    fn open_keyslot(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        slot: &Keyslot,
        cipher: CipherSpec,
        hash: Hash,
        limits: &KdfLimits,
    ) -> Result<Option<VolumeKey>, UnlockError> {
        let mut area_key = Zeroizing::new(vec![0; self.key_len()]);
        let kdf = Kdf::Pbkdf2 { hash, iterations: slot.iterations };
        kdf.derive(passphrase.as_bytes(), &slot.salt, &mut area_key, limits)?;
        let material =
            KeyMaterial { offset: slot.start(), key_len: self.key_len(), stripes: slot.stripes, hash, cipher };
        let key = material.open(device, &area_key)?;
        Ok(self.is_volume_key(&key, hash, limits)?.then_some(key))
    }

    fn is_volume_key(&self, key: &VolumeKey, hash: Hash, limits: &KdfLimits) -> Result<bool, UnlockError> {
        let mut digest = Zeroizing::new([0; 20]);
        self.digest_kdf(hash).derive(key.as_bytes(), &self.digest_salt, &mut *digest, limits)?;
        Ok(digest.ct_eq(&self.digest).into())
    }

    fn digest_kdf(&self, hash: Hash) -> Kdf {
        Kdf::Pbkdf2 { hash, iterations: self.digest_iterations }
    }

    fn segments_of(&self, cipher: CipherSpec) -> Vec<Segment> {
        let mut segment = Segment::whole(Some(cipher), DataUnitSize::SECTOR);
        segment.data_offset = Sector(self.payload_offset.into());
        vec![segment]
    }
}
