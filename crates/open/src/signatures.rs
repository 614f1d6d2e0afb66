//! Signatures of other formats on a device that gets a new header.

use crate::error::{Result, ResultExt as _};
use inlock_volume::{find_signatures, wipe_signatures};

use super::device::Device;

/// Names what a new header overwrites, in cryptsetup's words, unless `--disable-blkid` is set. Returns whether there is
/// something. `own`: the format that is created, whose older headers are not named.
pub fn warn_of(device: &Device, own: &str) -> Result<bool> {
    if device.context().settings().ignore_signatures {
        return Ok(false);
    }
    let mut all = find_signatures(&device.header()?)?;
    all.retain(|found| found.name != own);
    for found in &all {
        device.context().notice(format_args!("WARNING: Device {} already contains a {found}.", device.path.display()));
    }
    Ok(!all.is_empty())
}

/// Wipes the signatures from byte `start` on, so that the device has one format only, unless `--disable-blkid` is set.
/// Zones that are written in order keep theirs.
pub fn wipe(device: &Device, start: u64) -> Result<()> {
    if device.context().settings().ignore_signatures {
        return Ok(());
    }
    let end = device.zones.map_or(u64::MAX, |zones| zones.conventional);
    let wiped = wipe_signatures(&device.header()?, start..end);
    wiped.with_context(|| format!("cannot wipe the signatures on {}", device.path.display()))
}
