//! Passphrase to key: PBKDF2 (RFC 8018), Argon2i and Argon2id (RFC 9106, version 1.3).
//!
//! An attacker may have written the header with the costs, so [`KdfLimits`] are checked before any memory is allocated,
//! and Argon2's memory against the available memory. It is allocated as one block, which is wiped and released after
//! each use.

mod calibrate;
mod hash;
mod limits;
mod memory;

pub use calibrate::KdfRequest;
pub(crate) use calibrate::pbkdf2_iterations;
pub use hash::{Hash, UnknownHash};
pub use limits::KdfLimits;
pub(crate) use limits::KdfWork;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use memory::SystemMemory;
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

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
    /// The system cannot start the threads.
    #[error("cannot start threads for {lanes} argon2 lanes")]
    NoThreads {
        /// Number of lanes.
        lanes: u32,
    },
    /// The algorithm refused its input.
    #[error("{0} does not accept its input")]
    Refused(&'static str),
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

    /// Fills `key` from `passphrase` and `salt`, unless a cost is over `limits`.
    ///
    /// # Errors
    ///
    /// Fails if a cost is over its limit or out of range, or if there is not enough memory or threads.
    pub fn derive(&self, passphrase: &[u8], salt: &[u8], key: &mut [u8], limits: &KdfLimits) -> Result<(), KdfError> {
        self.check(key.len(), limits)?;
        match *self {
            Self::Pbkdf2 { hash, iterations } => hash.pbkdf2(passphrase, salt, iterations, key),
            Self::Argon2i(cost) => argon2(Algorithm::Argon2i, cost, passphrase, salt, key)?,
            Self::Argon2id(cost) => argon2(Algorithm::Argon2id, cost, passphrase, salt, key)?,
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
                let all = u64::from(iterations).saturating_mul(hash.pbkdf2_blocks(key_len));
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

fn at_least(what: &'static str, asked: u64, min: u64) -> Result<(), KdfError> {
    if asked < min { Err(KdfError::TooSmall { what, asked, min }) } else { Ok(()) }
}

fn at_most(what: &'static str, asked: u64, limit: u64) -> Result<(), KdfError> {
    if asked > limit { Err(KdfError::Limit { what, asked, limit }) } else { Ok(()) }
}

fn argon2(alg: Algorithm, cost: Argon2Cost, passphrase: &[u8], salt: &[u8], key: &mut [u8]) -> Result<(), KdfError> {
    at_least("argon2 salt length", salt.len() as u64, argon2::MIN_SALT_LEN as u64)?;
    let params = Params::new(cost.memory_kib, cost.time, cost.lanes, Some(key.len()))
        .map_err(|_| KdfError::Refused("argon2"))?;
    // Own threads: those of the global pool would remain, and would panic if the system cannot start them.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cpus.min(cost.lanes as usize)).build();
    let pool = pool.map_err(|_| KdfError::NoThreads { lanes: cost.lanes })?;
    let available_kib = SystemMemory::read().available_kib;
    if u64::from(cost.memory_kib) > available_kib {
        return Err(KdfError::MemoryNotAvailable { memory_kib: cost.memory_kib, available_kib });
    }
    let no_memory = KdfError::OutOfMemory { memory_kib: cost.memory_kib };
    let mut memory = Argon2Memory::new(params.block_count()).ok_or(no_memory)?;
    let argon2 = Argon2::new(alg, Version::V0x13, params);
    pool.install(|| argon2.hash_password_into_with_memory(passphrase, salt, key, memory.0.as_mut_slice()))
        .map_err(|_| KdfError::Refused("argon2"))
}

/// Argon2's memory; wiped and released when dropped.
struct Argon2Memory(Vec<Block>);

impl Argon2Memory {
    /// An allocation of this size is always a mapping of its own, which is released when freed: glibc keeps smaller
    /// ones (up to 32 MiB, `M_MMAP_THRESHOLD_MAX`) on its heap. Untouched pages cost nothing.
    const MIN_MAPPED: usize = 33 << 20;

    fn new(blocks: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(blocks.max(Self::MIN_MAPPED / Block::SIZE)).ok()?;
        memory.resize(blocks, Block::new());
        Some(Self(memory))
    }
}

impl Drop for Argon2Memory {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(Zeroize::zeroize);
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
