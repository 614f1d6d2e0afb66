//! Segments of a volume: the lines of a device-mapper table, without their devices.

use crate::{CipherSpec, DataUnitSize, Sector};

/// A range of a volume with its cipher and the location of its ciphertext.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First sector in the volume.
    pub start: Sector,
    /// Length; `None`: to the end of the backing store.
    pub sectors: Option<u64>,
    /// First sector of the ciphertext in the backing store.
    pub data_offset: Sector,
    /// Added to the number of every sector before the IV is made (dm-crypt `iv_offset`, LUKS2 `iv_tweak`).
    pub iv_offset: Sector,
    /// Size of a data unit.
    pub unit: DataUnitSize,
    /// Whether the IV counts data units (dm-crypt `iv_large_sectors`) instead of sectors of 512 bytes.
    pub large_iv: bool,
    /// The cipher; `None`: stored unencrypted (a linear segment, or `--type raw`).
    pub cipher: Option<CipherSpec>,
}

impl Segment {
    /// Returns a segment over a whole backing store, in data units of `unit`. Without a cipher, data is stored as it
    /// is. Set the public fields for another range.
    pub const fn whole(cipher: Option<CipherSpec>, unit: DataUnitSize) -> Self {
        let (start, data_offset, iv_offset) = (Sector(0), Sector(0), Sector(0));
        Self { start, sectors: None, data_offset, iv_offset, unit, large_iv: false, cipher }
    }
}

/// Type of a device-mapper target. A new type is a breaking change, so that no request path can miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetType {
    /// Encrypted data.
    Crypt,
    /// Unencrypted data.
    Linear,
    /// Zeroes; writes are dropped.
    Zero,
    /// Every request fails.
    Error,
}

impl TargetType {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::Crypt, Self::Linear, Self::Zero, Self::Error];

    /// Returns its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crypt => "crypt",
            Self::Linear => "linear",
            Self::Zero => "zero",
            Self::Error => "error",
        }
    }

    /// Whether a device stores the data of such a target.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Crypt | Self::Linear)
    }

    /// Returns the type with this name in a table.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}
