//! The policy that a volume must comply with, independent of its header.
//!
//! The checksum of a LUKS header has no key: anyone who can write an image can change its header. With keyslots and
//! digests left as they are and a changed segment, the right passphrase still opens the volume, and later writes may be
//! stored in the clear. [`HeaderPolicy`] refuses ciphers that encrypt nothing or have no IV, and pins ciphers, key
//! derivations, UUID and the whole header. It is checked before a key is derived.

mod digest;
mod error;
mod kdf_rule;
#[cfg(test)]
mod tests;

pub use digest::{HeaderDigest, InvalidHeaderDigest};
pub use error::PolicyError;
pub use kdf_rule::KdfRule;

use crate::authenticated::AuthenticatedSegment;
use crate::pbkdf::Kdf;
use crate::printable::Excerpt;
use inlock_cipher::{AeadSpec, Cipher, CipherSpec, DataUnitSize, IvMode, Segment};

/// Exceptions that a volume may have, and values that it must have. The default allows and pins nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeaderPolicy {
    /// Segments with a null cipher. Keyslots with one are refused in any case.
    pub allow_null_cipher: bool,
    /// Segments with the IV mode `null`, or with a mode without IV (`ecb`): equal data units have equal ciphertexts.
    pub allow_null_iv: bool,
    /// Segments that are stored unencrypted (`linear`).
    pub allow_linear_segment: bool,
    /// Segments without integrity protection that start with a superblock of dm-integrity. Left to the user of the
    /// data device.
    pub allow_integrity_superblock: bool,
    /// Every segment has one of these ciphers or of [`HeaderPolicy::required_aeads`]; both empty: any.
    pub required_ciphers: Vec<CipherSpec>,
    /// Authenticated ciphers that a segment may have. The lengths of tags and keys do not count.
    pub required_aeads: Vec<AeadSpec>,
    /// The UUID, in upper or lower case; `None`: any.
    pub expected_uuid: Option<String>,
    /// The volume key has one of these lengths in bytes; empty: any.
    pub key_lens: Vec<usize>,
    /// Every encrypted segment has data units of one of these sizes; empty: any.
    pub units: Vec<DataUnitSize>,
    /// The key derivation of every keyslot complies with the rule of its kind; empty: any.
    pub kdfs: Vec<KdfRule>,
    /// The header is this one; `None`: any.
    pub expected_digest: Option<HeaderDigest>,
    /// Number of the data blocks of a dm-verity device, which its root hash does not protect; `None`: any.
    pub data_blocks: Option<u64>,
}

/// Facts of a LUKS header that a policy examines.
pub(crate) struct HeaderFacts<'a> {
    pub(crate) uuid: &'a str,
    pub(crate) segments: &'a [Segment],
    /// The only segment of a volume with integrity protection.
    pub(crate) authenticated: Option<AuthenticatedSegment>,
    /// Length of the volume key in bytes, in each keyslot.
    pub(crate) key_lens: Vec<usize>,
    /// The key derivations of keyslots, by their numbers.
    pub(crate) kdfs: Vec<(u32, Kdf)>,
    pub(crate) digest: HeaderDigest,
}

impl HeaderFacts<'_> {
    /// Returns the policy with exactly these values.
    pub(crate) fn policy(&self) -> HeaderPolicy {
        let mut policy = HeaderPolicy {
            expected_uuid: Some(self.uuid.to_owned()),
            expected_digest: Some(self.digest),
            ..HeaderPolicy::default()
        };
        for segment in self.segments.iter().filter(|segment| segment.cipher.is_some()) {
            add(&mut policy.units, segment.unit);
            segment.cipher.into_iter().for_each(|cipher| add(&mut policy.required_ciphers, cipher));
        }
        if let Some(segment) = &self.authenticated {
            add(&mut policy.units, segment.unit);
            add(&mut policy.required_aeads, segment.spec);
        }
        self.key_lens.iter().for_each(|len| add(&mut policy.key_lens, *len));
        for (_, kdf) in &self.kdfs {
            match policy.kdfs.iter_mut().find(|rule| rule.kind == kdf.kind()) {
                Some(rule) => rule.extend(kdf),
                None => policy.kdfs.push(KdfRule::exactly(kdf)),
            }
        }
        policy
    }
}

