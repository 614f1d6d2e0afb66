//! Triple DES with three keys (FIPS 46-3, encrypt-decrypt-encrypt), for volumes that were made with it.
//!
//! The S-boxes and the permutation P are one table of 2 KiB, computed at compile time. Several blocks run in parallel,
//! since a round of one waits for its previous round. Lookups depend on key and data: not constant time if another
//! tenant shares the cache.

use super::BlockCipher;
use crate::locked_box::LockedBox;

/// Number of blocks in parallel.
const LANES: usize = 4;

/// Triple DES under a key.
pub(crate) struct Des3(LockedBox<[RoundKey; 48]>);

/// The 48 bits of a round: six at the top of each byte, for S-boxes 1, 3, 5, 7 and 2, 4, 6, 8.
type RoundKey = [u32; 2];

impl Des3 {
    /// Expands `key`, which has 24 bytes; parity bits are ignored.
    pub(crate) fn new(key: &[u8]) -> Self {
        assert!(key.len() == 24, "a triple DES key has 24 bytes");
        let mut rounds = LockedBox::new([[0; 2]; 48]);
        for (stage, key) in key.as_chunks::<8>().0.iter().enumerate() {
            let rounds = &mut rounds[16 * stage..][..16];
            expand(u64::from_be_bytes(*key), rounds);
            if stage == 1 {
                rounds.reverse();
            }
        }
        Self(rounds)
    }

    #[inline(always)]
    fn run(blocks: &mut [u8], keys: impl Iterator<Item = RoundKey> + Clone) {
        let (blocks, _) = blocks.as_chunks_mut::<8>();
        let (lanes, rest) = blocks.as_chunks_mut::<LANES>();
        lanes.iter_mut().for_each(|lanes| run_lanes(lanes, keys.clone()));
        rest.iter_mut().for_each(|block| run_lanes(std::array::from_mut(block), keys.clone()));
    }
}

impl BlockCipher for Des3 {
    fn block_len(&self) -> usize {
        8
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        Self::run(blocks, self.0.iter().copied());
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        Self::run(blocks, self.0.iter().rev().copied());
    }
}

/// Runs the 48 rounds on `N` blocks. The final permutation of one stage and the initial one of the next cancel out.
#[inline(always)]
fn run_lanes<const N: usize>(blocks: &mut [[u8; 8]; N], mut keys: impl Iterator<Item = RoundKey>) {
    let mut halves = blocks.map(|block| initial_permutation(u64::from_be_bytes(block)));
    for _ in 0..3 {
        for _ in 0..8 {
            let (Some(even), Some(odd)) = (keys.next(), keys.next()) else { unreachable!("there are 48 round keys") };
            halves.iter_mut().for_each(|[left, right]| *left ^= f(*right, even));
            halves.iter_mut().for_each(|[left, right]| *right ^= f(*left, odd));
        }
        halves.iter_mut().for_each(|pair| pair.reverse());
    }
    *blocks = halves.map(|pair| final_permutation(pair).to_be_bytes());
}

/// Computes the cipher function. After a rotation, the half has the six bits of every other S-box at the top of its
/// bytes.
#[inline(always)]
fn f(half: u32, key: RoundKey) -> u32 {
    let odd = (half.rotate_right(1) ^ key[0]).to_be_bytes();
    let even = (half.rotate_left(3) ^ key[1]).to_be_bytes();
    let look = |table: usize, byte: u8| TABLES[table][usize::from(byte >> 2)];
    let first = look(0, odd[0]) ^ look(1, even[0]) ^ look(2, odd[1]) ^ look(3, even[1]);
    first ^ look(4, odd[2]) ^ look(5, even[2]) ^ look(6, odd[3]) ^ look(7, even[3])
}

/// Applies IP of the standard, as exchanges of bits between the halves.
#[inline(always)]
fn initial_permutation(block: u64) -> [u32; 2] {
    let (left, right) = ((block >> 32) as u32, block as u32);
    let (left, right) = exchange(left, right, 4, 0x0f0f_0f0f);
    let (left, right) = exchange(left, right, 16, 0x0000_ffff);
    let (right, left) = exchange(right, left, 2, 0x3333_3333);
    let (right, left) = exchange(right, left, 8, 0x00ff_00ff);
    let (left, right) = exchange(left, right, 1, 0x5555_5555);
    [left, right]
}

