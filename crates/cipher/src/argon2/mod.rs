//! Argon2i and Argon2id (RFC 9106, version 1.3), with kernels for AVX2 and AVX-512.
//!
//! The memory is `lanes` rows of four segments. All lanes fill their segment of the same number before any goes on, and
//! refer to each other's other segments only; so each lane borrows its segment exclusively and shares the rest, and the
//! threads need no locks.

mod block;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector loads, and calls of functions that enable instructions.
mod x86_64;

use crate::isa::CpuLimit;
use crate::scratch::ScratchMemory;
use blake2::Blake2bVarCore;
use blake2::digest::block_api::{UpdateCore, VariableOutputCore};
use blake2::digest::block_buffer::LazyBuffer;
use block::{Block, WORDS};
use std::io;
use zeroize::{Zeroize, Zeroizing};

/// A variant of Argon2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argon2Variant {
    /// References do not depend on the passphrase.
    Argon2i,
    /// As Argon2i in the first half of the first pass; later references depend on the passphrase.
    Argon2id,
}

/// An Argon2 derivation without its passphrase: variant and costs.
#[derive(Clone, Copy, Debug)]
pub struct Argon2 {
    /// The variant.
    pub variant: Argon2Variant,
    /// Passes over the memory, at least 1.
    pub passes: u32,
    /// Memory in KiB, at least 8 for each lane.
    pub memory_kib: u32,
    /// Lanes, 1 to 2^24 - 1.
    pub lanes: u32,
}

/// The inputs of Argon2. LUKS uses neither a secret nor associated data, but the test vectors do.
struct Input<'a> {
    passphrase: &'a [u8],
    salt: &'a [u8],
    secret: &'a [u8],
    data: &'a [u8],
}

/// Segments of a lane, between which lanes wait for each other.
const SEGMENTS: usize = 4;
const VERSION: u32 = 0x13;
/// Segments of fewer blocks are filled by one thread: starting others takes longer.
const BLOCKS_FOR_THREADS: usize = 64;

impl Argon2 {
    /// Returns the number of words of the memory.
    pub fn memory_words(&self) -> usize {
        self.segment_len() * SEGMENTS * self.lanes as usize * WORDS
    }

    /// Fills `key` from `passphrase` and `salt` on `memory`, with up to `threads` threads. Only this costs time.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start the threads.
    ///
    /// # Panics
    ///
    /// Panics if a cost is out of range, or if the memory has not [`Argon2::memory_words`] words.
    pub fn derive(
        &self,
        passphrase: &[u8],
        salt: &[u8],
        key: &mut [u8],
        memory: &mut ScratchMemory,
        threads: usize,
    ) -> io::Result<()> {
        let input = Input { passphrase, salt, secret: &[], data: &[] };
        self.derive_with(Kernel::best(), &input, key, memory, threads)
    }

    fn derive_with(
        &self,
        kernel: Kernel,
        input: &Input<'_>,
        key: &mut [u8],
        memory: &mut ScratchMemory,
        threads: usize,
    ) -> io::Result<()> {
        assert!(self.passes > 0 && self.lanes > 0 && self.segment_len() >= 2, "costs are in range");
        let blocks = memory.as_mut_slice().as_chunks_mut::<WORDS>().0;
        assert_eq!(blocks.len(), self.memory_words() / WORDS, "memory has the length of the costs");
        self.start(input, key.len(), blocks);
        for pass in 0..self.passes as usize {
            for slice in 0..SEGMENTS {
                self.fill_slice(kernel, blocks, pass, slice, threads)?;
            }
        }
        let mut last = Zeroizing::new([0; WORDS]);
        for lane in blocks.chunks_exact(blocks.len() / self.lanes as usize) {
            block::xor(&mut last, &lane[lane.len() - 1]);
        }
        long_hash(&[&*block::to_bytes(&last)], key);
        Ok(())
    }

    /// Returns the number of blocks of a segment.
    fn segment_len(&self) -> usize {
        self.memory_kib as usize / (SEGMENTS * self.lanes as usize)
    }

    fn kind(&self) -> u32 {
        match self.variant {
            Argon2Variant::Argon2i => 1,
            Argon2Variant::Argon2id => 2,
        }
    }

