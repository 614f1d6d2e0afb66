//! Hashes by name: of ESSIV, and of LUKS headers, plain volumes and PBKDF2 in `inlock-volume`.
//!
//! A hash is a row of the table below. Headers have the names of the library that cryptsetup was built with, so
//! [`Hash::from_str`] knows several for each; dm-crypt has one, that of the Linux kernel.

mod table;
#[cfg(test)]
mod tests;

pub use table::Hash;

use crate::stopped::{Stopped, in_steps};
use digest::common::BlockSizeUser;
use digest::{Digest, FixedOutput, KeyInit, Update};
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize, Zeroizing};

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
    digest.as_mut_slice().zeroize();
    out
}

/// Computes PBKDF2 with the HMAC `M`, one block of the key after the other.
///
/// The `pbkdf2` crate does the same, but cannot be stopped, and leaves digests behind. The tests compare with it.
fn pbkdf2_of<M: KeyInit + Update + FixedOutput + Clone>(
    passphrase: &[u8],
    salt: &[u8],
    iterations: u32,
    key: &mut [u8],
    is_stopped: &dyn Fn() -> bool,
) -> Result<(), Stopped> {
    let keyed = M::new_from_slice(passphrase).expect("HMAC takes keys of every length");
    let mut salted = keyed.clone();
    salted.update(salt);
    for (number, block) in (1u32..).zip(key.chunks_mut(M::output_size())) {
        let mut first = salted.clone();
        first.update(&number.to_be_bytes());
        let mut digest = first.finalize_fixed();
        block.copy_from_slice(&digest[..block.len()]);
        let done = in_steps(iterations.saturating_sub(1), is_stopped, |count| {
            for _ in 0..count {
                let mut hmac = keyed.clone();
                hmac.update(&digest);
                hmac.finalize_into(&mut digest);
                block.iter_mut().zip(&digest).for_each(|(sum, byte)| *sum ^= byte);
            }
        });
        digest.as_mut_slice().zeroize();
        done?;
    }
    Ok(())
}

fn block_len_of<D: BlockSizeUser>() -> usize {
    D::block_size()
}