/// Applies the inverse of [`initial_permutation`].
#[inline(always)]
fn final_permutation([left, right]: [u32; 2]) -> u64 {
    let (left, right) = exchange(left, right, 1, 0x5555_5555);
    let (right, left) = exchange(right, left, 8, 0x00ff_00ff);
    let (right, left) = exchange(right, left, 2, 0x3333_3333);
    let (left, right) = exchange(left, right, 16, 0x0000_ffff);
    let (left, right) = exchange(left, right, 4, 0x0f0f_0f0f);
    u64::from(left) << 32 | u64::from(right)
}

/// Exchanges the bits of `b` in `mask` with those of `a` that are higher by `shift`.
#[inline(always)]
fn exchange(a: u32, b: u32, shift: u32, mask: u32) -> (u32, u32) {
    let difference = ((a >> shift) ^ b) & mask;
    (a ^ (difference << shift), b ^ difference)
}

/// Computes the key schedule of one DES key.
fn expand(key: u64, rounds: &mut [RoundKey]) {
    const LAST_OF_28: u64 = (1 << 28) - 1;
    let chosen = permute(key, 64, &PC1);
    let (mut c, mut d) = (chosen >> 28, chosen & LAST_OF_28);
    for (round, place) in rounds.iter_mut().enumerate() {
        let by = if matches!(round, 0 | 1 | 8 | 15) { 1 } else { 2 };
        c = (c << by | c >> (28 - by)) & LAST_OF_28;
        d = (d << by | d >> (28 - by)) & LAST_OF_28;
        let bits = permute(c << 28 | d, 56, &PC2);
        for group in 0..8 {
            let six = (bits >> (42 - 6 * group)) as u32 & 63;
            place[group % 2] |= six << (26 - 8 * (group / 2));
        }
    }
}

/// Returns the bits of `value` that `table` names, first to last. Bits count from 1, the highest of `width`.
const fn permute(value: u64, width: u32, table: &[u8]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < table.len() {
        bits = bits << 1 | (value >> (width - table[at] as u32)) & 1;
        at += 1;
    }
    bits
}

/// The S-boxes with P behind them.
static TABLES: [[u32; 64]; 8] = {
    let mut tables = [[0; 64]; 8];
    let mut at = 0;
    while at < 8 * 64 {
        let (group, bits) = (at / 64, at % 64);
        // The outer two bits choose one of four rows, the inner four a digit of it.
        let row = S[group][(bits >> 4 & 2) | (bits & 1)];
        let digit = row >> (60 - 4 * (bits >> 1 & 15)) & 15;
        tables[group][bits] = permute(digit << (28 - 4 * group), 32, &P) as u32;
        at += 1;
    }
    tables
};

/// The S-boxes, one digit an entry.
const S: [[u64; 4]; 8] = [
    [0xe4d12fb83a6c5907, 0x0f74e2d1a6cb9538, 0x41e8d62bfc973a50, 0xfc8249175b3ea06d],
    [0xf18e6b34972dc05a, 0x3d47f28ec01a69b5, 0x0e7ba4d158c6932f, 0xd8a13f42b67c05e9],
    [0xa09e63f51dc7b428, 0xd709346a285ecbf1, 0xd6498f30b12c5ae7, 0x1ad069874fe3b52c],
    [0x7de3069a1285bc4f, 0xd8b56f03472c1ae9, 0xa690cb7df13e5284, 0x3f06a1d8945bc72e],
    [0x2c417ab6853fd0e9, 0xeb2c47d150fa3986, 0x421bad78f9c5630e, 0xb8c71e2d6f09a453],
    [0xc1af92680d34e75b, 0xaf427c9561de0b38, 0x9ef528c3704a1db6, 0x432c95fabe17608d],
    [0x4b2ef08d3c975a61, 0xd0b7491ae35c2f86, 0x14bdc37eaf680592, 0x6bd814a7950fe23c],
    [0xd2846fb1a93e50c7, 0x1fd8a374c56b0e92, 0x7b419ce206adf358, 0x21e74a8dfc90356b],
];

/// P of the standard.
const P: [u8; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, //
    2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
];

/// Permuted choice 1.
const PC1: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36, //
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
];

/// Permuted choice 2.
const PC2: [u8; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2, //
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];
