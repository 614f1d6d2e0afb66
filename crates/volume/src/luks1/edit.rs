//! Changing a LUKS1 header.
//!
//! The header has one copy and no checksum, so every change is made by one write of one sector, which a power cut
//! leaves undone or done. Keyslots 0 to 5 lie in the first sector and keyslot 7 in the second. Keyslot 6 begins in the
//! first sector with its active flag, iterations and the first 8 bytes of its salt, and ends in the second. The flag is
//! written last to enable a keyslot, and first to disable it ([`sectors_in_order`]).
//!
//! Key material is durable before the keyslot is enabled, and that of a removed keyslot is overwritten, durably, before
//! the keyslot is disabled: after a power cut in between, the keyslot can be removed again
//! ([order of writes](../../../../docs/decisions/luks-headers.md)).

use super::binary_header::{HEADER_LEN, KEYSLOT_DISABLED, KEYSLOT_ENABLED, KEYSLOTS, RawHeader, RawKeyslot};
use super::{Luks1, STRIPES, validate};
use crate::checked_device::CheckedDevice;
use crate::edit::{EditError, KeyslotStatus, NewKeyslot};
use crate::error::CommitError;
use crate::header_device::HeaderDevice;
use crate::key_material::KeyMaterial;
use crate::luks_uuid;
use crate::luks2::wipe::{fill_random, overwrite_key};
use crate::pbkdf::{Kdf, KdfKind, KdfLimits, KdfRequest, random_bytes};
use crate::secret::Secret;
use inlock_cipher::{SECTOR_SIZE, VolumeKey};
use std::ops::Range;
use zerocopy::FromBytes;
use zeroize::Zeroizing;

const SECTOR: usize = SECTOR_SIZE as usize;
/// Bytes of the two sectors with the header.
const SECTORS_LEN: usize = 2 * SECTOR;

/// The key under a passphrase, for any keyslot.
struct SealedKey {
    iterations: u32,
    salt: [u8; 32],
    material: Zeroizing<Vec<u8>>,
}

