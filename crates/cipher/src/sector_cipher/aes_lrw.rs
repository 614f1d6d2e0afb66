//! AES-LRW on the kernels.

use super::any_mode::{AnyMode, for_each_batch};
use crate::aes::{self, AesKernel, BlockJob, LrwKeys};
use crate::iv::IvGenerator;
use crate::locked_box::LockedBox;
use crate::modes::new_chain;
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// Returns the LRW cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: AesKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    const LEN: &str = "the key's length was checked";
    if kernel == AesKernel::Portable {
        let chain = new_chain(kernel, Cipher::Aes, ChainMode::Lrw, key).expect(LEN);
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let (data, tweak) = key.split_last_chunk().expect(LEN);
    let mut keys = LockedBox::new(LrwKeys::EMPTY);
    keys.expand(data, tweak, aes::row_blocks(kernel));
    Box::new(Lrw { kernel, keys, unit, ivs })
}

/// AES-LRW on a kernel that takes jobs.
struct Lrw {
    kernel: AesKernel,
    keys: LockedBox<LrwKeys>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl Lrw {
    fn run(&self, first: IvNumber, data: InOut<'_>, encrypt: bool) {
        for_each_batch(&self.ivs, self.unit, first, data, |ivs, batch| {
            aes::lrw(self.kernel, &BlockJob::new(&*self.keys, self.unit, ivs, batch), encrypt);
        });
    }
}

impl SectorCipher for Lrw {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.ivs.step()
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.run(first, data, true);
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.run(first, data, false);
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}
