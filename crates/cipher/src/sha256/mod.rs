//! SHA-256 of several messages of the same length at a time.
//!
//! Messages of equal length need the same steps. A stream of SHA instructions waits for its own results, so a kernel
//! interleaves two or four; others have a word of eight or sixteen messages in each vector. Which is faster depends on
//! the CPU, so they are compared once, for some microseconds. Blocks are hashed where they lie; only those with the
//! edges of a message are put together in a buffer.

mod hmac;
mod numbered;
#[cfg(target_arch = "x86_64")]
mod pbkdf2;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector loads and stores, and calls of functions that enable instructions.
mod x86_64;

pub(crate) use hmac::HmacSha256;
pub(crate) use numbered::NumberedBlocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use pbkdf2::pbkdf2;

use crate::CipherError;
use crate::isa::{self, CpuLimit};
#[cfg(not(target_arch = "x86_64"))]
use crate::stopped::Stopped;
use sha2::block_api::compress256;
use std::sync::OnceLock;
use std::time::Instant;

/// Length of a digest in bytes.
const DIGEST_LEN: usize = 32;
/// Length of a block of the compression function in bytes.
const BLOCK_LEN: usize = 64;
/// Longest prefix and longest suffix in bytes.
const MAX_EDGE: usize = 256;
/// The rest of a prefix, or of a message behind its last whole block; a suffix; padding and length.
const TAIL_LEN: usize = (BLOCK_LEN - 1 + MAX_EDGE + 9).next_multiple_of(BLOCK_LEN);

type State = [u32; 8];
type Block = [u8; BLOCK_LEN];

const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// An implementation of SHA-256 for several messages, with the proof that this CPU can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sha256Kernel {
    /// One message at a time by the `sha2` crate, which detects and uses SHA instructions itself.
    Portable,
    /// SHA instructions on two interleaved messages.
    Sha2x(isa::Sha),
    /// SHA instructions on four interleaved messages.
    Sha4x(isa::Sha),
    /// Vectors with words of eight messages. Fewer than half as many are hashed by another kernel.
    Avx2x8(isa::Avx2),
    /// Vectors with words of sixteen messages. Fewer than half as many are hashed by another kernel.
    Avx512x16(isa::Avx512),
}

impl Sha256Kernel {
    /// Returns the fastest kernel that this CPU has and `INLOCK_CPU` allows. The first call compares them.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn best() -> Result<Self, CipherError> {
        static BEST: OnceLock<Sha256Kernel> = OnceLock::new();
        let limit = CpuLimit::from_env()?;
        Ok(*BEST.get_or_init(|| fastest(&Self::available_within(limit))))
    }

    /// Returns all kernels that this CPU has. Ignores `INLOCK_CPU`.
    pub fn available() -> Vec<Self> {
        Self::available_within(CpuLimit::default())
    }

    fn available_within(limit: CpuLimit) -> Vec<Self> {
        let mut kernels = vec![Self::Portable];
        if let Some(proof) = isa::Sha::detect().filter(|_| limit > CpuLimit::Portable) {
            kernels.extend([Self::Sha2x(proof), Self::Sha4x(proof)]);
        }
        kernels.extend(isa::Avx2::detect().filter(|_| limit > CpuLimit::Portable).map(Self::Avx2x8));
        kernels.extend(isa::Avx512::detect().filter(|_| limit >= CpuLimit::Vaes512).map(Self::Avx512x16));
        kernels
    }

    /// Returns the name of the kernel in benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sha2x(_) => "sha2x",
            Self::Sha4x(_) => "sha4x",
            Self::Avx2x8(_) => "avx2x8",
            Self::Avx512x16(_) => "avx512x16",
        }
    }

    /// Returns the number of messages that the kernel interleaves.
    fn lanes(self) -> usize {
        match self {
            Self::Portable => 1,
            Self::Sha2x(_) => 2,
            Self::Sha4x(_) => 4,
            Self::Avx2x8(_) => 8,
            Self::Avx512x16(_) => 16,
        }
    }

    /// Returns the kernel for fewer messages than fill half of the lanes.
    fn narrower(self) -> Self {
        match self {
            Self::Avx2x8(_) | Self::Avx512x16(_) => isa::Sha::detect().map_or(Self::Portable, Self::Sha4x),
            kernel => kernel,
        }
    }

    /// Hashes the same number of blocks into each state.
    fn compress<const N: usize>(self, states: &mut [State; N], blocks: [&[Block]; N]) {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Sha2x(proof) | Self::Sha4x(proof) => return x86_64::compress(proof, states, blocks),
            Self::Avx2x8(proof) => {
                let eight = <&mut [State; 8]>::try_from(&mut states[..]).ok();
                if let (Some(states), Ok(blocks)) = (eight, <[&[Block]; 8]>::try_from(&blocks[..])) {
                    return x86_64::compress_8(proof, states, blocks);
                }
            }
            Self::Avx512x16(proof) => {
                let sixteen = <&mut [State; 16]>::try_from(&mut states[..]).ok();
                if let (Some(states), Ok(blocks)) = (sixteen, <[&[Block]; 16]>::try_from(&blocks[..])) {
                    return x86_64::compress_16(proof, states, blocks);
                }
            }
            Self::Portable => {}
        }
        states.iter_mut().zip(blocks).for_each(|(state, blocks)| compress256(state, blocks));
    }
}

