//! The loops of all x86-64 kernels, generic over a vector of AES blocks.
//!
//! Eight vectors are in flight, which hides the latency of a round. The tweaks of up to 64 units are encrypted together
//! before the units. Tweaks are computed a row ahead, and with VAES from the row's first by shifts and one carry-less
//! multiplication, so that no instruction waits for a chain and the CPU starts the next unit while the last one drains.
//! The round keys stay in registers if there are 32 of them.
//!
//! Everything is `inline(always)` into an entry point that enables the instructions (see `entry_points`); nothing here
//! branches on or indexes by key or data. Powers of x are those of IEEE 1619, section 5.2: little-endian, modulus 0x87.

use crate::aes::job::{CbcJob, MAX_BATCH, XtsJob};
use crate::aes::schedule::{RoundKeys, Schedule, XtsKeys};
use crate::block_cipher::Block;
use std::arch::x86_64::{__m128i, _mm_set_epi64x};
use std::mem::MaybeUninit;

/// Index of the first vector.
const FIRST: usize = 0;

/// Vectors in flight.
pub(super) const IN_FLIGHT: usize = 8;

/// A vector of AES blocks.
///
/// # Safety
/// Every method needs the instructions of its implementation; pointers must be valid for `16 * BLOCKS` bytes.
#[allow(clippy::missing_safety_doc)]
pub(super) trait AesVector: Copy {
    /// Number of blocks in a vector.
    const BLOCKS: usize;
    /// Returns the number of round keys that stay in registers, from that of the first round. Each other one is loaded
    /// in every round, which costs one load for `IN_FLIGHT` vectors or more, and spills no key to the stack.
    fn keys_in_registers(rounds: usize) -> usize;
    /// Number of rounds of a row that run while the previous row ends, at most 4. 0 without registers for two rows.
    const AHEAD: usize;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Loads like `load`, from blocks whose halves were written by the last few instructions. One wide load would wait
    /// for all those writes and everything before them; narrow loads get the halves from the CPU's store queue.
    unsafe fn gather(from: *const u8) -> Self;
    /// Returns `block` in every position.
    unsafe fn splat(block: &Block) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn xor3(self, second: Self, third: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn enc(self, round_key: Self) -> Self;
    unsafe fn enc_last(self, round_key: Self) -> Self;
    unsafe fn dec(self, round_key: Self) -> Self;
    unsafe fn dec_last(self, round_key: Self) -> Self;
    /// Forces the compiler to compute `states` and `other` before this point, without an instruction: it would
    /// otherwise reorder the rounds of the vectors to save registers, and undo the interleaving.
    unsafe fn pin(states: &mut [Self; IN_FLIGHT], other: &mut Self);
    /// State from which the tweaks of a row are computed.
    type Walk: Copy;
    /// Returns the state for a unit's first row, from the unit's first tweak.
    unsafe fn walk(first: &Block) -> Self::Walk;
    /// Returns the state for the next row, after all tweaks of this one were computed.
    unsafe fn next_row(walk: Self::Walk) -> Self::Walk;
    /// Returns the tweaks of vector `INDEX` of a row, which are the row's first tweak times x^(BLOCKS * INDEX +
    /// position). Called once per row for each index, in order, so an implementation may keep its progress in `walk`.
    /// `counts` is from [`AesVector::counts`].
    unsafe fn tweak<const INDEX: usize>(walk: &mut Self::Walk, counts: *const u8) -> Self;
    /// Returns the table of [`Counts`] for `BLOCKS`, for vectors that use one.
    fn counts() -> *const u8;
}

/// Left and right shift counts for [`AesVector::tweak`], a vector of them for each index.
///
/// t * x^k is (t << k) + (hi >> (64 - k)) * 0x87 + ((lo >> (64 - k)) << 64), where the first shift is of each half.
/// With s = swap(t) >> (64 - k), whose low half is hi's overflow and whose high half is lo's, that is (t << k) + s +
/// (low half of s)
/// * 0x86: the 1 that is missing from 0x87 takes the low half of s away again. Right for every k from 0 to 63.
#[repr(C, align(64))]
pub(super) struct Counts<const BLOCKS: usize, const LANES: usize> {
    pub(super) left: [[u64; LANES]; IN_FLIGHT],
    pub(super) right: [[u64; LANES]; IN_FLIGHT],
}

impl<const BLOCKS: usize, const LANES: usize> Counts<BLOCKS, LANES> {
    pub(super) const fn new() -> Self {
        assert!(LANES == 2 * BLOCKS && BLOCKS * IN_FLIGHT <= 64);
        let mut counts = Self { left: [[0; LANES]; IN_FLIGHT], right: [[0; LANES]; IN_FLIGHT] };
        let mut vector = 0;
        while vector < IN_FLIGHT {
            let mut lane = 0;
            while lane < LANES {
                let power = (vector * BLOCKS + lane / 2) as u64;
                counts.left[vector][lane] = power;
                counts.right[vector][lane] = 64 - power;
                lane += 1;
            }
            vector += 1;
        }
        counts
    }
}

/// Loads the block at `from` by two loads, which the compiler must not merge (see [`AesVector::gather`]).
///
/// # Safety
/// `from` is valid for 16 bytes.
#[inline(always)]
pub(super) unsafe fn halves(from: *const u8) -> __m128i {
    // SAFETY: the caller's promise; the assembly is no instruction at all.
    unsafe {
        let (mut low, mut high) = (from.cast::<i64>().read_unaligned(), from.add(8).cast::<i64>().read_unaligned());
        std::arch::asm!("/* {} {} */", inout(reg) low, inout(reg) high, options(pure, nomem, nostack, preserves_flags));
        _mm_set_epi64x(high, low)
    }
}

/// Runs a statement for each of the `IN_FLIGHT` vectors, with the constant `$i`, always unrolled.
macro_rules! each {
    ($i:ident => $body:expr) => {{
        each!(@ $i $body, 0 1 2 3 4 5 6 7);
    }};
    (@ $i:ident $body:expr, $($n:literal)*) => { $({ const $i: usize = $n; $body; })* };
}
pub(super) use each;

/// Runs a statement for each round between the first key and the last, with the constant `$r`.
macro_rules! each_round {
    ($rounds:ident, $r:ident => $body:expr) => {{
        each_round!(@ $r $body, 1 2 3 4 5 6 7 8 9);
        if $rounds > 10 {
            each_round!(@ $r $body, 10 11);
        }
        if $rounds > 12 {
            each_round!(@ $r $body, 12 13);
        }
    }};
    (@ $r:ident $body:expr, $($n:literal)*) => { $({ const $r: usize = $n; $body; })* };
}
pub(super) use each_round;

/// The round keys of one direction, in registers or in memory.
pub(super) struct Keys<V, const ROUNDS: usize> {
    memory: *const RoundKeys,
    registers: [V; 15],
}

impl<V: AesVector, const ROUNDS: usize> Keys<V, ROUNDS> {
    /// # Safety
    /// The instructions of `V` are there, and `memory` outlives the result.
    #[inline(always)]
    pub(super) unsafe fn new(memory: &RoundKeys) -> Self {
        // Opaque, so that the compiler cannot know that no store changes the keys, and keep copies on the stack.
        let memory = std::hint::black_box(std::ptr::from_ref(memory));
        // SAFETY: the caller's promise.
        unsafe {
            let mut registers = [V::splat(&(&(*memory).0)[0]); 15];
            each_round!(@ R if R <= V::keys_in_registers(ROUNDS) { registers[R] = V::splat(&(&(*memory).0)[R]) },
                1 2 3 4 5 6 7 8 9 10 11 12 13 14);
            Self { memory, registers }
        }
    }

