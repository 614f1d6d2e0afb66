//! Cipher specifications of LUKS headers, in either of dm-crypt's notations. cryptsetup writes `capi:` names into LUKS1
//! headers, whose keyslots have the same cipher, and into segments of LUKS2; it opens them in LUKS2 keyslots too.

use crate::edit::EditError;
use crate::error::FormatError;
use crate::key_material::MAX_KEY_LEN;
use inlock_cipher::{AeadError, AeadSpec, Cipher, CipherError, CipherSpec, DataUnitSize};

/// Parses the name in a header. Fails with the unsupported part.
pub(crate) fn parse(name: &str) -> Result<CipherSpec, &'static str> {
    name.parse().map_err(|error: inlock_cipher::InvalidCipherSpec| error.part)
}

/// Checks that a cipher may protect new key material.
pub(crate) fn check_new_keyslot(option: &'static str, cipher: &CipherSpec) -> Result<(), FormatError> {
    let reason = "it does not encrypt";
    if cipher.cipher == Cipher::Null { Err(FormatError::InvalidOption { option, reason }) } else { Ok(()) }
}

/// Checks that a cipher may protect the key material of a new keyslot in a volume that exists.
pub(crate) fn check_keyslot(cipher: &CipherSpec, key_len: usize) -> Result<(), EditError> {
    if cipher.cipher == Cipher::Null {
        return Err(EditError::InvalidOption { option: "keyslot-cipher", reason: "it does not encrypt" });
    }
    if key_len > MAX_KEY_LEN || !cipher.can_use_key_len(key_len) {
        return Err(CipherError::KeyLength { spec: *cipher, len: key_len }.into());
    }
    if !cipher.can_use_unit(DataUnitSize::SECTOR) {
        return Err(CipherError::Unit { spec: *cipher, unit: DataUnitSize::SECTOR }.into());
    }
    Ok(())
}

/// Checks the authenticated cipher of a new volume.
pub(crate) fn check_new_aead(spec: &AeadSpec, key_len: usize) -> Result<(), FormatError> {
    let fits = key_len <= MAX_KEY_LEN && spec.can_use_key_len(key_len);
    if fits { Ok(()) } else { Err(AeadError::KeyLength { spec: *spec, len: key_len }.into()) }
}

/// Checks the cipher that `option` requests for the payload or the keyslots of a new header.
pub(crate) fn check_new(
    option: &'static str,
    cipher: &CipherSpec,
    key_len: usize,
    unit: DataUnitSize,
) -> Result<(), FormatError> {
    let invalid = |reason| Err(FormatError::InvalidOption { option, reason });
    if cipher.cipher.is_legacy() {
        return invalid("its blocks of 8 bytes are too short for a new volume");
    }
    if key_len > MAX_KEY_LEN || !cipher.can_use_key_len(key_len) {
        return Err(CipherError::KeyLength { spec: *cipher, len: key_len }.into());
    }
    if !cipher.can_use_unit(unit) {
        return Err(CipherError::Unit { spec: *cipher, unit }.into());
    }
    Ok(())
}
