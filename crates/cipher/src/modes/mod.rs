//! Chain modes over any block cipher: the default for a cipher, a mode or a processor that has no kernel.
//!
//! A mode is a [`Chain`]: it works on a batch of data units in place and is given the IV of each. [`AnyMode`] makes a sector cipher of
//! it. As many blocks as possible reach the block cipher in one call, of several units where one unit is a chain.

mod cbc;
mod ctr;
mod ecb;
mod lrw;
mod xts;

use crate::adiantum::Adiantum;
use crate::aes::Block;
use crate::block_cipher::{BlockCipher, new_block_cipher};
use crate::iv::IvGenerator;
use crate::sector_cipher::assert_whole_units;
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// A chain mode under a key.
pub(crate) trait Chain: Send + Sync {
    /// Encrypts units of `unit_len` bytes, whole blocks of the cipher, one for each of `ivs`, which is used up. Of an IV a cipher with
    /// short blocks takes the first bytes.
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize);
    /// Decrypts; as [`Chain::encrypt`].
    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize);
}

/// The chain of `mode` over `cipher` under `key`; `None` where they, or the key's length, do not go together.
pub(crate) fn new_chain(cipher: Cipher, mode: ChainMode, key: &[u8]) -> Option<Box<dyn Chain>> {
    Some(match mode {
        ChainMode::Xts => {
            let (data, tweak) = key.split_at_checked(key.len() / 2)?;
            Box::new(xts::Xts::new(new_block_cipher(cipher, data)?, new_block_cipher(cipher, tweak)?))
        }
        ChainMode::Lrw => {
            let (data, tweak) = key.split_last_chunk::<16>()?;
            Box::new(lrw::Lrw::new(new_block_cipher(cipher, data)?, tweak))
        }
        ChainMode::Cbc => Box::new(cbc::Cbc::new(new_block_cipher(cipher, key)?)),
        ChainMode::Ecb => Box::new(ecb::Ecb::new(new_block_cipher(cipher, key)?)),
        ChainMode::Ctr => Box::new(ctr::Ctr::new(new_block_cipher(cipher, key)?)),
        ChainMode::Adiantum => {
            let Cipher::Adiantum { rounds } = cipher else { return None };
            Box::new(Adiantum::new(key.try_into().ok()?, rounds))
        }
    })
}

/// A chain mode as a sector cipher.
pub(crate) struct AnyMode {
    chain: Box<dyn Chain>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl AnyMode {
    pub(crate) fn new(chain: Box<dyn Chain>, unit: DataUnitSize, ivs: IvGenerator) -> Self {
        Self { chain, unit, ivs }
    }

    fn for_each_batch(&self, first: IvNumber, data: InOut<'_>, run: impl Fn(&mut [Block], &mut [u8])) {
        assert_whole_units(self.unit, &data);
        let mut number = first.0;
        for batch in data.into_in_place().chunks_mut(self.unit.bytes() * IvGenerator::MAX_BATCH) {
            let mut ivs = [[0; 16]; IvGenerator::MAX_BATCH];
            let ivs = &mut ivs[..batch.len() / self.unit.bytes()];
            self.ivs.fill(number, ivs);
            number = self.ivs.advance(number, ivs.len());
            run(ivs, batch);
        }
    }
}

impl SectorCipher for AnyMode {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.for_each_batch(first, data, |ivs, batch| self.chain.encrypt(ivs, batch, self.unit.bytes()));
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.for_each_batch(first, data, |ivs, batch| self.chain.decrypt(ivs, batch, self.unit.bytes()));
    }
}

/// How many blocks of one unit a mode gives to the cipher at a time, and room for them.
const RUN: usize = 32;

/// XORs `with` to `data`, to where the shorter ends.
fn xor(data: &mut [u8], with: &[u8]) {
    for (byte, with) in data.iter_mut().zip(with) {
        *byte ^= with;
    }
}

/// Runs `cipher` over `data` between two XORs with `masks`, 16 bytes a block: the core of XTS and LRW.
fn between_masks(data: &mut [u8], mut next_mask: impl FnMut() -> u128, mut cipher: impl FnMut(&mut [u8])) {
    let mut masks = [[0; 16]; RUN];
    for run in data.chunks_mut(RUN * 16) {
        for mask in &mut masks[..run.len() / 16] {
            *mask = next_mask().to_ne_bytes();
        }
        xor(run, masks.as_flattened());
        cipher(run);
        xor(run, masks.as_flattened());
    }
}