    /// Returns the key of round `ROUND`, in every position.
    ///
    /// # Safety
    /// As for [`Keys::new`].
    #[inline(always)]
    pub(super) unsafe fn get<const ROUND: usize>(&self) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            if ROUND > 0 && ROUND <= V::keys_in_registers(ROUNDS) {
                self.registers[ROUND]
            } else {
                V::splat(&(&(*self.memory).0)[ROUND])
            }
        }
    }
}

#[inline(always)]
unsafe fn round<V: AesVector, const ENCRYPT: bool>(state: V, key: V) -> V {
    // SAFETY: the caller's promise is that of each call.
    unsafe { if ENCRYPT { state.enc(key) } else { state.dec(key) } }
}

#[inline(always)]
unsafe fn last_round<V: AesVector, const ENCRYPT: bool>(state: V, key: V) -> V {
    // SAFETY: the caller's promise is that of each call.
    unsafe { if ENCRYPT { state.enc_last(key) } else { state.dec_last(key) } }
}

/// Source of the masks of the next row, which are added to its blocks before and after the cipher: tweaks of XTS, or
/// products of LRW. A row is `IN_FLIGHT` vectors of one unit.
///
/// # Safety
/// Every method needs the instructions of `V`.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Masks<V> {
    /// Returns the masks of vector `INDEX` of the row. Called once per row for each index, in order.
    unsafe fn mask<const INDEX: usize>(&mut self) -> V;
    /// Goes to the next row. There is one.
    unsafe fn advance(&mut self);
}

