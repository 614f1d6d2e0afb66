//! `--holes zero`: where holes of a device can read as zeroes.

use super::device::Device;
use super::remote::Remote;
use crate::error::{Error, ErrorKind, Result};

/// Refuses a device whose holes need not read as zeroes, or are not known exactly.
pub(crate) fn check(device: &Device) -> Result<()> {
    let kind = match device.remote() {
        Some(Remote::Rbd(_)) => return Ok(()),
        Some(Remote::Nbd(_)) => "the export of an NBD server, whose holes may read as anything",
        None if device.zones.is_some() => "zoned",
        None if device.is_block() => "a block device, whose discarded blocks may read as anything",
        None => "a file, whose holes come and go when it is copied",
    };
    let message = format!("Option --holes zero needs an image of Ceph RBD: {} is {kind}.", device.path.display());
    Err(Error::new(ErrorKind::NoHoles, message))
}

/// Returns the error of a volume whose holes have another meaning, or none.
pub(crate) fn no_holes(device: &std::path::Path) -> Error {
    let message = format!(
        "Option --holes zero needs a LUKS or plain volume without integrity protection: {} is none.",
        device.display()
    );
    Error::new(ErrorKind::NoHoles, message)
}
