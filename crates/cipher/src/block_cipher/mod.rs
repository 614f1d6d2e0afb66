//! Block ciphers for the modes: many blocks per call, each by itself, in place.
//!
//! The modes of [`crate::sector_cipher`] that have no kernel of their own are built on this trait. A new cipher is a
//! file or a library, a variant of [`Cipher`] and an arm in [`new_block_cipher`]; its key stays in locked memory and is
//! wiped when dropped.

mod des3;
mod serpent;
#[cfg(test)]
mod tests;
mod twofish;

use self::serpent::Serpent;
use crate::Cipher;
use crate::isa::{AesKernel, WideKernel};
use crate::locked_box::LockedBox;
use ::aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

/// A block of AES, or an IV, of which a cipher with short blocks uses the first bytes.
pub(crate) type Block = [u8; 16];

/// A block cipher under a key.
pub(crate) trait BlockCipher: Send + Sync {
    /// Returns the number of bytes in a block: 8 or 16.
    fn block_len(&self) -> usize;
    /// Encrypts each block by itself. `blocks` is whole blocks; bytes after the last whole one are unchanged.
    fn encrypt_blocks(&self, blocks: &mut [u8]);
    /// Decrypts each block by itself, like [`BlockCipher::encrypt_blocks`].
    fn decrypt_blocks(&self, blocks: &mut [u8]);
}

/// Returns the block cipher of `key`; `None` if `cipher` accepts no key of this length, or is not a block cipher
/// (Adiantum, the null cipher).
///
/// Ciphers without a kernel for the CPU level of `kernel` are portable.
pub(crate) fn new_block_cipher(kernel: AesKernel, cipher: Cipher, key: &[u8]) -> Option<Box<dyn BlockCipher>> {
    if !cipher.key_lens().contains(&key.len()) {
        return None;
    }
    if let (Cipher::Serpent, Some(kernel)) = (cipher, WideKernel::at_level(kernel)) {
        return Some(Box::new(Serpent::new(kernel, &padded_for_serpent(key))));
    }
    match (cipher, key.len()) {
        (Cipher::Aes, 16) => library::<::aes::Aes128>(key),
        (Cipher::Aes, 24) => library::<::aes::Aes192>(key),
        (Cipher::Aes, _) => library::<::aes::Aes256>(key),
        (Cipher::Camellia, 16) => library::<camellia::Camellia128>(key),
        (Cipher::Camellia, 24) => library::<camellia::Camellia192>(key),
        (Cipher::Camellia, _) => library::<camellia::Camellia256>(key),
        (Cipher::Aria, 16) => library::<aria::Aria128>(key),
        (Cipher::Aria, 24) => library::<aria::Aria192>(key),
        (Cipher::Aria, _) => library::<aria::Aria256>(key),
        (Cipher::Serpent, _) => library::<::serpent::Serpent>(&*padded_for_serpent(key)),
        (Cipher::Sm4, _) => library::<sm4::Sm4>(key),
        (Cipher::Blowfish, _) => library::<blowfish::Blowfish>(key),
        (Cipher::Cast5, _) => library::<cast5::Cast5>(key),
        (Cipher::Cast6, _) => library::<cast6::Cast6>(key),
        (Cipher::Twofish, _) => Some(Box::new(twofish::Twofish::new(key))),
        (Cipher::Des3, _) => Some(Box::new(des3::Des3::new(key))),
        (Cipher::Adiantum { .. } | Cipher::Null, _) => None,
    }
}

/// Applies Serpent's own padding to 256 bits, a one and zeroes. It extends keys to a length that the library accepts.
fn padded_for_serpent(key: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut padded = Zeroizing::new([0; 32]);
    padded[..key.len()].copy_from_slice(key);
    if let Some(next) = padded.get_mut(key.len()) {
        *next = 1;
    }
    padded
}

/// A cipher from one of the RustCrypto libraries, which share their traits.
struct Library<C>(LockedBox<C>);

fn library<C>(key: &[u8]) -> Option<Box<dyn BlockCipher>>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync + 'static,
{
    Some(Box::new(Library(LockedBox::new(C::new_from_slice(key).ok()?))))
}

impl<C: BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync> BlockCipher for Library<C> {
    fn block_len(&self) -> usize {
        C::block_size()
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        self.0.encrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        self.0.decrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }
}
