//! Twofish (Schneier and others, "Twofish: A 128-Bit Block Cipher", 1998), with full keying: the four key-dependent
//! S-boxes and the MDS matrix behind them are one table of 4 KiB a key, made once.
//!
//! Lookups depend on key and data, as in every fast Twofish: not constant time if another tenant shares the cache.

use super::BlockCipher;
use crate::locked_box::LockedBox;

const ROUNDS: usize = 16;

/// Twofish under a key.
pub(crate) struct Twofish(LockedBox<Keys>);

/// An expanded key.
struct Keys {
    /// `h(X, S)` of section 4.3.2, by the position of each byte of X.
    tables: [[u32; 256]; 4],
    /// K of section 4.3: four words before the first round, four after the last, two per round.
    words: [u32; 8 + 2 * ROUNDS],
}

impl Twofish {
    /// Expands `key`, which has 16, 24 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        assert!(matches!(key.len(), 16 | 24 | 32), "a Twofish key has 16, 24 or 32 bytes");
        let mut keys = LockedBox::new(Keys { tables: [[0; 256]; 4], words: [0; 8 + 2 * ROUNDS] });
        // The lists M_e, M_o and S, in locked memory too. S is used from its last word on.
        let count = key.len() / 8;
        let mut lists = LockedBox::new([[[0u8; 4]; 4]; 3]);
        for (at, eight) in key.as_chunks::<8>().0.iter().enumerate() {
            lists[0][at].copy_from_slice(&eight[..4]);
            lists[1][at].copy_from_slice(&eight[4..]);
            lists[2][count - 1 - at] = reed_solomon(eight);
        }
        for (at, pair) in (0u8..).zip(keys.words.as_chunks_mut::<2>().0) {
            let h = |byte: u8, list: &[[u8; 4]]| (0..4).fold(0, |sum, place| sum ^ h_byte(place, byte, list));
            let a = h(2 * at, &lists[0][..count]);
            let b = h(2 * at + 1, &lists[1][..count]).rotate_left(8);
            pair[0] = a.wrapping_add(b);
            pair[1] = a.wrapping_add(b.wrapping_mul(2)).rotate_left(9);
        }
        for (place, table) in keys.tables.iter_mut().enumerate() {
            for (byte, entry) in (0u8..=255).zip(table) {
                *entry = h_byte(place, byte, &lists[2][..count]);
            }
        }
        Self(keys)
    }
}

impl Keys {
    #[inline(always)]
    fn g(&self, word: u32) -> u32 {
        let [a, b, c, d] = word.to_le_bytes();
        let [t0, t1, t2, t3] = &self.tables;
        t0[usize::from(a)] ^ t1[usize::from(b)] ^ t2[usize::from(c)] ^ t3[usize::from(d)]
    }

    /// Computes the words that a round adds to the other half.
    #[inline(always)]
    fn f(&self, round: usize, r0: u32, r1: u32) -> (u32, u32) {
        let (t0, t1) = (self.g(r0), self.g(r1.rotate_left(8)));
        let sum = t0.wrapping_add(t1);
        (sum.wrapping_add(self.words[8 + 2 * round]), sum.wrapping_add(t1).wrapping_add(self.words[9 + 2 * round]))
    }

    #[inline(always)]
    fn encrypt(&self, block: &mut [u8; 16]) {
        let [mut a, mut b, mut c, mut d] = load(block, &self.words[..4]);
        for round in (0..ROUNDS).step_by(2) {
            let (f0, f1) = self.f(round, a, b);
            c = (c ^ f0).rotate_right(1);
            d = d.rotate_left(1) ^ f1;
            let (f0, f1) = self.f(round + 1, c, d);
            a = (a ^ f0).rotate_right(1);
            b = b.rotate_left(1) ^ f1;
        }
        store(block, [c, d, a, b], &self.words[4..8]);
    }

