//! Limits of the costs of key derivations, which a header cannot exceed.

use super::{Argon2Cost, Kdf, pbkdf2_blocks};

/// Limits of the costs of key derivations. An error names the limit that a header exceeds.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfLimits {
    /// Argon2 memory in KiB. Default: 4 GiB. No derivation takes more than the available memory.
    pub memory_kib: u64,
    /// Argon2 time cost. Default: 10 000 passes.
    pub argon2_time: u32,
    /// Argon2 memory in KiB times time cost. Default: 2^30, a thousand passes over 1 GiB.
    pub argon2_work_kib: u64,
    /// Sum of [`KdfLimits::argon2_work_kib`] over all keyslots tried. Default: 2^32.
    pub argon2_total_work_kib: u64,
    /// Argon2 lanes. Default: 16 (cryptsetup creates at most 4).
    pub argon2_lanes: u32,
    /// PBKDF2 iterations times blocks of output. Default: 10^9, minutes of computing.
    pub pbkdf2_iterations: u64,
    /// Sum of [`KdfLimits::pbkdf2_iterations`] over all keyslots tried and their digests. Default: 4 * 10^9.
    pub pbkdf2_total_iterations: u64,
}

impl KdfLimits {
    /// The reference implementation's maximum of Argon2 memory, in KiB.
    pub const MAX_MEMORY_KIB: u64 = 4 << 20;
}

impl Default for KdfLimits {
    fn default() -> Self {
        Self {
            memory_kib: Self::MAX_MEMORY_KIB,
            argon2_time: 10_000,
            argon2_work_kib: 1 << 30,
            argon2_total_work_kib: 1 << 32,
            argon2_lanes: 16,
            pbkdf2_iterations: 1_000_000_000,
            pbkdf2_total_iterations: 4_000_000_000,
        }
    }
}

/// Sum of the costs of several derivations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KdfWork {
    argon2_kib: u64,
    pbkdf2_iterations: u64,
}

impl KdfWork {
    /// Returns the work of a keyslot and of the digest of its key, each with the length of its output. If `limits`
    /// refuse the keyslot, neither is ever computed.
    pub(crate) fn of_keyslot(keyslot: (&Kdf, usize), digest: (&Kdf, usize), limits: &KdfLimits) -> Self {
        match keyslot.0.check(keyslot.1, limits) {
            Ok(()) => Self::of(keyslot).plus(Self::of(digest)),
            Err(_) => Self::default(),
        }
    }

    fn of((kdf, key_len): (&Kdf, usize)) -> Self {
        match *kdf {
            Kdf::Pbkdf2 { hash, iterations } => {
                let pbkdf2_iterations = u64::from(iterations).saturating_mul(pbkdf2_blocks(hash, key_len));
                Self { argon2_kib: 0, pbkdf2_iterations }
            }
            Kdf::Argon2i(Argon2Cost { time, memory_kib, .. }) | Kdf::Argon2id(Argon2Cost { time, memory_kib, .. }) => {
                Self { argon2_kib: u64::from(time) * u64::from(memory_kib), pbkdf2_iterations: 0 }
            }
        }
    }

    /// Returns the sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            argon2_kib: self.argon2_kib.saturating_add(other.argon2_kib),
            pbkdf2_iterations: self.pbkdf2_iterations.saturating_add(other.pbkdf2_iterations),
        }
    }

    /// Whether `limits` allow it for one unlocking.
    pub(crate) fn fits(self, limits: &KdfLimits) -> bool {
        self.argon2_kib <= limits.argon2_total_work_kib && self.pbkdf2_iterations <= limits.pbkdf2_total_iterations
    }
}
