//! The compression function of BLAKE2b (RFC 7693, section 3.2).

use super::{Job, Vector};

/// Order of the words of a block in each of ten rounds (RFC 7693, section 2.7). The next two begin again.
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// Mixes four words of the work vector with two of the block (RFC 7693, section 3.1).
#[inline(always)]
fn mix<V: Vector<N>, const N: usize>(work: &mut [V; 16], [a, b, c, d]: [usize; 4], first: V, second: V) {
    work[a] = work[a].add(work[b]).add(first);
    work[d] = work[d].xor_with(work[a]).rotate::<32, 32>();
    work[c] = work[c].add(work[d]);
    work[b] = work[b].xor_with(work[c]).rotate::<24, 40>();
    work[a] = work[a].add(work[b]).add(second);
    work[d] = work[d].xor_with(work[a]).rotate::<16, 48>();
    work[c] = work[c].add(work[d]);
    work[b] = work[b].xor_with(work[c]).rotate::<63, 1>();
}

#[inline(always)]
fn round<V: Vector<N>, const N: usize, const ROUND: usize>(work: &mut [V; 16], block: &[V; 16]) {
    let order = const { SIGMA[ROUND % SIGMA.len()] };
    macro_rules! mix_all {
        ($($at:literal: $a:literal $b:literal $c:literal $d:literal;)*) => {
            $(mix(work, [$a, $b, $c, $d], block[order[2 * $at]], block[order[2 * $at + 1]]);)*
        };
    }
    mix_all! {
        0: 0 4 8 12; 1: 1 5 9 13; 2: 2 6 10 14; 3: 3 7 11 15;
        4: 0 5 10 15; 5: 1 6 11 12; 6: 2 7 8 13; 7: 3 4 9 14;
    }
}

/// Hashes the same number of blocks into each state.
pub(crate) struct Compress<'a, const N: usize> {
    /// Initial value of the family.
    pub(crate) initial: &'a [u64; 8],
    pub(crate) states: &'a mut [[u64; 8]; N],
    pub(crate) blocks: [&'a [[u8; 128]]; N],
    /// Bytes of each message before the blocks.
    pub(crate) before: u64,
    /// Length of each message if the blocks are its last ones.
    pub(crate) end: Option<u64>,
}

impl<const N: usize> Job<u64, N> for Compress<'_, N> {
    /// # Panics
    ///
    /// Panics unless the numbers of blocks are equal.
    #[inline(always)]
    unsafe fn run<V: Vector<N, Word = u64>>(self) {
        let Self { initial, states, blocks, before, end } = self;
        let count = blocks[0].len();
        assert!(blocks.iter().all(|blocks| blocks.len() == count), "messages have the same number of blocks");
        // SAFETY: the caller's promise, here and below.
        let mut state: [V; 8] =
            std::array::from_fn(|word| unsafe { V::of_words(std::array::from_fn(|lane| states[lane][word])) });
        for at in 0..count {
            // SAFETY: as above.
            let block = unsafe { V::of_blocks::<false>(blocks.map(|blocks| &blocks[at])) };
            let hashed = before + 128 * (at as u64 + 1);
            let is_last = end.is_some() && at + 1 == count;
            let mut constants = *initial;
            constants[4] ^= end.map_or(hashed, |end| hashed.min(end));
            constants[6] ^= if is_last { u64::MAX } else { 0 };
            // SAFETY: as above.
            let constants = constants.map(|word| unsafe { V::repeat(word) });
            let mut work: [V; 16] =
                std::array::from_fn(|word| if word < 8 { state[word] } else { constants[word - 8] });
            macro_rules! rounds {
                ($($round:literal)*) => { $(round::<V, N, $round>(&mut work, &block);)* };
            }
            rounds!(0 1 2 3 4 5 6 7 8 9 10 11);
            state = std::array::from_fn(|word| V::xor(state[word], work[word], work[word + 8]));
        }
        for (word, vector) in state.iter().enumerate() {
            states.iter_mut().zip(vector.words()).for_each(|(state, value)| state[word] = value);
        }
    }
}
