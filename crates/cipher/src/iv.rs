//! IVs: the block that starts a data unit's chain or, for XTS, is encrypted into its tweak (dm-crypt's names).
//!
//! A kernel asks for the finished IVs of up to [`IvGenerator::MAX_BATCH`] units at a time, so no kernel knows an IV
//! mode. A new mode is an arm in [`IvGenerator::fill`] and a row of vectors.

use crate::aes::{AesKey, Block};
use crate::spec::{EssivHash, IvMode};
use crate::xts::XtsKernel;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

/// Makes the IVs of consecutive data units.
pub(crate) struct IvGenerator {
    mode: Mode,
    /// How much an IV number grows from unit to unit.
    step: u64,
}

enum Mode {
    Null,
    Plain,
    Plain64,
    Essiv(AesKey),
    /// The same block for every unit: for vectors whose tweak is no number.
    #[cfg(test)]
    Fixed(Block),
}

impl IvGenerator {
    /// The most IVs that a kernel asks for at a time.
    pub(crate) const MAX_BATCH: usize = 64;

    /// For `mode` under the data key `key`; ESSIV encrypts with `kernel`.
    pub(crate) fn new(mode: IvMode, step: u64, key: &[u8], kernel: XtsKernel) -> Self {
        let mode = match mode {
            IvMode::Null => Mode::Null,
            IvMode::Plain => Mode::Plain,
            IvMode::Plain64 => Mode::Plain64,
            IvMode::Essiv(EssivHash::Sha256) => {
                let mut digest = Sha256::digest(key);
                let key = AesKey::new(kernel, &digest);
                digest.as_mut_slice().zeroize();
                Mode::Essiv(key)
            }
        };
        Self { mode, step }
    }

    #[cfg(test)]
    pub(crate) fn fixed(iv: Block) -> Self {
        Self { mode: Mode::Fixed(iv), step: 1 }
    }

    /// The IV number `units` units after `number`.
    #[inline(always)]
    pub(crate) fn advance(&self, number: u64, units: usize) -> u64 {
        number.wrapping_add(self.step.wrapping_mul(units as u64))
    }

    /// Fills `ivs` with the IVs of consecutive units, the first of which has the number `number`.
    #[inline(always)]
    pub(crate) fn fill(&self, number: u64, ivs: &mut [Block]) {
        match &self.mode {
            Mode::Plain64 => self.number(number, u64::MAX, ivs),
            Mode::Plain => self.number(number, u64::from(u32::MAX), ivs),
            Mode::Null => ivs.fill([0; 16]),
            Mode::Essiv(key) => {
                self.number(number, u64::MAX, ivs);
                key.encrypt_blocks(ivs);
            }
            #[cfg(test)]
            Mode::Fixed(iv) => ivs.fill(*iv),
        }
    }

    #[inline(always)]
    fn number(&self, mut number: u64, mask: u64, ivs: &mut [Block]) {
        for iv in ivs {
            *iv = u128::from(number & mask).to_le_bytes();
            number = number.wrapping_add(self.step);
        }
    }
}
