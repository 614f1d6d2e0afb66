//! AES-GCM over many data units, generic over a vector of AES blocks.
//!
//! A row is `IN_FLIGHT` vectors of one unit. Between the rounds of a row, GHASH takes one vector after the other: of
//! the same row if it decrypts, of the previous one, perhaps of the previous unit, if it encrypts. Multiplication and
//! AES use different execution units, so most of the shorter of the two costs nothing. The masks of the tags of all
//! units are encrypted before.
//!
//! GHASH is computed as POLYVAL (RFC 8452, appendix A): blocks with their bytes reversed, and the key times x. A
//! product is Montgomery's, a * b * x^-128, and is reduced once a row: block i of n in a row is multiplied with power
//! n - i. In the last row of a unit each power is one higher, for the block of lengths, whose product is a constant of
//! the key.

use super::blocks::{AesVector, IN_FLIGHT, Keys, each, each_round, encrypt_whole_vectors};
use crate::aes::job::GcmJob;
use crate::aes::schedule::GcmKeys;
use crate::block_cipher::Block;
use std::arch::x86_64::*;

/// A vector of AES blocks with the operations of GCM.
///
/// # Safety
/// As for [`AesVector`].
#[allow(clippy::missing_safety_doc)]
pub(super) trait GcmVector: AesVector {
    /// Returns the vector with the bytes of each block reversed.
    unsafe fn reversed(self) -> Self;
    /// Adds numbers of 32 bits.
    unsafe fn add32(self, other: Self) -> Self;
    /// Adds numbers of 128 bits, of which those of `small` are below 2^63.
    unsafe fn add128(self, small: Self) -> Self;
    /// Multiplies a half of each block with one of `other`'s: bit 0 of `HALVES` selects the upper half of `self`, bit 4
    /// that of `other`.
    unsafe fn clmul<const HALVES: i32>(self, other: Self) -> Self;
    /// Returns the XOR of all blocks.
    unsafe fn folded(self) -> __m128i;
    /// Returns `block` in the first position and zeroes in the others.
    unsafe fn first(block: __m128i) -> Self;
}

/// Numbers from 1, one a block: the differences of a row's counters to that of the block before.
#[repr(C, align(64))]
pub(super) struct Steps(pub(super) [u128; 4 * IN_FLIGHT]);

pub(super) static STEPS: Steps = {
    let mut steps = [0; 4 * IN_FLIGHT];
    let mut at = 0;
    while at < steps.len() {
        steps[at] = at as u128 + 1;
        at += 1;
    }
    Steps(steps)
};

/// Sums of products that are not reduced yet, and the hash of the rows before.
struct Hash<V> {
    low: V,
    middle: V,
    high: V,
    rows: __m128i,
}

impl<V: GcmVector> Hash<V> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller's promise is that of each call.
        unsafe {
            let zero = V::splat(&[0; 16]);
            Self { low: zero, middle: zero, high: zero, rows: _mm_setzero_si128() }
        }
    }

    /// Starts a unit with its additional data. `powers` are those of its first row, after those of the additional data.
    #[inline(always)]
    unsafe fn start_unit(&mut self, additional_data: &[Block; 2], powers: *const u8) {
        // SAFETY: the caller's promise is that of each call.
        unsafe {
            let [first, second] = additional_data.map(|block| reversed(_mm_loadu_si128(block.as_ptr().cast())));
            let first_power = _mm_loadu_si128(powers.sub(32).cast());
            let second_power = _mm_loadu_si128(powers.sub(16).cast());
            let (low, middle, high) = product(first, first_power);
            let (low2, middle2, high2) = product(second, second_power);
            self.low = V::first(_mm_xor_si128(low, low2));
            self.middle = V::first(_mm_xor_si128(middle, middle2));
            self.high = V::first(_mm_xor_si128(high, high2));
            self.rows = _mm_setzero_si128();
        }
    }

    /// Adds vector `INDEX` of the row at `data`. The first one includes the hash of the rows before.
    #[inline(always)]
    unsafe fn add<const INDEX: usize>(&mut self, data: *const u8, powers: *const u8) {
        // SAFETY: the caller's promise is that of each call.
        unsafe {
            let at = INDEX * 16 * V::BLOCKS;
            let mut data = V::load(data.add(at)).reversed();
            if INDEX == 0 {
                data = data.xor(V::first(self.rows));
            }
            let power = V::load(powers.add(at));
            self.low = self.low.xor(data.clmul::<0x00>(power));
            self.high = self.high.xor(data.clmul::<0x11>(power));
            self.middle = self.middle.xor3(data.clmul::<0x01>(power), data.clmul::<0x10>(power));
        }
    }

    /// Reduces the sums of a row.
    #[inline(always)]
    unsafe fn end_row(&mut self) {
        // SAFETY: the caller's promise is that of each call.
        unsafe {
            self.rows = reduced(self.low.folded(), self.middle.folded(), self.high.folded());
            let zero = V::splat(&[0; 16]);
            (self.low, self.middle, self.high) = (zero, zero, zero);
        }
    }

    /// Turns `mask` into the tag of the unit.
    #[inline(always)]
    unsafe fn end_unit(&mut self, length: &Block, mask: &mut Block) {
        // SAFETY: the caller's promise is that of each call.
        unsafe {
            let hash = _mm_xor_si128(self.rows, _mm_loadu_si128(length.as_ptr().cast()));
            let tag = _mm_xor_si128(reversed(hash), _mm_loadu_si128(mask.as_ptr().cast()));
            _mm_storeu_si128(mask.as_mut_ptr().cast(), tag);
        }
    }
}

