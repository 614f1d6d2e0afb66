//! The AES kernels and their entry points.
//!
//! A kernel is chosen once for each key, by [`AesKernel::best`], and stored with the proof that its instructions exist.
//! A new kernel is a file in `x86_64`, a variant here and an arm in each `match`; the shared runner in `testing` then
//! compares it with the others.

use super::job::{AegisJob, CbcJob, GcmJob, XtsJob};
use super::schedule::{GcmKeys, Schedule};
#[cfg(target_arch = "x86_64")]
use super::x86_64::{AegisKernel, AesNiKernel, Vaes256Kernel, Vaes512Kernel};
use crate::CipherError;
use crate::block_cipher::Block;
use crate::isa::{self, CpuLimit};

/// An implementation of AES and its modes, with the proof that this CPU can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AesKernel {
    /// Any CPU; constant time.
    Portable,
    /// One block per instruction.
    AesNi(isa::AesNi),
    /// Two blocks per instruction.
    Vaes256(isa::Vaes256),
    /// Four blocks per instruction.
    Vaes512(isa::Vaes512),
}

impl AesKernel {
    /// Returns the fastest kernel that this CPU has and `INLOCK_CPU` allows.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn best() -> Result<Self, CipherError> {
        Ok(Self::allowed()?.last().copied().unwrap_or(Self::Portable))
    }

    /// Returns the kernels that this CPU has and `INLOCK_CPU` allows, slowest first.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn allowed() -> Result<Vec<Self>, CipherError> {
        Ok(Self::available_within(CpuLimit::from_env()?))
    }

    /// Returns all kernels that this CPU has, slowest first. Ignores `INLOCK_CPU`.
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

    /// Returns the name of the kernel in `INLOCK_CPU` and in benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::AesNi(_) => "aesni",
            Self::Vaes256(_) => "vaes256",
            Self::Vaes512(_) => "vaes512",
        }
    }
}

/// Runs XTS on every unit of `job`.
#[inline(always)]
pub(crate) fn xts(kernel: AesKernel, job: &mut XtsJob<'_>, encrypt: bool) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::xts(proof, job, encrypt),
        AesKernel::Vaes256(proof) => Vaes256Kernel::xts(proof, job, encrypt),
        AesKernel::AesNi(proof) => AesNiKernel::xts(proof, job, encrypt),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {encrypt} {}", job.units());
}

/// Decrypts every unit of `job` with CBC.
pub(crate) fn cbc_decrypt(kernel: AesKernel, job: &CbcJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::cbc_decrypt(proof, job),
        AesKernel::Vaes256(proof) => Vaes256Kernel::cbc_decrypt(proof, job),
        AesKernel::AesNi(proof) => AesNiKernel::cbc_decrypt(proof, job),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {}", job.units());
}

/// Encrypts every unit of `job` with CBC. A chain is one block wide, so all kernels share that of AES-NI.
pub(crate) fn cbc_encrypt(_: AesKernel, job: &CbcJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    AesNiKernel::cbc_encrypt(isa::AesNi::detect().expect("every kernel but the portable one implies AES-NI"), job);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {}", job.units());
}

/// Runs GCM on every unit of `job`, whose key [`gcm_powers`] has prepared for the same kernel.
pub(crate) fn gcm(kernel: AesKernel, job: &mut GcmJob<'_>, encrypt: bool) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::gcm(proof, job, encrypt),
        AesKernel::Vaes256(proof) => Vaes256Kernel::gcm(proof, job, encrypt),
        AesKernel::AesNi(proof) => AesNiKernel::gcm(proof, job, encrypt),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {encrypt} {}", job.units());
}

/// Prepares `keys`, whose schedule is expanded, for the GCM of `kernel` and units with the block of `lengths`.
pub(crate) fn gcm_powers(kernel: AesKernel, keys: &mut GcmKeys, lengths: &Block) {
    #[cfg(target_arch = "x86_64")]
    {
        let row_blocks = match kernel {
            AesKernel::Vaes512(_) => 32,
            AesKernel::Vaes256(_) => 16,
            _ => 8,
        };
        let proof = isa::AesNi::detect().expect("every kernel but the portable one implies AES-NI");
        AesNiKernel::gcm_powers(proof, keys, row_blocks, lengths);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {} {lengths:?}", keys.length.len());
}

/// Runs AEGIS-128 on every unit of `job`. A state is five blocks wide, so all kernels share that of AES-NI.
pub(crate) fn aegis(_: AesKernel, job: &mut AegisJob<'_>, encrypt: bool) {
    #[cfg(target_arch = "x86_64")]
    AegisKernel::run(isa::AesNi::detect().expect("every kernel but the portable one implies AES-NI"), job, encrypt);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {encrypt} {}", job.units());
}

/// Encrypts each block by itself.
#[inline]
pub(crate) fn encrypt_blocks(kernel: AesKernel, keys: &Schedule, blocks: &mut [Block]) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::encrypt_blocks(proof, keys, blocks),
        AesKernel::Vaes256(proof) => Vaes256Kernel::encrypt_blocks(proof, keys, blocks),
        AesKernel::AesNi(proof) => AesNiKernel::encrypt_blocks(proof, keys, blocks),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {}", blocks.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit admits no wider kernel; without one the widest is the best.
    #[test]
    fn kernels_within_a_limit_are_those_up_to_it() {
        let all = AesKernel::available();
        let names = ["portable", "aesni", "vaes256", "vaes512"];
        let limits = [CpuLimit::Portable, CpuLimit::AesNi, CpuLimit::Vaes256, CpuLimit::Vaes512];
        for (most, limit) in limits.into_iter().enumerate() {
            let within = AesKernel::available_within(limit);
            let expected: Vec<_> =
                all.iter().copied().filter(|kernel| names[..=most].contains(&kernel.name())).collect();
            assert_eq!(within, expected);
            assert_eq!(within[0], AesKernel::Portable);
        }
    }
}
