//! `luksHeaderBackup`, `luksHeaderRestore`, `repair`, `convert` and `doctor`.

mod harness;

use harness::terminal::talk;
use harness::{Dir, FAST, FAST1, call, call_with, inlock, run};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Creates a volume that `secret` opens.
fn volume(dir: &Dir, version: u32) -> String {
    let image = dir.image("image", 24);
    let words: Vec<&str> = if version == 1 { FAST1.to_vec() } else { FAST.to_vec() };
    call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(&words)).works();
    image
}

fn opens(image: &str) -> bool {
    call_with(b"secret", ["open", "--test-passphrase", image]).code == 0
}

fn damage(image: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(image).expect("the image is a file");
    change(&mut bytes);
    std::fs::write(image, bytes).expect("the image is a file");
}

fn doctor(words: &[&str]) -> (i32, Value) {
    let ended = run(inlock().args(["doctor", "--json"]).args(words), b"");
    (ended.code, serde_json::from_slice(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}")))
}

#[test]
fn backup_is_for_its_owner_never_replaces_a_file_and_restores_a_lost_header() {
    for version in [1, 2] {
        let dir = Dir::new();
        let image = volume(&dir, version);
        let backup = dir.name("backup");
        call(["luksHeaderBackup", &image, "--header-backup-file", &backup]).works();
        assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o400);
        let again = call(["luksHeaderBackup", &image, "--header-backup-file", &backup]);
        again.fails(1, &["Requested header backup file", "already exists."]);
        damage(&image, |bytes| bytes[..200_000].fill(0));
        assert!(!opens(&image));
        call(["luksHeaderRestore", "-q", &image, "--header-backup-file", &backup]).works();
        assert!(opens(&image));
        // A backup is no backup if a part is missing; nothing is written then.
        std::fs::set_permissions(&backup, std::fs::Permissions::from_mode(0o600)).unwrap();
        damage(&backup, |bytes| bytes.truncate(100_000));
        let before = std::fs::read(&image).unwrap();
        let refused = call(["luksHeaderRestore", "-q", &image, "--header-backup-file", &backup]);
        refused.fails(1, &["Backup file does not contain valid LUKS header"]);
        assert!(std::fs::read(&image).unwrap() == before);
    }
    call(["luksHeaderBackup", "image"]).fails(1, &["Option --header-backup-file is required."]);
}

#[test]
fn format_backs_the_header_up() {
    let dir = Dir::new();
    let (image, backup) = (dir.image("image", 24), dir.name("backup"));
    let words = ["luksFormat", "-q", &image, "--header-backup-file", &backup];
    call_with(b"secret", words.iter().chain(&FAST)).works();
    damage(&image, |bytes| bytes[..40_000].fill(0));
    call(["luksHeaderRestore", "-q", &image, "--header-backup-file", &backup]).works();
    assert!(opens(&image));
    let before = std::fs::read(&image).unwrap();
    let refused = call_with(b"secret", words.iter().chain(&FAST));
    refused.fails(1, &["already exists"]);
    assert!(std::fs::read(&image).unwrap() == before, "nothing is formatted without its backup");
}

#[test]
fn repair_makes_damaged_copies_and_values_whole() {
    let dir = Dir::new();
    let image = volume(&dir, 2);
    for copy in [0, 16384] {
        damage(&image, |bytes| bytes[copy + 5000] ^= 1);
        let (code, report) = doctor(&[&image]);
        assert_eq!((code, report["health"].as_str()), (10, Some("damaged")));
        assert!(report["advice"].to_string().contains("inlock repair"), "{report}");
        let repaired = call(["repair", "-q", &image]);
        assert!(repaired.code == 0 && repaired.err.contains("rewrite the"), "{repaired:?}");
        assert_eq!(doctor(&[&image]).0, 0);
        assert!(opens(&image));
    }
    call(["repair", "-q", &image]).works();

    let image = volume(&dir, 1);
    // Stripes of an unused keyslot.
    damage(&image, |bytes| bytes[208 + 48 * 5 + 44..208 + 48 * 5 + 48].fill(0));
    assert!(!opens(&image));
    assert_eq!(doctor(&[&image]).0, 11);
    let repaired = call(["repair", "-q", &image]);
    assert!(repaired.code == 0 && repaired.err.contains("keyslot 5: set stripes from 0 to 4000"), "{repaired:?}");
    assert!(opens(&image));
    let nothing = dir.image("nothing", 1);
    call(["repair", "-q", &nothing]).fails(1, &["is not a valid LUKS device."]);
}

