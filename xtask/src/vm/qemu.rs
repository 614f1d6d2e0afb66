//! One run of a machine: QEMU's emulated CPU, two serial lines out of it, disks, and a hard time limit.
//!
//! The kernel's console goes to one file, what the guest reports to another. The limit is kept by `timeout`, so that no
//! machine outlives it even where this process is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Configuration of a machine.
pub(super) struct Machine<'a> {
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub memory_mib: u32,
    pub cpus: u32,
    /// Raw images, in the guest `/dev/vda` and on.
    pub disks: &'a [PathBuf],
    /// Further words for the kernel's command line.
    pub kernel_args: &'a str,
    /// The end of which file the kernel's console is written to.
    pub console: &'a Path,
    /// The end of which file the guest's report is written to.
    pub report: &'a Path,
    /// After so many seconds the machine is switched off.
    pub seconds: u64,
}

/// How a run came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The guest switched itself off, or its kernel panicked.
    Stopped,
    /// The time limit was reached.
    TimedOut,
}

/// A panic ends the machine at once, and so does what Linux would carry on after.
const KERNEL_ARGS: &str = "console=ttyS0 panic=-1 oops=panic mitigations=off random.trust_cpu=on";

impl Machine<'_> {
    /// Switches it on and waits for its end.
    pub(super) fn run(&self) -> Result<End> {
        let mut command = Command::new("timeout");
        command.args(["--foreground", "--kill-after=5", &self.seconds.to_string(), "qemu-system-x86_64"]);
        // Without cx16 early code of the kernel takes another way than the one that fails under emulation now and then.
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35"]);
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16"]);
        command.args(["-m", &self.memory_mib.to_string(), "-smp", &self.cpus.to_string()]);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initramfs);
        command.args(["-append", &format!("{KERNEL_ARGS} {}", self.kernel_args)]);
        command.args(["-chardev", &format!("file,id=console,append=on,path={}", self.console.display())]);
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", &format!("file,id=report,append=on,path={}", self.report.display())]);
        command.args(["-device", "virtserialport,chardev=report,name=report"]);
        for (n, disk) in self.disks.iter().enumerate() {
            let drive = format!("if=none,id=disk{n},format=raw,cache=unsafe,discard=unmap,file={}", disk.display());
            command.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive=disk{n}")]);
        }
        let status = command.stdin(Stdio::null()).status().context("cannot run qemu-system-x86_64")?;
        match status.code() {
            Some(0) => Ok(End::Stopped),
            Some(124 | 137) => Ok(End::TimedOut),
            _ => anyhow::bail!("qemu-system-x86_64 ends with {status}"),
        }
    }
}
