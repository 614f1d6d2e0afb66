//! The kernels for AVX2 (8 blocks a vector) and AVX-512 (16 blocks): vectors, loads, and entry points.
//!
//! A group is four vectors of whole blocks in memory. A transposition in each 128-bit lane turns them into the four
//! words of these blocks and back, in an order that does not matter. Groups run two at a time.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::rounds;
use super::sboxes;
use super::schedule::Schedule;
use super::words::{Lookup, Words};
use crate::block_cipher::Block;
use crate::isa::{Avx2, Vaes512};
use std::arch::x86_64::*;

/// A vector of words.
///
/// # Safety
/// `load` needs the instructions of its implementation; the other methods have them, since there is a vector. Pointers
/// must be valid for `16 * BLOCKS` bytes.
#[allow(clippy::missing_safety_doc)]
trait Vector: Words {
    /// Number of whole blocks in memory that a vector holds: a quarter of a group.
    const BLOCKS: usize;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Transposes the four by four words in each 128-bit lane.
    fn transpose(group: [Self; 4]) -> [Self; 4];
}

/// Runs `G` groups of blocks in place.
///
/// # Safety
/// The instructions of `V` are there, and `at` is valid for `G * 64 * V::BLOCKS` bytes.
#[inline(always)]
unsafe fn groups<V: Vector, const G: usize, const ENCRYPT: bool>(keys: &Schedule, at: *mut u8) {
    let len = 16 * V::BLOCKS;
    // SAFETY: the caller's promise; every vector is inside the groups.
    unsafe {
        let mut words = [[V::load(at); 4]; G];
        for group in 0..G {
            for vector in 0..4 {
                words[group][vector] = V::load(at.add((4 * group + vector) * len));
            }
            words[group] = V::transpose(words[group]);
        }
        if ENCRYPT {
            rounds::encrypt(keys, &mut words);
        } else {
            rounds::decrypt(keys, &mut words);
        }
        for group in 0..G {
            let blocks = V::transpose(words[group]);
            for vector in 0..4 {
                blocks[vector].store(at.add((4 * group + vector) * len));
            }
        }
    }
}

