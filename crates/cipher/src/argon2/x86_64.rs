//! The compression function on vectors of 256 and 512 bits.
//!
//! A row of sixteen words is four vectors of four words, a to d, which are BLAKE2b's columns; a vector of 512 bits has
//! those of two rows. Columns of the block are pairs of words, so the lanes of 128 bits are rearranged between the two
//! halves of the function, and after it.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::block::{Block, WORDS};
use std::arch::x86_64::*;

/// The CPU and its operating system have AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The CPU and its operating system have AVX-512 F.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub(super) fn compress<const XOR: bool>(self, previous: &Block, reference: &Block, next: &mut Block) {
        // SAFETY: the token proves the instructions.
        unsafe { compress_256::<XOR>(previous, reference, next) }
    }
}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    pub(super) fn compress<const XOR: bool>(self, previous: &Block, reference: &Block, next: &mut Block) {
        // SAFETY: the token proves the instructions.
        unsafe { compress_512::<XOR>(previous, reference, next) }
    }
}

/// Loads vector `at` of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn load_256(block: &Block, at: usize) -> __m256i {
    let words: &[u64; 4] = &block.as_chunks().0[at];
    // SAFETY: the reference is to 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_256(block: &mut Block, at: usize, value: __m256i) {
    let words: &mut [u64; 4] = &mut block.as_chunks_mut().0[at];
    // SAFETY: as in `load_256`, and the reference is exclusive.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(block: &Block, at: usize) -> __m512i {
    let words: &[u64; 8] = &block.as_chunks().0[at];
    // SAFETY: the reference is to 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_512(block: &mut Block, at: usize, value: __m512i) {
    let words: &mut [u64; 8] = &mut block.as_chunks_mut().0[at];
    // SAFETY: as in `load_512`, and the reference is exclusive.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), value) }
}

/// Runs the permutation on two rows in each of `N` groups of vectors, step by step for all groups, which hides latency.
macro_rules! permute {
    ($name:ident, $vector:ty, $feature:literal, $add:ident, $xor:ident, $mul:ident, $turn:ident, $rotate:ident) => {
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name<const N: usize>(groups: &mut [[$vector; 4]; N]) {
            #[inline]
            #[target_feature(enable = $feature)]
            fn mix<const N: usize, const TO_D: i32, const TO_B: i32>(groups: &mut [[$vector; 4]; N]) {
                #[inline]
                #[target_feature(enable = $feature)]
                fn add(a: $vector, b: $vector) -> $vector {
                    let product = $mul(a, b);
                    $add($add(a, b), $add(product, product))
                }
                for [a, b, ..] in groups.iter_mut() {
                    *a = add(*a, *b);
                }
                for [a, _, _, d] in groups.iter_mut() {
                    *d = $rotate::<TO_D>($xor(*d, *a));
                }
                for [_, _, c, d] in groups.iter_mut() {
                    *c = add(*c, *d);
                }
                for [_, b, c, _] in groups.iter_mut() {
                    *b = $rotate::<TO_B>($xor(*b, *c));
                }
            }
            mix::<N, 32, 24>(groups);
            mix::<N, 16, 63>(groups);
            for [_, b, c, d] in groups.iter_mut() {
                (*b, *c, *d) = ($turn::<0b00_11_10_01>(*b), $turn::<0b01_00_11_10>(*c), $turn::<0b10_01_00_11>(*d));
            }
            mix::<N, 32, 24>(groups);
            mix::<N, 16, 63>(groups);
            for [_, b, c, d] in groups.iter_mut() {
                (*b, *c, *d) = ($turn::<0b10_01_00_11>(*b), $turn::<0b01_00_11_10>(*c), $turn::<0b00_11_10_01>(*d));
            }
        }
    };
}

permute!(
    permute_256,
    __m256i,
    "avx2",
    _mm256_add_epi64,
    _mm256_xor_si256,
    _mm256_mul_epu32,
    _mm256_permute4x64_epi64,
    rotate_256
);
permute!(
    permute_512,
    __m512i,
    "avx512f",
    _mm512_add_epi64,
    _mm512_xor_si512,
    _mm512_mul_epu32,
    _mm512_permutex_epi64,
    _mm512_ror_epi64
);

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_256<const RIGHT: i32>(value: __m256i) -> __m256i {
    match RIGHT {
        32 => _mm256_shuffle_epi32::<0b10_11_00_01>(value),
        24 => {
            let bytes = _mm256_set1_epi64x(0x0201000706050403);
            _mm256_shuffle_epi8(
                value,
                _mm256_add_epi64(bytes, _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0)),
            )
        }
        16 => {
            let bytes = _mm256_set1_epi64x(0x0100070605040302);
            _mm256_shuffle_epi8(
                value,
                _mm256_add_epi64(bytes, _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0)),
            )
        }
        63 => _mm256_xor_si256(_mm256_add_epi64(value, value), _mm256_srli_epi64::<63>(value)),
        _ => unreachable!("BLAKE2b has four rotations"),
    }
}

