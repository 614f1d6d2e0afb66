//! Every block cipher one block at a time, from a library that shares no code with this crate's own implementations.

use crate::Cipher;
use ::aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// A block cipher under a key.
pub(crate) struct NaiveBlocks(Box<dyn OneBlock>);

trait OneBlock {
    fn len(&self) -> usize;
    fn encrypt(&self, block: &mut [u8]);
    fn decrypt(&self, block: &mut [u8]);
}

impl<C: BlockCipherEncrypt + BlockCipherDecrypt> OneBlock for C {
    fn len(&self) -> usize {
        C::block_size()
    }

    fn encrypt(&self, block: &mut [u8]) {
        self.encrypt_block(<&mut Array<u8, C::BlockSize>>::try_from(block).unwrap());
    }

    fn decrypt(&self, block: &mut [u8]) {
        self.decrypt_block(<&mut Array<u8, C::BlockSize>>::try_from(block).unwrap());
    }
}

impl NaiveBlocks {
    /// Makes the cipher. Panics if `cipher` accepts no such key, or is not a block cipher.
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Self {
        fn made<C: OneBlock + KeyInit + 'static>(key: &[u8]) -> Box<dyn OneBlock> {
            Box::new(C::new_from_slice(key).unwrap())
        }
        Self(match (cipher, key.len()) {
            (Cipher::Aes, 16) => made::<::aes::Aes128>(key),
            (Cipher::Aes, 24) => made::<::aes::Aes192>(key),
            (Cipher::Aes, _) => made::<::aes::Aes256>(key),
            (Cipher::Serpent, 16..) => made::<serpent::Serpent>(key),
            // The library accepts no shorter key, but the cipher pads each to 256 bits with a one and zeroes.
            (Cipher::Serpent, _) => made::<serpent::Serpent>(&[key, &[1], &[0; 32]].concat()[..32]),
            (Cipher::Twofish, _) => made::<twofish::Twofish>(key),
            (Cipher::Camellia, 16) => made::<camellia::Camellia128>(key),
            (Cipher::Camellia, 24) => made::<camellia::Camellia192>(key),
            (Cipher::Camellia, _) => made::<camellia::Camellia256>(key),
            (Cipher::Aria, 16) => made::<aria::Aria128>(key),
            (Cipher::Aria, 24) => made::<aria::Aria192>(key),
            (Cipher::Aria, _) => made::<aria::Aria256>(key),
            (Cipher::Sm4, _) => made::<sm4::Sm4>(key),
            (Cipher::Des3, _) => made::<des::TdesEde3>(key),
            (Cipher::Blowfish, _) => made::<blowfish::Blowfish>(key),
            (Cipher::Cast5, _) => made::<cast5::Cast5>(key),
            (Cipher::Cast6, _) => made::<cast6::Cast6>(key),
            (Cipher::Adiantum { .. } | Cipher::Null, _) => panic!("{cipher:?} is not a block cipher"),
        })
    }

    /// Returns the block length in bytes, 8 or 16.
    pub(crate) fn block_len(&self) -> usize {
        self.0.len()
    }

    /// Encrypts one block.
    pub(crate) fn encrypt(&self, block: &mut [u8]) {
        self.0.encrypt(block);
    }

    /// Decrypts one block.
    pub(crate) fn decrypt(&self, block: &mut [u8]) {
        self.0.decrypt(block);
    }
}
