//! Objects of the metadata and references between them, in the tree that is written.
//!
//! The tree was checked: sections are objects, and references are arrays of strings. Fields that Inlock does not know
//! stay, and the order of fields, too.

use crate::luks2::Luks2;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Returns a section, such as `keyslots`.
pub(in crate::luks2) fn section<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    object(map, name)
}

/// Returns the field of that name as an object; what is not one becomes an empty one.
pub(in crate::luks2) fn object<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(name).or_insert_with(|| Map::new().into());
    if !value.is_object() {
        *value = Map::new().into();
    }
    value.as_object_mut().expect("it was made an object")
}

/// Returns the lowest number that is not in use, of those below `max`.
pub(super) fn free_number<T>(used: &BTreeMap<u32, T>, max: u32) -> Option<u32> {
    (0..max).find(|number| !used.contains_key(number))
}

/// Whether an object refers to a keyslot.
pub(in crate::luks2) fn has_reference(object: &Value, keyslot: u32) -> bool {
    let name = keyslot.to_string();
    object["keyslots"].as_array().is_some_and(|all| all.iter().any(|one| one == name.as_str()))
}

/// Makes an object refer to a keyslot.
pub(in crate::luks2) fn refer(object: &mut Value, keyslot: u32) {
    if has_reference(object, keyslot) {
        return;
    }
    if let Some(keyslots) = object.get_mut("keyslots").and_then(Value::as_array_mut) {
        keyslots.push(keyslot.to_string().into());
    }
}

/// Removes an object's reference to a keyslot.
pub(super) fn unrefer(object: &mut Value, keyslot: u32) {
    if let Some(keyslots) = object.get_mut("keyslots").and_then(Value::as_array_mut) {
        let name = keyslot.to_string();
        keyslots.retain(|reference| reference != name.as_str());
    }
}

/// Removes keyslots with all references to them, and digests that then confirm no key.
pub(in crate::luks2) fn remove_keyslots(map: &mut Map<String, Value>, numbers: &[u32]) {
    for number in numbers {
        section(map, "keyslots").shift_remove(&number.to_string());
    }
    for name in ["digests", "tokens"] {
        for object in section(map, name).values_mut() {
            numbers.iter().for_each(|&number| unrefer(object, number));
        }
    }
    let is_empty = |digest: &Value, field| digest[field].as_array().is_some_and(Vec::is_empty);
    section(map, "digests").retain(|_, digest| !(is_empty(digest, "keyslots") && is_empty(digest, "segments")));
}

impl Luks2 {
    /// Returns the number of the digest that confirms the key of a keyslot.
    pub(in crate::luks2) fn digest_of(&self, keyslot: u32) -> Option<u32> {
        self.metadata.digests.iter().find(|(_, digest)| digest.keyslots.contains(&keyslot)).map(|(&number, _)| number)
    }

    /// Returns the number of the digest that confirms the volume key: the first one that is bound to a segment.
    pub(in crate::luks2) fn volume_digest(&self) -> Option<u32> {
        self.metadata.digests.iter().find(|(_, digest)| !digest.segments.is_empty()).map(|(&number, _)| number)
    }
}
