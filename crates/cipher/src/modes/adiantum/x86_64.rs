//! XChaCha and NH on AVX2 (eight blocks of the stream, two passes of NH) and AVX-512 (sixteen, four).

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::chacha::{CONSTANTS, Lanes, permute};
use super::nh;
use crate::block_cipher::Block;
use crate::isa::{Avx2, Vaes512};
use std::arch::x86_64::*;
use zeroize::Zeroize;

/// Maximum number of nonces of a call.
pub(super) const MAX_NONCES: usize = 8;

/// Lanes in vectors.
///
/// # Safety
/// `load` and `splat` need the instructions of their implementation; the other methods have them, since there is a
/// vector. Pointers must be valid for the vector, or for a block of 64 bytes.
#[allow(clippy::missing_safety_doc)]
trait StreamVector: Lanes {
    const COUNT: usize;
    unsafe fn splat(word: u32) -> Self;
    unsafe fn load(from: *const u32) -> Self;
    unsafe fn store(self, to: *mut u32);
    /// Turns words into the blocks of each lane, 64 bytes in one or two vectors. `INDEX` is the block's.
    fn transpose(words: [Self; 16]) -> [Self; 16];
    /// Adds the 64 bytes of block `index` to those at `data`.
    unsafe fn xor_block(blocks: &[Self; 16], index: usize, data: *mut u8);
}

/// The numbers of lanes.
static NUMBERS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The keys of up to [`MAX_NONCES`] streams, by word.
type Subkeys = [[u32; MAX_NONCES]; 8];

/// Derives a stream's key from each of `nonces` (HChaCha).
///
/// # Safety
/// The instructions of `V` are there; it has [`MAX_NONCES`] lanes.
#[inline(always)]
unsafe fn derive<V: StreamVector>(key: &[u8; 32], nonces: &[Block], rounds: u8, subkeys: &mut Subkeys) {
    const { assert!(V::COUNT == MAX_NONCES) };
    let mut words = [[0; MAX_NONCES]; 4];
    for (at, nonce) in nonces.iter().enumerate() {
        for (word, bytes) in words.iter_mut().zip(nonce.as_chunks().0) {
            word[at] = u32::from_le_bytes(*bytes);
        }
    }
    // SAFETY: the caller's promise; each array has as many words as there are lanes.
    unsafe {
        let mut state = [V::splat(CONSTANTS[0]); 16];
        for at in 0..4 {
            state[at] = V::splat(CONSTANTS[at]);
            state[12 + at] = V::load(words[at].as_ptr());
        }
        for at in 0..8 {
            state[4 + at] = V::splat(word_of(key, at));
        }
        permute(&mut state, rounds);
        for at in 0..4 {
            state[at].store(subkeys[at].as_mut_ptr());
            state[12 + at].store(subkeys[4 + at].as_mut_ptr());
        }
    }
}

#[inline(always)]
fn word_of(key: &[u8; 32], at: usize) -> u32 {
    u32::from_le_bytes(key.as_chunks().0[at])
}

/// Adds the stream of key `which` to `data`.
///
/// # Safety
/// The instructions of `V` are there.
#[inline(always)]
unsafe fn add_stream<V: StreamVector>(subkeys: &Subkeys, which: usize, rounds: u8, data: &mut [u8]) {
    // SAFETY: the caller's promise; a whole block is inside the data, a partial one is copied.
    unsafe {
        let numbers = V::load(NUMBERS.as_ptr());
        for (group, data) in (0..).zip(data.chunks_mut(64 * V::COUNT)) {
            let mut first = [V::splat(0); 16];
            for at in 0..4 {
                first[at] = V::splat(CONSTANTS[at]);
            }
            for at in 0..8 {
                first[4 + at] = V::splat(subkeys[at][which]);
            }
            first[12] = V::splat(group * V::COUNT as u32).add(numbers);
            // XChaCha's nonce ends with the byte that extends Adiantum's, and zeroes.
            first[14] = V::splat(1);
            let mut state = first;
            permute(&mut state, rounds);
            for at in 0..16 {
                state[at] = state[at].add(first[at]);
            }
            let blocks = V::transpose(state);
            let mut pieces = data.chunks_exact_mut(64);
            let mut index = 0;
            for piece in &mut pieces {
                V::xor_block(&blocks, index, piece.as_mut_ptr());
                index += 1;
            }
            let rest = pieces.into_remainder();
            if !rest.is_empty() {
                let mut padded = [0; 64];
                padded[..rest.len()].copy_from_slice(rest);
                V::xor_block(&blocks, index, padded.as_mut_ptr());
                rest.copy_from_slice(&padded[..rest.len()]);
                padded.zeroize();
            }
        }
    }
}

