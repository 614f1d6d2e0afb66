//! Changes to the header of any format.
//!
//! The caller holds the header's exclusive lock. Each change fails with [`CommitError::HeaderChanged`] before it writes
//! unless the device has the loaded header.
//!
//! [`CommitError::HeaderChanged`]: crate::CommitError::HeaderChanged

use super::Volume;
use crate::edit::{EditError, KeyslotStatus, NewKeyslot};
use crate::header_device::HeaderDevice;
use crate::pbkdf::KdfKind;
use crate::secret::Secret;
use inlock_cipher::VolumeKey;

impl Volume {
    /// Returns the defaults of a new keyslot: Argon2id for LUKS2, PBKDF2 for LUKS1.
    pub fn new_keyslot(&self) -> NewKeyslot {
        match self {
            Self::Luks1(_) => NewKeyslot::new(KdfKind::Pbkdf2),
            Self::Luks2(_) => NewKeyslot::default(),
        }
    }

    /// Adds a keyslot that `passphrase` opens, and returns its number. `key` is the volume key. Takes seconds and up to
    /// gigabytes of memory.
    ///
    /// # Errors
    ///
    /// Fails before it writes if the key is not the volume key, or if there is no keyslot or space left; later, only if
    /// the device cannot be written. The header is the old or the new one at any time.
    pub fn add_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        match self {
            Self::Luks1(luks1) => luks1.add_keyslot(device, key, passphrase, new),
            Self::Luks2(luks2) => luks2.add_keyslot(device, key, passphrase, new),
        }
    }

    /// Adds a keyslot that holds `key`, which is not the volume key and opens no segment (`--unbound`).
    ///
    /// # Errors
    ///
    /// Fails if the volume is LUKS1, or as [`Volume::add_keyslot`].
    pub fn add_unbound_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        match self {
            Self::Luks1(_) => Err(EditError::NeedsLuks2("an unbound keyslot")),
            Self::Luks2(luks2) => luks2.add_unbound_keyslot(device, key, passphrase, new),
        }
    }

    /// Gives a keyslot another passphrase, key derivation or cipher (`luksChangeKey`, `luksConvertKey`), and returns
    /// its number afterwards. `key` is the key that it holds. [`NewKeyslot::number`] may be its own number or that of a
    /// free keyslot; `None` keeps the number with LUKS2, and takes the first free keyslot with LUKS1.
    ///
    /// The new key gets an area of its own, and then the old one is overwritten: a power cut leaves the old passphrase,
    /// the new one, or both. Without space for that, the change is refused unless [`NewKeyslot::may_overwrite`] is set.
    ///
    /// # Errors
    ///
    /// Fails before it writes if the key is not that of the keyslot, or if there is no space. After
    /// [`EditError::NotOverwritten`] both passphrases may open the volume.
    pub fn change_keyslot(
        &mut self,
        device: &dyn HeaderDevice,
        number: u32,
        key: &VolumeKey,
        passphrase: &Secret,
        new: &NewKeyslot,
    ) -> Result<u32, EditError> {
        match self {
            Self::Luks1(luks1) => luks1.change_keyslot(device, number, key, passphrase, new),
            Self::Luks2(luks2) => luks2.change_keyslot(device, number, key, passphrase, new),
        }
    }

    /// Removes a keyslot. Its key material is overwritten, and that is durable, before the header is changed and `Ok`
    /// returned. Does not check whether another keyslot is left.
    ///
    /// # Errors
    ///
    /// Fails if the keyslot is not active, or if the device cannot be written.
    pub fn kill_keyslot(&mut self, device: &dyn HeaderDevice, number: u32) -> Result<(), EditError> {
        match self {
            Self::Luks1(luks1) => luks1.kill_keyslot(device, number),
            Self::Luks2(luks2) => luks2.kill_keyslot(device, number),
        }
    }

    /// Removes all keyslots, as [`Volume::kill_keyslot`]. Only a backup of the header opens the volume afterwards.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be written.
    pub fn erase_keyslots(&mut self, device: &dyn HeaderDevice) -> Result<(), EditError> {
        match self {
            Self::Luks1(luks1) => luks1.erase_keyslots(device),
            Self::Luks2(luks2) => luks2.erase_keyslots(device),
        }
    }

    /// Sets the UUID; `None`: a random one.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a UUID, or if the device cannot be written.
    pub fn set_uuid(&mut self, device: &dyn HeaderDevice, uuid: Option<&str>) -> Result<(), EditError> {
        match self {
            Self::Luks1(luks1) => luks1.set_uuid(device, uuid),
            Self::Luks2(luks2) => luks2.set_uuid(device, uuid),
        }
    }

    /// Returns the state of a keyslot number.
    pub fn keyslot_status(&self, number: u32) -> KeyslotStatus {
        match self {
            Self::Luks1(luks1) => luks1.keyslot_status(number),
            Self::Luks2(luks2) => luks2.keyslot_status(number),
        }
    }
}
