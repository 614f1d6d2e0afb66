//! Vectors of 512 bits, with sixteen messages.

use super::super::{Block, State};
use super::lanes::{self, Vector};
use crate::isa::Avx512;
use std::arch::x86_64::*;

/// Messages in a vector.
const LANES: usize = 16;

/// Hashes the same number of blocks into each state.
///
/// # Panics
///
/// Panics unless the numbers of blocks are equal.
pub(in super::super) fn compress(_: Avx512, states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    // SAFETY: the token proves the instructions.
    unsafe { compress_lanes(states, blocks) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn compress_lanes(states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    // SAFETY: this function enables the instructions.
    unsafe { lanes::compress::<Words, LANES>(states, blocks) }
}

#[derive(Clone, Copy)]
struct Words(__m512i);

impl Vector<LANES> for Words {
    #[inline(always)]
    unsafe fn of_blocks(blocks: [&Block; LANES]) -> [Self; 16] {
        // SAFETY: the caller's promise.
        unsafe { transpose(blocks.map(|block| load(block))).map(Self) }
    }

    #[inline(always)]
    unsafe fn of_words(words: [u32; LANES]) -> Self {
        // SAFETY: the caller's promise; the array has 64 bytes, and the load needs no alignment.
        Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn repeat(word: u32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn words(self) -> [u32; LANES] {
        let mut words = [0; LANES];
        // SAFETY: a vector exists; the array has 64 bytes, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) };
        words
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists, here and below.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_ternarylogic_epi32::<0x96>(a.0, b.0, c.0) })
    }

    #[inline(always)]
    fn choice(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_ternarylogic_epi32::<0xca>(a.0, b.0, c.0) })
    }

    #[inline(always)]
    fn majority(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_ternarylogic_epi32::<0xe8>(a.0, b.0, c.0) })
    }

    #[inline(always)]
    fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_ror_epi32::<RIGHT>(self.0) })
    }

    #[inline(always)]
    fn shift<const BITS: i32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_srl_epi32(self.0, _mm_cvtsi32_si128(BITS)) })
    }
}

/// Loads a block as sixteen words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load(block: &Block) -> __m512i {
    // SAFETY: the reference is to 64 bytes; the load needs no alignment.
    let words = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(swap))
}

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for at in (0..LANES).step_by(2) {
        (pairs[at], pairs[at + 1]) =
            (_mm512_unpacklo_epi32(rows[at], rows[at + 1]), _mm512_unpackhi_epi32(rows[at], rows[at + 1]));
    }
    // Each quarter of a vector now has one word of four rows; `quads[4 * group + word]`.
    let mut quads = pairs;
    for group in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (low, high) = (pairs[group + half], pairs[group + 2 + half]);
            quads[group + 2 * half] = _mm512_unpacklo_epi64(low, high);
            quads[group + 2 * half + 1] = _mm512_unpackhi_epi64(low, high);
        }
    }
    // Word `4 * quarter + word` of all rows is in that quarter of the four groups' vectors.
    let mut columns = quads;
    for word in 0..4 {
        let [a, b, c, d] = [quads[word], quads[4 + word], quads[8 + word], quads[12 + word]];
        let (even_ab, odd_ab) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_cd, odd_cd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[word] = _mm512_shuffle_i32x4::<0x88>(even_ab, even_cd);
        columns[4 + word] = _mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd);
        columns[8 + word] = _mm512_shuffle_i32x4::<0xdd>(even_ab, even_cd);
        columns[12 + word] = _mm512_shuffle_i32x4::<0xdd>(odd_ab, odd_cd);
    }
    columns
}
