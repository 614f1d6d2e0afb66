//! SHA-512 and SHA-384 of several messages of the same length at a time.

use crate::messages::{Algorithm, HashKernel, Position, pad_sha2};
use sha2::block_api::compress512;

type State = [u64; 8];
/// Length of a block of the compression function in bytes.
pub(crate) const BLOCK_LEN: usize = 128;

/// Initial values (FIPS 180-4, sections 5.3.4 and 5.3.5).
const INITIAL_384: State = [
    0xcbbb_9d5d_c105_9ed8,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
    0x47b5_481d_befa_4fa4,
];
pub(crate) const INITIAL_512: State = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// The hash. SHA-384 is its first 48 bytes, from another initial value.
#[derive(Clone, Copy)]
pub(crate) enum Sha512 {
    Bits384,
    Bits512,
}

impl Algorithm<BLOCK_LEN> for Sha512 {
    const WORD_LEN: usize = size_of::<u64>();
    type State = State;

    fn initial(self) -> State {
        match self {
            Self::Bits384 => INITIAL_384,
            Self::Bits512 => INITIAL_512,
        }
    }

    fn compress<const N: usize>(
        kernel: HashKernel,
        states: &mut [State; N],
        blocks: [&[[u8; BLOCK_LEN]]; N],
        _: Position,
    ) {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::lanes::{avx2, avx512, sha2::Compress};
            use crate::messages::lanes_as;
            match kernel {
                HashKernel::Avx2(proof) => {
                    if let Some((states, blocks)) = lanes_as(states, blocks) {
                        return avx2::run_64(proof, Compress { states, blocks });
                    }
                }
                HashKernel::Avx512(proof) => {
                    if let Some((states, blocks)) = lanes_as(states, blocks) {
                        return avx512::run_64(proof, Compress { states, blocks });
                    }
                }
                _ => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = kernel;
        states.iter_mut().zip(blocks).for_each(|(state, blocks)| compress512(state, blocks));
    }

    fn pad(tail: &mut [u8], len: usize, total: u64) -> usize {
        pad_sha2::<BLOCK_LEN>(tail, len, total, size_of::<u128>())
    }

    fn write_digest(state: &State, digest: &mut [u8]) {
        for (bytes, word) in digest.chunks_mut(8).zip(state) {
            bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
        }
    }
}