/// The tweaks of XTS.
struct Rows<V: AesVector> {
    /// As [`AesVector::tweak`] leaves it.
    walk: V::Walk,
    /// Number of rows left in this unit, including this one.
    left: usize,
    rows_in_unit: usize,
    counts: *const u8,
    /// The first tweak of this unit; the next unit's is behind it.
    unit: *const Block,
}

impl<V: AesVector> Rows<V> {
    /// # Safety
    /// The instructions of `V` are there, and `unit` points to a tweak.
    #[inline(always)]
    unsafe fn new(unit: *const Block, rows_in_unit: usize) -> Self {
        // Opaque, so that the compiler does not copy the table to the stack for lack of registers.
        let counts = V::counts();
        // SAFETY: the caller's promise.
        unsafe { Self { walk: V::walk(&*unit), left: rows_in_unit, rows_in_unit, counts, unit } }
    }
}

impl<V: AesVector> Masks<V> for Rows<V> {
    /// Where this row is its unit's last, another tweak follows.
    #[inline(always)]
    unsafe fn advance(&mut self) {
        self.left -= 1;
        // SAFETY: the caller's promise.
        unsafe {
            if self.left == 0 {
                self.left = self.rows_in_unit;
                self.unit = self.unit.add(1);
                self.walk = V::walk(&*self.unit);
            } else {
                self.walk = V::next_row(self.walk);
            }
        }
    }

    /// See [`AesVector::tweak`].
    #[inline(always)]
    unsafe fn mask<const INDEX: usize>(&mut self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweak::<INDEX>(&mut self.walk, self.counts) }
    }
}

/// The tweaks of the current row and of the next, each already added to the last round key. So the last round takes its
/// key from here, and a tweak costs one store, one load and no register.
#[repr(C, align(64))]
struct LastKeys([MaybeUninit<[u8; 64 * IN_FLIGHT]>; 2]);

/// Runs XTS on every unit of `job`, whose tweaks it makes from the IVs.
///
/// # Safety
/// The instructions of `V` are there; `job` comes from its constructor.
#[inline(always)]
pub(super) unsafe fn xts<V: AesVector, const ROUNDS: usize, const ENCRYPT: bool>(job: &mut XtsJob<'_>) {
    let (units, rows_in_unit) = (job.units(), job.unit_len() / (16 * V::BLOCKS * IN_FLIGHT));
    let (src, dst) = (job.src(), job.dst());
    // SAFETY: instructions are the caller's promise. The IVs fill whole vectors, and there is one more than units. Data
    // is read and written inside `units * unit_len` bytes, of which a row is always a divisor.
    unsafe {
        let XtsKeys { data, tweak } = job.keys();
        let ivs = job.ivs();
        encrypt_whole_vectors::<V, ROUNDS>(&tweak.encrypt, &mut ivs[..units.next_multiple_of(V::BLOCKS)]);
        let rows = Rows::<V>::new(ivs.as_ptr(), rows_in_unit);
        masked_rows::<V, _, ROUNDS, ENCRYPT>(data, rows, (src, dst), units * rows_in_unit);
    }
}

