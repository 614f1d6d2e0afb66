//! Adding and removing keyslots.

use super::object::{free_number, refer, remove_keyslots, section};
use crate::checked_device::CheckedDevice;
use crate::edit::{EditError, KeyslotStatus, NewKeyslot};
use crate::header_device::HeaderDevice;
use crate::luks_cipher;
use crate::luks2::binary_header::BinaryHeader;
use crate::luks2::metadata::{Keyslot, KeyslotKind, Metadata, SegmentKind};
use crate::luks2::new_digest::new_digest;
use crate::luks2::new_keyslot::{KeyslotPlan, area_len};
use crate::luks2::validate::{MAX_DIGESTS, MAX_OBJECTS};
use crate::luks2::wipe::overwrite_key;
use crate::luks2::{Luks2, areas, digest, segment};
use crate::pbkdf::{Hash, KdfLimits, KdfRequest};
use crate::secret::Secret;
use inlock_cipher::{AeadSpec, CipherSpec, VolumeKey};
use serde_json::{Map, Value};
use std::ops::Range;

impl Luks2 {
    /// Adds a keyslot that holds the volume key, as [`Volume::add_keyslot`](crate::Volume::add_keyslot).
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn add_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        let device = &self.checked(device)?;
        self.check_requirements()?;
        let digest = self.volume_digest().ok_or(EditError::WrongKey)?;
        self.check_key(digest, key)?;
        self.insert(device, key, passphrase, new, |map, number| {
            refer(&mut section(map, "digests")[&digest.to_string()], number);
            Ok(())
        })
    }

    /// Adds a keyslot that holds another key, bound to no segment, with a digest of its own.
    ///
    /// # Errors
    ///
    /// As [`Volume::add_unbound_keyslot`](crate::Volume::add_unbound_keyslot).
    pub(crate) fn add_unbound_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        let device = &self.checked(device)?;
        self.check_requirements()?;
        if !(1..=crate::key_material::MAX_KEY_LEN).contains(&key.len()) {
            return Err(EditError::InvalidOption { option: "key-size", reason: "a key has 1 to 512 bytes" });
        }
        let digest = free_digest(&self.metadata)?;
        let hash = new.hash.unwrap_or(Hash::Sha256);
        self.insert(device, key, passphrase, new, |map, number| {
            let object = new_digest(key, hash, &new.kdf, &[&number.to_string()], &[])?;
            section(map, "digests").insert(digest.to_string(), object);
            Ok(())
        })
    }

    /// Adds a keyslot to which `bind` adds the references.
    fn insert(
        &mut self,
        device: &CheckedDevice<'_>,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
        bind: impl FnOnce(&mut Map<String, Value>, u32) -> Result<(), EditError>,
    ) -> Result<u32, EditError> {
        let number = self.free_keyslot(new.number)?;
        let offset = self.free_area(key.len())?;
        let (object, material) = self.plan(key, new)?.seal(key, passphrase, offset)?;
        let mut map = self.map.clone();
        section(&mut map, "keyslots").insert(number.to_string(), object);
        bind(&mut map, number)?;
        let draft = self.draft_of(map)?;
        device.write_all_at(&material, offset)?;
        device.sync()?;
        self.write(device, draft)?;
        Ok(number)
    }

    /// Removes a keyslot and overwrites its key material, as
    /// [`Volume::kill_keyslot`](crate::Volume::kill_keyslot).
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn kill_keyslot(&mut self, device: &dyn HeaderDevice, number: u32) -> Result<(), EditError> {
        let device = &self.checked(device)?;
        self.kill(device, number)
    }

    pub(super) fn kill(&mut self, device: &CheckedDevice<'_>, number: u32) -> Result<(), EditError> {
        let slot = self.active_keyslot(number)?;
        self.check_removal()?;
        if matches!(slot.kind, KeyslotKind::Reencryption(_)) {
            return Err(EditError::KeyslotOfReencryption(number));
        }
        let area = area(slot);
        let mut map = self.map.clone();
        remove_keyslots(&mut map, &[number]);
        let draft = self.draft_of(map)?;
        overwrite_key(device, number, area)?;
        Ok(self.write(device, draft)?)
    }

    /// Removes all keyslots that hold keys, and overwrites all keyslot areas, also those that no keyslot refers to.
    ///
    /// # Errors
    ///
    /// As [`Volume::erase_keyslots`](crate::Volume::erase_keyslots).
    pub(crate) fn erase_keyslots(&mut self, device: &dyn HeaderDevice) -> Result<(), EditError> {
        let device = &self.checked(device)?;
        // That of a re-encryption holds no key, and says what the segments are.
        let keys = self.metadata.keyslots.iter().filter(|(_, slot)| !matches!(slot.kind, KeyslotKind::Reencryption(_)));
        let numbers: Vec<u32> = keys.map(|(number, _)| *number).collect();
        let mut map = self.map.clone();
        remove_keyslots(&mut map, &numbers);
        let draft = self.draft_of(map)?;
        let end = areas::keyslots_end(&self.header, &self.metadata).min(device.len()?);
        overwrite_key(device, numbers.first().copied().unwrap_or(0), areas::keyslots_start(&self.header)..end)?;
        Ok(self.write(device, draft)?)
    }

    /// Returns the state of a keyslot number.
    pub(crate) fn keyslot_status(&self, number: u32) -> KeyslotStatus {
        if number >= MAX_OBJECTS {
            return KeyslotStatus::Invalid;
        }
        if !self.metadata.keyslots.contains_key(&number) {
            return KeyslotStatus::Inactive;
        }
        let bound: Vec<u32> = self.volume_digest().map_or(Vec::new(), |d| self.metadata.digests[&d].keyslots.clone());
        let has_other = bound.iter().any(|other| *other != number && self.metadata.keyslots[other].can_be_tried());
        match (bound.contains(&number), has_other) {
            (false, _) => KeyslotStatus::Unbound,
            (true, false) => KeyslotStatus::ActiveLast,
            (true, _) => KeyslotStatus::Active,
        }
    }

    /// Returns the keyslot of that number.
    pub(super) fn active_keyslot(&self, number: u32) -> Result<&Keyslot, EditError> {
        active_keyslot(&self.metadata, number)
    }

    /// Returns the number of a keyslot that is free: the requested one, or the first.
    pub(super) fn free_keyslot(&self, requested: Option<u32>) -> Result<u32, EditError> {
        free_keyslot(&self.metadata, requested)
    }

    /// Returns the start of a free area for a key of `key_len` bytes.
    pub(super) fn free_area(&self, key_len: usize) -> Result<u64, EditError> {
        free_area(&self.header, &self.metadata, area_len(key_len))
    }

    /// Checks that `key` is the one that a digest confirms.
    pub(in crate::luks2) fn check_key(&self, number: u32, key: &VolumeKey) -> Result<(), EditError> {
        let digest = &self.metadata.digests[&number];
        // PBKDF2 pads short keys with zeroes, so the digest alone does not confirm the length.
        let slot_of = |keyslot: &u32| self.metadata.keyslots.get(keyslot).filter(|slot| !slot.is_invalid());
        let len_of = |keyslot: &u32| slot_of(keyslot).map(|slot| slot.key_len as usize);
        let lens = digest.keyslots.iter().filter_map(len_of).all(|len| len == key.len());
        let takes = |segment: &u32| {
            self.segment_cipher(*segment).is_none_or(|spec| spec.can_use_key_len(key.len()))
                && self.segment_aead(*segment).is_none_or(|spec| spec.can_use_key_len(key.len()))
        };
        let is_right = lens && digest.segments.iter().all(takes);
        if !is_right || !digest::computable(number, digest)?.verify(key, &KdfLimits::default())? {
            return Err(EditError::WrongKey);
        }
        Ok(())
    }

    /// Returns the parameters of a new keyslot for `key`. Measures the costs unless they are forced.
    pub(in crate::luks2) fn plan(&self, key: &VolumeKey, new: &NewKeyslot) -> Result<KeyslotPlan, EditError> {
        let (cipher, area_key_len) = match new.cipher {
            Some((cipher, len)) => {
                luks_cipher::check_keyslot(&cipher, len)?;
                (cipher, len)
            }
            None => self.default_keyslot_cipher(key),
        };
        let hash = new.hash.unwrap_or(Hash::Sha256);
        let kdf = KdfRequest { hash, ..new.kdf }.resolve(area_key_len)?;
        Ok(KeyslotPlan { cipher, area_key_len, hash, kdf })
    }

    /// Returns the cipher of the payload and the length of its key; if that cannot protect a keyslot, cryptsetup's
    /// default.
    fn default_keyslot_cipher(&self, key: &VolumeKey) -> (CipherSpec, usize) {
        let digest = self.volume_digest().map(|number| &self.metadata.digests[&number]);
        let slot_of = |keyslot: &u32| self.metadata.keyslots.get(keyslot).filter(|slot| !slot.is_invalid());
        let len_of = |keyslot: &u32| slot_of(keyslot).map(|slot| slot.key_len as usize);
        let volume_key_len = digest.and_then(|digest| digest.keyslots.iter().find_map(len_of)).unwrap_or(key.len());
        let cipher = digest.and_then(|digest| digest.segments.iter().find_map(|&number| self.segment_cipher(number)));
        match cipher.filter(|cipher| luks_cipher::check_keyslot(cipher, volume_key_len).is_ok()) {
            Some(cipher) => (cipher, volume_key_len),
            None => (CipherSpec::AES_XTS_PLAIN64, 64),
        }
    }

    /// Returns the authenticated cipher of a segment, if it has a supported one.
    fn segment_aead(&self, number: u32) -> Option<AeadSpec> {
        match &self.metadata.segments.get(&number)?.kind {
            SegmentKind::Crypt(crypt) => segment::aead_spec(crypt, crypt.integrity.as_ref()?).ok(),
            _ => None,
        }
    }

    /// Returns the cipher of a segment, if it is encrypted and the cipher supported.
    fn segment_cipher(&self, number: u32) -> Option<CipherSpec> {
        match &self.metadata.segments.get(&number)?.kind {
            SegmentKind::Crypt(crypt) if crypt.integrity.is_none() => luks_cipher::parse(&crypt.cipher).ok(),
            _ => None,
        }
    }
}

