//! Unlocking a LUKS2 volume with a passphrase or a volume key.

use super::metadata::{Keyslot, KeyslotKdf, KeyslotKind, Metadata, PassphraseKeyslot};
use super::{Luks2, digest, segment};
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::key_material::KeyMaterial;
use crate::pbkdf::{Hash, Kdf, KdfLimits, KdfWork};
use crate::printable::Excerpt;
use crate::secret::Secret;
use crate::unlock::{ActivationFlags, Attempts, UnlockOptions, Unlocked, finish};
use inlock_cipher::{Cipher, CipherError, Segment, VolumeKey};
use zeroize::Zeroizing;

impl Luks2 {
    /// Searches for a keyslot that `passphrase` opens, and verifies the key in it.
    ///
    /// Keyslots of priority 2 are tried first, then those of priority 1; one of priority 0 only if it is requested.
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
        let (segments, digest_number) = self.to_serve()?;
        options.policy.check_header(self.uuid(), &segments)?;
        let bound = &self.metadata.digests[&digest_number];
        let digest = digest::computable(digest_number, bound)?;
        digest.kdf.check(digest.len(), &options.limits)?;
        let keyslots = match options.keyslot {
            Some(number) if !self.metadata.keyslots.contains_key(&number) => {
                return Err(UnlockError::KeyslotInactive(number));
            }
            Some(number) if !bound.keyslots.contains(&number) => return Err(UnlockError::KeyslotUnbound(number)),
            Some(number) => vec![number],
            None => by_priority(&self.metadata, &bound.keyslots),
        };
        let mut attempts = Attempts::new(&options.limits);
        for number in keyslots {
            let work = self.derivation(number).map_or_else(KdfWork::default, |(kdf, len)| {
                KdfWork::of_keyslot((&kdf, len), (&digest.kdf, digest.len()), &options.limits)
            });
            if !attempts.affords(number, work) {
                continue;
            }
            let key = self
                .open_keyslot(device, passphrase, number, &segments, &options.limits)
                .and_then(|key| Ok(digest.verify(&key, &options.limits)?.then_some(key)));
            if let Some(key) = attempts.record(key) {
                return Ok(finish(key, Some(number), segments, self.activation_flags()));
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
        let (segments, number) = self.to_serve()?;
        options.policy.check_header(self.uuid(), &segments)?;
        let fits = check_key_len(&segments, key.len()).is_ok();
        if !fits || !digest::computable(number, &self.metadata.digests[&number])?.verify(&key, &options.limits)? {
            return Err(UnlockError::WrongPassphrase);
        }
        Ok(finish(key, None, segments, self.activation_flags()))
    }

    /// Returns the segments, without a key.
    ///
    /// # Errors
    ///
    /// Fails if a segment cannot be used, or if the header has a requirement that is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        self.to_serve().map(|(segments, _)| segments)
    }

    /// Returns the segments, and the number of the only digest that all encrypted ones are bound to.
    fn to_serve(&self) -> Result<(Vec<Segment>, u32), UnlockError> {
        if let Some(requirement) = self.metadata.config.requirements.first() {
            return Err(UnlockError::Requirement(Excerpt::new(requirement)));
        }
        let segments = segment::to_serve(&self.metadata)?;
        let mut digest_of_all = None;
        let live = self.metadata.segments.iter().filter(|(_, segment)| !segment.is_backup());
        for ((&segment, _), _) in live.zip(&segments).filter(|(_, served)| served.cipher.is_some()) {
            let refuse = |reason| Err(UnlockError::Segment { segment, reason });
            let mut bound = self.metadata.digests.iter().filter(|(_, digest)| digest.segments.contains(&segment));
            let Some((&number, _)) = bound.next() else {
                return refuse("is bound to no digest");
            };
            if bound.next().is_some() {
                return refuse("is bound to two digests");
            }
            if *digest_of_all.get_or_insert(number) != number {
                return refuse("has another key than the segments before it");
            }
        }
        let none = UnlockError::Segment { segment: 0, reason: "there is no encrypted segment" };
        Ok((segments, digest_of_all.ok_or(none)?))
    }

    /// Returns the key derivation of a keyslot and the length of its output, if it is supported.
    fn derivation(&self, number: u32) -> Option<(Kdf, usize)> {
        match &self.metadata.keyslots[&number].kind {
            KeyslotKind::Luks2(slot) => Some((key_derivation(&slot.kdf).ok()?, slot.area_key_len as usize)),
            KeyslotKind::Other(_) => None,
        }
    }

