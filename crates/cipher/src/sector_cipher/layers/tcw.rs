//! The whitening of old TrueCrypt volumes (`tcw`): eight bytes made of key and number, XORed along the ciphertext of a
//! unit. Its IV is made with the other IVs.

use super::Layer;
use crate::locked_box::LockedBox;

/// Whitening under 16 bytes of key.
pub(crate) struct Tcw {
    key: LockedBox<[u8; 16]>,
}

impl Tcw {
    /// Makes the layer of `key`, which has 16 bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut locked = LockedBox::new([0; 16]);
        locked.copy_from_slice(key);
        Self { key: locked }
    }
}

impl Layer for Tcw {
    const AROUND_PLAINTEXT: bool = false;

    fn apply(&self, number: u64, unit: &mut [u8]) {
        let mixed = u128::from_le_bytes(*self.key) ^ (u128::from(number) << 64 | u128::from(number));
        let sums = [0, 1, 2, 3].map(|word| crc32((mixed >> (32 * word)) as u32));
        let pad = u64::from(sums[0] ^ sums[3]) | u64::from(sums[1] ^ sums[2]) << 32;
        for word in unit.as_chunks_mut::<8>().0 {
            *word = (u64::from_le_bytes(*word) ^ pad).to_le_bytes();
        }
    }

    fn undo(&self, number: u64, unit: &mut [u8]) {
        self.apply(number, unit);
    }
}

/// Computes the CRC-32 of Ethernet over four bytes, from zero and not inverted. Bit by bit, since a table lookup would
/// depend on the key.
fn crc32(word: u32) -> u32 {
    (0..32).fold(word, |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
}