#[test]
fn conversion_keeps_the_passphrase_both_ways() {
    let dir = Dir::new();
    let image = volume(&dir, 1);
    let backup = dir.name("backup");
    call(["convert", "-q", "--type", "luks2", "--header-backup-file", &backup, &image]).works();
    call(["isLuks", "--type", "luks2", &image]).works();
    assert!(opens(&image) && Path::new(&backup).exists());
    call(["convert", "-q", "--type", "luks2", &image]).fails(1, &["Device is already LUKS2 type."]);
    call(["convert", "-q", "--type", "luks1", &image]).works();
    call(["isLuks", "--type", "luks1", &image]).works();
    assert!(opens(&image));
    call(["convert", "-q", &image]).fails(1, &["Invalid LUKS type"]);
    let argon2 = volume(&dir, 2);
    let refused = call(["convert", "-q", "--type", "luks1", &argon2]);
    refused.fails(1, &["Cannot convert to LUKS1 format - ", "hint: "]);
    assert!(opens(&argon2));
}

#[test]
fn doctor_finds_headers_in_an_image_of_a_disk_and_changes_nothing() {
    let dir = Dir::new();
    let image = volume(&dir, 2);
    let header = std::fs::read(&image).unwrap();
    let (code, report) = doctor(&[&image]);
    assert_eq!((code, report["header"]["keyslots"][0]["can_work"].as_bool()), (0, Some(true)), "{report}");

    let disk = dir.image("disk", 60);
    damage(&disk, |bytes| {
        bytes[1 << 20..][..header.len()].copy_from_slice(&header);
        // Another one of which only the second copy is left.
        bytes[30 << 20..][..header.len()].copy_from_slice(&header);
        bytes[30 << 20..][..4096].fill(0);
    });
    let before = std::fs::read(&disk).unwrap();
    let (code, report) = doctor(&[&disk]);
    assert_eq!(code, 11);
    let found = report["found"].as_array().unwrap();
    let offsets: Vec<u64> = found.iter().map(|one| one["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, [1 << 20, 30 << 20], "{report}");
    assert_eq!(found[0]["what"], "LUKS2 volume");
    assert!(found[1]["what"].as_str().unwrap().contains("only the second header copy"), "{report}");
    assert!(report["advice"].to_string().contains("losetup --find --show --read-only --offset 1048576"), "{report}");
    // The advice works: the header can be copied to a file and read.
    let command = report["advice"].as_array().unwrap().iter().find_map(|one| {
        one["command"].as_str().filter(|command| command.starts_with("dd ") && command.contains("skip=1048576 "))
    });
    let copied = run(std::process::Command::new("sh").current_dir(dir.path("")).args(["-c", command.unwrap()]), b"");
    assert_eq!(copied.code, 0, "{copied:?}");
    assert!(call(["luksDump", &dir.name("header.img")]).works().text().contains("LUKS header information"));
    let text = call(["doctor", "-q", &disk]);
    assert!(text.code == 11 && text.text().contains("Found:    byte 1048576: LUKS2 volume"), "{text:?}");
    assert!(std::fs::read(&disk).unwrap() == before, "doctor wrote");

    let nothing = dir.image("nothing", 3);
    assert_eq!(doctor(&[&nothing]).0, 12);
    damage(&image, |bytes| bytes[40_000..60_000].fill(0));
    let (code, report) = doctor(&[&image]);
    assert_eq!(code, 11);
    assert!(report["header"]["keyslots"][0]["state"].as_str().unwrap().contains("overwritten"), "{report}");
}

/// A keyslot that no passphrase can open.
#[test]
fn repair_erases_keyslot_only_if_the_user_confirms() {
    const KEYSLOT_5: usize = 208 + 48 * 5;
    let dir = Dir::new();
    let image = volume(&dir, 1);
    // It is enabled, and has no iterations.
    damage(&image, |bytes| bytes[KEYSLOT_5..][..4].copy_from_slice(&[0x00, 0xac, 0x71, 0xf3]));
    let before = std::fs::read(&image).unwrap();
    for words in [&["repair", &*image][..], &["repair", "-q", &image]] {
        call(words).fails(0, &["damaged keyslots stay; erase them with `inlock luksKillSlot`"]);
        assert!(std::fs::read(&image).unwrap() == before, "{words:?} changes the header");
    }
    let sure = "Are you sure? (Type 'yes' in capital letters): ";
    let Some(said) = talk(&[(sure, "yes\n")], &["repair", &image]) else { return };
    assert!(said["status"] == 1 && std::fs::read(&image).unwrap() == before, "{said}");
    assert!(said["text"].as_str().unwrap().contains("cannot be restored without a header backup"), "{said}");
    let said = talk(&[(sure, "YES\n")], &["repair", &image]).unwrap();
    assert_eq!(said["status"], 0, "{said}");
    let bytes = std::fs::read(&image).unwrap();
    assert_eq!(bytes[KEYSLOT_5..][..4], [0x00, 0x00, 0xde, 0xad]);
    assert!(opens(&image));
}
