//! Checks whether a volume fits zoned storage: data that start and end with zones, a header in conventional zones, data
//! units that divide the write granularity.
//!
//! Pure arithmetic; the caller knows the zones. An error has the numbers that fit, in sectors of 512 bytes if options
//! and tables count in them.

use inlock_cipher::{DataUnitSize, SECTOR_SIZE, Segment};
use std::fmt;

/// Geometry of zoned storage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// Length of the storage.
    pub len: u64,
    /// Distance of the starts of two zones. The last zone may be shorter.
    pub zone_len: u64,
    /// End of the conventional zones at the start.
    pub conventional: u64,
    /// Writes to sequential zones begin and end on multiples of this.
    pub write_granularity: u32,
}

/// A volume does not fit the zones; with values that would fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneFault {
    /// A part of the volume does not start with a zone, counted from the volume's start.
    #[error("it starts at sector {at} of the volume, inside a zone of {zone} sectors: {fits}")]
    Start {
        /// Start of the part, in sectors.
        at: u64,
        /// Sectors of a zone.
        zone: u64,
        /// Values that fit, in sectors.
        fits: Fits,
    },
    /// The data start inside a zone.
    #[error("the data start at sector {at}, inside a zone of {zone} sectors: {fits}")]
    Offset {
        /// Start of the data, in sectors.
        at: u64,
        /// Sectors of a zone.
        zone: u64,
        /// Values that fit, in sectors.
        fits: Fits,
    },
    /// The data end inside a zone.
    #[error("{sectors} sectors of data end inside a zone of {zone} sectors: {fits}")]
    Length {
        /// Length of the data, in sectors.
        sectors: u64,
        /// Sectors of a zone.
        zone: u64,
        /// Values that fit, in sectors.
        fits: Fits,
    },
    /// The data unit does not divide the write granularity.
    #[error("data units of {unit} bytes do not divide the write granularity of {granularity} bytes: {fits}")]
    Unit {
        /// Bytes of a data unit.
        unit: usize,
        /// The write granularity, in bytes.
        granularity: u32,
        /// Values that fit, in bytes.
        fits: Fits,
    },
    /// A header, which is rewritten in place, would extend into a sequential zone.
    #[error("a header takes the first {needed} bytes, but only the first {conventional} are in conventional zones")]
    Header {
        /// Length of the header in bytes, up to the end of a zone.
        needed: u64,
        /// Bytes in conventional zones.
        conventional: u64,
    },
}

/// The values next to one that does not fit, if there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fits(pub Option<u64>, pub Option<u64>);

impl fmt::Display for Fits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(Some(below), Some(above)) => write!(f, "{below} or {above} would fit"),
            Self(Some(only), None) | Self(None, Some(only)) => write!(f, "{only} would fit"),
            Self(None, None) => f.write_str("none would fit"),
        }
    }
}

impl Zones {
    /// Checks that a segment starts and ends with zones, and that its data units divide the write granularity.
    ///
    /// # Errors
    ///
    /// Fails with the values that fit.
    pub fn check_segment(&self, segment: &Segment) -> Result<(), ZoneFault> {
        let (zone, len) = (self.zone_sectors(), self.len / SECTOR_SIZE);
        let at = segment.start.0;
        if !at.is_multiple_of(zone) {
            return Err(ZoneFault::Start { at, zone, fits: Self::around(at, zone, u64::MAX) });
        }
        self.check_offset(segment.data_offset.to_bytes().unwrap_or(u64::MAX))?;
        let offset = segment.data_offset.0;
        if let Some(sectors) = segment.sectors
            && let room = len.saturating_sub(offset)
            && !sectors.is_multiple_of(zone)
            && sectors != room
        {
            let Fits(below, above) = Self::around(sectors, zone, room);
            let above = above.or(Some(room).filter(|room| *room > sectors));
            let fits = Fits(below.filter(|below| *below > 0), above);
            return Err(ZoneFault::Length { sectors, zone, fits });
        }
        if segment.cipher.is_some() { self.check_unit(segment.unit) } else { Ok(()) }
    }

    /// Checks that data that start at this byte start with a zone.
    ///
    /// # Errors
    ///
    /// Fails with the values that fit.
    pub fn check_offset(&self, bytes: u64) -> Result<(), ZoneFault> {
        if bytes.is_multiple_of(self.zone_len) {
            return Ok(());
        }
        let (at, zone) = (bytes / SECTOR_SIZE, self.zone_sectors());
        let last = self.len.saturating_sub(1) / SECTOR_SIZE;
        Err(ZoneFault::Offset { at, zone, fits: Self::around(at, zone, last) })
    }

