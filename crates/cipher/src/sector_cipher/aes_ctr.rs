//! AES-CTR on the kernels.

use super::any_mode::{AnyMode, for_each_batch};
use crate::aes::{self, AesKernel, BlockJob, Schedule};
use crate::iv::IvGenerator;
use crate::locked_box::LockedBox;
use crate::modes::new_chain;
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// Returns the CTR cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: AesKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    if kernel == AesKernel::Portable {
        let chain = new_chain(kernel, Cipher::Aes, ChainMode::Ctr, key).expect("the key's length was checked");
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let mut keys = LockedBox::new(Schedule::EMPTY);
    keys.expand(key);
    Box::new(Ctr { kernel, keys, unit, ivs })
}

/// AES-CTR on a kernel that takes jobs.
struct Ctr {
    kernel: AesKernel,
    keys: LockedBox<Schedule>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl SectorCipher for Ctr {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.ivs.step()
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        for_each_batch(&self.ivs, self.unit, first, data, |ivs, batch| {
            aes::ctr(self.kernel, &BlockJob::new(&*self.keys, self.unit, ivs, batch));
        });
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.encrypt(first, data);
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}