#[target_feature(enable = "avx2")]
fn compress_256<const XOR: bool>(previous: &Block, reference: &Block, next: &mut Block) {
    let mut state = [0; WORDS];
    for rows in 0..4 {
        let at = |row: usize, vector: usize| 8 * rows + 4 * row + vector;
        let mut groups = [[_mm256_setzero_si256(); 4]; 2];
        for (row, group) in groups.iter_mut().enumerate() {
            for (vector, word) in group.iter_mut().enumerate() {
                let at = at(row, vector);
                *word = _mm256_xor_si256(load_256(previous, at), load_256(reference, at));
            }
        }
        permute_256(&mut groups);
        for (row, group) in groups.iter().enumerate() {
            for (vector, word) in group.iter().enumerate() {
                store_256(&mut state, at(row, vector), *word);
            }
        }
    }
    for columns in 0..4 {
        // Lanes of two rows are exchanged: two columns of pairs, then back.
        let mut groups = [[_mm256_setzero_si256(); 4]; 2];
        for vector in 0..4 {
            let (even, odd) = (load_256(&state, 8 * vector + columns), load_256(&state, 8 * vector + 4 + columns));
            groups[0][vector] = _mm256_permute2x128_si256::<0x20>(even, odd);
            groups[1][vector] = _mm256_permute2x128_si256::<0x31>(even, odd);
        }
        permute_256(&mut groups);
        for vector in 0..4 {
            let (first, second) = (groups[0][vector], groups[1][vector]);
            let rows =
                [_mm256_permute2x128_si256::<0x20>(first, second), _mm256_permute2x128_si256::<0x31>(first, second)];
            for (row, value) in rows.into_iter().enumerate() {
                let at = 8 * vector + 4 * row + columns;
                let input = _mm256_xor_si256(load_256(previous, at), load_256(reference, at));
                let mut value = _mm256_xor_si256(value, input);
                if XOR {
                    value = _mm256_xor_si256(value, load_256(next, at));
                }
                store_256(next, at, value);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn compress_512<const XOR: bool>(previous: &Block, reference: &Block, next: &mut Block) {
    const { assert!(WORDS == 16 * 8) };
    let mut rows = [[_mm512_setzero_si512(); 4]; 4];
    for (pair, group) in rows.iter_mut().enumerate() {
        let input = |at: usize| {
            let at = 4 * pair + at;
            _mm512_xor_si512(load_512(previous, at), load_512(reference, at))
        };
        let [first, second, other_first, other_second] = [input(0), input(1), input(2), input(3)];
        *group = [
            _mm512_shuffle_i64x2::<0x44>(first, other_first),
            _mm512_shuffle_i64x2::<0xee>(first, other_first),
            _mm512_shuffle_i64x2::<0x44>(second, other_second),
            _mm512_shuffle_i64x2::<0xee>(second, other_second),
        ];
    }
    permute_512(&mut rows);
    // Vector `v` of pair `p` has the words 4v to 4v + 3 of two rows; the columns of these words need it from all pairs.
    let mut columns = [[_mm512_setzero_si512(); 4]; 4];
    for (vector, group) in columns.iter_mut().enumerate() {
        for (pair, word) in group.iter_mut().enumerate() {
            *word = _mm512_shuffle_i64x2::<0xd8>(rows[pair][vector], rows[pair][vector]);
        }
    }
    permute_512(&mut columns);
    for pair in 0..4 {
        let [a, b, c, d] =
            [0, 1, 2, 3].map(|vector| _mm512_shuffle_i64x2::<0xd8>(columns[vector][pair], columns[vector][pair]));
        let output = [
            _mm512_shuffle_i64x2::<0x44>(a, b),
            _mm512_shuffle_i64x2::<0x44>(c, d),
            _mm512_shuffle_i64x2::<0xee>(a, b),
            _mm512_shuffle_i64x2::<0xee>(c, d),
        ];
        for (at, value) in output.into_iter().enumerate() {
            let at = 4 * pair + at;
            let input = _mm512_xor_si512(load_512(previous, at), load_512(reference, at));
            let mut value = _mm512_xor_si512(value, input);
            if XOR {
                value = _mm512_xor_si512(value, load_512(next, at));
            }
            store_512(next, at, value);
        }
    }
}
