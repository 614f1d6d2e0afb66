//! AES-XTS (IEEE 1619) on the kernels.

// Other architectures have no kernels that take jobs yet.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

use super::any_mode::AnyMode;
use crate::aes::{self, AesKernel, IV_MARGIN, MAX_BATCH, Schedule, XtsJob, XtsKeys};
use crate::block_cipher::Block;
use crate::iv::IvGenerator;
use crate::locked_box::LockedBox;
use crate::modes::new_chain;
use crate::{ChainMode, Cipher, DataUnitSize, InOut, IvNumber, SectorCipher};

/// Returns the XTS cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: AesKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    // Kernels support the two key lengths of IEEE 1619; dm-crypt accepts AES-192 as well.
    if kernel == AesKernel::Portable || key.len() == 48 {
        let chain = new_chain(kernel, Cipher::Aes, ChainMode::Xts, key).expect("the key's length was checked");
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let (data, tweak) = key.split_at(key.len() / 2);
    let mut keys = LockedBox::new(XtsKeys { data: Schedule::EMPTY, tweak: Schedule::EMPTY });
    keys.data.expand(data);
    keys.tweak.expand(tweak);
    Box::new(Xts { kernel, keys, unit, ivs })
}

/// AES-XTS on a kernel that takes jobs.
struct Xts {
    kernel: AesKernel,
    keys: LockedBox<XtsKeys>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl Xts {
    #[inline(always)]
    fn run(&self, first: IvNumber, data: InOut<'_>, encrypt: bool) {
        const SMALL: usize = 8;
        if data.assert_whole_units(self.unit) <= SMALL {
            self.run_batches(first, data, encrypt, [[0; 16]; SMALL + IV_MARGIN]);
        } else {
            self.run_batches(first, data, encrypt, [[0; 16]; MAX_BATCH + IV_MARGIN]);
        }
    }

    #[inline(always)]
    fn run_batches<const N: usize>(&self, first: IvNumber, data: InOut<'_>, encrypt: bool, mut ivs: [Block; N]) {
        let batch_len = (N - IV_MARGIN) << self.unit.log2();
        let (mut number, mut left) = (first.0, data);
        while !left.is_empty() {
            let (batch, rest) = left.split_at(batch_len);
            let mut job = XtsJob::new(&self.keys, self.unit, &mut ivs, batch, |ivs| self.ivs.fill(number, ivs));
            number = self.ivs.advance(number, job.units());
            left = rest;
            aes::xts(self.kernel, &mut job, encrypt);
        }
    }
}

impl SectorCipher for Xts {
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
