//! Passphrase to key: PBKDF2 (RFC 8018), Argon2i and Argon2id (RFC 9106, version 1.3).
//!
//! An attacker may have written the header with the costs, so [`KdfLimits`] are checked before any memory is allocated,
//! and Argon2's memory against the available memory. It is one mapping, which is wiped and released after each use.
//! Derivations of one process that do not fit into memory together take turns.

mod calibrate;
mod limits;
mod memory;
mod queue;

pub use calibrate::KdfRequest;
pub(crate) use calibrate::pbkdf2_iterations;
pub use inlock_cipher::{Hash, UnknownHash};
pub use limits::KdfLimits;
pub(crate) use limits::KdfWork;

use inlock_cipher::{Argon2, Argon2Variant, ScratchMemory, Stopped};
use memory::SystemMemory;
use queue::QUEUE;
use std::fmt;
use zeroize::Zeroizing;

/// A key derivation and its costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kdf {
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// The hash under HMAC.
        hash: Hash,
        /// Number of iterations.
        iterations: u32,
    },
    /// Argon2i.
    Argon2i(Argon2Cost),
    /// Argon2id.
    Argon2id(Argon2Cost),
}

/// Costs of an Argon2 derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Cost {
    /// Passes over the memory.
    pub time: u32,
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Lanes, each computed by its own thread if there are enough.
    pub lanes: u32,
}

/// The kind of a key derivation, without its costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KdfKind {
    /// PBKDF2 with HMAC.
    Pbkdf2,
    /// Argon2i.
    Argon2i,
    /// Argon2id.
    Argon2id,
}

