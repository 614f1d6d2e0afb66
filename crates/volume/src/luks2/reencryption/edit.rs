//! Beginning, continuing and ending a re-encryption in the header.
//!
//! Each is one commit of the metadata. Key material is durable before the metadata that refer to it. The caller makes
//! data, and the keyslot's area, durable in between.

use super::segments::Segments;
use super::{
    FINAL, MOVED, PREVIOUS, PieceState, Pieces, Protection, Reencryption, ReencryptionKeys, ReencryptionMode,
    Resilience, digest, requirement, segments,
};
use crate::edit::{EditError, NewKeyslot};
use crate::error::{CommitError, UnlockError};
use crate::header_device::HeaderDevice;
use crate::luks_cipher;
use crate::luks2::edit::{
    free_area, free_digest, free_keyslot, has_reference, object, refer, remove_keyslots, section,
};
use crate::luks2::metadata::Metadata;
use crate::luks2::new_digest::new_digest;
use crate::luks2::new_keyslot::area_len;
use crate::luks2::reencryption_keyslot::{self as keyslot, ReencryptionKeyslot};
use crate::luks2::validate;
use crate::luks2::wipe::wipe_area;
use crate::luks2::{HEADER, Luks2, areas};
use crate::pbkdf::{Hash, KdfRequest};
use crate::secret::Secret;
use inlock_cipher::{CipherSpec, DataUnitSize, VolumeKey};
use serde_json::{Map, Value, json};
use std::ops::Range;
use zeroize::Zeroizing;

/// Cipher and data unit of the new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSide {
    /// The cipher.
    pub cipher: CipherSpec,
    /// Size of a data unit.
    pub unit: DataUnitSize,
}

/// A keyslot for the new key.
#[derive(Debug)]
pub struct ReencryptedKeyslot<'a> {
    /// The keyslot with the same passphrase for the old key, whose tokens and priority it gets.
    pub old: u32,
    /// The passphrase.
    pub passphrase: &'a Secret,
    /// Its parameters.
    pub new: &'a NewKeyslot,
}

/// A re-encryption to begin.
#[derive(Debug)]
pub struct ReencryptionStart<'a> {
    /// Mode, direction and resilience.
    pub keyslot: ReencryptionKeyslot,
    /// Cipher and data unit of the new data; `None`: those of the header.
    pub new: Option<NewSide>,
    /// Keys of the old and of the new data, with which the new one is compared.
    pub keys: &'a ReencryptionKeys,
    /// Keyslots for a new key. Without any, those who have the key itself can use the volume.
    pub keyslots: Vec<ReencryptedKeyslot<'a>>,
    /// Costs of the new digests.
    pub kdf: KdfRequest,
    /// Hash of the new digests.
    pub hash: Hash,
    /// Length of the data device in bytes.
    pub device_len: u64,
    /// Length of the data in bytes, if it is not that of the volume.
    pub data_len: Option<u64>,
    /// Length in bytes of the first segment that a decryption with a shift moves. `None`: the shift, which is the most.
    pub moved_len: Option<u64>,
}

/// A tree of metadata in the making, with the key material that it refers to.
struct Draft {
    map: Map<String, Value>,
    materials: Vec<(u64, Zeroizing<Vec<u8>>)>,
}

impl Luks2 {
    /// Returns the length in bytes of the largest free part of the keyslots area.
    pub fn free_area_len(&self) -> u64 {
        let gap = areas::largest_gap(&self.header, &self.metadata);
        gap.end - gap.start
    }

    /// Records in the header that a re-encryption has begun, and adds the keyslots of the new key. Returns its state:
    /// all data are old.
    ///
    /// To encrypt, the header is that of the new volume, and the data are where the old ones would be. With a shift,
    /// the caller has moved the first segment, durably.
    ///
    /// # Errors
    ///
    /// Fails before it writes if there is no room, if the keys are not those of the header, or if the options do not
    /// go together.
    pub fn start_reencryption(
        &mut self,
        device: &dyn HeaderDevice,
        start: &ReencryptionStart<'_>,
    ) -> Result<Reencryption, EditError> {
        let checked = self.checked(device)?;
        self.check_requirements()?;
        let digest = self.volume_digest().ok_or(EditError::WrongKey)?;
        let own = if start.keyslot.mode == ReencryptionMode::Encrypt { &start.keys.new } else { &start.keys.old };
        self.check_key(digest, own.as_ref().ok_or(EditError::WrongKey)?)?;
        let mut draft = Draft { map: self.map.clone(), materials: Vec::new() };
        let new_digest_number = match (start.keyslot.mode, &start.keys.new) {
            (ReencryptionMode::Reencrypt, Some(key)) => self.add_new_key(&mut draft, key, start)?,
            _ => digest,
        };
        self.add_backup_segments(&mut draft, start, [digest, new_digest_number])?;
        let state = self.add_state(&mut draft, start)?;
        let written = self.draft_of(draft.map)?;
        for (offset, material) in &draft.materials {
            checked.write_all_at(material, *offset)?;
        }
        checked.sync()?;
        self.write(&checked, written)?;
        Ok(state)
    }

