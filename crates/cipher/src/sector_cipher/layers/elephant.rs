//! BitLocker's Elephant diffuser (Ferguson, "AES-CBC + Elephant diffuser", 2006): a sector key and two unkeyed
//! diffusers over the plaintext of a unit.

use super::Layer;
use crate::block_cipher::{BlockCipher, new_block_cipher};
use crate::{AesKernel, Cipher, DataUnitSize};

/// The diffuser under an AES key.
pub(crate) struct Elephant {
    aes: Box<dyn BlockCipher>,
    unit: DataUnitSize,
}

/// Rounds and left rotations of the two diffusers.
const A: (usize, [u32; 4]) = (5, [9, 0, 13, 0]);
const B: (usize, [u32; 4]) = (3, [0, 10, 0, 25]);

impl Elephant {
    /// Makes the diffuser of `key`, which has 16, 24 or 32 bytes, as the caller has checked.
    pub(crate) fn new(key: &[u8], unit: DataUnitSize) -> Self {
        Self {
            aes: new_block_cipher(AesKernel::Portable, Cipher::Aes, key).expect("an AES key has 16, 24 or 32 bytes"),
            unit,
        }
    }

    fn add_sector_key(&self, number: u64, unit: &mut [u8]) {
        let mut key = [0; 32];
        let offset = number.wrapping_mul(self.unit.bytes() as u64).to_le_bytes();
        key[..8].copy_from_slice(&offset);
        key[16..24].copy_from_slice(&offset);
        key[31] = 0x80;
        self.aes.encrypt_blocks(&mut key);
        for block in unit.as_chunks_mut::<32>().0 {
            for (byte, with) in block.iter_mut().zip(key) {
                *byte ^= with;
            }
        }
    }
}

impl Layer for Elephant {
    const AROUND_PLAINTEXT: bool = true;

    fn apply(&self, number: u64, unit: &mut [u8]) {
        self.add_sector_key(number, unit);
        let (words, _) = unit.as_chunks_mut::<4>();
        // A power of two, as units are.
        let (count, mask) = (words.len(), words.len() - 1);
        for _ in 0..A.0 {
            for at in (0..count).rev() {
                subtract(words, at, (at + count - 2) & mask, (at + count - 5) & mask, A.1[at % 4]);
            }
        }
        for _ in 0..B.0 {
            for at in (0..count).rev() {
                subtract(words, at, (at + 2) & mask, (at + 5) & mask, B.1[at % 4]);
            }
        }
    }

    fn undo(&self, number: u64, unit: &mut [u8]) {
        let (words, _) = unit.as_chunks_mut::<4>();
        let (count, mask) = (words.len(), words.len() - 1);
        for _ in 0..B.0 {
            for at in 0..count {
                add(words, at, (at + 2) & mask, (at + 5) & mask, B.1[at % 4]);
            }
        }
        for _ in 0..A.0 {
            for at in 0..count {
                add(words, at, (at + count - 2) & mask, (at + count - 5) & mask, A.1[at % 4]);
            }
        }
        self.add_sector_key(number, unit);
    }
}

fn word(words: &[[u8; 4]], at: usize) -> u32 {
    u32::from_le_bytes(words[at])
}

#[inline(always)]
fn add(words: &mut [[u8; 4]], at: usize, near: usize, far: usize, rotate: u32) {
    let with = word(words, near) ^ word(words, far).rotate_left(rotate);
    words[at] = word(words, at).wrapping_add(with).to_le_bytes();
}

#[inline(always)]
fn subtract(words: &mut [[u8; 4]], at: usize, near: usize, far: usize, rotate: u32) {
    let with = word(words, near) ^ word(words, far).rotate_left(rotate);
    words[at] = word(words, at).wrapping_sub(with).to_le_bytes();
}
