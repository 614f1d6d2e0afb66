//! Flags that `open --persistent` stores in the header.

use anyhow::{Result, ensure};
use inlock_tests::image::key_file;
use inlock_tests::process::{inlock, text};
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
    std::fs::File::create(&image)?.set_len(4 << 20)?;
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
