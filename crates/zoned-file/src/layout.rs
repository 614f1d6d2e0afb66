//! Layout of a zoned file: number and types of zones, and their limits.

use inlock_engine::zoned::{ZoneKind, ZoneLimits};
use std::ops::Range;

/// Zones of a zoned file. The conventional ones come first; the last zone may be shorter than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedLayout {
    /// Length of all zones in bytes.
    pub len: u64,
    /// Distance of the starts of consecutive zones, a power of two.
    pub zone_len: u64,
    /// Number of bytes of a sequential zone that can be written.
    pub capacity: u64,
    /// Number of conventional zones.
    pub conventional: u32,
    /// Maximum number of open zones; 0: all.
    pub max_open: u32,
    /// Maximum number of active zones, open or closed; 0: all.
    pub max_active: u32,
    /// Writes to sequential zones begin and end on multiples of this, a power of two from 512 to 65536.
    pub write_granularity: u32,
}

/// A layout is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The write granularity is not a power of two in range.
    #[error("a write granularity of {0} bytes is not a power of two from 512 to 65536")]
    Granularity(u32),
    /// The zone length is not a power of two in range.
    #[error("a zone length of {len} bytes is not a power of two of at least {least}")]
    ZoneLen {
        /// The length.
        len: u64,
        /// The minimum length.
        least: u64,
    },
    /// The capacity is not a multiple of the write granularity, or exceeds the zone.
    #[error(
        "a zone capacity of {capacity} bytes is not a multiple of {granularity} from {granularity} to the zone length {zone_len}"
    )]
    Capacity {
        /// The capacity.
        capacity: u64,
        /// Length of a zone.
        zone_len: u64,
        /// The write granularity.
        granularity: u32,
    },
    /// The length is not a multiple of the write granularity, or is out of range.
    #[error("a length of {len} bytes is not a multiple of the write granularity {granularity}, or not above zero")]
    Len {
        /// The length.
        len: u64,
        /// The write granularity.
        granularity: u32,
    },
    /// Too many zones.
    #[error("{zones} zones exceed the maximum of {most}")]
    TooMany {
        /// Their number.
        zones: u64,
        /// The maximum number.
        most: u32,
    },
    /// No zone is sequential.
    #[error("{conventional} of {zones} zones are conventional, but at least one must be sequential")]
    Conventional {
        /// Number of zones.
        zones: u32,
        /// Number of conventional ones.
        conventional: u32,
    },
    /// The limit of open zones exceeds that of active ones.
    #[error("a maximum of {max_open} open zones exceeds that of {max_active} active ones, which include open zones")]
    OpenAboveActive {
        /// The limit of open zones.
        max_open: u32,
        /// The limit of active zones.
        max_active: u32,
    },
}

impl ZonedLayout {
    /// Returns a layout of sequential zones only, with their whole length as capacity, no limits, and blocks of 4096
    /// bytes.
    pub fn new(len: u64, zone_len: u64) -> Self {
        let write_granularity = 4096;
        Self { len, zone_len, capacity: zone_len, conventional: 0, max_open: 0, max_active: 0, write_granularity }
    }

    /// Checks that the values fit together.
    ///
    /// # Errors
    ///
    /// Fails with the first violated rule.
    pub fn check(&self) -> Result<(), LayoutError> {
        let granularity = self.write_granularity;
        if !granularity.is_power_of_two() || !(512..=65536).contains(&granularity) {
            return Err(LayoutError::Granularity(granularity));
        }
        let multiple = |n: u64| n > 0 && n.is_multiple_of(u64::from(granularity));
        let (len, zone_len, capacity) = (self.len, self.zone_len, self.capacity);
        let least = u64::from(granularity);
        if !zone_len.is_power_of_two() || zone_len < least {
            return Err(LayoutError::ZoneLen { len: zone_len, least });
        }
        if !multiple(capacity) || capacity > zone_len {
            return Err(LayoutError::Capacity { capacity, zone_len, granularity });
        }
        // The kernel's file offsets have 63 bits; the mark at the end of the file needs space as well.
        if !multiple(len) || len > i64::MAX as u64 / 2 {
            return Err(LayoutError::Len { len, granularity });
        }
        let zones = len.div_ceil(zone_len);
        if zones > u64::from(MOST_ZONES) {
            return Err(LayoutError::TooMany { zones, most: MOST_ZONES });
        }
        let (zones, conventional) = (self.zones(), self.conventional);
        if conventional >= zones {
            return Err(LayoutError::Conventional { zones, conventional });
        }
        let (max_open, max_active) = (self.max_open, self.max_active);
        if max_active != 0 && max_open > max_active {
            return Err(LayoutError::OpenAboveActive { max_open, max_active });
        }
        Ok(())
    }

