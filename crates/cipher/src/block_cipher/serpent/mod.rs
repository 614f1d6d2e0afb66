//! Serpent (Anderson, Biham and Knudsen, "Serpent: A Proposal for the Advanced Encryption Standard", 1998), bitsliced
//! in words of 32 bits: many blocks at a time. Constant time.
//!
//! The portable kernel is the `serpent` crate. Another kernel is a vector with [`words::Words`] and its entry points.

#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

mod rounds;
mod sboxes;
mod schedule;
#[cfg(test)]
mod tests;
mod words;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector instructions, behind proof tokens.
mod x86_64;

use super::{Block, BlockCipher};
use crate::isa::WideKernel;
use crate::locked_box::LockedBox;
use schedule::Schedule;

/// Serpent under a key, on a vector kernel.
pub(crate) struct Serpent {
    kernel: WideKernel,
    keys: LockedBox<Schedule>,
}

impl Serpent {
    /// Expands `key`, which was padded to 256 bits.
    pub(crate) fn new(kernel: WideKernel, key: &[u8; 32]) -> Self {
        let mut keys = LockedBox::new(Schedule::EMPTY);
        keys.expand(key);
        Self { kernel, keys }
    }
}

impl BlockCipher for Serpent {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        run(self.kernel, &self.keys, blocks.as_chunks_mut().0, true);
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        run(self.kernel, &self.keys, blocks.as_chunks_mut().0, false);
    }
}

fn run(kernel: WideKernel, keys: &Schedule, blocks: &mut [Block], encrypt: bool) {
    // A chain has one block at a time, for which AVX2 takes longer than words of the language do.
    if let (WideKernel::Avx2(_), [block]) = (kernel, &mut *blocks) {
        return run_one(keys, block, encrypt);
    }
    #[cfg(target_arch = "x86_64")]
    match (kernel, encrypt) {
        (WideKernel::Avx2(proof), true) => x86_64::Avx2Kernel::encrypt_blocks(proof, keys, blocks),
        (WideKernel::Avx2(proof), false) => x86_64::Avx2Kernel::decrypt_blocks(proof, keys, blocks),
        (WideKernel::Avx512(proof), true) => x86_64::Avx512Kernel::encrypt_blocks(proof, keys, blocks),
        (WideKernel::Avx512(proof), false) => x86_64::Avx512Kernel::decrypt_blocks(proof, keys, blocks),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no vector kernel on this architecture: {kernel:?} {encrypt} {}", blocks.len());
}

fn run_one(keys: &Schedule, block: &mut Block, encrypt: bool) {
    let bytes = block.as_chunks_mut::<4>().0;
    let mut words = [[0; 4]];
    for (word, bytes) in words[0].iter_mut().zip(&*bytes) {
        *word = u32::from_le_bytes(*bytes);
    }
    if encrypt {
        rounds::encrypt(keys, &mut words);
    } else {
        rounds::decrypt(keys, &mut words);
    }
    for (bytes, word) in bytes.iter_mut().zip(words[0]) {
        *bytes = word.to_le_bytes();
    }
}
