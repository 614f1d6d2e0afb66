//! The loops of GCM, LRW and CTR for vectors of four blocks, on any CPU with AES-NI: a vector of four AES-NI vectors.

use super::AesNiKernel;
use super::aes_ni::Block1;
use super::blocks::{AesVector, IN_FLIGHT};
use super::gcm_blocks::{self, GcmVector};
use super::numbered;
use crate::aes::job::{AdditionalBlocks, BlockJob, GcmJob};
use crate::aes::schedule::{GcmKeys, LrwKeys, Schedule};
use crate::block_cipher::Block;
use crate::isa::AesNi;
use crate::testing::noise;
use crate::{DataUnitSize, InOut};
use std::arch::x86_64::*;

/// Four blocks, each by itself.
#[derive(Clone, Copy)]
struct Four([Block1; 4]);

/// Forwards a method to each block.
macro_rules! each_block {
    ($self:ident $(, $other:ident)*; $method:ident) => {
        // SAFETY: the caller's promise.
        Self(std::array::from_fn(|at| unsafe { $self.0[at].$method($($other.0[at]),*) }))
    };
}

#[allow(unused_variables)]
impl AesVector for Four {
    const BLOCKS: usize = 4;
    const AHEAD: usize = 0;
    type Walk = ();

    fn keys_in_registers(_: usize) -> usize {
        0
    }
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(std::array::from_fn(|at| unsafe { Block1::load(from.add(16 * at)) }))
    }
    unsafe fn store(self, to: *mut u8) {
        for (at, block) in self.0.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { block.store(to.add(16 * at)) };
        }
    }
    unsafe fn gather(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from) }
    }
    unsafe fn splat(block: &Block) -> Self {
        // SAFETY: the caller's promise.
        Self([unsafe { Block1::splat(block) }; 4])
    }
    unsafe fn xor(self, other: Self) -> Self {
        each_block!(self, other; xor)
    }
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        each_block!(self, second, third; xor3)
    }
    unsafe fn and(self, other: Self) -> Self {
        each_block!(self, other; and)
    }
    unsafe fn enc(self, key: Self) -> Self {
        each_block!(self, key; enc)
    }
    unsafe fn enc_last(self, key: Self) -> Self {
        each_block!(self, key; enc_last)
    }
    unsafe fn dec(self, key: Self) -> Self {
        each_block!(self, key; dec)
    }
    unsafe fn dec_last(self, key: Self) -> Self {
        each_block!(self, key; dec_last)
    }
    unsafe fn pin(states: &mut [Self; IN_FLIGHT], other: &mut Self) {}
    unsafe fn walk(first: &Block) {}
    unsafe fn next_row(walk: ()) {}
    unsafe fn tweak<const INDEX: usize>(walk: &mut (), counts: *const u8) -> Self {
        unreachable!("GCM has no tweaks")
    }
    fn counts() -> *const u8 {
        std::ptr::null()
    }
}

impl GcmVector for Four {
    unsafe fn reversed(self) -> Self {
        each_block!(self; reversed)
    }
    unsafe fn add32(self, other: Self) -> Self {
        each_block!(self, other; add32)
    }
    unsafe fn add128(self, small: Self) -> Self {
        each_block!(self, small; add128)
    }
    unsafe fn clmul<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(std::array::from_fn(|at| unsafe { self.0[at].clmul::<HALVES>(other.0[at]) }))
    }
    unsafe fn folded(self) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { self.0.into_iter().reduce(|all, block| all.xor(block)).unwrap().folded() }
    }
    unsafe fn first(block: __m128i) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = Block1::first(_mm_setzero_si128());
            Self([Block1::first(block), zero, zero, zero])
        }
    }
}

#[target_feature(enable = "avx,aes,pclmulqdq")]
unsafe fn run_four<const ENCRYPT: bool>(job: &mut GcmJob<'_>) {
    // SAFETY: the instructions are enabled; the job is the caller's.
    unsafe { gcm_blocks::gcm::<Four, 14, ENCRYPT>(job) }
}

