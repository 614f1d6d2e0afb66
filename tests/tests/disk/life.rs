//! From an empty image to a file system and back, with each file system, and with `mount` and `umount`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use inlock_tests::image::key_file;
use inlock_tests::process::{inlock, lossy, output, program, text};
use inlock_tests::report::count;

use crate::support::{Disk, KILLING, can_make_disks, harvest, plant};

const FILES: usize = 20_100;

fn check(program_and_words: &[&str], node: &Path) -> Result<()> {
    let (name, words) = program_and_words.split_first().expect("a program");
    let _alone = name.contains("btrfs").then(|| KILLING.write());
    text(program(name).args(words).arg(node)).map(drop)
}

/// Runs mkfs, writes a tree of files, closes, lets cryptsetup check the volume, opens again, compares every file, and
/// runs fsck.
fn life(mkfs: &[&str], fsck: &[&str]) -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(600 << 20)?;
    let node = disk.open(&["--via", "loop"])?;
    check(mkfs, &node)?;
    disk.mount(&node)?;
    let planted = plant(&disk.mount_point(), FILES, 6)?;
    disk.unmount()?;
    disk.close()?;
    ensure!(!Path::new("/dev/inlock").join(&disk.name).exists(), "the name stays in /dev");
    text(program("cryptsetup").args(["open", "--test-passphrase", "--key-file"]).arg(&disk.key).arg(&disk.image))?;

    let node = disk.open(&["--via", "loop"])?;
    let linked = std::fs::canonicalize(Path::new("/dev/inlock").join(&disk.name))?;
    ensure!(linked == node, "/dev/inlock names {}, not {}", linked.display(), node.display());
    disk.mount(&node)?;
    harvest(&disk.mount_point(), &planted)?;
    disk.unmount()?;
    check(fsck, &node)?;
    disk.close()?;
    count("files_on_a_disk", planted.len());
    Ok(())
}

#[test]
fn ext4() -> Result<()> {
    life(&["mkfs.ext4", "-q", "-N", "40000"], &["e2fsck", "-fn"])
}

#[test]
fn xfs() -> Result<()> {
    life(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"])
}

#[test]
fn btrfs() -> Result<()> {
    life(&["mkfs.btrfs", "-q"], &["btrfs", "check", "--readonly"])
}

/// Kernels differ in the maximum block size of loop devices.
#[test]
fn loop_device_has_data_units_longer_than_page() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, name) = (dir.path().join("image"), format!("inlock-test-units-{}", std::process::id()));
    File::create(&image)?.set_len(4 << 20)?;
    let key = key_file(dir.path(), "key", &[7; 32])?;
    let mut command = inlock()?;
    command.arg("open").arg(&image).arg(&name).args(["--type", "plain", "--sector-size", "65536", "--via", "loop"]);
    let node = PathBuf::from(text(command.arg("--key-file").arg(&key))?.trim_end());
    let kept = keeps_parts_of_units(&node);
    let closed = output(inlock()?.arg("close").arg(&name))?;
    kept?;
    ensure!(closed.status.success(), "close: {}", lossy(&closed.stderr));
    Ok(())
}

fn keeps_parts_of_units(node: &Path) -> Result<()> {
    let device = File::options().read(true).write(true).open(node)?;
    device.write_all_at(&[3; 12_288], 12_288)?;
    device.sync_all()?;
    let mut read = [0; 12_288];
    File::open(node)?.read_exact_at(&mut read, 12_288)?;
    ensure!(read == [3; 12_288], "other bytes");
    Ok(())
}

#[test]
fn mount_and_umount_open_and_close_volume() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(64 << 20)?;
    let mount = || -> Result<_> {
        let mut command = inlock()?;
        command.arg("mount").arg(&disk.image).arg(disk.mount_point()).arg("--key-file").arg(&disk.key);
        command.args(["--via", "loop", "--name", &disk.name]);
        Ok(command)
    };
    // Without a file system the mount fails, and the volume is closed again.
    ensure!(text(&mut mount()?).is_err(), "an empty volume was mounted");
    ensure!(!disk.say("status", &[])?.status.success(), "the volume stays open");
    let node = disk.open(&["--via", "loop"])?;
    check(&["mkfs.ext4", "-q"], &node)?;
    disk.close()?;
    text(&mut mount()?)?;
    let planted = plant(&disk.mount_point(), 500, 7)?;
    text(inlock()?.arg("umount").arg(disk.mount_point()))?;
    ensure!(!disk.say("status", &[])?.status.success(), "the volume stays open");
    text(mount()?.arg("--read-only"))?;
    harvest(&disk.mount_point(), &planted)?;
    ensure!(std::fs::write(disk.mount_point().join("new"), "x").is_err(), "it can be written to");
    text(inlock()?.arg("umount").arg(disk.mount_point()))?;
    Ok(())
}

#[test]
fn resize_grows_mounted_file_system() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(400 << 20)?;
    let node = disk.open(&["--via", "loop"])?;
    check(&["mkfs.xfs", "-q"], &node)?;
    disk.mount(&node)?;
    let planted = plant(&disk.mount_point(), 200, 9)?;
    let free_before = rest(&disk.mount_point())?;
    let len = || -> Result<u64> { Ok(text(program("blockdev").arg("--getsize64").arg(&node))?.trim().parse()?) };
    let before = len()?;
    // Not a whole number of data units: the rest is ignored.
    std::fs::OpenOptions::new().write(true).open(&disk.image)?.set_len((480 << 20) + 512)?;
    let resized = disk.say("resize", &[])?;
    ensure!(resized.status.success(), "{resized:?}");
    ensure!(len()? == before + (80 << 20), "{} bytes after {before}", len()?);
    text(program("xfs_growfs").arg(disk.mount_point()))?;
    let free = rest(&disk.mount_point())?;
    ensure!(free > free_before + (70 << 20), "{free} bytes are free in the file system that has grown");
    std::fs::write(disk.mount_point().join("large"), vec![7; free as usize - (8 << 20)])?;
    disk.unmount()?;
    check(&["xfs_repair", "-n"], &node)?;
    // A second resize without growth succeeds.
    ensure!(disk.say("resize", &[])?.status.success() && len()? == before + (80 << 20));
    disk.close()?;
    std::fs::OpenOptions::new().write(true).open(&disk.image)?.set_len(480 << 20)?;
    let node = disk.open(&["--via", "loop"])?;
    disk.mount(&node)?;
    harvest(&disk.mount_point(), &planted)?;
    disk.unmount()?;
    disk.close()
}

/// Returns the free bytes of a file system.
fn rest(dir: &Path) -> Result<u64> {
    let words = text(program("df").args(["--output=avail", "-B1"]).arg(dir))?;
    Ok(words.split_whitespace().last().unwrap_or_default().parse()?)
}

/// The process of root is locked into memory as a whole.
#[test]
fn fuse_process_memory_is_bounded() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let path = disk.open(&["--via", "fuse", "--threads", "1"])?;
    // Its thread is running after the first read.
    File::open(&path)?.read_exact_at(&mut [0; 4096], 0)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", disk.pid()?))?;
    disk.close()?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.split_whitespace().next());
        Ok(value.with_context(|| format!("no {name} in {status}"))?.parse()?)
    };
    println!("{} KiB of its own, {} KiB locked", field("RssAnon:")?, field("VmLck:")?);
    ensure!(field("RssAnon:")? < 48 << 10, "{status}");
    Ok(())
}
