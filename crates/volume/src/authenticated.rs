//! The payload of a LUKS2 volume with integrity protection.

use inlock_cipher::{Aead, AeadError, AeadSpec, DataUnitSize, IvNumbering, Sector, VolumeKey};

/// The only segment of a volume with integrity protection: a dm-integrity volume, whose tags are the tuples of an AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthenticatedSegment {
    /// The AEAD.
    pub spec: AeadSpec,
    /// Size of a data unit, which is a block of the dm-integrity volume.
    pub unit: DataUnitSize,
    /// First sector of the dm-integrity volume on the data device.
    pub data_offset: Sector,
    /// Added to the number of every sector before an IV is made of it.
    pub iv_offset: Sector,
}

impl AuthenticatedSegment {
    /// Describes a segment whose IVs count from 0.
    pub fn new(spec: AeadSpec, unit: DataUnitSize, data_offset: Sector) -> Self {
        Self { spec, unit, data_offset, iv_offset: Sector(0) }
    }

    /// Returns the AEAD under the volume key.
    ///
    /// # Errors
    ///
    /// As [`Aead::new`].
    pub fn aead(&self, key: &VolumeKey) -> Result<Aead, AeadError> {
        Aead::new(&self.spec, key.as_bytes(), self.unit, IvNumbering::Sectors, self.iv_offset)
    }
}
