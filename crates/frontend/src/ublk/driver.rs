//! What ublk's driver is told through `/dev/ublk-control`, and the requests that it describes in shared memory.
//!
//! The file has `unsafe` for the descriptions, which are memory of the kernel's.
#![allow(unsafe_code)]

use super::command::{self, Command, Commands, MEMORY, put};
use super::device::UblkOptions;
use super::parameters::{self, Parameters};
use inlock_engine::ring::{FileId, Ring};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

/// A device waits for its process to come back when it has died.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
/// What was under way then is asked again.
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// The length can change.
pub(super) const UPDATE_SIZE: u64 = 1 << 10;
/// The device has zones, and its process copies requests' bytes: one does not go without the other.
pub(super) const ZONES: u64 = 1 << 8 | 1 << 7;
/// The features that do not bear on how bytes come and go: those above, how the driver is told (1, 6), who may use it (5),
/// when and how it ends (9, 12, 17), who may answer (13, 14), and whether partitions are looked for (18). Newer drivers set
/// some of them by themselves. With none but these it copies to and from the buffers that it is given.
const BESIDE: u64 = 1 << 1
    | 1 << 5
    | 1 << 6
    | 1 << 9
    | 1 << 12
    | 1 << 13
    | 1 << 14
    | 1 << 17
    | 1 << 18
    | USER_RECOVERY
    | USER_RECOVERY_REISSUE
    | UPDATE_SIZE;

/// Any device; in an answer, its number.
const NEW: u32 = u32::MAX;

const CONTROL: &str = "/dev/ublk-control";

/// The most places that a queue can have: descriptions of queues lie as far apart in the mapping.
const DEPTH_MAX: usize = 4096;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub id: u32,
    pub queues: u16,
    pub depth: u16,
    /// The longest request in bytes.
    pub longest: u32,
    pub state: State,
    pub pid: i32,
    /// What whoever made it has given it to be known by; the driver keeps it and does not look at it.
    pub mark: u64,
    flags: u64,
}

/// Whether a device has a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Dead,
    Live,
    /// Its process died; requests wait for another one.
    Quiesced,
    Other,
}

impl Info {
    /// Whether it has zones.
    pub(super) fn is_zoned(&self) -> bool {
        self.flags & ZONES == ZONES
    }

    /// Who copies requests' bytes; `None`: in a way that is not known here.
    fn copier(&self) -> Option<Copier> {
        match self.flags & !BESIDE {
            0 => Some(Copier::Driver(self.longest as usize)),
            ZONES => Some(Copier::Process),
            _ => None,
        }
    }

    /// A device that was made by somebody else in another way cannot be taken over.
    pub(super) fn is_ours(&self) -> bool {
        self.copier().is_some() && self.flags & USER_RECOVERY != 0
    }

    /// Whether the driver takes another length while the device runs.
    pub(super) fn can_resize(&self) -> bool {
        self.flags & UPDATE_SIZE != 0
    }

    fn decode(bytes: &[u8; MEMORY]) -> Self {
        Self {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state: match u16_at(bytes, 4) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                _ => State::Other,
            },
            longest: u32_at(bytes, 8),
            id: u32_at(bytes, 12),
            pid: u32_at(bytes, 16).cast_signed(),
            flags: u64_at(bytes, 24),
            mark: u64_at(bytes, 32),
        }
    }

    fn encode(&self) -> [u8; MEMORY] {
        let mut bytes = [0; MEMORY];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &self.longest.to_ne_bytes());
        put(&mut bytes, 12, &self.id.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        put(&mut bytes, 32, &self.mark.to_ne_bytes());
        bytes
    }
}

enum Copier {
    /// The driver, at most so many bytes.
    Driver(usize),
    /// Whoever answers the requests, through the device's control side.
    Process,
}

fn bytes_at<const N: usize>(bytes: &[u8; MEMORY], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn u16_at(bytes: &[u8; MEMORY], at: usize) -> u16 {
    u16::from_ne_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8; MEMORY], at: usize) -> u32 {
    u32::from_ne_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8; MEMORY], at: usize) -> u64 {
    u64::from_ne_bytes(bytes_at(bytes, at))
}

/// `_IOR` and `_IOWR` of `'u'` and 32 bytes.
const fn reads(number: u32) -> u32 {
    2 << 30 | 32 << 16 | (b'u' as u32) << 8 | number
}

const fn changes(number: u32) -> u32 {
    3 << 30 | 32 << 16 | (b'u' as u32) << 8 | number
}

/// The driver's control.
pub(super) struct Control {
    commands: Commands,
}

