//! Where a header is: on the data device under another name, before an unaligned payload, in a detached file, on a disk
//! with unreadable sectors.

use crate::harness::control::Run;
use crate::harness::storage::Loop;
use crate::harness::{Dir, FAST, FAST1, call, call_with, has_fuse, noise};
use inlock_tests::wait::eventually;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

fn format(words: &[&str], costs: &[&str]) {
    call_with(b"secret", ["luksFormat", "-q"].iter().chain(words).chain(costs)).works();
}

/// A header with its payload at byte 0 was made for another device.
#[test]
fn header_on_the_data_device_is_known_under_every_name() {
    for costs in [&FAST[..], &FAST1] {
        let dir = Dir::new();
        let (image, other) = (dir.image("image", 24), dir.image("other", 24));
        format(&[&other, "--header", &image], costs);
        let before = fs::read(&image).expect("readable");
        let Some(device) = Loop::over(&image) else { return };
        let link = dir.name("link");
        std::os::unix::fs::symlink(&image, &link).expect("writable");
        let payload = dir.file("payload", &noise(1 << 20));
        for (header, data) in [(&image, &image), (&image, &link), (&device.0, &image), (&image, &device.0)] {
            for words in [&["import", &payload, data][..], &["export", data, "/dev/null"]] {
                let ended = call_with(b"secret", words.iter().chain(&["--header", header]));
                ended.fails(1, &["cannot be used", "hint: name the data device"]);
            }
            assert!(fs::read(&image).expect("readable") == before, "{header} {data}: the header was overwritten");
        }
        for names in [[&image, &image], [&image, &device.0], [&device.0, &image]] {
            let words = ["luksFormat", "-q", names[0], "--header", names[1]];
            let ended = call_with(b"secret", words.iter().chain(costs));
            ended.fails(1, &["Option --header names the device itself."]);
            assert!(fs::read(&image).expect("readable") == before, "{names:?}: the header was overwritten");
        }
        drop(device);

        // One with its payload behind it is that of the device, under both names.
        format(&[&image], costs);
        let Some(device) = Loop::over(&image) else { return };
        let words = ["import", &payload, &image, "--header", &device.0];
        call_with(b"secret", words).works();
        drop(device);
        let exported = call_with(b"secret", ["export", "--range", "0:1M", &image, "-"]);
        assert!(exported.code == 0 && exported.out == noise(1 << 20), "{}", exported.err);
    }
}

/// Loop devices over parts of a file: a header outside of the payload, or in it.
#[test]
fn header_in_its_payload_is_refused() {
    let dir = Dir::new();
    let (image, payload) = (dir.image("image", 64), dir.file("payload", &noise(1 << 20)));
    let part = |start: u64, len: u64| {
        Loop::with(&image, &["--offset", &(start << 20).to_string(), "--sizelimit", &(len << 20).to_string()])
    };
    let (Some(first), Some(second), Some(overlapping)) = (part(0, 20), part(20, 40), part(19, 40)) else { return };
    let costs = [&FAST[..], &["--luks2-keyslots-size", "512k"]].concat();
    let formats = |data: &str, header: &str, more: &[&str]| {
        let words = ["luksFormat", "-q", data, "--header", header];
        call_with(b"secret", words.iter().chain(more).chain(&costs))
    };
    let before = fs::read(&image).expect("readable");
    formats(&overlapping.0, &second.0, &["--offset", "65536"]).fails(1, &["Option --header names the device itself."]);
    assert!(fs::read(&image).expect("readable") == before, "it was formatted");
    formats(&second.0, &first.0, &[]).works();
    call_with(b"secret", ["import", &payload, &second.0, "--header", &first.0]).works();

    // The same header at byte 1 MiB of a device whose payload it says begins at byte 0.
    sync(&first.0);
    let before = fs::read(&image).expect("readable");
    let (Some(early), Some(late)) = (part(1, 40), part(0, 60)) else { return };
    let copied: Vec<u8> = before[..1 << 20].to_vec();
    File::options().write(true).open(&early.0).and_then(|file| file.write_all_at(&copied, 0)).expect("writable");
    sync(&early.0);
    let before = fs::read(&image).expect("readable");
    let ended = call_with(b"secret", ["import", &payload, &late.0, "--header", &early.0]);
    ended.fails(1, &["lies in the payload of device", "hint: "]);
    assert!(fs::read(&image).expect("readable") == before, "the payload was written");
}

