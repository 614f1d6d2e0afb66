//! VAES on 512-bit vectors: four blocks at a time, all round keys in registers.

use super::blocks::{AesVector, Counts, IN_FLIGHT, halves};
use super::entry_points;
use super::gcm_blocks::GcmVector;
use crate::isa;
use std::arch::x86_64::*;

entry_points!(Vaes512Kernel, isa::Vaes512, Blocks4, "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq");

static COUNTS: Counts<4, 8> = Counts::new();

#[derive(Clone, Copy)]
struct Blocks4(__m512i);

/// See [`AesVector::pin`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
fn pin(states: &mut [Blocks4; IN_FLIGHT], other: &mut Blocks4) {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!(
            "/* {} {} {} {} {} {} {} {} {} */",
            inout(zmm_reg) states[0].0,
            inout(zmm_reg) states[1].0,
            inout(zmm_reg) states[2].0,
            inout(zmm_reg) states[3].0,
            inout(zmm_reg) states[4].0,
            inout(zmm_reg) states[5].0,
            inout(zmm_reg) states[6].0,
            inout(zmm_reg) states[7].0,
            inout(zmm_reg) other.0,
            options(nomem, nostack, preserves_flags),
        );
    }
}

impl Blocks4 {
    /// Exchanges the halves of each block.
    ///
    /// # Safety
    /// As for [`AesVector`].
    #[inline(always)]
    unsafe fn crossed(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm512_shuffle_epi32::<0b01_00_11_10>(self.0)) }
    }
}

impl AesVector for Blocks4 {
    const BLOCKS: usize = 4;
    /// The row's first tweak in every position, and the same with its halves exchanged.
    type Walk = (Self, Self);
    const AHEAD: usize = 3;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn gather(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_set_m128i(halves(from.add(16)), halves(from));
            let high = _mm256_set_m128i(halves(from.add(48)), halves(from.add(32)));
            Self(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise (see the trait).
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn splat(block: &Block) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast()))) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, second.0, third.0)) }
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_and_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn enc(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_aesenc_epi128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn enc_last(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_aesenclast_epi128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn dec(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_aesdec_epi128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn dec_last(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_aesdeclast_epi128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn pin(states: &mut [Self; IN_FLIGHT], other: &mut Self) {
        // SAFETY: the caller's promise.
        unsafe { pin(states, other) }
    }

    #[inline(always)]
    unsafe fn walk(first: &Block) -> Self::Walk {
        // SAFETY: the caller's promise (see the trait).
        unsafe {
            let first = Self::splat(first);
            (first, first.crossed())
        }
    }

    #[inline(always)]
    unsafe fn tweak<const INDEX: usize>(&mut (first, crossed): &mut Self::Walk, counts: *const u8) -> Self {
        // SAFETY: the caller's promise; the counts are aligned and as long as a vector.
        unsafe {
            let left = _mm512_sllv_epi64(first.0, _mm512_load_si512(counts.add(16 * Self::BLOCKS * INDEX).cast()));
            let overflow = _mm512_srlv_epi64(
                crossed.0,
                _mm512_load_si512(counts.add(16 * Self::BLOCKS * (IN_FLIGHT + INDEX)).cast()),
            );
            Self(left).xor3(Self(overflow), Self(_mm512_clmulepi64_epi128::<0>(overflow, _mm512_set1_epi64(0x86))))
        }
    }

    #[inline(always)]
    fn keys_in_registers(rounds: usize) -> usize {
        // As many as the compiler finds registers for in each loop, according to its assembly.
        if rounds > 10 { 9 } else { 7 }
    }

    #[inline(always)]
    fn counts() -> *const u8 {
        (&raw const COUNTS).cast()
    }

    #[inline(always)]
    unsafe fn next_row((first, crossed): Self::Walk) -> Self::Walk {
        const POWER: u32 = (4 * IN_FLIGHT) as u32;
        // SAFETY: the caller's promise.
        unsafe {
            let left = _mm512_slli_epi64::<POWER>(first.0);
            let overflow = _mm512_srli_epi64::<{ 64 - POWER }>(crossed.0);
            let first =
                Self(left).xor3(Self(overflow), Self(_mm512_clmulepi64_epi128::<0>(overflow, _mm512_set1_epi64(0x86))));
            (first, first.crossed())
        }
    }
}

impl GcmVector for Blocks4 {
    #[inline(always)]
    unsafe fn reversed(self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe {
            Self(_mm512_shuffle_epi8(
                self.0,
                _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)),
            ))
        }
    }

    #[inline(always)]
    unsafe fn add32(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn add128(self, small: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe {
            let sum = _mm512_add_epi64(self.0, small.0);
            // The top bit of the lower half goes out exactly if there is a carry.
            let carry = _mm512_srli_epi64::<63>(_mm512_andnot_si512(sum, self.0));
            Self(_mm512_add_epi64(sum, _mm512_bslli_epi128::<8>(carry)))
        }
    }

    #[inline(always)]
    unsafe fn clmul<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_clmulepi64_epi128::<HALVES>(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        // SAFETY: the caller's promise (see the trait).
        unsafe {
            let halves = _mm256_xor_si256(_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0));
            _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
        }
    }

    #[inline(always)]
    unsafe fn first(block: __m128i) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm512_zextsi128_si512(block)) }
    }
}
