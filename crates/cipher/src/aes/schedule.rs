//! AES key schedules (FIPS 197, section 5.2), expanded once for each key.
//!
//! The expansion uses no table: the S-box is taken from a cipher round of the `aes` crate, which is constant time on
//! every target. Decryption keys are those of the equivalent inverse cipher (section 5.3.5), as the AES instructions
//! need them.

use crate::block_cipher::Block;
use ::aes::hazmat;
use zeroize::Zeroize;

/// Maximum number of round keys: AES-256 has 14 rounds, and a key before the first.
pub(crate) const MAX_ROUND_KEYS: usize = 15;

/// The keys of one direction, in order of use. Those after the last round are zero.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RoundKeys(pub(crate) [Block; MAX_ROUND_KEYS]);

/// An expanded AES key.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Schedule {
    /// For encryption.
    pub(crate) encrypt: RoundKeys,
    /// For decryption.
    pub(crate) decrypt: RoundKeys,
    /// 10, 12 or 14; 0 before [`Schedule::expand`].
    pub(crate) rounds: usize,
}

impl Schedule {
    /// A schedule of zeroes, for [`Schedule::expand`] to fill in place.
    pub(crate) const EMPTY: Self = Self {
        encrypt: RoundKeys([[0; 16]; MAX_ROUND_KEYS]),
        decrypt: RoundKeys([[0; 16]; MAX_ROUND_KEYS]),
        rounds: 0,
    };

    /// Expands `key`, which has 16, 24 or 32 bytes, as the caller has checked.
    pub(crate) fn expand(&mut self, key: &[u8]) {
        assert!(matches!(key.len(), 16 | 24 | 32), "an AES key has 16, 24 or 32 bytes");
        let key_words = key.len() / 4;
        self.rounds = key_words + 6;
        let words = self.encrypt.0.as_flattened_mut().as_chunks_mut::<4>().0;
        words[..key_words].copy_from_slice(key.as_chunks::<4>().0);
        let mut round_constant = 1u8;
        for at in key_words..4 * (self.rounds + 1) {
            let mut word = words[at - 1];
            if at % key_words == 0 {
                word.rotate_left(1);
                word = substitute(word);
                word[0] ^= round_constant;
                round_constant = (round_constant << 1) ^ ((round_constant >> 7) * 0x1b);
            } else if key_words == 8 && at % key_words == 4 {
                word = substitute(word);
            }
            for (byte, before) in word.iter_mut().zip(words[at - key_words]) {
                *byte ^= before;
            }
            words[at] = word;
            word.zeroize();
        }
        for round in 0..=self.rounds {
            self.decrypt.0[round] = self.encrypt.0[self.rounds - round];
            if round != 0 && round != self.rounds {
                hazmat::inv_mix_columns((&mut self.decrypt.0[round]).into());
            }
        }
    }
}

/// The schedules of both halves of an XTS key.
pub(crate) struct XtsKeys {
    pub(crate) data: Schedule,
    pub(crate) tweak: Schedule,
}

/// An AES key for LRW, with the products that a kernel's rows need. Blocks are as the mode adds them.
#[repr(C, align(64))]
pub(crate) struct LrwKeys {
    pub(crate) data: Schedule,
    /// The tweak key times each number below the blocks of a row, twice.
    pub(crate) low: [Block; 64],
    /// At `n`, the tweak key times the number with its `n + 1` low bits set.
    pub(crate) steps: [Block; 128],
    pub(crate) row_blocks: usize,
}

impl LrwKeys {
    /// To be filled by [`LrwKeys::expand`] in place.
    pub(crate) const EMPTY: Self =
        Self { data: Schedule::EMPTY, low: [[0; 16]; 64], steps: [[0; 16]; 128], row_blocks: 0 };

    /// Expands a key of AES and a tweak key, for a kernel with `row_blocks` blocks in a row.
    pub(crate) fn expand(&mut self, data: &[u8], tweak: &[u8; 16], row_blocks: usize) {
        self.data.expand(data);
        self.row_blocks = row_blocks;
        let key = u128::from_be_bytes(*tweak);
        let mut step = 0;
        for to in &mut self.steps {
            // Times x, plus the key.
            step = (step << 1) ^ ((step >> 127) * 0x87) ^ key;
            *to = step.to_be_bytes();
        }
        for at in 0..2 * row_blocks {
            self.low[at] = self.product((at % row_blocks) as u128);
        }
    }

    /// Returns the tweak key times `index`, which is public.
    pub(crate) fn product(&self, index: u128) -> Block {
        let (mut left, mut product) = (index, 0);
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            product ^= u128::from_ne_bytes(self.steps[bit]);
            if bit > 0 {
                product ^= u128::from_ne_bytes(self.steps[bit - 1]);
            }
            left &= left - 1;
        }
        product.to_ne_bytes()
    }
}

/// An AES key for GCM, with the powers of its hash key that a kernel's rows need.
#[repr(C, align(64))]
pub(crate) struct GcmKeys {
    pub(crate) schedule: Schedule,
    /// From [`GcmKeys::FIRST`] on, descending: two for additional data, one for the last row, those of a row.
    pub(crate) powers: [Block; 36],
    /// The hash of the block of lengths.
    pub(crate) length: Block,
}

impl GcmKeys {
    /// To be filled in place.
    pub(crate) const EMPTY: Self = Self { schedule: Schedule::EMPTY, powers: [[0; 16]; 36], length: [0; 16] };
    /// Index of the first power, by which those of a row are aligned.
    pub(crate) const FIRST: usize = 1;
}

/// Applies the S-box to four bytes. With four equal columns, the row shift of a round has no effect; its column mix is
/// undone.
fn substitute(word: [u8; 4]) -> [u8; 4] {
    let mut block: Block = [0; 16];
    block.as_chunks_mut::<4>().0.fill(word);
    hazmat::cipher_round((&mut block).into(), &[0; 16].into());
    hazmat::inv_mix_columns((&mut block).into());
    let substituted = [block[0], block[1], block[2], block[3]];
    block.zeroize();
    substituted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_key(key: &[u8]) -> Block {
        let mut schedule = Schedule::EMPTY;
        schedule.expand(key);
        schedule.encrypt.0[schedule.rounds]
    }

    /// FIPS 197, appendix A: the last four words of each example.
    #[test]
    fn expand_of_the_standards_examples_gives_their_last_keys() {
        let key128 = 0x2b7e1516_28aed2a6_abf71588_09cf4f3c_u128.to_be_bytes();
        assert_eq!(last_key(&key128), 0xd014f9a8_c9ee2589_e13f0cc8_b6630ca6_u128.to_be_bytes());
        let mut key192 = 0x8e73b0f7_da0e6452_c810f32b_809079e5_u128.to_be_bytes().to_vec();
        key192.extend(0x62f8ead2_522c6b7b_u64.to_be_bytes());
        assert_eq!(last_key(&key192), 0xe98ba06f_448c773c_8ecc7204_01002202_u128.to_be_bytes());
        let mut key256 = 0x603deb10_15ca71be_2b73aef0_857d7781_u128.to_be_bytes().to_vec();
        key256.extend(0x1f352c07_3b6108d7_2d9810a3_0914dff4_u128.to_be_bytes());
        assert_eq!(last_key(&key256), 0xfe4890d1_e6188d0b_046df344_706c631e_u128.to_be_bytes());
    }
}
