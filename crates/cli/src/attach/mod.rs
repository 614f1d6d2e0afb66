//! Attaching a volume: as a block device with a node in /dev, or as a file.
//!
//! [`method`] chooses how, before a passphrase is asked for; [`attachment`] attaches and detaches; [`stale`] handles
//! the devices and mounts of processes that died.

pub(crate) mod attachment;
mod drivers;
pub(crate) mod holders;
#[cfg(not(all(feature = "fuse", feature = "ublk")))]
mod left_out;
pub(crate) mod link;
pub(crate) mod method;
pub(crate) mod stale;
