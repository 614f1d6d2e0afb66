//! An attached volume: attaching, detaching unless it is in use, and resizing.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use inlock_engine::Device;
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};

use super::drivers::fuse::loop_device::{LoopDevice, LoopOptions};
use super::drivers::fuse::mount::{FuseError, FuseMount, FuseOptions};
use super::drivers::nbd::{KernelNbdError, NbdDevice, NbdOptions};
use super::drivers::ublk::{UblkDevice, UblkError, UblkOptions};
use super::holders::{self, Holder};
use super::method::{AttachMethod, USE_SERVE};
use crate::error::{CliError, Status};

/// An attached volume.
pub(crate) enum Attachment {
    /// A ublk device.
    Ublk(UblkDevice),
    /// A device of the kernel's NBD driver. `None`: the server has stopped.
    Nbd(Option<Box<Server>>, NbdDevice),
    /// A file.
    Fuse(FuseMount),
    /// A loop device on the file.
    Loop(FuseMount, LoopDevice),
}

/// Options of [`Attachment::attach`].
pub(crate) struct AttachOptions<'a> {
    pub name: &'a str,
    /// Path of the file of [`AttachMethod::Fuse`] and [`AttachMethod::Loop`].
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

impl Attachment {
    /// Attaches `device`, or recovers a device for it.
    pub(crate) fn attach(
        method: AttachMethod,
        device: &Arc<Device>,
        options: &AttachOptions<'_>,
    ) -> anyhow::Result<Self> {
        if method == AttachMethod::Ublk {
            let queues = u16::try_from(options.threads).unwrap_or(u16::MAX).clamp(1, 64);
            let made = match options.recover {
                Some(number) => {
                    UblkDevice::recover(device, number, options.cookie.into(), Some(options.completion_log))
                }
                None => {
                    let mut ublk = UblkOptions::default();
                    (ublk.queues, ublk.device_cookie) = (queues, options.cookie.into());
                    UblkDevice::start(device, &ublk, Some(options.completion_log))
                }
            };
            return Ok(Self::Ublk(made.map_err(no_ublk)?));
        }
        if method == AttachMethod::Nbd {
            return Self::attach_nbd(device, options);
        }
        let mut fuse = FuseOptions::default();
        (fuse.name, fuse.threads) = (format!("inlock:{}", options.name), options.threads);
        let mut mount = FuseMount::start(device, options.file, &fuse).map_err(no_fuse)?;
        if method == AttachMethod::Fuse {
            return Ok(Self::Fuse(mount));
        }
        let mut over = LoopOptions::default();
        (over.block, over.read_only) = (device.mapping().unit_len(), device.access().read_only);
        match LoopDevice::attach(options.file, &over) {
            Ok(over) => Ok(Self::Loop(mount, over)),
            Err(error) => {
                let _ = mount.stop();
                Err(anyhow::Error::from(error).context("cannot create a loop device"))
            }
        }
    }

    fn attach_nbd(device: &Arc<Device>, options: &AttachOptions<'_>) -> anyhow::Result<Self> {
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
        Ok(Self::Nbd(Some(Box::new(server)), attached.map_err(no_nbd)?))
    }

    /// Returns the path of the device or file.
    pub(crate) fn node(&self) -> &Path {
        match self {
            Self::Ublk(device) => device.node(),
            Self::Nbd(_, device) => device.node(),
            Self::Fuse(mount) => mount.path(),
            Self::Loop(_, over) => over.node(),
        }
    }

    /// Whether it is still attached: others may have detached it.
    pub(crate) fn is_attached(&self) -> bool {
        match self {
            Self::Ublk(device) => device.is_healthy(),
            Self::Nbd(server, device) => device.is_attached() && server.as_deref().is_some_and(Server::is_healthy),
            Self::Fuse(mount) => mount.is_mounted(),
            Self::Loop(mount, over) => mount.is_mounted() && over.is_attached(),
        }
    }

    /// Whether its workers have failed, and it awaits recovery as soon as this process has exited.
    pub(crate) fn needs_recovery(&self) -> bool {
        match self {
            Self::Ublk(device) => !device.is_healthy(),
            Self::Nbd(server, device) => device.is_attached() && !server.as_deref().is_some_and(Server::is_healthy),
            Self::Fuse(_) | Self::Loop(..) => false,
        }
    }

