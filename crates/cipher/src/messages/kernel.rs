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

    /// Returns the kernel for `count` messages that are left: a vector takes the same time for fewer messages than it
    /// has lanes. SHA instructions are faster than half of a vector; a library is faster than two messages of a hash
    /// that has no instructions.
    pub(super) fn narrowed(self, word_len: usize, count: usize) -> Self {
        let has_instructions = word_len == size_of::<u32>();
        let pays = if has_instructions { count * 2 >= self.lanes(word_len) } else { count > 2 };
        match self {
            Self::Avx2(_) | Self::Avx512(_) if !pays && has_instructions => {
                isa::Sha::detect().map_or(Self::Portable, Self::Sha4x)
            }
            Self::Avx2(_) | Self::Avx512(_) if !pays => Self::Portable,
            kernel => kernel,
        }
    }

    /// Returns the number of lanes for `count` messages: vectors have all of theirs.
    pub(super) fn lanes_for(self, word_len: usize, count: usize) -> usize {
        let lanes = self.lanes(word_len);
        if matches!(self, Self::Sha2x(_) | Self::Sha4x(_)) { lanes.min(count) } else { lanes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_messages_of_wide_words_are_for_the_library() {
        let vectors = [isa::Avx2::detect().map(HashKernel::Avx2), isa::Avx512::detect().map(HashKernel::Avx512)];
        for kernel in vectors.into_iter().flatten() {
            assert_eq!([1, 2].map(|count| kernel.narrowed(8, count)), [HashKernel::Portable; 2]);
            assert_eq!([3, 4, 8, 64].map(|count| kernel.narrowed(8, count)), [kernel; 4]);
        }
    }
}
