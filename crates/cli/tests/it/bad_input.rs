//! Wrong images and passphrases: status and message of each.

use crate::harness::{Dir, FAST, call, call_with, have, run};
use std::os::unix::fs::FileExt;
use std::process::Command;

#[test]
fn device_without_header_has_the_hint_of_the_action() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let message = "is not a valid LUKS device.";
    call(["luksDump", &image])
        .fails(1, &[message, &format!("hint: run `inlock doctor {image}` to search for a header")]);
    call_with(b"secret", ["export", &image, "-"]).fails(1, &[message, "hint: use --type plain for a volume without"]);
}

/// Such an image, or a copy of it.
#[test]
fn clone_that_librbd_has_encrypted_is_named() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().write_at(b"RBDL\xba\xbe\0\x02", 0).unwrap();
    let named = "is a clone that librbd has encrypted by itself";
    let backup = dir.name("backup");
    for words in [
        &["luksDump", &image][..],
        &["convert", "-q", "--type", "luks1", &image],
        &["repair", "-q", &image],
        &["luksHeaderBackup", &image, "--header-backup-file", &backup],
    ] {
        call(words).fails(1, &[&format!("Device {image} {named}."), "hint: open it through librbd, or flatten it"]);
    }
    let examined = call(["doctor", &image]);
    assert_eq!(examined.code, 11, "{}", examined.err);
    assert!(examined.text().contains(named) && examined.text().contains("flatten it"), "{}", examined.text());
    assert!(!examined.text().contains("luksHeaderRestore"), "{}", examined.text());
}

#[test]
fn missing_device_is_4() {
    let dir = Dir::new();
    let missing = dir.name("missing.img");
    let message = format!("Device {missing} does not exist or access denied");
    for action in ["isLuks", "luksUUID", "luksDump"] {
        call([action, &missing]).fails(4, &[&message]);
    }
    call(["serve", &missing, "--run", "true"]).fails(4, &[&message]);
    call(["export", &missing, "out"]).fails(4, &[&message]);
    let input = dir.file("input", b"x");
    call(["import", &input, &missing]).fails(4, &[&message]);
    call(["luksFormat", "-q", &missing])
        .fails(4, &[&message, &format!("hint: create an image file first: truncate -s SIZE {missing}")]);
    call(["luksDump", "/"]).fails(4, &["neither a regular file nor a block device"]);
    call(["luksDump", "/dev/null"]).fails(4, &["neither a regular file nor a block device"]);
    call(["luksDump", "UUID=00000000-dead-4bee-8fff-000000000000"]).fails(4, &["/dev/disk/by-uuid/"]);
}

#[test]
fn wrong_passphrase_is_2() {
    let dir = Dir::new();
    for image in [dir.luks1("one"), dir.luks2("two")] {
        let words = ["No key available with this passphrase."];
        call_with(b"wrong\n", ["open", "--test-passphrase", &image]).fails(2, &words);
        call_with(b"wrong\n", ["serve", &image, "--run", "echo ran"]).fails(2, &words);
        call_with(b"wrong\n", ["export", &image, &dir.name("out")]).fails(2, &words);
        let input = dir.file("input", b"x");
        call_with(b"wrong\n", ["import", &input, &image]).fails(2, &words);
        assert!(!dir.path("out").exists(), "an output was made for a volume that did not open");
        call_with(b"secret", ["open", "--test-passphrase", &image, "-S", "1"]).fails(1, &["Keyslot 1 is not active."]);
        call_with(b"secret", ["open", "--test-passphrase", &image, "-S", "0"]).works();
    }
}

#[test]
fn image_without_luks_is_1() {
    let dir = Dir::new();
    for image in [dir.image("zeroes", 20), dir.file("short", b"LUKS"), dir.file("empty", b"")] {
        let message = format!("Device {image} is not a valid LUKS device.");
        call(["luksUUID", &image]).fails(1, &[&message, "hint: "]);
        call(["serve", &image, "--run", "true"]).fails(1, &[&message]);
        let silent = call(["isLuks", &image]);
        silent.fails(1, &[]);
        assert!(silent.err.is_empty() && silent.out.is_empty(), "{silent:?}");
    }
    let one = dir.luks1("one");
    call(["isLuks", &one]).works();
    call(["isLuks", "--type", "luks1", &one]).works();
    call(["isLuks", "--type", "luks2", &one]).fails(1, &[]);
    call(["luksDump", "--type", "luks2", &one]).fails(1, &["is not a valid LUKS device.", "use --type luks1"]);
    call(["luksDump", "--dump-json-metadata", &one]).fails(1, &["A LUKS1 header has no JSON metadata."]);
}

