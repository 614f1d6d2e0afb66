//! Keyslots of the metadata (specification, section 3.2).

use super::json::Fields;
use super::metadata::{Keyslot, KeyslotDamage, KeyslotKdf, KeyslotKind, PassphraseKeyslot};
use super::reencryption_keyslot;
use crate::key_material::{self, STRIPES};
use crate::pbkdf::Argon2Cost;
use crate::printable::Excerpt;
use crate::violation::{HeaderFault, Violation};

/// Maximum length of a salt, in bytes; cryptsetup creates 32.
pub(super) const MAX_SALT_LEN: usize = 512;
const MAX_KEY_LEN: u32 = key_material::MAX_KEY_LEN as u32;

/// Parses one keyslot. A keyslot of unknown type keeps its area, which no other object may use.
///
/// A field of the wrong type is a fault of the header. A value that is impossible is damage of this keyslot only:
/// cryptsetup opens such a volume with its other keyslots.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Keyslot, HeaderFault> {
    let area = fields.part("area")?;
    area.text("type")?;
    let mut damage = Damage::default();
    let key_len = damage.number(fields, "key_size", MAX_KEY_LEN)?;
    let kind = match fields.text("type")? {
        "luks2" => KeyslotKind::Luks2(passphrase_keyslot(fields, &area, &mut damage)?),
        reencryption_keyslot::KIND => KeyslotKind::Reencryption(reencryption_keyslot::parse(fields, &area)?),
        other => KeyslotKind::Other(other.to_owned()),
    };
    let priority = priority(fields).unwrap_or_else(|fault| {
        // It opens by its number.
        damage.note_usable(fault);
        0
    });
    Ok(Keyslot {
        key_len,
        priority,
        area_offset: area.decimal("offset")?,
        area_len: area.decimal("size")?,
        kind,
        damage: damage.0,
    })
}

fn priority(fields: &Fields<'_>) -> Result<u8, HeaderFault> {
    if fields.has_field("priority") { Ok(fields.number("priority", 0, 2)? as u8) } else { Ok(1) }
}

fn passphrase_keyslot(
    fields: &Fields<'_>,
    area: &Fields<'_>,
    damage: &mut Damage,
) -> Result<PassphraseKeyslot, HeaderFault> {
    let af = fields.part("af")?;
    only(&af, "type", "luks1")?;
    only(area, "type", "raw")?;
    let kdf = fields.part("kdf")?;
    kdf.text("salt")?;
    let salt = kdf.bytes("salt", MAX_SALT_LEN).unwrap_or_else(|fault| damage.note(fault, Vec::new()));
    let key_derivation = key_derivation(&kdf, damage)?;
    let area_key_len = damage.number(area, "key_size", MAX_KEY_LEN)?;
    let stripes = af.integer("stripes")?;
    if stripes != i64::from(STRIPES) {
        let violation = match u64::try_from(stripes) {
            Ok(value) => Violation::Mismatch { field: "stripes", value, wanted: STRIPES.into() },
            Err(_) => Violation::WrongType { field: "stripes", wanted: "a whole number" },
        };
        damage.note_usable(af.fault(violation));
    }
    Ok(PassphraseKeyslot {
        salt,
        kdf: key_derivation,
        stripes,
        af_hash: af.text("hash")?.to_owned(),
        area_cipher: area.text("encryption")?.to_owned(),
        area_key_len,
    })
}

/// The first damage that makes a keyslot invalid, or else the first that does not.
#[derive(Default)]
struct Damage(Option<KeyslotDamage>);

impl Damage {
    /// Notes a fault that makes the keyslot invalid, and returns `value` in place of the field's.
    fn note<T>(&mut self, fault: HeaderFault, value: T) -> T {
        if self.0.as_ref().is_none_or(|damage| damage.is_usable) {
            self.0 = Some(KeyslotDamage { fault, is_usable: false });
        }
        value
    }

    fn note_usable(&mut self, fault: HeaderFault) {
        self.0.get_or_insert(KeyslotDamage { fault, is_usable: true });
    }

    /// Returns a number from 1 to `max`. One out of range is noted, and 1 is returned instead.
    fn number(&mut self, fields: &Fields<'_>, field: &'static str, max: u32) -> Result<u32, HeaderFault> {
        fields.integer(field)?;
        Ok(fields.number(field, 1, max).unwrap_or_else(|fault| self.note(fault, 1)))
    }
}

fn only(fields: &Fields<'_>, field: &'static str, wanted: &str) -> Result<(), HeaderFault> {
    let value = fields.text(field)?;
    if value == wanted { Ok(()) } else { Err(fields.fault(Violation::Unknown { field, value: Excerpt::new(value) })) }
}

fn key_derivation(kdf: &Fields<'_>, damage: &mut Damage) -> Result<KeyslotKdf, HeaderFault> {
    let mut number = |field| damage.number(kdf, field, u32::MAX);
    Ok(match kdf.text("type")? {
        "pbkdf2" => KeyslotKdf::Pbkdf2 { hash: kdf.text("hash")?.to_owned(), iterations: number("iterations")? },
        name @ ("argon2i" | "argon2id") => {
            let cost = Argon2Cost { time: number("time")?, memory_kib: number("memory")?, lanes: number("cpus")? };
            if name == "argon2i" { KeyslotKdf::Argon2i(cost) } else { KeyslotKdf::Argon2id(cost) }
        }
        other => KeyslotKdf::Other(other.to_owned()),
    })
}
