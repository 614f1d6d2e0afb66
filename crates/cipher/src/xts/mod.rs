//! AES-XTS (IEEE 1619) over runs of data units, and the kernels to choose from.
//!
//! A kernel is chosen once a key, by [`XtsKernel::best`], and remembered with the proof that its instructions exist. A new
//! kernel is a file, a variant here and an arm in each `match`; the shared runner in `testing` then compares it by itself.

// Jobs are made for kernels, which other architectures do not have yet.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

mod job;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector instructions, behind proof tokens.
mod x86_64;

use crate::aes::{Block, Schedule};
use crate::block_cipher::new_block_cipher;
use crate::isa::{self, CpuLimit};
use crate::iv::IvGenerator;
use crate::locked::LockedBox;
use crate::modes::{AnyMode, new_chain};
use crate::sector_cipher::assert_whole_units;
use crate::spec::KeyParts;
use crate::{ChainMode, Cipher, CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, SectorCipher};
use job::IV_MARGIN;
pub(crate) use job::{CbcJob, XtsJob};
#[cfg(target_arch = "x86_64")]
use x86_64::{AesNiKernel, Vaes256Kernel, Vaes512Kernel};

/// An implementation of AES and its modes, with the proof that this processor can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XtsKernel {
    /// Any processor; constant time.
    Portable,
    /// One block an instruction.
    AesNi(isa::AesNi),
    /// Two blocks an instruction.
    Vaes256(isa::Vaes256),
    /// Four blocks an instruction.
    Vaes512(isa::Vaes512),
}

impl XtsKernel {
    /// The fastest that this processor runs and `INLOCK_CPU` allows.
    pub fn best() -> Result<Self, CipherError> {
        Ok(Self::allowed()?.last().copied().unwrap_or(Self::Portable))
    }

    /// All that this processor runs and `INLOCK_CPU` allows, slowest first.
    pub fn allowed() -> Result<Vec<Self>, CipherError> {
        Ok(Self::available_within(CpuLimit::from_env()?))
    }

    /// All that this processor runs, slowest first, whatever `INLOCK_CPU` says: for tests.
    pub fn available() -> Vec<Self> {
        Self::available_within(CpuLimit::default())
    }

    fn available_within(limit: CpuLimit) -> Vec<Self> {
        let known = [
            (CpuLimit::Portable, Some(Self::Portable)),
            (CpuLimit::AesNi, isa::AesNi::detect().map(Self::AesNi)),
            (CpuLimit::Vaes256, isa::Vaes256::detect().map(Self::Vaes256)),
            (CpuLimit::Vaes512, isa::Vaes512::detect().map(Self::Vaes512)),
        ];
        known.into_iter().filter(|(needs, _)| *needs <= limit).filter_map(|(_, kernel)| kernel).collect()
    }

    /// The name, as `INLOCK_CPU` and benchmarks write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::AesNi(_) => "aesni",
            Self::Vaes256(_) => "vaes256",
            Self::Vaes512(_) => "vaes512",
        }
    }
}

/// Whether `key` is an XTS key of two equal halves, or one of several is, which weakens it: refused for new volumes, warned about in old ones.
/// Takes the same time wherever the halves differ.
pub fn has_equal_halves(spec: &CipherSpec, key: &[u8]) -> bool {
    let parts = spec.key_parts(key.len()).filter(|parts| spec.mode == ChainMode::Xts && parts.each > 0);
    let Some(KeyParts { each, extra }) = parts else { return false };
    let equal = |own: &[u8]| {
        let (data, tweak) = own.split_at(own.len() / 2);
        let difference = data.iter().zip(tweak).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0
    };
    key[..key.len() - extra].chunks_exact(each).any(equal)
}

/// The XTS cipher of `key`, whose length has been checked, on `kernel`.
pub(crate) fn new(kernel: XtsKernel, key: &[u8], unit: DataUnitSize, ivs: IvGenerator) -> Box<dyn SectorCipher> {
    // Kernels are made for the two key lengths of IEEE 1619; dm-crypt takes AES-192 too.
    if kernel == XtsKernel::Portable || key.len() == 48 {
        let chain = new_chain(Cipher::Aes, ChainMode::Xts, key).expect("the key's length was checked");
        return Box::new(AnyMode::new(chain, unit, ivs));
    }
    let (data, tweak) = key.split_at(key.len() / 2);
    let mut keys = LockedBox::new(XtsKeys { data: Schedule::EMPTY, tweak: Schedule::EMPTY });
    keys.data.expand(data);
    keys.tweak.expand(tweak);
    Box::new(Xts { kernel, keys, unit, ivs })
}

/// The schedules of both halves of an XTS key.
pub(crate) struct XtsKeys {
    pub(crate) data: Schedule,
    pub(crate) tweak: Schedule,
}

/// AES-XTS on a kernel of the processor's.
struct Xts {
    kernel: XtsKernel,
    keys: LockedBox<XtsKeys>,
    unit: DataUnitSize,
    ivs: IvGenerator,
}

