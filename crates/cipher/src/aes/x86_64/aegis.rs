//! AEGIS-128 on AES-NI. A step is five rounds of AES that wait for those of the step before, so several units are run
//! side by side.

use crate::aes::job::AegisJob;
use crate::block_cipher::Block;
use crate::isa;
use std::arch::x86_64::*;

/// Units side by side: as many states as the registers hold.
const SIDE_BY_SIDE: usize = 2;

/// The blocks of the Fibonacci sequence modulo 256.
const FIBONACCI: [Block; 2] =
    [0x000101020305080d1522375990e97962_u128.to_be_bytes(), 0xdb3d18556dc22ff12011314273b528dd_u128.to_be_bytes()];

/// The entry point of AEGIS-128.
pub(crate) struct AegisKernel;

impl AegisKernel {
    /// Encrypts or decrypts every unit of `job`, and writes its tags.
    pub(crate) fn run(_: isa::AesNi, job: &mut AegisJob<'_>, encrypt: bool) {
        // SAFETY: the token proves the instructions; `AegisJob::new` made and checked the pointers.
        unsafe { if encrypt { run::<true>(job) } else { run::<false>(job) } }
    }
}

#[target_feature(enable = "avx,aes")]
unsafe fn run<const ENCRYPT: bool>(job: &mut AegisJob<'_>) {
    let mut unit = 0;
    // SAFETY: instructions are enabled; the units are those of the job.
    unsafe {
        while unit + SIDE_BY_SIDE <= job.units() {
            units::<SIDE_BY_SIDE, ENCRYPT>(job, unit);
            unit += SIDE_BY_SIDE;
        }
        while unit < job.units() {
            units::<1, ENCRYPT>(job, unit);
            unit += 1;
        }
    }
}

/// The states of `N` units.
type States<const N: usize> = [[__m128i; 5]; N];

/// Runs `N` units from number `first` on.
#[inline(always)]
unsafe fn units<const N: usize, const ENCRYPT: bool>(job: &mut AegisJob<'_>, first: usize) {
    let unit_len = job.unit_len();
    let start = first * unit_len;
    let (src, dst) = (job.src().wrapping_add(start), job.dst().wrapping_add(start));
    let (key, ivs, additional_data, tags) = job.blocks();
    // SAFETY: instructions are the caller's promise; each access is inside a unit or a block.
    unsafe {
        let key = load(key);
        let [c0, c1] = FIBONACCI.map(|block| load(&block));
        let ivs: [__m128i; N] = std::array::from_fn(|lane| _mm_xor_si128(key, load(&ivs[first + lane])));
        let mut states: States<N> = ivs.map(|iv| [iv, c1, c0, _mm_xor_si128(key, c0), _mm_xor_si128(key, c1)]);
        for _ in 0..5 {
            update(&mut states, [key; N]);
            update(&mut states, ivs);
        }
        update(&mut states, std::array::from_fn(|lane| load(&additional_data[first + lane][0])));
        update(&mut states, std::array::from_fn(|lane| load(&additional_data[first + lane][1])));
        for at in (0..unit_len).step_by(16) {
            let mut plain = [key; N];
            for (lane, plain) in plain.iter_mut().enumerate() {
                let [_, s1, s2, s3, s4] = states[lane];
                let stream = _mm_xor_si128(_mm_xor_si128(s1, s4), _mm_and_si128(s2, s3));
                let before = _mm_loadu_si128(src.add(lane * unit_len + at).cast());
                let after = _mm_xor_si128(before, stream);
                _mm_storeu_si128(dst.add(lane * unit_len + at).cast(), after);
                *plain = if ENCRYPT { before } else { after };
            }
            update(&mut states, plain);
        }
        // Numbers of bits: 24 bytes of additional data, the unit.
        let lengths = _mm_set_epi64x(unit_len as i64 * 8, 24 * 8);
        let last = states.map(|state| _mm_xor_si128(state[3], lengths));
        for _ in 0..7 {
            update(&mut states, last);
        }
        for (tag, [s0, s1, s2, s3, s4]) in tags[first..].iter_mut().zip(states) {
            let tail = _mm_xor_si128(_mm_xor_si128(s2, s3), s4);
            _mm_storeu_si128(tag.as_mut_ptr().cast(), _mm_xor_si128(_mm_xor_si128(s0, s1), tail));
        }
    }
}

/// Runs a step of every state.
#[inline(always)]
unsafe fn update<const N: usize>(states: &mut States<N>, messages: [__m128i; N]) {
    for (state, message) in states.iter_mut().zip(messages) {
        let [s0, s1, s2, s3, s4] = *state;
        // SAFETY: the caller's promise.
        unsafe {
            *state = [
                _mm_aesenc_si128(s4, _mm_xor_si128(s0, message)),
                _mm_aesenc_si128(s0, s1),
                _mm_aesenc_si128(s1, s2),
                _mm_aesenc_si128(s2, s3),
                _mm_aesenc_si128(s3, s4),
            ];
        }
    }
}

#[inline(always)]
unsafe fn load(block: &Block) -> __m128i {
    // SAFETY: a block is 16 bytes.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}
