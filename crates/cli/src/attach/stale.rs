//! Devices and mounts of processes that died: finding one that awaits recovery, and cleaning up.

use std::path::Path;

use anyhow::Context;

use super::attachment::identifier;
use super::drivers::fuse::loop_device::LoopDevice;
use super::drivers::fuse::mount::{self, FuseError};
use super::drivers::nbd::NbdDevice;
use super::drivers::ublk;
use super::holders::{self, Holder};
use super::link::Link;
use super::method::AttachMethod;
use crate::error::CliError;

/// The device or file of a process that died, as its state file names it.
#[derive(Clone, Copy)]
pub(crate) struct StaleDevice<'a> {
    pub name: &'a str,
    /// [`AttachMethod::name`], or another word for a volume that was not attached.
    pub method: &'a str,
    pub node: Option<&'a Path>,
    /// Identifies a block device of this process.
    pub cookie: Option<u32>,
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

/// Removes the device, and the mount at `file`. Fails if they are in use.
pub(crate) fn clean_up(stale: StaleDevice<'_>, file: &Path) -> anyhow::Result<()> {
    clean_up_device(stale, file)?;
    if let Some(node) = stale.node {
        // Another device may get the node later, and must not be found under this name.
        drop(Link::of(stale.name, node));
    }
    Ok(())
}

fn clean_up_device(stale: StaleDevice<'_>, file: &Path) -> anyhow::Result<()> {
    let held = |node: &Path, by: &[Holder]| CliError::Held { node: node.to_owned(), by: holders::describe(by) };
    let node = stale.node;
    if let Some(node) = node.filter(|_| stale.method == AttachMethod::Ublk.name()) {
        // Otherwise the device is gone, or another process has created one with its number.
        let found = ublk::number_of(node).zip(stale.cookie.map(u64::from));
        let found = found.filter(|(number, cookie)| ublk::is_abandoned(*number, *cookie));
        let Some((number, cookie)) = found else { return Ok(()) };
        let users = holders::of_device(node);
        if !users.is_empty() {
            return Err(held(node, &users).into());
        }
        return Ok(ublk::remove(number, cookie)?);
    }
    let nbd = node.zip(stale.cookie);
    if let Some(device) = nbd.and_then(|(node, cookie)| NbdDevice::find(node, &identifier(stale.name, cookie))) {
        let users = holders::of_device(device.node());
        if !users.is_empty() {
            return Err(held(device.node(), &users).into());
        }
        return Ok(device.detach()?);
    }
    if let Some(mut over) = node.and_then(|node| LoopDevice::find(node, file)) {
        let users = holders::of_device(over.node());
        if !users.is_empty() || !over.detach().context("cannot detach the loop device")? {
            return Err(held(over.node(), &users).into());
        }
    }
    match mount::unmount(file) {
        Err(FuseError::Busy(node)) => Err(held(&node, &holders::of_file(&node)).into()),
        other => {
            let _ = std::fs::remove_file(file);
            Ok(other?)
        }
    }
}
