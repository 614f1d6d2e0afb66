//! Repair of a LUKS2 header: its copies, and damage that is confined to keyslots.

use super::edit::remove_keyslots;
use super::metadata::Keyslot;
use super::wipe::wipe_area;
use super::{HEADER, Luks2, salvage, validate};
use crate::checked_device::CheckedDevice;
use crate::error::{LoadError, LoadWarning, RepairError};
use crate::header_device::HeaderDevice;
use crate::key_material::{STRIPES, needed_area};
use crate::repair_step::Repair;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Repairs of a loaded header.
#[derive(Debug)]
pub(crate) struct Luks2Repair {
    luks2: Luks2,
    /// Keyslots whose repairs no passphrase has proved.
    unproven: BTreeSet<u32>,
    repairs: Vec<Repair>,
}

impl Luks2Repair {
    /// Plans the repair of a header whose magics are gone, or both of whose copies were overwritten in part. `None`:
    /// nothing is left of one.
    pub(crate) fn salvage(device: &dyn HeaderDevice) -> Option<Self> {
        let (luks2, repair) = salvage::find(device)?;
        let mut plan = Self::plan(luks2);
        plan.repairs.insert(0, repair);
        Some(plan)
    }

    pub(crate) fn plan(luks2: Luks2) -> Self {
        let mut repairs = Vec::new();
        let of_copies = luks2.warnings().iter().find(|warning| match warning {
            LoadWarning::KeyslotDamaged { .. } => false,
            _ => luks2.has_different_copies(),
        });
        if let Some(reason) = of_copies.cloned() {
            repairs.push(Repair::RewriteCopy { copy: luks2.trusted_copy().other(), reason });
        }
        for (&number, keyslot) in &luks2.metadata().keyslots {
            repairs.extend(of_keyslot(&luks2, number, keyslot));
        }
        // The priority says in which order keyslots are tried, and nothing about the key.
        let needs_proof = |repair: &Repair| match repair {
            Repair::MendKeyslot { keyslot, field, .. } if *field != "priority" => Some(*keyslot),
            _ => None,
        };
        Self { unproven: repairs.iter().filter_map(needs_proof).collect(), luks2, repairs }
    }

    pub(crate) fn repairs(&self) -> &[Repair] {
        &self.repairs
    }

    pub(crate) fn unproven(&self) -> &BTreeSet<u32> {
        &self.unproven
    }

    /// Returns the header with all repairs of keyslots, to prove them with a passphrase.
    pub(crate) fn mended(&self) -> Result<Luks2, LoadError> {
        let mut luks2 = self.luks2.clone();
        for &keyslot in &self.unproven {
            for repair in &self.repairs {
                if let Repair::MendKeyslot { keyslot: number, field, .. } = repair
                    && *number == keyslot
                {
                    mend(&mut luks2.map, keyslot, field, &self.luks2);
                }
            }
        }
        luks2.metadata = validate::check(HEADER, self.luks2.header(), &luks2.map)?;
        Ok(luks2)
    }

    pub(crate) fn set_proven(&mut self, keyslot: u32) {
        self.unproven.remove(&keyslot);
    }

    pub(crate) fn execute(self, device: &dyn HeaderDevice, erase: bool) -> Result<(), RepairError> {
        let Self { mut luks2, unproven, repairs } = self;
        let device = &if repairs.iter().any(Repair::is_salvage) {
            // There is no header to load: what is left of one must be what the plan was made of.
            let is_same = Self::salvage(device).is_some_and(|now| now.luks2.json == luks2.json);
            let device = CheckedDevice::new(device, Ok(is_same))?;
            luks2.rewrite_copies(&device)?;
            device
        } else {
            luks2.checked(device)?
        };
        let rewrites =
            |repair: &Repair| matches!(repair, Repair::RewriteCopy { .. }) && (erase || !repair.is_erasure());
        if repairs.iter().any(rewrites) {
            luks2.rewrite_other_copy(device)?;
        }
        let mut map = luks2.map.clone();
        let mut erased = Vec::new();
        for repair in &repairs {
            match repair {
                Repair::MendKeyslot { keyslot, .. } if unproven.contains(keyslot) => {}
                Repair::MendKeyslot { keyslot, field, .. } => mend(&mut map, *keyslot, field, &luks2),
                Repair::EraseKeyslot { keyslot, .. } if erase => {
                    remove_keyslots(&mut map, &[*keyslot]);
                    let slot = &luks2.metadata.keyslots[keyslot];
                    erased.push((slot.area_offset, slot.area_len));
                }
                _ => {}
            }
        }
        if map != luks2.map {
            // The area is wiped when no header refers to it, so that a power cut leaves no keyslot without its key.
            let draft = luks2.draft(luks2.header.clone(), &Value::Object(map).to_string())?;
            luks2.write(device, draft)?;
        }
        for (offset, len) in erased {
            wipe_area(device, offset..offset + len)?;
        }
        Ok(())
    }
}

/// Returns the repair of a damaged keyslot.
fn of_keyslot(luks2: &Luks2, number: u32, keyslot: &Keyslot) -> Option<Repair> {
    let damage = keyslot.damage.as_ref()?;
    let stored = &luks2.map["keyslots"][number.to_string()];
    let candidates = [
        ("stripes", stored["af"]["stripes"].to_string(), STRIPES.to_string()),
        ("priority", stored["priority"].to_string(), "1".to_owned()),
        ("size", stored["area"]["size"].to_string(), needed_area(keyslot.key_len).next_multiple_of(4096).to_string()),
    ];
    // A value is mended if the header without its damage is valid.
    for (field, from, to) in candidates {
        let mut map = luks2.map.clone();
        mend(&mut map, number, field, luks2);
        let mended = validate::check(HEADER, luks2.header(), &map);
        if map != luks2.map && mended.is_ok_and(|metadata| metadata.keyslots[&number].damage.is_none()) {
            return Some(Repair::MendKeyslot { keyslot: number, field, from, to });
        }
    }
    if damage.is_usable {
        return None;
    }
    Some(Repair::EraseKeyslot { keyslot: number, reason: damage.fault.violation.to_string() })
}

/// Sets a field of a keyslot to its only possible value.
fn mend(map: &mut Map<String, Value>, number: u32, field: &str, luks2: &Luks2) {
    let needed = needed_area(luks2.metadata.keyslots[&number].key_len).next_multiple_of(4096);
    let slot = &mut map["keyslots"][number.to_string()];
    match field {
        "stripes" => slot["af"]["stripes"] = json!(STRIPES),
        "priority" => slot["priority"] = json!(1),
        _ => slot["area"]["size"] = json!(needed.to_string()),
    }
}