/// Derives nothing: there are no kernels for chains of hashes on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn pbkdf2(
    _passphrase: &[u8],
    _salt: &[u8],
    _iterations: u32,
    _key: &mut [u8],
    _is_stopped: &dyn Fn() -> bool,
) -> Option<Result<(), Stopped>> {
    None
}

/// Returns the kernel that hashes some blocks in the shortest time.
fn fastest(kernels: &[Sha256Kernel]) -> Sha256Kernel {
    let data = [0x5a; 16 * 1024];
    let mut digests = [[0; DIGEST_LEN]; 16];
    let mut time = |kernel: Sha256Kernel| {
        let batch = Sha256Batch::new_on(kernel, &[], &[]);
        // The shortest of several, as other programs lengthen some.
        let times = (0..5).map(|_| {
            let begin = Instant::now();
            batch.digest_blocks(&data, data.len() / digests.len(), &mut digests);
            begin.elapsed()
        });
        times.min().unwrap_or_default()
    };
    kernels.iter().copied().min_by_key(|kernel| time(*kernel)).unwrap_or(Sha256Kernel::Portable)
}

/// SHA-256 of `prefix || message || suffix` for many messages of the same length. Calls allocate nothing.
///
/// ```
/// use inlock_cipher::Sha256Batch;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let salted = Sha256Batch::new(b"salt", b"")?;
/// let data = [7; 3 * 4096];
/// let mut digests = [[0; 32]; 3];
/// salted.digest_blocks(&data, 4096, &mut digests);
/// assert_eq!(digests[0], digests[2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sha256Batch {
    kernel: Sha256Kernel,
    /// State after the whole blocks of the prefix.
    state: State,
    /// The whole prefix; the bytes behind its whole blocks begin the first block of a message.
    prefix: Vec<u8>,
    suffix: Vec<u8>,
}

impl Sha256Batch {
    /// Prepares the prefix and the suffix of all messages, for the best kernel.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    ///
    /// # Panics
    ///
    /// Panics if the prefix or the suffix is longer than 256 bytes.
    pub fn new(prefix: &[u8], suffix: &[u8]) -> Result<Self, CipherError> {
        Ok(Self::new_on(Sha256Kernel::best()?, prefix, suffix))
    }

    /// Prepares the prefix and the suffix of all messages, for `kernel`.
    ///
    /// # Panics
    ///
    /// Panics if the prefix or the suffix is longer than 256 bytes.
    pub fn new_on(kernel: Sha256Kernel, prefix: &[u8], suffix: &[u8]) -> Self {
        assert!(prefix.len() <= MAX_EDGE && suffix.len() <= MAX_EDGE, "prefix and suffix have at most 256 bytes");
        let mut state = INITIAL;
        compress256(&mut state, prefix.as_chunks().0);
        Self { kernel, state, prefix: prefix.to_vec(), suffix: suffix.to_vec() }
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> Sha256Kernel {
        self.kernel
    }

    /// Hashes each `len` bytes of `data` as one message.
    ///
    /// # Panics
    ///
    /// Panics unless `data` has `len` bytes for each digest.
    pub fn digest_blocks(&self, data: &[u8], len: usize, digests: &mut [[u8; DIGEST_LEN]]) {
        assert_eq!(Some(data.len()), digests.len().checked_mul(len), "there is a message for each digest");
        self.digest_all(|at| &data[at * len..][..len], digests);
    }

    /// Hashes messages that lie in different places.
    ///
    /// # Panics
    ///
    /// Panics unless there is a message for each digest and all have the same length.
    pub fn digest_slices(&self, messages: &[&[u8]], digests: &mut [[u8; DIGEST_LEN]]) {
        assert_eq!(messages.len(), digests.len(), "there is a message for each digest");
        let len = messages.first().map_or(0, |message| message.len());
        assert!(messages.iter().all(|message| message.len() == len), "messages have the same length");
        self.digest_all(|at| messages[at], digests);
    }

    fn digest_all<'a>(&self, message: impl Fn(usize) -> &'a [u8], digests: &mut [[u8; DIGEST_LEN]]) {
        let (blocks, head) = self.prefix.as_chunks::<BLOCK_LEN>();
        let start = Start { state: self.state, len: blocks.len() * BLOCK_LEN, suffix: &self.suffix };
        digest_all(self.kernel, &start, |at| Message { head, body: message(at) }, digests);
    }
}

