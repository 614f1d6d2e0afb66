//! Making a digest, which confirms a key.

use super::new_keyslot::SALT_LEN;
use crate::key_material::SealError;
use crate::pbkdf::{Hash, Kdf, KdfLimits, KdfRequest, pbkdf2_iterations, random_bytes};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use inlock_cipher::VolumeKey;
use serde_json::{Value, json};
use std::time::Duration;

const TIME: Duration = Duration::from_millis(125);
const MIN_ITERATIONS: u32 = 1000;

/// Returns the digest of `key`, with these keyslots and segments. Its costs are the minimum if those of the keyslot's
/// key derivation are forced.
pub(super) fn new_digest(
    key: &VolumeKey,
    hash: Hash,
    kdf: &KdfRequest,
    keyslots: &[&str],
    segments: &[&str],
) -> Result<Value, SealError> {
    let iterations = match kdf.forced_iterations {
        Some(_) => MIN_ITERATIONS,
        None => pbkdf2_iterations(hash, hash.len(), TIME)?,
    };
    let salt = random_bytes(SALT_LEN)?;
    let mut digest = vec![0; hash.len()];
    Kdf::Pbkdf2 { hash, iterations }.derive(key.as_bytes(), &salt, &mut digest, &KdfLimits::default())?;
    Ok(json!({
        "type": "pbkdf2",
        "keyslots": keyslots,
        "segments": segments,
        "hash": hash.name(),
        "iterations": iterations,
        "salt": STANDARD.encode(&salt),
        "digest": STANDARD.encode(&digest),
    }))
}
