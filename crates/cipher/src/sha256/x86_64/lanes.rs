//! The compression function on as many messages as a vector has words: a vector has the same word of each.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::super::{Block, State};
use super::ROUND_CONSTANTS;

/// A vector of a word of `N` messages. A value exists only where its instructions do; the functions that make one need
/// them.
///
/// # Safety
/// The instructions of the implementation are there.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Vector<const N: usize>: Copy {
    /// Returns the words of the blocks, each in one vector.
    unsafe fn of_blocks(blocks: [&Block; N]) -> [Self; 16];
    unsafe fn of_words(words: [u32; N]) -> Self;
    unsafe fn repeat(word: u32) -> Self;
    fn words(self) -> [u32; N];
    fn add(self, other: Self) -> Self;
    /// Returns the exclusive or of three vectors.
    fn xor(a: Self, b: Self, c: Self) -> Self;
    /// Returns the bits of `b` where those of `a` are set, else those of `c`.
    fn choice(a: Self, b: Self, c: Self) -> Self;
    /// Returns the bits that are set in at least two.
    fn majority(a: Self, b: Self, c: Self) -> Self;
    /// Rotates words by `RIGHT` bits to the right, which are `LEFT` to the left.
    fn rotate<const RIGHT: i32, const LEFT: i32>(self) -> Self;
    /// Shifts words by `BITS` bits to the right.
    fn shift<const BITS: i32>(self) -> Self;
}

/// Replaces word `AT` of the last sixteen of the schedule by that of sixteen rounds later.
#[inline(always)]
fn extend_schedule<V: Vector<N>, const N: usize, const AT: usize>(schedule: &mut [V; 16]) {
    let (w15, w2) = (schedule[(AT + 1) % 16], schedule[(AT + 14) % 16]);
    let small0 = V::xor(w15.rotate::<7, 25>(), w15.rotate::<18, 14>(), w15.shift::<3>());
    let small1 = V::xor(w2.rotate::<17, 15>(), w2.rotate::<19, 13>(), w2.shift::<10>());
    schedule[AT] = schedule[AT].add(schedule[(AT + 9) % 16]).add(small0).add(small1);
}

/// Runs round `AT` of sixteen. Word `n` of the state, a to h, is at `n - AT` of the array.
#[inline(always)]
fn round<V: Vector<N>, const N: usize, const AT: usize>(state: &mut [V; 8], scheduled: V, constant: V) {
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|word| state[(word + 16 - AT) % 8]);
    let sum1 = V::xor(e.rotate::<6, 26>(), e.rotate::<11, 21>(), e.rotate::<25, 7>());
    let first = h.add(scheduled.add(constant)).add(V::choice(e, f, g)).add(sum1);
    let sum0 = V::xor(a.rotate::<2, 30>(), a.rotate::<13, 19>(), a.rotate::<22, 10>());
    state[(3 + 16 - AT) % 8] = d.add(first);
    state[(7 + 16 - AT) % 8] = first.add(sum0.add(V::majority(a, b, c)));
}

/// Hashes the same number of blocks into each state.
///
/// # Safety
/// The instructions of `V` are there.
#[inline(always)]
pub(super) unsafe fn compress<V: Vector<N>, const N: usize>(states: &mut [State; N], blocks: [&[Block]; N]) {
    let count = blocks[0].len();
    assert!(blocks.iter().all(|blocks| blocks.len() == count), "messages have the same number of blocks");
    // SAFETY: the caller's promise, here and below.
    let mut state: [V; 8] =
        std::array::from_fn(|word| unsafe { V::of_words(std::array::from_fn(|lane| states[lane][word])) });
    for at in 0..count {
        let start = state;
        // SAFETY: as above.
        let mut schedule = unsafe { V::of_blocks(blocks.map(|blocks| &blocks[at])) };
        for (group, constants) in ROUND_CONSTANTS.as_chunks::<4>().0.iter().enumerate() {
            let constants = constants.as_flattened();
            macro_rules! sixteen_rounds {
                ($($at:literal)*) => { $(
                    if group > 0 {
                        extend_schedule::<V, N, $at>(&mut schedule);
                    }
                    // SAFETY: as above.
                    let constant = unsafe { V::repeat(constants[$at]) };
                    round::<V, N, $at>(&mut state, schedule[$at], constant);
                )* };
            }
            sixteen_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        for (word, start) in state.iter_mut().zip(start) {
            *word = word.add(start);
        }
    }
    for (word, vector) in state.iter().enumerate() {
        states.iter_mut().zip(vector.words()).for_each(|(state, value)| state[word] = value);
    }
}
