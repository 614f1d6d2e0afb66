//! Sectors, data units and IV numbers.

use std::fmt;

/// Bytes in a sector. Every dm-crypt and LUKS offset counts sectors of this size, for every size of data unit.
pub const SECTOR_SIZE: u64 = 512;

/// Maximum number of data units in a call of an authenticated cipher: 1 MiB in the smallest ones.
pub(crate) const MAX_AEAD_UNITS: usize = 2048;

/// A position or a length in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

impl Sector {
    /// Returns the position in bytes; `None` if it does not fit 64 bits.
    pub fn to_bytes(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_SIZE)
    }
}

/// The number of a data unit that the IV mode encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IvNumber(pub u64);

impl IvNumber {
    /// Returns the number `units` units later, each of which adds `step`.
    pub(crate) fn after(self, units: usize, step: u64) -> Self {
        Self(self.0.wrapping_add(step.wrapping_mul(units as u64)))
    }
}

/// The quantity that IV numbers count.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IvNumbering {
    /// Sectors of 512 bytes: the number grows by the sectors of a unit.
    #[default]
    Sectors,
    /// Data units: the number grows by 1 (dm-crypt's `iv_large_sectors`).
    DataUnits,
}

impl IvNumbering {
    /// Returns the difference of the numbers of consecutive units.
    pub fn step(self, unit: DataUnitSize) -> u64 {
        match self {
            Self::Sectors => unit.sectors(),
            Self::DataUnits => 1,
        }
    }
}

/// dm-crypt's flag `iv_large_sectors`: with it, numbers count data units.
impl From<bool> for IvNumbering {
    fn from(large_iv: bool) -> Self {
        if large_iv { Self::DataUnits } else { Self::Sectors }
    }
}

/// Size of a data unit, which is encrypted under one IV: a power of two from 512 bytes to 64 KiB. That is
/// 4096 cipher blocks at most, far below the 2^20 that IEEE 1619 allows under one tweak.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataUnitSize {
    log2: u8,
}

impl DataUnitSize {
    /// 512 bytes, the size of every keyslot area and of a LUKS1 payload.
    pub const SECTOR: Self = Self { log2: 9 };
    /// 4096 bytes, the maximum of LUKS2.
    pub const LUKS_MAX: Self = Self { log2: 12 };
    /// 64 KiB, the maximum of a plain volume.
    pub const MAX: Self = Self { log2: 16 };

    /// Returns a data unit of `bytes`.
    ///
    /// # Errors
    ///
    /// Fails unless `bytes` is a power of two from 512 to 65536.
    pub fn new(bytes: u32) -> Result<Self, InvalidDataUnitSize> {
        if bytes.is_power_of_two() && (512..=65536).contains(&bytes) {
            Ok(Self { log2: bytes.trailing_zeros() as u8 })
        } else {
            Err(InvalidDataUnitSize { bytes })
        }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> usize {
        1 << self.log2
    }

    /// Returns the size as a power of two: 9 to 16.
    pub fn log2(self) -> u32 {
        u32::from(self.log2)
    }

    /// Returns the number of 512-byte sectors in a unit.
    pub fn sectors(self) -> u64 {
        1 << (self.log2 - 9)
    }
}

impl fmt::Debug for DataUnitSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataUnitSize({})", self.bytes())
    }
}

/// The size is not a power of two from 512 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data unit size {bytes} is not a power of two from 512 to 65536")]
pub struct InvalidDataUnitSize {
    /// The requested size.
    pub bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_unit_size_is_a_power_of_two_from_512_to_65536() {
        let sizes: Vec<u32> = (0..=1 << 17).filter(|bytes| DataUnitSize::new(*bytes).is_ok()).collect();
        assert_eq!(sizes, [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]);
        assert_eq!(DataUnitSize::new(1 << 24), Err(InvalidDataUnitSize { bytes: 1 << 24 }));
        assert!(DataUnitSize::new(u32::MAX).is_err());
        let text = InvalidDataUnitSize { bytes: 768 }.to_string();
        assert_eq!(text, "data unit size 768 is not a power of two from 512 to 65536");
        assert!(DataUnitSize::MAX.bytes() / 16 <= 1 << 20);
    }
}
