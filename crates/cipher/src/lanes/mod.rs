//! Hashes of as many messages at a time as a vector has words: a vector has the same word of each.
//!
//! A hash is written once, for any [`Vector`]; it is a [`Job`] that the entry points of `avx2` and `avx512` run.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod blake2b;
pub(crate) mod sha2;

/// Words of hashes.
pub(crate) trait Word: Copy + 'static {
    /// A block of the compression function: sixteen words.
    type Block: 'static;
}

impl Word for u32 {
    type Block = [u8; 64];
}

impl Word for u64 {
    type Block = [u8; 128];
}

/// A vector of a word of `N` messages. A value exists only where its instructions do; the functions that make one need
/// them.
///
/// # Safety
/// The instructions of the implementation are there.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Vector<const N: usize>: Copy {
    type Word: Word;

    /// Returns the words of the blocks, each in one vector. They are stored with the highest byte first, or the lowest.
    unsafe fn of_blocks<const HIGHEST_FIRST: bool>(blocks: [&<Self::Word as Word>::Block; N]) -> [Self; 16];
    unsafe fn of_words(words: [Self::Word; N]) -> Self;
    unsafe fn repeat(word: Self::Word) -> Self;
    fn words(self) -> [Self::Word; N];
    fn add(self, other: Self) -> Self;
    fn xor_with(self, other: Self) -> Self;
    /// Returns the exclusive or of three vectors.
    fn xor(a: Self, b: Self, c: Self) -> Self;
    /// Returns the bits of `b` where those of `a` are set, else those of `c`.
    fn choice(a: Self, b: Self, c: Self) -> Self;
    /// Returns the bits that are set in at least two.
    fn majority(a: Self, b: Self, c: Self) -> Self;
    /// Rotates words by `RIGHT` bits to the right, which are `LEFT` to the left.
    fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self;
    /// Shifts words by `BITS` bits to the right.
    fn shift<const BITS: i32>(self) -> Self;
}

/// A computation with vectors of words `W` of `N` messages.
pub(crate) trait Job<W, const N: usize> {
    /// Runs the computation. Implementations are inlined, to be compiled for the instructions of the caller.
    ///
    /// # Safety
    /// The instructions of `V` are there.
    unsafe fn run<V: Vector<N, Word = W>>(self);
}
