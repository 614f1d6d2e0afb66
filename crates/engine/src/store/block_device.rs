//! System calls for block devices only.
//!
//! A hole punched into a file deallocates storage. For a block device the kernel treats the same call as "write zeroes,
//! and unmap if possible", which is not the same set of devices as those that support discards. So a discard of a block
//! device has a call of its own (docs/decisions/rings-and-stores.md). Source: `include/uapi/linux/fs.h` and
//! `include/uapi/linux/blkdev.h` of Linux.
#![allow(unsafe_code)]

use crate::errno::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKROGET: Opcode = opcode::none(0x12, 94);

/// Discard as an io_uring command, `BLOCK_URING_CMD_DISCARD`, from Linux 6.12 on.
pub(crate) const RING_DISCARD: u32 = opcode::none(0x12, 0) as u32;

/// Deallocates a range. Blocks. `OPNOTSUPP`: the device does not support discards.
pub(super) fn discard(device: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the call reads two numbers, which `Setter` holds until it returns. It fails on other files than block
    // devices.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }.map_err(Errno::from_rustix)
}

/// Whether a block device is read-only, although it may open for writing. A file of another kind is not.
pub fn is_read_only(device: BorrowedFd<'_>) -> bool {
    // SAFETY: the call writes a C `int`, for which `Getter` has room. It fails on other files than block devices.
    unsafe { ioctl(device, Getter::<BLKROGET, i32>::new()) }.is_ok_and(|read_only| read_only != 0)
}
