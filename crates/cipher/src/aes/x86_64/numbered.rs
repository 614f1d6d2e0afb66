//! LRW and CTR, whose blocks have numbers of 128 bits, generic over a vector of AES blocks.
//!
//! LRW adds the product of a block's number with a secret, in GF(2^128), before and after the cipher. The numbers of a
//! row have at most two values of their upper bits, so a product is that of the upper bits of the row's first number,
//! plus one of the lower bits from a table, and in the blocks after a carry plus the change of the upper bits. Numbers
//! are public: branches and addresses may depend on them. The loop is that of XTS.
//!
//! CTR encrypts the numbers. Its carries are computed, not looked up.

use super::blocks::{AesVector, IN_FLIGHT, Keys, Masks, each, each_round, masked_rows};
use super::gcm_blocks::{GcmVector, STEPS};
use crate::aes::job::BlockJob;
use crate::aes::schedule::{LrwKeys, Schedule};
use crate::block_cipher::Block;

/// Zeroes, then ones: read from within, it selects the blocks of a row after a carry.
#[repr(C, align(64))]
struct Carries([[Block; 4 * IN_FLIGHT]; 2]);

static CARRIES: Carries = Carries([[[0; 16]; 4 * IN_FLIGHT], [[0xff; 16]; 4 * IN_FLIGHT]]);

/// The masks of LRW.
struct Products<'a, V> {
    keys: &'a LrwKeys,
    /// Product of the upper bits of the row's first number, in every position.
    upper: V,
    /// Its change by a carry.
    change: V,
    /// The row's first number.
    number: u128,
    /// Products of the lower bits, from that of the first block.
    low: *const u8,
    /// Selects the blocks after a carry.
    carried: *const u8,
    /// Number of rows left in this unit, including this one.
    left: usize,
    rows_in_unit: usize,
    /// Number of the first block of each unit, from this one on.
    ivs: &'a [Block],
}

impl<'a, V: AesVector> Products<'a, V> {
    const ROW: usize = V::BLOCKS * IN_FLIGHT;

    /// # Safety
    /// The instructions of `V` are there.
    #[inline(always)]
    unsafe fn new(keys: &'a LrwKeys, ivs: &'a [Block], rows_in_unit: usize) -> Self {
        assert_eq!(keys.row_blocks, Self::ROW, "the key was expanded for another kernel");
        // SAFETY: the caller's promise.
        unsafe {
            let zero = V::splat(&[0; 16]);
            let (low, carried) = (keys.low.as_ptr().cast(), CARRIES.0.as_ptr().cast());
            let (left, number) = (rows_in_unit, 0);
            let mut this = Self { keys, upper: zero, change: zero, number, low, carried, left, rows_in_unit, ivs };
            this.start_at(u128::from_be_bytes(ivs[0]));
            this
        }
    }

    /// Starts with any number.
    ///
    /// # Safety
    /// The instructions of `V` are there.
    #[inline(always)]
    unsafe fn start_at(&mut self, number: u128) {
        let skipped = number as usize % Self::ROW;
        self.number = number;
        // SAFETY: the caller's promise; both tables have two rows, of which one from `skipped` on is used.
        unsafe {
            self.low = self.keys.low.as_ptr().add(skipped).cast();
            self.carried = CARRIES.0.as_flattened().as_ptr().add(4 * IN_FLIGHT - Self::ROW + skipped).cast();
            self.upper = V::splat(&self.keys.product(number - skipped as u128));
            self.set_change();
        }
    }

    /// Sets the change of the product where a carry goes into the upper bits.
    ///
    /// # Safety
    /// The instructions of `V` are there.
    #[inline(always)]
    unsafe fn set_change(&mut self) {
        let bits = Self::ROW.trailing_zeros();
        let through = (bits + (self.number >> bits).trailing_ones()).min(127) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let steps = &self.keys.steps;
            self.change = V::splat(&steps[through]).xor(V::splat(&steps[bits as usize - 1]));
        }
    }
}

impl<V: AesVector> Masks<V> for Products<'_, V> {
    #[inline(always)]
    unsafe fn mask<const INDEX: usize>(&mut self) -> V {
        let at = INDEX * 16 * V::BLOCKS;
        // SAFETY: the caller's promise; the tables have a row from these places on.
        unsafe { V::load(self.low.add(at)).xor3(self.upper, V::load(self.carried.add(at)).and(self.change)) }
    }

    #[inline(always)]
    unsafe fn advance(&mut self) {
        let next = self.number.wrapping_add(Self::ROW as u128);
        self.left -= 1;
        if self.left == 0 {
            self.left = self.rows_in_unit;
            self.ivs = &self.ivs[1..];
            let first = u128::from_be_bytes(self.ivs[0]);
            if first != next {
                // SAFETY: the caller's promise.
                return unsafe { self.start_at(first) };
            }
        }
        self.number = next;
        // SAFETY: the caller's promise.
        unsafe {
            self.upper = self.upper.xor(self.change);
            self.set_change();
        }
    }
}

/// Runs LRW on every unit of `job`.
///
/// # Safety
/// The instructions of `V` are there; `job` comes from its constructor.
#[inline(always)]
pub(super) unsafe fn lrw<V: AesVector, const ROUNDS: usize, const ENCRYPT: bool>(job: &BlockJob<'_, LrwKeys>) {
    let rows_in_unit = job.unit_len() / (16 * V::BLOCKS * IN_FLIGHT);
    // SAFETY: the caller's promise; a row is a divisor of a unit.
    unsafe {
        let rows = Products::<V>::new(job.keys(), job.ivs(), rows_in_unit);
        let count = job.units() * rows_in_unit;
        masked_rows::<V, _, ROUNDS, ENCRYPT>(&job.keys().data, rows, (job.src(), job.dst()), count);
    }
}

/// Runs CTR on every unit of `job`.
///
/// # Safety
/// The instructions of `V` are there; `job` comes from its constructor.
#[inline(always)]
pub(super) unsafe fn ctr<V: GcmVector, const ROUNDS: usize>(job: &BlockJob<'_, Schedule>) {
    let len = 16 * V::BLOCKS;
    let row_len = IN_FLIGHT * len;
    let (mut src, mut dst) = (job.src(), job.dst());
    let steps = STEPS.0.as_ptr().cast::<u8>();
    // SAFETY: instructions are the caller's promise; a row is a divisor of a unit, and the pointers move over units.
    unsafe {
        let keys = Keys::<V, ROUNDS>::new(&job.keys().encrypt);
        let row_step = V::splat(&((IN_FLIGHT * V::BLOCKS) as u128).to_le_bytes());
        for iv in &job.ivs()[..job.units()] {
            // The number before the first.
            let mut before = V::splat(&u128::from_be_bytes(*iv).wrapping_sub(1).to_le_bytes());
            for _ in 0..job.unit_len() / row_len {
                let key = keys.get::<0>();
                let mut states = [key; IN_FLIGHT];
                each!(I => states[I] = before.add128(V::load(steps.add(I * len))).reversed().xor(key));
                before = before.add128(row_step);
                each_round!(ROUNDS, R => {
                    let key = keys.get::<R>();
                    each!(I => states[I] = states[I].enc(key));
                });
                each!(I => {
                    let last = keys.get::<ROUNDS>().xor(V::load(src.add(I * len)));
                    states[I].enc_last(last).store(dst.add(I * len));
                });
                src = src.add(row_len);
                dst = dst.add(row_len);
            }
        }
    }
}
