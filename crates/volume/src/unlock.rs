//! Options and results of unlocking, for every format.

use crate::authenticated::AuthenticatedSegment;
use crate::error::{FormatError, UnlockError};
use crate::header_policy::HeaderPolicy;
use crate::pbkdf::{KdfLimits, random_bytes};
use inlock_cipher::{AeadError, AeadSpec, CipherError, CipherSpec, Segment, VolumeKey};
use std::fmt;

/// How to look for a keyslot that a passphrase opens. The default takes any keyslot, within the default limits and
/// under the default policy.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UnlockOptions {
    /// The only keyslot to try; `None`: all active ones, in the order of their priority.
    pub keyslot: Option<u32>,
    /// Limits of key derivations.
    pub limits: KdfLimits,
    /// The policy that the header must comply with.
    pub policy: HeaderPolicy,
}

/// An unlocked volume.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unlocked {
    /// The volume key, verified against the header's digest.
    pub key: VolumeKey,
    /// The keyslot that the passphrase opened; `None`: the caller had the volume key.
    pub keyslot: Option<u32>,
    /// The segments of the volume in the order of their start, without gaps. Offsets count from the start of the data
    /// device. Empty if the volume is authenticated.
    pub segments: Vec<Segment>,
    /// The only segment of a volume with integrity protection.
    pub authenticated: Option<AuthenticatedSegment>,
    /// Known activation flags of the header.
    pub flags: ActivationFlags,
    /// Warnings for the user.
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

/// A warning about an unlocked volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnlockWarning {
    /// Both halves of an XTS key are the same, which voids its security proof (FIPS 140 IG C.I).
    EqualXtsKeyHalves,
}

impl fmt::Display for UnlockWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EqualXtsKeyHalves => f.write_str("both halves of the XTS volume key are equal"),
        }
    }
}

/// The payload of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Segments for the engine.
    Segments(Vec<Segment>),
    /// The only segment of a volume with integrity protection.
    Authenticated(AuthenticatedSegment),
}

impl Payload {
    /// Returns the segments for the engine; an authenticated volume has none.
    pub(crate) fn segments(&self) -> &[Segment] {
        match self {
            Self::Segments(segments) => segments,
            Self::Authenticated(_) => &[],
        }
    }

    /// Returns the authenticated segment.
    pub(crate) fn authenticated(&self) -> Option<AuthenticatedSegment> {
        match self {
            Self::Segments(_) => None,
            Self::Authenticated(segment) => Some(*segment),
        }
    }

    /// Checks that every cipher takes volume keys of `len` bytes.
    pub(crate) fn check_key_len(&self, len: usize) -> Result<(), UnlockError> {
        match self {
            Self::Authenticated(segment) if !segment.spec.can_use_key_len(len) => {
                Err(AeadError::KeyLength { spec: segment.spec, len }.into())
            }
            Self::Authenticated(_) => Ok(()),
            Self::Segments(segments) => {
                let mut ciphers = segments.iter().filter_map(|segment| segment.cipher);
                match ciphers.find(|spec| !spec.can_use_key_len(len)) {
                    Some(spec) => Err(CipherError::KeyLength { spec, len }.into()),
                    None => Ok(()),
                }
            }
        }
    }

    fn has_equal_halves(&self, key: &VolumeKey) -> bool {
        match self {
            Self::Authenticated(segment) => segment.spec.has_equal_halves(key.as_bytes()),
            Self::Segments(segments) => {
                let weak = |cipher: CipherSpec| cipher.has_equal_halves(key.as_bytes());
                segments.iter().any(|segment| segment.cipher.is_some_and(weak))
            }
        }
    }
}

/// Returns the result of unlocking.
pub(crate) fn finish(key: VolumeKey, keyslot: Option<u32>, payload: Payload, flags: ActivationFlags) -> Unlocked {
    let mut warnings = Vec::new();
    if payload.has_equal_halves(&key) {
        warnings.push(UnlockWarning::EqualXtsKeyHalves);
    }
    let (segments, authenticated) = match payload {
        Payload::Segments(segments) => (segments, None),
        Payload::Authenticated(segment) => (Vec::new(), Some(segment)),
    };
    Unlocked { key, keyslot, segments, authenticated, flags, warnings }
}

/// Returns the volume key of a new volume: the caller's, or a random one.
pub(crate) fn new_volume_key(
    cipher: &CipherSpec,
    key_len: usize,
    given: Option<&VolumeKey>,
) -> Result<VolumeKey, FormatError> {
    let other_len = |len| CipherError::KeyLength { spec: *cipher, len }.into();
    new_key(key_len, given, other_len, |key| cipher.has_equal_halves(key))
}

/// As [`new_volume_key`], for a volume with integrity protection.
pub(crate) fn new_aead_key(
    spec: &AeadSpec,
    key_len: usize,
    given: Option<&VolumeKey>,
) -> Result<VolumeKey, FormatError> {
    let other_len = |len| AeadError::KeyLength { spec: *spec, len }.into();
    new_key(key_len, given, other_len, |key| spec.has_equal_halves(key))
}

fn new_key(
    key_len: usize,
    given: Option<&VolumeKey>,
    other_len: impl Fn(usize) -> FormatError,
    has_equal_halves: impl Fn(&[u8]) -> bool,
) -> Result<VolumeKey, FormatError> {
    let key = match given {
        Some(key) if key.len() != key_len => return Err(other_len(key.len())),
        Some(key) => VolumeKey::new(key.as_bytes()),
        None => VolumeKey::new(&random_bytes(key_len)?),
    };
    if has_equal_halves(key.as_bytes()) { Err(FormatError::EqualXtsKeyHalves) } else { Ok(key) }
}
