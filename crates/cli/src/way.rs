//! The ways in which a volume becomes something in the file system: a file, or a block device with a node in /dev.
//!
//! [`choose`] says which one it will be, before anybody types a passphrase; [`Way::make`] makes it, and [`Way::take_away`] takes
//! it away again, unless somebody uses it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use inlock_engine::Device;
#[cfg(feature = "fuse")]
use inlock_frontend::fuse;
use inlock_frontend::nbd::kernel::{self as nbd, KernelNbdError, NbdDevice, NbdOptions};
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};
#[cfg(feature = "ublk")]
use inlock_frontend::ublk::device as ublk;
use rustix::fs::{Access, access};

use self::fuse::loop_device::{self, LoopDevice, LoopOptions};
use self::fuse::mount::{self, FuseError, FuseMount, FuseOptions};
use self::ublk::{UblkDevice, UblkError, UblkOptions};
use crate::control::Facts;
use crate::exit::{Problem, Status, say};
use crate::holders::{self, Holder};
#[cfg(not(feature = "fuse"))]
use crate::left_out::fuse;
#[cfg(not(feature = "ublk"))]
use crate::left_out::ublk;

/// How a volume is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A block device whose driver is the process.
    Ublk,
    /// A block device of the kernel's NBD driver, over the process's own server.
    Nbd,
    /// A block device on top of [`Via::Fuse`].
    Loop,
    /// A file.
    Fuse,
}

impl Via {
    /// The best first.
    pub(crate) const ALL: [Self; 4] = [Self::Ublk, Self::Nbd, Self::Loop, Self::Fuse];

    /// The word on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
            Self::Fuse => "fuse",
        }
    }

    /// Reads [`Via::name`].
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|via| via.name() == name)
    }

    /// What it lacks here, as far as one can tell without trying; `None`: nothing.
    fn lacks(self) -> Option<String> {
        let fuse = || match access("/dev/fuse", Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => None,
            Err(rustix::io::Errno::NOENT) => Some("/dev/fuse is missing (modprobe fuse)".to_owned()),
            Err(error) => Some(format!("/dev/fuse cannot be opened: {error}")),
        };
        let without = |feature: &str| Some(format!("inlock was built without the feature '{feature}'"));
        match self {
            Self::Fuse | Self::Loop if !cfg!(feature = "fuse") => without("fuse"),
            Self::Ublk if !cfg!(feature = "ublk") => without("ublk"),
            Self::Fuse => fuse(),
            Self::Ublk if !ublk::is_available() => Some("/dev/ublk-control is missing (modprobe ublk_drv)".to_owned()),
            Self::Ublk => match access("/dev/ublk-control", Access::READ_OK | Access::WRITE_OK) {
                Ok(()) => None,
                Err(error) => Some(format!("/dev/ublk-control cannot be opened: {error}")),
            },
            Self::Nbd if !nbd::is_available() => Some("the kernel's nbd is missing (modprobe nbd)".to_owned()),
            Self::Nbd | Self::Loop if !rustix::process::geteuid().is_root() => {
                Some("block devices are for root only".to_owned())
            }
            Self::Nbd => None,
            Self::Loop if !loop_device::is_available() => {
                Some("/dev/loop-control is missing (modprobe loop)".to_owned())
            }
            Self::Loop => fuse(),
        }
    }
}

/// The way that was asked for, or the best one there is (`None`). `ordered`: the volume has zones that are written in order, and
/// shall be written.
pub(crate) fn choose(asked: Option<Via>, ordered: bool) -> anyhow::Result<Via> {
    if ordered {
        return choose_for_zones(asked);
    }
    let best = Via::ALL.into_iter().find(|via| via.lacks().is_none());
    let Some(asked) = asked else {
        return best.ok_or_else(|| {
            let lacks = Via::ALL.iter().filter_map(|via| Some(format!("{}: {}", via.name(), via.lacks()?)));
            let message =
                format!("No way to hand the volume out works here: {}.", lacks.collect::<Vec<_>>().join("; "));
            Problem::refused(message, "`inlock serve <source> --nbd unix:PATH` needs nothing of the kernel")
        });
    };
    match asked.lacks() {
        None => Ok(asked),
        Some(lack) => {
            let message = format!("--via {} does not work here: {lack}.", asked.name());
            let hint = best.map(|via| format!("--via {} would work", via.name()));
            let serve = "`inlock serve <source> --nbd unix:PATH` needs nothing of the kernel".to_owned();
            Err(Problem::Told(message, Some(hint.unwrap_or(serve)), Status::Wrong).into())
        }
    }
}