/// Returns `block` with its bytes reversed.
#[inline(always)]
unsafe fn reversed(block: __m128i) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_shuffle_epi8(block, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)) }
}

/// Returns the product of two blocks: lower, middle and upper part.
#[inline(always)]
unsafe fn product(a: __m128i, b: __m128i) -> (__m128i, __m128i, __m128i) {
    // SAFETY: the caller's promise.
    unsafe {
        let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
        (_mm_clmulepi64_si128::<0x00>(a, b), middle, _mm_clmulepi64_si128::<0x11>(a, b))
    }
}

/// Returns a product times x^-128, modulo x^128 + x^127 + x^126 + x^121 + 1.
#[inline(always)]
unsafe fn reduced(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe {
        let modulus = _mm_set_epi64x(0xc200_0000_0000_0000_u64 as i64, 1);
        let low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
        let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
        let once = _mm_xor_si128(_mm_shuffle_epi32::<0b01_00_11_10>(low), _mm_clmulepi64_si128::<0x10>(low, modulus));
        let twice =
            _mm_xor_si128(_mm_shuffle_epi32::<0b01_00_11_10>(once), _mm_clmulepi64_si128::<0x10>(once, modulus));
        _mm_xor_si128(twice, high)
    }
}

/// Fills in the powers of `keys` and the product of the block of lengths, from the expanded key. A row has `row_blocks`
/// blocks.
///
/// # Safety
/// The CPU has PCLMULQDQ and SSSE3.
#[inline(always)]
pub(super) unsafe fn set_powers(keys: &mut GcmKeys, subkey: &Block, row_blocks: usize, lengths: &Block) {
    // The bytes of the subkey reversed, times x.
    let number = u128::from_be_bytes(*subkey);
    let carry = 0u128.wrapping_sub(number >> 127);
    let one = ((number << 1) ^ (carry & 0xc200_0000_0000_0000_0000_0000_0000_0001)).to_le_bytes();
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let one = _mm_loadu_si128(one.as_ptr().cast());
        let times = |a, b| {
            let (low, middle, high) = product(a, b);
            reduced(low, middle, high)
        };
        let mut power = one;
        // The highest power, that of the first block of additional data, is in front.
        for place in keys.powers[GcmKeys::FIRST..GcmKeys::FIRST + row_blocks + 3].iter_mut().rev() {
            _mm_storeu_si128(place.as_mut_ptr().cast(), power);
            power = times(power, one);
        }
        let lengths = reversed(_mm_loadu_si128(lengths.as_ptr().cast()));
        _mm_storeu_si128(keys.length.as_mut_ptr().cast(), times(lengths, one));
    }
}

