//! Words of 32 bits of one or more blocks, on which Serpent's rounds work: bit `n` of each of four words is an input of
//! an S-box.
//!
//! The operations are safe although they are vector instructions: a vector exists only where its instructions do.

/// Vector with the same word of each of several blocks.
pub(super) trait Words: Copy {
    fn xor(self, other: Self) -> Self;
    /// XORs `word` to that of every block.
    fn xor_word(self, word: u32) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Returns the bits of `other` that are clear in `self`.
    fn clear(self, other: Self) -> Self;
    /// Rotates left by `LEFT`, where `RIGHT` is 32 less `LEFT`.
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    fn shift_left<const BY: i32>(self) -> Self;

    #[inline(always)]
    fn not(self) -> Self {
        self.xor_word(!0)
    }

    #[inline(always)]
    fn xor3(self, second: Self, third: Self) -> Self {
        self.xor(second).xor(third)
    }

    /// Applies S-box `BOX`.
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4];
    /// Applies the inverse of S-box `BOX`.
    fn invert<const BOX: usize>(x: [Self; 4]) -> [Self; 4];
}

/// Words with an instruction for every function of three inputs.
pub(super) trait Lookup: Words {
    /// Returns the function with the truth table `TABLE`, whose index has the bit of `self` first.
    fn lookup<const TABLE: i32>(self, second: Self, third: Self) -> Self;
}
