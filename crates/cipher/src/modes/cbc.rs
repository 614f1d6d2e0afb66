//! CBC over any block cipher, each unit a chain. Encryption runs several units in parallel. AES has kernels, in
//! [`crate::aes`].

use super::{BlockCipher, Chain, RUN, xor};
use crate::block_cipher::Block;

/// CBC under a key.
pub(super) struct Cbc(Box<dyn BlockCipher>);

/// Number of units in parallel: as many lines as a small cache keeps if units are a power of two apart.
const SIDE_BY_SIDE: usize = 8;

impl Cbc {
    pub(super) fn new(cipher: Box<dyn BlockCipher>) -> Self {
        Self(cipher)
    }
}

impl Chain for Cbc {
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        let block_len = self.0.block_len();
        let mut room = [0; SIDE_BY_SIDE * 16];
        for (ivs, units) in ivs.chunks(SIDE_BY_SIDE).zip(data.chunks_mut(SIDE_BY_SIDE * unit_len)) {
            let chains = &mut room[..ivs.len() * block_len];
            for (chain, iv) in chains.chunks_exact_mut(block_len).zip(ivs) {
                chain.copy_from_slice(&iv[..block_len]);
            }
            for at in (0..unit_len).step_by(block_len) {
                for (chain, unit) in chains.chunks_exact_mut(block_len).zip(units.chunks_exact(unit_len)) {
                    xor(chain, &unit[at..]);
                }
                self.0.encrypt_blocks(chains);
                for (chain, unit) in chains.chunks_exact(block_len).zip(units.chunks_exact_mut(unit_len)) {
                    unit[at..at + block_len].copy_from_slice(chain);
                }
            }
        }
    }

    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        let block_len = self.0.block_len();
        let mut room = [0; (RUN + 1) * 16];
        for (unit, iv) in data.chunks_exact_mut(unit_len).zip(ivs) {
            room[..block_len].copy_from_slice(&iv[..block_len]);
            for run in unit.chunks_mut(RUN * block_len) {
                // A copy of the ciphertext, one block later.
                room[block_len..][..run.len()].copy_from_slice(run);
                self.0.decrypt_blocks(run);
                xor(run, &room);
                room.copy_within(run.len()..run.len() + block_len, 0);
            }
        }
    }
}
