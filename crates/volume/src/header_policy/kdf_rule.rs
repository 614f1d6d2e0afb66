//! Rules for the key derivations of keyslots.

use super::PolicyError;
use crate::pbkdf::{Argon2Cost, Hash, Kdf, KdfKind};
use std::ops::RangeInclusive;

/// Allowed costs of one kind of key derivation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KdfRule {
    /// The kind.
    pub kind: KdfKind,
    /// Hashes of PBKDF2; empty: any.
    pub hashes: Vec<Hash>,
    /// Iterations of PBKDF2, or passes of Argon2.
    pub iterations: RangeInclusive<u32>,
    /// Memory of Argon2, in KiB.
    pub memory_kib: RangeInclusive<u32>,
    /// Lanes of Argon2.
    pub lanes: RangeInclusive<u32>,
}

impl KdfRule {
    /// Returns the rule that allows any cost.
    pub fn any(kind: KdfKind) -> Self {
        let any = 0..=u32::MAX;
        Self { kind, hashes: Vec::new(), iterations: any.clone(), memory_kib: any.clone(), lanes: any }
    }

    /// Returns the rule that allows only this one.
    pub(super) fn exactly(kdf: &Kdf) -> Self {
        let mut rule = Self::any(kdf.kind());
        match *kdf {
            Kdf::Pbkdf2 { hash, iterations } => {
                (rule.hashes, rule.iterations) = (vec![hash], iterations..=iterations);
            }
            Kdf::Argon2i(Argon2Cost { time, memory_kib, lanes })
            | Kdf::Argon2id(Argon2Cost { time, memory_kib, lanes }) => {
                (rule.iterations, rule.memory_kib, rule.lanes) = (time..=time, memory_kib..=memory_kib, lanes..=lanes);
            }
        }
        rule
    }

    /// Allows another one of the same kind, too.
    pub(super) fn extend(&mut self, kdf: &Kdf) {
        let other = Self::exactly(kdf);
        let both = |a: &RangeInclusive<u32>, b: &RangeInclusive<u32>| *a.start().min(b.start())..=*a.end().max(b.end());
        self.iterations = both(&self.iterations, &other.iterations);
        self.memory_kib = both(&self.memory_kib, &other.memory_kib);
        self.lanes = both(&self.lanes, &other.lanes);
        other.hashes.into_iter().for_each(|hash| super::add(&mut self.hashes, hash));
    }

    pub(super) fn check(&self, keyslot: u32, kdf: &Kdf) -> Result<(), PolicyError> {
        let check = |what, range: &RangeInclusive<u32>, found| {
            if found < *range.start() {
                return Err(PolicyError::KdfTooCheap { keyslot, what, found, min: *range.start() });
            }
            if found > *range.end() {
                return Err(PolicyError::KdfTooCostly { keyslot, what, found, max: *range.end() });
            }
            Ok(())
        };
        match *kdf {
            Kdf::Pbkdf2 { hash, iterations } => {
                if !self.hashes.is_empty() && !self.hashes.contains(&hash) {
                    return Err(PolicyError::OtherKdfHash { keyslot, found: hash, allowed: self.hashes.clone() });
                }
                check("pbkdf2 iterations", &self.iterations, iterations)
            }
            Kdf::Argon2i(Argon2Cost { time, memory_kib, lanes })
            | Kdf::Argon2id(Argon2Cost { time, memory_kib, lanes }) => {
                check("argon2 time cost", &self.iterations, time)?;
                check("argon2 memory in KiB", &self.memory_kib, memory_kib)?;
                check("argon2 lanes", &self.lanes, lanes)
            }
        }
    }
}
