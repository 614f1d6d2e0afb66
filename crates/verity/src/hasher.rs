//! Digests of blocks, several at a time if the hash has a kernel for that.

use crate::layout::{HashType, Parameters};
use inlock_cipher::{CipherError, Hash, Sha256Batch};

/// The hash of a tree with its salt.
pub(crate) enum Hasher {
    Batch(Sha256Batch),
    Single { hash: Hash, salt: Vec<u8>, salt_first: bool },
}

impl Hasher {
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, CipherError> {
        let salt_first = parameters.hash_type == HashType::Normal;
        let salt = parameters.salt.as_slice();
        Ok(match parameters.hash {
            Hash::Sha256 if salt_first => Self::Batch(Sha256Batch::new(salt, &[])?),
            Hash::Sha256 => Self::Batch(Sha256Batch::new(&[], salt)?),
            hash => Self::Single { hash, salt: salt.to_vec(), salt_first },
        })
    }

    /// Returns the length of a digest.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Batch(_) => 32,
            Self::Single { hash, .. } => hash.len(),
        }
    }

    /// Writes the digest of each `len` bytes of `data` to the first bytes of each `stride` bytes of `digests`, and
    /// leaves those between.
    ///
    /// # Panics
    ///
    /// Panics unless `digests` has `stride` bytes for each block.
    pub(crate) fn digest_blocks(&self, data: &[u8], len: usize, stride: usize, digests: &mut [u8]) {
        assert_eq!(data.len() / len, digests.len() / stride, "there is a digest for each block");
        match self {
            Self::Batch(batch) => {
                // A digest of 32 bytes needs no padding, with either type.
                let (digests, rest) = digests.as_chunks_mut::<32>();
                assert!(stride == 32 && rest.is_empty(), "digests follow each other");
                batch.digest_blocks(data, len, digests);
            }
            Self::Single { hash, salt, salt_first } => {
                for (block, digest) in data.chunks_exact(len).zip(digests.chunks_exact_mut(stride)) {
                    let parts = if *salt_first { [salt.as_slice(), block] } else { [block, salt] };
                    digest[..hash.len()].copy_from_slice(&hash.digest(&parts)[..hash.len()]);
                }
            }
        }
    }

    /// Returns the digest of one block.
    pub(crate) fn digest(&self, block: &[u8]) -> Vec<u8> {
        let mut digest = vec![0; self.len()];
        self.digest_blocks(block, block.len(), self.len(), &mut digest);
        digest
    }
}