    /// Detaches it when all writes are on stable storage.
    ///
    /// # Errors
    /// [`CliError::Held`] if it is in use, and stays. With `deferred` a loop device goes with its last user; call again
    /// to finish.
    pub(crate) fn detach(&mut self, deferred: bool) -> anyhow::Result<()> {
        let held = |node: &Path, by: Vec<Holder>| -> anyhow::Result<()> {
            Err(CliError::Held { node: node.to_owned(), by: holders::describe(&by) }.into())
        };
        let users = match self {
            Self::Fuse(mount) => holders::of_file(mount.path()),
            _ => holders::of_device(self.node()),
        };
        match self {
            Self::Ublk(device) if !users.is_empty() => held(device.node(), users),
            Self::Ublk(device) => Ok(device.stop()?),
            Self::Nbd(_, device) if !users.is_empty() && device.is_attached() => held(device.node(), users),
            Self::Nbd(server, device) => {
                device.detach()?;
                server.take().map_or(Ok(()), |server| Ok(server.stop()?))
            }
            Self::Fuse(mount) if !users.is_empty() && mount.is_mounted() => held(mount.path(), users),
            Self::Fuse(mount) => stop(mount),
            Self::Loop(mount, over) => {
                if over.is_attached() && !users.is_empty() && !deferred {
                    return held(over.node(), users);
                }
                if !over.detach().context("cannot detach the loop device")? {
                    return held(over.node(), users);
                }
                stop(mount)
            }
        }
    }

    /// Announces a new length of the volume to the kernel.
    pub(crate) fn update_len(&self, len: u64) -> anyhow::Result<()> {
        match self {
            Self::Nbd(_, device) => Ok(device.update_len(len)?),
            Self::Ublk(device) => device.update_len().map_err(|error| match error {
                UblkError::CannotResize => CliError::refused(
                    format!("The volume has {len} bytes now, but {error}."),
                    "close the volume and open it again, or use --via nbd or --via loop, which grow while in use",
                ),
                error => error.into(),
            }),
            Self::Fuse(_) => Ok(()),
            Self::Loop(mount, over) => {
                // The kernel updates its copy of the file's length when a process requests it.
                std::fs::metadata(mount.path())?;
                Ok(over.update_len()?)
            }
        }
    }
}

fn stop(mount: &mut FuseMount) -> anyhow::Result<()> {
    match mount.stop() {
        Err(FuseError::Busy(node)) => {
            let by = match holders::of_file(&node) {
                by if by.is_empty() => vec![Holder::Unknown],
                by => by,
            };
            Err(CliError::Held { node, by: holders::describe(&by) }.into())
        }
        other => Ok(other?),
    }
}

/// Returns the identifier that the NBD driver shows for the device.
pub(super) fn identifier(name: &str, cookie: u32) -> String {
    format!("inlock-{name}-{cookie:08x}")
}

/// Returns a random cookie for a new device.
pub(crate) fn new_cookie() -> anyhow::Result<u32> {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context("cannot read /dev/urandom")?;
    Ok(u32::from_ne_bytes(bytes))
}

fn no_ublk(error: UblkError) -> anyhow::Error {
    let hint = match error {
        UblkError::PartOfZone { len, zone_len } => {
            let whole = len / zone_len * zone_len / 512;
            let part = format!("a plain volume or a table line of {whole} sectors, which ends with a zone");
            Some(format!("use {part}, or --read-only --via nbd for all of it"))
        }
        // There is no other zoned block device.
        UblkError::NoZones | UblkError::ZoneUnit(_) | UblkError::Report(_) | UblkError::Log(_) => None,
        _ => Some(USE_LOOP.to_owned()),
    };
    cannot_attach(&error, hint, matches!(error, UblkError::NotPermitted(_)))
}

fn no_nbd(error: KernelNbdError) -> anyhow::Error {
    cannot_attach(&error, Some(USE_LOOP.to_owned()), matches!(error, KernelNbdError::NotPermitted(_)))
}

fn no_fuse(error: FuseError) -> anyhow::Error {
    let not_permitted = matches!(error, FuseError::NotPermitted(_));
    let hint = (not_permitted || matches!(error, FuseError::NoFuse)).then(|| USE_SERVE.to_owned());
    cannot_attach(&error, hint, not_permitted)
}

const USE_LOOP: &str = "use --via loop, which needs only FUSE and loop devices";

fn cannot_attach(error: &dyn std::error::Error, hint: Option<String>, not_permitted: bool) -> anyhow::Error {
    let status = if not_permitted { Status::Permission } else { Status::Wrong };
    CliError::Remote(format!("Cannot attach the volume: {error}."), hint, status).into()
}
