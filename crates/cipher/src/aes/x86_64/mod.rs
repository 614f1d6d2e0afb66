//! The x86-64 kernels: one loop for XTS, LRW and CBC (`blocks`), one for GCM (`gcm_blocks`), one for CTR (`numbered`),
//! three vectors; AEGIS.

mod aegis;
mod aes_ni;
mod blocks;
mod gcm_blocks;
mod numbered;
#[cfg(test)]
mod tests;
mod vaes_256;
mod vaes_512;

/// Defines the safe entry points of a kernel, each of which takes the proof token of its instruction set.
///
/// The functions that enable instructions are monomorphic in rounds and direction, so that each has one loop and its
/// own registers.
macro_rules! entry_points {
    ($kernel:ident, $token:ty, $vector:ty, $features:literal) => {
        use super::{blocks, gcm_blocks, numbered};
        use crate::aes::job::{BlockJob, CbcJob, GcmJob, XtsJob};
        use crate::aes::schedule::{LrwKeys, Schedule};
        use crate::block_cipher::Block;

        /// The entry points of this kernel.
        pub(crate) struct $kernel;

        impl $kernel {
            /// Runs XTS on every unit of `job`.
            pub(crate) fn xts(_: $token, job: &mut XtsJob<'_>, encrypt: bool) {
                // SAFETY: the token proves the instructions; the one constructor of an `XtsJob` takes the pointers
                // from slices whose lengths it has checked, and which the job borrows; its fields are private.
                unsafe {
                    match (job.keys().data.rounds, encrypt) {
                        (10, true) => xts::<10, true>(job),
                        (10, false) => xts::<10, false>(job),
                        (14, true) => xts::<14, true>(job),
                        (14, false) => xts::<14, false>(job),
                        (rounds, _) => unreachable!("no XTS schedule has {rounds} rounds"),
                    }
                }
            }

            /// Runs LRW on every unit of `job`, whose key was expanded for this kernel.
            pub(crate) fn lrw(_: $token, job: &BlockJob<'_, LrwKeys>, encrypt: bool) {
                // SAFETY: as in `xts`, by `BlockJob::new`.
                unsafe {
                    match (job.keys().data.rounds, encrypt) {
                        (10, true) => lrw::<10, true>(job),
                        (10, false) => lrw::<10, false>(job),
                        (12, true) => lrw::<12, true>(job),
                        (12, false) => lrw::<12, false>(job),
                        (14, true) => lrw::<14, true>(job),
                        (14, false) => lrw::<14, false>(job),
                        (rounds, _) => unreachable!("no schedule has {rounds} rounds"),
                    }
                }
            }

            /// Runs CTR on every unit of `job`.
            pub(crate) fn ctr(_: $token, job: &BlockJob<'_, Schedule>) {
                // SAFETY: as in `xts`, by `BlockJob::new`.
                unsafe {
                    match job.keys().rounds {
                        10 => ctr::<10>(job),
                        12 => ctr::<12>(job),
                        14 => ctr::<14>(job),
                        rounds => unreachable!("no schedule has {rounds} rounds"),
                    }
                }
            }

            /// Decrypts every unit of `job` with CBC.
            pub(crate) fn cbc_decrypt(_: $token, job: &CbcJob<'_>) {
                // SAFETY: as in `xts`, by `CbcJob::new`.
                unsafe {
                    match job.keys().rounds {
                        10 => cbc_decrypt::<10>(job),
                        12 => cbc_decrypt::<12>(job),
                        14 => cbc_decrypt::<14>(job),
                        rounds => unreachable!("no schedule has {rounds} rounds"),
                    }
                }
            }

            /// Runs GCM on every unit of `job`.
            pub(crate) fn gcm(_: $token, job: &mut GcmJob<'_>, encrypt: bool) {
                // SAFETY: as in `xts`, by `GcmJob::new`.
                unsafe {
                    match (job.keys().schedule.rounds, encrypt) {
                        (10, true) => gcm::<10, true>(job),
                        (10, false) => gcm::<10, false>(job),
                        (12, true) => gcm::<12, true>(job),
                        (12, false) => gcm::<12, false>(job),
                        (14, true) => gcm::<14, true>(job),
                        (14, false) => gcm::<14, false>(job),
                        (rounds, _) => unreachable!("no schedule has {rounds} rounds"),
                    }
                }
            }

            /// Encrypts each block by itself.
            pub(crate) fn encrypt_blocks(_: $token, keys: &Schedule, blocks: &mut [Block]) {
                // SAFETY: the token proves the instructions.
                unsafe {
                    match keys.rounds {
                        10 => encrypt_blocks::<10>(keys, blocks),
                        12 => encrypt_blocks::<12>(keys, blocks),
                        14 => encrypt_blocks::<14>(keys, blocks),
                        rounds => unreachable!("no schedule has {rounds} rounds"),
                    }
                }
            }

            /// Runs independent rounds back to back, and returns the number of bytes.
            pub(crate) fn limit(_: $token, rounds: usize, iterations: usize) -> u64 {
                // SAFETY: the token proves the instructions.
                unsafe {
                    match rounds {
                        10 => limit::<10>(iterations),
                        12 => limit::<12>(iterations),
                        14 => limit::<14>(iterations),
                        rounds => unreachable!("AES never has {rounds} rounds"),
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn xts<const ROUNDS: usize, const ENCRYPT: bool>(job: &mut XtsJob<'_>) {
            // SAFETY: the instructions are enabled; the rest is the caller's promise.
            unsafe { blocks::xts::<$vector, ROUNDS, ENCRYPT>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn lrw<const ROUNDS: usize, const ENCRYPT: bool>(job: &BlockJob<'_, LrwKeys>) {
            // SAFETY: as above.
            unsafe { numbered::lrw::<$vector, ROUNDS, ENCRYPT>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn ctr<const ROUNDS: usize>(job: &BlockJob<'_, Schedule>) {
            // SAFETY: as above.
            unsafe { numbered::ctr::<$vector, ROUNDS>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn gcm<const ROUNDS: usize, const ENCRYPT: bool>(job: &mut GcmJob<'_>) {
            // SAFETY: as above.
            unsafe { gcm_blocks::gcm::<$vector, ROUNDS, ENCRYPT>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn cbc_decrypt<const ROUNDS: usize>(job: &CbcJob<'_>) {
            // SAFETY: as above.
            unsafe { blocks::cbc_decrypt::<$vector, ROUNDS>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn encrypt_blocks<const ROUNDS: usize>(keys: &Schedule, blocks: &mut [Block]) {
            // SAFETY: as above.
            unsafe { blocks::encrypt_blocks::<$vector, ROUNDS>(&keys.encrypt, blocks) }
        }

        #[target_feature(enable = $features)]
        unsafe fn limit<const ROUNDS: usize>(iterations: usize) -> u64 {
            // SAFETY: as above.
            unsafe { blocks::limit::<$vector, ROUNDS>(iterations) }
        }
    };
}
use entry_points;

pub(crate) use aegis::AegisKernel;
pub(crate) use aes_ni::AesNiKernel;
pub(crate) use vaes_256::Vaes256Kernel;
pub(crate) use vaes_512::Vaes512Kernel;
