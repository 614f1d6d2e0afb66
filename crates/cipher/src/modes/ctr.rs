//! Counter mode over any block cipher: the IV is a unit's first counter, big-endian over the whole block.

use super::{BlockCipher, Chain, RUN, xor};
use crate::block_cipher::Block;
use zeroize::Zeroize;

/// Counter mode under a key.
pub(super) struct Ctr(Box<dyn BlockCipher>);

impl Ctr {
    pub(super) fn new(cipher: Box<dyn BlockCipher>) -> Self {
        Self(cipher)
    }
}

impl Chain for Ctr {
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        let block_len = self.0.block_len();
        let mut room = [0; RUN * 16];
        for (unit, iv) in data.chunks_exact_mut(unit_len).zip(ivs) {
            // Shorter blocks use the upper bytes, so their carry is lost.
            let one = 1u128 << (128 - 8 * block_len);
            let mut counter = u128::from_be_bytes(*iv);
            for run in unit.chunks_mut(RUN * block_len) {
                let stream = &mut room[..run.len()];
                for block in stream.chunks_exact_mut(block_len) {
                    block.copy_from_slice(&counter.to_be_bytes()[..block_len]);
                    counter = counter.wrapping_add(one);
                }
                self.0.encrypt_blocks(stream);
                xor(run, stream);
            }
        }
        room.zeroize();
    }

    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.encrypt(ivs, data, unit_len);
    }
}
