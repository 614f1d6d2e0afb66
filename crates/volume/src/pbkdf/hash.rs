//! The hashes of PBKDF2, the anti-forensic splitter, digests and plain volumes.

use pbkdf2::pbkdf2_hmac;
use ripemd::Ripemd160;
use sha1::Sha1;
use sha2::digest::Digest;
use sha2::{Sha224, Sha256, Sha384, Sha512};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A hash by its dm-crypt name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hash {
    /// `sha1`.
    Sha1,
    /// `sha224`.
    Sha224,
    /// `sha256`.
    Sha256,
    /// `sha384`.
    Sha384,
    /// `sha512`.
    Sha512,
    /// `ripemd160`.
    Ripemd160,
}

impl Hash {
    /// All hashes.
    pub const ALL: [Self; 6] = [Self::Sha1, Self::Sha224, Self::Sha256, Self::Sha384, Self::Sha512, Self::Ripemd160];
    /// The longest digest of any hash, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Returns the name in headers and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha224 => "sha224",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
            Self::Ripemd160 => "ripemd160",
        }
    }

    /// Returns the length of a digest in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            Self::Sha1 | Self::Ripemd160 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the digest of the concatenated `parts`: the first [`Hash::len`] bytes of the array.
    pub fn digest(self, parts: &[&[u8]]) -> Zeroizing<[u8; Self::MAX_LEN]> {
        match self {
            Self::Sha1 => digest::<Sha1>(parts),
            Self::Sha224 => digest::<Sha224>(parts),
            Self::Sha256 => digest::<Sha256>(parts),
            Self::Sha384 => digest::<Sha384>(parts),
            Self::Sha512 => digest::<Sha512>(parts),
            Self::Ripemd160 => digest::<Ripemd160>(parts),
        }
    }

    /// Returns the number of blocks of output that PBKDF2 computes for a key of `key_len` bytes, each with all
    /// iterations.
    pub(super) fn pbkdf2_blocks(self, key_len: usize) -> u64 {
        key_len.div_ceil(self.len()).max(1) as u64
    }

    /// Computes PBKDF2 with HMAC over this hash; `iterations` is at least 1.
    pub(super) fn pbkdf2(self, passphrase: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
        match self {
            Self::Sha1 => pbkdf2_hmac::<Sha1>(passphrase, salt, iterations, key),
            Self::Sha224 => pbkdf2_hmac::<Sha224>(passphrase, salt, iterations, key),
            Self::Sha256 => pbkdf2_hmac::<Sha256>(passphrase, salt, iterations, key),
            Self::Sha384 => pbkdf2_hmac::<Sha384>(passphrase, salt, iterations, key),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(passphrase, salt, iterations, key),
            Self::Ripemd160 => pbkdf2_hmac::<Ripemd160>(passphrase, salt, iterations, key),
        }
    }
}

fn digest<D: Digest>(parts: &[&[u8]]) -> Zeroizing<[u8; Hash::MAX_LEN]> {
    let mut state = D::new();
    parts.iter().for_each(|part| state.update(part));
    let mut out = Zeroizing::new([0; Hash::MAX_LEN]);
    let digest = Zeroizing::new(state.finalize().to_vec());
    out[..digest.len()].copy_from_slice(&digest);
    out
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hash {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        Self::ALL.into_iter().find(|hash| hash.name() == name).ok_or(UnknownHash)
    }
}

/// The hash is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hash is not supported")]
pub struct UnknownHash;
