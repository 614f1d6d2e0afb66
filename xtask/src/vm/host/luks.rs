//! LUKS and plain volumes of Inlock, used in the guest by cryptsetup and dm-crypt, and vice versa.
//!
//! Inlock creates a volume with an ext4, which the guest checks, mounts, reads and writes; then Inlock exports the file
//! system. cryptsetup creates a volume in the guest, and data are written through dm-crypt; Inlock exports them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_ARGON2, CHEAP_PBKDF2, difference};
use inlock_tests::process::{inlock, program, text, text_with_input};
use inlock_tests::random::Random;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

const PASSPHRASE: &[u8] = b"a passphrase with blanks";
/// Length of the disks, of the file system in Inlock's volumes, and of the data in cryptsetup's, in bytes.
const DISK: u64 = 32 << 20;
const EXT4: u64 = 12 << 20;
const DATA: u64 = 8 << 20;
/// cryptsetup's defaults for plain volumes since 2.7, and before.
const PLAIN_NEW: &str = "--cipher aes-xts-plain64 --key-size 256 --hash sha256";
const PLAIN_OLD: &str = "--cipher aes-cbc-essiv:sha256 --key-size 256 --hash ripemd160";

/// A kind of volume.
struct Row {
    name: String,
    plain: bool,
    /// Options that create it, which are the same for cryptsetup and Inlock.
    format: String,
    /// Options that open it, for cryptsetup and for Inlock.
    open: [String; 2],
}

impl Row {
    fn luks(name: &str, format: &str) -> Self {
        let cheap = |options: &[&str]| options.join(" ");
        let cost = match format {
            _ if format.contains("argon2") => cheap(&CHEAP_ARGON2),
            _ if format.contains("luks1") => cheap(&CHEAP_PBKDF2[1..]),
            _ => cheap(&CHEAP_PBKDF2),
        };
        Self { name: name.into(), plain: false, format: format!("{format} {cost}"), open: Default::default() }
    }

    fn plain(name: &str, theirs: &str, ours: &str) -> Self {
        let open = [theirs.into(), format!("--type plain {ours}")];
        Self { name: name.into(), plain: true, format: String::new(), open }
    }

    /// Returns an `inlock` command with this action and the options that open the volume.
    fn inlock(&self, action: &str, key: &Path) -> Result<Command> {
        let mut command = inlock()?;
        command.arg(action).args(self.open[1].split_whitespace());
        if !self.plain {
            command.arg("--key-file").arg(key);
        }
        Ok(command)
    }

    /// Runs the command; the passphrase of a plain volume goes to standard input, where it is hashed.
    fn run(&self, command: &mut Command) -> Result<String> {
        let input = if self.plain { PASSPHRASE } else { b"" };
        text_with_input(command, input).with_context(|| self.name.clone())
    }
}

fn rows() -> Result<Vec<Row>> {
    // The guest has the host's cryptsetup.
    let version = text(program("cryptsetup").arg("--version"))?;
    let number = |n: usize| version.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty()).nth(n);
    let version: (u32, u32) = (number(0).context("no version")?.parse()?, number(1).context("no version")?.parse()?);
    let its_default = if version < (2, 7) { PLAIN_OLD } else { PLAIN_NEW };
    let mut rows = vec![
        Row::luks("luks1", "--type luks1"),
        Row::luks("luks1-cbc", "--type luks1 --cipher aes-cbc-essiv:sha256 --key-size 256 --hash sha1"),
        Row::luks("luks2-512", "--type luks2 --sector-size 512"),
        Row::luks("luks2-4096", "--type luks2 --sector-size 4096"),
        Row::luks("luks2-argon2", "--type luks2 --pbkdf argon2id --sector-size 4096 --key-size 256"),
        Row::luks("luks2-cbc", "--type luks2 --cipher aes-cbc-plain64 --key-size 256 --sector-size 512"),
        Row::luks("luks2-hmac", "--type luks2 --cipher aes-xts-random --integrity hmac-sha256 --sector-size 4096"),
        Row::luks(
            "luks2-gcm",
            "--type luks2 --cipher aes-gcm-random --integrity aead --key-size 256 --sector-size 4096",
        ),
        Row::plain("plain-default", "", its_default),
        Row::plain("plain-new", PLAIN_NEW, PLAIN_NEW),
        Row::plain("plain-old", PLAIN_OLD, PLAIN_OLD),
    ];
    let large = format!("{PLAIN_NEW} --sector-size 4096 --iv-large-sectors --skip 64 --offset 128");
    rows.push(Row::plain("plain-large", &large, &large));
    Ok(rows)
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let rows = rows()?;
    let key = scene.folder.join("key");
    fs::write(&key, PASSPHRASE)?;
    let mut random = Random::new(7);
    let new = random.bytes(100_000);
    let data = scene.folder.join("data.img");
    fs::write(&data, random.bytes(DATA as usize))?;
    let file_system = make_ext4(scene.folder, &mut random)?;
    scene.disks.push(data);
    let mut list = String::new();
    for row in &rows {
        let image = |whose: &str| scene.folder.join(format!("{}.{whose}.img", row.name));
        let (ours, theirs) = (image("ours"), image("theirs"));
        File::create(&ours)?.set_len(DISK)?;
        File::create(&theirs)?.set_len(DISK)?;
        if !row.plain {
            let mut format = inlock()?;
            format
                .args(["luksFormat", "-q"])
                .args(row.format.split_whitespace())
                .arg("--key-file")
                .arg(&key)
                .arg(&ours);
            row.run(&mut format)?;
        }
        row.run(row.inlock("import", &key)?.arg(&file_system).arg(&ours))?;
        let kind = if row.plain { "plain" } else { "luks" };
        let disks = (disk_name(scene.disks.len()), disk_name(scene.disks.len() + 1));
        list += &format!("{} {} {} {kind} {}|{}\n", row.name, disks.0, disks.1, row.format, row.open[0]);
        scene.disks.extend([ours, theirs]);
    }
    for (name, content) in [("vm/key", PASSPHRASE.to_vec()), ("vm/new", new.clone()), ("vm/rows", list.into_bytes())] {
        scene.files.push((name.to_owned(), content));
    }
    Ok(Box::new(move |scene, report| judge(&rows, &new, scene, report)))
}

