//! Concurrent appends to an NVMe namespace without the block layer: io_uring passes NVMe commands on and returns their
//! results, which include the position of an append. There is no other interface that returns it to user space.
//!
//! Numbers are those of `linux/nvme_ioctl.h` and of the NVM Express specifications (Base, Zoned Namespace Command Set).
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use io_uring::cqueue::Entry32;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};

use super::aligned::Aligned;

/// `NVME_URING_CMD_IO`: group, number and length of the argument.
const COMMAND: u32 = 0xc048_4e80;
/// The operation code of Zone Append.
const ZONE_APPEND: u8 = 0x7d;
/// Time after which the driver gives up a command: the serving process may be killed and replaced meanwhile.
const TIMEOUT_MS: u32 = 300_000;

/// A namespace, by its character device.
pub(super) struct Namespace {
    device: File,
    number: u32,
    /// Block length in bytes.
    block: u64,
}

impl Namespace {
    /// Opens the namespace of a block device such as `/dev/nvme0n1`.
    pub(super) fn open(block_device: &Path) -> Result<Self> {
        let name = block_device.file_name().and_then(|name| name.to_str()).context("a device without a name")?;
        let rest = name.strip_prefix("nvme").with_context(|| format!("{name} is no NVMe namespace"))?;
        let told = |what: &str| {
            let path = format!("/sys/class/block/{name}/{what}");
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            text.trim().parse::<u32>().with_context(|| format!("{path}: {text}"))
        };
        let path = format!("/dev/ng{rest}");
        let device = OpenOptions::new().read(true).write(true).open(&path);
        let device = device.with_context(|| format!("cannot open {path}"))?;
        Ok(Self { device, number: told("nsid")?, block: told("queue/logical_block_size")?.into() })
    }

    /// Returns the command of an append of whole blocks from `address` to the zone at byte `zone`.
    fn append(&self, zone: u64, address: u64, len: usize) -> [u8; 80] {
        let first = (zone / self.block).to_ne_bytes();
        let blocks = (len as u64 / self.block - 1) as u32;
        let mut command = [0; 80];
        let mut put = |at: usize, value: &[u8]| command[at..at + value.len()].copy_from_slice(value);
        put(0, &[ZONE_APPEND]);
        put(4, &self.number.to_ne_bytes());
        put(24, &address.to_ne_bytes());
        put(36, &(len as u32).to_ne_bytes());
        put(40, &first);
        put(48, &blocks.to_ne_bytes());
        put(64, &TIMEOUT_MS.to_ne_bytes());
        command
    }
}

/// Failure of a command: an error number if negative, otherwise the NVMe status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Status(i32);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            ..0 => write!(f, "error {}", -self.0),
            status => write!(f, "status {status:#06x}"),
        }
    }
}

/// A completed append.
pub(super) struct Done {
    /// Its number.
    pub id: u64,
    pub len: u64,
    /// The position in the namespace, in bytes.
    pub result: Result<u64, Status>,
}

/// Appends in flight, each with memory of its own.
pub(super) struct Appends<'a> {
    namespace: &'a Namespace,
    ring: IoUring<Entry128, Entry32>,
    idle: Vec<Aligned>,
    /// Number, length and memory of each append, by the address of the memory.
    in_flight: BTreeMap<u64, (u64, u64, Aligned)>,
}

impl<'a> Appends<'a> {
    /// Prepares at most `depth` appends of at most `len` bytes each.
    pub(super) fn new(namespace: &'a Namespace, depth: usize, len: usize) -> Result<Self> {
        let ring = IoUring::<Entry128, Entry32>::builder().build(depth as u32).context("no ring")?;
        let idle = (0..depth).map(|_| Aligned::new(len)).collect();
        Ok(Self { namespace, ring, idle, in_flight: BTreeMap::new() })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether another one can be started.
    pub(super) fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Starts one of `len` bytes, which `fill` writes; it is submitted with the next [`Appends::wait`].
    pub(super) fn begin(&mut self, zone: u64, len: u64, id: u64, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut memory = self.idle.pop().context("the maximum number of appends is in flight")?;
        let bytes = memory.get_mut().get_mut(..len as usize).context("longer than was said")?;
        ensure!(len > 0 && len.is_multiple_of(self.namespace.block), "{len} bytes are not whole blocks");
        fill(bytes);
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let device = types::Fd(self.namespace.device.as_raw_fd());
        let command = self.namespace.append(zone, address, len as usize);
        let entry = opcode::UringCmd80::new(device, COMMAND).cmd(command).build().user_data(address);
        self.in_flight.insert(address, (id, len, memory));
        // SAFETY: the command reads `len` bytes of memory that stays in `in_flight`, unchanged, until the command has
        // completed; `drop` waits for that, or leaks the memory. The descriptor is open as long as the namespace is
        // borrowed.
        unsafe { self.ring.submission().push(&entry) }.context("the ring has no room")
    }

    /// Blocks until at least one completes, and returns all completed ones.
    pub(super) fn wait(&mut self) -> io::Result<Vec<Done>> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut all = Vec::new();
        for entry in self.ring.completion() {
            let Some((id, len, memory)) = self.in_flight.remove(&entry.user_data()) else { continue };
            self.idle.push(memory);
            let result = match entry.result() {
                0 => Ok(entry.big_cqe()[0] * self.namespace.block),
                status => Err(Status(status)),
            };
            all.push(Done { id, len, result });
        }
        Ok(all)
    }
}

impl Drop for Appends<'_> {
    fn drop(&mut self) {
        while !self.in_flight.is_empty() {
            if self.wait().is_err() {
                std::mem::forget(std::mem::take(&mut self.in_flight));
            }
        }
    }
}
