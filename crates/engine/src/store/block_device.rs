//! The calls of a block device that files do not have.
//!
//! A file gives storage back by punching a hole. On a block device the kernel takes the same call for "write zeroes, and
//! unmap if you like", which a device that discards may not know, and one that does not discard may; so a discard has a
//! call of its own there (docs/decisions/0015-discards-of-block-devices.md). Source: `include/uapi/linux/fs.h` and
//! `include/uapi/linux/blkdev.h` of Linux.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// The same as a command of io_uring, from Linux 6.12 on: `BLOCK_URING_CMD_DISCARD`.
pub(crate) const RING_DISCARD: u32 = opcode::none(0x12, 0) as u32;

/// Gives storage back, and waits for it. `OPNOTSUPP`: the device cannot.
pub(super) fn discard(device: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the call reads two numbers, which `Setter` holds until it is done. On what is no block device it fails.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
