//! Unlocking a LUKS2 volume with a passphrase or a volume key.

use super::metadata::{Keyslot, KeyslotDamage, KeyslotKdf, KeyslotKind, Metadata, PassphraseKeyslot};
use super::{Luks2, digest, reencryption_keyslot, segment};
use crate::attempts::{Attempt, Attempts, Candidate};
use crate::authenticated::AuthenticatedSegment;
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::header_policy::{HeaderDigest, HeaderFacts, HeaderPolicy};
use crate::key_material::{KeyMaterial, material_len};
use crate::key_material::{STRIPES, needed_area};
use crate::keyslot_state::KeyslotState;
use crate::pbkdf::{Hash, Kdf, KdfLimits};
use crate::printable::Excerpt;
use crate::secret::Secret;
use crate::unlock::{ActivationFlags, Payload, UnlockOptions, Unlocked, finish};
use inlock_cipher::{Cipher, CipherError, Segment, VolumeKey};
use std::ops::Range;
use zeroize::Zeroizing;

/// The object of unlocking: the segments, and the digest of their key with its keyslots.
pub(super) struct Target<'a> {
    pub(super) payload: Payload,
    pub(super) keyslots: &'a [u32],
    digest: digest::Computable<'a>,
}

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
        let target = self.target(options)?;
        let keyslots = match options.keyslot {
            Some(number) if !self.metadata.keyslots.contains_key(&number) => {
                return Err(UnlockError::KeyslotInactive(number));
            }
            Some(number) if !target.keyslots.contains(&number) => return Err(UnlockError::KeyslotUnbound(number)),
            Some(number) => vec![number],
            None => by_priority(&self.metadata, target.keyslots),
        };
        let mut attempts = Attempts::new(&options.limits);
        match self.open_target(device, passphrase, &keyslots, &target, &mut attempts) {
            Some((number, key)) => Ok(self.unlocked(key, Some(number), target.payload)),
            None => Err(attempts.into_error()),
        }
    }

    /// Returns what to unlock, after checking it against the policy and the limits.
    pub(super) fn target(&self, options: &UnlockOptions) -> Result<Target<'_>, UnlockError> {
        let (payload, number) = self.to_serve()?;
        let bound = &self.metadata.digests[&number];
        options.policy.check_header(&self.facts(&payload, &bound.keyslots))?;
        let digest = digest::computable(number, bound)?;
        digest.kdf.check(digest.len(), &options.limits)?;
        Ok(Target { payload, keyslots: &bound.keyslots, digest })
    }

    /// Tries keyslots in this order, and returns the first one that opens with its key.
    pub(super) fn open_target(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        keyslots: &[u32],
        target: &Target<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Option<(u32, VolumeKey)> {
        self.open_any(device, passphrase, keyslots, &target.payload, &|_| Ok(target.digest), attempts)
    }

    /// As [`Luks2::open_target`], with a digest for each keyslot.
    pub(super) fn open_any<'a>(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        keyslots: &[u32],
        payload: &Payload,
        digest_of: &(dyn Fn(u32) -> Result<digest::Computable<'a>, UnlockError> + Sync),
        attempts: &mut Attempts<'_>,
    ) -> Option<(u32, VolumeKey)> {
        let limits = attempts.limits();
        let candidate = |&number: &u32| match (self.derivation(number), digest_of(number)) {
            (Some((kdf, len)), Ok(digest)) => Candidate::new(number, (&kdf, len), (&digest.kdf, digest.len()), limits),
            _ => Candidate::without_derivation(number),
        };
        let open = |number: u32, attempt: &Attempt<'_>| {
            let digest = digest_of(number)?;
            let key = self.open_keyslot(device, number, payload, attempt)?;
            Ok(digest.verify_until(&|| attempt.is_over(), &key, limits)?.then_some(key))
        };
        attempts.search(passphrase, keyslots.iter().map(candidate).collect(), &open)
    }

    pub(super) fn unlocked(&self, key: VolumeKey, keyslot: Option<u32>, payload: Payload) -> Unlocked {
        finish(key, keyslot, payload, self.activation_flags())
    }

    /// Searches for a keyslot that `passphrase` opens, and returns its number and the key in it, as
    /// [`Volume::unlock_key`](crate::Volume::unlock_key).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn unlock_key(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<(u32, VolumeKey), UnlockError> {
        self.check_policy_for_keys(&options.policy)?;
        let keyslots = match options.keyslot {
            Some(number) if !self.metadata.keyslots.contains_key(&number) => {
                return Err(UnlockError::KeyslotInactive(number));
            }
            Some(number) => vec![number],
            None => by_priority(&self.metadata, &self.metadata.keyslots.keys().copied().collect::<Vec<_>>()),
        };
        let digest_with =
            |number: u32| self.metadata.digests.iter().find(|(_, digest)| digest.keyslots.contains(&number));
        let digest_of = |number: u32| match digest_with(number) {
            Some((&bound, object)) => digest::computable(bound, object),
            None => Err(UnlockError::NoUsableKeyslot),
        };
        let bound: Vec<u32> = keyslots.into_iter().filter(|number| digest_with(*number).is_some()).collect();
        let mut attempts = Attempts::new(&options.limits);
        let payload = Payload::Segments(Vec::new());
        let opened = self.open_any(device, passphrase, &bound, &payload, &digest_of, &mut attempts);
        opened.ok_or_else(|| attempts.into_error())
    }

    /// Unlocks with the caller's volume key, after verifying it.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlock_with_volume_key`](crate::Volume::unlock_with_volume_key).
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        let (payload, number) = self.to_serve()?;
        options.policy.check_header(&self.facts(&payload, &self.metadata.digests[&number].keyslots))?;
        options.policy.check_key_len(key.len())?;
        // The digest alone also confirms a key without its zeroes at the end, since HMAC appends zeroes.
        let has_len = self.volume_key_len().is_none_or(|len| len == key.len());
        let fits = has_len && payload.check_key_len(key.len()).is_ok();
        if !fits || !digest::computable(number, &self.metadata.digests[&number])?.verify(&key, &options.limits)? {
            return Err(UnlockError::WrongPassphrase);
        }
        Ok(self.unlocked(key, None, payload))
    }

    /// Returns the segments, without a key; none if the volume is authenticated.
    ///
    /// # Errors
    ///
    /// Fails if a segment cannot be used, or if the header has a requirement that is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        self.to_serve().map(|(payload, _)| payload.segments().to_vec())
    }

    /// Returns the only segment of a volume with integrity protection, without a key.
    ///
    /// # Errors
    ///
    /// As [`Luks2::segments`].
    pub fn authenticated(&self) -> Result<Option<AuthenticatedSegment>, UnlockError> {
        self.to_serve().map(|(payload, _)| payload.authenticated())
    }

    /// Returns the maximum memory of unlocking, as [`Volume::memory_bound`](crate::Volume::memory_bound). It includes
    /// keyslots whose keys are bound to no segment, which [`Luks2::unlock_key`] tries.
    pub fn memory_bound(&self, options: &UnlockOptions) -> u64 {
        let keyslots = self.metadata.keyslots.iter().filter(|(number, slot)| match options.keyslot {
            Some(only) => only == **number,
            None => slot.priority > 0,
        });
        let bound = |(number, slot): (&u32, &Keyslot)| {
            let KeyslotKind::Luks2(_) = &slot.kind else { return 0 };
            // A keyslot over the limits is refused before it takes anything.
            let derivation = self.derivation(*number).filter(|(kdf, len)| kdf.check(*len, &options.limits).is_ok());
            let material = material_len(slot.key_len.into(), STRIPES.into()).unwrap_or(u64::MAX);
            derivation.map_or(0, |(kdf, _)| kdf.memory_bound().max(material))
        };
        keyslots.map(bound).max().unwrap_or(0)
    }

    /// Checks the header against a policy.
    ///
    /// # Errors
    ///
    /// As [`Volume::check_policy`](crate::Volume::check_policy).
    pub fn check_policy(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        let (payload, digest) = self.to_serve()?;
        Ok(policy.check_header(&self.facts(&payload, &self.metadata.digests[&digest].keyslots))?)
    }

    /// Returns the policy that pins the present header.
    ///
    /// # Errors
    ///
    /// As [`Volume::present_policy`](crate::Volume::present_policy).
    pub fn present_policy(&self) -> Result<HeaderPolicy, UnlockError> {
        let (payload, digest) = self.to_serve()?;
        Ok(self.facts(&payload, &self.metadata.digests[&digest].keyslots).policy())
    }

    /// Returns the digest by which a policy pins the header.
    pub fn header_digest(&self) -> HeaderDigest {
        HeaderDigest::of(self.metadata_json().as_bytes())
    }

    /// Checks the header against a policy for access to keys only: segments that encrypt nothing are no harm, and
    /// matter only if the policy names what they must be.
    pub(crate) fn check_policy_for_keys(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        let payload = match self.to_serve() {
            Ok((payload, _)) => payload,
            Err(error) if policy.has_rules_for_segments() => return Err(error),
            Err(_) => Payload::Segments(Vec::new()),
        };
        let keyslots: Vec<u32> = self.metadata.keyslots.keys().copied().collect();
        Ok(policy.for_keys().check_header(&self.facts(&payload, &keyslots))?)
    }

    /// Returns what a policy examines: among others these keyslots.
    pub(super) fn facts<'a>(&'a self, payload: &'a Payload, keyslots: &[u32]) -> HeaderFacts<'a> {
        HeaderFacts {
            uuid: self.uuid(),
            segments: payload.segments(),
            authenticated: payload.authenticated(),
            key_lens: keyslots.iter().map(|number| self.metadata.keyslots[number].key_len as usize).collect(),
            // A keyslot that is not supported is never tried.
            kdfs: keyslots.iter().filter_map(|number| Some((*number, self.derivation(*number)?.0))).collect(),
            digest: self.header_digest(),
        }
    }

    /// Returns the segments, and the number of the only digest that all encrypted ones are bound to.
    fn to_serve(&self) -> Result<(Payload, u32), UnlockError> {
        if let Some(requirement) = self.metadata.config.requirements.first() {
            return Err(UnlockError::Requirement(Excerpt::new(requirement)));
        }
        let payload = segment::to_serve(&self.metadata)?;
        let is_encrypted = |at: usize| payload.segments().get(at).is_none_or(|segment| segment.cipher.is_some());
        let mut digest_of_all = None;
        let live = self.metadata.segments.iter().filter(|(_, segment)| !segment.is_backup());
        for (_, (&segment, _)) in live.enumerate().filter(|(at, _)| is_encrypted(*at)) {
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
        Ok((payload, digest_of_all.ok_or(none)?))
    }

    /// Checks all keyslots without a passphrase; returns the area of each as well.
    pub(crate) fn check_keyslots(
        &self,
        limits: &KdfLimits,
    ) -> Vec<(u32, Range<u64>, Result<KeyslotState, UnlockError>)> {
        let check = |(&number, keyslot): (&u32, &Keyslot)| {
            let area = keyslot.area_offset..keyslot.area_offset + keyslot.reserved_len();
            (number, area, self.check_keyslot(number, keyslot, limits))
        };
        let mut all: Vec<_> = self.metadata.keyslots.iter().map(check).collect();
        for (number, area, _) in &mut all {
            // Behind the key material an area has anything.
            area.end = area.end.min(area.start + needed_area(self.metadata.keyslots[number].key_len));
        }
        all
    }

    fn check_keyslot(&self, number: u32, keyslot: &Keyslot, limits: &KdfLimits) -> Result<KeyslotState, UnlockError> {
        let slot = usable_slot(number, keyslot)?;
        key_material(number, keyslot, slot)?;
        key_derivation(&slot.kdf)?.check(slot.area_key_len as usize, limits)?;
        let digest = self.metadata.digests.iter().find(|(_, digest)| digest.keyslots.contains(&number));
        if let Some((&bound, digest)) = digest {
            digest::computable(bound, digest)?.kdf.check(1, limits)?;
            if digest.segments.is_empty() {
                return Ok(KeyslotState::Unbound);
            }
            if let Ok((payload, _)) = self.to_serve() {
                payload.check_key_len(keyslot.key_len as usize)?;
            }
        }
        Ok(if keyslot.priority == 0 { KeyslotState::OnlyByNumber } else { KeyslotState::Usable })
    }

    /// Returns the key derivation of a keyslot and the length of its output, if it is supported.
    fn derivation(&self, number: u32) -> Option<(Kdf, usize)> {
        match &self.metadata.keyslots[&number].kind {
            KeyslotKind::Luks2(slot) => Some((key_derivation(&slot.kdf).ok()?, slot.area_key_len as usize)),
            KeyslotKind::Reencryption(_) | KeyslotKind::Other(_) => None,
        }
    }

    /// Returns the key in a keyslot, not verified.
    fn open_keyslot(
        &self,
        device: &dyn HeaderDevice,
        number: u32,
        payload: &Payload,
        attempt: &Attempt<'_>,
    ) -> Result<VolumeKey, UnlockError> {
        let keyslot = &self.metadata.keyslots[&number];
        let slot = usable_slot(number, keyslot)?;
        payload.check_key_len(keyslot.key_len as usize)?;
        let material = key_material(number, keyslot, slot)?;
        let kdf = key_derivation(&slot.kdf)?;
        let mut area_key = Zeroizing::new(vec![0; slot.area_key_len as usize]);
        attempt.derive(&kdf, &slot.salt, &mut area_key)?;
        attempt.open(&material, device, &area_key)
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

/// Returns the parameters of a keyslot whose damage, if it has any, does not prevent its use.
fn usable_slot(number: u32, keyslot: &Keyslot) -> Result<&PassphraseKeyslot, UnlockError> {
    if let Some(KeyslotDamage { fault, is_usable: false }) = &keyslot.damage {
        return Err(UnlockError::KeyslotInvalid { keyslot: number, source: fault.clone() });
    }
    passphrase_slot(keyslot)
}

/// Returns the parameters of a keyslot that a passphrase opens, or fails with its unsupported type.
pub(super) fn passphrase_slot(keyslot: &Keyslot) -> Result<&PassphraseKeyslot, UnlockError> {
    match &keyslot.kind {
        KeyslotKind::Luks2(slot) => Ok(slot),
        KeyslotKind::Reencryption(_) => {
            Err(UnlockError::UnsupportedType { place: "LUKS2 keyslot", name: Excerpt::new(reencryption_keyslot::KIND) })
        }
        KeyslotKind::Other(name) => {
            Err(UnlockError::UnsupportedType { place: "LUKS2 keyslot", name: Excerpt::new(name) })
        }
    }
}

/// Numbers of the keyslots with a key of a segment, in the order in which they are tried.
pub(super) fn order_of_trial(metadata: &Metadata) -> Vec<u32> {
    let bound = metadata.digests.values().filter(|digest| !digest.segments.is_empty());
    by_priority(metadata, &bound.flat_map(|digest| digest.keyslots.clone()).collect::<Vec<_>>())
}

pub(super) fn by_priority(metadata: &Metadata, numbers: &[u32]) -> Vec<u32> {
    let of = |priority: u8| {
        let slots = metadata
            .keyslots
            .iter()
            .filter(move |(number, slot)| slot.priority == priority && numbers.contains(number) && slot.can_be_tried());
        slots.map(|(&number, _)| number)
    };
    of(2).chain(of(1)).collect()
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
        stripes: STRIPES,
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
    name.to_ascii_lowercase().parse().map_err(|_| UnlockError::UnsupportedHash { place, name: Excerpt::new(name) })
}
