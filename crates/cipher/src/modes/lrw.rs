//! LRW-32 (IEEE P1619's draft before XTS): each block is masked with its index times a secret, in GF(2^128).
//!
//! The IV is the index of the unit's first block, big-endian. Indices are public, so branches may depend on them.

use super::{BlockCipher, Chain, between_masks};
use crate::block_cipher::Block;
use crate::locked_box::LockedBox;

/// LRW under a cipher's key and a tweak key of 16 bytes.
pub(super) struct Lrw {
    data: Box<dyn BlockCipher>,
    /// At `n`, the tweak key times the number with its `n + 1` low bits set: the change of the mask if a count carries
    /// through `n` bits.
    steps: LockedBox<[u128; 128]>,
}

impl Lrw {
    pub(super) fn new(data: Box<dyn BlockCipher>, tweak_key: &[u8; 16]) -> Self {
        assert_eq!(data.block_len(), 16, "LRW is defined for blocks of 16 bytes");
        let mut steps = LockedBox::new([0; 128]);
        steps[0] = u128::from_be_bytes(*tweak_key);
        for bit in 1..128 {
            // Times x, plus the key.
            steps[bit] = (steps[bit - 1] << 1) ^ ((steps[bit - 1] >> 127) * 0x87) ^ steps[0];
        }
        Self { data, steps }
    }

    /// Returns the tweak key times `index`.
    fn mask(&self, index: u128) -> u128 {
        let power = |bit: usize| if bit == 0 { self.steps[0] } else { self.steps[bit] ^ self.steps[bit - 1] };
        (0..128).filter(|bit| index >> bit & 1 == 1).fold(0, |mask, bit| mask ^ power(bit))
    }

    fn run(&self, ivs: &[Block], data: &mut [u8], unit_len: usize, cipher: impl Fn(&mut [u8])) {
        for (unit, first) in data.chunks_exact_mut(unit_len).zip(ivs) {
            let mut index = u128::from_be_bytes(*first);
            let mut mask = self.mask(index);
            let next = || {
                let this = mask;
                mask ^= self.steps[(index.trailing_ones() as usize).min(127)];
                index = index.wrapping_add(1);
                this.to_be()
            };
            between_masks(unit, next, &cipher);
        }
    }
}

impl Chain for Lrw {
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, data, unit_len, |blocks| self.data.encrypt_blocks(blocks));
    }

    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, data, unit_len, |blocks| self.data.decrypt_blocks(blocks));
    }
}
