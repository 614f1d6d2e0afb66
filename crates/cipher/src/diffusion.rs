//! The diffusion step of the anti-forensic splitter.

use crate::Hash;
use crate::sha256::NumberedBlocks;

/// Replaces blocks as long as a digest by the hash of their number and themselves, as the anti-forensic splitter of
/// LUKS does with each stripe. The blocks of a call are independent: with SHA-256 they are hashed together. Memory with
/// copies of them is wiped when this is dropped.
///
/// ```
/// use inlock_cipher::{Diffusion, Hash};
///
/// let mut stripe = [7; 40];
/// Diffusion::new(Hash::Sha256).apply(&mut stripe);
/// assert_eq!(stripe[..32], Hash::Sha256.digest(&[&[0, 0, 0, 0], &[7; 32]])[..32]);
/// assert_eq!(stripe[32..], Hash::Sha256.digest(&[&[0, 0, 0, 1], &[7; 8]])[..8]);
/// ```
pub struct Diffusion(Implementation);

enum Implementation {
    Sha256(Box<NumberedBlocks>),
    Other(Hash),
}

impl Diffusion {
    /// Returns the diffusion with `hash`.
    pub fn new(hash: Hash) -> Self {
        Self(match hash {
            Hash::Sha256 => Implementation::Sha256(Box::new(NumberedBlocks::new())),
            hash => Implementation::Other(hash),
        })
    }

    /// Replaces each block of `data` as long as a digest by the digest of its number, which is counted from 0 and has
    /// four bytes in big-endian order, and itself. A shorter last block keeps its length.
    pub fn apply(&mut self, data: &mut [u8]) {
        match &mut self.0 {
            Implementation::Sha256(blocks) => blocks.replace(data),
            Implementation::Other(hash) => {
                for (number, chunk) in (0u32..).zip(data.chunks_mut(hash.len())) {
                    let digest = hash.digest(&[&number.to_be_bytes(), chunk]);
                    let len = chunk.len();
                    chunk.copy_from_slice(&digest[..len]);
                }
            }
        }
    }
}

impl std::fmt::Debug for Diffusion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hash = match self.0 {
            Implementation::Sha256(_) => Hash::Sha256,
            Implementation::Other(hash) => hash,
        };
        write!(f, "Diffusion({hash})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffusion_replaces_blocks_by_digests_of_number_and_block() {
        for hash in Hash::ALL {
            let mut diffusion = Diffusion::new(hash);
            for len in [0, 1, 16, hash.len() - 1, hash.len(), hash.len() + 1, 3 * hash.len(), 300] {
                let data = crate::testing::noise(5, len);
                let mut replaced = data.clone();
                diffusion.apply(&mut replaced);
                for (number, (block, replaced)) in
                    (0u32..).zip(data.chunks(hash.len()).zip(replaced.chunks(hash.len())))
                {
                    let digest = hash.digest(&[&number.to_be_bytes(), block]);
                    assert_eq!(replaced, &digest[..block.len()], "{hash}, block {number} of {len} bytes");
                }
            }
        }
    }
}
