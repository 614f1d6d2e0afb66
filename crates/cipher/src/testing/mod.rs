//! What the tests of every cipher share: naive implementations, guarded buffers, and the runner that compares them all.

pub(crate) mod guarded;
pub(crate) mod naive;
mod runner;
mod vectors;

/// `len` bytes that look random, the same for the same `seed`.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}
