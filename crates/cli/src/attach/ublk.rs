//! ublk devices: block devices whose driver is the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::Device;
use inlock_frontend::ublk::device::{self, UblkDevice, UblkError, UblkOptions};
use rustix::fs::{Access, access};

use super::attachment::{AttachOptions, Attachment, Driver, USE_LOOP, cannot_attach, refuse_if_held};
use super::holders;
use crate::error::CliError;

pub(super) struct Ublk;

impl Driver for Ublk {
    fn missing(&self) -> Option<String> {
        if !device::is_available() {
            return Some("/dev/ublk-control is missing (modprobe ublk_drv)".to_owned());
        }
        let opened = access("/dev/ublk-control", Access::READ_OK | Access::WRITE_OK);
        opened.err().map(|error| format!("/dev/ublk-control cannot be opened: {error}"))
    }

    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> anyhow::Result<Box<dyn Attachment>> {
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
        Ok(Box::new(made.map_err(|error| failed(&error))?))
    }

    fn awaiting_recovery(&self, _name: &str, node: &Path, cookie: u32) -> Option<u32> {
        device::number_of(node).filter(|number| device::is_awaiting_recovery(*number, cookie.into()))
    }

    fn clean_up(&self, _name: &str, cookie: u32) -> anyhow::Result<Option<PathBuf>> {
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

    fn detach(&mut self, _deferred: bool) -> anyhow::Result<()> {
        refuse_if_held(self.node(), &holders::of_device(self.node()))?;
        Ok(self.stop()?)
    }

    fn update_len(&self, len: u64) -> anyhow::Result<()> {
        self.update_len().map_err(|error| match error {
            UblkError::CannotResize => CliError::refused(
                format!("The volume has {len} bytes now, but {error}."),
                "close the volume and open it again, or use --via nbd or --via loop, which grow while in use",
            ),
            error => error.into(),
        })
    }
}

fn failed(error: &UblkError) -> anyhow::Error {
    let whole;
    let hint = match error {
        UblkError::PartOfZone { len, zone_len } => {
            let sectors = len / zone_len * zone_len / 512;
            let part = format!("a plain volume or a table line of {sectors} sectors, which ends with a zone");
            whole = format!("use {part}, or --read-only --via nbd for all of it");
            Some(&*whole)
        }
        // There is no other zoned block device.
        UblkError::NoZones | UblkError::ZoneUnit(_) | UblkError::Report(_) | UblkError::Log(_) => None,
        _ => Some(USE_LOOP),
    };
    cannot_attach(error, hint, matches!(error, UblkError::NotPermitted(_)))
}
