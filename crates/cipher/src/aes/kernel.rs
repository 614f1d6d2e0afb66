//! The entry points of the AES kernels.
//!
//! A kernel is chosen once for each key, by [`AesKernel::best`], and stored with the proof that its instructions exist.
//! A new kernel is a file in `x86_64`, a variant of [`AesKernel`] and an arm in each `match` here; the shared runner in
//! `testing` then compares it with the others.

use super::job::{AegisJob, BlockJob, CbcJob, GcmJob, XtsJob};
use super::schedule::{GcmKeys, LrwKeys, Schedule};
#[cfg(target_arch = "x86_64")]
use super::x86_64::{AegisKernel, AesNiKernel, Vaes256Kernel, Vaes512Kernel};
use crate::block_cipher::Block;
use crate::isa::{self, AesKernel};

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

/// Runs LRW on every unit of `job`, whose key was expanded for the same kernel.
pub(crate) fn lrw(kernel: AesKernel, job: &BlockJob<'_, LrwKeys>, encrypt: bool) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::lrw(proof, job, encrypt),
        AesKernel::Vaes256(proof) => Vaes256Kernel::lrw(proof, job, encrypt),
        AesKernel::AesNi(proof) => AesNiKernel::lrw(proof, job, encrypt),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {encrypt} {}", job.units());
}

/// Runs CTR on every unit of `job`.
pub(crate) fn ctr(kernel: AesKernel, job: &BlockJob<'_, Schedule>) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Vaes512(proof) => Vaes512Kernel::ctr(proof, job),
        AesKernel::Vaes256(proof) => Vaes256Kernel::ctr(proof, job),
        AesKernel::AesNi(proof) => AesNiKernel::ctr(proof, job),
        AesKernel::Portable => unreachable!("the portable kernel has a type of its own"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel but the portable one on this architecture: {kernel:?} {}", job.units());
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

/// Returns the number of blocks in a row of `kernel`.
pub(crate) fn row_blocks(kernel: AesKernel) -> usize {
    match kernel {
        AesKernel::Vaes512(_) => 32,
        AesKernel::Vaes256(_) => 16,
        _ => 8,
    }
}

/// Prepares `keys`, whose schedule is expanded, for the GCM of `kernel` and units with the block of `lengths`.
pub(crate) fn gcm_powers(kernel: AesKernel, keys: &mut GcmKeys, lengths: &Block) {
    #[cfg(target_arch = "x86_64")]
    {
        let proof = isa::AesNi::detect().expect("every kernel but the portable one implies AES-NI");
        AesNiKernel::gcm_powers(proof, keys, row_blocks(kernel), lengths);
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