    /// Hashes the input, and makes the first two blocks of each lane.
    fn start(&self, input: &Input<'_>, key_len: usize, blocks: &mut [Block]) {
        let number = |len: usize| u32::try_from(len).expect("inputs are below 4 GiB").to_le_bytes();
        let costs = [self.lanes, key_len as u32, self.memory_kib, self.passes, VERSION, self.kind()];
        let costs: Vec<u8> = costs.iter().flat_map(|cost| cost.to_le_bytes()).collect();
        let inputs = [input.passphrase, input.salt, input.secret, input.data];
        let lens = inputs.map(|input| number(input.len()));
        let mut parts = vec![&costs[..]];
        inputs.iter().zip(&lens).for_each(|(input, len)| parts.extend([&len[..], input]));
        let mut seed = Zeroizing::new([0; 64]);
        blake2b(&parts, &mut *seed);
        let lane_len = blocks.len() / self.lanes as usize;
        for (lane, blocks) in (0u32..).zip(blocks.chunks_exact_mut(lane_len)) {
            for (number, block) in (0u32..).zip(&mut blocks[..2]) {
                let mut bytes = Zeroizing::new([0; 8 * WORDS]);
                long_hash(&[&*seed, &number.to_le_bytes(), &lane.to_le_bytes()], &mut *bytes);
                *block = block::from_bytes(&bytes);
            }
        }
    }

    /// Fills the segment `slice` of all lanes, each by one thread.
    fn fill_slice(
        &self,
        kernel: Kernel,
        blocks: &mut [Block],
        pass: usize,
        slice: usize,
        threads: usize,
    ) -> io::Result<()> {
        let mut own = Vec::with_capacity(self.lanes as usize);
        let mut shared: Vec<&[Block]> = vec![&[]; SEGMENTS * self.lanes as usize];
        for (number, segment) in blocks.chunks_exact_mut(self.segment_len()).enumerate() {
            match number % SEGMENTS == slice {
                true => own.push((number / SEGMENTS, segment)),
                false => shared[number] = segment,
            }
        }
        let fill = |(lane, own): (usize, &mut [Block])| {
            Segment { argon2: self, kernel, pass, slice, lane, shared: &shared }.fill(own);
        };
        let threads = if self.segment_len() < BLOCKS_FOR_THREADS { 1 } else { threads.clamp(1, own.len()) };
        // Lanes are dealt to the threads in turn; this thread is the first of them.
        let mut hands: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        own.into_iter().enumerate().for_each(|(number, segment)| hands[number % threads].push(segment));
        std::thread::scope(|scope| {
            let mine = hands.swap_remove(0);
            for hand in hands {
                std::thread::Builder::new().spawn_scoped(scope, move || hand.into_iter().for_each(fill))?;
            }
            mine.into_iter().for_each(fill);
            Ok(())
        })
    }
}

/// A segment that a thread fills.
struct Segment<'a> {
    argon2: &'a Argon2,
    kernel: Kernel,
    pass: usize,
    slice: usize,
    lane: usize,
    /// All segments, lane by lane; those of this slice are empty here.
    shared: &'a [&'a [Block]],
}

impl Segment<'_> {
    fn fill(&self, own: &mut [Block]) {
        match self.kernel {
            Kernel::Portable => self.fill_with(own, block::compress::<false>, block::compress::<true>),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(token) => self.fill_with(
                own,
                |previous, reference, next| token.compress::<false>(previous, reference, next),
                |previous, reference, next| token.compress::<true>(previous, reference, next),
            ),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(token) => self.fill_with(
                own,
                |previous, reference, next| token.compress::<false>(previous, reference, next),
                |previous, reference, next| token.compress::<true>(previous, reference, next),
            ),
        }
    }

    #[inline(always)]
    fn fill_with(
        &self,
        own: &mut [Block],
        replace: impl Fn(&Block, &Block, &mut Block),
        add: impl Fn(&Block, &Block, &mut Block),
    ) {
        let mut addresses = self.has_fixed_addresses().then(|| Addresses::new(self));
        let first = if (self.pass, self.slice) == (0, 0) { 2 } else { 0 };
        for index in first..own.len() {
            let (before, rest) = own.split_at_mut(index);
            let Some(next) = rest.first_mut() else { return };
            let previous = match before.last() {
                Some(previous) => previous,
                // The last block of the segment before, of the lane's last segment for the first.
                None => {
                    let segment = self.shared[SEGMENTS * self.lane + (self.slice + SEGMENTS - 1) % SEGMENTS];
                    &segment[segment.len() - 1]
                }
            };
            let random = match &mut addresses {
                Some(addresses) => addresses.at(index),
                None => previous[0],
            };
            let (segment, at) = self.reference(random, index);
            let reference = match segment {
                Some(segment) => &self.shared[segment][at],
                None => &before[at],
            };
            match self.pass {
                0 => replace(previous, reference, next),
                _ => add(previous, reference, next),
            }
        }
    }

    /// Whether references do not depend on the passphrase.
    fn has_fixed_addresses(&self) -> bool {
        self.argon2.variant == Argon2Variant::Argon2i || self.pass == 0 && self.slice < SEGMENTS / 2
    }

    /// Returns the block to which block `index` refers (RFC 9106, section 3.4.2): its segment, `None` for the own one,
    /// and its place there.
    #[inline(always)]
    fn reference(&self, random: u64, index: usize) -> (Option<usize>, usize) {
        let (len, lanes) = (self.argon2.segment_len(), self.argon2.lanes as usize);
        let is_first_slice = (self.pass, self.slice) == (0, 0);
        let lane = if is_first_slice { self.lane } else { (random >> 32) as usize % lanes };
        // The finished segments, then of the own lane what this segment has so far without the previous block.
        let finished = if self.pass == 0 { self.slice } else { SEGMENTS - 1 } * len;
        let area = match (lane == self.lane, index) {
            (true, _) => finished + index - 1,
            (false, 0) => finished - 1,
            (false, _) => finished,
        };
        let square = (random & 0xffff_ffff).pow(2) >> 32;
        let place = area - 1 - ((area as u64 * square) >> 32) as usize;
        // The oldest finished segment is the next one, from the second pass on.
        let oldest = if self.pass == 0 { 0 } else { self.slice + 1 };
        let (segment, at) = (oldest + place / len, place % len);
        let segment = if segment >= SEGMENTS { segment - SEGMENTS } else { segment };
        ((lane != self.lane || segment != self.slice).then_some(SEGMENTS * lane + segment), at)
    }
}

