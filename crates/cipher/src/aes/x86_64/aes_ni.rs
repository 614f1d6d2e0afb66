//! AES-NI: one block at a time. Also the kernel of CBC encryption, whose chains are one block wide.

use super::blocks::{AesVector, IN_FLIGHT, halves};
use super::entry_points;
use super::gcm_blocks::GcmVector;
use crate::aes::schedule::GcmKeys;
use crate::isa;
use std::arch::x86_64::*;

entry_points!(AesNiKernel, isa::AesNi, Block1, "avx,aes,pclmulqdq");

#[derive(Clone, Copy)]
pub(super) struct Block1(__m128i);

/// See [`AesVector::pin`].
#[inline]
#[target_feature(enable = "avx,aes,pclmulqdq")]
fn pin(states: &mut [Block1; IN_FLIGHT], other: &mut Block1) {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!(
            "/* {} {} {} {} {} {} {} {} {} */",
            inout(xmm_reg) states[0].0,
            inout(xmm_reg) states[1].0,
            inout(xmm_reg) states[2].0,
            inout(xmm_reg) states[3].0,
            inout(xmm_reg) states[4].0,
            inout(xmm_reg) states[5].0,
            inout(xmm_reg) states[6].0,
            inout(xmm_reg) states[7].0,
            inout(xmm_reg) other.0,
            options(nomem, nostack, preserves_flags),
        );
    }
}

impl AesVector for Block1 {
    const BLOCKS: usize = 1;
    /// The next tweak.
    type Walk = u128;
    const AHEAD: usize = 0;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn gather(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(halves(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise (see the trait).
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn splat(block: &Block) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_xor_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_xor_si128(_mm_xor_si128(second.0, third.0), self.0)) }
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_and_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn enc(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_aesenc_si128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn enc_last(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_aesenclast_si128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn dec(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_aesdec_si128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn dec_last(self, round_key: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_aesdeclast_si128(self.0, round_key.0)) }
    }

    #[inline(always)]
    unsafe fn pin(states: &mut [Self; IN_FLIGHT], other: &mut Self) {
        // SAFETY: the caller's promise.
        unsafe { pin(states, other) }
    }

    #[inline(always)]
    unsafe fn walk(first: &Block) -> u128 {
        u128::from_le_bytes(*first)
    }

    /// Doubles one tweak after the other in general registers: every vector instruction could take a port from the
    /// rounds. Written in assembly, since the compiler uses a double-word shift, which is slow enough to delay the
    /// rounds.
    #[inline(always)]
    unsafe fn tweak<const INDEX: usize>(walk: &mut u128, _: *const u8) -> Self {
        let (mut low, mut high) = (*walk as u64, (*walk >> 64) as u64);
        // SAFETY: the caller's promise; the assembly changes nothing but its operands and the flags.
        unsafe {
            let tweak = Self(_mm_set_epi64x(high as i64, low as i64));
            std::arch::asm!(
                "mov {carry}, {high}",
                "sar {carry}, 63",
                "and {carry:e}, 0x87",
                "add {low}, {low}",
                "adc {high}, {high}",
                "xor {low}, {carry}",
                low = inout(reg) low,
                high = inout(reg) high,
                carry = out(reg) _,
                options(pure, nomem, nostack),
            );
            *walk = u128::from(low) | u128::from(high) << 64;
            tweak
        }
    }

    #[inline(always)]
    fn keys_in_registers(_: usize) -> usize {
        0
    }

    #[inline(always)]
    fn counts() -> *const u8 {
        std::ptr::null()
    }

    /// Returns `walk`: the last doubling of a row already made the first tweak of the next row.
    #[inline(always)]
    unsafe fn next_row(walk: u128) -> u128 {
        walk
    }
}

impl AesNiKernel {
    /// Fills in the powers of `keys`, whose schedule is expanded, for rows of `row_blocks` blocks and units with the
    /// block of `lengths`.
    pub(crate) fn gcm_powers(proof: isa::AesNi, keys: &mut GcmKeys, row_blocks: usize, lengths: &Block) {
        let mut subkey = [[0; 16]];
        Self::encrypt_blocks(proof, &keys.schedule, &mut subkey);
        // SAFETY: the token proves the instructions.
        unsafe { gcm_powers(keys, &subkey[0], row_blocks, lengths) }
    }

    /// Encrypts every unit of `job` with CBC, eight units in parallel.
    pub(crate) fn cbc_encrypt(_: isa::AesNi, job: &CbcJob<'_>) {
        // SAFETY: the token proves the instructions; `CbcJob::new` made and checked the pointers.
        unsafe {
            match job.keys().rounds {
                10 => cbc_encrypt::<10>(job),
                12 => cbc_encrypt::<12>(job),
                14 => cbc_encrypt::<14>(job),
                rounds => unreachable!("no schedule has {rounds} rounds"),
            }
        }
    }
}

#[target_feature(enable = "avx,aes,pclmulqdq")]
unsafe fn cbc_encrypt<const ROUNDS: usize>(job: &CbcJob<'_>) {
    // SAFETY: the instructions are enabled; the rest is the caller's promise.
    unsafe { blocks::cbc_encrypt::<Block1, ROUNDS>(job) }
}

impl GcmVector for Block1 {
    #[inline(always)]
    unsafe fn reversed(self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_shuffle_epi8(self.0, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))) }
    }

    #[inline(always)]
    unsafe fn add32(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn add128(self, small: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe {
            let sum = _mm_add_epi64(self.0, small.0);
            // The top bit of the lower half goes out exactly if there is a carry.
            let carry = _mm_srli_epi64::<63>(_mm_andnot_si128(sum, self.0));
            Self(_mm_add_epi64(sum, _mm_slli_si128::<8>(carry)))
        }
    }

    #[inline(always)]
    unsafe fn clmul<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise (see the trait).
        unsafe { Self(_mm_clmulepi64_si128::<HALVES>(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        self.0
    }

    #[inline(always)]
    unsafe fn first(block: __m128i) -> Self {
        Self(block)
    }
}

#[target_feature(enable = "avx,aes,pclmulqdq")]
unsafe fn gcm_powers(keys: &mut GcmKeys, subkey: &Block, row_blocks: usize, lengths: &Block) {
    // SAFETY: the instructions are enabled.
    unsafe { gcm_blocks::set_powers(keys, subkey, row_blocks, lengths) }
}
