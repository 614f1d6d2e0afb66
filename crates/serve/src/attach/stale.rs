//! Devices and mounts of processes that died: finding one that awaits recovery, and cleaning up.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::choose::driver;
use super::link::Link;
use crate::error::{Error, Result};
use crate::method::AttachMethod;

/// The device or file of a process that died, as its state file names it.
#[derive(Clone, Copy)]
pub struct StaleDevice<'a> {
    pub name: &'a str,
    /// [`AttachMethod::name`], or another word for a volume that was not attached.
    pub method: &'a str,
    /// `None`: not attached, or the process has died before it could tell.
    pub node: Option<&'a Path>,
    /// Identifies a block device of this process.
    pub cookie: Option<u32>,
    /// File that the volume is mounted over, if not the one that this version uses.
    pub mounted_over: Option<&'a Path>,
}

impl<'a> StaleDevice<'a> {
    /// Returns what is known without a state file.
    pub fn unknown(name: &'a str) -> Self {
        Self { name, method: "", node: None, cookie: None, mounted_over: None }
    }
}

/// Returns method and number of the device, if it awaits recovery by another process.
pub(crate) fn awaiting_recovery(stale: StaleDevice<'_>) -> Option<(AttachMethod, u32)> {
    let method = AttachMethod::from_name(stale.method)?;
    Some((method, driver(method).ok()?.awaiting_recovery(stale.name, stale.node?, stale.cookie?)?))
}

/// Removes the device, and what is mounted over `file`. Fails if they are in use.
///
/// The device is found by what identifies it, not by its node: a process that died while it attached the volume has
/// not told that.
pub(crate) fn clean_up(stale: StaleDevice<'_>, file: &Path) -> Result<()> {
    let mut nodes = vec![file.to_owned()];
    nodes.extend(stale.node.map(Path::to_owned));
    for method in [AttachMethod::Ublk, AttachMethod::Nbd] {
        if let (Some(cookie), Ok(driver)) = (stale.cookie, driver(method)) {
            nodes.extend(driver.clean_up(stale.name, cookie)?);
        }
    }
    if let Some(other) = stale.mounted_over.filter(|other| *other != file) {
        nodes.extend(clean_up_file(other)?);
    }
    nodes.extend(clean_up_file(file)?);
    let _ = std::fs::remove_file(file);
    // Another device may get a node later, and must not be found under this name.
    nodes.iter().for_each(|node| drop(Link::of(stale.name, node)));
    Ok(())
}

fn clean_up_file(file: &Path) -> Result<Vec<PathBuf>> {
    match driver(AttachMethod::Fuse) {
        Ok(fuse) => fuse.clean_up_file(file),
        Err(_) if !is_mounted_over(file) => Ok(Vec::new()),
        Err(missing) => Err(Error::other(missing)),
    }
}

/// Returns whether something is mounted over `file`. The file of a mount whose server has died has no metadata.
fn is_mounted_over(file: &Path) -> bool {
    let directory = file.parent().and_then(|directory| directory.metadata().ok()).map(|found| found.dev());
    match file.metadata() {
        Ok(found) => Some(found.dev()) != directory,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