/// Runs `count` rows between two additions of their masks.
///
/// While the rounds of a row run, the masks of the next row are computed and, with enough registers, its data are
/// loaded, so that its first round follows the last round of this row.
///
/// # Safety
/// The instructions of `V` are there; the pointers are valid for the rows.
#[inline(always)]
pub(super) unsafe fn masked_rows<V: AesVector, M: Masks<V>, const ROUNDS: usize, const ENCRYPT: bool>(
    data: &Schedule,
    mut rows: M,
    (mut src, mut dst): (*const u8, *mut u8),
    count: usize,
) {
    let row_len = 16 * V::BLOCKS * IN_FLIGHT;
    let mut last_keys = LastKeys([MaybeUninit::uninit(); 2]);
    // Opaque, so that the compiler does not move the table to registers that it must spill.
    let mut now = std::hint::black_box(last_keys.0.as_mut_ptr().cast::<u8>());
    // SAFETY: the caller's promise. The table has two rows.
    unsafe {
        let mut then = now.add(row_len);
        let keys = Keys::<V, ROUNDS>::new(if ENCRYPT { &data.encrypt } else { &data.decrypt });
        let whitening = keys.get::<0>().xor(keys.get::<ROUNDS>());
        each!(I => {
            let tweak = rows.mask::<I>();
            tweak.xor(keys.get::<ROUNDS>()).store(now.add(I * 16 * V::BLOCKS));
        });
        let mut states = start_row(whitening, now, src);
        each_round!(@ R if R <= V::AHEAD { ahead_round::<V, ROUNDS, ENCRYPT, R>(&keys, &mut states) }, 1 2 3 4);
        for _ in 1..count {
            rows.advance();
            src = src.add(row_len);
            let ahead = row::<V, M, ROUNDS, ENCRYPT, false>(&keys, states, &mut rows, then, src, (now, dst));
            states = if V::AHEAD > 0 { ahead } else { start_row(whitening, then, src) };
            std::mem::swap(&mut now, &mut then);
            dst = dst.add(row_len);
        }
        // Without this branch, work for a row that does not exist would take a thirtieth of a request of 4 KiB.
        row::<V, M, ROUNDS, ENCRYPT, true>(&keys, states, &mut rows, then, src, (now, dst));
    }
}

/// Returns the states of the row at `src` before the first round. `whitening` is the first round key plus the last.
#[inline(always)]
unsafe fn start_row<V: AesVector>(whitening: V, last_keys: *const u8, src: *const u8) -> [V; IN_FLIGHT] {
    let mut states = [whitening; IN_FLIGHT];
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        each!(I => {
            let at = I * 16 * V::BLOCKS;
            states[I] = V::load(src.add(at)).xor3(V::load(last_keys.add(at)), whitening);
        });
    }
    states
}

/// Runs the rounds of a row after the first `V::AHEAD`, which are done, and writes to `dst`. The last keys are at
/// `now`. Stores the last keys of `next` at `then`, and returns the states of `next`, whose data are at `next_src`,
/// after their first `V::AHEAD` rounds. After the `LAST` row there is no next one.
#[inline(always)]
unsafe fn row<V: AesVector, M: Masks<V>, const ROUNDS: usize, const ENCRYPT: bool, const LAST: bool>(
    keys: &Keys<V, ROUNDS>,
    mut states: [V; IN_FLIGHT],
    next: &mut M,
    then: *mut u8,
    next_src: *const u8,
    (now, dst): (*const u8, *mut u8),
) -> [V; IN_FLIGHT] {
    let mut ahead = states;
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let edges = (keys.get::<0>(), keys.get::<ROUNDS>());
        each_round!(ROUNDS, R => if R > V::AHEAD {
            let key = keys.get::<R>();
            each!(I => states[I] = round::<V, ENCRYPT>(states[I], key));
            match R - V::AHEAD {
                _ if LAST => V::pin(&mut states, &mut ahead[0]),
                1 if V::AHEAD == 0 => next_tweak::<V, M, 0>(edges.1, &mut states, next, then),
                2 if V::AHEAD == 0 => next_tweak::<V, M, 1>(edges.1, &mut states, next, then),
                3 if V::AHEAD == 0 => next_tweak::<V, M, 2>(edges.1, &mut states, next, then),
                4 if V::AHEAD == 0 => next_tweak::<V, M, 3>(edges.1, &mut states, next, then),
                5 if V::AHEAD == 0 => next_tweak::<V, M, 4>(edges.1, &mut states, next, then),
                6 if V::AHEAD == 0 => next_tweak::<V, M, 5>(edges.1, &mut states, next, then),
                7 if V::AHEAD == 0 => next_tweak::<V, M, 6>(edges.1, &mut states, next, then),
                8 if V::AHEAD == 0 => next_tweak::<V, M, 7>(edges.1, &mut states, next, then),
                1 => next_two::<V, M, 0, 1>(edges, &mut states, &mut ahead, next, then, next_src),
                2 => next_two::<V, M, 2, 3>(edges, &mut states, &mut ahead, next, then, next_src),
                3 => next_two::<V, M, 4, 5>(edges, &mut states, &mut ahead, next, then, next_src),
                4 => next_two::<V, M, 6, 7>(edges, &mut states, &mut ahead, next, then, next_src),
                _ => V::pin(&mut states, &mut ahead[0]),
            }
            if !LAST && R + V::AHEAD >= ROUNDS {
                match R + V::AHEAD - ROUNDS {
                    0 => ahead_round::<V, ROUNDS, ENCRYPT, 1>(keys, &mut ahead),
                    1 => ahead_round::<V, ROUNDS, ENCRYPT, 2>(keys, &mut ahead),
                    2 => ahead_round::<V, ROUNDS, ENCRYPT, 3>(keys, &mut ahead),
                    _ => ahead_round::<V, ROUNDS, ENCRYPT, 4>(keys, &mut ahead),
                }
            }
        });
        each!(I => {
            let at = I * 16 * V::BLOCKS;
            last_round::<V, ENCRYPT>(states[I], V::load(now.add(at))).store(dst.add(at));
        });
    }
    ahead
}