fn choose_for_zones(asked: Option<Via>) -> anyhow::Result<Via> {
    let refused = |message| Err(Problem::refused(message, "--read-only hands it out in every way"));
    if let Some(other) = asked.filter(|via| *via != Via::Ublk) {
        return refused(format!(
            "The volume has zones that are written in order, and what --via {} makes has none.",
            other.name()
        ));
    }
    match Via::Ublk.lacks() {
        None => Ok(Via::Ublk),
        Some(lack) => refused(format!(
            "The volume has zones that are written in order, which takes --via ublk, and that does not work here: {lack}."
        )),
    }
}

/// A volume that is handed out.
pub(crate) enum Way {
    /// As a block device of ublk.
    Ublk(UblkDevice),
    /// As a block device of the NBD driver; the server is gone when it has ended.
    Nbd(Option<Server>, NbdDevice),
    /// As a file.
    Fuse(FuseMount),
    /// As a block device over the file.
    Loop(FuseMount, LoopDevice),
}

/// Where and under what name.
pub(crate) struct Wanted<'a> {
    pub name: &'a str,
    /// Where the file of [`Via::Fuse`] and [`Via::Loop`] is made.
    pub file: &'a Path,
    /// Where the NBD driver meets its server.
    pub socket: &'a Path,
    /// Where a ublk device keeps how far its zones were answered.
    pub zones: &'a Path,
    pub threads: usize,
    /// The number of a device that waits for a process.
    pub waiting: Option<u32>,
    /// By which it will be known, and a waiting one is: see [`Facts::mark`].
    pub mark: u32,
}

impl Way {
    /// Hands `device` out.
    pub(crate) fn make(via: Via, device: &Arc<Device>, wanted: &Wanted<'_>) -> anyhow::Result<Self> {
        if via == Via::Ublk {
            let queues = u16::try_from(wanted.threads).unwrap_or(u16::MAX).clamp(1, 64);
            let made = match wanted.waiting {
                Some(number) => UblkDevice::recover(device, number, wanted.mark.into(), Some(wanted.zones)),
                None => {
                    let mut options = UblkOptions::default();
                    (options.queues, options.device_cookie) = (queues, wanted.mark.into());
                    UblkDevice::start(device, &options, Some(wanted.zones))
                }
            };
            return Ok(Self::Ublk(made.map_err(no_ublk)?));
        }
        if via == Via::Nbd {
            return Self::make_nbd(device, wanted);
        }
        let options = FuseOptions { name: format!("inlock:{}", wanted.name), threads: wanted.threads };
        let mut mount = FuseMount::start(device, wanted.file, &options).map_err(cannot_mount)?;
        if via == Via::Fuse {
            return Ok(Self::Fuse(mount));
        }
        let unit = device.mapping().unit_len();
        match LoopDevice::attach(wanted.file, &LoopOptions { block: unit, read_only: device.access().read_only }) {
            Ok(over) => Ok(Self::Loop(mount, over)),
            Err(error) => {
                let _ = mount.stop();
                Err(anyhow::Error::from(error).context("cannot make a loop device"))
            }
        }
    }

    fn make_nbd(device: &Arc<Device>, wanted: &Wanted<'_>) -> anyhow::Result<Self> {
        let listen = Listen::Unix(wanted.socket.to_owned());
        let mut options = ServerOptions::default();
        options.threads = wanted.threads;
        let server = Server::start(Arc::clone(device), &listen, &options)?;
        let options = NbdOptions {
            export: "",
            block: device.mapping().unit_len(),
            connections: wanted.threads,
            identifier: &identifier(wanted.name, wanted.mark),
        };
        let attached = match wanted.waiting {
            Some(number) => NbdDevice::reattach(number, wanted.socket, &options),
            None => NbdDevice::attach(wanted.socket, &options),
        };
        Ok(Self::Nbd(Some(server), attached.map_err(no_nbd)?))
    }

