//! Devices and mounts of processes that died: finding one that awaits recovery, and cleaning up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::attachment::identifier;
use super::drivers::fuse::loop_device::LoopDevice;
use super::drivers::fuse::mount::{self, FileState, FuseError};
use super::drivers::nbd::NbdDevice;
use super::drivers::ublk;
use super::holders::{self, Holder};
use super::link::Link;
use super::method::AttachMethod;
use crate::error::CliError;

/// How long programs may keep the file of a process that died, before it is unmounted while they have it open.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The device or file of a process that died, as its state file names it.
#[derive(Clone, Copy)]
pub(crate) struct StaleDevice<'a> {
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
    pub(crate) fn unknown(name: &'a str) -> Self {
        Self { name, method: "", node: None, cookie: None, mounted_over: None }
    }
}

/// Returns method and number of the device, if it awaits recovery by another process.
pub(crate) fn awaiting_recovery(stale: StaleDevice<'_>) -> Option<(AttachMethod, u32)> {
    let (node, cookie) = (stale.node?, stale.cookie?);
    match AttachMethod::from_name(stale.method)? {
        AttachMethod::Ublk => {
            let number = ublk::number_of(node).filter(|number| ublk::is_awaiting_recovery(*number, cookie.into()))?;
            Some((AttachMethod::Ublk, number))
        }
        AttachMethod::Nbd => {
            let device = NbdDevice::find(node, &identifier(stale.name, cookie)).filter(NbdDevice::is_attached)?;
            Some((AttachMethod::Nbd, device.number()))
        }
        AttachMethod::Loop | AttachMethod::Fuse => None,
    }
}

/// Removes the device, and what is mounted over `file`. Fails if they are in use.
///
/// The device is found by what identifies it, not by its node: a process that died while it attached the volume has
/// not told that.
pub(crate) fn clean_up(stale: StaleDevice<'_>, file: &Path) -> anyhow::Result<()> {
    let mut nodes = vec![file.to_owned()];
    nodes.extend(stale.node.map(Path::to_owned));
    if let Some(cookie) = stale.cookie {
        nodes.extend(clean_up_ublk(cookie.into())?);
        nodes.extend(clean_up_nbd(&identifier(stale.name, cookie))?);
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

/// Removes the ublk device with this cookie. Returns its node.
fn clean_up_ublk(cookie: u64) -> anyhow::Result<Option<PathBuf>> {
    let Some(number) = ublk::find_abandoned(cookie) else { return Ok(None) };
    let node = PathBuf::from(format!("/dev/ublkb{number}"));
    refuse_if_held(&node, &holders::of_device(&node))?;
    ublk::remove(number, cookie)?;
    Ok(Some(node))
}

/// Detaches the NBD device with this identifier. Returns its node.
fn clean_up_nbd(identifier: &str) -> anyhow::Result<Option<PathBuf>> {
    let Some(device) = NbdDevice::with_identifier(identifier) else { return Ok(None) };
    refuse_if_held(device.node(), &holders::of_device(device.node()))?;
    device.detach()?;
    Ok(Some(device.node().to_owned()))
}

/// Detaches loop devices on the file of a process that died, and unmounts the file. Returns the devices.
fn clean_up_file(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let deadline = Instant::now() + CLOSE_TIME;
    let mut nodes = Vec::new();
    loop {
        let state = mount::state_of(file)?;
        if state == FileState::Served {
            let by = "a process that has lost its lock file serves it".to_owned();
            return Err(CliError::Held { node: file.to_owned(), by }.into());
        }
        for mut over in LoopDevice::all_on(file) {
            let users = holders::of_device(over.node());
            refuse_if_held(over.node(), &users)?;
            if !over.detach().context("cannot detach the loop device")? {
                return Err(held(over.node(), &[Holder::Unknown]));
            }
            nodes.push(over.node().to_owned());
        }
        if state == FileState::Unmounted {
            return Ok(nodes);
        }
        match mount::unmount(file) {
            // Such as losetup, whose device is found in the next round.
            Err(FuseError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(FuseError::Busy(_)) => mount::unmount_lazily(file)?,
            other => other?,
        }
    }
}

fn refuse_if_held(node: &Path, by: &[Holder]) -> anyhow::Result<()> {
    if by.is_empty() { Ok(()) } else { Err(held(node, by)) }
}

fn held(node: &Path, by: &[Holder]) -> anyhow::Error {
    CliError::Held { node: node.to_owned(), by: holders::describe(by) }.into()
}