/// Runs round `ROUND` of a row ahead of time.
#[inline(always)]
unsafe fn ahead_round<V: AesVector, const ROUNDS: usize, const ENCRYPT: bool, const ROUND: usize>(
    keys: &Keys<V, ROUNDS>,
    ahead: &mut [V; IN_FLIGHT],
) {
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let mut key = keys.get::<ROUND>();
        each!(I => ahead[I] = round::<V, ENCRYPT>(ahead[I], key));
        V::pin(ahead, &mut key);
    }
}

/// Computes one of the next row's last keys. One per round if rows do not run ahead: all at once would keep the rounds
/// from their ports.
#[inline(always)]
unsafe fn next_tweak<V: AesVector, M: Masks<V>, const INDEX: usize>(
    last_key: V,
    states: &mut [V; IN_FLIGHT],
    next: &mut M,
    then: *mut u8,
) {
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let mut tweak = next.mask::<INDEX>();
        V::pin(states, &mut tweak);
        tweak.xor(last_key).store(then.add(INDEX * 16 * V::BLOCKS));
    }
}

/// Computes two of the next row's last keys ahead of time, and starts their states. `edges` are the first key and the
/// last.
#[inline(always)]
unsafe fn next_two<V: AesVector, M: Masks<V>, const FIRST: usize, const SECOND: usize>(
    edges: (V, V),
    states: &mut [V; IN_FLIGHT],
    ahead: &mut [V; IN_FLIGHT],
    next: &mut M,
    then: *mut u8,
    next_src: *const u8,
) {
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let tweak = next.mask::<FIRST>();
        let tweak2 = next.mask::<SECOND>();
        let (at, at2) = (FIRST * 16 * V::BLOCKS, SECOND * 16 * V::BLOCKS);
        ahead[FIRST] = V::load(next_src.add(at)).xor3(tweak, edges.0);
        ahead[SECOND] = V::load(next_src.add(at2)).xor3(tweak2, edges.0);
        V::pin(states, &mut ahead[FIRST]);
        V::pin(states, &mut ahead[SECOND]);
        tweak.xor(edges.1).store(then.add(at));
        tweak2.xor(edges.1).store(then.add(at2));
    }
}

/// Encrypts blocks that fill whole vectors, each by itself.
///
/// # Safety
/// The instructions of `V` are there, and the number of blocks is a multiple of `V::BLOCKS`.
#[inline(always)]
pub(super) unsafe fn encrypt_whole_vectors<V: AesVector, const ROUNDS: usize>(keys: &RoundKeys, blocks: &mut [Block]) {
    let len = 16 * V::BLOCKS;
    let mut vectors = blocks.len() / V::BLOCKS;
    let mut at = blocks.as_mut_ptr().cast::<u8>();
    // SAFETY: instructions are the caller's promise; `at` moves over whole vectors inside `blocks`.
    unsafe {
        while vectors >= IN_FLIGHT {
            let mut states = [V::splat(&keys.0[0]); IN_FLIGHT];
            each!(I => states[I] = states[I].xor(V::gather(at.add(I * len))));
            each_round!(ROUNDS, R => {
                let key = V::splat(&keys.0[R]);
                each!(I => states[I] = states[I].enc(key));
            });
            let key = V::splat(&keys.0[ROUNDS]);
            each!(I => states[I].enc_last(key).store(at.add(I * len)));
            at = at.add(IN_FLIGHT * len);
            vectors -= IN_FLIGHT;
        }
        while vectors > 0 {
            let mut state = V::gather(at).xor(V::splat(&keys.0[0]));
            each_round!(ROUNDS, R => state = state.enc(V::splat(&keys.0[R])));
            state.enc_last(V::splat(&keys.0[ROUNDS])).store(at);
            at = at.add(len);
            vectors -= 1;
        }
    }
}

