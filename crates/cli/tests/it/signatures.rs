//! Devices that have another format's signature: what LUKS commands believe, name and leave alone.

use crate::harness::terminal::talk;
use crate::harness::{Dir, FAST, FAST1, call, call_with, have};
use std::process::Command;

/// Bytes at their offsets.
type Parts = Vec<(usize, Vec<u8>)>;

/// Bytes that make a device another format's, at offsets before the second copy of a LUKS2 header.
fn formats() -> Vec<(&'static str, Parts)> {
    let mut lvm = vec![0; 512];
    lvm[..8].copy_from_slice(b"LABELONE");
    lvm[24..32].copy_from_slice(b"LVM2 001");
    let mut table = vec![0; 512];
    (table[446 + 4], table[446 + 12]) = (0x83, 8);
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let raid = [0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0].to_vec();
    vec![
        ("LVM2_member", vec![(512, lvm)]),
        ("linux_raid_member", vec![(4096, raid)]),
        ("dos", vec![(0, table)]),
        ("xfs", vec![(0, b"XFSB".to_vec())]),
        ("swap", vec![(4086, b"SWAPSPACE2".to_vec())]),
    ]
}

/// Makes a volume another format's device; the second copy of its header is left.
fn overwrite(image: &str, format: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = std::fs::read(image).expect("readable");
    bytes[..16384].fill(0);
    for (at, content) in format {
        bytes[*at..*at + content.len()].copy_from_slice(content);
    }
    std::fs::write(image, &bytes).expect("writable");
    bytes
}

#[test]
fn remnant_of_a_header_below_another_format_is_neither_opened_nor_written() {
    let dir = Dir::new();
    let (image, key) = (dir.luks2("image"), dir.file("key", b"other"));
    let whole = std::fs::read(&image).expect("readable");
    let verbs: &[&[&str]] = &[
        &["open", "--test-passphrase"],
        &["export", "--range", "0:512"],
        &["luksDump"],
        &["luksUUID"],
        &["luksUUID", "--uuid", "11111111-2222-3333-4444-555555555555", "-q"],
        &["luksAddKey", "--new-keyfile", &key],
        &["luksChangeKey", "-q"],
        &["luksRemoveKey", "-q"],
        &["luksKillSlot", "-q"],
        &["luksConvertKey", "-q"],
        &["erase", "-q"],
        &["config", "--label", "x"],
        &["token", "add", "--key-description", "x"],
        &["convert", "-q", "--type", "luks1"],
        &["luksHeaderBackup", "--header-backup-file", "/nonexistent"],
    ];
    for (name, format) in formats() {
        std::fs::write(&image, &whole).expect("writable");
        let before = overwrite(&image, &format);
        let is_luks = call(["isLuks", &image]);
        assert_eq!((is_luks.code, &*is_luks.err), (1, ""), "{name}");
        for verb in verbs {
            let mut words = [verb, &[&*image][..]].concat();
            match verb[0] {
                "luksKillSlot" => words.push("0"),
                "export" => words.push("-"),
                _ => {}
            }
            let ended = call_with(b"secret", words);
            ended.fails(1, &[&format!("'{name}'")]);
            assert!(std::fs::read(&image).expect("readable") == before, "{name}: {verb:?} wrote");
        }
        let doctor = call(["doctor", "-q", &image]);
        assert_eq!(doctor.code, 11, "{doctor:?}");
        let text = doctor.text();
        assert!(text.contains(name) && text.contains("inlock repair --disable-blkid"), "{name}: {text}");
        // By its name, the option allows it.
        call_with(b"secret", ["open", "--test-passphrase", "--disable-blkid", &image]).fails(0, &["using the second"]);
        assert!(std::fs::read(&image).expect("readable") == before, "{name}: open wrote");
        let warned = format!("WARNING: Device {image} already contains a '{name}'");
        call(["repair", "-q", &image]).fails(0, &[&warned, "rewrite the first header copy"]);
        call_with(b"secret", ["open", "--test-passphrase", &image]).works();
    }
}

/// A label may look like a signature: it is none, neither when the header is written nor when its copy is damaged.
#[test]
fn label_is_no_signature() {
    let dir = Dir::new();
    for (number, label) in ["LVM2 001", "12345678NXSB", "      FAT16   "].iter().enumerate() {
        let image = dir.image(&format!("image{number}"), 24);
        let words = ["luksFormat", "-q", "--label", label, &image];
        call_with(b"secret", words.into_iter().chain(FAST)).works();
        let doctor = call(["doctor", "-q", &image]);
        assert!(doctor.code == 0 && !doctor.text().contains("Format:"), "{label}: {doctor:?}");
        let mut bytes = std::fs::read(&image).expect("readable");
        // The salt of the checksum.
        bytes[110] ^= 1;
        std::fs::write(&image, bytes).expect("writable");
        call_with(b"secret", ["open", "--test-passphrase", &image]).fails(0, &["using the second"]);
    }
}

