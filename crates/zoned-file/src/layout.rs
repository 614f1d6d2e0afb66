//! Layout of a zoned file: number and kinds of zones, and the limits of their use.

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
    /// Writes to whole blocks of some other length.
    #[error("a write granularity of {0} bytes is not a power of two from 512 to 65536")]
    Granularity(u32),
    /// Zones of that length.
    #[error("a zone length of {len} bytes is not a power of two of at least {least}")]
    ZoneLen {
        /// The length.
        len: u64,
        /// The least that it can be.
        least: u64,
    },
    /// More or less than a zone holds.
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
    /// The length of the file.
    #[error("a length of {len} bytes is not a multiple of the write granularity {granularity}, or not above zero")]
    Len {
        /// The length.
        len: u64,
        /// The write granularity.
        granularity: u32,
    },
    /// Too many zones.
    #[error("{zones} zones are more than the {most} that a zoned file can have")]
    TooMany {
        /// Their number.
        zones: u64,
        /// The maximum number.
        most: u32,
    },
    /// No zone is left that is not conventional.
    #[error("of {zones} zones {conventional} are conventional: none is left for writes in order")]
    Conventional {
        /// How many zones there are.
        zones: u32,
        /// Number of conventional ones.
        conventional: u32,
    },
    /// More may be open than active.
    #[error(
        "{max_open} open zones are more than the {max_active} active ones that are allowed, and an open zone is active"
    )]
    OpenAboveActive {
        /// The limit of open zones.
        max_open: u32,
        /// The limit of active zones.
        max_active: u32,
    },
}

impl ZonedLayout {
    /// Sequential zones only, with their whole length as capacity, no limits, and blocks of 4096 bytes.
    pub fn new(len: u64, zone_len: u64) -> Self {
        let write_granularity = 4096;
        Self { len, zone_len, capacity: zone_len, conventional: 0, max_open: 0, max_active: 0, write_granularity }
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    ///
    /// Returns the first rule that the layout breaks.
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
        // The kernel counts bytes of files in 63 bits; what marks the file's end needs some too.
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

    /// How many zones there are.
    pub fn zones(&self) -> u32 {
        self.len.div_ceil(self.zone_len).min(u64::from(u32::MAX)) as u32
    }

    /// The bytes of a zone.
    pub fn range(&self, zone: u32) -> Range<u64> {
        let start = u64::from(zone) * self.zone_len;
        start..self.len.min(start + self.zone_len)
    }

    /// How many bytes of a zone can be written.
    pub fn capacity_of(&self, zone: u32) -> u64 {
        let range = self.range(zone);
        let len = range.end - range.start;
        if self.kind(zone) == ZoneKind::Conventional { len } else { len.min(self.capacity) }
    }

    /// Kind of a zone.
    pub fn kind(&self, zone: u32) -> ZoneKind {
        if zone < self.conventional { ZoneKind::Conventional } else { ZoneKind::SequentialRequired }
    }

    /// The zone that holds byte `offset`, which is one of the file's.
    pub(crate) fn zone_of(&self, offset: u64) -> u32 {
        debug_assert!(offset < self.len);
        (offset / self.zone_len) as u32
    }

    /// Where the conventional zones end.
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
    fn check_of_an_impossible_layout_names_its_numbers() {
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
