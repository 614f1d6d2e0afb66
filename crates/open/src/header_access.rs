//! Opening the device of a LUKS header to replace or repair it: for one process, and with the header's lock.

use crate::error::Result;
use crate::host::Context;
use std::path::Path;

use super::device::{Device, OpenMode};
use super::lock::{self, DeviceLock, Lock, Mode};
use super::remote::DeviceHeader;

/// A device whose header may be written. No process serves the volume, and none reads the header.
pub struct HeaderAccess {
    /// The device.
    pub device: Device,
    /// Access to its header.
    pub header: DeviceHeader,
    _header: Lock,
    _whole: DeviceLock,
}

impl HeaderAccess {
    /// Opens and locks the device at `path`.
    pub fn open(context: &Context, path: &Path) -> Result<Self> {
        let device = Device::open(context, path, OpenMode::Write)?;
        let whole = lock::whole_device(&device, Mode::Exclusive)?;
        let header = lock::header(&device, Mode::Exclusive)?;
        Ok(Self { header: device.header()?, device, _header: header, _whole: whole })
    }
}