/// Writes what a device has cached.
fn sync(device: &str) {
    File::open(device).and_then(|file| file.sync_all()).expect("a device");
}

/// The payload of a LUKS1 volume may begin at any sector behind the last keyslot, which ends at 2050 here.
#[test]
fn restored_header_leaves_unaligned_payload_as_it_is() {
    for sector in [2050_u32, 2052, 2055, 2056] {
        let dir = Dir::new();
        let (image, backup) = (dir.image("image", 4), dir.name("backup"));
        format(&[&image, "--key-size", "256"], &FAST1);
        let file = File::options().write(true).open(&image).expect("a file");
        file.write_all_at(&sector.to_be_bytes(), 104).expect("writable");
        call(["luksHeaderBackup", &image, "--header-backup-file", &backup]).works();
        call_with(b"secret", ["import", &dir.file("payload", &noise(1 << 20)), &image]).works();
        let before = fs::read(&image).expect("readable");
        call(["luksHeaderRestore", "-q", &image, "--header-backup-file", &backup]).works();
        let after = fs::read(&image).expect("readable");
        let changed = (4096..after.len()).find(|&at| after[at] != before[at]);
        assert_eq!(changed, None, "payload at sector {sector}");
        let exported = call_with(b"secret", ["export", "--range", "0:1M", &image, "-"]);
        assert!(exported.code == 0 && exported.out == noise(1 << 20), "{}", exported.err);
    }
}

#[test]
fn detached_header_is_backed_up_and_restored() {
    for costs in [&FAST[..], &FAST1] {
        let dir = Dir::new();
        let (image, header, backup) = (dir.image("image", 4), dir.name("header"), dir.name("backup"));
        format(&[&image, "--header", &header], costs);
        let before = fs::read(&image).expect("readable");
        call(["luksHeaderBackup", &image, "--header", &header, "--header-backup-file", &backup]).works();
        let len = fs::metadata(&header).expect("a file").len();
        File::options().write(true).truncate(true).open(&header).and_then(|file| file.set_len(len)).expect("writable");
        let opens = || call_with(b"secret", ["open", "--test-passphrase", &image, "--header", &header]).code == 0;
        assert!(!opens());
        call(["luksHeaderRestore", "-q", &image, "--header", &header, "--header-backup-file", &backup]).works();
        assert!(opens() && fs::read(&image).expect("readable") == before, "it is another device that was restored");
    }
}

/// A dm-integrity volume of which one byte was changed: the sector is an I/O error until it is written again.
struct BadDisk<'a> {
    run: &'a Run,
    image: String,
    /// The start of the LUKS2 header.
    at: u64,
}

impl BadDisk<'_> {
    fn open(&self) -> Option<Loop> {
        let words = ["integrity", "open", &self.image, "disk", "--integrity-no-journal", "--via", "fuse"];
        Loop::over(self.run.call(&words).works().text().trim())
    }

    fn close(&self) {
        // Another process that lists loop devices keeps this one until it closes it.
        let close = || self.run.call(&["close", "disk"]);
        eventually("the loop device is detached", close, |ended| ended.code == 0);
    }

    /// Changes the byte at this place of the header.
    fn damage(&self, offset: u64) {
        let file = File::options().read(true).write(true).open(&self.image).expect("a file");
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.at + offset).expect("readable");
        file.write_all_at(&[byte[0] ^ 1], self.at + offset).expect("writable");
    }
}