    /// Checks that a header and the space up to the data, `data_offset` bytes together, are in conventional zones.
    ///
    /// # Errors
    ///
    /// Fails if the header reaches into a sequential zone.
    pub fn check_header(&self, data_offset: u64) -> Result<(), ZoneFault> {
        if data_offset <= self.conventional {
            return Ok(());
        }
        Err(ZoneFault::Header { needed: data_offset, conventional: self.conventional })
    }

    /// Returns the start of the data behind a new header on the same storage, in bytes: the next start of a zone. A
    /// header that usually takes `usual` bytes, and at least `least`, is shortened if there are fewer conventional
    /// zones.
    ///
    /// # Errors
    ///
    /// Fails if the header reaches into a sequential zone.
    pub fn place_behind_header(&self, usual: u64, least: u64) -> Result<u64, ZoneFault> {
        let border = |bytes: u64| bytes.div_ceil(self.zone_len).saturating_mul(self.zone_len);
        let conventional = self.conventional / self.zone_len * self.zone_len;
        let offset = border(usual).min(conventional);
        if offset >= least && offset > 0 {
            return Ok(offset);
        }
        Err(ZoneFault::Header { needed: border(least), conventional: self.conventional })
    }

    /// Returns the largest data unit up to `most` that divides the write granularity.
    pub fn largest_unit(&self, most: DataUnitSize) -> DataUnitSize {
        let sizes = (9..=most.log2()).rev().filter_map(|log2| DataUnitSize::new(1 << log2).ok());
        sizes.into_iter().find(|size| self.check_unit(*size).is_ok()).unwrap_or(DataUnitSize::SECTOR)
    }

    /// Checks that data units of this size divide the write granularity.
    ///
    /// # Errors
    ///
    /// Fails with the values that fit.
    pub fn check_unit(&self, unit: DataUnitSize) -> Result<(), ZoneFault> {
        let granularity = self.write_granularity;
        if granularity.is_multiple_of(unit.bytes() as u32) {
            return Ok(());
        }
        let fits = 1 << granularity.trailing_zeros().min(DataUnitSize::MAX.log2());
        let fits = Fits(Some(fits).filter(|fits| *fits >= SECTOR_SIZE), None);
        Err(ZoneFault::Unit { unit: unit.bytes(), granularity, fits })
    }

    fn zone_sectors(&self) -> u64 {
        (self.zone_len / SECTOR_SIZE).max(1)
    }

    /// Returns the multiples of `zone` next to `at`, up to `last`.
    fn around(at: u64, zone: u64, last: u64) -> Fits {
        let below = at / zone * zone;
        let below_last = below.min(last / zone * zone);
        let above = below.checked_add(zone).filter(|above| *above <= last);
        Fits(Some(below_last), above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{CipherSpec, Sector};

    const MIB: u64 = 1 << 20;

    /// Ten zones of 4 MiB, the first three conventional, and one of 1 MiB.
    const ZONES: Zones = Zones { len: 41 * MIB, zone_len: 4 * MIB, conventional: 12 * MIB, write_granularity: 4096 };

    fn segment(start: u64, sectors: Option<u64>, data_offset: u64, unit: u32) -> Segment {
        let mut segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).unwrap());
        (segment.start, segment.sectors, segment.data_offset) = (Sector(start), sectors, Sector(data_offset));
        segment
    }

    #[test]
    fn segment_that_starts_and_ends_with_zones_fits() {
        // Zones have 8192 sectors, the storage 83968.
        for (start, sectors, offset) in [
            (0, None, 0),
            (0, None, 8192),
            (0, Some(8192), 0),
            (8192, Some(16384), 65536),
            (0, Some(83968), 0),
            (0, Some(2048), 81920),
            (0, Some(10240), 73728),
        ] {
            ZONES.check_segment(&segment(start, sectors, offset, 4096)).unwrap();
            ZONES.check_segment(&segment(start, sectors, offset, 512)).unwrap();
        }
    }

