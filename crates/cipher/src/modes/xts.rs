//! XTS (IEEE 1619) over any cipher with blocks of 16 bytes. AES has kernels, in [`crate::aes`].

use super::{BlockCipher, Chain, between_masks};
use crate::block_cipher::Block;

/// XTS under the two halves of a key.
pub(super) struct Xts {
    data: Box<dyn BlockCipher>,
    tweak: Box<dyn BlockCipher>,
}

impl Xts {
    pub(super) fn new(data: Box<dyn BlockCipher>, tweak: Box<dyn BlockCipher>) -> Self {
        assert_eq!(data.block_len(), 16, "XTS is defined for blocks of 16 bytes");
        Self { data, tweak }
    }

    fn run(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize, cipher: impl Fn(&mut [u8])) {
        self.tweak.encrypt_blocks(ivs.as_flattened_mut());
        for (unit, first) in data.chunks_exact_mut(unit_len).zip(ivs) {
            let mut tweak = u128::from_le_bytes(*first);
            let next = || {
                let this = tweak;
                tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
                this.to_le()
            };
            between_masks(unit, next, &cipher);
        }
    }
}

impl Chain for Xts {
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, data, unit_len, |blocks| self.data.encrypt_blocks(blocks));
    }

    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, data, unit_len, |blocks| self.data.decrypt_blocks(blocks));
    }
}
