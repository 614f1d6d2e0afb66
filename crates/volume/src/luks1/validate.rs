//! Rules of a LUKS1 header.

use super::binary_header::{HEADER_LEN, KEYSLOT_DISABLED, KEYSLOT_ENABLED, RawHeader, RawKeyslot};
use super::{HEADER, Keyslot, Luks1, STRIPES, text};
use crate::error::{LoadError, LoadWarning};
use crate::header_policy::HeaderDigest;
use crate::key_material::MAX_KEY_LEN;
use crate::violation::{HeaderFault, HeaderPath, Violation};
use zerocopy::IntoBytes;

/// Parses the fields. Names of algorithms must be texts; nothing else is checked yet.
///
/// Without a second copy, damage of the UUID or of one keyslot must not make the volume unusable.
pub(super) fn decode(raw: &RawHeader) -> Result<Luks1, HeaderFault> {
    let root = |violation: Violation| violation.at(HEADER, HeaderPath::ROOT);
    let mut warnings = Vec::new();
    let mut keyslots =
        [Keyslot { active: false, is_invalid: false, iterations: 0, salt: [0; 32], offset: 0, stripes: 0 }; 8];
    for (number, (raw, slot)) in (0..).zip(raw.keyslots.iter().zip(&mut keyslots)) {
        *slot = keyslot(raw);
        if let Some(violation) = damage(raw) {
            slot.is_invalid = true;
            let fault = violation.at(HEADER, HeaderPath::object("keyslots", number));
            warnings.push(LoadWarning::KeyslotDamaged { keyslot: number, fault, is_usable: false });
        }
    }
    let uuid = text("uuid", &raw.uuid).unwrap_or_else(|violation| {
        warnings.push(LoadWarning::UuidDamaged(root(violation)));
        printable_part(&raw.uuid)
    });
    Ok(Luks1 {
        cipher_name: text("cipher name", &raw.cipher_name).map_err(root)?,
        cipher_mode: text("cipher mode", &raw.cipher_mode).map_err(root)?,
        hash_spec: text("hash", &raw.hash_spec).map_err(root)?,
        uuid,
        payload_offset: raw.payload_offset.get(),
        key_len: raw.key_bytes.get(),
        digest: raw.digest,
        digest_salt: raw.digest_salt,
        digest_iterations: raw.digest_iterations.get(),
        keyslots,
        header_digest: HeaderDigest::of(raw.as_bytes()),
        warnings,
    })
}

fn keyslot(raw: &RawKeyslot) -> Keyslot {
    Keyslot {
        active: raw.active.get() == KEYSLOT_ENABLED,
        is_invalid: false,
        iterations: raw.iterations.get(),
        salt: raw.salt,
        offset: raw.offset.get(),
        stripes: raw.stripes.get(),
    }
}

/// Returns damage that is confined to the keyslot.
fn damage(raw: &RawKeyslot) -> Option<Violation> {
    match raw.active.get() {
        KEYSLOT_ENABLED if raw.iterations.get() == 0 => Some(Violation::NotAllowed { field: "iterations", value: 0 }),
        KEYSLOT_ENABLED | KEYSLOT_DISABLED => None,
        other => Some(Violation::NotAllowed { field: "active flag", value: other.into() }),
    }
}

/// Returns a damaged text up to its first zero byte, without characters that cannot be printed.
fn printable_part(bytes: &[u8]) -> String {
    let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    bytes.iter().take_while(|byte| **byte != 0).map(printable).collect()
}

/// Checks numbers and areas, also of unused keyslots, which the next new key would use.
pub(super) fn check(luks1: &Luks1) -> Result<(), HeaderFault> {
    let root = |violation: Violation| Err(violation.at(HEADER, HeaderPath::ROOT));
    let max = MAX_KEY_LEN as u64;
    let key_len = u64::from(luks1.key_len);
    if key_len == 0 || key_len > max {
        return root(Violation::OutOfRange { field: "key bytes", value: key_len, min: 1, max });
    }
    if luks1.digest_iterations == 0 {
        return root(Violation::NotAllowed { field: "digest iterations", value: 0 });
    }
    for (number, slot) in (0..).zip(&luks1.keyslots) {
        check_keyslot(luks1, number, slot)
            .map_err(|violation| violation.at(HEADER, HeaderPath::object("keyslots", number)))?;
    }
    Ok(())
}

fn check_keyslot(luks1: &Luks1, number: u32, slot: &Keyslot) -> Result<(), Violation> {
    if slot.stripes != STRIPES {
        return Err(Violation::Mismatch { field: "stripes", value: slot.stripes.into(), wanted: STRIPES.into() });
    }
    let (start, end) = (slot.start(), slot.end(luks1.key_len));
    if start < HEADER_LEN as u64 {
        return Err(Violation::Overlap { offset: start, with: "the header" });
    }
    for (other_number, other) in (0..number).zip(&luks1.keyslots) {
        if start < other.end(luks1.key_len) && other.start() < end {
            return Err(Violation::OverlapObject { offset: start, with: "keyslots", object: other_number });
        }
    }
    // A payload offset of 0 means that the header is detached: the payload is on another device.
    let payload = u64::from(luks1.payload_offset) * 512;
    if payload != 0 && end > payload {
        return Err(Violation::PastEnd {
            offset: start,
            size: end - start,
            limit: payload,
            of: "the space before the payload",
        });
    }
    Ok(())
}

/// Checks that the keys in use are inside the device.
pub(super) fn check_inside(luks1: &Luks1, len: u64) -> Result<(), LoadError> {
    let ends = luks1.keyslots.iter().filter(|slot| slot.active).map(|slot| slot.end(luks1.key_len));
    match ends.max() {
        Some(needed) if needed > len => {
            Err(LoadError::Truncated { what: "LUKS1 header: the last keyslot in use", needed, len })
        }
        _ => Ok(()),
    }
}
