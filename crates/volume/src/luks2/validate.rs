//! From JSON text to checked metadata; calls every rule that spans several objects.

use super::areas::{self, KEYSLOTS_ALIGN, MAX_KEYSLOTS_LEN};
use super::binary_header::BinaryHeader;
use super::json::{self, Fields};
use super::metadata::{Config, Keyslot, KeyslotDamage, KeyslotKind, Metadata};
use super::{digest, keyslot, segment, token};
use crate::violation::{HeaderFault, HeaderPath, Violation};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

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
    areas::note_small(name, header, &mut metadata);
    check_bindings(name, &mut metadata)?;
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
/// appended.) A keyslot whose length differs from that of the others is damaged.
fn check_bindings(name: &'static str, metadata: &mut Metadata) -> Result<(), HeaderFault> {
    let mut bound = [None; MAX_OBJECTS as usize];
    for (&number, digest) in &metadata.digests {
        let is_passphrase =
            |slot: &&u32| metadata.keyslots.get(slot).is_some_and(|slot| matches!(slot.kind, KeyslotKind::Luks2(_)));
        let keyslots: Vec<u32> = digest.keyslots.iter().filter(is_passphrase).copied().collect();
        for &keyslot in &keyslots {
            if let Some(other) = bound[keyslot as usize].replace(number) {
                return Err(Violation::BoundTwice { keyslot, other }.at(name, HeaderPath::object("digests", number)));
            }
        }
        note_other_lengths(name, &mut metadata.keyslots, &keyslots);
    }
    for (&number, slot) in &metadata.keyslots {
        if matches!(slot.kind, KeyslotKind::Luks2(_)) && bound[number as usize].is_none() {
            return Err(Violation::Unbound.at(name, HeaderPath::object("keyslots", number)));
        }
    }
    Ok(())
}

/// Notes as damage that a keyslot's key has another length than those of most keyslots in `numbers`.
fn note_other_lengths(name: &'static str, keyslots: &mut BTreeMap<u32, Keyslot>, numbers: &[u32]) {
    let valid: Vec<u32> = numbers.iter().copied().filter(|number| !keyslots[number].is_invalid()).collect();
    let len_of = |keyslots: &BTreeMap<u32, Keyslot>, number: &u32| keyslots[number].key_len;
    let count = |len: u32| valid.iter().filter(|number| len_of(keyslots, number) == len).count();
    // If two lengths are equally frequent, that of the first keyslot counts.
    let Some(usual) = valid.iter().map(|number| len_of(keyslots, number)).rev().max_by_key(|len| count(*len)) else {
        return;
    };
    for (number, slot) in keyslots.iter_mut().filter(|(number, slot)| valid.contains(number) && slot.key_len != usual) {
        let violation = Violation::Mismatch { field: "key_size", value: slot.key_len.into(), wanted: usual.into() };
        let fault = violation.at(name, HeaderPath::object("keyslots", *number));
        slot.damage = Some(KeyslotDamage { fault, is_usable: false });
    }
}
