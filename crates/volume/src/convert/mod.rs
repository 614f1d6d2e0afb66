//! Conversion between LUKS1 and LUKS2 in place.
//!
//! LUKS2's copies take the first 32 KiB, where LUKS1 has its first keyslot. To LUKS2, all keyslots are first moved up,
//! one at a time, while the header is LUKS1 ([`shift`]); then one sector makes it LUKS2. To LUKS1, one sector makes it
//! LUKS1, and then all keyslots are moved down. The areas are where cryptsetup would put them. A power cut leaves a
//! LUKS1 or a LUKS2 volume that every passphrase opens; a keyslot may have the number of a free one until the
//! conversion is repeated or finished. See docs/decisions/luks-headers.md.

mod error;
mod gaps;
mod shift;
mod to_luks1;
mod to_luks2;

pub use error::ConvertError;
pub use gaps::Metadata as ForeignMetadata;

use crate::header_device::HeaderDevice;
use crate::volume::Volume;
use std::io;

/// A conversion that is possible.
#[derive(Debug)]
pub struct Conversion {
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    ToLuks1(Box<to_luks1::Plan>),
    ToLuks2(Box<to_luks2::Plan>),
}

impl Conversion {
    /// Checks whether `volume` can be converted to this version, 1 or 2. Writes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the other format cannot have the header, or if it has that version already.
    pub fn new(volume: &Volume, version: u32) -> Result<Self, ConvertError> {
        let plan = match (volume, version) {
            (Volume::Luks1(luks1), 2) => Plan::ToLuks2(Box::new(to_luks2::Plan::new(luks1)?)),
            (Volume::Luks2(luks2), 1) => Plan::ToLuks1(Box::new(to_luks1::Plan::new(luks2)?)),
            (volume, 1 | 2) => return Err(ConvertError::SameVersion(volume.version())),
            (_, version) => return Err(ConvertError::UnknownVersion(version)),
        };
        Ok(Self { plan })
    }

    /// Returns the minimum length of the header device, in bytes.
    pub fn header_len(&self) -> u64 {
        match &self.plan {
            Plan::ToLuks1(_) => 0,
            Plan::ToLuks2(plan) => plan.header_len(),
        }
    }

    /// Whether a power cut may lose a keyslot: all eight are in use, and there is no space to move them by.
    pub fn may_lose_keyslot(&self) -> bool {
        match &self.plan {
            Plan::ToLuks1(_) => false,
            Plan::ToLuks2(plan) => plan.may_lose_keyslot(),
        }
    }

    /// Searches the bytes that the conversion overwrites, and that belong to no part of the header, for metadata of
    /// other programs, which would be lost.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be read.
    pub fn find_foreign_metadata(&self, device: &dyn HeaderDevice) -> io::Result<Option<ForeignMetadata>> {
        let (region, own) = match &self.plan {
            Plan::ToLuks1(plan) => plan.parts(),
            Plan::ToLuks2(plan) => plan.parts(),
        };
        gaps::find(device, &region, own)
    }

    /// Names of what the other format does not have, and the conversion drops.
    pub fn loses(&self) -> Vec<&'static str> {
        match &self.plan {
            Plan::ToLuks1(plan) => plan.loses(),
            Plan::ToLuks2(_) => Vec::new(),
        }
    }

    /// Converts. The caller holds the header's lock since loading the volume.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be read or written; it then has a volume of the old or the new version.
    pub fn execute(self, device: &dyn HeaderDevice) -> Result<Volume, ConvertError> {
        match self.plan {
            Plan::ToLuks1(plan) => plan.execute(device)?,
            Plan::ToLuks2(plan) => plan.execute(device)?,
        }
        Ok(Volume::load(device)?)
    }
}