impl KdfKind {
    /// Returns the name in LUKS2 metadata and on cryptsetup's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pbkdf2 => "pbkdf2",
            Self::Argon2i => "argon2i",
            Self::Argon2id => "argon2id",
        }
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pbkdf2, Self::Argon2i, Self::Argon2id].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for KdfKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key derivation was refused or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KdfError {
    /// A cost is over the limit. Nothing was allocated.
    #[error("{what} {asked} exceeds the limit of {limit}")]
    Limit {
        /// Which cost, with its unit.
        what: &'static str,
        /// The requested cost.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// A cost is below the minimum of the algorithm or the format.
    #[error("{what} {asked} is less than the minimum of {min}")]
    TooSmall {
        /// Which cost, with its unit.
        what: &'static str,
        /// The requested cost.
        asked: u64,
        /// The minimum.
        min: u64,
    },
    /// Too little memory is available to the machine or to the process's cgroup. Nothing was allocated.
    #[error("argon2 takes {memory_kib} KiB of memory, but only {available_kib} KiB are available")]
    MemoryNotAvailable {
        /// The memory cost, in KiB.
        memory_kib: u32,
        /// Available memory, in KiB.
        available_kib: u64,
    },
    /// The system refused to allocate the memory.
    #[error("cannot allocate {memory_kib} KiB of memory for argon2")]
    OutOfMemory {
        /// The memory cost, in KiB.
        memory_kib: u32,
    },
    /// It was stopped: a keyslot that comes before has opened.
    #[error("the key derivation was stopped")]
    Stopped,
    /// The system cannot start the threads.
    #[error("cannot start threads for {lanes} argon2 lanes")]
    NoThreads {
        /// Number of lanes.
        lanes: u32,
    },
}

impl Kdf {
    /// Returns the kind, without costs.
    pub fn kind(&self) -> KdfKind {
        match self {
            Self::Pbkdf2 { .. } => KdfKind::Pbkdf2,
            Self::Argon2i(_) => KdfKind::Argon2i,
            Self::Argon2id(_) => KdfKind::Argon2id,
        }
    }

    /// Returns the maximum number of bytes that the derivation takes: Argon2's memory.
    pub fn memory_bound(&self) -> u64 {
        let argon2 = match self {
            Self::Pbkdf2 { .. } => return 0,
            Self::Argon2i(cost) => cost.argon2(Argon2Variant::Argon2i),
            Self::Argon2id(cost) => cost.argon2(Argon2Variant::Argon2id),
        };
        ScratchMemory::taken(argon2.memory_words()).map_or(u64::MAX, |len| len as u64)
    }

    /// Fills `key` from `passphrase` and `salt`, unless a cost is over `limits`.
    ///
    /// # Errors
    ///
    /// Fails if a cost is over its limit or out of range, or if there is not enough memory or threads.
    pub fn derive(&self, passphrase: &[u8], salt: &[u8], key: &mut [u8], limits: &KdfLimits) -> Result<(), KdfError> {
        self.derive_until(&|| false, passphrase, salt, key, limits)
    }

    /// As [`Kdf::derive`]. PBKDF2 asks `is_stopped` every few milliseconds, and fails then.
    pub(crate) fn derive_until(
        &self,
        is_stopped: &dyn Fn() -> bool,
        passphrase: &[u8],
        salt: &[u8],
        key: &mut [u8],
        limits: &KdfLimits,
    ) -> Result<(), KdfError> {
        self.check(key.len(), limits)?;
        match *self {
            Self::Pbkdf2 { hash, iterations } => {
                let done = hash.pbkdf2_until(is_stopped, passphrase, salt, iterations, key);
                done.map_err(|Stopped| KdfError::Stopped)?;
            }
            Self::Argon2i(cost) => argon2(Argon2Variant::Argon2i, cost, passphrase, salt, key)?,
            Self::Argon2id(cost) => argon2(Argon2Variant::Argon2id, cost, passphrase, salt, key)?,
        }
        Ok(())
    }

    /// Checks the costs for a key of `key_len` bytes against the algorithm's minimum and `limits`.
    ///
    /// # Errors
    ///
    /// Fails if a cost is over its limit or out of range.
    pub fn check(&self, key_len: usize, limits: &KdfLimits) -> Result<(), KdfError> {
        match *self {
            Self::Pbkdf2 { hash, iterations } => {
                at_least("pbkdf2 iterations", iterations.into(), 1)?;
                at_most("pbkdf2 iterations", iterations.into(), limits.pbkdf2_iterations)?;
                let all = u64::from(iterations).saturating_mul(pbkdf2_blocks(hash, key_len));
                at_most("pbkdf2 iterations times blocks of output", all, limits.pbkdf2_iterations)
            }
            Self::Argon2i(cost) | Self::Argon2id(cost) => {
                at_least("argon2 time cost", cost.time.into(), 1)?;
                at_least("argon2 lanes", cost.lanes.into(), 1)?;
                at_most("argon2 lanes", cost.lanes.into(), limits.argon2_lanes.into())?;
                at_least("argon2 memory in KiB", cost.memory_kib.into(), 8 * u64::from(cost.lanes))?;
                at_most("argon2 memory in KiB", cost.memory_kib.into(), limits.memory_kib)?;
                at_most("argon2 time cost", cost.time.into(), limits.argon2_time.into())?;
                let work = u64::from(cost.time) * u64::from(cost.memory_kib);
                at_most("argon2 memory in KiB times time cost", work, limits.argon2_work_kib)
            }
        }
    }
}

/// Returns the number of blocks of output that PBKDF2 computes for a key of `key_len` bytes, each with all iterations.
fn pbkdf2_blocks(hash: Hash, key_len: usize) -> u64 {
    key_len.div_ceil(hash.len()).max(1) as u64
}

fn at_least(what: &'static str, asked: u64, min: u64) -> Result<(), KdfError> {
    if asked < min { Err(KdfError::TooSmall { what, asked, min }) } else { Ok(()) }
}

fn at_most(what: &'static str, asked: u64, limit: u64) -> Result<(), KdfError> {
    if asked > limit { Err(KdfError::Limit { what, asked, limit }) } else { Ok(()) }
}

fn argon2(
    variant: Argon2Variant,
    cost: Argon2Cost,
    passphrase: &[u8],
    salt: &[u8],
    key: &mut [u8],
) -> Result<(), KdfError> {
    at_least("argon2 salt length", salt.len() as u64, 8)?;
    at_least("argon2 key length", key.len() as u64, 4)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cpus.min(cost.lanes as usize);
    let argon2 = cost.argon2(variant);
    let _turn = QUEUE.take(cost.memory_kib, || SystemMemory::read().available_kib)?;
    let memory = ScratchMemory::zeroed(argon2.memory_words(), threads);
    let mut memory = memory.map_err(|_| KdfError::OutOfMemory { memory_kib: cost.memory_kib })?;
    let derived = argon2.derive(passphrase, salt, key, &mut memory, threads);
    derived.map_err(|_| KdfError::NoThreads { lanes: cost.lanes })
}

impl Argon2Cost {
    fn argon2(&self, variant: Argon2Variant) -> Argon2 {
        Argon2 { variant, passes: self.time, memory_kib: self.memory_kib, lanes: self.lanes }
    }
}

/// Returns random bytes of the system, for salts and keys.
pub(crate) fn random_bytes(len: usize) -> Result<Zeroizing<Vec<u8>>, RandomError> {
    let mut bytes = Zeroizing::new(vec![0; len]);
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` with random bytes from the system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), RandomError> {
    getrandom::fill(bytes).map_err(RandomError)
}

/// The system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RandomError(getrandom::Error);
