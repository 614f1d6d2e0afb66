//! Serpent's key schedule, and the words of one block.

use super::sboxes;
use super::words::Words;

/// Rounds of Serpent.
pub(super) const ROUNDS: usize = 32;

/// An expanded key: 32 round keys and the one after the last round.
pub(crate) struct Schedule(pub(super) [[u32; 4]; ROUNDS + 1]);

impl Schedule {
    /// To be filled by [`Schedule::expand`] in place.
    pub(crate) const EMPTY: Self = Self([[0; 4]; ROUNDS + 1]);

    /// Expands `key`, which was padded to 256 bits.
    pub(crate) fn expand(&mut self, key: &[u8; 32]) {
        // The fractional part of the golden ratio.
        const PHI: u32 = 0x9e37_79b9;
        let words = self.0.as_flattened_mut();
        let mut last = [0; 8];
        for (word, bytes) in last.iter_mut().zip(key.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        for (at, word) in (0u32..).zip(words) {
            let mixed = last[0] ^ last[3] ^ last[5] ^ last[7] ^ PHI ^ at;
            *word = mixed.rotate_left(11);
            last.copy_within(1.., 0);
            last[7] = *word;
        }
        zeroize::Zeroize::zeroize(&mut last);
        for (at, key) in self.0.iter_mut().enumerate() {
            *key = substitute_by(*key, (ROUNDS + 3 - at) % 8);
        }
    }
}

/// Applies S-box `number`, which is public.
fn substitute_by(x: [u32; 4], number: usize) -> [u32; 4] {
    match number {
        0 => u32::substitute::<0>(x),
        1 => u32::substitute::<1>(x),
        2 => u32::substitute::<2>(x),
        3 => u32::substitute::<3>(x),
        4 => u32::substitute::<4>(x),
        5 => u32::substitute::<5>(x),
        6 => u32::substitute::<6>(x),
        _ => u32::substitute::<7>(x),
    }
}

/// A word of one block.
impl Words for u32 {
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
    fn xor_word(self, word: u32) -> Self {
        self ^ word
    }
    fn and(self, other: Self) -> Self {
        self & other
    }
    fn or(self, other: Self) -> Self {
        self | other
    }
    fn clear(self, other: Self) -> Self {
        !self & other
    }
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        self.rotate_left(LEFT as u32)
    }
    fn shift_left<const BY: i32>(self) -> Self {
        self << BY
    }
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::substitute::<Self, BOX>(x)
    }
    fn invert<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::invert::<Self, BOX>(x)
    }
}