    #[inline(always)]
    fn decrypt(&self, block: &mut [u8; 16]) {
        let [mut c, mut d, mut a, mut b] = load(block, &self.words[4..8]);
        for round in (0..ROUNDS).step_by(2).rev() {
            let (f0, f1) = self.f(round + 1, c, d);
            a = a.rotate_left(1) ^ f0;
            b = (b ^ f1).rotate_right(1);
            let (f0, f1) = self.f(round, a, b);
            c = c.rotate_left(1) ^ f0;
            d = (d ^ f1).rotate_right(1);
        }
        store(block, [a, b, c, d], &self.words[..4]);
    }
}

impl BlockCipher for Twofish {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        let keys: &Keys = &self.0;
        blocks.as_chunks_mut().0.iter_mut().for_each(|block| keys.encrypt(block));
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        let keys: &Keys = &self.0;
        blocks.as_chunks_mut().0.iter_mut().for_each(|block| keys.decrypt(block));
    }
}

#[inline(always)]
fn load(block: &[u8; 16], whitening: &[u32]) -> [u32; 4] {
    let words = block.as_chunks::<4>().0;
    std::array::from_fn(|at| u32::from_le_bytes(words[at]) ^ whitening[at])
}

#[inline(always)]
fn store(block: &mut [u8; 16], words: [u32; 4], whitening: &[u32]) {
    for (at, bytes) in block.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *bytes = (words[at] ^ whitening[at]).to_le_bytes();
    }
}

/// Computes the contribution of the byte at `place` to `h(X, list)`: through the permutations and the list, then the
/// matrix's column.
fn h_byte(place: usize, byte: u8, list: &[[u8; 4]]) -> u32 {
    /// The permutation before each word of the list, by position; the last one comes after word 0.
    const ORDER: [[usize; 5]; 4] = [[1, 0, 0, 1, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1]];
    let mut byte = byte;
    for (at, word) in list.iter().enumerate().rev() {
        byte = Q[ORDER[place][at + 1]][usize::from(byte)] ^ word[place];
    }
    byte = Q[ORDER[place][0]][usize::from(byte)];
    u32::from_le_bytes(MDS.map(|row| multiply(byte, row[place], 0x69)))
}

/// Computes the word of S from eight bytes of the key.
fn reed_solomon(eight: &[u8; 8]) -> [u8; 4] {
    RS.map(|row| row.iter().zip(eight).fold(0, |sum, (factor, byte)| sum ^ multiply(*byte, *factor, 0x4d)))
}

/// Multiplies in GF(2^8); `modulus` is the polynomial of the field without x^8. The time depends on `b`, which is not
/// secret.
const fn multiply(mut a: u8, mut b: u8, modulus: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= a * (b & 1);
        a = (a << 1) ^ (modulus * (a >> 7));
        b >>= 1;
    }
    product
}

const MDS: [[u8; 4]; 4] =
    [[0x01, 0xef, 0x5b, 0x5b], [0x5b, 0xef, 0xef, 0x01], [0xef, 0x5b, 0x01, 0xef], [0xef, 0x01, 0xef, 0x5b]];

const RS: [[u8; 8]; 4] = [
    [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
    [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
    [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
    [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
];

/// The permutations q0 and q1 of section 4.3.5, from their tables of four bits (first entry in the highest digit).
static Q: [[u8; 256]; 2] = [
    permutation([0x817d6f320b59eca4, 0xecb81235f4a6709d, 0xba5e6d90c8f32471, 0xd7f4126e9b3085ca]),
    permutation([0x28bdf76e31940ac5, 0x1e2b4c376da5f908, 0x4c75169a0ed82b3f, 0xb951c3de647f208a]),
];

const fn permutation(tables: [u64; 4]) -> [u8; 256] {
    const fn digit(table: u64, at: u8) -> u8 {
        (table >> (60 - 4 * at)) as u8 & 15
    }
    const fn mix(a: u8, b: u8) -> (u8, u8) {
        (a ^ b, (a ^ (b >> 1) ^ (b << 3) ^ (a << 3)) & 15)
    }
    let mut permutation = [0; 256];
    let mut x = 0;
    while x < 256 {
        let (a, b) = mix(x as u8 >> 4, x as u8 & 15);
        let (a, b) = mix(digit(tables[0], a), digit(tables[1], b));
        permutation[x] = digit(tables[3], b) << 4 | digit(tables[2], a);
        x += 1;
    }
    permutation
}