    /// Adds the new key's keyslots, and its digest, whose number it returns.
    fn add_new_key(&self, draft: &mut Draft, key: &VolumeKey, start: &ReencryptionStart<'_>) -> Result<u32, EditError> {
        if let Some(new) = start.new {
            luks_cipher::check_new("cipher", &new.cipher, key.len(), new.unit)
                .map_err(|_| EditError::InvalidOption { option: "key-size", reason: "the cipher has no such key" })?;
        }
        let mut digest = None;
        for slot in &start.keyslots {
            let metadata = self.metadata_of(&draft.map)?;
            let number = free_keyslot(&metadata, slot.new.number)?;
            let offset = free_area(&self.header, &metadata, area_len(key.len()))?;
            let (mut object, material) = self.plan(key, slot.new)?.seal(key, slot.passphrase, offset)?;
            let name = number.to_string();
            if let Some(priority) = draft.map["keyslots"][slot.old.to_string()].get("priority").cloned() {
                object["priority"] = priority;
            }
            section(&mut draft.map, "keyslots").insert(name.clone(), object);
            let digests = section(&mut draft.map, "digests");
            match digest {
                None => {
                    let free = free_digest(&metadata)?;
                    let object = new_digest(key, start.hash, &start.kdf, &[&name], &[])?;
                    digests.insert(free.to_string(), object);
                    digest = Some(free);
                }
                Some(known) => refer(&mut digests[&known.to_string()], number),
            }
            let tokens = section(&mut draft.map, "tokens").values_mut();
            tokens.filter(|token| has_reference(token, slot.old)).for_each(|token| refer(token, number));
            draft.materials.push((offset, material));
        }
        if let Some(digest) = digest {
            return Ok(digest);
        }
        let free = free_digest(&self.metadata_of(&draft.map)?)?;
        let object = new_digest(key, start.hash, &start.kdf, &[], &[])?;
        section(&mut draft.map, "digests").insert(free.to_string(), object);
        Ok(free)
    }

    /// Replaces the only segment by the backup segments before and after, bound to the old and the new digest.
    fn add_backup_segments(
        &self,
        draft: &mut Draft,
        start: &ReencryptionStart<'_>,
        [old, new]: [u32; 2],
    ) -> Result<(), EditError> {
        let invalid = |option, reason| Err(EditError::InvalidOption { option, reason });
        let live: Vec<_> = self.metadata.segments.iter().collect();
        let [(number, only)] = live[..] else { return invalid("type", "the volume has several segments") };
        let present = draft.map["segments"][number.to_string()].clone();
        let with = |mut object: Value, flag: &str, fields: &[(&str, String)]| {
            fields.iter().for_each(|(name, text)| object[*name] = text.as_str().into());
            object["flags"] = json!([flag]);
            object
        };
        let linear = json!({"type": "linear", "offset": only.offset.to_string(), "size": "dynamic"});
        let shift = start.keyslot.resilience.shift;
        let fields = |offset: u64, size: Option<u64>| {
            [("offset", offset.to_string()), ("size", size.map_or("dynamic".to_owned(), |size| size.to_string()))]
        };
        let (previous, last, moved) = match (start.keyslot.mode, shift) {
            (ReencryptionMode::Reencrypt, _) => {
                let mut after = present.clone();
                if let Some(new) = start.new {
                    after["encryption"] = new.cipher.to_string().into();
                    after["sector_size"] = new.unit.bytes().into();
                }
                (with(present, PREVIOUS, &[]), with(after, FINAL, &[]), None)
            }
            (ReencryptionMode::Encrypt, None) => (with(linear, PREVIOUS, &[]), with(present, FINAL, &[]), None),
            (ReencryptionMode::Encrypt, Some(shift)) => {
                let room = start.device_len.saturating_sub(shift.saturating_mul(2));
                let len = start.data_len.unwrap_or(room);
                let Some(from) = only.offset.checked_sub(shift).filter(|_| 0 < len && len <= room) else {
                    return invalid("reduce-device-size", "the device is too small");
                };
                let moved = with(linear.clone(), MOVED, &fields(start.device_len - shift, Some(shift.min(len))));
                (with(linear, PREVIOUS, &fields(from, Some(len))), with(present, FINAL, &[]), Some(moved))
            }
            (ReencryptionMode::Decrypt, None) => (with(present, PREVIOUS, &[]), with(linear, FINAL, &[]), None),
            (ReencryptionMode::Decrypt, Some(shift)) => {
                let Some(to) = only.offset.checked_sub(shift) else {
                    return invalid("header", "the data cannot be shifted that far");
                };
                let len = start.device_len.saturating_sub(only.offset).min(start.moved_len.unwrap_or(shift).min(shift));
                let moved = with(present.clone(), MOVED, &fields(to, Some(len)));
                (with(present, PREVIOUS, &[]), with(linear, FINAL, &fields(to, None)), Some(moved))
            }
        };
        let old = Some(old).filter(|_| start.keyslot.mode != ReencryptionMode::Encrypt);
        let new = Some(new).filter(|_| start.keyslot.mode != ReencryptionMode::Decrypt);
        let mut all = Segments::default();
        all.add(previous, &[old]);
        all.add(last, &[new]);
        moved.into_iter().for_each(|moved| all.add(moved, &[old]));
        all.write_to(&mut draft.map);
        Ok(())
    }

