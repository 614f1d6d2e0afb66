//! Attaching a volume: as a block device with a node in /dev, or as a file.
//!
//! `choose` chooses how, before a passphrase is asked for; its driver attaches and detaches; `stale` handles the
//! devices and mounts of processes that died.
#![cfg_attr(
    not(all(feature = "fuse", feature = "ublk")),
    expect(dead_code, reason = "what only the drivers use that this build leaves out")
)]

pub(crate) mod attachment;
pub(crate) mod choose;
#[cfg(feature = "fuse")]
mod file;
pub mod holders;
pub(crate) mod link;
mod nbd;
pub(crate) mod stale;
#[cfg(feature = "ublk")]
mod ublk;
