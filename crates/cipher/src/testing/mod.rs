//! Shared code of the tests: naive implementations, guarded buffers, and the runner that compares all kernels.

pub(crate) mod block;
mod every_spec;
pub(crate) mod guarded;
pub(crate) mod naive;
pub(crate) mod naive_aead;
mod numbered;
mod runner;
mod scattered;
mod vectors;

/// Returns `len` pseudo-random bytes, the same for the same `seed`.
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

/// Decodes hexadecimal digits; spaces are ignored.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let pairs = digits.chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}
