//! Argon2's block and its compression function G (RFC 9106, sections 3.5 and 3.6), for any CPU.

use zeroize::Zeroizing;

/// Words of a block.
pub(super) const WORDS: usize = 128;

/// A block of 1 KiB: eight rows of sixteen words.
pub(super) type Block = [u64; WORDS];

pub(super) fn from_bytes(bytes: &[u8; 8 * WORDS]) -> Block {
    let words = bytes.as_chunks::<8>().0;
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

pub(super) fn to_bytes(block: &Block) -> Zeroizing<[u8; 8 * WORDS]> {
    let mut bytes = Zeroizing::new([0; 8 * WORDS]);
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(block) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

pub(super) fn xor(block: &mut Block, other: &Block) {
    block.iter_mut().zip(other).for_each(|(word, other)| *word ^= other);
}

/// Writes G(`previous`, `reference`) to `next`, or adds it there if `XOR`.
pub(super) fn compress<const XOR: bool>(previous: &Block, reference: &Block, next: &mut Block) {
    let mut input = *previous;
    xor(&mut input, reference);
    let mut state = input;
    for row in state.as_chunks_mut::<16>().0 {
        permute(row);
    }
    for column in 0..8 {
        let mut words: [u64; 16] = std::array::from_fn(|at| state[at / 2 * 16 + 2 * column + at % 2]);
        permute(&mut words);
        for (at, word) in words.into_iter().enumerate() {
            state[at / 2 * 16 + 2 * column + at % 2] = word;
        }
    }
    xor(&mut state, &input);
    if XOR {
        xor(next, &state);
    } else {
        *next = state;
    }
}

/// The permutation P: BLAKE2b's round with multiplications.
fn permute(v: &mut [u64; 16]) {
    const STEPS: [[usize; 4]; 8] = [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ];
    for [a, b, c, d] in STEPS {
        for [to_d, to_b] in [[32, 24], [16, 63]] {
            v[a] = add(v[a], v[b]);
            v[d] = (v[d] ^ v[a]).rotate_right(to_d);
            v[c] = add(v[c], v[d]);
            v[b] = (v[b] ^ v[c]).rotate_right(to_b);
        }
    }
}

fn add(a: u64, b: u64) -> u64 {
    let product = u64::from(a as u32).wrapping_mul(u64::from(b as u32));
    a.wrapping_add(b).wrapping_add(product.wrapping_mul(2))
}
