//! ublk: the volume as a block device whose driver is this process.
//!
//! `driver` sends the kernel's driver control commands, through `command`, and reads its I/O descriptors; `parameters`
//! has the parameters of a device. `queue` is the frontend of one queue, on a worker's ring together with the store. If
//! the driver does not copy the data of requests, `user_copy` does. A zoned device has `zoning`, which logs completed
//! requests in `completion_log`, and knows reissued ones by `appends`. [`device`] makes a device, recovers one whose
//! process died, and ends it. Source: `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h` of Linux.

mod appends;
mod command;
mod completion_log;
pub mod device;
mod driver;
mod options;
mod parameters;
mod queue;
mod user_copy;
mod zoning;