/// Pseudo-random numbers from the position alone.
struct Addresses {
    input: Block,
    numbers: Block,
    made: usize,
}

impl Addresses {
    fn new(segment: &Segment<'_>) -> Self {
        let argon2 = segment.argon2;
        let mut input = [0; WORDS];
        input[..3].copy_from_slice(&[segment.pass as u64, segment.lane as u64, segment.slice as u64]);
        let blocks = argon2.memory_words() / WORDS;
        input[3..6].copy_from_slice(&[blocks as u64, argon2.passes.into(), argon2.kind().into()]);
        Self { input, numbers: [0; WORDS], made: 0 }
    }

    fn at(&mut self, index: usize) -> u64 {
        if self.made <= index {
            self.made = index / WORDS * WORDS + WORDS;
            self.input[6] = (self.made / WORDS) as u64;
            let mut once = [0; WORDS];
            block::compress::<false>(&[0; WORDS], &self.input, &mut once);
            block::compress::<false>(&[0; WORDS], &once, &mut self.numbers);
        }
        self.numbers[index % WORDS]
    }
}

/// An implementation of the compression function, with the proof that this CPU can run it.
#[derive(Clone, Copy)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::Avx512),
}

impl Kernel {
    /// Returns the fastest that this CPU has and `INLOCK_CPU` allows. An unknown value there is reported by the
    /// ciphers.
    fn best() -> Self {
        let limit = CpuLimit::from_env().unwrap_or_default();
        Self::available(limit).pop().unwrap_or(Self::Portable)
    }

    /// Returns those that this CPU has, slowest first.
    fn available(limit: CpuLimit) -> Vec<Self> {
        let mut kernels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            kernels.extend(x86_64::Avx2::detect().filter(|_| limit >= CpuLimit::Vaes256).map(Self::Avx2));
            kernels.extend(x86_64::Avx512::detect().filter(|_| limit >= CpuLimit::Vaes512).map(Self::Avx512));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (limit, &mut kernels);
        kernels
    }
}

/// The hash H' of any length (RFC 9106, section 3.3).
fn long_hash(parts: &[&[u8]], out: &mut [u8]) {
    let len = (out.len() as u32).to_le_bytes();
    let input: Vec<&[u8]> = std::iter::once(&len[..]).chain(parts.iter().copied()).collect();
    if out.len() <= 64 {
        return blake2b(&input, out);
    }
    let mut last = [0; 64];
    blake2b(&input, &mut last);
    out[..32].copy_from_slice(&last[..32]);
    let mut at = 32;
    while out.len() - at > 64 {
        let previous = last;
        blake2b(&[&previous], &mut last);
        out[at..at + 32].copy_from_slice(&last[..32]);
        at += 32;
    }
    blake2b(&[&last], &mut out[at..]);
    last.zeroize();
}

/// BLAKE2b of 1 to 64 bytes.
fn blake2b(parts: &[&[u8]], out: &mut [u8]) {
    let mut state = Blake2bVarCore::new(out.len()).expect("BLAKE2b has 1 to 64 bytes");
    let mut buffer = LazyBuffer::new(&[]);
    parts.iter().for_each(|part| buffer.digest_blocks(part, |blocks| state.update_blocks(blocks)));
    let mut digest = Default::default();
    state.finalize_variable_core(&mut buffer, &mut digest);
    out.copy_from_slice(&digest[..out.len()]);
    digest.as_mut_slice().zeroize();
}