/// Encrypts any number of blocks, each by itself.
///
/// # Safety
/// The instructions of `V` are there.
#[inline(always)]
pub(super) unsafe fn encrypt_blocks<V: AesVector, const ROUNDS: usize>(keys: &RoundKeys, blocks: &mut [Block]) {
    let (whole, rest) = blocks.split_at_mut(blocks.len() - blocks.len() % V::BLOCKS);
    let mut padded: [Block; 4] = [[0; 16]; 4];
    // SAFETY: the first is made of whole vectors; the second is one whole vector, as no vector has more than four
    // blocks.
    unsafe {
        encrypt_whole_vectors::<V, ROUNDS>(keys, whole);
        if !rest.is_empty() {
            padded[..rest.len()].copy_from_slice(rest);
            encrypt_whole_vectors::<V, ROUNDS>(keys, &mut padded[..V::BLOCKS]);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// Decrypts every unit of `job` with CBC. Each unit is processed from its end, so that in place the ciphertext before a
/// vector is still there when the vector needs it.
///
/// # Safety
/// As for [`xts`].
#[inline(always)]
pub(super) unsafe fn cbc_decrypt<V: AesVector, const ROUNDS: usize>(job: &CbcJob<'_>) {
    let len = 16 * V::BLOCKS;
    let (units, unit_len) = (job.units(), job.unit_len());
    let groups = unit_len / (IN_FLIGHT * len);
    let mut ivs = [[0; 16]; MAX_BATCH];
    // SAFETY: instructions are the caller's promise; each access is inside the unit that `src` and `dst` point to.
    unsafe {
        let keys = Keys::<V, ROUNDS>::new(&job.keys().decrypt);
        for unit in 0..units {
            let in_batch = unit % MAX_BATCH;
            if in_batch == 0 {
                job.fill_ivs(unit, &mut ivs[..(units - unit).min(MAX_BATCH)]);
            }
            let (src, dst) = (job.src().add(unit * unit_len), job.dst().add(unit * unit_len));
            // The blocks to chain the first vector of the unit to: the IV, and all its blocks except the last.
            let mut start: [Block; 4] = [ivs[in_batch]; 4];
            std::ptr::copy_nonoverlapping(src, start.as_mut_ptr().cast::<u8>().add(16), len - 16);
            for group in (0..groups).rev() {
                let at = group * IN_FLIGHT * len;
                let before = if group == 0 { start.as_ptr().cast::<u8>() } else { src.add(at - 16) };
                let key = keys.get::<0>();
                let mut chain = [key; IN_FLIGHT];
                let mut states = [key; IN_FLIGHT];
                each!(I => {
                    let vector = at + I * len;
                    // After the first vector, the previous block is in the unit itself.
                    chain[I] = V::load(if I == FIRST { before } else { src.add(vector).wrapping_sub(16) });
                    states[I] = V::load(src.add(vector)).xor(key);
                });
                each_round!(ROUNDS, R => {
                    let key = keys.get::<R>();
                    each!(I => states[I] = states[I].dec(key));
                });
                each!(I => states[I].dec_last(keys.get::<ROUNDS>().xor(chain[I])).store(dst.add(at + I * len)));
            }
        }
    }
}

/// Encrypts every unit of `job` with CBC: a unit is one chain, so `IN_FLIGHT` units run in parallel.
///
/// # Safety
/// As for [`xts`]; `V` holds one block.
#[inline(always)]
pub(super) unsafe fn cbc_encrypt<V: AesVector, const ROUNDS: usize>(job: &CbcJob<'_>) {
    const { assert!(V::BLOCKS == 1) };
    let mut ivs = [[0; 16]; IN_FLIGHT];
    let mut unit = 0;
    // SAFETY: instructions are the caller's promise; each access is inside its unit.
    unsafe {
        let keys = Keys::<V, ROUNDS>::new(&job.keys().encrypt);
        while unit < job.units() {
            let units = (job.units() - unit).min(IN_FLIGHT);
            job.fill_ivs(unit, &mut ivs[..units]);
            let at = unit * job.unit_len();
            let (src, dst) = (job.src().add(at), job.dst().add(at));
            if units == IN_FLIGHT {
                cbc_encrypt_side_by_side::<V, ROUNDS>(&keys, &ivs, src, dst, job.unit_len());
            } else {
                cbc_encrypt_few::<V, ROUNDS>(&keys, &ivs[..units], src, dst, job.unit_len());
            }
            unit += units;
        }
    }
}

#[inline(always)]
unsafe fn cbc_encrypt_side_by_side<V: AesVector, const ROUNDS: usize>(
    keys: &Keys<V, ROUNDS>,
    ivs: &[Block; IN_FLIGHT],
    src: *const u8,
    dst: *mut u8,
    unit_len: usize,
) {
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let mut states = [V::splat(&ivs[0]); IN_FLIGHT];
        each!(I => states[I] = V::splat(&ivs[I]));
        for at in (0..unit_len).step_by(16) {
            each!(I => states[I] = states[I].xor3(V::load(src.add(I * unit_len + at)), keys.get::<0>()));
            each_round!(ROUNDS, R => {
                let key = keys.get::<R>();
                each!(I => states[I] = states[I].enc(key));
            });
            each!(I => {
                states[I] = states[I].enc_last(keys.get::<ROUNDS>());
                states[I].store(dst.add(I * unit_len + at));
            });
        }
    }
}

/// Encrypts fewer than `IN_FLIGHT` units, block by block.
#[inline(always)]
unsafe fn cbc_encrypt_few<V: AesVector, const ROUNDS: usize>(
    keys: &Keys<V, ROUNDS>,
    ivs: &[Block],
    src: *const u8,
    dst: *mut u8,
    unit_len: usize,
) {
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let mut states = [V::splat(&ivs[0]); IN_FLIGHT];
        for (state, iv) in states.iter_mut().zip(ivs) {
            *state = V::splat(iv);
        }
        for at in (0..unit_len).step_by(16) {
            // The chains do not depend on each other: the CPU runs them in parallel in this order too.
            for (unit, state) in states.iter_mut().enumerate().take(ivs.len()) {
                let mut block = state.xor3(V::load(src.add(unit * unit_len + at)), keys.get::<0>());
                each_round!(ROUNDS, R => block = block.enc(keys.get::<R>()));
                *state = block.enc_last(keys.get::<ROUNDS>());
                state.store(dst.add(unit * unit_len + at));
            }
        }
    }
}

/// Runs independent vectors through `ROUNDS` AES rounds back to back, `iterations` times: the maximum speed of this
/// width. Returns the number of bytes.
///
/// # Safety
/// The instructions of `V` are there.
#[inline(always)]
pub(super) unsafe fn limit<V: AesVector, const ROUNDS: usize>(iterations: usize) -> u64 {
    const CHAINS: usize = 12;
    // SAFETY: the caller's promise is that of each call.
    unsafe {
        let key = V::splat(std::hint::black_box(&[0x5a; 16]));
        let mut states = [key; CHAINS];
        each_round!(@ I states[I] = V::splat(std::hint::black_box(&[I as u8; 16])), 0 1 2 3 4 5 6 7 8 9 10 11);
        for _ in 0..iterations {
            each_round!(ROUNDS, R => {
                let _ = R;
                each_round!(@ I states[I] = states[I].enc(key), 0 1 2 3 4 5 6 7 8 9 10 11);
            });
            each_round!(@ I states[I] = states[I].enc_last(key), 0 1 2 3 4 5 6 7 8 9 10 11);
        }
        let mut sink = [0u8; 64];
        for state in states {
            state.store(sink.as_mut_ptr());
            std::hint::black_box(&sink);
        }
    }
    (iterations * CHAINS * V::BLOCKS * 16) as u64
}
