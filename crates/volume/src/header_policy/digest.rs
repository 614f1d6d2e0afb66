//! The digest by which a policy pins a whole header.

use inlock_cipher::Hash;
use std::fmt;
use std::str::FromStr;

/// SHA-256 of a header. LUKS1: of its 592 bytes. LUKS2: of its metadata, the JSON text as stored, which both copies
/// share and every change of a keyslot changes; salts, sequence numbers and labels are not in it.
///
/// It does not cover the key material in the keyslots, which the digest of the volume key confirms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderDigest([u8; 32]);

impl HeaderDigest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut digest = [0; 32];
        digest.copy_from_slice(&Hash::Sha256.digest(&[bytes])[..32]);
        Self(digest)
    }
}

/// Displays `sha256:` and 64 digits.
impl fmt::Display for HeaderDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HeaderDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HeaderDigest {
    type Err = InvalidHeaderDigest;

    fn from_str(text: &str) -> Result<Self, InvalidHeaderDigest> {
        let digits = text.strip_prefix("sha256:").ok_or(InvalidHeaderDigest)?.as_bytes();
        if digits.len() != 64 {
            return Err(InvalidHeaderDigest);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(InvalidHeaderDigest);
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self(digest))
    }
}

/// A text is not the digest of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected sha256: and 64 hexadecimal digits")]
pub struct InvalidHeaderDigest;