/// Adds an item to a list that does not have it.
fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

impl HeaderPolicy {
    /// Whether it has rules for a header, which other volumes cannot comply with.
    pub fn needs_header(&self) -> bool {
        self.expected_uuid.is_some() || self.expected_digest.is_some() || !self.kdfs.is_empty()
    }

    /// Whether it names what segments must be.
    pub(crate) fn has_rules_for_segments(&self) -> bool {
        self.has_required_ciphers() || !self.units.is_empty()
    }

    fn has_required_ciphers(&self) -> bool {
        !self.required_ciphers.is_empty() || !self.required_aeads.is_empty()
    }

    /// Returns the names of all required ciphers.
    fn required_names(&self) -> Vec<String> {
        let aeads = self.required_aeads.iter().map(ToString::to_string);
        self.required_ciphers.iter().map(ToString::to_string).chain(aeads).collect()
    }

    /// Returns the policy for access to keys without the data, which no missing encryption can harm.
    pub(crate) fn for_keys(&self) -> Self {
        Self { allow_null_cipher: true, allow_null_iv: true, allow_linear_segment: true, ..self.clone() }
    }

    /// Checks a LUKS header.
    ///
    /// # Errors
    ///
    /// Fails with the first violation.
    pub(crate) fn check_header(&self, header: &HeaderFacts<'_>) -> Result<(), PolicyError> {
        let (uuid, segments) = (header.uuid, header.segments);
        if let Some(expected) = self.expected_uuid.as_deref().filter(|expected| !uuid.eq_ignore_ascii_case(expected)) {
            return Err(PolicyError::OtherUuid { found: Excerpt::new(uuid), expected: Excerpt::new(expected) });
        }
        for (segment, cipher) in segments.iter().map(|segment| segment.cipher).enumerate() {
            match cipher {
                None if !self.allow_linear_segment => return Err(PolicyError::LinearSegment { segment }),
                Some(cipher) => self.check_iv(segment, cipher)?,
                None => {}
            }
        }
        self.check_segments(segments)?;
        header.authenticated.map_or(Ok(()), |segment| self.check_authenticated(&segment.spec, segment.unit))?;
        header.key_lens.iter().try_for_each(|len| self.check_key_len(*len))?;
        header.kdfs.iter().try_for_each(|(keyslot, kdf)| self.check_kdf(*keyslot, kdf))?;
        match self.expected_digest {
            Some(expected) if header.digest != expected => {
                Err(PolicyError::OtherDigest { found: header.digest, expected })
            }
            _ => Ok(()),
        }
    }

    /// Checks ciphers and data units of a volume without a header: of its segments, or of a table's lines.
    ///
    /// # Errors
    ///
    /// Fails with the first segment that violates the policy.
    pub fn check_segments(&self, segments: &[Segment]) -> Result<(), PolicyError> {
        for (segment, found) in segments.iter().map(|segment| segment.cipher).enumerate() {
            if let Some(cipher) = found.filter(|cipher| cipher.cipher == Cipher::Null && !self.allow_null_cipher) {
                return Err(PolicyError::NullCipher { segment, cipher });
            }
            let is_required = found.is_some_and(|cipher| self.required_ciphers.contains(&cipher));
            if self.has_required_ciphers() && !is_required {
                let required = self.required_names();
                return Err(PolicyError::OtherCipher { segment, found, required });
            }
            if segments[segment].cipher.is_some() {
                self.check_unit(segment, segments[segment].unit)?;
            }
        }
        Ok(())
    }

    /// Checks the length of a volume key, in bytes.
    ///
    /// # Errors
    ///
    /// Fails if it is not allowed.
    pub fn check_key_len(&self, found: usize) -> Result<(), PolicyError> {
        match self.key_lens.is_empty() || self.key_lens.contains(&found) {
            true => Ok(()),
            false => Err(PolicyError::OtherKeyLen { found, allowed: self.key_lens.clone() }),
        }
    }