impl Xts {
    #[inline(always)]
    fn run(&self, first: IvNumber, data: InOut<'_>, encrypt: bool) {
        const SMALL: usize = 8;
        if assert_whole_units(self.unit, &data) <= SMALL {
            self.run_batches(first, data, encrypt, [[0; 16]; SMALL + IV_MARGIN]);
        } else {
            self.run_batches(first, data, encrypt, [[0; 16]; IvGenerator::MAX_BATCH + IV_MARGIN]);
        }
    }

    #[inline(always)]
    fn run_batches<const N: usize>(&self, first: IvNumber, data: InOut<'_>, encrypt: bool, mut ivs: [Block; N]) {
        let batch_len = (N - IV_MARGIN) << self.unit.log2();
        let (mut number, mut left) = (first.0, data);
        while !left.is_empty() {
            let (batch, rest) = left.split_at(batch_len);
            let mut job = XtsJob::new(&self.keys, &self.ivs, self.unit, IvNumber(number), &mut ivs, batch);
            number = self.ivs.advance(number, job.units());
            left = rest;
            #[cfg(target_arch = "x86_64")]
            match self.kernel {
                XtsKernel::Vaes512(proof) => Vaes512Kernel::xts(proof, &mut job, encrypt),
                XtsKernel::Vaes256(proof) => Vaes256Kernel::xts(proof, &mut job, encrypt),
                XtsKernel::AesNi(proof) => AesNiKernel::xts(proof, &mut job, encrypt),
                XtsKernel::Portable => unreachable!("the portable kernel has a type of its own"),
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("no kernel but the portable one on this architecture: {} {encrypt}", job.units());
        }
    }
}

impl SectorCipher for Xts {
    fn unit(&self) -> DataUnitSize {
        self.unit
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

/// CBC decryption on a kernel of the processor's.
pub(crate) fn cbc_decrypt(kernel: XtsKernel, job: &CbcJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        XtsKernel::Vaes512(proof) => Vaes512Kernel::cbc_decrypt(proof, job),
        XtsKernel::Vaes256(proof) => Vaes256Kernel::cbc_decrypt(proof, job),
        XtsKernel::AesNi(proof) => AesNiKernel::cbc_decrypt(proof, job),
        XtsKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {}", job.units());
}

/// CBC encryption: chains are one block wide, so every kernel of the processor's is the AES-NI one.
pub(crate) fn cbc_encrypt(_: XtsKernel, job: &CbcJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    AesNiKernel::cbc_encrypt(isa::AesNi::detect().expect("every kernel of the processor's implies AES-NI"), job);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {}", job.units());
}

/// Encrypts each block for itself, on a kernel of the processor's.
#[inline]
pub(crate) fn encrypt_blocks(kernel: XtsKernel, keys: &Schedule, blocks: &mut [Block]) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        XtsKernel::Vaes512(proof) => Vaes512Kernel::encrypt_blocks(proof, keys, blocks),
        XtsKernel::Vaes256(proof) => Vaes256Kernel::encrypt_blocks(proof, keys, blocks),
        XtsKernel::AesNi(proof) => AesNiKernel::encrypt_blocks(proof, keys, blocks),
        XtsKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {}", blocks.len());
}

/// AES rounds of `kernel`'s width back to back, `iterations` times; gives back the bytes that went through. The portable
/// kernel has no rounds of its own: independent blocks through its block cipher.
pub(crate) fn limit(kernel: XtsKernel, key_bits: usize, iterations: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        XtsKernel::Portable => {}
        XtsKernel::AesNi(proof) => return AesNiKernel::limit(proof, key_bits / 32 + 6, iterations),
        XtsKernel::Vaes256(proof) => return Vaes256Kernel::limit(proof, key_bits / 32 + 6, iterations),
        XtsKernel::Vaes512(proof) => return Vaes512Kernel::limit(proof, key_bits / 32 + 6, iterations),
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = kernel;
    let cipher =
        new_block_cipher(Cipher::Aes, &[0x5a; 32][..key_bits / 8]).expect("AES has keys of 128, 192 and 256 bits");
    let mut blocks = [0x5a; 512];
    for _ in 0..iterations {
        cipher.encrypt_blocks(&mut blocks);
    }
    std::hint::black_box(&blocks);
    (iterations * blocks.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit never lets a wider kernel through, and without one the widest is the best.
    #[test]
    fn limits_cut_the_list_of_kernels() {
        let all = XtsKernel::available();
        let names = ["portable", "aesni", "vaes256", "vaes512"];
        let limits = [CpuLimit::Portable, CpuLimit::AesNi, CpuLimit::Vaes256, CpuLimit::Vaes512];
        for (most, limit) in limits.into_iter().enumerate() {
            let within = XtsKernel::available_within(limit);
            let expected: Vec<_> =
                all.iter().copied().filter(|kernel| names[..=most].contains(&kernel.name())).collect();
            assert_eq!(within, expected);
            assert_eq!(within[0], XtsKernel::Portable);
        }
    }
}
