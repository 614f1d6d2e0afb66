//! Any chain mode as a sector cipher.

use crate::aes::MAX_BATCH;
use crate::block_cipher::Block;
use crate::iv::IvGenerator;
use crate::modes::Chain;
use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

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
        data.assert_whole_units(self.unit);
        let mut number = first.0;
        for batch in data.into_in_place().chunks_mut(self.unit.bytes() * MAX_BATCH) {
            let mut ivs = [[0; 16]; MAX_BATCH];
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
