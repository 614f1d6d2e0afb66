//! Digests of many messages of the same length.

#[cfg(test)]
mod hmac_tests;
#[cfg(test)]
mod tests;

use crate::blake2b::{self, Blake2b};
use crate::isa::{Avx2, Avx512, CpuLimit, Sha};
use crate::messages::{Algorithm, Digests, HashKernel, MAX_EDGE, Message, Position, Start, digest_all};
use crate::sha256::Sha256;
use crate::sha512::Sha512;
use crate::{CipherError, Hash};
use std::sync::OnceLock;
use std::time::Instant;

impl HashKernel {
    /// Returns the fastest kernel of `hash` that this CPU has and `INLOCK_CPU` allows. The first call for a hash
    /// compares them, for some microseconds.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn best(hash: Hash) -> Result<Self, CipherError> {
        static SHA256: OnceLock<HashKernel> = OnceLock::new();
        static SHA512: OnceLock<HashKernel> = OnceLock::new();
        static BLAKE2B: OnceLock<HashKernel> = OnceLock::new();
        let limit = CpuLimit::from_env()?;
        let best = match hash {
            Hash::Sha256 => &SHA256,
            Hash::Sha384 | Hash::Sha512 => &SHA512,
            hash if is_blake2b(hash) => &BLAKE2B,
            _ => return Ok(Self::Portable),
        };
        Ok(*best.get_or_init(|| fastest(hash, &Self::available_within(hash, limit))))
    }

    /// Returns all kernels of `hash` that this CPU has. Ignores `INLOCK_CPU`.
    pub fn available(hash: Hash) -> Vec<Self> {
        Self::available_within(hash, CpuLimit::default())
    }

    fn available_within(hash: Hash, limit: CpuLimit) -> Vec<Self> {
        let known = [
            (CpuLimit::Portable, Some(Self::Portable)),
            (CpuLimit::AesNi, Sha::detect().map(Self::Sha2x)),
            (CpuLimit::AesNi, Sha::detect().map(Self::Sha4x)),
            (CpuLimit::AesNi, Avx2::detect().map(Self::Avx2)),
            (CpuLimit::Vaes512, Avx512::detect().map(Self::Avx512)),
        ];
        let allowed = known.into_iter().filter(|(needs, _)| *needs <= limit);
        allowed.filter_map(|(_, kernel)| kernel).filter(|kernel| kernel.can_compute(hash)).collect()
    }

    /// Whether the kernel can compute `hash`.
    fn can_compute(self, hash: Hash) -> bool {
        match self {
            Self::Portable => true,
            Self::Sha2x(_) | Self::Sha4x(_) => hash == Hash::Sha256,
            Self::Avx2(_) | Self::Avx512(_) => {
                matches!(hash, Hash::Sha256 | Hash::Sha384 | Hash::Sha512) || is_blake2b(hash)
            }
        }
    }
}

fn is_blake2b(hash: Hash) -> bool {
    matches!(hash, Hash::Blake2b160 | Hash::Blake2b256 | Hash::Blake2b384 | Hash::Blake2b512)
}

/// Returns the kernel that hashes some blocks in the shortest time.
fn fastest(hash: Hash, kernels: &[HashKernel]) -> HashKernel {
    let data = [0x5a; 16 * 1024];
    let mut digests = [0; 16 * Hash::MAX_LEN];
    let mut time = |kernel: HashKernel| {
        let batch = HashBatch::new_on(kernel, hash, &[], &[]);
        // The shortest of several, as other programs lengthen some.
        let times = (0..5).map(|_| {
            let begin = Instant::now();
            batch.digest_blocks(&data, data.len() / 16, &mut digests, Hash::MAX_LEN);
            begin.elapsed()
        });
        times.min().unwrap_or_default()
    };
    kernels.iter().copied().min_by_key(|kernel| time(*kernel)).unwrap_or(HashKernel::Portable)
}

/// Digests of `prefix || message || suffix` for many messages of the same length. SHA-256, SHA-384, SHA-512
/// and BLAKE2b have kernels for several messages at a time; other hashes are computed one by one. Calls allocate
/// nothing.
///
/// ```
/// use inlock_cipher::{Hash, HashBatch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let salted = HashBatch::new(Hash::Sha256, b"salt", b"")?;
/// let data = [7; 3 * 4096];
/// let mut digests = [0; 3 * 32];
/// salted.digest_blocks(&data, 4096, &mut digests, 32);
/// assert_eq!(digests[..32], digests[64..]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HashBatch {
    hash: Hash,
    kernel: HashKernel,
    /// The whole prefix; the bytes behind its whole blocks begin the first block of a message.
    prefix: Vec<u8>,
    suffix: Vec<u8>,
    implementation: Implementation,
}

/// An implementation of the hash, for SHA-2 with the state after the whole blocks of the prefix.
#[derive(Clone, Copy, Debug)]
enum Implementation {
    Sha256([u32; 8]),
    Sha512([u64; 8]),
    Blake2b,
    /// The hash's library.
    OneByOne,
}

