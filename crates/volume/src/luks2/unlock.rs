//! Unlocking.
use super::Luks2;
use super::metadata::Metadata;
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::secret::Secret;
use crate::unlock::{UnlockOptions, Unlocked};
use inlock_cipher::VolumeKey;
pub(super) fn order_of_trial(_: &Metadata) -> Vec<u32> { Vec::new() }
impl Luks2 {
    /// Looks for a keyslot that `passphrase` opens, and verifies the key in it.
    pub fn unlock(&self, _: &dyn HeaderDevice, _: &Secret, _: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        Err(UnlockError::NoUsableKeyslot)
    }
    /// Takes a volume key that the caller has, after verifying it.
    pub fn unlock_with_volume_key(&self, _: VolumeKey, _: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        Err(UnlockError::NoUsableKeyslot)
    }
}
