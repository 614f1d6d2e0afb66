//! Real storage below images: loop devices, and one that promises more than it has. Another user of the machine.

use super::{Dir, have, run};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A loop device that goes away.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(image: &str) -> Option<Self> {
        Self::with(image, &[])
    }

    /// One made with more of losetup's options. `None`, with the reason: none can be made.
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

/// A mounted file system that goes away.
pub(crate) struct Mounted(String);

impl Mounted {
    /// Mounts a new tmpfs with room for so many MiB on `dir`, which is made. `None`, with the reason: that is not
    /// allowed.
    pub(crate) fn tmpfs(dir: &str, mib: u64) -> Option<Self> {
        std::fs::create_dir(dir).expect("writable");
        Self::new(&["-t", "tmpfs", "-o", &format!("size={mib}m,mode=755"), "tmpfs", dir])
    }

    /// Mounts with the words of mount(8), the last of which is the directory.
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

/// A block device that promises more than there is: a sparse file of `promised` MiB on a tmpfs of `real` MiB. What does
/// not fit is found out when it is written back, not when it is written.
pub(crate) struct Thin {
    // Dropped in this order.
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

/// Another user, who can use what lies in a directory of a test.
pub(crate) struct Other {
    program: String,
}

impl Other {
    /// Opens `dir` to all users. `None`, with the reason: this is not root.
    pub(crate) fn new(dir: &Dir) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can become somebody else");
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

    /// Changes who may do what with a file.
    pub(crate) fn open(path: impl AsRef<Path>, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    /// `inlock` as that user runs it.
    pub(crate) fn inlock(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.env_remove("XDG_RUNTIME_DIR");
        command.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", &self.program]);
        command
    }
}