    /// Returns the number of zones.
    pub fn zones(&self) -> u32 {
        self.len.div_ceil(self.zone_len).min(u64::from(u32::MAX)) as u32
    }

    /// Returns the bytes of a zone.
    pub fn range(&self, zone: u32) -> Range<u64> {
        let start = u64::from(zone) * self.zone_len;
        start..self.len.min(start + self.zone_len)
    }

    /// Returns the number of bytes of a zone that can be written.
    pub fn capacity_of(&self, zone: u32) -> u64 {
        let range = self.range(zone);
        let len = range.end - range.start;
        if self.kind(zone) == ZoneKind::Conventional { len } else { len.min(self.capacity) }
    }

    /// Returns the type of a zone.
    pub fn kind(&self, zone: u32) -> ZoneKind {
        if zone < self.conventional { ZoneKind::Conventional } else { ZoneKind::SequentialRequired }
    }

    /// Returns the zone with byte `offset`, which is within the file.
    pub(crate) fn zone_of(&self, offset: u64) -> u32 {
        debug_assert!(offset < self.len);
        (offset / self.zone_len) as u32
    }

    /// Returns the end of the conventional zones.
    pub(crate) fn conventional_end(&self) -> u64 {
        u64::from(self.conventional) * self.zone_len
    }

    pub(crate) fn limits(&self) -> ZoneLimits {
        let mut limits = ZoneLimits::new(self.zone_len, self.zones());
        limits.max_open = self.max_open;
        limits.max_active = self.max_active;
        limits.write_granularity = self.write_granularity;
        limits
    }
}

/// Maximum number of zones. Limits the tables of a file to 100 MiB for every header.
const MOST_ZONES: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_impossible_layout_has_its_numbers() {
        let good = ZonedLayout { capacity: 3 << 18, conventional: 2, ..ZonedLayout::new((7 << 20) + 4096, 1 << 20) };
        assert_eq!(good.check(), Ok(()));
        assert_eq!((good.zones(), good.range(7)), (8, 7 << 20..(7 << 20) + 4096));
        assert_eq!((good.capacity_of(1), good.capacity_of(2), good.capacity_of(7)), (1 << 20, 3 << 18, 4096));
        for (bad, error) in [
            (ZonedLayout { write_granularity: 0, ..good }, LayoutError::Granularity(0)),
            (ZonedLayout { write_granularity: 256, ..good }, LayoutError::Granularity(256)),
            (ZonedLayout { write_granularity: 5000, ..good }, LayoutError::Granularity(5000)),
            (ZonedLayout { write_granularity: 1 << 17, ..good }, LayoutError::Granularity(1 << 17)),
            (ZonedLayout { zone_len: 0, ..good }, LayoutError::ZoneLen { len: 0, least: 4096 }),
            (ZonedLayout { zone_len: 3 << 19, ..good }, LayoutError::ZoneLen { len: 3 << 19, least: 4096 }),
            (ZonedLayout { zone_len: 2048, ..good }, LayoutError::ZoneLen { len: 2048, least: 4096 }),
            (
                ZonedLayout { capacity: 2 << 20, ..good },
                LayoutError::Capacity { capacity: 2 << 20, zone_len: 1 << 20, granularity: 4096 },
            ),
            (
                ZonedLayout { capacity: 0, ..good },
                LayoutError::Capacity { capacity: 0, zone_len: 1 << 20, granularity: 4096 },
            ),
            (
                ZonedLayout { capacity: 4097, ..good },
                LayoutError::Capacity { capacity: 4097, zone_len: 1 << 20, granularity: 4096 },
            ),
            (ZonedLayout { len: 0, ..good }, LayoutError::Len { len: 0, granularity: 4096 }),
            (ZonedLayout { len: 100, ..good }, LayoutError::Len { len: 100, granularity: 4096 }),
            (ZonedLayout { len: 1 << 63, ..good }, LayoutError::Len { len: 1 << 63, granularity: 4096 }),
            (
                ZonedLayout { zone_len: 4096, capacity: 4096, len: 1 << 40, ..good },
                LayoutError::TooMany { zones: 1 << 28, most: 1 << 20 },
            ),
            (ZonedLayout { conventional: 8, ..good }, LayoutError::Conventional { zones: 8, conventional: 8 }),
            (
                ZonedLayout { max_open: 3, max_active: 2, ..good },
                LayoutError::OpenAboveActive { max_open: 3, max_active: 2 },
            ),
        ] {
            assert_eq!(bad.check(), Err(error), "{bad:?}");
        }
    }
}