    /// What it is in the file system.
    pub(crate) fn node(&self) -> &Path {
        match self {
            Self::Ublk(device) => device.node(),
            Self::Nbd(_, device) => device.node(),
            Self::Fuse(mount) => mount.path(),
            Self::Loop(_, over) => over.node(),
        }
    }

    /// Whether it is still there: others may have taken it away.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Ublk(device) => device.is_healthy(),
            Self::Nbd(server, device) => device.is_attached() && server.as_ref().is_some_and(Server::is_healthy),
            Self::Fuse(mount) => mount.is_mounted(),
            Self::Loop(mount, over) => mount.is_mounted() && over.is_attached(),
        }
    }

    /// Whether what answers its requests has failed, and it waits for another process as soon as this one has ended.
    pub(crate) fn waits_for_another(&self) -> bool {
        match self {
            Self::Ublk(device) => !device.is_healthy(),
            Self::Nbd(server, device) => device.is_attached() && !server.as_ref().is_some_and(Server::is_healthy),
            Self::Fuse(_) | Self::Loop(..) => false,
        }
    }

    /// Takes it away, with everything that was written on stable storage. [`Problem::Held`]: somebody uses it, and it stays.
    /// Then, where `deferred`, it goes as soon as that ends; this has to be called again to see it through.
    pub(crate) fn take_away(&mut self, deferred: bool) -> anyhow::Result<()> {
        let held = |node: &Path, by: Vec<Holder>| -> anyhow::Result<()> {
            Err(Problem::Held { node: node.to_owned(), by: holders::describe(&by) }.into())
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
                if !over.detach().context("cannot take the loop device away")? {
                    return held(over.node(), users);
                }
                stop(mount)
            }
        }
    }

    /// Makes a new length of the volume known.
    pub(crate) fn update_len(&self, len: u64) -> anyhow::Result<()> {
        match self {
            Self::Nbd(_, device) => Ok(device.update_len(len)?),
            Self::Ublk(device) => device.update_len().map_err(|error| match error {
                UblkError::CannotResize => Problem::refused(
                    format!("The volume has {len} bytes now, but {error}."),
                    "close the volume and open it again; --via nbd and --via loop grow while they are in use",
                ),
                error => error.into(),
            }),
            Self::Fuse(_) => Ok(()),
            Self::Loop(mount, over) => {
                // Asking for the file's length is what makes the kernel know it.
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
            Err(Problem::Held { node, by: holders::describe(&by) }.into())
        }
        other => Ok(other?),
    }
}

/// The device that waits for a process, if that is what one that is gone has left: what it is, and its number.
pub(crate) fn waiting(left: &Facts) -> Option<(Via, u32)> {
    let (node, mark) = (left.node.as_deref()?, left.mark?);
    match Via::from_name(&left.via)? {
        Via::Ublk => {
            let number = ublk::number_of(node).filter(|number| ublk::is_awaiting_recovery(*number, mark.into()))?;
            Some((Via::Ublk, number))
        }
        Via::Nbd => {
            let device = NbdDevice::find(node, &identifier(&left.name, mark)).filter(NbdDevice::is_attached)?;
            Some((Via::Nbd, device.number()))
        }
        Via::Loop | Via::Fuse => None,
    }
}

/// What the NBD driver shows of whose device it is.
fn identifier(name: &str, mark: u32) -> String {
    format!("inlock-{name}-{mark:08x}")
}

