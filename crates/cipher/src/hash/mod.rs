//! Hashes by name: of ESSIV, and of LUKS headers, plain volumes and PBKDF2 in `inlock-volume`.
//!
//! A hash is a row of the table below. Headers have the names of the library that cryptsetup was built with, so
//! [`Hash::from_str`] knows several for each; dm-crypt has one, that of the Linux kernel.

mod table;
#[cfg(test)]
mod tests;

pub use table::Hash;

use digest::common::BlockSizeUser;
use digest::{Digest, FixedOutput, KeyInit, Update};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

impl Hash {
    /// The longest digest of any hash, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Returns the hash that the Linux kernel has under this name.
    pub fn from_kernel_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.kernel_name() == Some(name))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hash {
    type Err = UnknownHash;

    /// Parses any name that cryptsetup accepts with one of its libraries, in upper or lower case.
    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let mut all = Self::ALL.into_iter();
        all.find(|hash| is(hash.name()) || hash.kernel_name().is_some_and(is) || hash.aliases().iter().any(|a| is(a)))
            .ok_or(UnknownHash)
    }
}

/// A hash is not known by this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hash is not supported")]
pub struct UnknownHash;

fn digest_of<D: Digest>(parts: &[&[u8]]) -> Zeroizing<[u8; Hash::MAX_LEN]> {
    let mut state = D::new();
    parts.iter().for_each(|part| Digest::update(&mut state, part));
    let mut out = Zeroizing::new([0; Hash::MAX_LEN]);
    let mut digest = state.finalize();
    out[..digest.len()].copy_from_slice(&digest);
    zeroize::Zeroize::zeroize(digest.as_mut_slice());
    out
}

/// Computes PBKDF2 with the HMAC `M`.
fn pbkdf2_of<M: KeyInit + Update + FixedOutput + Clone>(
    passphrase: &[u8],
    salt: &[u8],
    iterations: u32,
    key: &mut [u8],
) {
    pbkdf2::pbkdf2::<M>(passphrase, salt, iterations, key).expect("HMAC takes keys of every length");
}

fn block_len_of<D: BlockSizeUser>() -> usize {
    D::block_size()
}
