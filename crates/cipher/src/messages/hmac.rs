//! HMAC (RFC 2104) of several messages under one key.

use super::{Algorithm, Digests, HashKernel, Message, Position, Start, digest_all};
use crate::locked_box::LockedBox;
use zeroize::Zeroizing;

/// Messages that are hashed at a time: as many as the widest kernel has lanes.
const BATCH: usize = 16;
/// Length of the longest digest in bytes.
const MAX_DIGEST_LEN: usize = 64;

/// A key, as the states of both hashes after their first block.
pub(crate) struct HmacBatch<A: Algorithm<BLOCK>, const BLOCK: usize> {
    algorithm: A,
    digest_len: usize,
    kernel: HashKernel,
    states: LockedBox<States<A::State>>,
}

#[derive(Clone, Copy)]
struct States<S> {
    inner: S,
    outer: S,
}

impl<A: Algorithm<BLOCK>, const BLOCK: usize> HmacBatch<A, BLOCK> {
    /// Prepares a key of any length for a hash with digests of `digest_len` bytes.
    pub(crate) fn new_on(kernel: HashKernel, algorithm: A, digest_len: usize, key: &[u8]) -> Self {
        let initial = algorithm.initial();
        let mut block = Zeroizing::new([0; BLOCK]);
        if key.len() > BLOCK {
            let start = Start { state: initial, len: 0, suffix: &[] };
            algorithm.digest_one(&start, Message { head: &[], body: key }, &mut block[..digest_len]);
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut states = LockedBox::new(States { inner: initial, outer: initial });
        block.iter_mut().for_each(|byte| *byte ^= 0x36);
        compress_one::<A, BLOCK>(&mut states.inner, &block);
        block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        compress_one::<A, BLOCK>(&mut states.outer, &block);
        Self { algorithm, digest_len, kernel, states }
    }

    /// Computes the HMAC of each `len` bytes of `data`, behind a head of their own of less than a block, to the first
    /// bytes of a tag.
    pub(crate) fn tags<const HEAD: usize, const TAG: usize>(
        &self,
        head: impl Fn(usize) -> [u8; HEAD],
        data: &[u8],
        len: usize,
        tags: &mut [[u8; TAG]],
    ) {
        let start = |state| Start { state, len: BLOCK, suffix: &[] };
        let (inner, outer) = (start(self.states.inner), start(self.states.outer));
        for (batch, (data, tags)) in data.chunks(BATCH * len).zip(tags.chunks_mut(BATCH)).enumerate() {
            let count = tags.len();
            let heads: [[u8; HEAD]; BATCH] =
                std::array::from_fn(|at| if at < count { head(batch * BATCH + at) } else { [0; HEAD] });
            let message = |at: usize| Message { head: &heads[at], body: &data[at * len..][..len] };
            let mut hashes = [[0; MAX_DIGEST_LEN]; BATCH];
            let bytes = hashes[..count].as_flattened_mut();
            let digests = Digests { bytes, stride: MAX_DIGEST_LEN, len: self.digest_len };
            digest_all(self.algorithm, self.kernel, &inner, message, digests);
            let message = |at: usize| Message { head: &[], body: &hashes[at][..self.digest_len] };
            let digests = Digests { bytes: tags.as_flattened_mut(), stride: TAG, len: self.digest_len };
            digest_all(self.algorithm, self.kernel, &outer, message, digests);
        }
    }
}

fn compress_one<A: Algorithm<BLOCK>, const BLOCK: usize>(state: &mut A::State, block: &[u8; BLOCK]) {
    let position = Position { before: 0, end: None };
    A::compress(HashKernel::Portable, std::array::from_mut(state), [std::slice::from_ref(block)], position);
}