/// A mark for a new device.
pub(crate) fn new_mark() -> anyhow::Result<u32> {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context("cannot read /dev/urandom")?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Takes away what a process that is gone has left: a device, and the mount at `file`.
pub(crate) fn clean_up(left: &Facts, file: &Path) -> anyhow::Result<()> {
    clean_up_device(left, file)?;
    if let Some(node) = &left.node {
        // Another device may have the node later, and must not be found under this name.
        drop(Link::of(&left.name, node));
    }
    Ok(())
}

fn clean_up_device(left: &Facts, file: &Path) -> anyhow::Result<()> {
    let held = |node: &Path, by: &[Holder]| Problem::Held { node: node.to_owned(), by: holders::describe(by) };
    let node = left.node.as_deref();
    if let Some(node) = node.filter(|_| left.via == Via::Ublk.name()) {
        // Otherwise it is gone, or another process has made another one under its number.
        let found = ublk::number_of(node).zip(left.mark.map(u64::from));
        let Some((number, mark)) = found.filter(|(number, mark)| ublk::is_abandoned(*number, *mark)) else {
            return Ok(());
        };
        let users = holders::of_device(node);
        if !users.is_empty() {
            return Err(held(node, &users).into());
        }
        return Ok(ublk::remove(number, mark)?);
    }
    if let Some(device) =
        node.zip(left.mark).and_then(|(node, mark)| NbdDevice::find(node, &identifier(&left.name, mark)))
    {
        let users = holders::of_device(device.node());
        if !users.is_empty() {
            return Err(held(device.node(), &users).into());
        }
        return Ok(device.detach()?);
    }
    if let Some(mut over) = node.and_then(|node| LoopDevice::find(node, file)) {
        let users = holders::of_device(over.node());
        if !users.is_empty() || !over.detach().context("cannot take the loop device away")? {
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

fn no_ublk(error: UblkError) -> anyhow::Error {
    let status = if matches!(error, UblkError::NotPermitted(_)) { Status::Permission } else { Status::Wrong };
    let hint = match error {
        UblkError::PartOfZone { len, zone_len } => {
            let whole = len / zone_len * zone_len / 512;
            let less = format!("a plain volume or a table line of {whole} sectors ends with a zone");
            Some(format!("{less}; --read-only --via nbd hands out all of it"))
        }
        // Nothing else is a block device with zones.
        UblkError::NoZones | UblkError::ZoneUnit(_) | UblkError::Report(_) | UblkError::Log(_) => None,
        _ => Some("--via loop needs FUSE and loop devices only".to_owned()),
    };
    Problem::Told(error.to_string(), hint, status).into()
}

fn no_nbd(error: KernelNbdError) -> anyhow::Error {
    let status = if matches!(error, KernelNbdError::NotPermitted(_)) { Status::Permission } else { Status::Wrong };
    Problem::Told(error.to_string(), Some("--via loop needs FUSE and loop devices only".to_owned()), status).into()
}

fn cannot_mount(error: FuseError) -> anyhow::Error {
    let hint = match error {
        FuseError::NoFuse | FuseError::NotPermitted(_) => {
            Some("`inlock serve <source> --nbd unix:PATH` needs nothing of the kernel".to_owned())
        }
        _ => None,
    };
    let status = if matches!(error, FuseError::NotPermitted(_)) { Status::Permission } else { Status::Wrong };
    Problem::Told(error.to_string(), hint, status).into()
}

/// `/dev/inlock/NAME`, as long as this lives.
pub(crate) struct Link {
    path: PathBuf,
    node: PathBuf,
}

impl Link {
    /// Points the name at `node`. Where that cannot be done nothing is lost but the name, and that is said.
    pub(crate) fn make(name: &str, node: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let link = Self::of(name, node);
        let make = || {
            std::fs::create_dir_all(LINKS)?;
            let _ = std::fs::remove_file(&link.path);
            std::os::unix::fs::symlink(node, &link.path)
        };
        match make() {
            Ok(()) => Some(link),
            Err(error) => {
                say(&format!("inlock: warning: cannot make {}: {error}", link.path.display()));
                None
            }
        }
    }

    fn of(name: &str, node: &Path) -> Self {
        Self { path: Path::new(LINKS).join(name), node: node.to_owned() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // It may name another device by now.
        if std::fs::read_link(&self.path).is_ok_and(|node| node == self.node) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where names of nodes are; device-mapper's own directory is not for others.
const LINKS: &str = "/dev/inlock";
