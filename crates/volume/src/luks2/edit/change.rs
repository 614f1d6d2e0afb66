//! Replacing the passphrase or the parameters of a keyslot.

use super::keyslots::area;
use super::object::{has_reference, refer, remove_keyslots, section};
use crate::edit::{EditError, NewKeyslot};
use crate::error::CommitError;
use crate::header_device::HeaderDevice;
use crate::luks2::Luks2;
use crate::luks2::new_keyslot::area_len;
use crate::luks2::unlock::passphrase_slot;
use crate::luks2::wipe::overwrite_key;
use crate::secret::Secret;
use inlock_cipher::VolumeKey;
use serde_json::{Map, Value};

impl Luks2 {
    /// Gives a keyslot another passphrase or other parameters, as
    /// [`Volume::change_keyslot`](crate::Volume::change_keyslot).
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn change_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        number: u32,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        let device = &self.checked(device)?;
        self.check_requirements()?;
        let slot = self.active_keyslot(number)?;
        passphrase_slot(slot)?;
        let old_area = area(slot);
        self.check_key(self.digest_of(number).ok_or(EditError::WrongKey)?, key)?;
        let target = match new.number {
            Some(other) if other != number => self.free_keyslot(Some(other))?,
            _ => number,
        };
        let fits_old = old_area.end - old_area.start >= area_len(key.len());
        let (offset, in_place) = match self.free_area(key.len()) {
            Err(EditError::NoFreeArea { .. }) if new.may_overwrite && fits_old => (old_area.start, true),
            found => (found?, false),
        };
        let (object, material) = self.plan(key, new)?.seal(key, passphrase, offset)?;
        let replaced = self.with_keyslot(number, target, object);
        if in_place {
            let mut map = replaced;
            if target != number {
                remove_keyslots(&mut map, &[number]);
            }
            let draft = self.draft_of(map)?;
            overwrite_key(device, number, old_area)?;
            device.write_all_at(&material, offset)?;
            device.sync()?;
            self.write(device, draft)?;
            return Ok(target);
        }
        let draft = self.draft_of(replaced.clone())?;
        let (draft, old_number) = match target == number {
            false => (draft, Some(number)),
            true => match self.with_old_keyslot(replaced, number) {
                Some((map, spare)) => match self.draft_of(map) {
                    Err(EditError::Commit(CommitError::MetadataTooLarge { .. })) => (draft, None),
                    both => (both?, Some(spare)),
                },
                None => (draft, None),
            },
        };
        device.write_all_at(&material, offset)?;
        device.sync()?;
        self.write(device, draft)?;
        match old_number {
            Some(old) => self.kill(device, old)?,
            // The metadata have no place for both keyslots.
            None => overwrite_key(device, number, old_area)?,
        }
        Ok(target)
    }

    /// Returns the metadata with a new object in keyslot `target`, which keeps what Inlock does not know of keyslot
    /// `number`, its priority and its references.
    fn with_keyslot(&self, number: u32, target: u32, object: Value) -> Map<String, Value> {
        let mut map = self.map.clone();
        let name = number.to_string();
        let keyslots = section(&mut map, "keyslots");
        let mut merged = keyslots[&name].clone();
        if let (Some(fields), Value::Object(object)) = (merged.as_object_mut(), object) {
            fields.extend(object);
        }
        keyslots.insert(target.to_string(), merged);
        for referring in ["digests", "tokens"] {
            for object in section(&mut map, referring).values_mut() {
                if has_reference(object, number) {
                    refer(object, target);
                }
            }
        }
        map
    }

    /// Returns these metadata with the present object of keyslot `number` under a free number, where it stays until its
    /// key material is overwritten.
    fn with_old_keyslot(&self, mut map: Map<String, Value>, number: u32) -> Option<(Map<String, Value>, u32)> {
        let spare = self.free_keyslot(None).ok()?;
        let old = self.map["keyslots"][&number.to_string()].clone();
        section(&mut map, "keyslots").insert(spare.to_string(), old);
        let digest = self.digest_of(number)?;
        refer(&mut section(&mut map, "digests")[&digest.to_string()], spare);
        Some((map, spare))
    }
}
