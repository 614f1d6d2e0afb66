//! Implementations of hashes of several messages.

use crate::isa;

/// An implementation of a hash for several messages, with the proof that this CPU can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashKernel {
    /// One message at a time by the hash's library, which detects and uses instructions itself.
    Portable,
    /// SHA instructions on two interleaved messages: for SHA-256.
    Sha2x(isa::Sha),
    /// SHA instructions on four interleaved messages: for SHA-256.
    Sha4x(isa::Sha),
    /// Vectors of 256 bits with words of eight messages of SHA-256, or four of SHA-384, SHA-512 and BLAKE2b.
    Avx2(isa::Avx2),
    /// Vectors of 512 bits with words of sixteen messages of SHA-256, or eight of SHA-384, SHA-512 and BLAKE2b.
    Avx512(isa::Avx512),
}

impl HashKernel {
    /// Returns the name of the kernel in benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sha2x(_) => "sha2x",
            Self::Sha4x(_) => "sha4x",
            Self::Avx2(_) => "avx2",
            Self::Avx512(_) => "avx512",
        }
    }

    /// Returns the number of messages of a hash with words of `word_len` bytes that the kernel hashes together.
    fn lanes(self, word_len: usize) -> usize {
        match self {
            Self::Portable => 1,
            Self::Sha2x(_) => 2,
            Self::Sha4x(_) => 4,
            Self::Avx2(_) => 32 / word_len,
            Self::Avx512(_) => 64 / word_len,
        }
    }

    /// Returns the kernel for `count` messages that are left: another one if they fill less than half of the lanes of
    /// a vector.
    pub(super) fn narrowed(self, word_len: usize, count: usize) -> Self {
        let narrower = match self {
            Self::Avx512(_) | Self::Avx2(_) if word_len == size_of::<u32>() => isa::Sha::detect().map(Self::Sha4x),
            Self::Avx512(_) => isa::Avx2::detect().map(Self::Avx2),
            Self::Avx2(_) => None,
            Self::Portable | Self::Sha2x(_) | Self::Sha4x(_) => return self,
        };
        match narrower {
            _ if count * 2 >= self.lanes(word_len) => self,
            Some(kernel) => kernel.narrowed(word_len, count),
            None => Self::Portable,
        }
    }

    /// Returns the number of lanes for `count` messages: vectors have all of theirs.
    pub(super) fn lanes_for(self, word_len: usize, count: usize) -> usize {
        let lanes = self.lanes(word_len);
        if matches!(self, Self::Sha2x(_) | Self::Sha4x(_)) { lanes.min(count) } else { lanes }
    }
}
