//! The compression function with SHA instructions, on several messages step by step.
//!
//! An instruction for two rounds needs the result of the one before it and takes several cycles. The steps of the
//! other messages fill them.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::{Block, State};
use crate::isa::Sha;
use crate::lanes::sha2::ROUND_CONSTANTS_32;
use std::arch::x86_64::*;

/// Hashes the same number of blocks into each state.
///
/// # Panics
///
/// Panics unless the numbers of blocks are equal.
pub(super) fn compress<const N: usize>(_: Sha, states: &mut [State; N], blocks: [&[Block]; N]) {
    // SAFETY: the token proves the instructions.
    unsafe { compress_lanes(states, blocks) }
}

/// Loads 16 bytes as four words.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn load(block: &Block, at: usize) -> __m128i {
    let bytes: &[u8; 16] = &block.as_chunks().0[at];
    // SAFETY: the reference is to 16 bytes; the load needs no alignment.
    let words = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    _mm_shuffle_epi8(words, _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203))
}

#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn words(words: [u32; 4]) -> __m128i {
    let [a, b, c, d] = words.map(u32::cast_signed);
    _mm_set_epi32(d, c, b, a)
}

/// Replaces the oldest four words of each message's schedule by the next four, those of rounds `4 * STEP` and on.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn extend_schedule<const N: usize, const STEP: usize>(schedule: &mut [[__m128i; N]; 4]) {
    for lane in 0..N {
        let [oldest, next, before, last] = std::array::from_fn(|age| schedule[(STEP + age) % 4][lane]);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, next), _mm_alignr_epi8::<4>(last, before));
        schedule[STEP % 4][lane] = _mm_sha256msg2_epu32(sum, last);
    }
}

/// States as the instructions have them: words (a, b, e, f) and (c, d, g, h), highest first.
#[derive(Clone, Copy)]
struct Halves<const N: usize> {
    abef: [__m128i; N],
    cdgh: [__m128i; N],
}

impl<const N: usize> Halves<N> {
    #[inline]
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    fn load(states: &[State; N]) -> Self {
        Self {
            abef: states.map(|[a, b, _, _, e, f, _, _]| words([f, e, b, a])),
            cdgh: states.map(|[_, _, c, d, _, _, g, h]| words([h, g, d, c])),
        }
    }

    #[inline]
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    fn store(self, states: &mut [State; N]) {
        for (lane, state) in states.iter_mut().enumerate() {
            let extract = |vector: __m128i| -> [u32; 4] {
                [
                    _mm_extract_epi32::<0>(vector),
                    _mm_extract_epi32::<1>(vector),
                    _mm_extract_epi32::<2>(vector),
                    _mm_extract_epi32::<3>(vector),
                ]
                .map(i32::cast_unsigned)
            };
            let ([f, e, b, a], [h, g, d, c]) = (extract(self.abef[lane]), extract(self.cdgh[lane]));
            *state = [a, b, c, d, e, f, g, h];
        }
    }

    /// Hashes a block into each state. `schedule` begins with the block's words.
    #[inline]
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    fn compress(&mut self, mut schedule: [[__m128i; N]; 4]) {
        let Self { mut abef, mut cdgh } = *self;
        macro_rules! four_rounds {
            ($($step:literal)*) => { $(
                if $step >= 4 {
                    extend_schedule::<N, $step>(&mut schedule);
                }
                let sums = schedule[$step % 4].map(|vector| _mm_add_epi32(vector, words(ROUND_CONSTANTS_32[$step])));
                for lane in 0..N {
                    cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], sums[lane]);
                }
                let sums = sums.map(|sum| _mm_shuffle_epi32::<0x0e>(sum));
                for lane in 0..N {
                    abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], sums[lane]);
                }
            )* };
        }
        four_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        for lane in 0..N {
            self.abef[lane] = _mm_add_epi32(abef[lane], self.abef[lane]);
            self.cdgh[lane] = _mm_add_epi32(cdgh[lane], self.cdgh[lane]);
        }
    }

    /// Returns a block with the digests of these states and the padding of a message of 96 bytes: one block and these.
    #[inline]
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    fn schedule(&self) -> [[__m128i; N]; 4] {
        let mut schedule = [[words([0; 4]); N]; 4];
        for lane in 0..N {
            let abef = _mm_shuffle_epi32::<0x1b>(self.abef[lane]);
            let cdgh = _mm_shuffle_epi32::<0x1b>(self.cdgh[lane]);
            schedule[0][lane] = _mm_unpacklo_epi64(abef, cdgh);
            schedule[1][lane] = _mm_unpackhi_epi64(abef, cdgh);
            schedule[2][lane] = words([0x8000_0000, 0, 0, 0]);
            schedule[3][lane] = words([0, 0, 0, 96 * 8]);
        }
        schedule
    }
}

#[target_feature(enable = "sha,sse4.1,ssse3")]
fn compress_lanes<const N: usize>(states: &mut [State; N], blocks: [&[Block]; N]) {
    let count = blocks[0].len();
    assert!(blocks.iter().all(|blocks| blocks.len() == count), "messages have the same number of blocks");
    let mut halves = Halves::load(states);
    for at in 0..count {
        halves.compress(std::array::from_fn(|part| std::array::from_fn(|lane| load(&blocks[lane][at], part))));
    }
    halves.store(states);
}

/// Replaces each digest of `chains` `count` times by its HMAC, and adds every result to `sums` by exclusive or. `inner`
/// and `outer` are the states after the blocks with the key of the HMAC.
pub(super) fn iterate_hmac<const N: usize>(
    _: Sha,
    inner: &State,
    outer: &State,
    chains: &mut [State; N],
    sums: &mut [State; N],
    count: u32,
) {
    // SAFETY: the token proves the instructions.
    unsafe { iterate_lanes(inner, outer, chains, sums, count) }
}

#[target_feature(enable = "sha,sse4.1,ssse3")]
fn iterate_lanes<const N: usize>(
    inner: &State,
    outer: &State,
    chains: &mut [State; N],
    sums: &mut [State; N],
    count: u32,
) {
    let (inner, outer) = (Halves::load(&[*inner; N]), Halves::load(&[*outer; N]));
    let (mut chain, mut sum) = (Halves::load(chains), Halves::load(sums));
    for _ in 0..count {
        let mut hash = inner;
        hash.compress(chain.schedule());
        chain = outer;
        chain.compress(hash.schedule());
        for lane in 0..N {
            sum.abef[lane] = _mm_xor_si128(sum.abef[lane], chain.abef[lane]);
            sum.cdgh[lane] = _mm_xor_si128(sum.cdgh[lane], chain.cdgh[lane]);
        }
    }
    chain.store(chains);
    sum.store(sums);
}
