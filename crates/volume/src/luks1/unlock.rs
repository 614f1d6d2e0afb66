//! Unlocking a LUKS1 volume with a passphrase or a volume key.

use super::{HEADER, Keyslot, Luks1};
use crate::attempts::{Attempt, Attempts, Candidate};
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::header_policy::{HeaderDigest, HeaderFacts, HeaderPolicy};
use crate::key_material::{KeyMaterial, material_len};
use crate::keyslot_state::KeyslotState;
use crate::luks_cipher;
use crate::pbkdf::{Hash, Kdf, KdfLimits, UnknownHash};
use crate::printable::Excerpt;
use crate::secret::Secret;
use crate::unlock::{Payload, UnlockOptions, Unlocked, finish};
use inlock_cipher::{Cipher, CipherError, CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use std::ops::Range;
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
        options.policy.check_header(&self.facts(&segments, hash))?;
        let digest = self.digest_kdf(hash);
        digest.check(self.digest.len(), &options.limits)?;
        let keyslots = match options.keyslot {
            Some(number) if self.active_keyslots().contains(&number) => vec![number],
            Some(number) => return Err(UnlockError::KeyslotInactive(number)),
            None => self.active_keyslots(),
        };
        let candidate = |number: u32| {
            let kdf = Kdf::Pbkdf2 { hash, iterations: self.keyslots[number as usize].iterations };
            Candidate::new(number, (&kdf, self.key_len()), (&digest, self.digest.len()), &options.limits)
        };
        let open = |number: u32, attempt: &Attempt<'_>| {
            let key = self.open_keyslot(device, &self.keyslots[number as usize], cipher, hash, attempt)?;
            let is_volume_key = self.is_volume_key_until(&|| attempt.is_over(), &key, hash, &options.limits)?;
            Ok(is_volume_key.then_some(key))
        };
        let mut attempts = Attempts::new(&options.limits);
        match attempts.search(passphrase, keyslots.into_iter().map(candidate).collect(), &open) {
            Some((number, key)) => Ok(finish(key, Some(number), Payload::Segments(segments), Default::default())),
            None => Err(attempts.into_error()),
        }
    }

    /// Unlocks with the caller's volume key, after verifying it.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlock_with_volume_key`](crate::Volume::unlock_with_volume_key).
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        let (cipher, hash) = self.algorithms()?;
        options.policy.check_header(&self.facts(&self.segments_of(cipher), hash))?;
        if key.len() != self.key_len() || !self.is_volume_key(&key, hash, &options.limits)? {
            return Err(UnlockError::WrongPassphrase);
        }
        Ok(finish(key, None, Payload::Segments(self.segments_of(cipher)), Default::default()))
    }

    /// Returns the only segment, without a key.
    ///
    /// # Errors
    ///
    /// Fails if the cipher is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        self.algorithms().map(|(cipher, _)| self.segments_of(cipher))
    }

    /// Returns the maximum memory of unlocking, as [`Volume::memory_bound`](crate::Volume::memory_bound).
    pub fn memory_bound(&self, options: &UnlockOptions) -> u64 {
        let is_tried = |number: &u32| options.keyslot.is_none_or(|only| only == *number);
        let slots = self.active_keyslots().into_iter().filter(is_tried);
        let len = |number| material_len(self.key_len() as u64, self.keyslots[number as usize].stripes.into());
        slots.filter_map(len).max().unwrap_or(0)
    }

    /// Checks the header against a policy.
    ///
    /// # Errors
    ///
    /// As [`Volume::check_policy`](crate::Volume::check_policy).
    pub fn check_policy(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        let (cipher, hash) = self.algorithms()?;
        Ok(policy.check_header(&self.facts(&self.segments_of(cipher), hash))?)
    }

    /// Checks the header against a policy for access to keys only. A header whose cipher or hash is not supported has
    /// no keys to access, and is refused only if the policy has rules for them.
    pub(crate) fn check_policy_for_keys(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        match self.check_policy(&policy.for_keys()) {
            Err(error) if *policy == HeaderPolicy::default() && !matches!(error, UnlockError::Policy(_)) => Ok(()),
            checked => checked,
        }
    }

    /// Returns the policy that pins the present header.
    ///
    /// # Errors
    ///
    /// As [`Volume::present_policy`](crate::Volume::present_policy).
    pub fn present_policy(&self) -> Result<HeaderPolicy, UnlockError> {
        let (cipher, hash) = self.algorithms()?;
        Ok(self.facts(&self.segments_of(cipher), hash).policy())
    }

    /// Returns the digest by which a policy pins the header.
    pub fn header_digest(&self) -> HeaderDigest {
        self.header_digest
    }

    fn facts<'a>(&'a self, segments: &'a [Segment], hash: Hash) -> HeaderFacts<'a> {
        let kdf = |number: u32| Kdf::Pbkdf2 { hash, iterations: self.keyslots[number as usize].iterations };
        HeaderFacts {
            uuid: self.uuid(),
            segments,
            authenticated: None,
            key_lens: vec![self.key_len()],
            kdfs: self.active_keyslots().into_iter().map(|number| (number, kdf(number))).collect(),
            digest: self.header_digest,
        }
    }

    /// Checks all keyslots without a passphrase; returns the area of each as well.
    pub(crate) fn check_keyslots(
        &self,
        limits: &KdfLimits,
    ) -> Vec<(u32, Range<u64>, Result<KeyslotState, UnlockError>)> {
        let check = |number: u32| {
            let slot = &self.keyslots[number as usize];
            if let Some(source) = self.damage_of(number) {
                return Err(UnlockError::KeyslotInvalid { keyslot: number, source });
            }
            let (_, hash) = self.algorithms()?;
            Kdf::Pbkdf2 { hash, iterations: slot.iterations }.check(self.key_len(), limits)?;
            Ok(KeyslotState::Usable)
        };
        let numbers = (0..).zip(&self.keyslots).filter(|(_, slot)| slot.active || slot.is_invalid);
        numbers.map(|(number, _)| (number, self.area(number), check(number))).collect()
    }

    /// Returns cipher and hash, if Inlock has them and they can protect a key of this length.
    pub(super) fn algorithms(&self) -> Result<(CipherSpec, Hash), UnlockError> {
        let name = self.cipher();
        let unknown = |part| UnlockError::UnsupportedCipher { place: HEADER, name: Excerpt::new(&name), part };
        // Old versions of cryptsetup stored names as they were typed.
        let lower = format!("{}-{}", self.cipher_name.to_ascii_lowercase(), self.cipher_mode);
        let cipher = luks_cipher::parse(&lower).map_err(unknown)?;
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
        let hash: Hash = self.hash_spec.to_ascii_lowercase().parse().map_err(unsupported)?;
        if hash.len() < self.digest.len() { Err(unsupported(UnknownHash)) } else { Ok((cipher, hash)) }
    }

    /// Returns the key in a keyslot, not verified.
    fn open_keyslot(
        &self,
        device: &dyn HeaderDevice,
        slot: &Keyslot,
        cipher: CipherSpec,
        hash: Hash,
        attempt: &Attempt<'_>,
    ) -> Result<VolumeKey, UnlockError> {
        let mut area_key = Zeroizing::new(vec![0; self.key_len()]);
        attempt.derive(&Kdf::Pbkdf2 { hash, iterations: slot.iterations }, &slot.salt, &mut area_key)?;
        let material =
            KeyMaterial { offset: slot.start(), key_len: self.key_len(), stripes: slot.stripes, hash, cipher };
        attempt.open(&material, device, &area_key)
    }

    pub(super) fn is_volume_key(&self, key: &VolumeKey, hash: Hash, limits: &KdfLimits) -> Result<bool, UnlockError> {
        self.is_volume_key_until(&|| false, key, hash, limits)
    }

    fn is_volume_key_until(
        &self,
        is_stopped: &dyn Fn() -> bool,
        key: &VolumeKey,
        hash: Hash,
        limits: &KdfLimits,
    ) -> Result<bool, UnlockError> {
        let mut digest = Zeroizing::new([0; 20]);
        let kdf = self.digest_kdf(hash);
        kdf.derive_until(is_stopped, key.as_bytes(), &self.digest_salt, &mut *digest, limits)?;
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