impl HashBatch {
    /// Prepares the prefix and the suffix of all messages, for the best kernel of `hash`.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    ///
    /// # Panics
    ///
    /// Panics if the prefix or the suffix is longer than 256 bytes.
    pub fn new(hash: Hash, prefix: &[u8], suffix: &[u8]) -> Result<Self, CipherError> {
        Ok(Self::new_on(HashKernel::best(hash)?, hash, prefix, suffix))
    }

    /// Prepares the prefix and the suffix of all messages, for `kernel`.
    ///
    /// # Panics
    ///
    /// Panics if the prefix or the suffix is longer than 256 bytes, or if the kernel is none of `hash`.
    pub fn new_on(kernel: HashKernel, hash: Hash, prefix: &[u8], suffix: &[u8]) -> Self {
        assert!(prefix.len() <= MAX_EDGE && suffix.len() <= MAX_EDGE, "prefix and suffix have at most 256 bytes");
        assert!(kernel.can_compute(hash), "{kernel:?} is a kernel of {hash}");
        let implementation = match hash {
            Hash::Sha256 => Implementation::Sha256(after_blocks(Sha256, prefix)),
            Hash::Sha384 => Implementation::Sha512(after_blocks(Sha512::Bits384, prefix)),
            Hash::Sha512 => Implementation::Sha512(after_blocks(Sha512::Bits512, prefix)),
            // A prefix is in one block, or hashed by the library.
            hash if is_blake2b(hash) && prefix.len() <= blake2b::BLOCK_LEN => Implementation::Blake2b,
            _ => Implementation::OneByOne,
        };
        let kernel = if let Implementation::OneByOne = implementation { HashKernel::Portable } else { kernel };
        Self { hash, kernel, prefix: prefix.to_vec(), suffix: suffix.to_vec(), implementation }
    }

    /// Returns the hash.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> HashKernel {
        self.kernel
    }

    /// Hashes each `len` bytes of `data` as one message. Writes each digest to the first of `stride` bytes of
    /// `digests`, and leaves those between.
    ///
    /// # Panics
    ///
    /// Panics unless `data` has `len` bytes for each digest, and `stride` bytes have room for one.
    pub fn digest_blocks(&self, data: &[u8], len: usize, digests: &mut [u8], stride: usize) {
        let count = digests.len() / stride;
        assert_eq!(Some(data.len()), count.checked_mul(len), "there is a message for each digest");
        self.digest_all(|at| &data[at * len..][..len], digests, stride);
    }

    /// Hashes messages that lie in different places. Writes digests as [`HashBatch::digest_blocks`] does.
    ///
    /// # Panics
    ///
    /// Panics unless there is a message for each digest, all have the same length, and `stride` bytes have room for a
    /// digest.
    pub fn digest_slices(&self, messages: &[&[u8]], digests: &mut [u8], stride: usize) {
        assert_eq!(messages.len(), digests.len() / stride, "there is a message for each digest");
        let len = messages.first().map_or(0, |message| message.len());
        assert!(messages.iter().all(|message| message.len() == len), "messages have the same length");
        self.digest_all(|at| messages[at], digests, stride);
    }

    fn digest_all<'a>(&self, message: impl Fn(usize) -> &'a [u8], digests: &mut [u8], stride: usize) {
        let len = self.hash.len();
        assert!(len <= stride && digests.len().is_multiple_of(stride), "there is room for each digest");
        let mut digests = Digests { bytes: digests, stride, len };
        match self.implementation {
            Implementation::Sha256(state) => self.digest_sha2(Sha256, state, message, digests),
            Implementation::Sha512(state) => self.digest_sha2(Sha512::Bits512, state, message, digests),
            Implementation::Blake2b => {
                let algorithm = Blake2b(self.hash);
                let start = Start { state: algorithm.initial(), len: 0, suffix: &self.suffix };
                let message = |at| Message { head: &self.prefix, body: message(at) };
                digest_all(algorithm, self.kernel, &start, message, digests);
            }
            Implementation::OneByOne => {
                for (at, digest) in digests.iter_mut().enumerate() {
                    digest.copy_from_slice(&self.hash.digest(&[&self.prefix, message(at), &self.suffix])[..len]);
                }
            }
        }
    }

    fn digest_sha2<'a, A: Algorithm<BLOCK>, const BLOCK: usize>(
        &self,
        algorithm: A,
        state: A::State,
        message: impl Fn(usize) -> &'a [u8],
        digests: Digests<'_>,
    ) {
        let (blocks, head) = self.prefix.as_chunks::<BLOCK>();
        let start = Start { state, len: blocks.len() * BLOCK, suffix: &self.suffix };
        digest_all(algorithm, self.kernel, &start, |at| Message { head, body: message(at) }, digests);
    }
}

/// Returns the state after the whole blocks of a prefix.
fn after_blocks<A: Algorithm<BLOCK>, const BLOCK: usize>(algorithm: A, prefix: &[u8]) -> A::State {
    let mut states = [algorithm.initial()];
    let position = Position { before: 0, end: None };
    A::compress(HashKernel::Portable, &mut states, [prefix.as_chunks().0], position);
    states[0]
}
