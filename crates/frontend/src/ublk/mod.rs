//! ublk: the volume as a block device whose driver is this process.
//!
//! `driver` is what the kernel's driver is told, through `command`, and how its memory is read, `parameters` what a
//! device is said to be like; `queue` is the frontend of one queue, on a worker's ring together with the store. Where the
//! driver does not copy requests' bytes, `user_copy` does; a device with zones has `zoning` besides, which keeps in a file
//! what was `answered`, and where `appends` knows those that come again. [`device`] makes a device, takes one back after
//! its process died, and ends it.
//! Source: `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h` of Linux.

mod answered;
mod appends;
mod command;
pub mod device;
mod driver;
mod parameters;
mod queue;
mod user_copy;
mod zoning;