impl Control {
    /// Opens the control device.
    pub(super) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        Ok(Self { commands: Commands::new(file, command::new_ring)? })
    }

    /// What this kernel's driver can do.
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut memory = [0; MEMORY];
        self.command(reads(0x13), NEW, 8, 0, &mut memory)?;
        Ok(u64_at(&memory, 0))
    }

    /// Adds a device that is not yet to be seen.
    pub(super) fn add(&mut self, options: &UblkOptions, flags: u64) -> io::Result<Info> {
        let UblkOptions { queues, depth, longest, mark } = *options;
        let wanted =
            Info { id: NEW, queues, depth, longest, state: State::Dead, pid: 0, mark, flags: flags & (BESIDE | ZONES) };
        let mut memory = wanted.encode();
        self.command(changes(0x04), NEW, 64, 0, &mut memory)?;
        Ok(Info::decode(&memory))
    }

    /// What the device is now.
    pub(super) fn info(&mut self, id: u32) -> io::Result<Info> {
        let mut memory = [0; MEMORY];
        self.command(reads(0x02), id, 64, 0, &mut memory)?;
        Ok(Info::decode(&memory))
    }

    /// Says what the device is like.
    pub(super) fn set_parameters(&mut self, id: u32, parameters: &Parameters) -> io::Result<()> {
        self.command(changes(0x08), id, parameters::LEN, 0, &mut parameters.encode()).map(drop)
    }

    /// Lets the device be seen, when all places of all queues wait for requests; waits for that.
    pub(super) fn start(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x06), id, own_pid())
    }

    /// Lets the device vanish; requests that nobody answered fail.
    pub(super) fn stop(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x07), id, 0)
    }

    /// Removes a stopped device; waits until nobody has its control side open.
    pub(super) fn delete(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x05), id, 0)
    }

    /// Begins to take back a device whose process died.
    pub(super) fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x10), id, 0)
    }

    /// As [`Control::start`], for a device that is taken back.
    pub(super) fn end_recovery(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x11), id, own_pid())
    }

    /// Changes the length of a running device.
    pub(super) fn update_len(&mut self, id: u32, len: u64) -> io::Result<()> {
        self.simple(changes(0x15), id, len / 512)
    }

    fn simple(&mut self, command: u32, id: u32, data: u64) -> io::Result<()> {
        self.command(command, id, 0, data, &mut [0; MEMORY]).map(drop)
    }

    fn command(&mut self, command: u32, id: u32, len: u16, data: u64, memory: &mut [u8; MEMORY]) -> io::Result<i32> {
        self.commands.run(&Command { number: command, id, len, data }, memory)
    }
}

fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// Opens a device's control side. One process at a time can have it.
pub(super) fn open_queues(info: &Info) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{}", info.id))?;
    Ok(file.into())
}

/// Gives a device's control side to the ring of one of its queues.
pub(super) fn add_to_ring(ring: &mut Ring, device: OwnedFd, info: &Info) -> io::Result<FileId> {
    let copied = match info.copier().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))? {
        Copier::Driver(longest) => Some(longest),
        Copier::Process => None,
    };
    // SAFETY: the driver itself has said who copies, and how long requests are where it does (`copier`).
    unsafe { ring.add_ublk(device, copied) }
}

/// The driver's numbers for operations.
pub(super) mod operation {
    pub(in super::super) const READ: u8 = 0;
    pub(in super::super) const WRITE: u8 = 1;
    pub(in super::super) const FLUSH: u8 = 2;
    pub(in super::super) const DISCARD: u8 = 3;
    pub(in super::super) const WRITE_ZEROES: u8 = 5;
    pub(in super::super) const OPEN: u8 = 10;
    pub(in super::super) const CLOSE: u8 = 11;
    pub(in super::super) const FINISH: u8 = 12;
    pub(in super::super) const APPEND: u8 = 13;
    pub(in super::super) const RESET_ALL: u8 = 14;
    pub(in super::super) const RESET: u8 = 15;
    pub(in super::super) const REPORT: u8 = 18;
}

/// A request as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub operation: u8,
    pub durable: bool,
    pub offset: u64,
    /// In bytes. Of a report of zones: 512 times their number.
    pub len: u64,
}

/// The descriptions of one queue's requests.
pub(super) struct Descriptions {
    start: *const Entry,
    depth: u16,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    op_flags: u32,
    sectors: u32,
    start_sector: u64,
    address: u64,
}

// SAFETY: the mapping belongs to this value alone and is only read.
unsafe impl Send for Descriptions {}

impl Descriptions {
    /// Maps those of a queue.
    pub(super) fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let len = (usize::from(depth) * size_of::<Entry>()).next_multiple_of(rustix::param::page_size());
        let at = usize::from(queue) * DEPTH_MAX * size_of::<Entry>();
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, which the kernel places where nothing is.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, device, at as u64) }?;
        Ok(Self { start: start.cast(), depth, len })
    }

    /// The request in the place `tag`, which the driver has handed over: it does not change until it is answered.
    pub(super) fn request(&self, tag: u16) -> Described {
        const FUA: u32 = 1 << 13;
        assert!(tag < self.depth, "a place of the queue");
        // SAFETY: within the mapping, which has `depth` entries; volatile, since the kernel writes it.
        let entry = unsafe { self.start.add(usize::from(tag)).read_volatile() };
        Described {
            operation: entry.op_flags as u8,
            durable: entry.op_flags & FUA != 0,
            offset: entry.start_sector.saturating_mul(512),
            len: u64::from(entry.sectors) * 512,
        }
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.len) };
    }
}
