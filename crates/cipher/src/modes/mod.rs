//! Chain modes over any block cipher, for ciphers, modes and CPUs without a kernel.
//!
//! A mode is a [`Chain`]: it processes a batch of data units in place, with the IV of each. Each call of the block
//! cipher gets as many blocks as possible, of several units if a unit is a chain.

mod adiantum;
mod cbc;
mod ctr;
mod ecb;
mod lrw;
mod xts;

use crate::block_cipher::{Block, BlockCipher, new_block_cipher};
use crate::isa::{AesKernel, WideKernel};
use crate::{ChainMode, Cipher};
use adiantum::Adiantum;

/// A chain mode under a key.
pub(crate) trait Chain: Send + Sync {
    /// Encrypts units of `unit_len` bytes, whole blocks of the cipher, one for each of `ivs`, which are overwritten. A
    /// cipher with short blocks uses the first bytes of an IV.
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize);
    /// Decrypts, like [`Chain::encrypt`].
    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize);
}

/// Returns the chain of `mode` over `cipher` under `key`; `None` if they, or the key's length, do not fit together.
pub(crate) fn new_chain(kernel: AesKernel, cipher: Cipher, mode: ChainMode, key: &[u8]) -> Option<Box<dyn Chain>> {
    Some(match mode {
        ChainMode::Xts => {
            let (data, tweak) = key.split_at_checked(key.len() / 2)?;
            Box::new(xts::Xts::new(new_block_cipher(kernel, cipher, data)?, new_block_cipher(kernel, cipher, tweak)?))
        }
        ChainMode::Lrw => {
            let (data, tweak) = key.split_last_chunk::<16>()?;
            Box::new(lrw::Lrw::new(new_block_cipher(kernel, cipher, data)?, tweak))
        }
        ChainMode::Cbc => Box::new(cbc::Cbc::new(new_block_cipher(kernel, cipher, key)?)),
        ChainMode::Ecb => Box::new(ecb::Ecb::new(new_block_cipher(kernel, cipher, key)?)),
        ChainMode::Ctr => Box::new(ctr::Ctr::new(new_block_cipher(kernel, cipher, key)?)),
        ChainMode::Adiantum => {
            let Cipher::Adiantum { rounds } = cipher else { return None };
            Box::new(Adiantum::new(WideKernel::at_level(kernel), key.try_into().ok()?, rounds))
        }
    })
}

/// Number of blocks of one unit that a mode passes to the cipher at a time.
const RUN: usize = 32;

/// XORs `with` to `data`, up to the end of the shorter one.
fn xor(data: &mut [u8], with: &[u8]) {
    for (byte, with) in data.iter_mut().zip(with) {
        *byte ^= with;
    }
}

/// Runs `cipher` over `data` between two XORs with `masks`, 16 bytes a block: the core of XTS and LRW.
fn between_masks(data: &mut [u8], mut next_mask: impl FnMut() -> u128, mut cipher: impl FnMut(&mut [u8])) {
    let mut masks = [[0; 16]; RUN];
    for run in data.chunks_mut(RUN * 16) {
        for mask in &mut masks[..run.len() / 16] {
            *mask = next_mask().to_ne_bytes();
        }
        xor(run, masks.as_flattened());
        cipher(run);
        xor(run, masks.as_flattened());
    }
}