#[test]
fn damaged_or_truncated_image_is_1_with_reason() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let whole = std::fs::read(&image).unwrap();
    let cut = |len: usize| dir.file("cut", &whole[..len]);
    call_with(b"secret", ["luksUUID", &cut(100)]).fails(1, &["inlock: "]);
    call_with(b"secret", ["serve", &cut(5000), "--run", "true"]).fails(1, &["inlock: "]);
    call_with(b"secret", ["serve", &cut(16 << 20), "--run", "true"]).fails(1, &["inlock: ", "hint: "]);
    call_with(b"secret", ["serve", &cut((17 << 20) + 100), "--run", "true"]).fails(1, &["multiple", "hint: "]);

    // With one damaged copy the header loads with a warning; with two it fails.
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(b"XXXX", 4096 + 20).unwrap();
    let dump = call(["luksUUID", &image]);
    assert_eq!(dump.code, 0, "{dump:?}");
    assert!(dump.err.starts_with("inlock: warning: "), "{dump:?}");
    file.write_all_at(b"XXXX", 16384 + 4096 + 20).unwrap();
    call(["luksUUID", &image]).fails(1, &["checksum", "hint: "]);
    call(["isLuks", &image]).fails(1, &[]);
}

#[test]
fn too_small_image_has_hint_with_size() {
    let dir = Dir::new();
    for (mib, type_) in [(0, "luks2"), (1, "luks2"), (16, "luks2"), (1, "luks1"), (2, "luks1")] {
        let image = dir.image("image", mib);
        let ended = call_with(b"secret", ["luksFormat", "-q", "--type", type_, &image]);
        ended.fails(1, &["is too small.", "hint: ", "truncate -s SIZE"]);
        assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn kdf_cost_out_of_range_is_refused() {
    let dir = Dir::new();
    let image = dir.image("image", 20);
    for (option, value) in [("--pbkdf-memory", "8"), ("--pbkdf-memory", "4194305"), ("--pbkdf-parallel", "5")] {
        let ended = call_with(b"secret", ["luksFormat", "-q", "--pbkdf-force-iterations", "4", option, value, &image]);
        ended.fails(1, &["inlock: "]);
    }
    call_with(b"secret", ["luksFormat", "-q", "--pbkdf-force-iterations", "1", &image]).fails(1, &["inlock: "]);
    call_with(b"secret", ["luksFormat", "-q", "--uuid", "not-one", &image].into_iter().chain(FAST))
        .fails(1, &["Wrong LUKS UUID format provided."]);
}

#[test]
fn missing_memory_is_3() {
    if !have("prlimit") {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("image", 20);
    let words = ["--as=268435456", env!("CARGO_BIN_EXE_inlock"), "luksFormat", "-q", &image];
    let costs = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "524288", "--pbkdf-parallel", "1"];
    let free = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = free.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or("0 kB");
    if free.trim().trim_end_matches(" kB").parse::<u64>().unwrap() < 2 << 20 {
        println!("SKIPPED: with so little memory less is asked for");
        return;
    }
    let ended = run(std::process::Command::new("prlimit").args(words).args(costs), b"secret");
    ended.fails(3, &["cannot allocate", "hint: "]);
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "something was written");
}

#[test]
fn closed_pipe_is_silent() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let script = format!("{{ {} luksDump {image}; echo $? >&2; }} | true", env!("CARGO_BIN_EXE_inlock"));
    // `true` may exit before or after the dump: status 0 or that of SIGPIPE, and no message.
    for _ in 0..10 {
        let ended = run(Command::new("sh").args(["-c", &script]), b"");
        assert!(["0\n", "141\n"].contains(&ended.err.as_str()), "{ended:?}");
    }
    let script = format!("echo secret | {} export {image} - | head -c 10 | wc -c", env!("CARGO_BIN_EXE_inlock"));
    assert_eq!(run(Command::new("sh").args(["-c", &script]), b"").works().text().trim(), "10");
}

#[test]
fn full_disk_is_reported() {
    let dir = Dir::new();
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIPPED: there is no /dev/full");
        return;
    }
    let image = dir.luks2("image");
    call_with(b"secret", ["export", &image, "/dev/full"]).fails(1, &["/dev/full", "No space left"]);
    let script = format!("{} luksUUID {image} >/dev/full", env!("CARGO_BIN_EXE_inlock"));
    run(Command::new("sh").args(["-c", &script]), b"").fails(1, &["No space left"]);
}

#[test]
fn unreadable_image_is_4() {
    let dir = Dir::new();
    if !have("setpriv") {
        return;
    }
    let id = run(Command::new("id").arg("-u"), b"");
    if id.text().trim() != "0" {
        println!("SKIPPED: only root can switch users");
        return;
    }
    let image = dir.luks2("image");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(dir.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The other user may have no access to the program's directory.
    let program = dir.name("inlock");
    std::fs::copy(env!("CARGO_BIN_EXE_inlock"), &program).unwrap();
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", &program, "luksUUID", &image];
    run(Command::new("setpriv").args(user), b"").fails(4, &["does not exist or access denied", "Permission denied"]);
}