/// Parts that all messages have in common.
struct Start<'a> {
    /// State after the first whole blocks.
    state: State,
    /// Length of these blocks in bytes.
    len: usize,
    /// End of the messages, of at most [`MAX_EDGE`] bytes.
    suffix: &'a [u8],
}

/// The bytes of a message behind the first whole blocks.
#[derive(Clone, Copy)]
struct Message<'a> {
    /// Less than a block.
    head: &'a [u8],
    body: &'a [u8],
}

/// Hashes a message for each digest. All have heads of one length, and bodies of one length.
fn digest_all<'a>(
    best: Sha256Kernel,
    start: &Start<'_>,
    message: impl Fn(usize) -> Message<'a>,
    digests: &mut [[u8; DIGEST_LEN]],
) {
    let count = digests.len();
    let mut at = 0;
    while at < count {
        let left = count - at;
        let kernel = if left * 2 < best.lanes() { best.narrower() } else { best };
        let (digests, lanes) = (&mut digests[at..], kernel.lanes());
        // Lanes without a message of their own hash the last one once more.
        let message = |lane: usize| message(at + lane.min(left - 1));
        match if lanes > 4 { lanes } else { lanes.min(left) } {
            1 => digest_lanes::<1>(kernel, start, std::array::from_fn(message), digests),
            2 => digest_lanes::<2>(kernel, start, std::array::from_fn(message), digests),
            3 => digest_lanes::<3>(kernel, start, std::array::from_fn(message), digests),
            4 => digest_lanes::<4>(kernel, start, std::array::from_fn(message), digests),
            8 => digest_lanes::<8>(kernel, start, std::array::from_fn(message), digests),
            _ => digest_lanes::<16>(kernel, start, std::array::from_fn(message), digests),
        }
        at += lanes;
    }
}

fn digest_lanes<const N: usize>(
    kernel: Sha256Kernel,
    start: &Start<'_>,
    messages: [Message<'_>; N],
    digests: &mut [[u8; DIGEST_LEN]],
) {
    let mut states = [start.state; N];
    let (head_len, len) = messages.first().map_or((0, 0), |message| (message.head.len(), message.body.len()));
    let total = (start.len + head_len + len + start.suffix.len()) as u64 * 8;
    // The first bytes of a body complete the block that the head has begun.
    let begin = if head_len == 0 { 0 } else { (BLOCK_LEN - head_len).min(len) };
    let mut has_head = head_len > 0;
    if begin > 0 && begin + head_len == BLOCK_LEN {
        let blocks: [Block; N] = messages.map(|message| {
            let mut block = [0; BLOCK_LEN];
            block[..head_len].copy_from_slice(message.head);
            block[head_len..].copy_from_slice(&message.body[..begin]);
            block
        });
        kernel.compress(&mut states, blocks.each_ref().map(std::slice::from_ref));
        has_head = false;
    }
    // A message that does not complete that block is part of the tail.
    let (body, middle) = if has_head { (0, 0) } else { (begin, (len - begin) / BLOCK_LEN * BLOCK_LEN) };
    kernel.compress(&mut states, messages.map(|message| message.body[body..body + middle].as_chunks().0));

    let rest_len = if has_head { head_len } else { 0 };
    let tail_len = rest_len + (len - body - middle) + start.suffix.len();
    let padded = (tail_len + 9).next_multiple_of(BLOCK_LEN);
    let tails: [[u8; TAIL_LEN]; N] = messages.map(|message| {
        let mut tail = [0; TAIL_LEN];
        let mut at = 0;
        for part in [&message.head[..rest_len], &message.body[body + middle..], start.suffix] {
            tail[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        tail[at] = 0x80;
        tail[padded - 8..padded].copy_from_slice(&total.to_be_bytes());
        tail
    });
    kernel.compress(&mut states, tails.each_ref().map(|tail| tail[..padded].as_chunks().0));
    for (state, digest) in states.iter().zip(digests) {
        for (word, bytes) in state.iter().zip(digest.as_chunks_mut().0) {
            *bytes = word.to_be_bytes();
        }
    }
}
