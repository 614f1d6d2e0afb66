//! A volume with a header, of whichever format: what the command line and library users hold.

use crate::error::{DataDeviceError, LoadError, LoadWarning, UnlockError};
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderPolicy;
use crate::luks1::{self, Luks1};
use crate::luks2::{self, Luks2};
use crate::secret::Secret;
use crate::unlock::{UnlockOptions, Unlocked};
use inlock_cipher::{SECTOR_SIZE, Segment, VolumeKey};
use std::fmt;

/// A loaded header. Nothing was unlocked, and loading wrote nothing.
#[derive(Clone, Debug)]
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
    /// A damaged first copy of a LUKS2 header is replaced by the second, in memory only; [`Volume::warnings`] says so.
    pub fn load(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        match luks1::probe(device)? {
            true => Luks1::load(device).map(Self::from),
            false => Luks2::load(device).map(Self::from),
        }
    }

    /// Checks that the volume is what `policy` allows and requires, as unlocking it does before it derives a key: to be
    /// asked before anybody is asked for a passphrase.
    ///
    /// # Errors
    ///
    /// Says what of the volume is refused, or that it cannot be served in any case.
    pub fn check_policy(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        Ok(policy.check_header(self.uuid(), &self.segments()?)?)
    }

    /// Looks for a keyslot that `passphrase` opens, and verifies the key in it.
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

    /// Takes a volume key that the caller has, after verifying it. [`Unlocked::keyslot`] is then `u32::MAX`.
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.unlock_with_volume_key(key, options),
            Self::Luks2(luks2) => luks2.unlock_with_volume_key(key, options),
        }
    }

    /// Version of the format: 1 or 2.
    pub fn version(&self) -> u32 {
        match self {
            Self::Luks1(_) => 1,
            Self::Luks2(_) => 2,
        }
    }

    /// The UUID as the header has it.
    pub fn uuid(&self) -> &str {
        match self {
            Self::Luks1(luks1) => luks1.uuid(),
            Self::Luks2(luks2) => luks2.uuid(),
        }
    }

    /// The label; LUKS1 has none.
    pub fn label(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.label(),
        }
    }

    /// The subsystem label; LUKS1 has none.
    pub fn subsystem(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.subsystem(),
        }
    }

    /// What is not as it should be, though the header could be loaded.
    pub fn warnings(&self) -> &[LoadWarning] {
        match self {
            Self::Luks1(_) => &[],
            Self::Luks2(luks2) => luks2.warnings(),
        }
    }

    /// Where the first segment starts on the data device, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(luks1) => u64::from(luks1.payload_offset()) * SECTOR_SIZE,
            Self::Luks2(luks2) => luks2.data_offset(),
        }
    }

    /// The segments as they are served, in order and without gaps: what [`Unlocked::segments`] will be.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.segments(),
            Self::Luks2(luks2) => luks2.segments(),
        }
    }

    /// Checks that a device of `len` bytes can hold the payload. `detached`: it is not the device that the header is
    /// on.
    ///
    /// To be asked before serving: a detached header's payload starts at 0 of its device, so writing to it on the
    /// header's own device would destroy the header.
    pub fn check_data_device(&self, detached: bool, len: u64) -> Result<(), DataDeviceError> {
        if !detached && self.data_offset() == 0 {
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

    /// The LUKS2 metadata as stored; LUKS1 has none.
    pub fn metadata_json(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => Some(luks2.metadata_json()),
        }
    }

    /// The header as text that reads like `cryptsetup luksDump`'s. `device` is the path that LUKS1's first line names.
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
