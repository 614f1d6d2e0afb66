//! Options of `open`: flags that `--persistent` stores in the header, and volumes that share a device.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;

use anyhow::{Result, ensure};
use inlock_tests::image::key_file;
use inlock_tests::process::{inlock, output, text};
use serde_json::Value;

use crate::support::{Disk, can_make_disks, fails};

/// Returns the flags that the volume has while it is open with these options, and those that the header has then.
fn flags(disk: &Disk, options: &[&str]) -> Result<(Value, Value)> {
    disk.open(&[&["--via", "fuse"], options].concat())?;
    let status: Value = serde_json::from_slice(&disk.say("status", &["--json"])?.stdout)?;
    disk.close()?;
    let metadata = text(inlock()?.args(["luksDump", "--dump-json-metadata"]).arg(&disk.image))?;
    Ok((status["table_flags"].clone(), serde_json::from_str::<Value>(&metadata)?["config"]["flags"].clone()))
}

#[test]
fn persistent_flags_replace_those_of_header() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let stores = |options: &[&str], of_volume: &[&str], of_header: &[&str]| -> Result<()> {
        let (volume, header) = flags(&disk, options)?;
        let none = Vec::new();
        let (volume, header) = (volume.as_array().unwrap_or(&none), header.as_array().unwrap_or(&none));
        ensure!(volume == of_volume && header == of_header, "{options:?}: {volume:?}, stored {header:?}");
        Ok(())
    };
    stores(&["--perf-same_cpu_crypt"], &["same_cpu_crypt"], &[])?;
    stores(&["--perf-same_cpu_crypt", "--persistent"], &["same_cpu_crypt"], &["same-cpu-crypt"])?;
    stores(&[], &["same_cpu_crypt"], &["same-cpu-crypt"])?;
    stores(&["--perf-no_read_workqueue", "--persistent"], &["no_read_workqueue"], &["no-read-workqueue"])?;
    stores(&["--persistent"], &[], &[])?;
    stores(&[], &[], &[])?;

    // A header that cannot store them is refused before the volume is opened.
    let key = key_file(disk.dir.path(), "other", b"other")?;
    let image = disk.dir.path().join("luks1");
    File::create(&image)?.set_len(4 << 20)?;
    let format = ["luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000"];
    text(inlock()?.args(format).args([&image, &key]))?;
    let open = inlock()?
        .arg("open")
        .arg(&image)
        .args([&disk.name, "--via", "fuse", "--persistent", "-d"])
        .arg(&key)
        .output()?;
    fails(&open, 1, &["not a valid LUKS2 device"])?;
    fails(&disk.say("status", &[])?, 4, &[])
}

/// Opens a plain volume of 256 sectors on a part of the image.
fn open_part(disk: &Disk, name: &str, offset: &str, options: &[&str]) -> Result<Output> {
    let key = key_file(disk.dir.path(), "plain", &[7; 32])?;
    let mut command = inlock()?;
    command.arg("open").arg(&disk.image).args([name, "--type", "plain", "--size", "256", "--offset", offset]);
    output(command.args(["--via", "fuse", "--key-file"]).arg(&key).args(options))
}

#[test]
fn plain_volumes_share_device_if_both_say_so() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let [first, second, third] = ["a", "b", "c"].map(|end| format!("{}-{end}", disk.name));
    let close = |name: &str| text(inlock()?.args(["close", name])).map(drop);
    let shared = |name: &str, offset: &str| -> Result<PathBuf> {
        let ended = open_part(&disk, name, offset, &["--shared"])?;
        ensure!(ended.status.success(), "{ended:?}");
        Ok(PathBuf::from(String::from_utf8(ended.stdout)?.trim_end()))
    };

    // One of them does not say so.
    ensure!(open_part(&disk, &first, "0", &[])?.status.success());
    fails(&open_part(&disk, &second, "512", &["--shared"])?, 5, &["is in use"])?;
    close(&first)?;
    let parts = [shared(&first, "0")?, shared(&second, "512")?];
    fails(&open_part(&disk, &third, "1024", &[])?, 5, &["is in use"])?;

    // Each has its part.
    for (number, part) in (1..).zip(&parts) {
        // Its length cannot change, so it is not truncated.
        File::options().write(true).open(part)?.write_all_at(&vec![number; 256 * 512], 0)?;
    }
    for (number, part) in (1..).zip(&parts) {
        ensure!(std::fs::read(part)? == vec![number; 256 * 512], "part {number} has other bytes");
    }
    close(&first)?;
    close(&second)?;
    ensure!(open_part(&disk, &third, "1024", &[])?.status.success());
    close(&third)
}
