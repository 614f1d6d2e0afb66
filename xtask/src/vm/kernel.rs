//! The kernel under test: Debian's newest 6.12 for clouds, taken from its package without installing it.
//!
//! The package is downloaded and unpacked once, under `target/vm/kernel`. Of its modules only those are kept that a test
//! can want, decompressed, with the lists that `modprobe` reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::process::{output, program, text};

/// What the package's name begins and ends with.
const PACKAGE: &str = "^linux-image-6\\.12[^ ]*-cloud-amd64(-unsigned)?$";

/// Folders and files of the package's modules that guests are given, by where they lie under `kernel/`.
const MODULES: [&str; 9] = [
    "arch/x86/crypto",
    "crypto",
    "drivers/block",
    "drivers/md",
    "drivers/scsi/scsi_debug.ko.xz",
    "fs/btrfs",
    "fs/configfs",
    "fs/xfs",
    "lib",
];

/// An unpacked kernel.
pub(super) struct Kernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    /// The bootable image.
    pub image: PathBuf,
    /// A folder to be copied to the guest's `/`: it holds `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
    /// The kernel in `folder`, which is made where it is not there yet or holds other modules than are wanted now.
    pub(super) fn provide(folder: &Path) -> Result<Self> {
        if folder.is_dir() && fs::read_to_string(folder.join("wanted")).ok() != Some(MODULES.join("\n")) {
            fs::remove_dir_all(folder)?;
        }
        if !folder.is_dir() {
            let parent = folder.parent().context("the kernel's folder has no parent")?;
            fs::create_dir_all(parent)?;
            let unfinished = tempfile::tempdir_in(parent)?;
            unpack(unfinished.path())?;
            // Whoever was faster has made the same.
            if fs::rename(unfinished.path(), folder).is_err() && !folder.is_dir() {
                bail!("cannot put the kernel to {}", folder.display());
            }
        }
        let release = fs::read_to_string(folder.join("release")).context("the unpacked kernel is incomplete")?;
        Ok(Self { release, image: folder.join("vmlinuz"), modules: folder.join("root") })
    }
}

/// Fills `folder` with `release`, `wanted`, `vmlinuz` and `root/lib/modules/RELEASE`.
fn unpack(folder: &Path) -> Result<()> {
    let package = newest_package()?;
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

/// The newest package whose name fits; the lists are fetched where they are missing and this is root.
fn newest_package() -> Result<String> {
    let search = || text(program("apt-cache").args(["search", "--names-only", PACKAGE]));
    let mut found = search()?;
    if found.is_empty() {
        output(program("apt-get").args(["update", "-qq"]))?;
        found = search()?;
    }
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let newest = names.max_by_key(|name| numbers(name)).context("apt knows no linux-image-6.12*-cloud-amd64")?;
    Ok(newest.to_owned())
}

/// The numbers in a name, in order: what two versions are compared by.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{} has {} entries, not 1", folder.display(), entries.len());
    Ok(entries[0].path())
}

/// Copies a module, or a folder of them, decompressed; what the package does not have is left out.
fn copy_modules(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_modules(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if from.is_file() {
        fs::create_dir_all(to.parent().context("a module lies in no folder")?)?;
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
