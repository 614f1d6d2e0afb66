//! ublk devices: block devices whose driver is the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::Device;
use inlock_frontend::ublk::device::{self, UblkDevice, UblkError, UblkOptions};
use rustix::fs::{Access, access};

use super::attachment::{AttachOptions, Attachment, Driver, cannot_attach, refuse_if_held};
use super::holders;
use crate::error::{Error, Instead, Result};

pub(crate) struct Ublk;

impl Driver for Ublk {
    fn missing(&self) -> Option<String> {
        if !device::is_available() {
            return Some("/dev/ublk-control is missing (modprobe ublk_drv)".to_owned());
        }
        let opened = access("/dev/ublk-control", Access::READ_OK | Access::WRITE_OK);
        opened.err().map(|error| format!("/dev/ublk-control cannot be opened: {error}"))
    }

    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<Box<dyn Attachment>> {
        let (cookie, log) = (options.cookie.into(), Some(options.completion_log));
        let made = match options.recover {
            Some(number) => UblkDevice::recover(device, number, cookie, log),
            None => {
                let mut ublk = UblkOptions::default();
                ublk.queues = u16::try_from(options.threads).unwrap_or(u16::MAX).clamp(1, 64);
                ublk.device_cookie = cookie;
                UblkDevice::start(device, &ublk, log)
            }
        };
        Ok(Box::new(made.map_err(failed)?))
    }

    fn awaiting_recovery(&self, _name: &str, node: &Path, cookie: u32) -> Option<u32> {
        device::number_of(node).filter(|number| device::is_awaiting_recovery(*number, cookie.into()))
    }

    fn clean_up(&self, _name: &str, cookie: u32) -> Result<Option<PathBuf>> {
        let Some(number) = device::find_abandoned(cookie.into()) else { return Ok(None) };
        let node = PathBuf::from(format!("/dev/ublkb{number}"));
        refuse_if_held(&node, &holders::of_device(&node))?;
        device::remove(number, cookie.into())?;
        Ok(Some(node))
    }
}

impl Attachment for UblkDevice {
    fn node(&self) -> &Path {
        self.node()
    }

    fn is_attached(&self) -> bool {
        self.is_healthy()
    }

    fn needs_recovery(&self) -> bool {
        !self.is_healthy()
    }

    fn detach(&mut self, _deferred: bool) -> Result<()> {
        refuse_if_held(self.node(), &holders::of_device(self.node()))?;
        Ok(self.stop()?)
    }

    fn update_len(&self, len: u64) -> Result<()> {
        self.update_len().map_err(|error| match error {
            UblkError::CannotResize => Error::DeviceStays { len, cause: error.into() },
            error => error.into(),
        })
    }
}

fn failed(error: UblkError) -> Error {
    let instead = match error {
        UblkError::PartOfZone { len, zone_len } => Instead::Zones { sectors: len / zone_len * zone_len / 512 },
        // There is no other zoned block device.
        UblkError::NoZones | UblkError::ZoneUnit(_) | UblkError::Report(_) | UblkError::Log(_) => Instead::None,
        _ => Instead::Loop,
    };
    let not_permitted = matches!(error, UblkError::NotPermitted(_));
    cannot_attach(error, instead, not_permitted)
}
