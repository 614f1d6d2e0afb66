//! A loop device on the volume's file: a block device on kernels that have neither ublk nor NBD.
//!
//! `losetup` attaches it: every distribution has it, it works with every kernel, and it finds a free device without a
//! race. The state of a device is read from `/sys/block`, not from the output of `losetup`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Maximum length of a logical block that every kernel supports, in bytes.
const BLOCK_EVERYWHERE: usize = 4096;

/// Failure to attach or detach a loop device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The kernel has no loop devices.
    #[error("this kernel has no loop devices (/dev/loop-control is missing)")]
    NoLoop,
    /// `losetup` cannot be run.
    #[error("cannot run losetup: {0}")]
    Run(#[source] io::Error),
    /// `losetup` failed.
    #[error("losetup failed: {0}")]
    Losetup(String),
}

/// A loop device. It stays attached when this is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    node: PathBuf,
    /// The kernel detaches the device when its last user closes it.
    is_detaching: bool,
}

/// Returns whether the kernel has loop devices.
pub fn is_available() -> bool {
    Path::new("/dev/loop-control").exists()
}

/// Options of a loop device.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopOptions {
    /// Length of a logical block in bytes: a data unit, so that no request ends within one. Kernels that do not support
    /// it use 4096.
    pub block: usize,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Default for LoopOptions {
    /// Returns blocks of 512 bytes, and permits writes.
    fn default() -> Self {
        Self { block: 512, read_only: false }
    }
}

impl LoopDevice {
    /// Attaches a free loop device to `file`. Blocks.
    ///
    /// # Errors
    /// There are no loop devices, or `losetup` cannot be run or fails.
    pub fn attach(file: &Path, options: &LoopOptions) -> Result<Self, LoopError> {
        let LoopOptions { block, read_only } = *options;
        if !is_available() {
            return Err(LoopError::NoLoop);
        }
        let command = |block: usize, direct: bool| {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show", "--sector-size"]).arg(block.max(512).to_string());
            if read_only {
                command.arg("--read-only");
            }
            // Direct I/O: the loop device has a page cache of its own.
            command.args(direct.then_some("--direct-io=on"));
            command.arg("--").arg(file);
            command
        };
        let attempt = |block| losetup(command(block, true)).or_else(|_| losetup(command(block, false)));
        let shown = match attempt(block) {
            Err(_) if block > BLOCK_EVERYWHERE => attempt(BLOCK_EVERYWHERE)?,
            shown => shown?,
        };
        let node = PathBuf::from(shown.trim());
        if !node.starts_with("/dev") {
            return Err(LoopError::Losetup(format!("unexpected output: '{}'", shown.trim())));
        }
        Ok(Self { node, is_detaching: false })
    }

    /// Returns the loop devices that are attached to `file`.
    pub fn all_on(file: &Path) -> Vec<Self> {
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let names = devices.map(|entry| entry.file_name()).filter(|name| name.as_encoded_bytes().starts_with(b"loop"));
        let devices = names.map(|name| Self { node: Path::new("/dev").join(name), is_detaching: false });
        devices.filter(|device| device.backing_file().is_some_and(|backing| backing == file)).collect()
    }

    /// Returns the path of the block device, `/dev/loopN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Returns whether the device uses direct I/O on its file.
    pub fn is_direct(&self) -> bool {
        self.attribute("loop/dio").is_some_and(|text| text == "1")
    }

    /// Returns whether the device is attached to a file.
    pub fn is_attached(&self) -> bool {
        self.backing_file().is_some()
    }

    /// Detaches the device, or has the kernel detach it when its last user closes it. Returns whether it is detached.
    /// Blocks for half a second at most.
    ///
    /// # Errors
    /// `losetup` cannot be run or fails.
    pub fn detach(&mut self) -> Result<bool, LoopError> {
        if !self.is_attached() {
            return Ok(true);
        }
        if !self.is_detaching {
            let mut command = Command::new("losetup");
            command.arg("--detach").arg(&self.node);
            losetup(command)?;
            self.is_detaching = true;
            // Programs such as udev open a device for a moment.
            for _ in 0..50 {
                if !self.is_attached() {
                    return Ok(true);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(!self.is_attached())
    }

    /// Sets the length of the device to that of the file.
    ///
    /// # Errors
    /// `losetup` cannot be run or fails.
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
