//! SHA-256 of several messages of the same length at a time.
//!
//! A stream of SHA instructions waits for its own results, so a kernel interleaves two or four; others have a word of
//! eight or sixteen messages in each vector.

mod numbered;
#[cfg(target_arch = "x86_64")]
mod pbkdf2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector loads, and calls of functions that enable instructions.
mod sha;
#[cfg(test)]
mod tests;

pub(crate) use numbered::NumberedBlocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use pbkdf2::pbkdf2;

use crate::messages::{Algorithm, HashKernel, Position, pad_sha2};
#[cfg(not(target_arch = "x86_64"))]
use crate::stopped::Stopped;
use sha2::block_api::compress256;

/// Length of a digest in bytes.
const DIGEST_LEN: usize = 32;
/// Length of a block of the compression function in bytes.
pub(crate) const BLOCK_LEN: usize = 64;

type State = [u32; 8];
type Block = [u8; BLOCK_LEN];

/// Initial value (FIPS 180-4, section 5.3.3).
const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The hash.
#[derive(Clone, Copy)]
pub(crate) struct Sha256;

impl Algorithm<BLOCK_LEN> for Sha256 {
    const WORD_LEN: usize = size_of::<u32>();
    type State = State;

    fn initial(self) -> State {
        INITIAL
    }

    fn compress<const N: usize>(kernel: HashKernel, states: &mut [State; N], blocks: [&[Block]; N], _: Position) {
        compress(kernel, states, blocks);
    }

    fn pad(tail: &mut [u8], len: usize, total: u64) -> usize {
        pad_sha2::<BLOCK_LEN>(tail, len, total, size_of::<u64>())
    }

    fn write_digest(state: &State, digest: &mut [u8]) {
        for (bytes, word) in digest.chunks_mut(4).zip(state) {
            bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
        }
    }
}

/// Hashes the same number of blocks into each state.
fn compress<const N: usize>(kernel: HashKernel, states: &mut [State; N], blocks: [&[Block]; N]) {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::lanes::{avx2, avx512, sha2::Compress};
        use crate::messages::lanes_as;
        match kernel {
            HashKernel::Sha2x(proof) | HashKernel::Sha4x(proof) => return sha::compress(proof, states, blocks),
            HashKernel::Avx2(proof) => {
                if let Some((states, blocks)) = lanes_as(states, blocks) {
                    return avx2::run_32(proof, Compress { states, blocks });
                }
            }
            HashKernel::Avx512(proof) => {
                if let Some((states, blocks)) = lanes_as(states, blocks) {
                    return avx512::run_32(proof, Compress { states, blocks });
                }
            }
            HashKernel::Portable => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = kernel;
    states.iter_mut().zip(blocks).for_each(|(state, blocks)| compress256(state, blocks));
}

/// Derives nothing: there are no kernels for chains of hashes on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn pbkdf2(
    _passphrase: &[u8],
    _salt: &[u8],
    _iterations: u32,
    _key: &mut [u8],
    _is_stopped: &dyn Fn() -> bool,
) -> Option<Result<(), Stopped>> {
    None
}