impl Luks1 {
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
        self.check_key(key)?;
        let number = self.free_keyslot(new.number)?;
        let sealed = self.seal(key, passphrase, new)?;
        self.put_key(device, number, &sealed)?;
        Ok(number)
    }

    /// Gives a keyslot another passphrase, as [`Volume::change_keyslot`](crate::Volume::change_keyslot).
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
        self.check_active(number)?;
        self.check_key(key)?;
        let keeps_number = new.number == Some(number);
        let other = match new.number.filter(|_| !keeps_number) {
            Some(target) => Some(self.free_keyslot(Some(target))?),
            None => self.free_keyslot(None).ok(),
        };
        let Some(other) = other else {
            if !new.may_overwrite {
                return Err(EditError::NoFreeKeyslot);
            }
            let sealed = self.seal(key, passphrase, new)?;
            self.put_key(device, number, &sealed)?;
            return Ok(number);
        };
        let sealed = self.seal(key, passphrase, new)?;
        self.put_key(device, other, &sealed)?;
        if !keeps_number {
            self.kill(device, number)?;
            return Ok(other);
        }
        // The other keyslot opens while this one is overwritten.
        self.put_key(device, number, &sealed)?;
        self.kill(device, other)?;
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

    fn kill(&mut self, device: &CheckedDevice<'_>, number: u32) -> Result<(), EditError> {
        self.check_active(number)?;
        overwrite_key(device, number, self.area(number))?;
        self.change_header(device, false, |raw| disable(&mut raw.keyslots[number as usize]))
    }

    /// Removes all keyslots, and overwrites all key material.
    ///
    /// # Errors
    ///
    /// As [`Volume::erase_keyslots`](crate::Volume::erase_keyslots).
    pub(crate) fn erase_keyslots(&mut self, device: &dyn HeaderDevice) -> Result<(), EditError> {
        let device = &self.checked(device)?;
        let len = device.len()?;
        for number in 0..KEYSLOTS as u32 {
            // The areas of disabled keyslots may have old key material, and may be outside of a file.
            let area = self.area(number);
            let written = fill_random(device, area.start.min(len)..area.end.min(len));
            written.map_err(|source| EditError::NotOverwritten { keyslot: number, source })?;
        }
        let first = self.active_keyslots().first().copied().unwrap_or(0);
        device.sync().map_err(|source| EditError::NotOverwritten { keyslot: first, source })?;
        self.change_header(device, false, |raw| raw.keyslots.iter_mut().for_each(disable))
    }

    /// Sets the UUID; `None`: a random one.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a UUID, or if the header cannot be written.
    pub(crate) fn set_uuid(&mut self, device: &dyn HeaderDevice, uuid: Option<&str>) -> Result<(), EditError> {
        let device = &self.checked(device)?;
        let uuid = luks_uuid::new(uuid)?;
        self.change_header(device, false, |raw| {
            raw.uuid.fill(0);
            raw.uuid[..uuid.len()].copy_from_slice(uuid.as_bytes());
        })
    }

    /// Returns the state of a keyslot number.
    pub(crate) fn keyslot_status(&self, number: u32) -> KeyslotStatus {
        let active = self.active_keyslots();
        match (number < KEYSLOTS as u32, active.contains(&number), active.len()) {
            (false, ..) => KeyslotStatus::Invalid,
            // A damaged keyslot may hold a key: it is not free.
            (true, false, _) if self.keyslots[number as usize].is_invalid => KeyslotStatus::Active,
            (true, false, _) => KeyslotStatus::Inactive,
            (true, true, 1) => KeyslotStatus::ActiveLast,
            (true, true, _) => KeyslotStatus::Active,
        }
    }

    fn check_active(&self, number: u32) -> Result<(), EditError> {
        match self.keyslot_status(number) {
            KeyslotStatus::Invalid => Err(EditError::KeyslotInvalid { number, max: KEYSLOTS as u32 - 1 }),
            KeyslotStatus::Inactive => Err(EditError::KeyslotInactive(number)),
            _ => Ok(()),
        }
    }

    /// Returns the number of a keyslot that is free: the requested one, or the first.
    fn free_keyslot(&self, requested: Option<u32>) -> Result<u32, EditError> {
        let is_free = |number: &u32| self.keyslot_status(*number) == KeyslotStatus::Inactive;
        let Some(number) = requested else {
            return (0..KEYSLOTS as u32).find(is_free).ok_or(EditError::NoFreeKeyslot);
        };
        match self.check_active(number) {
            Ok(()) => Err(EditError::KeyslotInUse(number)),
            Err(EditError::KeyslotInactive(_)) => Ok(number),
            Err(error) => Err(error),
        }
    }

    fn check_key(&self, key: &VolumeKey) -> Result<(), EditError> {
        let (_, hash) = self.algorithms()?;
        let is_right = key.len() == self.key_len() && self.is_volume_key(key, hash, &KdfLimits::default())?;
        if is_right { Ok(()) } else { Err(EditError::WrongKey) }
    }

    /// Seals `key` under `passphrase`. Measures the costs unless they are forced.
    fn seal(&self, key: &VolumeKey, passphrase: &Secret, new: &NewKeyslot) -> Result<SealedKey, EditError> {
        if new.kdf.kind != KdfKind::Pbkdf2 {
            return Err(EditError::InvalidOption { option: "pbkdf", reason: "LUKS1 supports only pbkdf2" });
        }
        if new.cipher.is_some() {
            return Err(EditError::NeedsLuks2("a cipher of its own for a keyslot"));
        }
        let (cipher, hash) = self.algorithms()?;
        let kdf = KdfRequest { hash, ..new.kdf }.resolve(key.len())?;
        let Kdf::Pbkdf2 { iterations, .. } = kdf else { unreachable!("the kind was checked") };
        let mut salt = [0; 32];
        salt.copy_from_slice(&random_bytes(32)?);
        let mut area_key = Zeroizing::new(vec![0; key.len()]);
        kdf.derive(passphrase.as_bytes(), &salt, &mut area_key, &KdfLimits::default())?;
        let place = KeyMaterial { offset: 0, key_len: key.len(), stripes: STRIPES, hash, cipher };
        Ok(SealedKey { iterations, salt, material: place.seal(key, &area_key)? })
    }

    /// Writes key material, then the keyslot.
    fn put_key(&mut self, device: &CheckedDevice<'_>, number: u32, key: &SealedKey) -> Result<(), EditError> {
        device.write_all_at(&key.material, self.area(number).start)?;
        device.sync()?;
        self.change_header(device, true, |raw| {
            let slot = &mut raw.keyslots[number as usize];
            slot.active = KEYSLOT_ENABLED.into();
            slot.iterations = key.iterations.into();
            slot.salt = key.salt;
        })
    }

    /// Returns the area of a keyslot's key material.
    pub(crate) fn area(&self, number: u32) -> Range<u64> {
        let slot = &self.keyslots[number as usize];
        slot.start()..slot.end(self.key_len)
    }

    /// Reads the header, changes it, and writes the sectors that differ, each durable before the next.
    pub(crate) fn change_header(
        &mut self,
        device: &CheckedDevice<'_>,
        enables: bool,
        change: impl FnOnce(&mut RawHeader),
    ) -> Result<(), EditError> {
        let mut old = [0; SECTORS_LEN];
        device.read_exact_at(&mut old, 0)?;
        let mut new = old;
        let raw = RawHeader::mut_from_bytes(&mut new[..HEADER_LEN]).expect("the slice has the length of the header");
        change(raw);
        let luks1 = validate::decode(raw).and_then(|luks1| validate::check(&luks1).map(|()| luks1));
        let luks1 = luks1.map_err(CommitError::from)?;
        for at in sectors_in_order(enables) {
            let range = at..at + SECTOR;
            if old[range.clone()] != new[range.clone()] {
                device.write_all_at(&new[range], at as u64)?;
                device.sync()?;
            }
        }
        *self = luks1;
        Ok(())
    }
}

/// Returns the offsets of the header's sectors in the order of writing. The active flag of keyslot 6, the only one that
/// lies in both, is in the first.
fn sectors_in_order(enables: bool) -> [usize; 2] {
    if enables { [SECTOR, 0] } else { [0, SECTOR] }
}

/// Disables a keyslot, and wipes its parameters.
pub(crate) fn disable(slot: &mut RawKeyslot) {
    slot.active = KEYSLOT_DISABLED.into();
    slot.iterations = 0.into();
    slot.salt.fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn active_flags_lie_in_the_sector_that_is_written_last() {
        for number in 0..KEYSLOTS {
            let start = offset_of!(RawHeader, keyslots) + number * size_of::<RawKeyslot>();
            let sectors = [start / SECTOR, (start + size_of::<RawKeyslot>() - 1) / SECTOR];
            assert_eq!(sectors[0] != sectors[1], number == 6, "keyslot {number}");
        }
        assert_eq!(sectors_in_order(true).last(), Some(&0));
        assert_eq!(sectors_in_order(false).first(), Some(&0));
    }
}
