//! One run of a machine: QEMU's emulated CPU, two serial lines, disks, and a time limit.
//!
//! The kernel's console goes to one file, the guest's report to another. `timeout` enforces the limit, even if this
//! process is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Configuration of a machine.
pub(super) struct Machine<'a> {
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub memory_mib: u32,
    pub cpus: u32,
    /// Raw images, in the guest from `/dev/vda` on.
    pub disks: &'a [PathBuf],
    /// Further words for the kernel's command line.
    pub kernel_args: &'a str,
    /// File to which the kernel's console is appended.
    pub console: &'a Path,
    /// File to which the guest's report is appended.
    pub report: &'a Path,
    /// Time limit in seconds.
    pub seconds: u64,
}

/// End of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The guest powered off, or its kernel panicked.
    Stopped,
    /// The time limit was reached.
    TimedOut,
}

/// A panic ends the machine immediately, and so does an oops.
const KERNEL_ARGS: &str = "console=ttyS0 panic=-1 oops=panic mitigations=off random.trust_cpu=on";

impl Machine<'_> {
    /// Runs the machine to its end.
    pub(super) fn run(&self) -> Result<End> {
        let mut command = Command::new("timeout");
        command.args(["--foreground", "--kill-after=5", &self.seconds.to_string(), "qemu-system-x86_64"]);
        // Without cx16 early kernel code takes another path than the one that sometimes fails under emulation.
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
