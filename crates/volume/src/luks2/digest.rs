//! Digests of the metadata (specification, section 3.4), which confirm keys.

use super::json::Fields;
use super::keyslot::MAX_SALT_LEN;
use super::metadata::{Digest, DigestKind};
use crate::error::UnlockError;
use crate::pbkdf::{Hash, Kdf, KdfLimits};
use crate::violation::HeaderFault;
use inlock_cipher::VolumeKey;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Parses one digest; the functions tell which keyslots and segments exist.
pub(super) fn parse(
    fields: &Fields<'_>,
    keyslot_exists: impl Fn(u32) -> bool,
    segment_exists: impl Fn(u32) -> bool,
) -> Result<Digest, HeaderFault> {
    let kind = match fields.text("type")? {
        "pbkdf2" => DigestKind::Pbkdf2 {
            hash: fields.text("hash")?.to_owned(),
            iterations: fields.number("iterations", 1, u32::MAX)?,
            salt: fields.bytes("salt", MAX_SALT_LEN)?,
            digest: fields.bytes("digest", Hash::MAX_LEN)?,
        },
        other => DigestKind::Other(other.to_owned()),
    };
    Ok(Digest {
        keyslots: fields.references("keyslots", keyslot_exists)?,
        segments: fields.references("segments", segment_exists)?,
        kind,
    })
}

/// Length of a LUKS1 digest, in bytes.
const LUKS1_DIGEST_LEN: usize = 20;

/// A digest that can be computed, and its derivation. A digest that cannot is an error, and never confirms a key.
#[derive(Clone, Copy)]
pub(super) struct Computable<'a> {
    pub(super) kdf: Kdf,
    salt: &'a [u8],
    expected: &'a [u8],
}

/// Returns digest `number`, if it can be computed.
pub(super) fn computable(number: u32, digest: &Digest) -> Result<Computable<'_>, UnlockError> {
    let refuse = |reason| UnlockError::DigestNotComputable { digest: number, reason };
    let DigestKind::Pbkdf2 { hash, iterations, salt, digest } = &digest.kind else {
        return Err(refuse("its type is not supported"));
    };
    let hash: Hash = hash.to_ascii_lowercase().parse().map_err(|_| refuse("its hash is not supported"))?;
    // A shorter digest would confirm other keys as well. One of LUKS1, which conversion keeps, has 20 bytes.
    if digest.len() != hash.len() && digest.len() != LUKS1_DIGEST_LEN {
        return Err(refuse("it does not have the length of its hash"));
    }
    Ok(Computable { kdf: Kdf::Pbkdf2 { hash, iterations: *iterations }, salt, expected: digest })
}

impl Computable<'_> {
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Whether it is the digest of `key`.
    pub(super) fn verify(&self, key: &VolumeKey, limits: &KdfLimits) -> Result<bool, UnlockError> {
        self.verify_until(&|| false, key, limits)
    }

    /// As [`Computable::verify`]. Fails if it is stopped.
    pub(super) fn verify_until(
        &self,
        is_stopped: &dyn Fn() -> bool,
        key: &VolumeKey,
        limits: &KdfLimits,
    ) -> Result<bool, UnlockError> {
        let mut computed = Zeroizing::new(vec![0; self.len()]);
        self.kdf.derive_until(is_stopped, key.as_bytes(), self.salt, &mut computed, limits)?;
        Ok(computed.ct_eq(self.expected).into())
    }
}
