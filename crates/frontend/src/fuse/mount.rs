//! Mounting the file and taking it away again.

use super::file::VolumeFile;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use inlock_engine::{BlockingDevice, Device};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A volume as a file. Dropping it takes the file away as soon as nobody uses it.
pub struct FuseMount {
    path: PathBuf,
    device: Arc<Device>,
    /// `None`: the file was taken away.
    session: Option<BackgroundSession>,
}

/// How a volume is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// The name in the list of mounts.
    pub name: String,
    /// Threads that answer the kernel.
    pub threads: usize,
}

/// A file that could not be shown or taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// There is no FUSE here.
    #[error("this kernel has no FUSE (/dev/fuse is missing)")]
    NoFuse,
    /// FUSE is there, and this user may not use it.
    #[error("mounting with FUSE is not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// It cannot be mounted.
    #[error("cannot mount the volume over {}: {source}", .path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Somebody uses it.
    #[error("{} is in use", .0.display())]
    Busy(PathBuf),
    /// It cannot be unmounted.
    #[error("cannot unmount {}: {source}", .path.display())]
    Unmount {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What was written could not be put on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] inlock_engine::RequestError),
}

impl FuseMount {
    /// Shows `device` in the place of the file at `path`, which is made where it is missing. Only the calling user may use
    /// it; root's own is open to the kernel's loop devices as well. Requests are answered as soon as this returns.
    pub fn start(device: &Arc<Device>, path: &Path, options: &FuseOptions) -> Result<Self, FuseError> {
        let failed = |source| FuseError::Mount { path: path.to_owned(), source };
        if !Path::new("/dev/fuse").exists() {
            return Err(FuseError::NoFuse);
        }
        let made = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        made.map_err(failed)?;
        let mut mount_options =
            vec![MountOption::FSName(options.name.clone()), MountOption::NoExec, MountOption::NoAtime];
        mount_options.push(if device.access().read_only { MountOption::RO } else { MountOption::RW });
        let mut config = Config::default();
        config.mount_options = mount_options;
        config.acl = SessionACL::Owner;
        let threads = options.threads.max(1);
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let session = Session::new(VolumeFile::new(device, threads), path, &config).and_then(Session::spawn).map_err(
            |error| {
                // The empty file that was to be covered is of no use.
                let _ = std::fs::remove_file(path);
                match error.kind() {
                    io::ErrorKind::PermissionDenied => FuseError::NotPermitted(error),
                    _ => failed(error),
                }
            },
        )?;
        Ok(Self { path: path.to_owned(), device: Arc::clone(device), session: Some(session) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still there: somebody else may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// Takes the file away, with everything that was written on stable storage. In use, it stays.
    pub fn stop(&mut self) -> Result<(), FuseError> {
        if self.is_mounted() {
            unmount(&self.path)?;
        }
        // What waits in a suspended device would wait for ever; what it had written was flushed when it was suspended.
        self.device.end();
        let Some(session) = self.session.take() else { return Ok(()) };
        // Whatever ended the session, the kernel asks nothing any more.
        let _ = session.join();
        let _ = std::fs::remove_file(&self.path);
        if self.device.access().read_only || self.device.is_suspended() {
            return Ok(());
        }
        BlockingDevice::with_calls(Arc::clone(&self.device), 1).flush().map_err(FuseError::Flush)
    }
}

/// Unmounts a volume's file, also one whose server is gone. [`FuseError::Busy`]: somebody uses it.
pub fn unmount(path: &Path) -> Result<(), FuseError> {
    let failed = |source| FuseError::Unmount { path: path.to_owned(), source };
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(FuseError::Busy(path.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(path),
        // It is no mount any more, as was wanted.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

/// Users may unmount what is theirs with the help of a program that belongs to FUSE.
fn unmount_by_helper(path: &Path) -> Result<(), FuseError> {
    let failed = |source| FuseError::Unmount { path: path.to_owned(), source };
    let run = |program: &str| {
        Command::new(program).args(["-u", "--"]).arg(path).env("LC_ALL", "C").stdin(Stdio::null()).output()
    };
    let output = run("fusermount3").or_else(|_| run("fusermount")).map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(FuseError::Busy(path.to_owned()));
    }
    Err(failed(io::Error::other(said.trim().to_owned())))
}
