//! An AES key that encrypts single blocks, as ESSIV does.

use super::kernel;
use super::schedule::Schedule;
use crate::Cipher;
use crate::block_cipher::{Block, BlockCipher, new_block_cipher};
use crate::isa::AesKernel;
use crate::locked_box::LockedBox;

/// An AES key, expanded for a kernel, that encrypts single blocks, as ESSIV needs it.
pub(crate) enum AesKey {
    Portable(Box<dyn BlockCipher>),
    Kernel(AesKernel, LockedBox<Schedule>),
}

impl AesKey {
    /// Expands `key`, which has 16, 24 or 32 bytes.
    pub(crate) fn new(kernel: AesKernel, key: &[u8]) -> Self {
        if kernel == AesKernel::Portable {
            let cipher = new_block_cipher(kernel, Cipher::Aes, key);
            return Self::Portable(cipher.expect("an AES key has 16, 24 or 32 bytes"));
        }
        let mut schedule = LockedBox::new(Schedule::EMPTY);
        schedule.expand(key);
        Self::Kernel(kernel, schedule)
    }

    /// Encrypts each block by itself.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [Block]) {
        match self {
            Self::Portable(cipher) => cipher.encrypt_blocks(blocks.as_flattened_mut()),
            Self::Kernel(kernel, schedule) => kernel::encrypt_blocks(*kernel, schedule, blocks),
        }
    }
}
