//! Zoned storage: what a zone is, and what can be done with one.
//!
//! The terms are those of the zoned block device standards (ZBC, ZAC, ZNS) as Linux has them in
//! `include/uapi/linux/blkzoned.h`. All positions and lengths are bytes. A store that is zoned says so by
//! [`crate::BackingStore::zoned`]; where a device lies on one, its zones are the store's, shifted by the data offset.

use rustix::io::Errno;

/// Whether a zone asks for an order of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    /// Takes writes anywhere.
    Conventional,
    /// Takes writes at its write pointer only.
    SequentialRequired,
    /// Takes writes anywhere, and likes them at its write pointer.
    SequentialPreferred,
}

impl ZoneKind {
    const NUMBERS: [(Self, u8); 3] =
        [(Self::Conventional, 1), (Self::SequentialRequired, 2), (Self::SequentialPreferred, 3)];

    /// Its number in the kernel's interface.
    pub fn number(self) -> u8 {
        Self::NUMBERS.iter().find(|(kind, _)| *kind == self).expect("every kind has a row").1
    }

    /// The kind with this number in the kernel's interface.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERS.iter().find(|(_, known)| *known == number).map(|(kind, _)| *kind)
    }
}

/// The state of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneCondition {
    /// A conventional zone, which has no write pointer.
    NotWritePointer,
    /// Nothing is written.
    Empty,
    /// Opened by a write.
    ImplicitOpen,
    /// Opened by order.
    ExplicitOpen,
    /// Neither open nor empty nor full.
    Closed,
    /// Takes no writes any more.
    ReadOnly,
    /// Written to its capacity, or finished.
    Full,
    /// Neither read nor written any more.
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

    /// Its number in the kernel's interface.
    pub fn number(self) -> u8 {
        Self::NUMBERS.iter().find(|(condition, _)| *condition == self).expect("every condition has a row").1
    }

    /// The condition with this number in the kernel's interface.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERS.iter().find(|(_, known)| *known == number).map(|(condition, _)| *condition)
    }

    /// Whether the zone counts against the limit of open zones.
    pub fn is_open(self) -> bool {
        matches!(self, Self::ImplicitOpen | Self::ExplicitOpen)
    }

    /// Whether the zone counts against the limit of active zones.
    pub fn is_active(self) -> bool {
        self.is_open() || self == Self::Closed
    }
}

/// A zone as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// First byte.
    pub start: u64,
    /// How far it is to the next zone.
    pub len: u64,
    /// How many of its bytes can be written.
    pub capacity: u64,
    /// Where the next write goes; `None` where that means nothing: conventional, read-only and offline zones. A full
    /// zone's is its end.
    pub write_pointer: Option<u64>,
    /// Whether order matters.
    pub kind: ZoneKind,
    /// Its state.
    pub condition: ZoneCondition,
}

/// What is true of all zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLimits {
    /// From one zone's start to the next, a power of two. The last zone may be shorter.
    pub zone_len: u64,
    /// How many zones there are.
    pub zones: u32,
    /// How many may be open at a time, 0: all.
    pub max_open: u32,
    /// How many may be open or closed at a time, 0: all.
    pub max_active: u32,
    /// Writes to sequential zones begin and end on multiples of this.
    pub write_granularity: u32,
    /// Longer writes are cut into several on their way to the drive.
    pub longest_write: u32,
}

/// What is done to zones as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAction {
    /// Open them, so that they count as open until closed.
    Open,
    /// Close them.
    Close,
    /// Make them full, whatever is written.
    Finish,
    /// Forget what they hold, and begin anew.
    Reset,
    /// The same with every zone of the store that can be.
    ResetAll,
}

/// The zoned side of a store. The calls block; the error numbers are those that the kernel's block layer gives for the
/// same mistake (`EIO` for a write that is not at the write pointer, `ETOOMANYREFS` for too many open zones and `EOVERFLOW` for
/// too many active ones).
pub trait ZonedStore: Send + Sync {
    /// What is true of all zones.
    fn limits(&self) -> ZoneLimits;

    /// Reports the zones from the one that holds byte `offset`, as many as there are and `into` has room for; how many.
    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno>;

    /// Does `action` to the zones of the range, whole zones. The range means nothing for [`ZoneAction::ResetAll`].
    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno>;
}

impl ZoneLimits {
    /// The zone that holds byte `offset`.
    pub fn zone_of(&self, offset: u64) -> u64 {
        offset / self.zone_len
    }
}

impl Zone {
    /// A zone that [`ZonedStore::report`] is to overwrite.
    pub const UNKNOWN: Self = Self {
        start: 0,
        len: 0,
        capacity: 0,
        write_pointer: None,
        kind: ZoneKind::Conventional,
        condition: ZoneCondition::Offline,
    };

    /// Whether there is something to reset.
    pub(crate) fn can_be_reset(&self) -> bool {
        use ZoneCondition::{Empty, NotWritePointer, Offline, ReadOnly};
        !matches!(self.condition, Empty | NotWritePointer | Offline | ReadOnly)
    }

    /// The zone as it is seen where byte `from` of the store is byte `to`.
    pub(crate) fn shifted(self, from: u64, to: u64) -> Self {
        let shift = |position: u64| position.wrapping_sub(from).wrapping_add(to);
        Self { start: shift(self.start), write_pointer: self.write_pointer.map(shift), ..self }
    }
}
