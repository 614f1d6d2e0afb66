//! PBKDF2 with HMAC-SHA-256, several blocks of the derived key at a time.
//!
//! A block is the end of a chain of hashes, each of which needs the one before it. Chains of different blocks fill each
//! other's gaps as messages do, and a chain's state stays in registers from one iteration to the next.

use super::sha::iterate_hmac;
use super::{BLOCK_LEN, DIGEST_LEN, INITIAL, State};
use crate::isa::{self, CpuLimit};
use crate::scrub_stack;
use crate::stopped::{Stopped, in_steps};
use ::hmac::Hmac;
use digest::{FixedOutput, KeyInit, Update};
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

/// Chains that are computed together at most.
const MAX_CHAINS: usize = 4;
/// Stack that may have copies of states after a derivation.
const SCRUB: usize = 8 << 10;

/// Derives a key. `None`: this CPU has no instructions for it, or `INLOCK_CPU` forbids them.
pub(crate) fn pbkdf2(
    passphrase: &[u8],
    salt: &[u8],
    iterations: u32,
    key: &mut [u8],
    is_stopped: &dyn Fn() -> bool,
) -> Option<Result<(), Stopped>> {
    let is_allowed = CpuLimit::from_env().is_ok_and(|limit| limit > CpuLimit::Portable);
    let proof = isa::Sha::detect().filter(|_| is_allowed)?;
    let done = derive(proof, passphrase, salt, iterations, key, is_stopped);
    scrub_stack::<SCRUB>();
    Some(done)
}

#[inline(never)]
fn derive(
    proof: isa::Sha,
    passphrase: &[u8],
    salt: &[u8],
    iterations: u32,
    key: &mut [u8],
    is_stopped: &dyn Fn() -> bool,
) -> Result<(), Stopped> {
    let chains = Chains::new(proof, passphrase, salt, iterations);
    for (group, key) in (0u32..).zip(key.chunks_mut(MAX_CHAINS * DIGEST_LEN)) {
        let first = group * MAX_CHAINS as u32 + 1;
        match key.len().div_ceil(DIGEST_LEN) {
            1 => chains.derive::<1>(first, key, is_stopped),
            2 => chains.derive::<2>(first, key, is_stopped),
            3 => chains.derive::<3>(first, key, is_stopped),
            _ => chains.derive::<MAX_CHAINS>(first, key, is_stopped),
        }?;
    }
    Ok(())
}

/// The common part of all chains of a derivation.
struct Chains {
    proof: isa::Sha,
    iterations: u32,
    /// HMAC of the salt, without the number of a block.
    salted: Hmac<Sha256>,
    /// States after the blocks with the key of the HMAC.
    inner: Zeroizing<State>,
    outer: Zeroizing<State>,
}

impl Chains {
    fn new(proof: isa::Sha, passphrase: &[u8], salt: &[u8], iterations: u32) -> Self {
        let mut salted = Hmac::<Sha256>::new_from_slice(passphrase).expect("HMAC takes keys of every length");
        salted.update(salt);
        let mut block = Zeroizing::new([0; BLOCK_LEN]);
        if passphrase.len() <= BLOCK_LEN {
            block[..passphrase.len()].copy_from_slice(passphrase);
        } else {
            let mut digest = Sha256::digest(passphrase);
            block[..DIGEST_LEN].copy_from_slice(&digest);
            digest.as_mut_slice().zeroize();
        }
        let state_after = |pad: u8| {
            let padded = Zeroizing::new(block.map(|byte| byte ^ pad));
            let mut state = Zeroizing::new(INITIAL);
            compress256(&mut state, std::slice::from_ref(&*padded));
            state
        };
        Self { proof, iterations, salted, inner: state_after(0x36), outer: state_after(0x5c) }
    }

    /// Derives `N` blocks of the key, of which the last may be short, from block `first` on.
    fn derive<const N: usize>(&self, first: u32, key: &mut [u8], is_stopped: &dyn Fn() -> bool) -> Result<(), Stopped> {
        let mut chains = Zeroizing::new([INITIAL; N]);
        for (number, chain) in (first..).zip(chains.iter_mut()) {
            let mut hmac = self.salted.clone();
            hmac.update(&number.to_be_bytes());
            let mut digest = hmac.finalize_fixed();
            for (word, bytes) in chain.iter_mut().zip(digest.as_chunks().0) {
                *word = u32::from_be_bytes(*bytes);
            }
            digest.as_mut_slice().zeroize();
        }
        let mut sums = chains.clone();
        in_steps(self.iterations.saturating_sub(1), is_stopped, |count| {
            iterate_hmac(self.proof, &self.inner, &self.outer, &mut chains, &mut sums, count);
        })?;
        for (bytes, word) in key.chunks_mut(4).zip(sums.as_flattened()) {
            bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
        }
        Ok(())
    }
}
