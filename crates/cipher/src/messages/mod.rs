//! The order of the steps with which several messages of the same length are hashed: common to all hashes with kernels.
//!
//! Blocks are hashed where they lie; only those with the edges of a message are put together in a buffer. The last
//! block of a message is always there, since a hash may treat it in another way.

mod hmac;
mod kernel;

pub(crate) use hmac::HmacBatch;
pub use kernel::HashKernel;

/// Longest prefix and longest suffix of messages in bytes.
pub(crate) const MAX_EDGE: usize = 256;
/// Blocks of a buffer with the last block, a suffix, and padding with the length: of 64 bytes, or fewer of 128.
const TAIL_BLOCKS: usize = (64 + MAX_EDGE + 9).div_ceil(64);

/// A hash with blocks of `BLOCK` bytes.
pub(crate) trait Algorithm<const BLOCK: usize>: Copy + Send + Sync {
    /// Length of a word in bytes, of which vectors have as many as messages.
    const WORD_LEN: usize;
    type State: Copy + Send + Sync;

    /// Returns the state before the first block.
    fn initial(self) -> Self::State;

    /// Hashes the same number of blocks into each state, on a kernel with `N` lanes.
    fn compress<const N: usize>(
        kernel: HashKernel,
        states: &mut [Self::State; N],
        blocks: [&[[u8; BLOCK]]; N],
        position: Position,
    );

    /// Pads the first `len` bytes of `tail`, which end a message of `total` bytes and have zeroes behind them. Returns
    /// the length of whole blocks.
    fn pad(tail: &mut [u8], len: usize, total: u64) -> usize;

    /// Writes the first bytes of the digest.
    fn write_digest(state: &Self::State, digest: &mut [u8]);

    /// Writes the digest of one message.
    fn digest_one(self, start: &Start<'_, Self::State>, message: Message<'_>, digest: &mut [u8]) {
        let digests = Digests { stride: digest.len(), len: digest.len(), bytes: digest };
        digest_lanes::<Self, BLOCK, 1>(HashKernel::Portable, start, [message], digests);
    }
}

/// Where blocks are in their messages.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    /// Bytes before them.
    pub(crate) before: u64,
    /// Bytes of the message if they are the last ones. These have zeroes or padding behind it.
    pub(crate) end: Option<u64>,
}

/// Parts that all messages have in common.
pub(crate) struct Start<'a, S> {
    /// State after the first whole blocks.
    pub(crate) state: S,
    /// Length of these blocks in bytes.
    pub(crate) len: usize,
    /// End of the messages, of at most [`MAX_EDGE`] bytes.
    pub(crate) suffix: &'a [u8],
}

/// The bytes of a message behind the first whole blocks.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// A block or less.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

/// Memory for digests of `len` bytes, one in each `stride` bytes.
pub(crate) struct Digests<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) stride: usize,
    pub(crate) len: usize,
}

impl Digests<'_> {
    fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    fn after(&mut self, at: usize) -> Digests<'_> {
        Digests { bytes: &mut self.bytes[at * self.stride..], stride: self.stride, len: self.len }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_exact_mut(self.stride).map(|bytes| &mut bytes[..self.len])
    }
}

/// Hashes a message for each digest. All have heads of one length, and bodies of one length.
pub(crate) fn digest_all<'a, A: Algorithm<BLOCK>, const BLOCK: usize>(
    algorithm: A,
    best: HashKernel,
    start: &Start<'_, A::State>,
    message: impl Fn(usize) -> Message<'a>,
    mut digests: Digests<'_>,
) {
    let count = digests.count();
    let mut at = 0;
    while at < count {
        let left = count - at;
        let kernel = best.narrowed(A::WORD_LEN, left);
        let lanes = kernel.lanes_for(A::WORD_LEN, left);
        let mut digests = digests.after(at);
        // Lanes without a message of their own hash the last one once more.
        let message = |lane: usize| message(at + lane.min(left - 1));
        match lanes {
            1 => digests.iter_mut().take(1).for_each(|digest| algorithm.digest_one(start, message(0), digest)),
            2 => digest_lanes::<A, BLOCK, 2>(kernel, start, std::array::from_fn(message), digests),
            3 => digest_lanes::<A, BLOCK, 3>(kernel, start, std::array::from_fn(message), digests),
            4 => digest_lanes::<A, BLOCK, 4>(kernel, start, std::array::from_fn(message), digests),
            8 => digest_lanes::<A, BLOCK, 8>(kernel, start, std::array::from_fn(message), digests),
            _ => digest_lanes::<A, BLOCK, 16>(kernel, start, std::array::from_fn(message), digests),
        }
        at += lanes;
    }
}

