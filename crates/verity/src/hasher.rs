//! Digests of the blocks of a tree.

use crate::layout::{HashType, Parameters};
use inlock_cipher::{CipherError, HashBatch};

/// The hash of a tree with its salt.
pub(crate) struct Hasher(HashBatch);

impl Hasher {
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, CipherError> {
        let salt = parameters.salt.as_slice();
        let (prefix, suffix) = match parameters.hash_type {
            HashType::Normal => (salt, &[][..]),
            HashType::ChromeOs => (&[][..], salt),
        };
        Ok(Self(HashBatch::new(parameters.hash, prefix, suffix)?))
    }

    /// Returns the length of a digest.
    pub(crate) fn len(&self) -> usize {
        self.0.hash().len()
    }

    /// Writes the digest of each `len` bytes of `data` to the first bytes of each `stride` bytes of `digests`, and
    /// leaves those between.
    ///
    /// # Panics
    ///
    /// Panics unless `digests` has `stride` bytes for each block.
    pub(crate) fn digest_blocks(&self, data: &[u8], len: usize, stride: usize, digests: &mut [u8]) {
        self.0.digest_blocks(data, len, digests, stride);
    }

    /// Returns the digest of one block.
    pub(crate) fn digest(&self, block: &[u8]) -> Vec<u8> {
        let mut digest = vec![0; self.len()];
        self.digest_blocks(block, block.len(), self.len(), &mut digest);
        digest
    }
}
