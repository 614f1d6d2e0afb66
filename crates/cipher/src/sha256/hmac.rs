//! HMAC-SHA-256 (RFC 2104) of several messages under one key.

use super::{BLOCK_LEN, DIGEST_LEN, INITIAL, Message, Sha256Kernel, Start, State, digest_all};
use crate::CipherError;
use crate::locked::LockedBox;
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Messages that are hashed at a time: as many as the widest kernel has lanes.
const BATCH: usize = 16;

/// A key, as the states of both hashes after their first block.
pub(crate) struct HmacSha256 {
    kernel: Sha256Kernel,
    states: LockedBox<States>,
}

#[derive(Clone, Copy)]
struct States {
    inner: State,
    outer: State,
}

impl zeroize::Zeroize for States {
    fn zeroize(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

impl HmacSha256 {
    /// Prepares a key of any length for the best kernel.
    pub(crate) fn new(key: &[u8]) -> Result<Self, CipherError> {
        Ok(Self::new_on(Sha256Kernel::best()?, key))
    }

    pub(super) fn new_on(kernel: Sha256Kernel, key: &[u8]) -> Self {
        let mut block = Zeroizing::new([0; BLOCK_LEN]);
        if key.len() > BLOCK_LEN {
            block[..DIGEST_LEN].copy_from_slice(&Sha256::digest(key));
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut states = LockedBox::new(States { inner: INITIAL, outer: INITIAL });
        block.iter_mut().for_each(|byte| *byte ^= 0x36);
        compress256(&mut states.inner, std::slice::from_ref(&*block));
        block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        compress256(&mut states.outer, std::slice::from_ref(&*block));
        Self { kernel, states }
    }

    /// Computes the HMAC of each `len` bytes of `data`, behind a head of their own of less than 64 bytes, to the first
    /// bytes of a tag.
    pub(crate) fn tags<const HEAD: usize, const TAG: usize>(
        &self,
        head: impl Fn(usize) -> [u8; HEAD],
        data: &[u8],
        len: usize,
        tags: &mut [[u8; TAG]],
    ) {
        let start = |state| Start { state, len: BLOCK_LEN, suffix: &[] };
        let (inner, outer) = (start(self.states.inner), start(self.states.outer));
        for (batch, (data, tags)) in data.chunks(BATCH * len).zip(tags.chunks_mut(BATCH)).enumerate() {
            let count = tags.len();
            let (mut hashes, mut macs) = ([[0; DIGEST_LEN]; BATCH], [[0; DIGEST_LEN]; BATCH]);
            let (hashes, macs) = (&mut hashes[..count], &mut macs[..count]);
            let heads: [[u8; HEAD]; BATCH] =
                std::array::from_fn(|at| if at < count { head(batch * BATCH + at) } else { [0; HEAD] });
            digest_all(self.kernel, &inner, |at| Message { head: &heads[at], body: &data[at * len..][..len] }, hashes);
            digest_all(self.kernel, &outer, |at| Message { head: &[], body: &hashes[at] }, macs);
            tags.iter_mut().zip(macs).for_each(|(tag, mac)| tag[..DIGEST_LEN].copy_from_slice(mac));
        }
    }
}