    /// Returns the key in a keyslot, not verified.
    fn open_keyslot(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        number: u32,
        segments: &[Segment],
        limits: &KdfLimits,
    ) -> Result<VolumeKey, UnlockError> {
        let keyslot = &self.metadata.keyslots[&number];
        let slot = match &keyslot.kind {
            KeyslotKind::Luks2(slot) => slot,
            KeyslotKind::Other(name) => {
                return Err(UnlockError::UnsupportedType { place: "LUKS2 keyslot", name: Excerpt::new(name) });
            }
        };
        check_key_len(segments, keyslot.key_len as usize)?;
        let material = key_material(number, keyslot, slot)?;
        let kdf = key_derivation(&slot.kdf)?;
        let mut area_key = Zeroizing::new(vec![0; slot.area_key_len as usize]);
        kdf.derive(passphrase.as_bytes(), &slot.salt, &mut area_key, limits)?;
        material.open(device, &area_key)
    }

    /// Activation flags of the header.
    pub fn activation_flags(&self) -> ActivationFlags {
        let has = |name: &str| self.metadata.config.flags.iter().any(|flag| flag == name);
        ActivationFlags {
            allow_discards: has("allow-discards"),
            same_cpu_crypt: has("same-cpu-crypt"),
            submit_from_crypt_cpus: has("submit-from-crypt-cpus"),
            no_journal: has("no-journal"),
            no_read_workqueue: has("no-read-workqueue"),
            no_write_workqueue: has("no-write-workqueue"),
        }
    }
}

/// Numbers of the keyslots with a key of a segment, in the order in which they are tried.
pub(super) fn order_of_trial(metadata: &Metadata) -> Vec<u32> {
    let bound = metadata.digests.values().filter(|digest| !digest.segments.is_empty());
    by_priority(metadata, &bound.flat_map(|digest| digest.keyslots.clone()).collect::<Vec<_>>())
}

fn by_priority(metadata: &Metadata, numbers: &[u32]) -> Vec<u32> {
    let of = |priority: u8| {
        let slots = metadata.keyslots.iter().filter(move |(number, slot)| {
            slot.priority == priority && numbers.contains(number) && matches!(slot.kind, KeyslotKind::Luks2(_))
        });
        slots.map(|(&number, _)| number)
    };
    of(2).chain(of(1)).collect()
}

/// Whether every segment's cipher takes keys of this length.
fn check_key_len(segments: &[Segment], len: usize) -> Result<(), CipherError> {
    for spec in segments.iter().filter_map(|segment| segment.cipher) {
        if !spec.can_use_key_len(len) {
            return Err(CipherError::KeyLength { spec, len });
        }
    }
    Ok(())
}

fn key_material(number: u32, keyslot: &Keyslot, slot: &PassphraseKeyslot) -> Result<KeyMaterial, UnlockError> {
    let cipher = segment::cipher("LUKS2 keyslot", &slot.area_cipher)?;
    if cipher.cipher == Cipher::Null {
        return Err(UnlockError::NullCipherKeyslot { keyslot: number });
    }
    let len = slot.area_key_len as usize;
    if !cipher.can_use_key_len(len) {
        return Err(CipherError::KeyLength { spec: cipher, len }.into());
    }
    Ok(KeyMaterial {
        offset: keyslot.area_offset,
        key_len: keyslot.key_len as usize,
        stripes: slot.stripes,
        hash: hash("LUKS2 keyslot: af", &slot.af_hash)?,
        cipher,
    })
}

fn key_derivation(kdf: &KeyslotKdf) -> Result<Kdf, UnlockError> {
    Ok(match kdf {
        KeyslotKdf::Pbkdf2 { hash: name, iterations } => {
            Kdf::Pbkdf2 { hash: hash("LUKS2 keyslot: kdf", name)?, iterations: *iterations }
        }
        KeyslotKdf::Argon2i(cost) => Kdf::Argon2i(*cost),
        KeyslotKdf::Argon2id(cost) => Kdf::Argon2id(*cost),
        KeyslotKdf::Other(name) => {
            return Err(UnlockError::UnsupportedType { place: "LUKS2 keyslot: kdf", name: Excerpt::new(name) });
        }
    })
}

fn hash(place: &'static str, name: &str) -> Result<Hash, UnlockError> {
    name.parse().map_err(|_| UnlockError::UnsupportedHash { place, name: Excerpt::new(name) })
}