fn active_keyslot(metadata: &Metadata, number: u32) -> Result<&Keyslot, EditError> {
    metadata.keyslots.get(&number).ok_or(match number < MAX_OBJECTS {
        true => EditError::KeyslotInactive(number),
        false => EditError::KeyslotInvalid { number, max: MAX_OBJECTS - 1 },
    })
}

/// Returns the number of a keyslot that these metadata have free: the requested one, or the first.
pub(in crate::luks2) fn free_keyslot(metadata: &Metadata, requested: Option<u32>) -> Result<u32, EditError> {
    let Some(number) = requested else {
        return free_number(&metadata.keyslots, MAX_OBJECTS).ok_or(EditError::NoFreeKeyslot);
    };
    match active_keyslot(metadata, number) {
        Ok(_) => Err(EditError::KeyslotInUse(number)),
        Err(EditError::KeyslotInactive(_)) => Ok(number),
        Err(error) => Err(error),
    }
}

/// Returns the number of the first digest that these metadata have free.
pub(in crate::luks2) fn free_digest(metadata: &Metadata) -> Result<u32, EditError> {
    free_number(&metadata.digests, MAX_DIGESTS).ok_or(EditError::NoFreeDigest { max: MAX_DIGESTS })
}

/// Returns the start of the first gap for an area of `needed` bytes.
pub(in crate::luks2) fn free_area(header: &BinaryHeader, metadata: &Metadata, needed: u64) -> Result<u64, EditError> {
    areas::find_gap(header, metadata, needed).ok_or(EditError::NoFreeArea { needed })
}

/// Returns the area of a keyslot.
pub(super) fn area(slot: &Keyslot) -> Range<u64> {
    slot.area_offset..slot.area_offset + slot.reserved_len()
}
