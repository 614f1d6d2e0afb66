//! Vectors of 512 bits: sixteen messages with words of 32 bits, eight with words of 64.

use super::{Job, Vector};
use crate::isa::Avx512;
use std::arch::x86_64::*;

/// Runs a computation with words of 32 bits.
pub(crate) fn run_32(_: Avx512, job: impl Job<u32, 16>) {
    // SAFETY: the token proves the instructions.
    unsafe { enabled_32(job) }
}

/// Runs a computation with words of 64 bits.
pub(crate) fn run_64(_: Avx512, job: impl Job<u64, 8>) {
    // SAFETY: the token proves the instructions.
    unsafe { enabled_64(job) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn enabled_32<J: Job<u32, 16>>(job: J) {
    // SAFETY: this function enables the instructions.
    unsafe { job.run::<Words32>() }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn enabled_64<J: Job<u64, 8>>(job: J) {
    // SAFETY: this function enables the instructions.
    unsafe { job.run::<Words64>() }
}

#[derive(Clone, Copy)]
struct Words32(__m512i);

#[derive(Clone, Copy)]
struct Words64(__m512i);

macro_rules! vector {
    (
        $name:ident, $word:ty, $lanes:literal, $of_blocks:ident, $repeat:ident, $add:ident, $logic:ident, $rotate:ident,
        $shift:ident
    ) => {
        impl Vector<$lanes> for $name {
            type Word = $word;

            #[inline(always)]
            unsafe fn of_blocks<const HIGHEST_FIRST: bool>(
                blocks: [&[u8; size_of::<$word>() * 16]; $lanes],
            ) -> [Self; 16] {
                // SAFETY: the caller's promise.
                unsafe { $of_blocks::<HIGHEST_FIRST>(blocks).map(Self) }
            }

            #[inline(always)]
            unsafe fn of_words(words: [$word; $lanes]) -> Self {
                // SAFETY: the caller's promise; the array has 64 bytes, and the load needs no alignment.
                Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
            }

            #[inline(always)]
            unsafe fn repeat(word: $word) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $repeat(word.cast_signed()) })
            }

            #[inline(always)]
            fn words(self) -> [$word; $lanes] {
                let mut words = [0; $lanes];
                // SAFETY: a vector exists; the array has 64 bytes, and the store needs no alignment.
                unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) };
                words
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: a vector exists, here and below.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn xor_with(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { _mm512_xor_si512(self.0, other.0) })
            }

            #[inline(always)]
            fn xor(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $logic::<0x96>(a.0, b.0, c.0) })
            }

            #[inline(always)]
            fn choice(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $logic::<0xca>(a.0, b.0, c.0) })
            }

            #[inline(always)]
            fn majority(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $logic::<0xe8>(a.0, b.0, c.0) })
            }

            #[inline(always)]
            fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $rotate::<RIGHT>(self.0) })
            }

            #[inline(always)]
            fn shift<const BITS: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $shift(self.0, _mm_cvtsi32_si128(BITS)) })
            }
        }
    };
}

vector!(
    Words32,
    u32,
    16,
    words_32,
    _mm512_set1_epi32,
    _mm512_add_epi32,
    _mm512_ternarylogic_epi32,
    _mm512_ror_epi32,
    _mm512_srl_epi32
);
vector!(
    Words64,
    u64,
    8,
    words_64,
    _mm512_set1_epi64,
    _mm512_add_epi64,
    _mm512_ternarylogic_epi64,
    _mm512_ror_epi64,
    _mm512_srl_epi64
);

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words_32<const HIGHEST_FIRST: bool>(blocks: [&[u8; 64]; 16]) -> [__m512i; 16] {
    transpose_32(blocks.map(|block| {
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        load::<HIGHEST_FIRST>(block, swap)
    }))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words_64<const HIGHEST_FIRST: bool>(blocks: [&[u8; 128]; 8]) -> [__m512i; 16] {
    let half = |at: usize| {
        transpose_64(blocks.map(|block| {
            let swap = _mm_set_epi64x(0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607);
            load::<HIGHEST_FIRST>(&block.as_chunks().0[at], swap)
        }))
    };
    let (low, high) = (half(0), half(1));
    std::array::from_fn(|word| if word < 8 { low[word] } else { high[word - 8] })
}

/// Loads 64 bytes, and swaps those of each word if the highest is first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load<const HIGHEST_FIRST: bool>(bytes: &[u8; 64], swap: __m128i) -> __m512i {
    // SAFETY: the reference is to 64 bytes; the load needs no alignment.
    let words = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    if HIGHEST_FIRST { _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(swap)) } else { words }
}

/// Makes columns of rows of quarters of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (even_ab, odd_ab) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let (even_cd, odd_cd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(even_ab, even_cd),
        _mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd),
        _mm512_shuffle_i32x4::<0xdd>(even_ab, even_cd),
        _mm512_shuffle_i32x4::<0xdd>(odd_ab, odd_cd),
    ]
}

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_32(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = rows;
    for at in (0..16).step_by(2) {
        (pairs[at], pairs[at + 1]) =
            (_mm512_unpacklo_epi32(rows[at], rows[at + 1]), _mm512_unpackhi_epi32(rows[at], rows[at + 1]));
    }
    // Each quarter of a vector now has one word of four rows; `quads[4 * group + word]`.
    let mut quads = pairs;
    for group in (0..16).step_by(4) {
        for half in 0..2 {
            let (low, high) = (pairs[group + half], pairs[group + 2 + half]);
            quads[group + 2 * half] = _mm512_unpacklo_epi64(low, high);
            quads[group + 2 * half + 1] = _mm512_unpackhi_epi64(low, high);
        }
    }
    // Word `4 * quarter + word` of all rows is in that quarter of the four groups' vectors.
    let mut columns = quads;
    for word in 0..4 {
        let quarters = transpose_quarters([quads[word], quads[4 + word], quads[8 + word], quads[12 + word]]);
        for (quarter, column) in quarters.into_iter().enumerate() {
            columns[4 * quarter + word] = column;
        }
    }
    columns
}

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_64(rows: [__m512i; 8]) -> [__m512i; 8] {
    // Each quarter of a vector has one word of two rows.
    let pair = |at: usize| [rows[2 * at], rows[2 * at + 1]];
    let even = transpose_quarters(std::array::from_fn(|at| {
        let [a, b] = pair(at);
        _mm512_unpacklo_epi64(a, b)
    }));
    let odd = transpose_quarters(std::array::from_fn(|at| {
        let [a, b] = pair(at);
        _mm512_unpackhi_epi64(a, b)
    }));
    std::array::from_fn(|word| if word % 2 == 0 { even[word / 2] } else { odd[word / 2] })
}