/// Compares the loop with that for single blocks, on several numbers of units, in place and to another buffer.
#[test]
fn gcm_of_four_blocks_agrees_with_that_of_one() {
    let Some(proof) = AesNi::detect() else {
        println!("SKIPPED: kernels that this CPU does not have");
        return;
    };
    for log2 in 9..=12 {
        let unit = DataUnitSize::new(1 << log2).unwrap();
        let lengths = ((160u128 << 64) | (8 << log2)).to_be_bytes();
        let mut keys = [GcmKeys::EMPTY, GcmKeys::EMPTY];
        keys.iter_mut().for_each(|keys| keys.schedule.expand(&noise(1, 32)));
        AesNiKernel::gcm_powers(proof, &mut keys[0], 8, &lengths);
        AesNiKernel::gcm_powers(proof, &mut keys[1], 32, &lengths);
        for units in [1, 2, 3, 5, 64] {
            let plain = noise(units as u64, units << log2);
            let counters: Vec<Block> = noise(5, units * 16).as_chunks().0.to_vec();
            let ad: Vec<AdditionalBlocks> = noise(6, units * 32).as_chunks::<16>().0.as_chunks::<2>().0.to_vec();
            let masks = || [&counters[..], &[[0; 16]; 4]].concat();
            let (mut expected, mut tags) = (plain.clone(), masks());
            let mut job = GcmJob::new(&keys[0], unit, (&counters, &ad, &mut tags), InOut::InPlace(&mut expected));
            AesNiKernel::gcm(proof, &mut job, true);
            for encrypt in [true, false] {
                let (from, to) = if encrypt { (&plain, &expected) } else { (&expected, &plain) };
                for in_place in [true, false] {
                    let (mut data, mut own) = (from.clone(), masks());
                    let data_of = if in_place { InOut::InPlace(&mut data) } else { InOut::copy(from, &mut data) };
                    let mut job = GcmJob::new(&keys[1], unit, (&counters, &ad, &mut own), data_of);
                    // SAFETY: the token proves the instructions; the job comes from its constructor.
                    unsafe { if encrypt { run_four::<true>(&mut job) } else { run_four::<false>(&mut job) } }
                    assert!(data == *to && own[..units] == tags[..units], "{units} of {unit:?}, {encrypt} {in_place}");
                }
            }
        }
    }
}

#[target_feature(enable = "avx,aes,pclmulqdq")]
unsafe fn lrw_four<const ENCRYPT: bool>(job: &BlockJob<'_, LrwKeys>) {
    // SAFETY: the instructions are enabled; the job is the caller's.
    unsafe { numbered::lrw::<Four, 14, ENCRYPT>(job) }
}

#[target_feature(enable = "avx,aes,pclmulqdq")]
unsafe fn ctr_four(job: &BlockJob<'_, Schedule>) {
    // SAFETY: the instructions are enabled; the job is the caller's.
    unsafe { numbered::ctr::<Four, 14>(job) }
}

/// Compares rows of 32 blocks with rows of 8, from every number in two rows, and with carries out of 64 and 128 bits.
/// The second unit continues the first, the third does not.
#[test]
fn lrw_and_ctr_of_four_blocks_agree_with_those_of_one() {
    let Some(proof) = AesNi::detect() else {
        println!("SKIPPED: kernels that this CPU does not have");
        return;
    };
    let mut keys = [LrwKeys::EMPTY, LrwKeys::EMPTY];
    let tweak = noise(2, 16).try_into().unwrap();
    keys.iter_mut().zip([8, 32]).for_each(|(keys, row)| keys.expand(&noise(1, 32), &tweak, row));
    let unit = DataUnitSize::new(1024).unwrap();
    let plain = noise(3, 3 * 1024);
    let numbers = (0..64).chain((0..80).flat_map(|less| [(1u128 << 64) - less, 0u128.wrapping_sub(less)]));
    for first in numbers {
        let ivs = [first, first.wrapping_add(64), first.wrapping_add(7)].map(u128::to_be_bytes);
        let mut expected = plain.clone();
        AesNiKernel::lrw(proof, &BlockJob::new(&keys[0], unit, &ivs, InOut::InPlace(&mut expected)), true);
        let mut data = plain.clone();
        // SAFETY: the token proves the instructions; the job comes from its constructor.
        unsafe { lrw_four::<true>(&BlockJob::new(&keys[1], unit, &ivs, InOut::InPlace(&mut data))) };
        assert!(data == expected, "LRW from {first:#x}");
        // SAFETY: as above.
        unsafe { lrw_four::<false>(&BlockJob::new(&keys[1], unit, &ivs, InOut::InPlace(&mut data))) };
        assert!(data == plain, "LRW from {first:#x}, back");
        AesNiKernel::ctr(proof, &BlockJob::new(&keys[0].data, unit, &ivs, InOut::copy(&plain, &mut expected)));
        // SAFETY: as above.
        unsafe { ctr_four(&BlockJob::new(&keys[0].data, unit, &ivs, InOut::InPlace(&mut data))) };
        assert!(data == expected, "CTR from {first:#x}");
    }
}
