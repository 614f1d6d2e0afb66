//! Attaching a volume: as a block device with a node in /dev, or as a file.
//!
//! [`method`] chooses how, before a passphrase is asked for; its driver attaches and detaches; [`stale`] handles the
//! devices and mounts of processes that died.
#![cfg_attr(
    not(all(feature = "fuse", feature = "ublk")),
    expect(dead_code, reason = "what only the drivers use that this build leaves out")
)]

pub(crate) mod attachment;
#[cfg(feature = "fuse")]
mod file;
pub(crate) mod holders;
pub(crate) mod link;
pub(crate) mod method;
mod nbd;
pub(crate) mod stale;
#[cfg(feature = "ublk")]
mod ublk;