/// An image of a virtual disk may end with a trailer, after any content.
#[test]
fn trailer_of_an_image_leaves_the_second_copy() {
    let dir = Dir::new();
    for (number, trailer) in [&b"conectix"[..], b"koly\0\0\0\x04"].iter().enumerate() {
        let image = dir.image(&format!("image{number}"), 24);
        call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(FAST)).works();
        let mut bytes = std::fs::read(&image).expect("readable");
        bytes[..512].fill(0);
        let at = bytes.len() - 512;
        bytes[at..at + trailer.len()].copy_from_slice(trailer);
        std::fs::write(&image, &bytes).expect("writable");
        call_with(b"secret", ["open", "--test-passphrase", &image]).fails(0, &["using the second"]);
        bytes[..4].copy_from_slice(b"QFI\xfb");
        std::fs::write(&image, bytes).expect("writable");
        call_with(b"secret", ["open", "--test-passphrase", &image]).fails(1, &["'qcow2'"]);
    }
}

#[test]
fn repair_of_an_ambiguous_device_asks_at_a_terminal() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let before = overwrite(&image, &formats()[0].1);
    let sure = "Are you sure? (Type 'yes' in capital letters): ";
    let Some(said) = talk(&[(sure, "no\n")], &["repair", &image]) else { return };
    let text = said["text"].as_str().expect("text");
    assert!(said["status"] == 1 && text.contains("already contains a 'LVM2_member' superblock signature"), "{said}");
    assert!(std::fs::read(&image).expect("readable") == before);
    let said = talk(&[(sure, "YES\n")], &["repair", &image]).expect("a terminal");
    assert_eq!(said["status"], 0, "{said}");
    call_with(b"secret", ["open", "--test-passphrase", &image]).works();
}

/// Type that libblkid sees, and all signatures that it would wipe.
fn seen(image: &str) -> (String, String) {
    let text = |command: &mut Command| {
        String::from_utf8(command.output().expect("the command runs").stdout).expect("text").trim().to_owned()
    };
    let kind = text(Command::new("blkid").args(["-p", "-o", "value", "-s", "TYPE", image]));
    (kind, text(Command::new("wipefs").args(["-n", "--noheadings", "-O", "TYPE", image])))
}

/// File systems as their own programs make them.
#[test]
fn new_headers_name_what_they_overwrite_and_leave_one_format() {
    let makers: &[(&str, &[&str], &str)] = &[
        ("mkfs.ext4", &["-q", "-F"], "ext4"),
        ("mkfs.ext2", &["-q", "-F"], "ext2"),
        ("mkfs.btrfs", &["-q", "-f"], "btrfs"),
        ("mkfs.f2fs", &["-q", "-f"], "f2fs"),
        ("mkfs.xfs", &["-q", "-f"], "xfs"),
        ("mkswap", &["-q"], "swap"),
    ];
    for (program, options, name) in makers.iter().filter(|(program, ..)| have(program)) {
        let dir = Dir::new();
        let image = dir.image("image", 320);
        let made = Command::new(program).args(*options).arg(&image).output().expect("the command runs");
        assert!(made.status.success(), "{made:?}");
        let mut bytes = [0; 4096];
        bytes[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        // And a member of a RAID, whose superblock is at the end.
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&image).expect("writable");
        file.write_all_at(&bytes, (320 << 20) - 8192).expect("writable");
        let named = format!("WARNING: Device {image} already contains a '{name}' superblock signature.");
        let words = ["luksFormat", &image];
        let formatted = call_with(b"secret", words.iter().copied().chain(FAST));
        formatted.fails(0, &[&named, "already contains a 'linux_raid_member' superblock signature."]);
        assert_eq!(seen(&image), ("crypto_LUKS".into(), "crypto_LUKS\ncrypto_LUKS".into()), "{name}");
        // libblkid asks more of a RAID's superblock than this one has.
        assert!(!call(["doctor", "-q", &image]).text().contains("Format:"), "{name}");
        let again = call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(FAST1));
        again.works();
        assert_eq!(seen(&image).1, "crypto_LUKS", "{name}");
    }
    if !have("mkfs.ext4") {
        return;
    }
    let dir = Dir::new();
    for words in [&["integrity", "format", "--no-wipe"][..], &["verity", "format"]] {
        let image = dir.image("image", 32);
        let made = Command::new("mkfs.ext4").args(["-q", "-F", &image]).output().expect("the command runs");
        assert!(made.status.success(), "{made:?}");
        let data = dir.file("data", &[7; 8192]);
        let devices: &[&str] = if words[0] == "verity" { &[&data, &image] } else { &[&image] };
        let named = "already contains a 'ext4' superblock signature.";
        call(words.iter().chain(devices)).fails(0, &[named]);
        // A hash device may have other parts; only what the tree takes is overwritten.
        let found = call(["doctor", "-q", &image]).text().to_owned();
        assert_eq!(found.contains("ext4"), words[0] == "verity", "{found}");
    }
    // Without a look for signatures, and with --batch-mode, nothing is printed.
    let image = dir.image("image", 32);
    Command::new("mkfs.ext4").args(["-q", "-F", &image]).output().expect("the command runs");
    call_with(b"secret", ["luksFormat", "--disable-blkid", &image].into_iter().chain(FAST)).works();
}
