//! BLAKE2b of several messages of the same length at a time.

use crate::Hash;
use crate::messages::{Algorithm, HashKernel, Message, Position, Start};
use crate::sha512::INITIAL_512;

type State = [u64; 8];
/// Length of a block of the compression function in bytes.
pub(crate) const BLOCK_LEN: usize = 128;

/// One of the hashes of the family, without a key. The `blake2` crate computes single messages, and has no states to
/// start from: messages with kernels begin with the first block.
#[derive(Clone, Copy)]
pub(crate) struct Blake2b(pub(crate) Hash);

impl Algorithm<BLOCK_LEN> for Blake2b {
    const WORD_LEN: usize = size_of::<u64>();
    type State = State;

    /// RFC 7693, sections 2.5, 2.6 and 3.3: parameters are the digest's length, no key, one leaf.
    fn initial(self) -> State {
        let mut state = INITIAL_512;
        state[0] ^= 0x0101_0000 ^ self.0.len() as u64;
        state
    }

    /// # Panics
    ///
    /// Panics if the kernel has no vectors.
    fn compress<const N: usize>(
        kernel: HashKernel,
        states: &mut [State; N],
        blocks: [&[[u8; BLOCK_LEN]]; N],
        position: Position,
    ) {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::lanes::{avx2, avx512, blake2b::Compress};
            use crate::messages::lanes_as;
            let (Position { before, end }, initial) = (position, &INITIAL_512);
            match kernel {
                HashKernel::Avx2(proof) => {
                    if let Some((states, blocks)) = lanes_as(states, blocks) {
                        return avx2::run_64(proof, Compress { initial, states, blocks, before, end });
                    }
                }
                HashKernel::Avx512(proof) => {
                    if let Some((states, blocks)) = lanes_as(states, blocks) {
                        return avx512::run_64(proof, Compress { initial, states, blocks, before, end });
                    }
                }
                _ => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (states, blocks, position.before, position.end);
        unreachable!("{kernel:?} has no {N} lanes of BLAKE2b");
    }

    /// The last block has zeroes behind the message, and there is one even if this is empty.
    fn pad(_: &mut [u8], len: usize, _: u64) -> usize {
        len.max(1).next_multiple_of(BLOCK_LEN)
    }

    fn write_digest(state: &State, digest: &mut [u8]) {
        for (bytes, word) in digest.chunks_mut(8).zip(state) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    fn digest_one(self, start: &Start<'_, State>, message: Message<'_>, digest: &mut [u8]) {
        debug_assert_eq!(start.len, 0);
        let len = digest.len();
        digest.copy_from_slice(&self.0.digest(&[message.head, message.body, start.suffix])[..len]);
    }
}