/// Returns the name of the n-th virtio disk.
fn disk_name(n: usize) -> String {
    format!("vd{}", char::from(b'a' + n as u8))
}

/// Creates an image of an ext4 with some files and their hashes.
fn make_ext4(folder: &Path, random: &mut Random) -> Result<std::path::PathBuf> {
    let (content, image) = (folder.join("content"), folder.join("ext4.img"));
    fs::create_dir(&content)?;
    for (n, len) in [1, 511, 4096, 70_001, 1 << 20].into_iter().enumerate() {
        fs::write(content.join(format!("file{n}")), random.bytes(len))?;
    }
    let names = (0..5).map(|n| format!("file{n}"));
    let sums = text(program("sha256sum").args(names).current_dir(&content))?;
    fs::write(content.join("sums"), sums)?;
    File::create(&image)?.set_len(EXT4)?;
    text(program("mke2fs").args(["-q", "-t", "ext4", "-b", "4096", "-d"]).arg(&content).arg(&image))?;
    Ok(image)
}

fn judge(rows: &[Row], new: &[u8], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let key = scene.folder.join("key");
    let data = fs::read(scene.folder.join("data.img"))?;
    for row in rows {
        let found = [("ours", ours_after(row, new, scene, &key)), ("theirs", theirs_after(row, &data, scene, &key))];
        for (whose, result) in found {
            let name = format!("export-{whose}:{}", row.name);
            report.outcomes.push(match result {
                Ok(()) => Outcome::Ok(name),
                Err(error) => Outcome::Fail(name, format!("{error:#}")),
            });
        }
    }
    report.counts.push(("volumes_used_by_the_kernel".to_owned(), rows.len() as u64));
    report.counts.push(("volumes_of_the_kernel_used".to_owned(), rows.len() as u64));
    Ok(())
}

/// Checks that the file system that the guest wrote to, exported from Inlock's volume, is clean and has the guest's
/// file.
fn ours_after(row: &Row, new: &[u8], scene: &Scene<'_>, key: &Path) -> Result<()> {
    let raw = scene.folder.join(format!("{}.ext4", row.name));
    let range = format!("0:{EXT4}");
    let image = scene.folder.join(format!("{}.ours.img", row.name));
    row.run(row.inlock("export", key)?.args(["-q", "--range", &range]).arg(image).arg(&raw))?;
    text(program("e2fsck").arg("-fn").arg(&raw))?;
    let file = scene.folder.join("new");
    text(program("debugfs").arg("-R").arg(format!("dump new {}", file.display())).arg(&raw))?;
    same(&fs::read(&file).context("the guest's file")?, new)
}

/// Checks that Inlock exports the bytes that the guest wrote through dm-crypt.
fn theirs_after(row: &Row, data: &[u8], scene: &Scene<'_>, key: &Path) -> Result<()> {
    let raw = scene.folder.join(format!("{}.raw", row.name));
    let range = format!("0:{DATA}");
    let image = scene.folder.join(format!("{}.theirs.img", row.name));
    row.run(row.inlock("export", key)?.args(["-q", "--range", &range]).arg(image).arg(&raw))?;
    same(&fs::read(&raw)?, data)
}

fn same(ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
    Ok(())
}
