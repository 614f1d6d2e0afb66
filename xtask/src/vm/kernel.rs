//! The kernel under test: Debian's newest 6.12, unpacked from its package without installing it.
//!
//! The package is downloaded and unpacked once, in `target/vm`. Of its modules only those that tests need are kept,
//! decompressed, with the lists that `modprobe` reads. Tests get the cloud kernel, a third of the size, unless they
//! request the generic one, which has more modules.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::process::{output, program, text};

/// A variant of Debian's package.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Flavour {
    /// Made for virtual machines: few drivers and file systems.
    Cloud,
    /// For all machines.
    Generic,
}

impl Flavour {
    /// Returns prefix and suffix of the package's name.
    fn package(self) -> &'static str {
        match self {
            Self::Cloud => "^linux-image-6\\.12[^ ]*-cloud-amd64(-unsigned)?$",
            Self::Generic => "^linux-image-6\\.12\\.[0-9]+[^ -]*-amd64(-unsigned)?$",
        }
    }

    /// Returns its directory in `target/vm`.
    fn folder(self) -> &'static str {
        match self {
            Self::Cloud => "kernel",
            Self::Generic => "kernel-generic",
        }
    }
}

/// Directories and files under `kernel/` of the modules that guests get.
const MODULES: [&str; 19] = [
    "arch/x86/crypto",
    "crypto",
    "drivers/block",
    "drivers/md",
    "drivers/nvme/common",
    "drivers/nvme/host/nvme-core.ko.xz",
    "drivers/nvme/host/nvme-fabrics.ko.xz",
    "drivers/nvme/host/nvme-tcp.ko.xz",
    "drivers/nvme/target/nvme-loop.ko.xz",
    "drivers/nvme/target/nvmet-tcp.ko.xz",
    "drivers/nvme/target/nvmet.ko.xz",
    "drivers/scsi/scsi_debug.ko.xz",
    "fs/btrfs",
    "fs/configfs",
    "fs/f2fs",
    "fs/fuse",
    "fs/xfs",
    "fs/zonefs",
    "lib",
];

/// An unpacked kernel.
pub(super) struct Kernel {
    /// Output of `uname -r` in the guest.
    pub release: String,
    /// The bootable image.
    pub image: PathBuf,
    /// A directory to be copied to the guest's `/`, with `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Returns the kernel in its directory in `place`, which is created if it does not exist or has other modules.
    pub(super) fn provide(place: &Path, flavour: Flavour) -> Result<Self> {
        let folder = &place.join(flavour.folder());
        if folder.is_dir() && fs::read_to_string(folder.join("wanted")).ok() != Some(MODULES.join("\n")) {
            fs::remove_dir_all(folder)?;
        }
        if !folder.is_dir() {
            fs::create_dir_all(place)?;
            let unfinished = tempfile::tempdir_in(place)?;
            unpack(unfinished.path(), flavour)?;
            // Another process may have created the same.
            if fs::rename(unfinished.path(), folder).is_err() && !folder.is_dir() {
                bail!("cannot put the kernel to {}", folder.display());
            }
        }
        let release = fs::read_to_string(folder.join("release")).context("the unpacked kernel is incomplete")?;
        Ok(Self { release, image: folder.join("vmlinuz"), modules: folder.join("root") })
    }
}

/// Fills `folder` with `release`, `wanted`, `vmlinuz` and `root/lib/modules/RELEASE`.
fn unpack(folder: &Path, flavour: Flavour) -> Result<()> {
    let package = newest_package(flavour)?;
    let whole = folder.join("package");
    fs::create_dir(&whole)?;
    text(program("apt-get").args(["download", "-qq", &package]).current_dir(&whole)).context("no kernel")?;
    let archive = only_entry(&whole)?;
    text(program("dpkg-deb").arg("-x").arg(&archive).arg(&whole))?;
    let release =
        only_entry(&whole.join("lib/modules"))?.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::rename(whole.join("boot").join(format!("vmlinuz-{release}")), folder.join("vmlinuz"))?;

    let from = whole.join("lib/modules").join(&release);
    let to = folder.join("root/lib/modules").join(&release);
    for wanted in MODULES {
        copy_modules(&from.join("kernel").join(wanted), &to.join("kernel").join(wanted))?;
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(from.join(list), to.join(list)).with_context(|| format!("the kernel's package has no {list}"))?;
    }
    text(program("depmod").arg("-b").arg(folder.join("root")).arg(&release))?;
    fs::remove_dir_all(whole)?;
    fs::write(folder.join("wanted"), MODULES.join("\n"))?;
    Ok(fs::write(folder.join("release"), release)?)
}

/// Returns the newest matching package; as root, fetches missing package lists.
fn newest_package(flavour: Flavour) -> Result<String> {
    let pattern = flavour.package();
    let search = || text(program("apt-cache").args(["search", "--names-only", pattern]));
    let mut found = search()?;
    if found.is_empty() {
        output(program("apt-get").args(["update", "-qq"]))?;
        found = search()?;
    }
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let newest = names.max_by_key(|name| numbers(name)).with_context(|| format!("apt knows no {pattern}"))?;
    Ok(newest.to_owned())
}

/// Returns the numbers in a name, in order, by which versions are compared.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{} has {} entries, not 1", folder.display(), entries.len());
    Ok(entries[0].path())
}

/// Copies and decompresses a module, or a directory of them, if the package has it.
fn copy_modules(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_modules(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if from.is_file() {
        fs::create_dir_all(to.parent().context("a module without a directory")?)?;
        if from.extension().is_some_and(|e| e == "xz") {
            let unpacked = output(program("busybox").arg("xzcat").arg(from))?;
            ensure!(unpacked.status.success(), "{} does not decompress", from.display());
            fs::write(to.with_extension(""), unpacked.stdout)?;
        } else {
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let old = "linux-image-6.12.9+deb12-cloud-amd64";
        let new = "linux-image-6.12.117+deb12-cloud-amd64-unsigned";
        assert!(numbers(new) > numbers(old));
    }
}
