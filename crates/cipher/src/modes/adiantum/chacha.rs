//! The rounds of ChaCha (Bernstein, 2008) on several blocks, or keys, at a time: one in each lane of sixteen vectors.
//!
//! The operations are safe although they are vector instructions: a vector exists only where its instructions do.

/// The constants of a key of 32 bytes.
pub(super) const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Vector with the same word of each of several blocks.
pub(super) trait Lanes: Copy {
    fn add(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Rotates left by `LEFT`, where `RIGHT` is 32 less `LEFT`.
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
}

/// Runs `rounds` rounds, an even number.
#[inline(always)]
pub(super) fn permute<L: Lanes>(state: &mut [L; 16], rounds: u8) {
    for _ in 0..rounds / 2 {
        quarters(state, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]);
        quarters(state, [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]]);
    }
}

/// Runs four quarter rounds, step by step for all of them.
#[inline(always)]
fn quarters<L: Lanes>(state: &mut [L; 16], quarters: [[usize; 4]; 4]) {
    mix::<L, 16, 16, 12, 20>(state, quarters);
    mix::<L, 8, 24, 7, 25>(state, quarters);
}

#[inline(always)]
fn mix<L: Lanes, const D: i32, const D_RIGHT: i32, const B: i32, const B_RIGHT: i32>(
    state: &mut [L; 16],
    quarters: [[usize; 4]; 4],
) {
    for [a, b, _, d] in quarters {
        state[a] = state[a].add(state[b]);
        state[d] = state[d].xor(state[a]).rotate::<D, D_RIGHT>();
    }
    for [_, b, c, d] in quarters {
        state[c] = state[c].add(state[d]);
        state[b] = state[b].xor(state[c]).rotate::<B, B_RIGHT>();
    }
}
