//! A volume with a header, of any format.

use crate::error::{DataDeviceError, LoadError, LoadWarning, UnlockError};
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderPolicy;
use crate::luks1::{self, Luks1};
use crate::luks2::{self, Luks2};
use crate::secret::Secret;
use crate::unlock::{UnlockOptions, Unlocked};
use inlock_cipher::{SECTOR_SIZE, Segment, VolumeKey};
use std::fmt;

/// Location of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderLocation {
    /// On the device of the payload.
    DataDevice,
    /// On a device or in a file of its own.
    Detached,
}

/// A loaded header. Loading unlocks nothing and writes nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Volume {
    /// LUKS version 1.
    Luks1(Box<Luks1>),
    /// LUKS version 2.
    Luks2(Box<Luks2>),
}

impl From<Luks1> for Volume {
    fn from(luks1: Luks1) -> Self {
        Self::Luks1(Box::new(luks1))
    }
}

impl From<Luks2> for Volume {
    fn from(luks2: Luks2) -> Self {
        Self::Luks2(Box::new(luks2))
    }
}

impl Volume {
    /// Reads and checks the header on `device`.
    ///
    /// If the first copy of a LUKS2 header is damaged, the second one is used, with an entry in [`Volume::warnings`].
    ///
    /// # Errors
    ///
    /// Fails if the device has no LUKS header, or one that violates its specification.
    pub fn load(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        match luks1::probe(device)? {
            true => Luks1::load(device).map(Self::from),
            false => Luks2::load(device).map(Self::from),
        }
    }

    /// Checks the volume against `policy`, as unlocking does before it derives a key: for a check before the user is
    /// asked for a passphrase.
    ///
    /// # Errors
    ///
    /// Fails if the policy refuses the volume, or if it cannot be unlocked at all.
    pub fn check_policy(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        Ok(policy.check_header(self.uuid(), &self.segments()?)?)
    }

    /// Opens a keyslot with `passphrase` and verifies its key. Takes seconds, and up to gigabytes of memory, within the
    /// limits of the options.
    ///
    /// # Errors
    ///
    /// Fails if no keyslot opens, if the policy of the options refuses the volume, or if its keyslots cost too much.
    pub fn unlock(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<Unlocked, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.unlock(device, passphrase, options),
            Self::Luks2(luks2) => luks2.unlock(device, passphrase, options),
        }
    }

    /// Unlocks with the caller's volume key, after verifying it.
    ///
    /// # Errors
    ///
    /// Fails if the header's digest does not confirm the key, or as [`Volume::unlock`].
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.unlock_with_volume_key(key, options),
            Self::Luks2(luks2) => luks2.unlock_with_volume_key(key, options),
        }
    }

    /// Returns the version of the format: 1 or 2.
    pub fn version(&self) -> u32 {
        match self {
            Self::Luks1(_) => 1,
            Self::Luks2(_) => 2,
        }
    }

    /// Returns the UUID as the header has it.
    pub fn uuid(&self) -> &str {
        match self {
            Self::Luks1(luks1) => luks1.uuid(),
            Self::Luks2(luks2) => luks2.uuid(),
        }
    }

    /// Returns the label; LUKS1 has none.
    pub fn label(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.label(),
        }
    }

    /// Returns the subsystem label; LUKS1 has none.
    pub fn subsystem(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.subsystem(),
        }
    }

    /// Irregularities that did not prevent loading the header.
    pub fn warnings(&self) -> &[LoadWarning] {
        match self {
            Self::Luks1(_) => &[],
            Self::Luks2(luks2) => luks2.warnings(),
        }
    }

    /// Returns the start of the first segment on the data device, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(luks1) => u64::from(luks1.payload_offset()) * SECTOR_SIZE,
            Self::Luks2(luks2) => luks2.data_offset(),
        }
    }

    /// Returns the segments in order and without gaps, as in [`Unlocked::segments`].
    ///
    /// # Errors
    ///
    /// Fails if a segment cannot be used, for example because its cipher is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.segments(),
            Self::Luks2(luks2) => luks2.segments(),
        }
    }

    /// Checks that a data device of `len` bytes can have the payload. Call it before using the payload.
    ///
    /// # Errors
    ///
    /// Fails if the device is too short, or if the header is on it although it was created as a detached one: the
    /// payload then starts at byte 0, and a write would destroy the header.
    pub fn check_data_device(&self, header: HeaderLocation, len: u64) -> Result<(), DataDeviceError> {
        if header == HeaderLocation::DataDevice && self.data_offset() == 0 {
            return Err(DataDeviceError::Detached);
        }
        // A segment without a length has at least one sector.
        let needed = match self {
            Self::Luks1(_) => self.data_offset() + SECTOR_SIZE,
            Self::Luks2(luks2) => luks2.data_end(),
        };
        if needed > len { Err(DataDeviceError::TooSmall { needed, len }) } else { Ok(()) }
    }

    /// Numbers of the keyslots that hold a key, in the order in which they are tried.
    pub fn active_keyslots(&self) -> Vec<u32> {
        match self {
            Self::Luks1(luks1) => luks1.active_keyslots(),
            Self::Luks2(luks2) => luks2.active_keyslots(),
        }
    }

    /// Returns the LUKS2 metadata as stored; LUKS1 has none.
    pub fn metadata_json(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => Some(luks2.metadata_json()),
        }
    }

    /// Displays the header like `cryptsetup luksDump`. `device` is the path in LUKS1's first line.
    pub fn dump<'a>(&'a self, device: &'a str) -> impl fmt::Display + 'a {
        Dump { volume: self, device }
    }
}

struct Dump<'a> {
    volume: &'a Volume,
    device: &'a str,
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume {
            Volume::Luks1(luks1) => luks1::dump::write(luks1, self.device, f),
            Volume::Luks2(luks2) => luks2::dump::write(luks2, f),
        }
    }
}
