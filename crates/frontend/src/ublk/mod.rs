//! ublk: the volume as a block device whose driver is this process.
//!
//! [`driver`] is what the kernel's driver is told and how its memory is read; [`queue`] is the front end of one queue, on a
//! worker's ring together with the store; [`device`] makes a device, takes one back after its process died, and ends it.
//! Source: `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h` of Linux.

pub mod device;
mod driver;
mod queue;