/// Adds the stream of each nonce to the wide side of its unit. `few` are vectors for streams that end in them.
///
/// # Safety
/// The instructions of both vectors are there.
#[inline(always)]
unsafe fn streams<Few: StreamVector, Many: StreamVector>(
    key: &[u8; 32],
    nonces: &[Block],
    rounds: u8,
    units: &mut [u8],
    unit_len: usize,
) {
    let mut subkeys = [[0; MAX_NONCES]; 8];
    // SAFETY: the caller's promise.
    unsafe {
        derive::<Few>(key, &nonces[..nonces.len().min(MAX_NONCES)], rounds, &mut subkeys);
        for (which, unit) in units.chunks_exact_mut(unit_len).enumerate().take(MAX_NONCES) {
            let wide = &mut unit[..unit_len - 16];
            if wide.len() <= 64 * Few::COUNT {
                add_stream::<Few>(&subkeys, which, rounds, wide);
            } else {
                add_stream::<Many>(&subkeys, which, rounds, wide);
            }
        }
    }
    subkeys.zeroize();
}

/// Defines the entry points of a kernel.
macro_rules! entry_points {
    ($kernel:ident, $token:ty, $few:ty, $many:ty, $features:literal, $nh:ident) => {
        /// The entry points of this kernel.
        pub(super) struct $kernel;

        impl $kernel {
            /// Adds the stream of each nonce, one for a unit and at most [`MAX_NONCES`], to the unit's wide side.
            pub(super) fn streams(
                _: $token,
                key: &[u8; 32],
                nonces: &[Block],
                rounds: u8,
                units: &mut [u8],
                unit_len: usize,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn run(key: &[u8; 32], nonces: &[Block], rounds: u8, units: &mut [u8], unit_len: usize) {
                    // SAFETY: the instructions are enabled.
                    unsafe { streams::<$few, $many>(key, nonces, rounds, units, unit_len) }
                }
                // SAFETY: the token proves the instructions.
                unsafe { run(key, nonces, rounds, units, unit_len) }
            }

            /// Returns the sums of NH, of the two products of each pass.
            pub(super) fn nh(_: $token, key: &nh::Key, blocks: &[Block]) -> [[u64; 2]; 4] {
                assert!(blocks.len() <= nh::MOST_BLOCKS);
                // SAFETY: the token proves the instructions; no more blocks than the key is for.
                unsafe { $nh(key, blocks) }
            }
        }
    };
}

entry_points!(Avx2Kernel, Avx2, Eight, Eight, "avx2", nh_256);
entry_points!(Avx512Kernel, Vaes512, Eight, Sixteen, "avx2,avx512f,avx512bw,avx512vl", nh_512);

#[target_feature(enable = "avx2")]
unsafe fn nh_256(key: &nh::Key, blocks: &[Block]) -> [[u64; 2]; 4] {
    let mut sums = [[0; 2]; 4];
    // SAFETY: a block has a key of its own and of the three passes behind it; two passes of sums are a vector.
    unsafe {
        let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        let mut keys = key.as_ptr();
        for block in blocks {
            let block = _mm256_broadcastsi128_si256(_mm_loadu_si128(block.as_ptr().cast()));
            let two = |keys: *const u32| {
                let words = _mm256_add_epi32(block, _mm256_loadu_si256(keys.cast()));
                _mm256_mul_epu32(
                    _mm256_shuffle_epi32::<0b01_01_00_00>(words),
                    _mm256_shuffle_epi32::<0b11_11_10_10>(words),
                )
            };
            low = _mm256_add_epi64(low, two(keys));
            high = _mm256_add_epi64(high, two(keys.add(8)));
            keys = keys.add(4);
        }
        _mm256_storeu_si256(sums.as_mut_ptr().cast(), low);
        _mm256_storeu_si256(sums.as_mut_ptr().add(2).cast(), high);
    }
    sums
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn nh_512(key: &nh::Key, blocks: &[Block]) -> [[u64; 2]; 4] {
    let mut sums = [[0; 2]; 4];
    // SAFETY: a block has a key of its own and of the three passes behind it; the sums are a vector.
    unsafe {
        let mut all = _mm512_setzero_si512();
        let mut keys = key.as_ptr();
        for block in blocks {
            let block = _mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast()));
            let words = _mm512_add_epi32(block, _mm512_loadu_si512(keys.cast()));
            let products = _mm512_mul_epu32(
                _mm512_shuffle_epi32::<0b01_01_00_00>(words),
                _mm512_shuffle_epi32::<0b11_11_10_10>(words),
            );
            all = _mm512_add_epi64(all, products);
            keys = keys.add(4);
        }
        _mm512_storeu_si512(sums.as_mut_ptr().cast(), all);
    }
    sums
}

/// Vector with the same word of eight blocks.
#[derive(Clone, Copy)]
struct Eight(__m256i);

