//! Keyslots of the metadata (specification, section 3.2).

use super::json::Fields;
use super::metadata::{Keyslot, KeyslotKdf, KeyslotKind, PassphraseKeyslot};
use crate::key_material::{self, material_len};
use crate::pbkdf::Argon2Cost;
use crate::printable::Excerpt;
use crate::violation::{HeaderFault, Violation};

/// Maximum length of a salt, in bytes; cryptsetup creates 32.
pub(super) const MAX_SALT_LEN: usize = 512;
const MAX_KEY_LEN: u32 = key_material::MAX_KEY_LEN as u32;

/// Parses one keyslot. A keyslot of unknown type keeps its area, which no other object may use.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Keyslot, HeaderFault> {
    let area = fields.part("area")?;
    area.text("type")?;
    let kind = match fields.text("type")? {
        "luks2" => KeyslotKind::Luks2(passphrase_keyslot(fields, &area)?),
        other => KeyslotKind::Other(other.to_owned()),
    };
    Ok(Keyslot {
        key_len: fields.number("key_size", 1, MAX_KEY_LEN)?,
        priority: if fields.has_field("priority") { fields.number("priority", 0, 2)? as u8 } else { 1 },
        area_offset: area.decimal("offset")?,
        area_len: area.decimal("size")?,
        kind,
    })
}

fn passphrase_keyslot(fields: &Fields<'_>, area: &Fields<'_>) -> Result<PassphraseKeyslot, HeaderFault> {
    let af = fields.part("af")?;
    only(&af, "type", "luks1")?;
    only(area, "type", "raw")?;
    let stripes = af.number("stripes", 1, u32::MAX)?;
    let size = area.decimal("size")?;
    let needed = material_len(fields.number("key_size", 1, MAX_KEY_LEN)?.into(), stripes.into());
    // The product of two 32-bit numbers fits.
    let needed = needed.unwrap_or(u64::MAX);
    if size < needed {
        return Err(area.fault(Violation::AreaTooSmall { size, needed }));
    }
    let kdf = fields.part("kdf")?;
    Ok(PassphraseKeyslot {
        salt: kdf.bytes("salt", MAX_SALT_LEN)?,
        kdf: key_derivation(&kdf)?,
        stripes,
        af_hash: af.text("hash")?.to_owned(),
        area_cipher: area.text("encryption")?.to_owned(),
        area_key_len: area.number("key_size", 1, MAX_KEY_LEN)?,
    })
}

fn only(fields: &Fields<'_>, field: &'static str, wanted: &str) -> Result<(), HeaderFault> {
    let value = fields.text(field)?;
    if value == wanted { Ok(()) } else { Err(fields.fault(Violation::Unknown { field, value: Excerpt::new(value) })) }
}

fn key_derivation(kdf: &Fields<'_>) -> Result<KeyslotKdf, HeaderFault> {
    let cost = || {
        Ok(Argon2Cost {
            time: kdf.number("time", 1, u32::MAX)?,
            memory_kib: kdf.number("memory", 1, u32::MAX)?,
            lanes: kdf.number("cpus", 1, u32::MAX)?,
        })
    };
    Ok(match kdf.text("type")? {
        "pbkdf2" => KeyslotKdf::Pbkdf2 {
            hash: kdf.text("hash")?.to_owned(),
            iterations: kdf.number("iterations", 1, u32::MAX)?,
        },
        "argon2i" => KeyslotKdf::Argon2i(cost()?),
        "argon2id" => KeyslotKdf::Argon2id(cost()?),
        other => KeyslotKdf::Other(other.to_owned()),
    })
}
