//! The policy that a volume must comply with, independent of its header.
//!
//! The checksum of a LUKS header has no key: anyone who can write an image can change its header. With keyslots and
//! digests left as they are and a changed segment, the right passphrase still opens the volume, and later writes may be
//! stored in the clear. [`HeaderPolicy`] refuses ciphers that encrypt nothing or have no IV, and pins cipher and UUID.
//! It is checked before a key is derived.

use crate::printable::Excerpt;
use inlock_cipher::{Cipher, CipherSpec, IvMode, Segment};
use std::fmt;

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
    /// Every segment has one of these ciphers; empty: any.
    pub required_ciphers: Vec<CipherSpec>,
    /// The UUID, in upper or lower case; `None`: any.
    pub expected_uuid: Option<String>,
}

/// A volume violates its policy. Nothing was derived from the passphrase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A null cipher where none is allowed.
    #[error("segment {segment}: cipher '{cipher}' does not encrypt")]
    NullCipher {
        /// Number of the segment, or of the line of a table, from 0.
        segment: usize,
        /// Its cipher.
        cipher: CipherSpec,
    },
    /// A cipher without an IV where none is allowed.
    #[error("segment {segment}: cipher '{cipher}' has no IV, so equal data units are encrypted alike")]
    NullIv {
        /// Number of the segment.
        segment: usize,
        /// Its cipher.
        cipher: CipherSpec,
    },
    /// A linear segment where none is allowed.
    #[error("segment {segment} is stored unencrypted")]
    LinearSegment {
        /// Number of the segment.
        segment: usize,
    },
    /// A segment without the required cipher.
    #[error("segment {segment} {}, but {} is required", Found(.found), List(.required))]
    OtherCipher {
        /// Number of the segment, or of the line of a table, from 0.
        segment: usize,
        /// Its cipher; `None`: it is stored unencrypted.
        found: Option<CipherSpec>,
        /// The required ciphers.
        required: Vec<CipherSpec>,
    },
    /// A UUID that is not the expected one.
    #[error("its UUID is '{found}', but '{expected}' is expected")]
    OtherUuid {
        /// UUID of the header.
        found: Excerpt,
        /// The expected UUID.
        expected: Excerpt,
    },
}

impl HeaderPolicy {
    /// Checks UUID and segments of a LUKS header.
    ///
    /// # Errors
    ///
    /// Fails with the first segment that violates the policy.
    pub fn check_header(&self, uuid: &str, segments: &[Segment]) -> Result<(), PolicyError> {
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
        self.check_ciphers(segments.iter().map(|segment| segment.cipher))
    }

    /// Checks a volume without a header: the ciphers of its segments, or of a table's lines; `None` where they are
    /// stored unencrypted.
    ///
    /// # Errors
    ///
    /// Fails with the first segment that violates the policy.
    pub fn check_ciphers(&self, ciphers: impl IntoIterator<Item = Option<CipherSpec>>) -> Result<(), PolicyError> {
        for (segment, found) in ciphers.into_iter().enumerate() {
            if let Some(cipher) = found.filter(|cipher| cipher.cipher == Cipher::Null && !self.allow_null_cipher) {
                return Err(PolicyError::NullCipher { segment, cipher });
            }
            let is_required = found.is_some_and(|cipher| self.required_ciphers.contains(&cipher));
            if !self.required_ciphers.is_empty() && !is_required {
                let required = self.required_ciphers.clone();
                return Err(PolicyError::OtherCipher { segment, found, required });
            }
        }
        Ok(())
    }

    /// Checks the cipher of a new volume.
    pub(crate) fn check_new(&self, cipher: CipherSpec) -> Result<(), PolicyError> {
        self.check_iv(0, cipher)?;
        self.check_ciphers([Some(cipher)])
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

struct Found<'a>(&'a Option<CipherSpec>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(cipher) => write!(f, "has cipher '{cipher}'"),
            None => f.write_str("is stored unencrypted"),
        }
    }
}

struct List<'a>(&'a [CipherSpec]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, cipher) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{cipher}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::known_specs;
    use inlock_cipher::{DataUnitSize, Sector};

    fn segment(cipher: &str) -> Segment {
        Segment::whole(Some(cipher.parse().unwrap()), DataUnitSize::SECTOR)
    }

    #[test]
    fn every_cipher_without_encryption_or_iv_is_refused_by_its_own_flag() {
        let (mut null, mut no_iv, mut others) = (0, 0, 0);
        for cipher in known_specs() {
            let segments = [Segment::whole(Some(cipher), DataUnitSize::SECTOR)];
            let check = |change: fn(&mut HeaderPolicy)| {
                let mut policy = HeaderPolicy::default();
                change(&mut policy);
                policy.check_header("", &segments)
            };
            let names = cipher.to_string();
            if names.starts_with("cipher_null") {
                assert_eq!(check(|_| {}), Err(PolicyError::NullCipher { segment: 0, cipher }));
                assert!(check(|p| (p.allow_null_iv, p.allow_linear_segment) = (true, true)).is_err());
                assert_eq!(check(|p| p.allow_null_cipher = true), Ok(()));
                null += 1;
            } else if names.ends_with("-ecb") || names.ends_with("-null") {
                assert_eq!(check(|_| {}), Err(PolicyError::NullIv { segment: 0, cipher }));
                assert!(check(|p| (p.allow_null_cipher, p.allow_linear_segment) = (true, true)).is_err());
                assert_eq!(check(|p| p.allow_null_iv = true), Ok(()));
                no_iv += 1;
            } else {
                assert_eq!(check(|_| {}), Ok(()), "{cipher}");
                others += 1;
            }
        }
        assert!(null == 1 && no_iv >= 30 && others >= 200, "{null} {no_iv} {others}");
    }

    #[test]
    fn plain_iv_repeats_behind_2_to_the_32_numbers() {
        const TIB2: u64 = 1 << 41;
        let plain = segment("aes-cbc-plain");
        let of = |segments: &[Segment], len| plain_iv_repeats(segments, len).is_some();
        assert!(!of(&[plain], TIB2) && of(&[plain], TIB2 + 512));
        assert!(!of(&[segment("aes-cbc-plain64")], u64::MAX) && !of(&[], u64::MAX));
        let at = |iv_offset, sectors| {
            let mut segment = plain;
            (segment.iv_offset, segment.sectors) = (Sector(iv_offset), Some(sectors));
            segment
        };
        let cut = at(0, 1 << 32);
        assert!(!of(&[cut], u64::MAX), "its own length counts");
        assert!(!of(&[at(1 << 40, 1 << 32)], u64::MAX), "numbers that wrap but do not repeat");
        assert!(of(&[cut, at(1 << 32, 8)], u64::MAX), "the second has the numbers of the first");
        let mut large = plain;
        (large.unit, large.large_iv) = (DataUnitSize::LUKS_MAX, true);
        assert!(!of(&[large], 8 * TIB2) && of(&[large], 8 * TIB2 + 4096));
    }
}