/// Encrypts or decrypts every unit of `job`, and turns its masks into tags.
///
/// # Safety
/// The instructions of `V` are there; `job` comes from its constructor.
#[inline(always)]
pub(super) unsafe fn gcm<V: GcmVector, const ROUNDS: usize, const ENCRYPT: bool>(job: &mut GcmJob<'_>) {
    let row_len = 16 * V::BLOCKS * IN_FLIGHT;
    let (units, rows) = (job.units(), job.unit_len() / row_len);
    let (mut src, mut dst) = (job.src(), job.dst());
    let GcmKeys { schedule, powers, length } = job.keys();
    let (counters, additional_data, masks) = job.blocks();
    let powers = std::hint::black_box(powers[GcmKeys::FIRST..].as_ptr().cast::<u8>());
    // SAFETY: instructions are the caller's promise. The masks fill whole vectors. Data is read and written inside
    // `units * unit_len` bytes, of which a row is always a divisor. Powers are read from the first of the additional
    // data, at most `row_len + 48` bytes.
    unsafe {
        encrypt_whole_vectors::<V, ROUNDS>(&schedule.encrypt, &mut masks[..units.next_multiple_of(V::BLOCKS)]);
        let keys = Keys::<V, ROUNDS>::new(&schedule.encrypt);
        // The last row's powers are one higher, so they start one block earlier.
        let powers_of = |row: usize| if row + 1 == rows { powers.add(32) } else { powers.add(48) };
        let mut hash = Hash::<V>::new();
        // The row to hash next, and its place.
        let (mut hashed, mut at) = (dst.cast_const(), (0, 0));
        for (unit, first_counter) in counters.iter().enumerate().take(units) {
            let mut counter = V::splat(first_counter).reversed();
            for row in 0..rows {
                if !ENCRYPT {
                    (hashed, at) = (src, (unit, row));
                }
                if ENCRYPT && unit == 0 && row == 0 {
                    ctr_row::<V, ROUNDS, false>(&keys, counter, src, dst, &mut hash, hashed, powers);
                } else {
                    let (hashed_unit, hashed_row) = at;
                    let powers = powers_of(hashed_row);
                    if hashed_row == 0 {
                        hash.start_unit(&additional_data[hashed_unit], powers);
                    }
                    ctr_row::<V, ROUNDS, true>(&keys, counter, src, dst, &mut hash, hashed, powers);
                    hash.end_row();
                    if hashed_row + 1 == rows {
                        hash.end_unit(length, &mut masks[hashed_unit]);
                    }
                }
                if ENCRYPT {
                    (hashed, at) = (dst, (unit, row));
                }
                counter = counter.add32(V::splat(&((V::BLOCKS * IN_FLIGHT) as u128).to_le_bytes()));
                (src, dst) = (src.add(row_len), dst.add(row_len));
            }
        }
        if ENCRYPT {
            let powers = powers_of(rows - 1);
            if rows == 1 {
                hash.start_unit(&additional_data[units - 1], powers);
            }
            each!(I => hash.add::<I>(hashed, powers));
            hash.end_row();
            hash.end_unit(length, &mut masks[units - 1]);
        }
    }
}

/// Encrypts a row whose first counter is after `counter` and, if `HASH`, adds the row at `hashed` to `hash`.
#[inline(always)]
unsafe fn ctr_row<V: GcmVector, const ROUNDS: usize, const HASH: bool>(
    keys: &Keys<V, ROUNDS>,
    counter: V,
    src: *const u8,
    dst: *mut u8,
    hash: &mut Hash<V>,
    hashed: *const u8,
    powers: *const u8,
) {
    let steps = (&raw const STEPS).cast::<u8>();
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let key = keys.get::<0>();
        let mut states = [counter; IN_FLIGHT];
        each!(I => states[I] = counter.add32(V::load(steps.add(I * 16 * V::BLOCKS))).reversed().xor(key));
        each_round!(ROUNDS, R => {
            let key = keys.get::<R>();
            each!(I => states[I] = states[I].enc(key));
            match R {
                // The first vector needs the hash of the rows before, so it comes last.
                1 if HASH => hash.add::<1>(hashed, powers),
                2 if HASH => hash.add::<2>(hashed, powers),
                3 if HASH => hash.add::<3>(hashed, powers),
                4 if HASH => hash.add::<4>(hashed, powers),
                5 if HASH => hash.add::<5>(hashed, powers),
                6 if HASH => hash.add::<6>(hashed, powers),
                7 if HASH => hash.add::<7>(hashed, powers),
                8 if HASH => hash.add::<0>(hashed, powers),
                _ => {}
            }
            V::pin(&mut states, &mut hash.low);
        });
        let key = keys.get::<ROUNDS>();
        each!(I => {
            let at = I * 16 * V::BLOCKS;
            states[I].enc_last(V::load(src.add(at)).xor(key)).store(dst.add(at));
        });
    }
}
