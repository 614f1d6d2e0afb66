//! From JSON text to checked metadata; calls every rule that spans several objects.

use super::areas::{self, KEYSLOTS_ALIGN, MAX_KEYSLOTS_LEN};
use super::binary_header::BinaryHeader;
use super::json::{self, Fields};
use super::metadata::{Config, KeyslotKind, Metadata};
use super::{digest, keyslot, segment, token};
use crate::violation::{HeaderFault, HeaderPath, Violation};
use serde_json::{Map, Value};

/// Maximum number of keyslots, of tokens and of segments.
pub(super) const MAX_OBJECTS: u32 = 32;
/// Maximum number of digests.
pub(super) const MAX_DIGESTS: u32 = 8;

/// Parses and checks the text behind `header`; `name` is the header's name in errors.
pub(super) fn read(
    name: &'static str,
    header: &BinaryHeader,
    text: &str,
) -> Result<(Map<String, Value>, Metadata), HeaderFault> {
    let map = json::parse(text).map_err(|violation| violation.at(name, HeaderPath::ROOT))?;
    let metadata = check(name, header, &map)?;
    Ok((map, metadata))
}

/// Checks a tree of metadata, and returns its typed view.
pub(super) fn check(
    name: &'static str,
    header: &BinaryHeader,
    map: &Map<String, Value>,
) -> Result<Metadata, HeaderFault> {
    let root = Fields::new(name, map);
    let mut metadata = Metadata { config: config(&root, header)?, ..Metadata::default() };
    for (number, fields) in root.objects("keyslots", MAX_OBJECTS)? {
        metadata.keyslots.insert(number, keyslot::parse(&fields)?);
    }
    for (number, fields) in root.objects("segments", MAX_OBJECTS)? {
        metadata.segments.insert(number, segment::parse(&fields)?);
    }
    let keyslot_exists = |number| metadata.keyslots.contains_key(&number);
    for (number, fields) in root.objects("tokens", MAX_OBJECTS)? {
        metadata.tokens.insert(number, token::parse(&fields, keyslot_exists)?);
    }
    for (number, fields) in root.objects("digests", MAX_DIGESTS)? {
        let segment_exists = |number| metadata.segments.contains_key(&number);
        metadata.digests.insert(number, digest::parse(&fields, keyslot_exists, segment_exists)?);
    }
    areas::check(name, header, &metadata)?;
    check_bindings(name, &metadata)?;
    Ok(metadata)
}

fn config(root: &Fields<'_>, header: &BinaryHeader) -> Result<Config, HeaderFault> {
    let fields = root.section("config")?;
    let json_size = fields.decimal("json_size")?;
    let wanted = header.json_len() as u64;
    if json_size != wanted {
        return Err(fields.fault(Violation::Mismatch { field: "json_size", value: json_size, wanted }));
    }
    let keyslots_size = fields.decimal("keyslots_size")?;
    if keyslots_size > MAX_KEYSLOTS_LEN {
        let violation =
            Violation::OutOfRange { field: "keyslots_size", value: keyslots_size, min: 0, max: MAX_KEYSLOTS_LEN };
        return Err(fields.fault(violation));
    }
    if !keyslots_size.is_multiple_of(KEYSLOTS_ALIGN) {
        let violation = Violation::Misaligned { field: "keyslots_size", value: keyslots_size, unit: KEYSLOTS_ALIGN };
        return Err(fields.fault(violation));
    }
    let requirements = match fields.has_field("requirements") {
        true => fields.part("requirements")?.texts_if_any("mandatory")?,
        false => Vec::new(),
    };
    Ok(Config { json_size, keyslots_size, flags: fields.texts_if_any("flags")?, requirements })
}

/// A passphrase keyslot has one key, so exactly one digest verifies it; and keyslots of one digest have the same key,
/// so its length must be the same. (PBKDF2 computes the same digest for a short key and for that key with zeroes
/// appended.)
fn check_bindings(name: &'static str, metadata: &Metadata) -> Result<(), HeaderFault> {
    let mut bound = [None; MAX_OBJECTS as usize];
    for (&number, digest) in &metadata.digests {
        let mut first_len = None;
        for &keyslot in &digest.keyslots {
            let Some(slot) = metadata.keyslots.get(&keyslot).filter(|slot| matches!(slot.kind, KeyslotKind::Luks2(_)))
            else {
                continue;
            };
            if let Some(other) = bound[keyslot as usize].replace(number) {
                return Err(Violation::BoundTwice { keyslot, other }.at(name, HeaderPath::object("digests", number)));
            }
            let wanted = u64::from(*first_len.get_or_insert(slot.key_len));
            let value = u64::from(slot.key_len);
            if value != wanted {
                let violation = Violation::Mismatch { field: "key_size", value, wanted };
                return Err(violation.at(name, HeaderPath::object("keyslots", keyslot)));
            }
        }
    }
    for (&number, slot) in &metadata.keyslots {
        if matches!(slot.kind, KeyslotKind::Luks2(_)) && bound[number as usize].is_none() {
            return Err(Violation::Unbound.at(name, HeaderPath::object("keyslots", number)));
        }
    }
    Ok(())
}
