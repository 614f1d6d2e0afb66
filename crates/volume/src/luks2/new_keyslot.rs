//! Making a keyslot: its object in the metadata, and its key material. Used for new volumes and for new keys.

use super::Luks2;
use super::areas::KEYSLOTS_ALIGN;
use super::metadata::{KeyslotKdf, KeyslotKind};
use crate::edit::NewKeyslot;
use crate::key_material::STRIPES;
use crate::key_material::{KeyMaterial, SealError, material_len};
use crate::pbkdf::{Hash, Kdf, KdfKind, KdfLimits, random_bytes};
use crate::secret::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use inlock_cipher::{CipherSpec, VolumeKey};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// Length of the salts of keyslots and digests, in bytes.
pub(super) const SALT_LEN: usize = 32;

/// Parameters of a keyslot.
pub(super) struct KeyslotPlan {
    /// Cipher of the area.
    pub(super) cipher: CipherSpec,
    /// Length of that cipher's key in bytes.
    pub(super) area_key_len: usize,
    /// Hash of the anti-forensic splitter.
    pub(super) hash: Hash,
    /// The key derivation.
    pub(super) kdf: Kdf,
}

impl Luks2 {
    /// Returns the parameters of a new keyslot with the key derivation of one that exists. `None`: it has none, or one
    /// that a new keyslot cannot have.
    pub fn keyslot_like(&self, number: u32) -> Option<NewKeyslot> {
        let KeyslotKind::Luks2(keyslot) = &self.metadata.keyslots.get(&number)?.kind else { return None };
        let (kind, iterations, memory) = match &keyslot.kdf {
            KeyslotKdf::Pbkdf2 { iterations, .. } => (KdfKind::Pbkdf2, *iterations, None),
            KeyslotKdf::Argon2i(cost) => (KdfKind::Argon2i, cost.time, Some((cost.memory_kib, cost.lanes))),
            KeyslotKdf::Argon2id(cost) => (KdfKind::Argon2id, cost.time, Some((cost.memory_kib, cost.lanes))),
            KeyslotKdf::Other(_) => return None,
        };
        let mut new = NewKeyslot::new(kind);
        if let KeyslotKdf::Pbkdf2 { hash, .. } = &keyslot.kdf {
            new.hash = Some(hash.parse().ok()?);
            new.kdf.hash = new.hash?;
        }
        new.kdf.forced_iterations = Some(iterations);
        (new.kdf.memory_kib, new.kdf.lanes) = memory.unzip();
        new.kdf.resolve(keyslot.area_key_len as usize).ok()?;
        Some(new)
    }
}

/// Returns the length of the area for a key of `key_len` bytes.
pub(super) fn area_len(key_len: usize) -> u64 {
    let len = material_len(key_len as u64, STRIPES.into()).unwrap_or(u64::MAX / 2);
    len.next_multiple_of(KEYSLOTS_ALIGN)
}

impl KeyslotPlan {
    /// Returns the object of a keyslot that holds `key` under `passphrase`, and the material to write at `offset`.
    pub(super) fn seal(
        &self,
        key: &VolumeKey,
        passphrase: &Secret,
        offset: u64,
    ) -> Result<(Value, Zeroizing<Vec<u8>>), SealError> {
        let salt = random_bytes(SALT_LEN)?;
        let mut area_key = Zeroizing::new(vec![0; self.area_key_len]);
        self.kdf.derive(passphrase.as_bytes(), &salt, &mut area_key, &KdfLimits::default())?;
        let Self { cipher, hash, .. } = *self;
        let place = KeyMaterial { offset, key_len: key.len(), stripes: STRIPES, hash, cipher };
        let material = place.seal(key, &area_key)?;
        let object = json!({
            "type": "luks2",
            "key_size": key.len(),
            "af": {"type": "luks1", "stripes": STRIPES, "hash": hash.name()},
            "area": {
                "type": "raw",
                "offset": offset.to_string(),
                "size": area_len(key.len()).to_string(),
                "encryption": cipher.to_string(),
                "key_size": self.area_key_len,
            },
            "kdf": kdf_object(&self.kdf, &salt),
        });
        Ok((object, material))
    }
}

fn kdf_object(kdf: &Kdf, salt: &[u8]) -> Value {
    let salt = STANDARD.encode(salt);
    match kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            json!({"type": "pbkdf2", "hash": hash.name(), "iterations": iterations, "salt": salt})
        }
        Kdf::Argon2i(cost) | Kdf::Argon2id(cost) => json!({
            "type": kdf.kind().name(), "time": cost.time, "memory": cost.memory_kib, "cpus": cost.lanes, "salt": salt
        }),
    }
}