    /// Adds the keyslot of the re-encryption, its digest, the requirement, and the segments in use.
    fn add_state(&self, draft: &mut Draft, start: &ReencryptionStart<'_>) -> Result<Reencryption, EditError> {
        let metadata = self.metadata_of(&draft.map)?;
        let number = free_keyslot(&metadata, None)?;
        let area = area_for(self, &metadata, start)?;
        let name = number.to_string();
        section(&mut draft.map, "keyslots").insert(name.clone(), keyslot::object(&start.keyslot, &area));
        let requirements = object(section(&mut draft.map, "config"), "requirements");
        requirements.insert("mandatory".into(), json!([requirement(&start.keyslot)]));
        let metadata = self.metadata_of(&draft.map)?;
        let begun = Reencryption::begun(&metadata)?;
        // Where the moved segment is all there is, no segment follows it.
        let is_all_moved = begun.moved_len().is_some_and(|moved| begun.len(start.device_len) <= moved);
        let end = start.data_len.or(begun.old.size).or(begun.moved_len().filter(|_| is_all_moved));
        segments::replace(&mut draft.map, &begun, &Pieces::whole(PieceState::Old, end));
        let state = Reencryption::of(&self.metadata_of(&draft.map)?)?;
        let sequence = digest::sequence(&state, start.keys.old.as_ref(), start.keys.new.as_ref())?;
        let digest = new_digest(&sequence, start.hash, &start.kdf, &[&name], &[])?;
        section(&mut draft.map, "digests").insert(free_digest(&metadata)?.to_string(), digest);
        Ok(state)
    }

    fn metadata_of(&self, map: &Map<String, Value>) -> Result<Metadata, EditError> {
        Ok(validate::check(HEADER, &self.header, map).map_err(CommitError::from)?)
    }

    /// Writes the progress of a re-encryption. What is old or new with these parts is so durably. One copy of the
    /// header is durable, and the other one after the next flush of its device, or [`Luks2::sync`]; the next progress
    /// is written after that.
    ///
    /// # Errors
    ///
    /// As [`Luks2::commit`].
    pub fn commit_progress(
        &mut self,
        device: &dyn HeaderDevice,
        reencryption: &mut Reencryption,
        pieces: Pieces,
    ) -> Result<(), EditError> {
        let mut map = self.map.clone();
        segments::replace(&mut map, reencryption, &pieces);
        let device = self.checked(device)?;
        let draft = self.draft_of(map)?;
        self.write_first(&device, draft)?;
        reencryption.pieces = pieces;
        Ok(())
    }

    /// Changes how zones are protected, of a re-encryption that `keys` have confirmed. No zone is being written.
    ///
    /// # Errors
    ///
    /// Fails if one of both has a shift and the other has none; otherwise as [`Luks2::commit`].
    pub fn change_resilience(
        &mut self,
        device: &dyn HeaderDevice,
        found: &Reencryption,
        keys: &ReencryptionKeys,
        (resilience, hash, kdf): (Resilience, Hash, &KdfRequest),
    ) -> Result<Reencryption, EditError> {
        if found.pieces.hot().is_some() {
            return Err(
                UnlockError::Reencryption { reason: "a zone is being written, and has to be recovered first" }.into()
            );
        }
        if resilience.shift != found.keyslot.resilience.shift {
            return Err(EditError::InvalidOption {
                option: "resilience",
                reason: "a re-encryption with a shift cannot become one without, and vice versa",
            });
        }
        if let Some(moved) = found.moved_len() {
            let needed = room_for(&resilience.protection, moved).unwrap_or(u64::MAX);
            if needed > found.area.end - found.area.start {
                return Err(EditError::NoFreeArea { needed });
            }
        }
        let mut map = self.map.clone();
        let keyslot = ReencryptionKeyslot { resilience, ..found.keyslot.clone() };
        let name = found.number.to_string();
        section(&mut map, "keyslots").insert(name.clone(), keyslot::object(&keyslot, &found.area));
        let changed = Reencryption { keyslot, ..found.clone() };
        let sequence = digest::sequence(&changed, keys.old.as_ref(), keys.new.as_ref())?;
        let object = new_digest(&sequence, hash, kdf, &[&name], &[])?;
        let number = self.digest_of(found.number).ok_or(EditError::WrongKey)?;
        section(&mut map, "digests").insert(number.to_string(), object);
        self.commit_map(device, map)?;
        Ok(changed)
    }

