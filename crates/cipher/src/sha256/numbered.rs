//! SHA-256 of numbered blocks of at most 32 bytes, each of which is replaced by its digest.
//!
//! Number and block fit one block of the compression function, so messages of different lengths are hashed together.

use super::{BLOCK_LEN, Block, DIGEST_LEN, INITIAL, State, compress};
use crate::isa::{self, CpuLimit};
use crate::messages::HashKernel;
use crate::scrub_stack;
use zeroize::Zeroizing;

/// Messages that are hashed together at most.
const LANES: usize = 4;
const NUMBER_LEN: usize = size_of::<u32>();
/// Stack that may have copies of blocks and states after a call.
const SCRUB: usize = 8 << 10;

/// Memory for the blocks, which is wiped when dropped.
pub(crate) struct NumberedBlocks {
    kernel: HashKernel,
    blocks: Zeroizing<[Block; LANES]>,
    states: Zeroizing<[State; LANES]>,
}

impl NumberedBlocks {
    pub(crate) fn new() -> Self {
        let is_allowed = CpuLimit::from_env().is_ok_and(|limit| limit > CpuLimit::Portable);
        let proof = isa::Sha::detect().filter(|_| is_allowed);
        Self::new_on(proof.map_or(HashKernel::Portable, HashKernel::Sha4x))
    }

    pub(super) fn new_on(kernel: HashKernel) -> Self {
        Self { kernel, blocks: Zeroizing::new([[0; BLOCK_LEN]; LANES]), states: Zeroizing::new([INITIAL; LANES]) }
    }

    /// Replaces each 32 bytes of `data`, and the rest, by the digest of their number, from 0, and themselves. A digest
    /// is cut to what it replaces.
    pub(crate) fn replace(&mut self, data: &mut [u8]) {
        for (group, data) in (0u32..).zip(data.chunks_mut(LANES * DIGEST_LEN)) {
            let first = group * LANES as u32;
            match data.len().div_ceil(DIGEST_LEN) {
                1 => self.replace_group::<1>(first, data),
                2 => self.replace_group::<2>(first, data),
                3 => self.replace_group::<3>(first, data),
                _ => self.replace_group::<LANES>(first, data),
            }
        }
    }

    fn replace_group<const N: usize>(&mut self, first: u32, data: &mut [u8]) {
        let lanes = (self.blocks.first_chunk_mut::<N>(), self.states.first_chunk_mut::<N>());
        let (Some(blocks), Some(states)) = lanes else { unreachable!("there are at most {LANES} lanes") };
        for ((number, block), chunk) in (first..).zip(blocks.iter_mut()).zip(data.chunks(DIGEST_LEN)) {
            let len = NUMBER_LEN + chunk.len();
            block[..NUMBER_LEN].copy_from_slice(&number.to_be_bytes());
            block[NUMBER_LEN..len].copy_from_slice(chunk);
            block[len] = 0x80;
            block[len + 1..BLOCK_LEN - 8].fill(0);
            block[BLOCK_LEN - 8..].copy_from_slice(&(8 * len as u64).to_be_bytes());
        }
        *states = [INITIAL; N];
        compress(self.kernel, states, blocks.each_ref().map(std::slice::from_ref));
        for (chunk, state) in data.chunks_mut(DIGEST_LEN).zip(states) {
            for (bytes, word) in chunk.chunks_mut(4).zip(state) {
                bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
            }
        }
    }
}

impl Drop for NumberedBlocks {
    fn drop(&mut self) {
        scrub_stack::<SCRUB>();
    }
}