    /// Checks the key derivation of a keyslot.
    pub(crate) fn check_kdf(&self, keyslot: u32, kdf: &Kdf) -> Result<(), PolicyError> {
        if self.kdfs.is_empty() {
            return Ok(());
        }
        let Some(rule) = self.kdfs.iter().find(|rule| rule.kind == kdf.kind()) else {
            let allowed = self.kdfs.iter().map(|rule| rule.kind).collect();
            return Err(PolicyError::OtherKdf { keyslot, found: kdf.kind(), allowed });
        };
        rule.check(keyslot, kdf)
    }

    /// Checks cipher, key and data units of a new volume.
    ///
    /// # Errors
    ///
    /// Fails with the first violation.
    pub fn check_new(&self, cipher: CipherSpec, key_len: usize, unit: DataUnitSize) -> Result<(), PolicyError> {
        self.check_iv(0, cipher)?;
        self.check_segments(&[Segment::whole(Some(cipher), unit)])?;
        self.check_key_len(key_len)
    }

    /// Checks authenticated cipher, key and data units of a new volume or of a table.
    ///
    /// # Errors
    ///
    /// Fails with the first violation.
    pub fn check_aead(&self, spec: &AeadSpec, key_len: usize, unit: DataUnitSize) -> Result<(), PolicyError> {
        self.check_authenticated(spec, unit)?;
        self.check_key_len(key_len)
    }

    fn check_authenticated(&self, spec: &AeadSpec, unit: DataUnitSize) -> Result<(), PolicyError> {
        if let Some(cipher) = spec.inner() {
            self.check_iv(0, cipher)?;
            if cipher.cipher == Cipher::Null && !self.allow_null_cipher {
                return Err(PolicyError::NullCipher { segment: 0, cipher });
            }
        }
        let is_it = |other: &AeadSpec| (other.algorithm(), other.iv()) == (spec.algorithm(), spec.iv());
        if self.has_required_ciphers() && !self.required_aeads.iter().any(is_it) {
            return Err(PolicyError::OtherAead { found: *spec, required: self.required_names() });
        }
        self.check_unit(0, unit)
    }

    fn check_unit(&self, segment: usize, found: DataUnitSize) -> Result<(), PolicyError> {
        if self.units.is_empty() || self.units.contains(&found) {
            return Ok(());
        }
        Err(PolicyError::OtherUnit { segment, found, allowed: self.units.clone() })
    }

    fn check_iv(&self, segment: usize, cipher: CipherSpec) -> Result<(), PolicyError> {
        let has_none = cipher.iv == IvMode::Null && cipher.cipher != Cipher::Null;
        if has_none && !self.allow_null_iv { Err(PolicyError::NullIv { segment, cipher }) } else { Ok(()) }
    }
}

/// Returns the cipher of segments with the IV mode `plain`, whose numbers have 32 bits, if they are together so long
/// that numbers repeat. All have one key; `device_len` is in bytes.
pub fn plain_iv_repeats(segments: &[Segment], device_len: u64) -> Option<CipherSpec> {
    let plain = |segment: &&Segment| segment.cipher.is_some_and(|cipher| cipher.iv == IvMode::Plain);
    let numbers = segments.iter().filter(plain).map(|segment| {
        let behind = (device_len / 512).saturating_sub(segment.data_offset.0);
        let per_number = if segment.large_iv { segment.unit.sectors() } else { 1 };
        let first = segment.iv_offset.0 / per_number;
        (first, first.saturating_add(segment.sectors.unwrap_or(behind) / per_number))
    });
    let all = numbers.reduce(|(first, end), (other_first, other_end)| (first.min(other_first), end.max(other_end)));
    let (first, end) = all?;
    if end - first > 1 << 32 { segments.iter().find(plain).and_then(|segment| segment.cipher) } else { None }
}
