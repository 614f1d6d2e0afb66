//! Mounts the file of a volume, and unmounts it.

use super::file::VolumeFile;
use fuser::{BackgroundSession, Config, MountOption, Session};
use inlock_engine::{BlockingDevice, Device};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A volume as a file. If this is dropped, the file is unmounted when its last user closes it.
pub struct FuseMount {
    path: PathBuf,
    device: Arc<Device>,
    /// `None`: the file was unmounted.
    session: Option<BackgroundSession>,
}

/// Options of a mount.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Name in the list of mounts.
    pub name: String,
    /// Number of threads that serve requests.
    pub threads: usize,
}

impl Default for FuseOptions {
    /// Returns the name `inlock` and a thread for each CPU, at most four.
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { name: "inlock".to_owned(), threads: cpus.min(4) }
    }
}

/// Failure to mount or unmount a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// The kernel has no FUSE.
    #[error("this kernel has no FUSE (/dev/fuse is missing)")]
    NoFuse,
    /// The user may not use it.
    #[error("mounting with FUSE is not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// The file cannot be mounted.
    #[error("cannot mount the volume over {}: {source}", .path.display())]
    Mount {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is in use.
    #[error("{} is in use", .0.display())]
    Busy(PathBuf),
    /// The file cannot be unmounted.
    #[error("cannot unmount {}: {source}", .path.display())]
    Unmount {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The final flush failed: what was written may not be on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] inlock_engine::RequestError),
}

impl FuseMount {
    /// Mounts `device` over the file at `path`, which is created if it does not exist. Only the calling user has
    /// access, and the kernel's loop devices if that is root. Requests are served when this returns.
    ///
    /// # Errors
    /// There is no FUSE, the user may not use it, or the mount fails.
    pub fn start(device: &Arc<Device>, path: &Path, options: &FuseOptions) -> Result<Self, FuseError> {
        let failed = |source| FuseError::Mount { path: path.to_owned(), source };
        if !Path::new("/dev/fuse").exists() {
            return Err(FuseError::NoFuse);
        }
        let created = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        created.map_err(failed)?;
        let threads = options.threads.max(1);
        let config = config(options, device.access().read_only);
        let session = Session::new(VolumeFile::new(device, threads), path, &config).and_then(Session::spawn).map_err(
            |error| {
                // The file that was to be mounted over is not needed.
                let _ = std::fs::remove_file(path);
                match error.kind() {
                    io::ErrorKind::PermissionDenied => FuseError::NotPermitted(error),
                    _ => failed(error),
                }
            },
        )?;
        Ok(Self { path: path.to_owned(), device: Arc::clone(device), session: Some(session) })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file is mounted; another program may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// Unmounts the file, with everything that was written on stable storage. Blocks.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if the file is in use; then it stays mounted. The unmount or the final flush fails.
    pub fn stop(&mut self) -> Result<(), FuseError> {
        if self.is_mounted() {
            unmount(&self.path)?;
        }
        // Requests of a suspended device would wait for ever. The suspension has flushed what was written.
        self.device.end();
        let Some(session) = self.session.take() else { return Ok(()) };
        // However the session ended, the kernel sends no more requests.
        let _ = session.join();
        let _ = std::fs::remove_file(&self.path);
        if self.device.access().read_only || self.device.is_suspended() {
            return Ok(());
        }
        BlockingDevice::with_calls(Arc::clone(&self.device), 1).flush().map_err(FuseError::Flush)
    }
}

/// Returns what the mount is made with. By default only the owner has access.
fn config(options: &FuseOptions, is_read_only: bool) -> Config {
    let mut config = Config::default();
    let writes = if is_read_only { MountOption::RO } else { MountOption::RW };
    config.mount_options =
        vec![MountOption::FSName(options.name.clone()), MountOption::NoExec, MountOption::NoAtime, writes];
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

/// State of the file of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing. The file may not exist.
    Unmounted,
    /// A volume whose server answers.
    Served,
    /// A volume whose server has died: all access fails.
    Dead,
}

/// Returns what is mounted over the file at `path`. Blocks while a server that lives does not answer.
///
/// # Errors
/// The file cannot be examined.
pub fn state_of(path: &Path) -> Result<FileState, FuseError> {
    let failed = |source| FuseError::Unmount { path: path.to_owned(), source };
    // The kernel answers from its cache otherwise, also for a server that has died.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let found = match statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(FileState::Unmounted),
        Err(Errno::NOTCONN | Errno::CONNABORTED) => return Ok(FileState::Dead),
        Err(error) => return Err(failed(error.into())),
    };
    let directory = std::fs::metadata(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?.dev();
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(if device == directory { FileState::Unmounted } else { FileState::Served })
}

/// Unmounts the file of a volume, even if its server has died.
///
/// # Errors
/// [`FuseError::Busy`] if the file is in use, [`FuseError::Unmount`] if it cannot be unmounted.
pub fn unmount(path: &Path) -> Result<(), FuseError> {
    unmount_with(path, UnmountFlags::NOFOLLOW)
}

/// Unmounts the file of a server that has died, also if programs have it open: all that they do with it fails.
///
/// # Errors
/// [`FuseError::Unmount`] if it cannot be unmounted.
pub fn unmount_lazily(path: &Path) -> Result<(), FuseError> {
    unmount_with(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> Result<(), FuseError> {
    let failed = |source| FuseError::Unmount { path: path.to_owned(), source };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(FuseError::Busy(path.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(path, flags.contains(UnmountFlags::DETACH)),
        // It is not mounted.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

/// Unmounts with FUSE's helper program, which does so for users.
fn unmount_by_helper(path: &Path, lazily: bool) -> Result<(), FuseError> {
    let failed = |source| FuseError::Unmount { path: path.to_owned(), source };
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).env("LC_ALL", "C");
        command.stdin(Stdio::null()).output()
    };
    let output = run("fusermount3").or_else(|_| run("fusermount")).map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(FuseError::Busy(path.to_owned()));
    }
    Err(failed(io::Error::other(message.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuser::SessionACL;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;

    #[test]
    fn mount_has_the_name_and_the_access_of_the_volume() {
        let options = FuseOptions { name: "inlock:name".into(), threads: 3 };
        for (is_read_only, access) in [(true, MountOption::RO), (false, MountOption::RW)] {
            let config = config(&options, is_read_only);
            let name = MountOption::FSName("inlock:name".into());
            assert_eq!(config.mount_options, [name, MountOption::NoExec, MountOption::NoAtime, access]);
            assert_eq!((config.n_threads, config.clone_fd, config.acl), (Some(3), true, SessionACL::Owner));
        }
    }

    #[test]
    fn default_is_a_thread_for_each_cpu_and_at_most_four() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let expected = [1, 2, 3, 4].into_iter().rfind(|threads| *threads <= cpus);
        assert_eq!(Some(FuseOptions::default().threads), expected);
    }

    #[test]
    fn file_that_was_unmounted_is_not_mounted() {
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default()));
        let mount = FuseMount { path: PathBuf::from("/none"), device, session: None };
        assert!(!mount.is_mounted());
    }
}
