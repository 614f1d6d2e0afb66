//! AES-CBC on the kernels, each data unit a chain of its own.
//!
//! Decryption does not depend on the chain and is batched within a unit; encryption does, and runs eight units at a
//! time.

// Other architectures have no kernels that take jobs yet.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

use super::any_mode::AnyMode;
use crate::aes::{self, AesKernel, CbcJob, IvSource, Schedule};
use crate::block_cipher::Block;
use crate::iv::IvGenerator;
use crate::locked_box::LockedBox;
use crate::modes::new_chain;
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// Returns the CBC cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: AesKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    if kernel == AesKernel::Portable {
        let chain = new_chain(kernel, Cipher::Aes, ChainMode::Cbc, key).expect("the key's length was checked");
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let mut keys = LockedBox::new(Schedule::EMPTY);
    keys.expand(key);
    Box::new(Cbc { kernel, keys, unit, ivs })
}

/// AES-CBC on a kernel that takes jobs.
struct Cbc {
    kernel: AesKernel,
    keys: LockedBox<Schedule>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

/// IVs of one call.
struct Ivs<'a> {
    generator: &'a IvGenerator,
    first: IvNumber,
}

impl IvSource for Ivs<'_> {
    fn fill(&self, unit: usize, ivs: &mut [Block]) {
        self.generator.fill(self.generator.advance(self.first.0, unit), ivs);
    }
}

impl SectorCipher for Cbc {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.ivs.step()
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        let ivs = Ivs { generator: &self.ivs, first };
        aes::cbc_encrypt(self.kernel, &CbcJob::new(&self.keys, &ivs, self.unit, data));
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        let ivs = Ivs { generator: &self.ivs, first };
        aes::cbc_decrypt(self.kernel, &CbcJob::new(&self.keys, &ivs, self.unit, data));
    }

    /// Eight units run in parallel. Fewer take as long, and so do the last ones of a run.
    fn min_encrypted_run(&self) -> usize {
        32 * self.unit.bytes()
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}