fn digest_lanes<A: Algorithm<BLOCK>, const BLOCK: usize, const N: usize>(
    kernel: HashKernel,
    start: &Start<'_, A::State>,
    messages: [Message<'_>; N],
    mut digests: Digests<'_>,
) {
    let mut states = [start.state; N];
    let (head_len, len) = messages.first().map_or((0, 0), |message| (message.head.len(), message.body.len()));
    let mut before = start.len;
    // The first bytes of the body complete the block that the head has begun; a shorter message is in the last block.
    let (rest_len, body) = match head_len {
        0 => (0, 0),
        _ if head_len + len <= BLOCK => (head_len, 0),
        _ => (0, BLOCK - head_len),
    };
    if rest_len < head_len {
        // Buffers are filled in place: arrays that are mapped are copied, and the stack with them has to be wiped.
        let mut blocks = [[0; BLOCK]; N];
        for (block, message) in blocks.iter_mut().zip(&messages) {
            block[..head_len].copy_from_slice(message.head);
            block[head_len..].copy_from_slice(&message.body[..body]);
        }
        let position = Position { before: before as u64, end: None };
        A::compress(kernel, &mut states, blocks.each_ref().map(std::slice::from_ref), position);
        before += BLOCK;
    }
    let middle = if rest_len > 0 { 0 } else { (len - body).saturating_sub(1) / BLOCK * BLOCK };
    let position = Position { before: before as u64, end: None };
    A::compress(kernel, &mut states, messages.map(|message| message.body[body..body + middle].as_chunks().0), position);
    before += middle;

    let tail_len = rest_len + (len - body - middle) + start.suffix.len();
    let total = (before + tail_len) as u64;
    let mut padded = 0;
    let mut tails = [[[0; BLOCK]; TAIL_BLOCKS]; N];
    for (tail, message) in tails.iter_mut().zip(&messages) {
        let tail = tail.as_flattened_mut();
        let mut at = 0;
        for part in [&message.head[..rest_len], &message.body[body + middle..], start.suffix] {
            tail[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        padded = A::pad(tail, tail_len, total);
    }
    let position = Position { before: before as u64, end: Some(total) };
    A::compress(kernel, &mut states, tails.each_ref().map(|tail| &tail[..padded / BLOCK]), position);
    states.iter().zip(digests.iter_mut()).for_each(|(state, digest)| A::write_digest(state, digest));
}

/// Writes the padding of SHA-2: a bit, zeroes, and the length in bits in the last `length_len` bytes of a block.
pub(crate) fn pad_sha2<const BLOCK: usize>(tail: &mut [u8], len: usize, total: u64, length_len: usize) -> usize {
    let padded = (len + 1 + length_len).next_multiple_of(BLOCK);
    tail[len] = 0x80;
    tail[padded - 8..padded].copy_from_slice(&(total * 8).to_be_bytes());
    padded
}

/// Returns the lanes as those of a kernel with `M`, if there are so many.
#[cfg(target_arch = "x86_64")]
pub(crate) fn lanes_as<'a, 'b, S, B, const N: usize, const M: usize>(
    states: &'a mut [S; N],
    blocks: [&'b [B]; N],
) -> Option<(&'a mut [S; M], [&'b [B]; M])> {
    Some((<&mut [S; M]>::try_from(&mut states[..]).ok()?, <[&[B]; M]>::try_from(&blocks[..]).ok()?))
}
