//! An attached volume, and the drivers that attach volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::Device;

use super::holders::{self, Holder};
use crate::error::{Cause, Error, Instead, Result, ResultExt};

/// An attached volume.
pub(crate) trait Attachment: Send {
    /// Returns the path of the device or file.
    fn node(&self) -> &Path;

    /// Whether it is still attached: others may have detached it.
    fn is_attached(&self) -> bool;

    /// Whether its workers have failed, and it awaits recovery as soon as this process has exited.
    fn needs_recovery(&self) -> bool {
        false
    }

    /// Detaches it when all writes are on stable storage.
    ///
    /// # Errors
    /// [`Error::Held`] if it is in use, and stays. With `deferred` a loop device goes with its last user; call again
    /// to finish.
    fn detach(&mut self, deferred: bool) -> Result<()>;

    /// Announces a new length of the volume to the kernel.
    fn update_len(&self, len: u64) -> Result<()>;
}

/// Options of [`Driver::attach`].
pub(crate) struct AttachOptions<'a> {
    pub name: &'a str,
    /// Path of the file of a FUSE mount.
    pub file: &'a Path,
    /// Path of the socket between the NBD driver and the server.
    pub socket: &'a Path,
    /// Path of the completion log of a zoned ublk device.
    pub completion_log: &'a Path,
    pub threads: usize,
    /// Number of a device that awaits recovery.
    pub recover: Option<u32>,
    /// Identifies the device, also when its process has died.
    pub cookie: u32,
}

/// A way to attach volumes.
pub(crate) trait Driver {
    /// Returns the reason why it cannot work here, as far as it is known before trying.
    fn missing(&self) -> Option<String>;

    /// Attaches `device`, or recovers a device for it.
    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<Box<dyn Attachment>>;

    /// Returns the number of the block device at `node` if it has this cookie and awaits recovery by another process.
    fn awaiting_recovery(&self, _name: &str, _node: &Path, _cookie: u32) -> Option<u32> {
        None
    }

    /// Removes the block device with this cookie that a process which died has left, and returns its node. Fails if the
    /// device is in use.
    fn clean_up(&self, _name: &str, _cookie: u32) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Unmounts `file` of a process that died, and detaches the loop devices on it, which it returns.
    fn clean_up_file(&self, _file: &Path) -> Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

/// Returns a random cookie for a new device.
pub(crate) fn new_cookie() -> Result<u32> {
    getrandom::u32().context("cannot read random bytes")
}

/// Fails if the device or file at `node` has holders.
pub(crate) fn refuse_if_held(node: &Path, by: &[Holder]) -> Result<()> {
    if by.is_empty() { Ok(()) } else { Err(held(node, by)) }
}

pub(crate) fn held(node: &Path, by: &[Holder]) -> Error {
    Error::Held { node: node.to_owned(), by: holders::describe(by) }
}

pub(crate) fn cannot_attach(cause: impl Into<Cause>, instead: Instead, not_permitted: bool) -> Error {
    Error::CannotAttach { cause: cause.into(), instead, not_permitted }
}
