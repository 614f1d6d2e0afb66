//! Vectors of 256 bits, with eight messages.

use super::super::{Block, State};
use super::lanes::{self, Vector};
use crate::isa::Avx2;
use std::arch::x86_64::*;

/// Messages in a vector.
const LANES: usize = 8;

/// Hashes the same number of blocks into each state.
///
/// # Panics
///
/// Panics unless the numbers of blocks are equal.
pub(in super::super) fn compress(_: Avx2, states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    // SAFETY: the token proves the instructions.
    unsafe { compress_lanes(states, blocks) }
}

#[target_feature(enable = "avx2")]
fn compress_lanes(states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    // SAFETY: this function enables the instructions.
    unsafe { lanes::compress::<Words, LANES>(states, blocks) }
}

#[derive(Clone, Copy)]
struct Words(__m256i);

impl Vector<LANES> for Words {
    #[inline(always)]
    unsafe fn of_blocks(blocks: [&Block; LANES]) -> [Self; 16] {
        // SAFETY: the caller's promise.
        let (low, high) =
            unsafe { (transpose(blocks.map(|block| load(block, 0))), transpose(blocks.map(|block| load(block, 1)))) };
        std::array::from_fn(|word| Self(if word < LANES { low[word] } else { high[word - LANES] }))
    }

    #[inline(always)]
    unsafe fn of_words(words: [u32; LANES]) -> Self {
        // SAFETY: the caller's promise; the array has 32 bytes, and the load needs no alignment.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn repeat(word: u32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn words(self) -> [u32; LANES] {
        let mut words = [0; LANES];
        // SAFETY: a vector exists; the array has 32 bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        words
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists, here and below.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_xor_si256(_mm256_xor_si256(a.0, b.0), c.0) })
    }

    #[inline(always)]
    fn choice(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_xor_si256(_mm256_and_si256(_mm256_xor_si256(b.0, c.0), a.0), c.0) })
    }

    #[inline(always)]
    fn majority(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_or_si256(_mm256_and_si256(a.0, b.0), _mm256_and_si256(_mm256_or_si256(a.0, b.0), c.0)) })
    }

    #[inline(always)]
    fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_or_si256(_mm256_srli_epi32::<RIGHT>(self.0), _mm256_slli_epi32::<LEFT>(self.0)) })
    }

    #[inline(always)]
    fn shift<const BITS: i32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_srli_epi32::<BITS>(self.0) })
    }
}

/// Loads eight words of a block: half `at`.
#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &Block, at: usize) -> __m256i {
    let bytes: &[u8; 32] = &block.as_chunks().0[at];
    // SAFETY: the reference is to 32 bytes; the load needs no alignment.
    let words = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(swap))
}

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let mut columns = rows;
    for half in 0..2 {
        let [a, b, c, d] = std::array::from_fn(|row| rows[4 * half + row]);
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        columns[4 * half] = _mm256_unpacklo_epi64(ab, cd);
        columns[4 * half + 1] = _mm256_unpackhi_epi64(ab, cd);
        columns[4 * half + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
        columns[4 * half + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
    }
    // Each half of a vector now has one word of four rows: `word`, and in the second half `4 + word`.
    std::array::from_fn(|word| {
        let (first, second) = (columns[word % 4], columns[4 + word % 4]);
        if word < 4 {
            _mm256_permute2x128_si256::<0x20>(first, second)
        } else {
            _mm256_permute2x128_si256::<0x31>(first, second)
        }
    })
}
