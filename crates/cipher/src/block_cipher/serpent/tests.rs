//! The circuits of the S-boxes, and the rounds, without vectors.

use super::rounds;
use super::sboxes;
use super::schedule::Schedule;
use super::words::{Lookup, Words};
use crate::Cipher;
use crate::testing::block::NaiveBlocks;
use crate::testing::noise;

/// The S-boxes of the proposal, appendix A.5: the image of 0 is the first digit.
const TABLES: [u64; 8] = [
    0x38f1a65bed42709c,
    0xfc27905a1be86d34,
    0x86793cafd1e40b52,
    0x0fb8c963d124a75e,
    0x1f83c0b6254a9e7d,
    0xf52b4a9c03e8d671,
    0x72c5846be91fd3a0,
    0x1df0e82b74ca9356,
];

/// Words of one block with every function of three inputs, from its truth table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OneByTable(u32);

impl Words for OneByTable {
    fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
    fn xor_word(self, word: u32) -> Self {
        Self(self.0 ^ word)
    }
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    fn clear(self, other: Self) -> Self {
        Self(!self.0 & other.0)
    }
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        assert_eq!(LEFT + RIGHT, 32);
        Self(self.0.rotate_left(LEFT as u32))
    }
    fn shift_left<const BY: i32>(self) -> Self {
        Self(self.0 << BY)
    }
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::substitute_by_lookup::<Self, BOX>(x)
    }
    fn invert<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        sboxes::invert_by_lookup::<Self, BOX>(x)
    }
}

impl Lookup for OneByTable {
    fn lookup<const TABLE: i32>(self, second: Self, third: Self) -> Self {
        let bit = |word: Self, at: u32| word.0 >> at & 1;
        let row = |at| bit(self, at) << 2 | bit(second, at) << 1 | bit(third, at);
        Self((0..32).fold(0, |word, at| word | (TABLE as u32 >> row(at) & 1) << at))
    }
}

/// The four words in which bit `n` is the input `n`, of which the lowest bit is in the first word.
const INPUTS: [u32; 4] = [0xaaaa, 0xcccc, 0xf0f0, 0xff00];

/// Returns the digits whose bits are in four words.
fn digits(words: [u32; 4]) -> [u64; 16] {
    std::array::from_fn(|at| (0..4).fold(0, |digit, bit| digit | u64::from(words[bit] >> at & 1) << bit))
}

fn check<const BOX: usize>() {
    let table: [u64; 16] = std::array::from_fn(|at| TABLES[BOX] >> (60 - 4 * at) & 15);
    let inverse: [u64; 16] =
        std::array::from_fn(|at| table.iter().position(|image| *image == at as u64).unwrap() as u64);
    let by_table = |words: [OneByTable; 4]| digits(words.map(|word| word.0));
    assert_eq!(digits(u32::substitute::<BOX>(INPUTS)), table, "S-box {BOX}");
    assert_eq!(digits(u32::invert::<BOX>(INPUTS)), inverse, "inverse of S-box {BOX}");
    assert_eq!(by_table(OneByTable::substitute::<BOX>(INPUTS.map(OneByTable))), table, "S-box {BOX} by lookup");
    assert_eq!(by_table(OneByTable::invert::<BOX>(INPUTS.map(OneByTable))), inverse, "inverse of {BOX} by lookup");
}

/// Every input of every circuit.
#[test]
fn circuits_equal_the_tables_of_the_proposal() {
    check::<0>();
    check::<1>();
    check::<2>();
    check::<3>();
    check::<4>();
    check::<5>();
    check::<6>();
    check::<7>();
}

/// The rounds of the kernels on single blocks, so that they are tested on every CPU.
#[test]
fn rounds_of_one_block_agree_with_the_library() {
    for seed in 0..64 {
        let key = noise(seed, 32);
        let mut keys = Schedule::EMPTY;
        keys.expand(key.first_chunk().unwrap());
        let naive = NaiveBlocks::new(Cipher::Serpent, &key);
        let plain = noise(seed + 1000, 32);
        let mut expected = plain.clone();
        expected.chunks_exact_mut(16).for_each(|block| naive.encrypt(block));
        let words = |bytes: &[u8], at: usize| u32::from_le_bytes(*bytes[4 * at..].first_chunk().unwrap());
        let blocks: [[u32; 4]; 2] = [0, 4].map(|first| std::array::from_fn(|at| words(&plain, first + at)));
        let images: [[u32; 4]; 2] = [0, 4].map(|first| std::array::from_fn(|at| words(&expected, first + at)));
        let mut groups = blocks;
        rounds::encrypt(&keys, &mut groups);
        assert_eq!(groups, images);
        rounds::decrypt(&keys, &mut groups);
        assert_eq!(groups, blocks);
        let mut by_table = blocks.map(|words| words.map(OneByTable));
        rounds::encrypt(&keys, &mut by_table);
        assert_eq!(by_table, images.map(|words| words.map(OneByTable)));
        rounds::decrypt(&keys, &mut by_table);
        assert_eq!(by_table, blocks.map(|words| words.map(OneByTable)));
    }
}
