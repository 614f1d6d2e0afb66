//! The kernel's ioctls for zoned block devices, from `linux/blkzoned.h`, in its units of 512 bytes.
//!
//! Independent of the engine's store of zoned devices, which the guest's tests check with it.
#![allow(unsafe_code)]

use std::fs::File;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, Opcode, Setter, Updater, ioctl, opcode};

/// The group of the ioctls.
const GROUP: u8 = 0x12;
/// Number of zones in one report.
const AT_ONCE: usize = 128;

/// An action on a range of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Reset,
    Open,
    Close,
    Finish,
    Discard,
    Zeroout,
}

/// A zone as the kernel reports it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Zone {
    pub start: u64,
    pub len: u64,
    pub write_pointer: u64,
    pub kind: u8,
    pub condition: u8,
    _flags: [u8; 6],
    pub capacity: u64,
    _reserved: [u8; 24],
}

/// Type of a conventional zone.
pub(super) const CONVENTIONAL: u8 = 1;
/// Conditions, and blkzone's two letters for them.
pub(super) const CONDITIONS: [(u8, &str); 8] =
    [(0, "nw"), (1, "em"), (2, "oi"), (3, "oe"), (4, "cl"), (0xd, "ro"), (0xe, "fu"), (0xf, "of")];

impl Zone {
    /// Returns the letters of its condition.
    pub(super) fn letters(&self) -> &'static str {
        CONDITIONS.iter().find(|(number, _)| *number == self.condition).map_or("??", |(_, letters)| letters)
    }

    /// Whether it is a sequential zone that can be written.
    pub(super) fn is_usable(&self) -> bool {
        self.kind != CONVENTIONAL && !["ro", "of"].contains(&self.letters())
    }
}

#[repr(C)]
struct Head {
    sector: u64,
    zones: u32,
    flags: u32,
}

#[repr(C)]
struct Report {
    head: Head,
    zones: [Zone; AT_ONCE],
}

/// Runs `action` on `sectors` from `start`.
pub(super) fn act(device: &File, action: Action, start: u64, sectors: u64) -> Result<(), Errno> {
    const RESET: Opcode = opcode::write::<[u64; 2]>(GROUP, 131);
    const OPEN: Opcode = opcode::write::<[u64; 2]>(GROUP, 134);
    const CLOSE: Opcode = opcode::write::<[u64; 2]>(GROUP, 135);
    const FINISH: Opcode = opcode::write::<[u64; 2]>(GROUP, 136);
    const DISCARD: Opcode = opcode::none(GROUP, 119);
    const ZEROOUT: Opcode = opcode::none(GROUP, 127);
    let range = [start, sectors];
    // The two older ioctls count bytes.
    let bytes = range.map(|n| n.wrapping_mul(512));
    // SAFETY: each of these calls reads two numbers of 64 bits, which is what it is given.
    unsafe {
        match action {
            Action::Reset => call(device, Setter::<RESET, _>::new(range)),
            Action::Open => call(device, Setter::<OPEN, _>::new(range)),
            Action::Close => call(device, Setter::<CLOSE, _>::new(range)),
            Action::Finish => call(device, Setter::<FINISH, _>::new(range)),
            Action::Discard => call(device, Setter::<DISCARD, _>::new(bytes)),
            Action::Zeroout => call(device, Setter::<ZEROOUT, _>::new(bytes)),
        }
    }
}

/// Returns the length of a zone, or the number of zones; 0 if the device has none.
pub(super) fn number(device: &File, which: Number) -> Result<u32, Errno> {
    const ZONE_LEN: Opcode = opcode::read::<u32>(GROUP, 132);
    const ZONES: Opcode = opcode::read::<u32>(GROUP, 133);
    // SAFETY: both calls write one number of 32 bits, which is what they are given room for.
    unsafe {
        match which {
            Number::ZoneLen => call(device, Getter::<ZONE_LEN, u32>::new()),
            Number::Zones => call(device, Getter::<ZONES, u32>::new()),
        }
    }
}

/// A number that [`number`] returns.
#[derive(Clone, Copy)]
pub(super) enum Number {
    ZoneLen,
    Zones,
}

/// Returns at most `wanted` zones from the one with `sector`, and at most those of one report.
pub(super) fn report(device: &File, sector: u64, wanted: u32) -> Result<Vec<Zone>, Errno> {
    // The number of the ioctl has the length of the head alone.
    const REPORT: Opcode = opcode::read_write::<Head>(GROUP, 130);
    let head = Head { sector, zones: wanted.min(AT_ONCE as u32), flags: 0 };
    let mut report = Report { head, zones: [Zone::default(); AT_ONCE] };
    // SAFETY: the call writes the head and as many zones as the head says that there is room for; all bytes are valid.
    unsafe { call(device, Updater::<REPORT, Report>::new(&mut report))? };
    Ok(report.zones[..(report.head.zones as usize).min(AT_ONCE)].to_vec())
}

/// Returns all zones of a device.
pub(super) fn all_zones(device: &File) -> Result<Vec<Zone>, Errno> {
    let mut zones = Vec::new();
    for _ in 0..1 + number(device, Number::Zones)? as usize / AT_ONCE {
        let from = zones.last().map_or(0, |last: &Zone| last.start + last.len);
        zones.extend(report(device, from, AT_ONCE as u32)?);
    }
    Ok(zones)
}

/// # Safety
/// As for the call that `what` is made of.
unsafe fn call<I: Ioctl>(device: &File, what: I) -> Result<I::Output, Errno> {
    // SAFETY: the caller's promise.
    unsafe { ioctl(device, what) }
}