    #[test]
    fn segment_that_does_not_fit_names_numbers_that_do() {
        for (start, sectors, offset, unit, told) in [
            (0, None, 32, 512, "the data start at sector 32, inside a zone of 8192 sectors: 0 or 8192 would fit"),
            (0, None, 8193, 512, "start at sector 8193, inside a zone of 8192 sectors: 8192 or 16384 would fit"),
            (0, None, 82000, 512, "start at sector 82000, inside a zone of 8192 sectors: 81920 would fit"),
            (0, Some(8191), 0, 512, "8191 sectors of data end inside a zone of 8192 sectors: 8192 would fit"),
            (0, Some(8193), 0, 512, "8193 sectors of data end inside a zone of 8192 sectors: 8192 or 16384 would fit"),
            (0, Some(83967), 0, 512, "83967 sectors of data end inside a zone of 8192 sectors: 81920 or 83968 would"),
            (0, Some(2047), 81920, 512, "2047 sectors of data end inside a zone of 8192 sectors: 2048 would fit"),
            (8, Some(8192), 0, 512, "it starts at sector 8 of the volume, inside a zone of 8192 sectors: 0 or 8192"),
            (0, None, 0, 8192, "data units of 8192 bytes do not divide the write granularity of 4096 bytes: 4096"),
        ] {
            let fault = ZONES.check_segment(&segment(start, sectors, offset, unit)).unwrap_err().to_string();
            assert!(fault.contains(told), "{fault}, not {told}");
        }
        let odd = Zones { write_granularity: 520, ..ZONES };
        assert!(odd.check_unit(DataUnitSize::SECTOR).unwrap_err().to_string().ends_with("none would fit"));
    }

    #[test]
    fn check_segment_of_extreme_numbers_never_panics() {
        let extremes = [0, 1, 511, 4096, u64::MAX / 512, u64::MAX / 512 + 1, u64::MAX - 1, u64::MAX];
        let zones = [ZONES, Zones { zone_len: 512, ..ZONES }, Zones { zone_len: 1 << 63, ..ZONES }];
        let zones =
            zones.into_iter().flat_map(|zones| [zones, Zones { len: u64::MAX, conventional: u64::MAX, ..zones }]);
        for zones in zones {
            for a in extremes {
                for b in extremes {
                    let _ = zones.check_segment(&segment(a, Some(b), a, 512)).map_err(|fault| fault.to_string());
                    let _ = zones.check_segment(&segment(b, None, a, 512)).map_err(|fault| fault.to_string());
                    let _ = zones.place_behind_header(a, b).map_err(|fault| fault.to_string());
                    let _ = zones.check_header(a);
                }
            }
        }
    }

    #[test]
    fn header_lies_in_conventional_zones() {
        let place = |conventional, zone_len, usual, least| {
            let zones = Zones { conventional: conventional * MIB, zone_len: zone_len * MIB, ..ZONES };
            zones.place_behind_header(usual * MIB, least * MIB).map(|offset| offset / MIB)
        };
        let refused =
            |needed, conventional| Err(ZoneFault::Header { needed: needed * MIB, conventional: conventional * MIB });
        assert_eq!(place(12, 4, 10, 1), Ok(12), "up to the next border");
        assert_eq!(place(12, 4, 8, 1), Ok(8));
        assert_eq!(place(256, 256, 16, 1), Ok(256));
        assert_eq!(place(8, 4, 16, 1), Ok(8), "cut to what there is");
        assert_eq!(place(8, 4, 16, 9), refused(12, 8));
        assert_eq!(place(0, 256, 16, 1), refused(256, 0));
        assert_eq!(place(1, 4, 16, 1), refused(4, 1), "a short zone is not taken for a whole one");
        ZONES.check_header(12 * MIB).unwrap();
        assert_eq!(ZONES.check_header(16 * MIB).map(|()| 0), refused(16, 12));
    }

    #[test]
    fn data_units_divide_the_write_granularity() {
        for (granularity, luks, plain) in
            [(512, 512, 512), (4096, 4096, 4096), (16384, 4096, 16384), (1 << 20, 4096, 65536)]
        {
            let zones = Zones { write_granularity: granularity, ..ZONES };
            assert_eq!(zones.largest_unit(DataUnitSize::LUKS_MAX).bytes(), luks);
            assert_eq!(zones.largest_unit(DataUnitSize::MAX).bytes(), plain);
        }
        assert_eq!(Zones { write_granularity: 12288, ..ZONES }.largest_unit(DataUnitSize::MAX).bytes(), 4096);
    }
}
