//! Storage for images: loop devices, and overcommitted storage; and another user of the machine.

use super::{Dir, have, run};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A loop device, detached when dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(image: &str) -> Option<Self> {
        Self::with(image, &[])
    }

    /// Creates one with more options of losetup. `None`, with the reason: not possible here.
    pub(crate) fn with(image: &str, options: &[&str]) -> Option<Self> {
        if !have("losetup") {
            return None;
        }
        let made = run(Command::new("losetup").args(["--find", "--show"]).args(options).arg(image), b"");
        if made.code != 0 {
            println!("SKIPPED: no loop device can be made here: {}", made.err);
            return None;
        }
        Some(Self(made.text().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").args(["--detach", &self.0]), b"");
    }
}

/// A mounted file system, unmounted when dropped.
pub(crate) struct Mounted(String);

impl Mounted {
    /// Mounts a new tmpfs of this size in MiB on `dir`, which is created. `None`, with the reason: not
    /// allowed.
    pub(crate) fn tmpfs(dir: &str, mib: u64) -> Option<Self> {
        std::fs::create_dir(dir).expect("writable");
        Self::new(&["-t", "tmpfs", "-o", &format!("size={mib}m,mode=755"), "tmpfs", dir])
    }

    /// Mounts with arguments of mount(8), of which the last is the directory.
    pub(crate) fn new(words: &[&str]) -> Option<Self> {
        let made = run(Command::new("mount").args(words), b"");
        if made.code != 0 {
            println!("SKIPPED: no loop device can be made here, since nothing can be mounted: {}", made.err);
            return None;
        }
        Some(Self(words.last().expect("a directory").to_string()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(Command::new("umount").args(["--lazy", &self.0]), b"");
    }
}

/// An overcommitted block device: a sparse file of `promised` MiB on a tmpfs of `real` MiB. Writes beyond the room
/// fail at writeback, not when they are submitted.
pub(crate) struct Thin {
    // Drop order matters.
    pub(crate) device: Loop,
    _below: Mounted,
}

impl Thin {
    pub(crate) fn new(dir: &Dir, promised: u64, real: u64) -> Option<Self> {
        let below = Mounted::tmpfs(&dir.name("thin"), real)?;
        let device = Loop::over(&dir.image("thin/file", promised))?;
        Some(Self { device, _below: below })
    }
}

/// Another user, with access to the directory of a test.
pub(crate) struct Other {
    program: String,
}

impl Other {
    /// Opens `dir` to all users. `None`, with the reason: this is not root.
    pub(crate) fn new(dir: &Dir) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can switch users");
            return None;
        }
        if !have("setpriv") {
            return None;
        }
        Self::open(dir.name(""), 0o777);
        let program = dir.name("inlock-of-another");
        std::fs::copy(env!("CARGO_BIN_EXE_inlock"), &program).expect("writable");
        Some(Self { program })
    }

    /// Sets the mode of a file.
    pub(crate) fn open(path: impl AsRef<Path>, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    /// Returns `inlock`, run by that user.
    pub(crate) fn inlock(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.env_remove("XDG_RUNTIME_DIR");
        command.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", &self.program]);
        command
    }
}
