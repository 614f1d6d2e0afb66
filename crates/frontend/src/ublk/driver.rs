//! Control commands to ublk's driver, and the I/O descriptors of requests in memory that it shares.
//!
//! The file has `unsafe` for the I/O descriptors, which the kernel writes.
#![allow(unsafe_code)]

use super::command::{self, Command, Commands, MEMORY, put};
use super::options::UblkOptions;
use super::parameters::{self, Parameters};
use inlock_engine::ring::{FileId, Ring};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

/// A device whose process died waits for another process to recover it.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
/// The driver then reissues the requests in flight.
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// The length of a device can change.
pub(super) const UPDATE_SIZE: u64 = 1 << 10;
/// The device is zoned, and its process copies the data of requests; the driver requires the one for the other.
pub(super) const ZONES: u64 = 1 << 8 | 1 << 7;
/// Features that do not change how the data of requests is copied: those above, how commands reach the driver (1, 6),
/// which users may use the device (5), how it ends (9, 12, 17), which threads may complete requests (13, 14), and
/// whether the kernel scans for partitions (18). Newer drivers set some of them by themselves. With no other feature
/// the driver copies to and from the buffers that it is given.
const NEUTRAL_FEATURES: u64 = 1 << 1
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

/// Number of a device that the driver is to choose.
const NEW: u32 = u32::MAX;

const CONTROL: &str = "/dev/ublk-control";

/// Maximum depth of a queue, and so the distance of the queues' I/O descriptors in the character device.
const DEPTH_MAX: usize = 4096;

/// Facts about a device, as the driver has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub id: u32,
    pub queues: u16,
    pub depth: u16,
    /// Maximum length of a request in bytes.
    pub longest: u32,
    pub state: State,
    pub pid: i32,
    /// Number that the device's maker chose, which tells it from other devices; the driver only keeps it.
    pub device_cookie: u64,
    flags: u64,
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Dead,
    Live,
    /// Its process died; requests wait for another process.
    Quiesced,
    Other,
}

impl Info {
    /// Whether the device has zones.
    pub(super) fn is_zoned(&self) -> bool {
        self.flags & ZONES == ZONES
    }

    /// Returns how the data of requests is copied, unless features say so that are not known here.
    fn copy_mode(&self) -> Option<CopyMode> {
        match self.flags & !NEUTRAL_FEATURES {
            0 => Some(CopyMode::Driver(self.longest as usize)),
            ZONES => Some(CopyMode::Process),
            _ => None,
        }
    }

    /// Whether the device has the features of those that are made here; others cannot be recovered.
    pub(super) fn is_ours(&self) -> bool {
        self.copy_mode().is_some() && self.flags & USER_RECOVERY != 0
    }

    /// Whether the length can change while the device runs.
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
            device_cookie: u64_at(bytes, 32),
        }
    }

    fn encode(&self) -> [u8; MEMORY] {
        let mut bytes = [0; MEMORY];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &self.longest.to_ne_bytes());
        put(&mut bytes, 12, &self.id.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        put(&mut bytes, 32, &self.device_cookie.to_ne_bytes());
        bytes
    }
}

/// How the data of requests is copied.
enum CopyMode {
    /// By the driver, at most so many bytes for a request.
    Driver(usize),
    /// By the device's process, through its character device.
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

/// The driver's control device.
pub(super) struct Control {
    commands: Commands,
}

impl Control {
    /// Opens the control device.
    pub(super) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        Ok(Self { commands: Commands::new(file, command::new_ring)? })
    }

    /// Returns the features of this kernel's driver.
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut memory = [0; MEMORY];
        self.command(reads(0x13), NEW, 8, 0, &mut memory)?;
        Ok(u64_at(&memory, 0))
    }

    /// Adds a device, whose block device does not exist until it is started.
    pub(super) fn add(&mut self, options: &UblkOptions, flags: u64) -> io::Result<Info> {
        let UblkOptions { queues, depth, longest, device_cookie } = *options;
        let flags = flags & (NEUTRAL_FEATURES | ZONES);
        let wanted = Info { id: NEW, queues, depth, longest, state: State::Dead, pid: 0, device_cookie, flags };
        let mut memory = wanted.encode();
        self.command(changes(0x04), NEW, 64, 0, &mut memory)?;
        Ok(Info::decode(&memory))
    }

    /// Returns the current facts about a device.
    pub(super) fn info(&mut self, id: u32) -> io::Result<Info> {
        let mut memory = [0; MEMORY];
        self.command(reads(0x02), id, 64, 0, &mut memory)?;
        Ok(Info::decode(&memory))
    }

    /// Sets the parameters of a device.
    pub(super) fn set_parameters(&mut self, id: u32, parameters: &Parameters) -> io::Result<()> {
        self.command(changes(0x08), id, parameters::LEN, 0, &mut parameters.encode()).map(drop)
    }

    /// Starts a device: its block device exists when this returns. Blocks until all tags of all queues wait for
    /// requests.
    pub(super) fn start(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x06), id, own_pid())
    }

    /// Removes the block device; requests without a completion fail.
    pub(super) fn stop(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x07), id, 0)
    }

    /// Deletes a stopped device. Blocks until no process has its character device open.
    pub(super) fn delete(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x05), id, 0)
    }

    /// Begins the recovery of a device whose process died.
    pub(super) fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.simple(changes(0x10), id, 0)
    }

    /// Starts a device again after its recovery. Blocks as [`Control::start`].
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

/// Opens a device's character device. One process at a time can have it open.
pub(super) fn open_queues(info: &Info) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{}", info.id))?;
    Ok(file.into())
}

/// Adds a device's character device to the ring of one of its queues.
pub(super) fn add_to_ring(ring: &mut Ring, device: OwnedFd, info: &Info) -> io::Result<FileId> {
    let copied = match info.copy_mode().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))? {
        CopyMode::Driver(longest) => Some(longest),
        CopyMode::Process => None,
    };
    // SAFETY: the driver itself has said whether it copies, and the maximum length of requests if it does
    // (`copy_mode`).
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

/// I/O descriptor: a request as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoDescriptor {
    pub operation: u8,
    pub durable: bool,
    pub offset: u64,
    /// In bytes. Of a report of zones: 512 times their number.
    pub len: u64,
}

/// I/O descriptors of one queue.
pub(super) struct IoDescriptors {
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
unsafe impl Send for IoDescriptors {}

impl IoDescriptors {
    /// Maps the I/O descriptors of a queue.
    pub(super) fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let len = (usize::from(depth) * size_of::<Entry>()).next_multiple_of(rustix::param::page_size());
        let at = usize::from(queue) * DEPTH_MAX * size_of::<Entry>();
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, which the kernel places where nothing is.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, device, at as u64) }?;
        Ok(Self { start: start.cast(), depth, len })
    }

    /// Returns the I/O descriptor of a tag whose request the driver has handed over. It does not change until the
    /// request is completed.
    ///
    /// # Panics
    /// The queue has no such tag.
    pub(super) fn request(&self, tag: u16) -> IoDescriptor {
        const FUA: u32 = 1 << 13;
        assert!(tag < self.depth, "a tag of the queue");
        // SAFETY: within the mapping, which has `depth` entries; volatile, since the kernel writes it.
        let entry = unsafe { self.start.add(usize::from(tag)).read_volatile() };
        IoDescriptor {
            operation: entry.op_flags as u8,
            durable: entry.op_flags & FUA != 0,
            offset: entry.start_sector.saturating_mul(512),
            len: u64::from(entry.sectors) * 512,
        }
    }
}

impl Drop for IoDescriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.len) };
    }
}
