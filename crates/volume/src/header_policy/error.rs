//! Violations of a policy.

use super::HeaderDigest;
use crate::pbkdf::{Hash, KdfKind};
use crate::printable::Excerpt;
use inlock_cipher::{AeadSpec, CipherSpec, DataUnitSize};
use std::fmt;

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
    #[error("segment {segment} {}, but {} is required", Found(.found), Words(.required))]
    OtherCipher {
        /// Number of the segment, or of the line of a table, from 0.
        segment: usize,
        /// Its cipher; `None`: it is stored unencrypted.
        found: Option<CipherSpec>,
        /// The names of the required ciphers.
        required: Vec<String>,
    },
    /// A segment with integrity protection without the required cipher.
    #[error("segment 0 has cipher '{found}', but {} is required", Words(.required))]
    OtherAead {
        /// Its authenticated cipher.
        found: AeadSpec,
        /// The names of the required ciphers.
        required: Vec<String>,
    },
    /// A UUID that is not the expected one.
    #[error("its UUID is '{found}', but '{expected}' is expected")]
    OtherUuid {
        /// UUID of the header.
        found: Excerpt,
        /// The expected UUID.
        expected: Excerpt,
    },
    /// A volume key of a length that is not allowed.
    #[error("its volume key has {} bits, but {} are required", .found * 8, Words(.allowed.iter().map(|len| len * 8)))]
    OtherKeyLen {
        /// Length of the key, in bytes.
        found: usize,
        /// The allowed lengths, in bytes.
        allowed: Vec<usize>,
    },
    /// Data units of a size that is not allowed.
    #[error("segment {segment} has sectors of {} bytes, but {} are required", .found.bytes(), Words(.allowed.iter().map(|unit| unit.bytes())))]
    OtherUnit {
        /// Number of the segment, or of the line of a table, from 0.
        segment: usize,
        /// Its data units.
        found: DataUnitSize,
        /// The allowed sizes.
        allowed: Vec<DataUnitSize>,
    },
    /// A keyslot whose key derivation is not allowed.
    #[error("keyslot {keyslot} has the PBKDF {found}, but {} is required", Words(.allowed))]
    OtherKdf {
        /// Number of the keyslot.
        keyslot: u32,
        /// Its key derivation.
        found: KdfKind,
        /// The allowed ones.
        allowed: Vec<KdfKind>,
    },
    /// A keyslot whose PBKDF2 has a hash that is not allowed.
    #[error("keyslot {keyslot} has PBKDF2 with {found}, but {} is required", Words(.allowed))]
    OtherKdfHash {
        /// Number of the keyslot.
        keyslot: u32,
        /// Its hash.
        found: Hash,
        /// The allowed ones.
        allowed: Vec<Hash>,
    },
    /// A keyslot whose key derivation costs less than required, which eases guessing passphrases.
    #[error("keyslot {keyslot}: {what} {found} is less than the required {min}")]
    KdfTooCheap {
        /// Number of the keyslot.
        keyslot: u32,
        /// Which cost, with its unit.
        what: &'static str,
        /// Its value.
        found: u32,
        /// The minimum.
        min: u32,
    },
    /// A keyslot whose key derivation costs more than allowed.
    #[error("keyslot {keyslot}: {what} {found} is more than the allowed {max}")]
    KdfTooCostly {
        /// Number of the keyslot.
        keyslot: u32,
        /// Which cost, with its unit.
        what: &'static str,
        /// Its value.
        found: u32,
        /// The maximum.
        max: u32,
    },
    /// Another header than the pinned one.
    #[error("its header has the digest {found}, but {expected} is expected")]
    OtherDigest {
        /// Digest of the header.
        found: HeaderDigest,
        /// The expected digest.
        expected: HeaderDigest,
    },
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

/// Displays items with commas between them.
struct Words<I>(I);

impl<T: fmt::Display, I: IntoIterator<Item = T> + Clone> fmt::Display for Words<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, word) in self.0.clone().into_iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{word}")?;
        }
        Ok(())
    }
}
