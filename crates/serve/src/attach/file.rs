//! Files through FUSE, and loop devices on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inlock_engine::Device;
use inlock_frontend::fuse::loop_device::{self, LoopDevice, LoopOptions};
use inlock_frontend::fuse::mount::{self, FileState, FuseError, FuseMount, FuseOptions};
use rustix::fs::{Access, access};

use super::attachment::{AttachOptions, Attachment, Driver, cannot_attach, held, refuse_if_held};
use super::holders::{self, Holder};
use crate::error::{Error, Instead, Result, ResultExt};

/// How long programs may keep the file of a process that died, before it is unmounted while they have it open.
const CLOSE_TIME: Duration = Duration::from_secs(1);

pub(crate) struct Fuse;

pub(crate) struct Loop;

impl Driver for Fuse {
    fn missing(&self) -> Option<String> {
        match access("/dev/fuse", Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => None,
            Err(rustix::io::Errno::NOENT) => Some("/dev/fuse is missing (modprobe fuse)".to_owned()),
            Err(error) => Some(format!("/dev/fuse cannot be opened: {error}")),
        }
    }

    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<Box<dyn Attachment>> {
        Ok(Box::new(mount(device, options)?))
    }

    fn clean_up_file(&self, file: &Path) -> Result<Vec<PathBuf>> {
        let deadline = Instant::now() + CLOSE_TIME;
        let mut nodes = Vec::new();
        loop {
            let state = mount::state_of(file)?;
            if state == FileState::Served {
                let by = "a process that has lost its lock file serves it".to_owned();
                return Err(Error::Held { node: file.to_owned(), by });
            }
            for mut over in LoopDevice::all_on(file) {
                refuse_if_held(over.node(), &holders::of_device(over.node()))?;
                detach_loop(&mut over)?;
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
}

impl Driver for Loop {
    fn missing(&self) -> Option<String> {
        match () {
            () if !rustix::process::geteuid().is_root() => Some("only root can make block devices".to_owned()),
            () if !loop_device::is_available() => Some("/dev/loop-control is missing (modprobe loop)".to_owned()),
            () => Fuse.missing(),
        }
    }

    fn attach(&self, device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<Box<dyn Attachment>> {
        let mut mount = mount(device, options)?;
        let mut over = LoopOptions::default();
        (over.block, over.read_only) = (device.mapping().unit_len(), device.access().read_only);
        match LoopDevice::attach(options.file, &over) {
            Ok(over) => Ok(Box::new(LoopOnFile { mount, over })),
            Err(error) => {
                let _ = mount.stop();
                Err(error).context("cannot create a loop device")
            }
        }
    }
}

fn mount(device: &Arc<Device>, options: &AttachOptions<'_>) -> Result<FuseMount> {
    let mut fuse = FuseOptions::default();
    (fuse.name, fuse.threads) = (format!("inlock:{}", options.name), options.threads);
    FuseMount::start(device, options.file, &fuse).map_err(|error| {
        let not_permitted = matches!(error, FuseError::NotPermitted(_));
        let is_missing = not_permitted || matches!(error, FuseError::NoFuse);
        cannot_attach(error, if is_missing { Instead::Serve } else { Instead::None }, not_permitted)
    })
}

impl Attachment for FuseMount {
    fn node(&self) -> &Path {
        self.path()
    }

    fn is_attached(&self) -> bool {
        self.is_mounted()
    }

    fn detach(&mut self, _deferred: bool) -> Result<()> {
        let users = holders::of_file(self.path());
        if self.is_mounted() {
            refuse_if_held(self.path(), &users)?;
        }
        unmount(self)
    }

    fn update_len(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}

/// A loop device on the file.
struct LoopOnFile {
    mount: FuseMount,
    over: LoopDevice,
}

impl Attachment for LoopOnFile {
    fn node(&self) -> &Path {
        self.over.node()
    }

    fn is_attached(&self) -> bool {
        self.mount.is_mounted() && self.over.is_attached()
    }

    fn detach(&mut self, deferred: bool) -> Result<()> {
        let users = holders::of_device(self.node());
        if self.over.is_attached() && !deferred {
            refuse_if_held(self.node(), &users)?;
        }
        if !self.over.detach().context(CANNOT_DETACH)? {
            return Err(held(self.node(), &users));
        }
        unmount(&mut self.mount)
    }

    fn update_len(&self, _len: u64) -> Result<()> {
        // The kernel updates its copy of the file's length when a process requests it.
        std::fs::metadata(self.mount.path())?;
        Ok(self.over.update_len()?)
    }
}

const CANNOT_DETACH: &str = "cannot detach the loop device";

/// Detaches the device, which nothing seems to use.
fn detach_loop(over: &mut LoopDevice) -> Result<()> {
    if over.detach().context(CANNOT_DETACH)? { Ok(()) } else { Err(held(over.node(), &[Holder::Unknown])) }
}

fn unmount(mount: &mut FuseMount) -> Result<()> {
    match mount.stop() {
        Err(FuseError::Busy(node)) => {
            let by = holders::of_file(&node);
            Err(held(&node, if by.is_empty() { &[Holder::Unknown] } else { &by }))
        }
        other => Ok(other?),
    }
}
