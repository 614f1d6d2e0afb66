//! ECB over any block cipher: each block by itself, without IV.

use super::{BlockCipher, Chain};
use crate::block_cipher::Block;

/// ECB under a key.
pub(super) struct Ecb(Box<dyn BlockCipher>);

impl Ecb {
    pub(super) fn new(cipher: Box<dyn BlockCipher>) -> Self {
        Self(cipher)
    }
}

impl Chain for Ecb {
    fn encrypt(&self, _: &mut [Block], data: &mut [u8], _: usize) {
        self.0.encrypt_blocks(data);
    }

    fn decrypt(&self, _: &mut [Block], data: &mut [u8], _: usize) {
        self.0.decrypt_blocks(data);
    }
}
