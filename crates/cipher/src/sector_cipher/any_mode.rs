//! Any chain mode as a sector cipher.

use crate::aes::{AesKernel, MAX_BATCH};
use crate::block_cipher::Block;
use crate::iv::IvGenerator;
use crate::modes::Chain;
use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// A chain mode as a sector cipher.
pub(crate) struct AnyMode {
    chain: Box<dyn Chain>,
    unit: DataUnitSize,
    ivs: IvGenerator,
    kernel: &'static str,
}

impl AnyMode {
    /// Makes a cipher of portable parts.
    pub(crate) fn new(chain: Box<dyn Chain>, unit: DataUnitSize, ivs: IvGenerator) -> Self {
        Self { chain, unit, ivs, kernel: AesKernel::Portable.name() }
    }

    /// Names the kernel of the cipher's parts.
    pub(crate) fn on(self, kernel: &'static str) -> Self {
        Self { kernel, ..self }
    }
}

/// Calls `run` for each batch of `data` with the IVs of its units.
pub(super) fn for_each_batch(
    ivs: &IvGenerator,
    unit: DataUnitSize,
    first: IvNumber,
    data: InOut<'_>,
    run: impl Fn(&mut [Block], InOut<'_>),
) {
    data.assert_whole_units(unit);
    let (mut number, mut left) = (first.0, data);
    while !left.is_empty() {
        let (batch, rest) = left.split_at(unit.bytes() * MAX_BATCH);
        let mut room = [[0; 16]; MAX_BATCH];
        let own = &mut room[..batch.len() >> unit.log2()];
        ivs.fill(number, own);
        number = ivs.advance(number, own.len());
        run(own, batch);
        left = rest;
    }
}

impl SectorCipher for AnyMode {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.ivs.step()
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        for_each_batch(&self.ivs, self.unit, first, data, |ivs, batch| {
            self.chain.encrypt(ivs, batch.into_in_place(), self.unit.bytes());
        });
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        for_each_batch(&self.ivs, self.unit, first, data, |ivs, batch| {
            self.chain.decrypt(ivs, batch.into_in_place(), self.unit.bytes());
        });
    }

    /// Data is copied either way, a batch at a time.
    fn min_encrypted_run(&self) -> usize {
        MAX_BATCH * self.unit.bytes()
    }

    fn min_decrypted_run(&self) -> usize {
        MAX_BATCH * self.unit.bytes()
    }

    fn kernel(&self) -> &'static str {
        self.kernel
    }
}