    /// Adds the digest of a re-encryption that has none, and gives it the version that has one. From then on, it is one
    /// to which the owner of the keys has agreed.
    ///
    /// # Errors
    ///
    /// Fails if it has a digest; otherwise as [`Luks2::commit`].
    pub fn add_reencryption_digest(
        &mut self,
        device: &dyn HeaderDevice,
        found: &Reencryption,
        keys: &ReencryptionKeys,
        (hash, kdf): (Hash, &KdfRequest),
    ) -> Result<(), EditError> {
        if !self.has_unconfirmed_reencryption() {
            return Err(UnlockError::Reencryption { reason: "it has a digest" }.into());
        }
        let sequence = digest::sequence(found, keys.old.as_ref(), keys.new.as_ref())?;
        let digest = new_digest(&sequence, hash, kdf, &[&found.number.to_string()], &[])?;
        let mut map = self.map.clone();
        section(&mut map, "digests").insert(free_digest(&self.metadata)?.to_string(), digest);
        let requirements = object(section(&mut map, "config"), "requirements");
        requirements.insert("mandatory".into(), json!([requirement(&found.keyslot)]));
        self.commit_map(device, map)
    }

    /// Ends a re-encryption whose data are all new: leaves the new segment, and removes the keyslots of the old key.
    ///
    /// One commit ends it and removes the keyslots. Then their key material is overwritten; after a power cut in
    /// between, some of it is left, which nothing can decrypt without the salt that was in the header.
    ///
    /// # Errors
    ///
    /// Fails before it writes if data are not new; otherwise as [`Luks2::commit`].
    pub fn finish_reencryption(&mut self, device: &dyn HeaderDevice, found: &Reencryption) -> Result<(), EditError> {
        if !found.pieces.is_finished() {
            return Err(UnlockError::Reencryption { reason: "it has not reached the end" }.into());
        }
        let mut map = self.map.clone();
        let mut all = Segments::default();
        segments::last_object(&map).into_iter().for_each(|last| all.add(last, &[found.new.digest]));
        all.write_to(&mut map);
        let old = found.old.digest.filter(|old| found.new.digest != Some(*old));
        let old = old.and_then(|old| self.metadata.digests.get(&old)).map(|digest| digest.keyslots.clone());
        let removed = [old.unwrap_or_default(), vec![found.number]].concat();
        let slots = removed.iter().filter_map(|number| self.metadata.keyslots.get(number));
        let areas: Vec<Range<u64>> =
            slots.map(|slot| slot.area_offset..slot.area_offset + slot.reserved_len()).collect();
        remove_keyslots(&mut map, &removed);
        section(&mut map, "config").shift_remove("requirements");
        self.commit_map(device, map)?;
        areas.into_iter().try_for_each(|area| Ok(wipe_area(device, area)?))
    }
}

/// Returns the area of the keyslot: with a shift the shortest, otherwise the largest gap.
fn area_for(luks2: &Luks2, metadata: &Metadata, start: &ReencryptionStart<'_>) -> Result<Range<u64>, EditError> {
    let resilience = &start.keyslot.resilience;
    if resilience.shift.is_some() && resilience.protection == Protection::None {
        let needed = areas::KEYSLOTS_ALIGN;
        let offset = free_area(&luks2.header, metadata, needed)?;
        return Ok(offset..offset + needed);
    }
    let gap = areas::largest_gap(&luks2.header, metadata);
    let needed = match (&resilience.protection, resilience.shift) {
        (_, None) => areas::KEYSLOTS_ALIGN,
        // The moved segment is protected as a whole.
        (protection, Some(shift)) => {
            let len = metadata.segments.get(&2).and_then(|moved| moved.size).unwrap_or(shift);
            room_for(protection, len).unwrap_or(u64::MAX)
        }
    };
    match gap.end - gap.start >= needed {
        true => Ok(gap),
        false => Err(EditError::NoFreeArea { needed }),
    }
}

/// Returns the bytes of the area that protect `len` bytes of data; `None`: the hash is not supported.
fn room_for(protection: &Protection, len: u64) -> Option<u64> {
    match protection {
        Protection::None => Some(0),
        Protection::Journal => Some(len),
        Protection::Checksum { hash, block } => {
            let hash: Hash = hash.parse().ok()?;
            Some(len.div_ceil((*block).into()) * hash.len() as u64)
        }
    }
}
