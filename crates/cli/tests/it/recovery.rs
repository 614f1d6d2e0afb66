//! `luksHeaderBackup`, `luksHeaderRestore`, `repair`, `convert` and `doctor`.

use crate::harness::terminal::talk;
use crate::harness::{Dir, FAST, FAST1, call, call_with, have, inlock, run};
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
        // What is wrong with the file is no error of the device.
        for file in [dir.name("missing"), dir.name("")] {
            call(["luksHeaderRestore", "-q", &image, "--header-backup-file", &file])
                .fails(1, &["Header backup file cannot be used", &file]);
        }
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

/// Runs `wipefs -a`, or a substitute with the same effect.
fn wipe_magics(image: &str) {
    damage(image, |bytes| {
        for magic in [b"LUKS\xba\xbe", b"SKUL\xba\xbe"] {
            for at in (0..4 << 20).step_by(4096) {
                if bytes[at..].starts_with(magic) {
                    bytes[at..at + 6].fill(0);
                }
            }
        }
    });
}

/// Remains of a header after `wipefs -a` or a new partition table are found and put back.
#[test]
fn header_without_magic_is_found_and_put_back() {
    for version in [1, 2] {
        let dir = Dir::new();
        let image = volume(&dir, version);
        let whole = std::fs::read(&image).unwrap();
        wipe_magics(&image);
        let before = std::fs::read(&image).unwrap();
        assert!(!opens(&image) && before != whole);
        let (code, report) = doctor(&[&image]);
        assert_eq!((code, report["health"].as_str()), (11, Some("unusable")), "{report}");
        let text = report.to_string();
        assert!(
            !text.contains("no trace") && text.contains("has no magic") && text.contains("inlock repair"),
            "{text}"
        );
        // A byte that the checksum, or a rule, covers: then it is no proof.
        damage(&image, |bytes| bytes[if version == 1 { 206 } else { 300 }] ^= 1);
        damage(&image, |bytes| bytes[if version == 1 { 252 } else { 16384 + 300 }] ^= 1);
        let damaged = std::fs::read(&image).unwrap();
        if version == 1 {
            call(["repair", "-q", &image]).fails(1, &["is not a valid LUKS device"]);
            assert!(std::fs::read(&image).unwrap() == damaged);
        }
        std::fs::write(&image, &before).unwrap();
        call(["repair", "-q", &image]).fails(0, &["write the magic of the header"]);
        assert!(opens(&image));
        assert_eq!(doctor(&[&image]).0, 0);
        if version == 1 {
            assert!(std::fs::read(&image).unwrap() == whole);
        }
    }

    // A GPT takes the first copy and the binary header of the second one.
    let dir = Dir::new();
    let image = volume(&dir, 2);
    damage(&image, |bytes| {
        bytes[..34 * 512].fill(0);
        (bytes[450], bytes[458]) = (0xee, 8);
        bytes[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    });
    let before = std::fs::read(&image).unwrap();
    let (code, report) = doctor(&[&image]);
    let text = report.to_string();
    assert_eq!((code, report["signatures"][0]["format"].as_str()), (11, Some("gpt")), "{report}");
    assert!(text.contains("metadata that are whole") && text.contains("inlock repair --disable-blkid"), "{text}");
    call(["repair", "-q", &image]).fails(1, &["'gpt' partition signature"]);
    assert!(std::fs::read(&image).unwrap() == before);
    call(["repair", "-q", "--disable-blkid", &image]).fails(0, &["make a header with UUID"]);
    assert!(opens(&image));
    assert_eq!(doctor(&[&image]).1["health"], "healthy");
    // Without valid metadata nothing is made.
    std::fs::write(&image, &before).unwrap();
    damage(&image, |bytes| bytes[20480] = b'[');
    call(["repair", "-q", "--disable-blkid", &image]).fails(1, &["is not a valid LUKS device"]);
    assert_eq!(doctor(&[&image]).0, 12);
}

/// Writes a GPT as `sgdisk -o` does: a boot sector with a protective entry, whose code stays, a header, entries, and
/// copies of both at the end. With `wipefs -a` afterwards the signatures are gone, of all formats or of the volume.
fn write_gpt(bytes: &mut [u8], wiped: &[&str]) {
    let (sector, sectors) = (512, bytes.len() / 512);
    let lba = |number: usize| (number as u64).to_le_bytes();
    bytes[440..512].fill(0);
    bytes[446..462].copy_from_slice(b"\0\0\x02\0\xee\x05\x04\x01\x01\0\0\0\xff\xbf\0\0");
    bytes[510..512].copy_from_slice(b"\x55\xaa");
    let mut header = [0; 512];
    header[..16].copy_from_slice(b"EFI PART\0\0\x01\0\x5c\0\0\0");
    header[16..20].copy_from_slice(b"\x68\xeb\x4e\x53");
    let fields = [(24, 1), (32, sectors - 1), (40, 34), (48, sectors - 34), (72, 2), (80, 128), (84, 128)];
    fields.into_iter().for_each(|(at, value)| header[at..at + 8].copy_from_slice(&lba(value)));
    header[56..72].copy_from_slice(b"\x8d\xfc\x5a\x89\xe6\xc4\xb7\x45\xbf\xf3\x27\x33\xe7\xb5\xa8\xc4");
    let mut entries = [0; 32 * 512];
    // Type and identity of a partition.
    entries[..16].copy_from_slice(b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4");
    entries[16..32].copy_from_slice(b"\xae\x3f\x0c\x98\x36\x02\xd3\x49\xa1\x0b\xe5\x7e\xeb\x00\xf6\x77");
    (entries[33], entries[41]) = (8, 0x17);
    for (header_at, entries_at) in [(sector, 2 * sector), ((sectors - 1) * sector, (sectors - 33) * sector)] {
        bytes[header_at..][..512].copy_from_slice(&header);
        bytes[entries_at..][..entries.len()].copy_from_slice(&entries);
    }
    let magics = [("luks", 0, 6), ("pmbr", 510, 2), ("gpt", 512, 8), ("gpt", (sectors - 1) * sector, 8)];
    magics.iter().filter(|(name, ..)| wiped.contains(name)).for_each(|(_, at, len)| bytes[*at..at + len].fill(0));
}

/// A GPT over a header: what is left is told, and put back, with the UUID.
#[test]
fn gpt_over_a_header_is_told_and_repaired() {
    let rows: [(u32, &[&str]); 7] = [
        (1, &[]),
        (1, &["luks"]),
        (1, &["luks", "pmbr", "gpt"]),
        (1, &["pmbr", "gpt"]),
        (2, &[]),
        (2, &["luks"]),
        (2, &["luks", "pmbr", "gpt"]),
    ];
    for (version, wiped) in rows {
        let dir = Dir::new();
        let image = volume(&dir, version);
        let (secret, other) = (dir.file("secret", b"secret"), dir.file("other", b"other"));
        let kdf = if version == 1 { &FAST1[2..] } else { &FAST };
        call([&["luksAddKey", "-q", "--key-file", &secret, &image, &other][..], kdf].concat()).works();
        if version == 2 {
            call(["config", &image, "--label", "name"]).works();
        }
        let uuid = call(["luksUUID", &image]).works().text().to_owned();
        damage(&image, |bytes| write_gpt(bytes, wiped));
        let before = std::fs::read(&image).unwrap();
        let row = format!("LUKS{version} {wiped:?}");
        let opens_by = |key: &str| call(["open", "--test-passphrase", "--key-file", key, &image]).code == 0;
        assert!(!opens_by(&secret) && !opens_by(&other), "{row}");

        let (code, report) = doctor(&[&image]);
        let text = report.to_string();
        assert!(code == 11 && report["health"] == "unusable" && !text.contains("no trace"), "{row}: {text}");
        assert!(text.contains("inlock repair ") && !text.contains("luksHeaderRestore"), "{row}: {text}");
        let has_table = !wiped.contains(&"gpt");
        assert_eq!(text.contains("If you use what the 'gpt' partition signature"), has_table, "{row}: {text}");
        assert_eq!(text.contains("has no magic"), wiped.contains(&"luks"), "{row}: {text}");
        // The key material of keyslot 0 of LUKS1 begins within the entries.
        let lost = "keyslot 0 back: it cannot work: 26 of 500 sectors of its key material are overwritten";
        assert_eq!(text.contains(lost), version == 1, "{row}: {text}");
        assert!(std::fs::read(&image).unwrap() == before, "{row}: doctor wrote");

        let is_salvage = version == 2 || wiped.contains(&"luks");
        if has_table && is_salvage {
            call(["repair", "-q", &image]).fails(1, &["'gpt' partition signature"]);
            assert!(std::fs::read(&image).unwrap() == before, "{row}: repaired over a partition table");
        } else if has_table {
            call(["repair", "-q", &image])
                .fails(0, &["WARNING: Device", "already contains a 'gpt' partition signature"]);
            std::fs::write(&image, &before).unwrap();
        }
        let ignored = if has_table { &["--disable-blkid"][..] } else { &[] };
        let repaired = call([&["repair", "-q", &image][..], ignored].concat());
        assert_eq!(repaired.code, 0, "{row}: {repaired:?}");
        assert_eq!(repaired.err.contains("keyslot 0 cannot work: 26 of 500"), version == 1, "{row}: {repaired:?}");
        assert_eq!(call(["luksUUID", &image]).works().text(), uuid, "{row}");
        assert!(opens_by(&other) && opens_by(&secret) == (version == 2), "{row}");
        let (code, report) = doctor(&[&image]);
        assert_eq!(code, if version == 1 { 10 } else { 0 }, "{row}: {report}");
        assert!(version == 1 || report["header"]["label"] == "name", "{row}: {report}");
        assert_eq!(report["signatures"].as_array().unwrap().len(), 0, "{row}: {report}");
    }
}

/// Keyslot 4 of LUKS1 loses its offset and its stripes to a GPT: a passphrase proves what they were.
#[test]
fn gpt_over_a_keyslot_in_use_is_repaired_with_its_passphrase() {
    let dir = Dir::new();
    let image = volume(&dir, 1);
    let (secret, other) = (dir.file("secret", b"secret"), dir.file("other", b"other"));
    let add = ["luksAddKey", "-q", "--key-file", &secret, "--new-key-slot", "4", &image, &other];
    call([&add[..], &FAST1[2..]].concat()).works();
    damage(&image, |bytes| write_gpt(bytes, &[]));
    let text = doctor(&[&image]).1.to_string();
    assert!(text.contains("inlock repair --disable-blkid --key-file FILE"), "{text}");
    let repair = ["repair", "-q", "--disable-blkid", &image, "--key-file"];
    call([&repair[..], &[&secret]].concat()).fails(1, &["keyslot 4"]);
    call([&repair[..], &[&other]].concat()).fails(0, &["keyslot 4 opens when repaired"]);
    call(["open", "--test-passphrase", "--key-file", &other, &image]).works();
}

#[test]
fn doctor_names_other_formats_and_lengths_that_cannot_be() {
    let dir = Dir::new();
    let image = volume(&dir, 2);
    damage(&image, |bytes| bytes.extend([0; 100]));
    let (code, report) = doctor(&[&image]);
    assert_eq!(code, 10, "{report}");
    assert!(report["header"]["problems"].to_string().contains("no multiple of"), "{report}");

    // An image of a disk in a file of another format, with a volume at an offset that only this format knows.
    let volume = std::fs::read(volume(&dir, 2)).unwrap();
    let disk = dir.file("disk", &[&b"QFI\xfb\0\0\0\x03"[..], &[0; 65528], &volume].concat());
    let (code, report) = doctor(&[&disk]);
    let text = report.to_string();
    assert_eq!((code, report["signatures"][0]["format"].as_str()), (11, Some("qcow2")), "{report}");
    assert!(text.contains("qemu-img convert -f qcow2") && !text.contains("losetup"), "{text}");
    let empty = dir.file("empty", &[&b"QFI\xfb\0\0\0\x03"[..], &[0; 65528]].concat());
    let (code, report) = doctor(&[&empty]);
    assert!(code == 12 && !report.to_string().contains("no trace"), "{report}");
    if have("qemu-img") {
        // As the program makes it.
        let real = dir.name("real");
        let made = std::process::Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", &real, "8M"]).output();
        assert!(made.unwrap().status.success());
        assert_eq!(doctor(&[&real]).1["signatures"][0]["format"], "qcow2");
    }
}

/// A change of a header.
type Damage = fn(&mut Vec<u8>);

/// A keyslot that may hold a key is changed only if a passphrase proves the change.
#[test]
fn repair_of_a_keyslot_in_use_needs_its_passphrase() {
    const STRIPES: usize = 208 + 44;
    let dir = Dir::new();
    let (right, wrong) = (dir.file("right", b"secret"), dir.file("wrong", b"other"));
    let rows: &[(&str, Damage)] = &[
        ("stripes", |bytes| bytes[STRIPES..STRIPES + 4].copy_from_slice(&2_u32.to_be_bytes())),
        ("offset", |bytes| bytes[STRIPES - 4..STRIPES].fill(0)),
        // Neither enabled nor disabled.
        ("flag", |bytes| bytes[208..212].fill(0x12)),
        ("flag and stripes", |bytes| {
            bytes[208..212].fill(0x12);
            bytes[STRIPES + 3] ^= 1;
        }),
    ];
    for (name, change) in rows {
        let image = volume(&dir, 1);
        let whole = std::fs::read(&image).unwrap();
        // And a free keyslot, which needs no passphrase.
        damage(&image, |bytes| bytes[208 + 48 * 5 + 44..][..4].fill(0));
        damage(&image, change);
        let before = std::fs::read(&image).unwrap();
        let (_, report) = doctor(&[&image]);
        let text = report.to_string();
        assert!(
            text.contains("Keyslots in use have unusual values (0)") && text.contains("--key-file"),
            "{name}: {text}"
        );
        for words in [&["repair", "-q", &image][..], &["repair", "-q", "--key-file", &wrong, &image]] {
            call(words).fails(1, &["Repair failed", "keyslot 0", "hint: "]);
            let now = std::fs::read(&image).unwrap();
            assert_eq!(now[208..256], before[208..256], "{name}: {words:?} changed the keyslot");
        }
        call(["repair", "-q", "--key-file", &right, &image]).fails(0, &["keyslot 0 opens when repaired"]);
        assert!(std::fs::read(&image).unwrap() == whole && opens(&image), "{name}");
        std::fs::write(&image, &before).unwrap();
        let asked = "Enter passphrase of a damaged keyslot: ";
        let sure = "Are you sure? (Type 'yes' in capital letters): ";
        if let Some(said) = talk(&[(asked, "secret\n"), (sure, "YES\n")], &["repair", &image]) {
            assert!(said["status"] == 0 && std::fs::read(&image).unwrap() == whole, "{name}: {said}");
        }
    }
}

/// A keyslot all of whose fields are noise holds no key: its repair needs no passphrase.
#[test]
fn repair_frees_an_overwritten_keyslot() {
    let dir = Dir::new();
    let image = volume(&dir, 1);
    let whole = std::fs::read(&image).unwrap();
    // Keyslot 7 and most of keyslot 6.
    damage(&image, |bytes| (512..592).for_each(|at| bytes[at] = (at * 37 % 251) as u8 | 1));
    assert!(!opens(&image));
    call(["repair", "-q", &image]).fails(0, &["keyslot 6: set stripes", "keyslot 7: set offset"]);
    assert!(opens(&image));
    let now = std::fs::read(&image).unwrap();
    assert!(now[..496] == whole[..496] && now[592..] == whole[592..], "other keyslots changed");
    assert_eq!(now[544..548], whole[544..548], "flag of keyslot 7");
}

/// Programs keep metadata between the parts of a header.
#[test]
fn conversion_refuses_to_overwrite_metadata_of_others() {
    let dir = Dir::new();
    let luksmeta = [&b"LUKSMETA\0\0\0\x01"[..], &[7; 100]].concat();
    for (version, at, name) in [
        (1, 2_068_480, "LUKSMETA additional metadata"),
        (1, 2_068_480 + 4096 + 1024, "additional metadata"),
        (1, 2048, "additional metadata"),
        (2, 900_000 / 512 * 512, "LUKSMETA additional metadata"),
    ] {
        let image = dir.image("image", 24);
        let kdf = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let version_name = format!("luks{version}");
        let words = ["luksFormat", "-q", "--sector-size", "512", "--type", &version_name, &image];
        call_with(b"secret", words.iter().chain(&kdf)).works();
        let other = if name.starts_with("LUKSMETA") { &luksmeta[..] } else { b"others" };
        damage(&image, |bytes| {
            bytes[at..at + 512].fill(0);
            bytes[at..at + other.len()].copy_from_slice(other);
        });
        let before = std::fs::read(&image).unwrap();
        let to = if version == 1 { "luks2" } else { "luks1" };
        let refused = call(["convert", "-q", "--type", to, &image]);
        refused.fails(1, &[&format!("Unable to convert header with {name}"), &format!("byte {at}"), "hint: "]);
        assert!(std::fs::read(&image).unwrap() == before, "{version} {at}");
        call(["convert", "-q", "--type", to, "--disable-blkid", &image]).works();
        call_with(b"secret", ["open", "--test-passphrase", &image]).works();
        // What a conversion leaves between the parts is filler.
        let back = if version == 1 { "luks1" } else { "luks2" };
        call(["convert", "-q", "--type", back, &image]).works();
        call(["convert", "-q", "--type", to, &image]).works();
    }
    // A new header leaves nothing of what was there before.
    let used = dir.file("used", &b"0123456789abcdef".repeat(24 << 16));
    call_with(b"secret", ["luksFormat", "-q", &used].iter().chain(&FAST1)).works();
    call(["convert", "-q", "--type", "luks2", &used]).works();
}
