//! The kernel's calls on zoned block devices, as `include/uapi/linux/blkzoned.h` has them. Counts are sectors of 512
//! bytes.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::zoned::ZoneAction;
use rustix::ioctl::{self, Opcode, Setter, Updater, opcode};
use std::os::fd::AsFd;

/// How many zones one call reports.
const BATCH: usize = 64;

/// A zone in a report.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct BlkZone {
    pub start: u64,
    pub len: u64,
    pub write_pointer: u64,
    pub kind: u8,
    pub condition: u8,
    _not_sequential: u8,
    _reset_recommended: u8,
    _reserved: [u8; 4],
    pub capacity: u64,
    _reserved_too: [u8; 24],
}

/// Header of a report.
#[repr(C)]
struct ReportHeader {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// A report of some zones.
#[repr(C)]
pub(super) struct Report {
    header: ReportHeader,
    zones: [BlkZone; BATCH],
}

/// A range of zones.
#[repr(C)]
struct Range {
    sector: u64,
    sectors: u64,
}

const _: () = assert!(size_of::<BlkZone>() == 64 && size_of::<ReportHeader>() == 16 && size_of::<Range>() == 16);

/// The capacity of zones is reported.
const HAS_CAPACITY: u32 = 1;

const GROUP: u8 = 0x12;
const REPORT: Opcode = opcode::read_write::<ReportHeader>(GROUP, 130);
const RESET: Opcode = opcode::write::<Range>(GROUP, 131);
const OPEN: Opcode = opcode::write::<Range>(GROUP, 134);
const CLOSE: Opcode = opcode::write::<Range>(GROUP, 135);
const FINISH: Opcode = opcode::write::<Range>(GROUP, 136);

impl Report {
    /// Room for a report.
    pub(super) fn new() -> Box<Self> {
        const NONE: BlkZone = BlkZone {
            start: 0,
            len: 0,
            write_pointer: 0,
            kind: 0,
            condition: 0,
            _not_sequential: 0,
            _reset_recommended: 0,
            _reserved: [0; 4],
            capacity: 0,
            _reserved_too: [0; 24],
        };
        Box::new(Self { header: ReportHeader { sector: 0, zones: 0, flags: 0 }, zones: [NONE; BATCH] })
    }
}

/// Reports zones from the one that holds `sector`, at most `most`; none at the end of the device.
pub(super) fn report(device: impl AsFd, into: &mut Report, sector: u64, most: usize) -> Result<&[BlkZone], Errno> {
    into.header = ReportHeader { sector, zones: most.min(BATCH) as u32, flags: 0 };
    // SAFETY: BLKREPORTZONE takes the header and, behind it, room for as many zones as the header says; `Report` is
    // both in the kernel's layout, with room for BATCH, and the header says no more. Any bytes are a `Report`.
    unsafe { ioctl::ioctl(device, Updater::<REPORT, Report>::new(into)) }.map_err(Errno::from_rustix)?;
    let found = into.zones.get_mut(..into.header.zones as usize).ok_or(Errno::IO)?;
    if into.header.flags & HAS_CAPACITY == 0 {
        found.iter_mut().for_each(|zone| zone.capacity = zone.len);
    }
    Ok(found)
}

/// Does something to the zones of a range.
pub(super) fn manage(device: impl AsFd, action: ZoneAction, sector: u64, sectors: u64) -> Result<(), Errno> {
    let range = || Range { sector, sectors };
    let call = || {
        // SAFETY: these calls read one `Range`, which has the kernel's layout, and write nothing.
        unsafe {
            match action {
                ZoneAction::Open => ioctl::ioctl(&device, Setter::<OPEN, Range>::new(range())),
                ZoneAction::Close => ioctl::ioctl(&device, Setter::<CLOSE, Range>::new(range())),
                ZoneAction::Finish => ioctl::ioctl(&device, Setter::<FINISH, Range>::new(range())),
                ZoneAction::Reset | ZoneAction::ResetAll => ioctl::ioctl(&device, Setter::<RESET, Range>::new(range())),
            }
        }
    };
    rustix::io::retry_on_intr(call).map_err(Errno::from_rustix)
}
