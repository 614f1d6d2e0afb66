//! A loop device on the volume's file, so that it is a block device on kernels that have neither ublk nor NBD.
//!
//! `losetup` does it: it is part of every distribution's base, knows each kernel's way, and finds a free device without a
//! race. What it has done is read back from `/sys/block`, never from its words.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest block that every kernel takes, in bytes.
const BLOCK_EVERYWHERE: usize = 4096;

/// A loop device that could not be made or taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The kernel has no loop devices.
    #[error("this kernel has no loop devices (/dev/loop-control is missing)")]
    NoLoop,
    /// `losetup` cannot be run.
    #[error("cannot run losetup: {0}")]
    Run(#[source] io::Error),
    /// `losetup` could not do it.
    #[error("losetup failed: {0}")]
    Losetup(String),
}

/// A loop device. It stays when this is dropped: [`LoopDevice::detach`] takes it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    node: PathBuf,
    /// The kernel was told to take it away when nobody uses it any more.
    leaving: bool,
}

/// Whether a loop device can be made here, as far as one can tell without making one.
pub fn is_available() -> bool {
    Path::new("/dev/loop-control").exists()
}

impl LoopDevice {
    /// A loop device over `file` with logical blocks of `block` bytes: a data unit, so that no request ends within one. Where
    /// the kernel has none as long, of 4096 bytes.
    pub fn attach(file: &Path, block: usize, read_only: bool) -> Result<Self, LoopError> {
        if !is_available() {
            return Err(LoopError::NoLoop);
        }
        let base = |block: usize, direct: bool| {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show", "--sector-size"]).arg(block.max(512).to_string());
            if read_only {
                command.arg("--read-only");
            }
            // Past the page cache of the file: the device above has one of its own.
            command.args(direct.then_some("--direct-io=on"));
            command.arg("--").arg(file);
            command
        };
        let attempt = |block| losetup(base(block, true)).or_else(|_| losetup(base(block, false)));
        let shown = match attempt(block) {
            Err(_) if block > BLOCK_EVERYWHERE => attempt(BLOCK_EVERYWHERE)?,
            shown => shown?,
        };
        let node = PathBuf::from(shown.trim());
        if !node.starts_with("/dev") {
            return Err(LoopError::Losetup(format!("it names no device: '{}'", shown.trim())));
        }
        Ok(Self { node, leaving: false })
    }

    /// The loop device at `node`, made earlier, as long as it is over `file`.
    pub fn find(node: &Path, file: &Path) -> Option<Self> {
        let found = Self { node: node.to_owned(), leaving: false };
        (found.backing_file()? == file).then_some(found)
    }

    /// `/dev/loopN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Whether it goes past the page cache of the file below.
    pub fn is_direct(&self) -> bool {
        self.attribute("loop/dio").is_some_and(|text| text == "1")
    }

    /// Whether it is still over a file.
    pub fn is_attached(&self) -> bool {
        self.backing_file().is_some()
    }

    /// Takes it away; while somebody uses it, as soon as that ends. Whether it is gone already.
    pub fn detach(&mut self) -> Result<bool, LoopError> {
        if !self.is_attached() {
            return Ok(true);
        }
        if !self.leaving {
            let mut command = Command::new("losetup");
            command.arg("--detach").arg(&self.node);
            losetup(command)?;
            self.leaving = true;
            // Who looks at the device at this moment has it open for that moment only.
            for _ in 0..50 {
                if !self.is_attached() {
                    return Ok(true);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(!self.is_attached())
    }

    /// Looks at the length of the file again.
    pub fn update_len(&self) -> Result<(), LoopError> {
        let mut command = Command::new("losetup");
        command.arg("--set-capacity").arg(&self.node);
        losetup(command).map(drop)
    }

    fn backing_file(&self) -> Option<PathBuf> {
        self.attribute("loop/backing_file").map(PathBuf::from)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let device = self.node.file_name()?;
        let text = fs::read_to_string(Path::new("/sys/block").join(device).join(name)).ok()?;
        Some(text.trim_end().to_owned())
    }
}

fn losetup(mut command: Command) -> Result<String, LoopError> {
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(LoopError::Run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LoopError::Losetup(said.trim().trim_start_matches("losetup: ").to_owned()))
}
