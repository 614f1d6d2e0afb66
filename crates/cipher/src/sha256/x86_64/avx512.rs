//! The compression function on sixteen messages: a vector has the same word of each.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::super::{Block, State};
use super::ROUND_CONSTANTS;
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

/// Returns the exclusive or of three vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn xor(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0x96>(a, b, c)
}

/// Replaces word `AT` of the last sixteen of the schedule by that of sixteen rounds later.
#[inline]
#[target_feature(enable = "avx512f")]
fn extend_schedule<const AT: usize>(schedule: &mut [__m512i; 16]) {
    let (w15, w2) = (schedule[(AT + 1) % 16], schedule[(AT + 14) % 16]);
    let small0 = xor(_mm512_ror_epi32::<7>(w15), _mm512_ror_epi32::<18>(w15), _mm512_srli_epi32::<3>(w15));
    let small1 = xor(_mm512_ror_epi32::<17>(w2), _mm512_ror_epi32::<19>(w2), _mm512_srli_epi32::<10>(w2));
    let sum = _mm512_add_epi32(schedule[AT], schedule[(AT + 9) % 16]);
    schedule[AT] = _mm512_add_epi32(_mm512_add_epi32(sum, small0), small1);
}

/// Runs round `AT` of sixteen. Word `n` of the state, a to h, is at `n - AT` of the array.
#[inline]
#[target_feature(enable = "avx512f")]
fn round<const AT: usize>(state: &mut [__m512i; 8], scheduled: __m512i, constant: u32) {
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|word| state[(word + 16 - AT) % 8]);
    let sum1 = xor(_mm512_ror_epi32::<6>(e), _mm512_ror_epi32::<11>(e), _mm512_ror_epi32::<25>(e));
    let choice = _mm512_ternarylogic_epi32::<0xca>(e, f, g);
    let scheduled = _mm512_add_epi32(scheduled, _mm512_set1_epi32(constant.cast_signed()));
    let first = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(h, scheduled), choice), sum1);
    let sum0 = xor(_mm512_ror_epi32::<2>(a), _mm512_ror_epi32::<13>(a), _mm512_ror_epi32::<22>(a));
    let majority = _mm512_ternarylogic_epi32::<0xe8>(a, b, c);
    state[(3 + 16 - AT) % 8] = _mm512_add_epi32(d, first);
    state[(7 + 16 - AT) % 8] = _mm512_add_epi32(first, _mm512_add_epi32(sum0, majority));
}

#[target_feature(enable = "avx512f,avx512bw")]
fn compress_lanes(states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    let count = blocks[0].len();
    assert!(blocks.iter().all(|blocks| blocks.len() == count), "messages have the same number of blocks");
    let mut state: [__m512i; 8] = std::array::from_fn(|word| {
        let lanes: [i32; LANES] = std::array::from_fn(|lane| states[lane][word].cast_signed());
        // SAFETY: the array has 64 bytes; the load needs no alignment.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    });
    for at in 0..count {
        let start = state;
        let mut schedule = transpose(std::array::from_fn(|lane| load(&blocks[lane][at])));
        for (group, constants) in ROUND_CONSTANTS.as_chunks::<4>().0.iter().enumerate() {
            let constants = constants.as_flattened();
            macro_rules! sixteen_rounds {
                ($($at:literal)*) => { $(
                    if group > 0 {
                        extend_schedule::<$at>(&mut schedule);
                    }
                    round::<$at>(&mut state, schedule[$at], constants[$at]);
                )* };
            }
            sixteen_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        for (word, start) in state.iter_mut().zip(start) {
            *word = _mm512_add_epi32(*word, start);
        }
    }
    for (word, vector) in state.iter().enumerate() {
        let mut lanes = [0u32; LANES];
        // SAFETY: the array has 64 bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), *vector) };
        states.iter_mut().zip(lanes).for_each(|(state, value)| state[word] = value);
    }
}