#[test]
fn volume_opens_from_a_disk_with_an_unreadable_sector_and_is_repaired() {
    if !has_fuse() {
        return;
    }
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.image("image", 8);
    call(["integrity", "format", "-q", &image, "--integrity-no-journal"]).works();
    let mut disk = BadDisk { run: &run, image, at: 0 };
    let Some(device) = disk.open() else { return disk.close() };
    let costs = [&FAST[..], &["--offset", "2048"]].concat();
    format(&[&device.0], &costs);
    drop(device);
    disk.close();
    let bytes = fs::read(&disk.image).expect("a file");
    let is_header = |at: &usize| bytes[*at..].starts_with(b"LUKS\xba\xbe");
    disk.at = (0..bytes.len()).step_by(512).find(is_header).expect("the data are in the clear") as u64;
    let test = ["open", "--test-passphrase"];
    for (offset, which) in [(100, "first"), (9000, "first"), (16384 + 100, "second"), (16384 + 9000, "second")] {
        disk.damage(offset);
        let device = disk.open().expect("as before");
        let unreadable = File::open(&device.0).expect("a device").read_exact_at(&mut [0; 512], offset / 512 * 512);
        assert_eq!(unreadable.expect_err("it is damaged").raw_os_error(), Some(5), "{offset}");
        let warning = format!("{which} header copy is damaged, using the ");
        call_with(b"secret", test.iter().chain(&[&*device.0])).fails(0, &[&warning, "cannot be read: "]);
        let repaired = call(["repair", "-q", &device.0]);
        repaired.fails(0, &[&format!("rewrite the {which} header copy")]);
        call_with(b"secret", test.iter().chain(&[&*device.0])).works();
        drop(device);
        disk.close();
        // Not only in a cache.
        let device = disk.open().expect("as before");
        call_with(b"secret", test.iter().chain(&[&*device.0])).works();
        drop(device);
        disk.close();
    }
    [100, 16384 + 9000].iter().for_each(|&offset| disk.damage(offset));
    let device = disk.open().expect("as before");
    for words in [&test[..], &["repair", "-q"]] {
        call_with(b"secret", words.iter().chain(&[&*device.0])).fails(1, &["cannot read the header"]);
    }
    drop(device);
    disk.close();
}

/// Sectors outside of the header: the first one of the payload, and key material.
#[test]
fn bad_sector_of_data_or_of_a_keyslot_costs_no_more_than_itself() {
    if !has_fuse() {
        return;
    }
    for (costs, payload, material) in [(&FAST[..], 1 << 20, 32 << 10), (&FAST1, 2 << 20, 4096)] {
        let (dir, run) = (Dir::new(), Run::new());
        let image = dir.image("image", 8);
        call(["integrity", "format", "-q", &image, "--integrity-no-journal"]).works();
        let mut disk = BadDisk { run: &run, image, at: 0 };
        let Some(device) = disk.open() else { return disk.close() };
        format(&[&device.0, "--offset", &(payload / 512).to_string()], costs);
        let add = ["luksAddKey", "-q", &device.0, &dir.file("second", b"other")];
        call_with(b"secret", add.iter().chain(costs)).works();
        let data = dir.file("data", &noise(1 << 20));
        call_with(b"secret", ["import", &data, &device.0]).works();
        drop(device);
        disk.close();
        let bytes = fs::read(&disk.image).expect("a file");
        let is_header = |at: &usize| bytes[*at..].starts_with(b"LUKS\xba\xbe");
        disk.at = (0..bytes.len()).step_by(512).find(is_header).expect("the data are in the clear") as u64;

        disk.damage(payload);
        let device = disk.open().expect("as before");
        let bad = format!("the start of the data, at byte {payload}, cannot be read");
        call_with(b"secret", ["open", "--test-passphrase", &device.0]).works();
        let exported = call_with(b"secret", ["export", "--range", "65536:65536", &device.0, "-"]);
        assert!(exported.code == 0 && exported.out == noise(1 << 20)[65536..131072], "{}", exported.err);
        call_with(b"secret", ["serve", "-r", &device.0, "--run", "true"]).fails(0, &[&bad]);
        assert_eq!(exported.err.matches(&bad).count(), 1, "{}", exported.err);
        let examined = call(["doctor", &device.0]);
        assert!(examined.code == 10 && examined.text().contains(&bad), "{} {}", examined.text(), examined.err);
        drop(device);
        disk.close();

        disk.damage(material);
        let device = disk.open().expect("as before");
        let examined = call(["doctor", &device.0]);
        let (first, second) = ("0: cannot work: its key material cannot be read: ", "1: can work");
        let said = |words: &str| examined.text().contains(words);
        assert!(examined.code == 10 && said(first) && said(second), "{} {}", examined.text(), examined.err);
        drop(device);
        disk.close();
    }
}
