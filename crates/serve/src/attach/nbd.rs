//! Devices of the kernel's NBD driver, over the process's own server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::Device;
use inlock_frontend::nbd::kernel::{self, KernelNbdError, NbdDevice, NbdOptions};
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};

use super::attachment::{AttachOptions, Attachment, Driver, cannot_attach, refuse_if_held};
use super::holders;
use crate::error::{Instead, Result};

pub(crate) struct Nbd;

impl Driver for Nbd {
    fn missing(&self) -> Option<String> {
        match () {
            () if !kernel::is_available() => Some("the kernel's nbd is missing (modprobe nbd)".to_owned()),
            () if !rustix::process::geteuid().is_root() => Some("only root can make block devices".to_owned()),
            () => None,
        }
    }

    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<Box<dyn Attachment>> {
        let listen = Listen::Unix(options.socket.to_owned());
        let mut server_options = ServerOptions::default();
        server_options.threads = options.threads;
        let server = Server::start(Arc::clone(device), &listen, &server_options)?;
        let identifier = identifier(options.name, options.cookie);
        let mut nbd = NbdOptions::default();
        nbd.block = device.mapping().unit_len();
        nbd.connections = options.threads;
        nbd.identifier = &identifier;
        let attached = match options.recover {
            Some(number) => NbdDevice::reattach(number, options.socket, &nbd),
            None => NbdDevice::attach(options.socket, &nbd),
        };
        let device = attached.map_err(|error| {
            let not_permitted = matches!(error, KernelNbdError::NotPermitted(_));
            cannot_attach(error, Instead::Loop, not_permitted)
        })?;
        Ok(Box::new(ServedDevice { server: Some(server), device }))
    }

    fn awaiting_recovery(&self, name: &str, node: &Path, cookie: u32) -> Option<u32> {
        let device = NbdDevice::find(node, &identifier(name, cookie)).filter(NbdDevice::is_attached)?;
        Some(device.number())
    }

    fn clean_up(&self, name: &str, cookie: u32) -> Result<Option<PathBuf>> {
        let Some(device) = NbdDevice::with_identifier(&identifier(name, cookie)) else { return Ok(None) };
        refuse_if_held(device.node(), &holders::of_device(device.node()))?;
        device.detach()?;
        Ok(Some(device.node().to_owned()))
    }
}

/// A device with its server.
struct ServedDevice {
    /// `None`: it has stopped.
    server: Option<Server>,
    device: NbdDevice,
}

impl ServedDevice {
    fn is_served(&self) -> bool {
        self.server.as_ref().is_some_and(Server::is_healthy)
    }
}

impl Attachment for ServedDevice {
    fn node(&self) -> &Path {
        self.device.node()
    }

    fn is_attached(&self) -> bool {
        self.device.is_attached() && self.is_served()
    }

    fn needs_recovery(&self) -> bool {
        self.device.is_attached() && !self.is_served()
    }

    fn detach(&mut self, _deferred: bool) -> Result<()> {
        let users = holders::of_device(self.node());
        if self.device.is_attached() {
            refuse_if_held(self.node(), &users)?;
        }
        self.device.detach()?;
        self.server.take().map_or(Ok(()), |server| Ok(server.stop()?))
    }

    fn update_len(&self, len: u64) -> Result<()> {
        Ok(self.device.update_len(len)?)
    }
}

/// Returns the identifier that the driver shows for the device.
fn identifier(name: &str, cookie: u32) -> String {
    format!("inlock-{name}-{cookie:08x}")
}
