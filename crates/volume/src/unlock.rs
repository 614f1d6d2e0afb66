//! What unlocking takes and gives, whatever the format.

use crate::error::{FormatError, UnlockError};
use crate::header_policy::HeaderPolicy;
use crate::pbkdf::{KdfLimits, KdfWork, random_bytes};
use inlock_cipher::{CipherError, CipherSpec, Segment, VolumeKey};
use std::fmt;

/// How to look for a keyslot that a passphrase opens.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UnlockOptions {
    /// Only this keyslot; `None`: all that are active, in the order of their priority.
    pub keyslot: Option<u32>,
    /// The most that key derivations may cost.
    pub limits: KdfLimits,
    /// The policy that the header is held against.
    pub policy: HeaderPolicy,
}

impl UnlockOptions {
    /// Any keyslot, within the default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only this keyslot, where one is given.
    pub fn with_keyslot(mut self, keyslot: Option<u32>) -> Self {
        self.keyslot = keyslot;
        self
    }

    /// Other limits for key derivations.
    pub fn with_limits(mut self, limits: KdfLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Takes another policy than the default.
    pub fn with_policy(mut self, policy: HeaderPolicy) -> Self {
        self.policy = policy;
        self
    }
}

/// All that serving an unlocked volume needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unlocked {
    /// The volume key; it was verified against the header's digest.
    pub key: VolumeKey,
    /// The keyslot that the passphrase opened.
    pub keyslot: u32,
    /// The volume's segments in order of their start; they leave no gap. Offsets count from the start of the data
    /// device.
    pub segments: Vec<Segment>,
    /// Whether the header allows discards (LUKS2 `allow-discards`).
    pub allow_discards: bool,
    /// What the header asks of an activation; flags that Inlock does not know are left out.
    pub flags: ActivationFlags,
    /// What a user should hear of.
    pub warnings: Vec<UnlockWarning>,
}

/// Persistent activation flags of a LUKS2 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActivationFlags {
    /// `allow-discards`.
    pub allow_discards: bool,
    /// `same-cpu-crypt`.
    pub same_cpu_crypt: bool,
    /// `submit-from-crypt-cpus`.
    pub submit_from_crypt_cpus: bool,
    /// `no-journal`.
    pub no_journal: bool,
    /// `no-read-workqueue`.
    pub no_read_workqueue: bool,
    /// `no-write-workqueue`.
    pub no_write_workqueue: bool,
}

/// Something about an unlocked volume that a user should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnlockWarning {
    /// Both halves of an XTS key are the same, which voids its security proof (FIPS 140 IG C.I).
    EqualXtsKeyHalves,
}

impl fmt::Display for UnlockWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EqualXtsKeyHalves => f.write_str("both halves of the XTS volume key are the same"),
        }
    }
}

/// The outcome of trying keyslots one after the other.
///
/// A keyslot that cannot be tried must not hide one that opens; but where none opens, its error says more than that the
/// passphrase is wrong, for the passphrase may have been that keyslot's.
///
/// All derivations together have limits too ([`KdfLimits`]), so that many keyslots of some cost are no way around those
/// of one.
pub(crate) struct Attempts<'a> {
    limits: &'a KdfLimits,
    spent: KdfWork,
    tried: bool,
    first_error: Option<UnlockError>,
    too_costly: Vec<u32>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(limits: &'a KdfLimits) -> Self {
        Self { limits, spent: KdfWork::default(), tried: false, first_error: None, too_costly: Vec::new() }
    }

    /// Whether keyslot `number` may be tried, whose derivation and digest take `work`.
    pub(crate) fn affords(&mut self, number: u32, work: KdfWork) -> bool {
        let spent = self.spent.plus(work);
        let fits = spent.fits(self.limits);
        if fits {
            self.spent = spent;
        } else {
            self.too_costly.push(number);
        }
        fits
    }

    /// Notes the outcome of one keyslot; gives the key if it opened.
    pub(crate) fn record(&mut self, outcome: Result<Option<VolumeKey>, UnlockError>) -> Option<VolumeKey> {
        self.tried = true;
        match outcome {
            Ok(key) => key,
            Err(error) => {
                self.first_error.get_or_insert(error);
                None
            }
        }
    }

    pub(crate) fn into_error(self) -> UnlockError {
        if !self.too_costly.is_empty() {
            return UnlockError::TooCostlyTogether(self.too_costly);
        }
        match (self.first_error, self.tried) {
            (Some(error), _) => error,
            (None, true) => UnlockError::WrongPassphrase,
            (None, false) => UnlockError::NoUsableKeyslot,
        }
    }
}

/// Puts together what unlocking gives.
pub(crate) fn finish(key: VolumeKey, keyslot: u32, segments: Vec<Segment>, flags: ActivationFlags) -> Unlocked {
    let mut warnings = Vec::new();
    let weak = |cipher: CipherSpec| cipher.has_equal_halves(key.as_bytes());
    if segments.iter().any(|segment| segment.cipher.is_some_and(weak)) {
        warnings.push(UnlockWarning::EqualXtsKeyHalves);
    }
    Unlocked { key, keyslot, segments, allow_discards: flags.allow_discards, flags, warnings }
}

/// The volume key of a new volume: the caller's, or a random one.
pub(crate) fn new_volume_key(
    cipher: &CipherSpec,
    key_len: usize,
    given: Option<&VolumeKey>,
) -> Result<VolumeKey, FormatError> {
    if let Some(len) = given.map(VolumeKey::len).filter(|len| *len != key_len) {
        return Err(CipherError::KeyLength { spec: *cipher, len }.into());
    }
    let key = match given {
        Some(key) => VolumeKey::new(key.as_bytes()),
        None => VolumeKey::new(&random_bytes(key_len)?),
    };
    if cipher.has_equal_halves(key.as_bytes()) {
        return Err(FormatError::EqualXtsKeyHalves);
    }
    Ok(key)
}
