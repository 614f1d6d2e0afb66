//! Vectors of 256 bits: eight messages with words of 32 bits, four with words of 64.

use super::{Job, Vector};
use crate::isa::Avx2;
use std::arch::x86_64::*;

/// Runs a computation with words of 32 bits.
pub(crate) fn run_32(_: Avx2, job: impl Job<u32, 8>) {
    // SAFETY: the token proves the instructions.
    unsafe { enabled_32(job) }
}

/// Runs a computation with words of 64 bits.
pub(crate) fn run_64(_: Avx2, job: impl Job<u64, 4>) {
    // SAFETY: the token proves the instructions.
    unsafe { enabled_64(job) }
}

#[target_feature(enable = "avx2")]
fn enabled_32<J: Job<u32, 8>>(job: J) {
    // SAFETY: this function enables the instructions.
    unsafe { job.run::<Words32>() }
}

#[target_feature(enable = "avx2")]
fn enabled_64<J: Job<u64, 4>>(job: J) {
    // SAFETY: this function enables the instructions.
    unsafe { job.run::<Words64>() }
}

#[derive(Clone, Copy)]
struct Words32(__m256i);

#[derive(Clone, Copy)]
struct Words64(__m256i);

macro_rules! vector {
    (
        $name:ident, $word:ty, $lanes:literal, $of_blocks:ident, $repeat:ident, $add:ident, $rotate:ident, $shift:ident
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
                // SAFETY: the caller's promise; the array has 32 bytes, and the load needs no alignment.
                Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
            }

            #[inline(always)]
            unsafe fn repeat(word: $word) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $repeat(word.cast_signed()) })
            }

            #[inline(always)]
            fn words(self) -> [$word; $lanes] {
                let mut words = [0; $lanes];
                // SAFETY: a vector exists; the array has 32 bytes, and the store needs no alignment.
                unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
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
                Self(unsafe { _mm256_xor_si256(self.0, other.0) })
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
                let (both, either) =
                    // SAFETY: see above.
                    unsafe { (_mm256_and_si256(a.0, b.0), _mm256_or_si256(a.0, b.0)) };
                // SAFETY: see above.
                Self(unsafe { _mm256_or_si256(both, _mm256_and_si256(either, c.0)) })
            }

            #[inline(always)]
            fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $rotate::<RIGHT, LEFT>(self.0) })
            }

            #[inline(always)]
            fn shift<const BITS: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $shift::<BITS>(self.0) })
            }
        }
    };
}

vector!(Words32, u32, 8, words_32, _mm256_set1_epi32, _mm256_add_epi32, rotate_32, _mm256_srli_epi32);
vector!(Words64, u64, 4, words_64, _mm256_set1_epi64x, _mm256_add_epi64, rotate_64, _mm256_srli_epi64);

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_32<const RIGHT: i32, const LEFT: i32>(words: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_srli_epi32::<RIGHT>(words), _mm256_slli_epi32::<LEFT>(words))
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_64<const RIGHT: i32, const LEFT: i32>(words: __m256i) -> __m256i {
    let of_bytes = |low, high| _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
    match RIGHT {
        // Whole bytes are moved by one instruction.
        32 => _mm256_shuffle_epi32::<0xb1>(words),
        24 => _mm256_shuffle_epi8(words, of_bytes(0x0201_0007_0605_0403, 0x0a09_080f_0e0d_0c0b)),
        16 => _mm256_shuffle_epi8(words, of_bytes(0x0100_0706_0504_0302, 0x0908_0f0e_0d0c_0b0a)),
        _ => _mm256_or_si256(_mm256_srli_epi64::<RIGHT>(words), _mm256_slli_epi64::<LEFT>(words)),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_32<const HIGHEST_FIRST: bool>(blocks: [&[u8; 64]; 8]) -> [__m256i; 16] {
    let half = |at: usize| {
        transpose_32(blocks.map(|block| {
            let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
            load::<HIGHEST_FIRST>(&block.as_chunks().0[at], swap)
        }))
    };
    let (low, high) = (half(0), half(1));
    std::array::from_fn(|word| if word < 8 { low[word] } else { high[word - 8] })
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_64<const HIGHEST_FIRST: bool>(blocks: [&[u8; 128]; 4]) -> [__m256i; 16] {
    let quarter = |at: usize| {
        transpose_64(blocks.map(|block| {
            let swap = _mm_set_epi64x(0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607);
            load::<HIGHEST_FIRST>(&block.as_chunks().0[at], swap)
        }))
    };
    let quarters = [quarter(0), quarter(1), quarter(2), quarter(3)];
    std::array::from_fn(|word| quarters[word / 4][word % 4])
}

/// Loads 32 bytes, and swaps those of each word if the highest is first.
#[inline]
#[target_feature(enable = "avx2")]
fn load<const HIGHEST_FIRST: bool>(bytes: &[u8; 32], swap: __m128i) -> __m256i {
    // SAFETY: the reference is to 32 bytes; the load needs no alignment.
    let words = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
    if HIGHEST_FIRST { _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(swap)) } else { words }
}

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_32(rows: [__m256i; 8]) -> [__m256i; 8] {
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

/// Makes columns of rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_64([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    // Each half of a vector has one word of two rows.
    let (even_ab, odd_ab) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (even_cd, odd_cd) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    [
        _mm256_permute2x128_si256::<0x20>(even_ab, even_cd),
        _mm256_permute2x128_si256::<0x20>(odd_ab, odd_cd),
        _mm256_permute2x128_si256::<0x31>(even_ab, even_cd),
        _mm256_permute2x128_si256::<0x31>(odd_ab, odd_cd),
    ]
}