impl Lanes for Eight {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists only where its instructions do.
        unsafe { Self(_mm256_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe {
            // Bytes move in one instruction.
            match LEFT {
                16 => Self(_mm256_shuffle_epi8(
                    self.0,
                    _mm256_broadcastsi128_si256(_mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2)),
                )),
                8 => Self(_mm256_shuffle_epi8(
                    self.0,
                    _mm256_broadcastsi128_si256(_mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3)),
                )),
                _ => Self(_mm256_or_si256(_mm256_slli_epi32::<LEFT>(self.0), _mm256_srli_epi32::<RIGHT>(self.0))),
            }
        }
    }
}

impl StreamVector for Eight {
    const COUNT: usize = 8;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_set1_epi32(word as i32)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    /// Blocks `n` and `n + 4` are in the lanes of vectors `n`, `n + 4`, `n + 8` and `n + 12`, a quarter in each.
    #[inline(always)]
    fn transpose(words: [Self; 16]) -> [Self; 16] {
        let mut blocks = words;
        for group in 0..4 {
            let at = 4 * group;
            let [a, b, c, d] = [words[at].0, words[at + 1].0, words[at + 2].0, words[at + 3].0];
            // SAFETY: as above.
            unsafe {
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                blocks[4 * group] = Self(_mm256_unpacklo_epi64(ab, cd));
                blocks[4 * group + 1] = Self(_mm256_unpackhi_epi64(ab, cd));
                blocks[4 * group + 2] = Self(_mm256_unpacklo_epi64(ab_high, cd_high));
                blocks[4 * group + 3] = Self(_mm256_unpackhi_epi64(ab_high, cd_high));
            }
        }
        blocks
    }

    #[inline(always)]
    unsafe fn xor_block(blocks: &[Self; 16], index: usize, data: *mut u8) {
        let quarter = |at: usize| blocks[4 * at + index % 4].0;
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = if index < 4 {
                (
                    _mm256_permute2x128_si256::<0x20>(quarter(0), quarter(1)),
                    _mm256_permute2x128_si256::<0x20>(quarter(2), quarter(3)),
                )
            } else {
                (
                    _mm256_permute2x128_si256::<0x31>(quarter(0), quarter(1)),
                    _mm256_permute2x128_si256::<0x31>(quarter(2), quarter(3)),
                )
            };
            let (to, to_high) = (data.cast::<__m256i>(), data.add(32).cast::<__m256i>());
            _mm256_storeu_si256(to, _mm256_xor_si256(_mm256_loadu_si256(to), low));
            _mm256_storeu_si256(to_high, _mm256_xor_si256(_mm256_loadu_si256(to_high), high));
        }
    }
}

/// Vector with the same word of sixteen blocks.
#[derive(Clone, Copy)]
struct Sixteen(__m512i);

impl Lanes for Sixteen {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_rol_epi32::<LEFT>(self.0)) }
    }
}

impl StreamVector for Sixteen {
    const COUNT: usize = 16;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm512_set1_epi32(word as i32)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    fn transpose(words: [Self; 16]) -> [Self; 16] {
        let mut quarters = words;
        for group in 0..4 {
            let at = 4 * group;
            let [a, b, c, d] = [words[at].0, words[at + 1].0, words[at + 2].0, words[at + 3].0];
            // SAFETY: as above.
            unsafe {
                let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
                let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
                quarters[4 * group] = Self(_mm512_unpacklo_epi64(ab, cd));
                quarters[4 * group + 1] = Self(_mm512_unpackhi_epi64(ab, cd));
                quarters[4 * group + 2] = Self(_mm512_unpacklo_epi64(ab_high, cd_high));
                quarters[4 * group + 3] = Self(_mm512_unpackhi_epi64(ab_high, cd_high));
            }
        }
        let mut blocks = words;
        for at in 0..4 {
            let [a, b, c, d] = [quarters[at].0, quarters[at + 4].0, quarters[at + 8].0, quarters[at + 12].0];
            // SAFETY: as above.
            unsafe {
                let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (even2, odd2) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                blocks[at] = Self(_mm512_shuffle_i32x4::<0x88>(even, even2));
                blocks[at + 4] = Self(_mm512_shuffle_i32x4::<0x88>(odd, odd2));
                blocks[at + 8] = Self(_mm512_shuffle_i32x4::<0xdd>(even, even2));
                blocks[at + 12] = Self(_mm512_shuffle_i32x4::<0xdd>(odd, odd2));
            }
        }
        blocks
    }

    #[inline(always)]
    unsafe fn xor_block(blocks: &[Self; 16], index: usize, data: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = data.cast::<__m512i>();
            _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_loadu_si512(to), blocks[index].0));
        }
    }
}
