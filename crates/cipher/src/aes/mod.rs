//! AES: key schedules, kernels, and their jobs. The modes on top are sector ciphers.

// Other architectures have no kernels that take jobs yet.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

mod job;
mod kernel;
mod key;
mod limit;
mod schedule;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector instructions, behind proof tokens.
mod x86_64;

pub use crate::isa::AesKernel;
pub(crate) use job::{AdditionalBlocks, AegisJob, BlockJob, CbcJob, GcmJob, IV_MARGIN, IvSource, MAX_BATCH, XtsJob};
pub(crate) use kernel::{aegis, cbc_decrypt, cbc_encrypt, ctr, gcm, gcm_powers, lrw, row_blocks, xts};
pub(crate) use key::AesKey;
pub use limit::Limit;
pub(crate) use schedule::{GcmKeys, LrwKeys, Schedule, XtsKeys};
