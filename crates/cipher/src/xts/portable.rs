//! AES for any processor: the `aes` crate, which is constant time everywhere (bit-sliced, several blocks at a time,
//! where the processor has no AES instructions).

use super::any_cipher::BlockCipher;
use crate::aes::Block;
use crate::locked::LockedBox;
use ::aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit, consts::U16};
use ::aes::{Aes128, Aes192, Aes256};

/// AES under a key of any of its lengths.
pub(crate) enum PortableAes {
    Aes128(LockedBox<Aes128>),
    Aes192(LockedBox<Aes192>),
    Aes256(LockedBox<Aes256>),
}

impl PortableAes {
    /// Expands `key`, which has 16, 24 or 32 bytes: the caller has checked it against the specification.
    pub(crate) fn new(key: &[u8]) -> Self {
        const CHECKED: &str = "an AES key has 16, 24 or 32 bytes";
        match key.len() {
            16 => Self::Aes128(LockedBox::new(Aes128::new_from_slice(key).expect(CHECKED))),
            24 => Self::Aes192(LockedBox::new(Aes192::new_from_slice(key).expect(CHECKED))),
            _ => Self::Aes256(LockedBox::new(Aes256::new_from_slice(key).expect(CHECKED))),
        }
    }
}

fn encrypt<C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>>(cipher: &C, blocks: &mut [Block]) {
    cipher.encrypt_blocks(Array::cast_slice_from_core_mut(blocks));
}

fn decrypt<C: BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>>(cipher: &C, blocks: &mut [Block]) {
    cipher.decrypt_blocks(Array::cast_slice_from_core_mut(blocks));
}

impl BlockCipher for PortableAes {
    fn encrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Aes128(cipher) => encrypt(&**cipher, blocks),
            Self::Aes192(cipher) => encrypt(&**cipher, blocks),
            Self::Aes256(cipher) => encrypt(&**cipher, blocks),
        }
    }

    fn decrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Aes128(cipher) => decrypt(&**cipher, blocks),
            Self::Aes192(cipher) => decrypt(&**cipher, blocks),
            Self::Aes256(cipher) => decrypt(&**cipher, blocks),
        }
    }
}

/// Independent blocks through the cipher, `iterations` times; gives back the bytes that went through.
pub(super) fn limit(key_bits: usize, iterations: usize) -> u64 {
    let cipher = PortableAes::new(&[0x5a; 32][..key_bits / 8]);
    let mut blocks = [[0x5a; 16]; 32];
    for _ in 0..iterations {
        cipher.encrypt(&mut blocks);
    }
    std::hint::black_box(&blocks);
    (iterations * blocks.as_flattened().len()) as u64
}
