//! Zoned storage: zones and zone management.
//!
//! The terms are those of the zoned block device standards (ZBC, ZAC, ZNS), as Linux uses them in
//! `include/uapi/linux/blkzoned.h`. All positions and lengths are in bytes. [`crate::BackingStore::zoned`] returns the
//! zoned interface of a store; the zones of a device on such a store are the store's, shifted by the data offset.

use crate::errno::Errno;

/// Type of a zone, which decides whether its writes must be in order.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    /// Takes writes anywhere.
    Conventional,
    /// Takes writes at its write pointer only.
    SequentialRequired,
    /// Takes writes anywhere; the write pointer is preferred.
    SequentialPreferred,
}

impl ZoneKind {
    const NUMBERS: [(Self, u8); 3] =
        [(Self::Conventional, 1), (Self::SequentialRequired, 2), (Self::SequentialPreferred, 3)];

    /// Returns the number of the type in the kernel's interface.
    pub fn number(self) -> u8 {
        Self::NUMBERS.iter().find(|(kind, _)| *kind == self).expect("every kind has a row").1
    }

    /// Returns the type with this number in the kernel's interface.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERS.iter().find(|(_, known)| *known == number).map(|(kind, _)| *kind)
    }
}

/// Condition of a zone.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneCondition {
    /// A conventional zone, which has no write pointer.
    NotWritePointer,
    /// Nothing is written.
    Empty,
    /// Opened by a write.
    ImplicitOpen,
    /// Opened by a zone management command.
    ExplicitOpen,
    /// Neither open nor empty nor full.
    Closed,
    /// Readable, but no longer writable.
    ReadOnly,
    /// Written up to its capacity, or finished.
    Full,
    /// Neither readable nor writable.
    Offline,
}

impl ZoneCondition {
    const NUMBERS: [(Self, u8); 8] = [
        (Self::NotWritePointer, 0),
        (Self::Empty, 1),
        (Self::ImplicitOpen, 2),
        (Self::ExplicitOpen, 3),
        (Self::Closed, 4),
        (Self::ReadOnly, 13),
        (Self::Full, 14),
        (Self::Offline, 15),
    ];

    /// Returns the number of the condition in the kernel's interface.
    pub fn number(self) -> u8 {
        Self::NUMBERS.iter().find(|(condition, _)| *condition == self).expect("every condition has a row").1
    }

    /// Returns the condition with this number in the kernel's interface.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERS.iter().find(|(_, known)| *known == number).map(|(condition, _)| *condition)
    }

    /// Returns whether the zone counts against the limit of open zones.
    pub fn is_open(self) -> bool {
        matches!(self, Self::ImplicitOpen | Self::ExplicitOpen)
    }

    /// Returns whether the zone counts against the limit of active zones.
    pub fn is_active(self) -> bool {
        self.is_open() || self == Self::Closed
    }
}

/// Zone, as reported by a store or device.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// First byte.
    pub start: u64,
    /// Distance to the start of the next zone.
    pub len: u64,
    /// Number of writable bytes.
    pub capacity: u64,
    /// Position of the next write; `None` for conventional, read-only and offline zones. For a full zone, its end.
    pub write_pointer: Option<u64>,
    /// Type of the zone.
    pub kind: ZoneKind,
    /// Condition of the zone.
    pub condition: ZoneCondition,
}

/// Limits that apply to all zones.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLimits {
    /// Distance between zone starts, a power of two. The last zone may be shorter.
    pub zone_len: u64,
    /// Number of zones.
    pub zones: u32,
    /// Maximum number of open zones, 0 for no limit.
    pub max_open: u32,
    /// Maximum number of open and closed zones, 0 for no limit.
    pub max_active: u32,
    /// Granularity of writes to sequential zones.
    pub write_granularity: u32,
    /// Length of the longest write that reaches the drive in one piece.
    pub longest_write: u32,
}

/// Zone management action on whole zones.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAction {
    /// Open: the zone counts as open until it is closed.
    Open,
    /// Close: the zone no longer counts as open.
    Close,
    /// Finish: the zone becomes full, even if it is not written to its end.
    Finish,
    /// Reset: the zone becomes empty.
    Reset,
    /// Reset every zone of the store that can be reset.
    ResetAll,
}

/// Zoned interface of a store. Calls block. Errors are those of the kernel's block layer: `EIO` for a write that is not
/// at the write pointer, `ETOOMANYREFS` for too many open zones, and `EOVERFLOW` for too many active ones.
pub trait ZonedStore: Send + Sync {
    /// Returns the limits that apply to all zones.
    fn limits(&self) -> ZoneLimits;

    /// Fills `into` from the zone that contains byte `offset` and returns the number of zones.
    ///
    /// # Errors
    ///
    /// The error of the device.
    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno>;

    /// Applies `action` to the whole zones of the range; [`ZoneAction::ResetAll`] ignores the range.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is not whole zones; `EOPNOTSUPP` for an action that the store does not have; otherwise
    /// the error of the device.
    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno>;
}

impl ZoneLimits {
    /// Returns the limits of `zones` zones of `zone_len` bytes, any number of them open, with writes of whole blocks of
    /// 512 bytes.
    pub const fn new(zone_len: u64, zones: u32) -> Self {
        Self { zone_len, zones, max_open: 0, max_active: 0, write_granularity: 512, longest_write: u32::MAX }
    }

    /// Returns the number of the zone that contains byte `offset`.
    pub fn zone_of(&self, offset: u64) -> u64 {
        offset / self.zone_len
    }
}

impl Zone {
    /// Placeholder that [`ZonedStore::report`] overwrites.
    pub const UNKNOWN: Self = Self { condition: ZoneCondition::Offline, ..Self::new(0, 0) };

    /// Returns a conventional zone of `len` bytes from byte `start`.
    pub const fn new(start: u64, len: u64) -> Self {
        Self {
            start,
            len,
            capacity: len,
            write_pointer: None,
            kind: ZoneKind::Conventional,
            condition: ZoneCondition::NotWritePointer,
        }
    }

    /// Returns whether a reset would change the zone.
    pub(crate) fn can_be_reset(&self) -> bool {
        use ZoneCondition::{Empty, NotWritePointer, Offline, ReadOnly};
        !matches!(self.condition, Empty | NotWritePointer | Offline | ReadOnly)
    }

    /// Returns the zone with positions shifted from byte `from` of the store to byte `to`.
    pub(crate) fn shifted(self, from: u64, to: u64) -> Self {
        let shift = |position: u64| position.wrapping_sub(from).wrapping_add(to);
        Self { start: shift(self.start), write_pointer: self.write_pointer.map(shift), ..self }
    }
}
