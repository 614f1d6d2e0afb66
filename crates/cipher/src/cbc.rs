//! AES-CBC over runs of data units on the processor's kernels, each unit a chain of its own.
//!
//! Decryption has no chain to wait for and is batched within a unit; encryption has, and runs eight units side by side.

use crate::aes::Schedule;
use crate::iv::IvGenerator;
use crate::locked::LockedBox;
use crate::modes::{AnyMode, new_chain};
use crate::xts::{self, CbcJob, XtsKernel};
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// The CBC cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: XtsKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    if kernel == XtsKernel::Portable {
        let chain = new_chain(Cipher::Aes, ChainMode::Cbc, key).expect("the key's length was checked");
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let mut keys = LockedBox::new(Schedule::EMPTY);
    keys.expand(key);
    Box::new(Cbc { kernel, keys, unit, ivs })
}

/// AES-CBC on a kernel of the processor's.
struct Cbc {
    kernel: XtsKernel,
    keys: LockedBox<Schedule>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl SectorCipher for Cbc {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        xts::cbc_encrypt(self.kernel, &CbcJob::new(&self.keys, &self.ivs, self.unit, first, data));
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        xts::cbc_decrypt(self.kernel, &CbcJob::new(&self.keys, &self.ivs, self.unit, first, data));
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}