/// Runs any number of blocks, each by itself.
///
/// # Safety
/// The instructions of `V` are there.
#[inline(always)]
unsafe fn all<V: Vector, const ENCRYPT: bool>(keys: &Schedule, blocks: &mut [Block]) {
    let group = 4 * V::BLOCKS;
    let mut pairs = blocks.chunks_exact_mut(2 * group);
    // SAFETY: the caller's promise; the pointers are to as many blocks as are run.
    unsafe {
        for pair in &mut pairs {
            groups::<V, 2, ENCRYPT>(keys, pair.as_mut_ptr().cast());
        }
        let rest = pairs.into_remainder();
        if !rest.is_empty() {
            let mut padded: [Block; 32] = [[0; 16]; 32];
            padded[..rest.len()].copy_from_slice(rest);
            if rest.len() > group {
                groups::<V, 2, ENCRYPT>(keys, padded.as_mut_ptr().cast());
            } else {
                groups::<V, 1, ENCRYPT>(keys, padded.as_mut_ptr().cast());
            }
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// Defines a vector's operations that are one instruction in both widths, and the kernel's entry points.
macro_rules! kernel {
    ($kernel:ident, $token:ty, $vector:ident($raw:ty), $blocks:literal, $features:literal,
     $load:ident $store:ident $low32:ident $high32:ident $low64:ident $high64:ident) => {
        impl Vector for $vector {
            const BLOCKS: usize = $blocks;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self($load(from.cast())) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { $store(to.cast(), self.0) }
            }

            #[inline(always)]
            fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
                // SAFETY: a vector exists only where its instructions do.
                unsafe {
                    let (ab, cd) = ($low32(a.0, b.0), $low32(c.0, d.0));
                    let (ab_high, cd_high) = ($high32(a.0, b.0), $high32(c.0, d.0));
                    [
                        Self($low64(ab, cd)),
                        Self($high64(ab, cd)),
                        Self($low64(ab_high, cd_high)),
                        Self($high64(ab_high, cd_high)),
                    ]
                }
            }
        }

        /// The entry points of this kernel.
        pub(super) struct $kernel;

        impl $kernel {
            /// Encrypts each block by itself.
            pub(super) fn encrypt_blocks(_: $token, keys: &Schedule, blocks: &mut [Block]) {
                #[target_feature(enable = $features)]
                unsafe fn run(keys: &Schedule, blocks: &mut [Block]) {
                    // SAFETY: the instructions are enabled.
                    unsafe { all::<$vector, true>(keys, blocks) }
                }
                // SAFETY: the token proves the instructions.
                unsafe { run(keys, blocks) }
            }

            /// Decrypts each block by itself.
            pub(super) fn decrypt_blocks(_: $token, keys: &Schedule, blocks: &mut [Block]) {
                #[target_feature(enable = $features)]
                unsafe fn run(keys: &Schedule, blocks: &mut [Block]) {
                    // SAFETY: the instructions are enabled.
                    unsafe { all::<$vector, false>(keys, blocks) }
                }
                // SAFETY: the token proves the instructions.
                unsafe { run(keys, blocks) }
            }
        }
    };
}

/// Vector with the same word of eight blocks.
#[derive(Clone, Copy)]
struct Eight(__m256i);

kernel!(Avx2Kernel, Avx2, Eight(__m256i), 2, "avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_unpacklo_epi32 _mm256_unpackhi_epi32 _mm256_unpacklo_epi64
    _mm256_unpackhi_epi64);

impl Words for Eight {
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: a vector exists only where its instructions do.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    fn xor_word(self, word: u32) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_xor_si256(self.0, _mm256_set1_epi32(word as i32))) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_and_si256(self.0, other.0)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    fn clear(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_andnot_si256(self.0, other.0)) }
    }

    #[inline(always)]
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_or_si256(_mm256_slli_epi32::<LEFT>(self.0), _mm256_srli_epi32::<RIGHT>(self.0))) }
    }

    #[inline(always)]
    fn shift_left<const BY: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_slli_epi32::<BY>(self.0)) }
    }

    #[inline(always)]
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::substitute::<Self, BOX>(x)
    }

    #[inline(always)]
    fn invert<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::invert::<Self, BOX>(x)
    }
}

/// Vector with the same word of sixteen blocks.
#[derive(Clone, Copy)]
struct Sixteen(__m512i);

kernel!(Avx512Kernel, Vaes512, Sixteen(__m512i), 4, "avx512f,avx512bw,avx512vl",
    _mm512_loadu_si512 _mm512_storeu_si512 _mm512_unpacklo_epi32 _mm512_unpackhi_epi32 _mm512_unpacklo_epi64
    _mm512_unpackhi_epi64);

impl Words for Sixteen {
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    fn xor_word(self, word: u32) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_xor_si512(self.0, _mm512_set1_epi32(word as i32))) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_and_si512(self.0, other.0)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    fn clear(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_andnot_si512(self.0, other.0)) }
    }

    #[inline(always)]
    fn xor3(self, second: Self, third: Self) -> Self {
        self.lookup::<0x96>(second, third)
    }

    #[inline(always)]
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_rol_epi32::<LEFT>(self.0)) }
    }

    #[inline(always)]
    fn shift_left<const BY: i32>(self) -> Self {
        // `BY` of the intrinsic is unsigned, and no constant can be converted in an argument's place.
        // SAFETY: as above.
        unsafe { Self(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(BY))) }
    }

    #[inline(always)]
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::substitute_by_lookup::<Self, BOX>(x)
    }

    #[inline(always)]
    fn invert<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::invert_by_lookup::<Self, BOX>(x)
    }
}

impl Lookup for Sixteen {
    #[inline(always)]
    fn lookup<const TABLE: i32>(self, second: Self, third: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_ternarylogic_epi32::<TABLE>(self.0, second.0, third.0)) }
    }
}
