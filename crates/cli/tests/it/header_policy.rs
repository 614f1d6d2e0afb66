//! Headers that turn encryption off: headers are not authenticated, so anyone who can write an image can change its
//! header.

// The lint exempts test functions only.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, Ended, FAST, FAST1, call, call_with, inlock, run};
use inlock_volume::Hash;
use inlock_volume::luks2::binary_header::{BLOCK_LEN, write_checksum};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;

const HDR: usize = 16384;
const UUID: &str = "01234567-89ab-4cde-8f01-23456789abcd";
/// All flags that allow exceptions.
const ALL: [&str; 3] = ["--allow-null-cipher", "--allow-null-iv", "--allow-linear-segment"];

/// Changes the JSON text of both copies of a LUKS2 header like an attacker with write access, with valid checksums.
fn rewrite(image: &str, change: impl Fn(String) -> Vec<u8>) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    for at in [0, HDR as u64] {
        let mut copy = vec![0; HDR];
        file.read_exact_at(&mut copy, at).unwrap();
        let (block, area) = copy.split_at_mut(BLOCK_LEN);
        let end = area.iter().position(|byte| *byte == 0).unwrap();
        let text = change(String::from_utf8(area[..end].to_vec()).unwrap());
        area.fill(0);
        area[..text.len()].copy_from_slice(&text);
        write_checksum(block.try_into().unwrap(), area, Hash::Sha256);
        file.write_all_at(&copy, at).unwrap();
    }
}

/// Changes the metadata of both copies of a LUKS2 header.
pub(crate) fn change(image: &str, change: impl Fn(&mut Value)) {
    rewrite(image, |text| {
        let mut value = serde_json::from_str(&text).unwrap();
        change(&mut value);
        value.to_string().into_bytes()
    });
}

/// Opens `image` with every action that opens volumes, and the options `more`.
fn each_action(dir: &Dir, image: &str, secret: &[u8], more: &[&str]) -> Vec<Ended> {
    let (out, input) = (dir.name("out"), dir.file("input", b"plaintext"));
    let actions: [&[&str]; 5] = [
        &["open", "--test-passphrase", image],
        &["serve", image, "--run", "true"],
        &["table", image],
        &["export", "-q", image, &out],
        &["import", &input, image],
    ];
    actions.iter().map(|words| call_with(secret, words.iter().chain(more))).collect()
}

/// Opens `image` in a background process, which checks the header itself.
fn in_the_background(dir: &Dir, image: &str, secret: &[u8], more: &[&str]) -> Ended {
    let at = format!("unix:{}", dir.name("nbd"));
    let call = |words: &[&str]| run(inlock().env("INLOCK_RUN_DIR", dir.path("run")).args(words), secret);
    let ended = call(&[&["serve", image, "--name", "vol", "--background", "--nbd", &at], more].concat());
    if ended.code == 0 {
        call(&["close", "vol"]).works();
    }
    ended
}

/// Checks that every action refuses `image` with `words`, before a passphrase is asked for.
#[track_caller]
fn is_refused(dir: &Dir, image: &str, more: &[&str], code: i32, words: &[&str]) {
    for secret in [b"secret".as_slice(), b""] {
        each_action(dir, image, secret, more).iter().for_each(|ended| ended.fails(code, words));
        in_the_background(dir, image, secret, more).fails(code, words);
    }
    assert!(!dir.path("out").exists(), "plaintext was written");
}

/// Returns the imported bytes of the volume.
#[track_caller]
fn imports_and_exports(dir: &Dir, image: &str, more: &[&str]) -> Vec<u8> {
    let (out, input) = (dir.name("out"), dir.file("input", b"plaintext"));
    call_with(b"secret", ["import", "-q", &input, image].iter().chain(more)).works();
    call_with(b"secret", ["export", "-q", image, &out, "--range", "0:9"].iter().chain(more)).works();
    let bytes = std::fs::read(&out).unwrap();
    std::fs::remove_file(out).unwrap();
    bytes
}

fn stored(image: &str, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::fs::File::open(image).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Class of CVE-2025-59054: the header declares the data as not encrypted, and the right
/// passphrase still opens the volume.
#[test]
fn cve_2025_59054_null_cipher_of_a_segment_is_refused() {
    let dir = Dir::new();
    for cipher in ["cipher_null-ecb", "cipher_null-ecb-null", "capi:ecb(cipher_null)-null"] {
        let image = dir.luks2("image");
        change(&image, |json| json["segments"]["0"]["encryption"] = json!(cipher));
        let words = [&*image, "segment 0", "does not encrypt", "--allow-null-cipher"];
        is_refused(&dir, &image, &[], 1, &words);
        is_refused(&dir, &image, &ALL[1..], 1, &words);
        assert_eq!(imports_and_exports(&dir, &image, &ALL[..1]), b"plaintext");
        assert_eq!(stored(&image, 16 << 20, 9), b"plaintext", "it was meant, and is as it was");
    }
}

/// Class of CVE-2025-58356: unencrypted key material, so that any passphrase gives a key that the
/// attacker knows. No flag allows it.
#[test]
fn cve_2025_58356_null_cipher_of_a_keyslot_is_refused_with_every_flag() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    change(&image, |json| json["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb"));
    for more in [&[][..], &ALL] {
        for ended in each_action(&dir, &image, b"any passphrase", more) {
            ended.fails(1, &["keyslot 0", "does not encrypt"]);
        }
    }
    // LUKS1 keyslots use the cipher of the data.
    let image = dir.luks1("image");
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[&b"cipher_null"[..], &[0; 21], b"ecb", &[0; 29]].concat(), 8).unwrap();
    for more in [&[][..], &ALL] {
        each_action(&dir, &image, b"any", more).iter().for_each(|ended| ended.fails(1, &["does not encrypt"]));
    }
}

#[test]
fn linear_segment_is_refused_without_its_flag() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    // The encrypted segment shrinks to one data unit; the rest is unencrypted.
    change(&image, |json| {
        let encrypted = &mut json["segments"]["0"];
        encrypted["size"] = json!("4096");
        let offset = encrypted["offset"].as_str().unwrap().parse::<u64>().unwrap() + 4096;
        json["segments"]["1"] = json!({"type": "linear", "offset": offset.to_string(), "size": "dynamic"});
    });
    let words = ["segment 1", "stored unencrypted", "--allow-linear-segment"];
    is_refused(&dir, &image, &[], 1, &words);
    is_refused(&dir, &image, &ALL[..2], 1, &words);
    assert_eq!(imports_and_exports(&dir, &image, &ALL[2..]), b"plaintext");
    // A required cipher applies to all stored data.
    let pinned = ["--allow-linear-segment", "--require-cipher", "aes-xts-plain64"];
    is_refused(&dir, &image, &pinned, 1, &["segment 1", "aes-xts-plain64"]);
}

#[test]
fn null_iv_is_refused_without_its_flag() {
    let dir = Dir::new();
    for (cipher, bits, version) in [
        ("aes-xts-null", "512", "luks2"),
        ("aes-cbc-null", "256", "luks2"),
        ("aes-ecb", "256", "luks2"),
        ("xchacha12,aes-adiantum-null", "256", "luks2"),
        ("aes-cbc-null", "256", "luks1"),
    ] {
        let image = dir.image("image", 24);
        let costs: &[&str] = if version == "luks1" { &FAST1 } else { &FAST };
        let format = ["luksFormat", "-q", "--type", version, "-c", cipher, "-s", bits, &image];
        let ended = call_with(b"secret", format.iter().chain(costs));
        ended.fails(1, &[cipher, "hint: use --allow-null-iv to create it"]);
        assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "something was written");
        call_with(b"secret", format.iter().chain(costs).chain(&["--allow-null-iv"])).works();
        let words = ["segment 0", cipher, "equal data units", "hint: use --allow-null-iv to open it"];
        is_refused(&dir, &image, &[], 1, &words);
        is_refused(&dir, &image, &[ALL[0], ALL[2]], 1, &words);
        assert_eq!(imports_and_exports(&dir, &image, &ALL[1..2]), b"plaintext");
    }
}

#[test]
fn null_cipher_of_a_plain_volume_or_a_table_is_refused_without_its_flag() {
    let dir = Dir::new();
    let image = dir.file("image", &[0x5a; 1 << 16]);
    let other = dir.file("other", &[0x5a; 1 << 16]);
    let line = |image: &str, cipher: &str| format!("0 128 crypt {cipher} - 0 {image} 0");
    let (table, capi) = (line(&image, "cipher_null-ecb"), line(&image, "capi:ecb(cipher_null)-null"));
    let second = dir.file("table", format!("0 8 zero\n8 120 crypt cipher_null-ecb - 0 {image} 0\n").as_bytes());
    let sources: [&[&str]; 5] = [
        &[&image, "--type", "plain", "--cipher", "cipher_null-ecb"],
        &[&image, "--type", "plain", "--cipher", "capi:ecb(cipher_null)-null"],
        &["--table", &table],
        &["--table", &capi],
        &["--table", &second],
    ];
    for source in sources {
        let serve = ["serve", "--run", "true"];
        let words = ["does not encrypt", "--allow-null-cipher"];
        for secret in [b"secret".as_slice(), b""] {
            call_with(secret, serve.iter().chain(source)).fails(1, &words);
            call_with(secret, serve.iter().chain(source).chain(&ALL[1..])).fails(1, &words);
        }
        call_with(b"secret", serve.iter().chain(source).chain(&ALL[..1])).works();
    }
    // Also a table for a running volume.
    let run = Run::new();
    let key = "5c".repeat(32);
    let encrypted = format!("0 128 crypt aes-xts-plain64 {key} 0 {other} 0");
    let named = Named::start(&run, "vol", &["--table", &encrypted]);
    let null = line(&other, "cipher_null-ecb");
    run.call(&["reload", "vol", "--table", &null]).fails(1, &["does not encrypt", "--allow-null-cipher"]);
    run.call(&["suspend", "vol"]).works();
    run.call(&["reload", "vol", "--table", &null, "--allow-null-cipher"]).works();
    run.call(&["close", "vol"]).works();
    assert_eq!(named.ended().0, Some(0));
}

#[test]
fn null_cipher_of_a_new_volume_is_refused_without_its_flag() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    let format = ["luksFormat", "-q", "-c", "cipher_null-ecb", &image];
    let format = |more: &[&str]| call_with(b"secret", format.iter().chain(&FAST).chain(more));
    format(&[]).fails(1, &["does not encrypt", "--allow-null-cipher"]);
    format(&["--allow-null-iv"]).fails(1, &["does not encrypt", "--allow-null-cipher"]);
    // LUKS1 keyslots would be unencrypted.
    let format1 = ["luksFormat", "-q", "-c", "cipher_null-ecb", &image, "--allow-null-cipher"];
    call_with(b"secret", format1.iter().chain(&FAST1)).fails(1, &["does not encrypt"]);
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "something was written");
    format(&["--allow-null-cipher"]).works();
    let dump = call(["luksDump", &image]);
    assert!(dump.works().text().contains("cipher: cipher_null-ecb"), "{dump:?}");
    assert!(dump.text().contains("Cipher:     aes-xts-plain64"), "the keyslot is encrypted: {dump:?}");
    is_refused(&dir, &image, &[], 1, &["does not encrypt"]);
    assert_eq!(imports_and_exports(&dir, &image, &ALL[..1]), b"plaintext");
    call_with(b"wrong", ["open", "--test-passphrase", &image, ALL[0]]).fails(2, &["No key available"]);
}

#[test]
fn suspended_null_cipher_volume_resumes() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    change(&image, |json| json["segments"]["0"]["encryption"] = json!("cipher_null-ecb"));
    let named = Named::start(&run, "vol", &[&image, "--allow-null-cipher"]);
    run.call(&["suspend", "vol"]).works();
    run.call_with(b"secret", &["resume", "vol"]).works();
    run.call(&["close", "vol"]).works();
    assert_eq!(named.ended().0, Some(0));
}

#[test]
fn required_cipher_that_is_another_is_refused_before_the_passphrase() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let require = |list: &'static str| ["--require-cipher", list];
    for list in ["aes-cbc-essiv:sha256", "aes-xts-plain", "xchacha12,aes-adiantum-plain64,serpent-xts-plain64"] {
        is_refused(&dir, &image, &require(list), 1, &["segment 0", "aes-xts-plain64", list]);
    }
    for list in [
        "aes-xts-plain64",
        "capi:xts(aes)-plain64",
        "xchacha12,aes-adiantum-plain64,aes-xts-plain64",
        "aes-xts-plain64,capi:essiv(cbc(aes),sha256)-plain64",
    ] {
        assert_eq!(imports_and_exports(&dir, &image, &require(list)), b"plaintext", "{list}");
    }
    for (list, word) in
        [("", "cipher"), ("aes-xts", "IV mode"), ("aes-xts-plain64,", "cipher"), ("x,aes-xts-plain64", "'x'")]
    {
        call_with(b"secret", ["table", &image, "--require-cipher", list]).fails(1, &["--require-cipher", word]);
    }
    // Also for volumes without a header.
    let plain = dir.file("plain", &[0; 1 << 16]);
    let with = |more: &[&str]| call_with(b"secret", ["table", &plain].iter().chain(more));
    assert_eq!(with(&["--type", "plain", "--require-cipher", "aes-xts-plain64"]).code, 0);
    with(&["--type", "plain", "--require-cipher", "aes-cbc-plain"]).fails(1, &["aes-xts-plain64", "aes-cbc-plain"]);
    with(&["--type", "raw", "--require-cipher", "aes-cbc-plain"]).fails(1, &["stored unencrypted"]);
    let key = "5c".repeat(32);
    let line = |more: &str| format!("0 8 zero\n8 8 crypt aes-xts-plain64 {key} 0 {plain} 0\n{more}");
    let serve = |table: &str| {
        call([
            "serve",
            "--table",
            &dir.file("table", table.as_bytes()),
            "--require-cipher",
            "aes-xts-plain64",
            "--run",
            "true",
        ])
    };
    serve(&line("16 8 error\n")).works();
    serve(&line(&format!("16 8 linear {plain} 8\n"))).fails(1, &["segment 1 is stored unencrypted", "aes-xts-plain64"]);
    // Requiring a null cipher does not allow it.
    change(&image, |json| json["segments"]["0"]["encryption"] = json!("cipher_null-ecb"));
    is_refused(&dir, &image, &require("cipher_null-ecb"), 1, &["--allow-null-cipher"]);
}

#[test]
fn expected_uuid_that_is_another_is_refused_before_the_passphrase() {
    let dir = Dir::new();
    for version in ["luks1", "luks2"] {
        let image = dir.image("image", 24);
        let costs: &[&str] = if version == "luks1" { &FAST1 } else { &FAST };
        let format = ["luksFormat", "-q", "--type", version, "--uuid", UUID, &image];
        call_with(b"secret", format.iter().chain(costs)).works();
        let other = "ffffffff-89ab-4cde-8f01-23456789abcd";
        is_refused(&dir, &image, &["--expect-uuid", other], 4, &[UUID, other, &image]);
        for same in [UUID.to_owned(), UUID.to_uppercase()] {
            assert_eq!(imports_and_exports(&dir, &image, &["--expect-uuid", &same]), b"plaintext");
        }
    }
    let plain = dir.file("plain", &[0; 1 << 16]);
    call(["table", "--type", "plain", &plain, "--expect-uuid", UUID]).fails(1, &["--expect-uuid", "type plain"]);
    call(["table", &plain, "--expect-uuid="]).fails(1, &["--expect-uuid"]);
}

/// Number of sectors in 2 TiB, plus one.
#[test]
fn plain_iv_that_wraps_is_warned_of_and_opens() {
    let dir = Dir::new();
    let image = dir.image("image", 0);
    let plain = ["--type", "plain", "--cipher", "aes-cbc-plain", "--run", "true"];
    let serve = |more: &[&str]| call_with(b"secret", ["serve", &image].iter().chain(&plain).chain(more));
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    if file.set_len((1 << 41) + 4096).is_err() {
        println!("SKIPPED: no file of 2 TiB on the file system of temporary files");
        return;
    }
    let warned = serve(&[]);
    assert_eq!(warned.code, 0, "{warned:?}");
    assert!(warned.err.contains("warning") && warned.err.contains("aes-cbc-plain"), "{warned:?}");
    serve(&["--size", "4294967296"]).works();
    serve(&["--size", "4294967296", "--offset", "8"]).works();
    assert!(!serve(&["--size", "4294967304"]).err.is_empty());
    // With IVs counted in data units of 4096 bytes, the numbers wrap later.
    serve(&["--sector-size", "4096", "--iv-large-sectors"]).works();
    assert!(!serve(&["--sector-size", "4096"]).err.is_empty());
    let plain64 = ["serve", &image, "--type", "plain", "--cipher", "aes-cbc-plain64", "--run", "true"];
    call_with(b"secret", plain64).works();
    // A LUKS volume, whose segment extends to the end of the device.
    let format = ["luksFormat", "-q", "-c", "aes-cbc-plain", "-s", "256", &image];
    file.set_len((1 << 41) + (16 << 20)).unwrap();
    call_with(b"secret", format.iter().chain(&FAST)).works();
    call_with(b"secret", ["serve", &image, "--run", "true"]).works();
    file.set_len((1 << 41) + (16 << 20) + 4096).unwrap();
    let warned = call_with(b"secret", ["serve", &image, "--run", "true"]);
    assert!(warned.code == 0 && warned.err.contains("warning"), "{warned:?}");
    assert_eq!(warned.err.lines().count(), 1, "{warned:?}");
}

/// Whether the text has no control characters except those of layout.
#[track_caller]
fn is_printable(ended: &Ended) {
    for text in [ended.text(), &ended.err] {
        let bad = text.chars().find(|c| c.is_control() && !"\n\t".contains(*c));
        assert_eq!(bad, None, "{ended:?}");
    }
}

#[test]
fn control_characters_of_a_header_never_reach_the_terminal() {
    let dir = Dir::new();
    // DEL, CSI as one character, a JSON escape, a right-to-left override.
    let evil = "\u{7f}\u{9b}31m\u{85}\u{90}\\u001b[2J\\u009b\u{202e}x";
    for place in
        ["\"luks2\"", "\"crypt\"", "\"raw\"", "\"argon2id\"", "\"pbkdf2\"", "\"sha256\"", "\"aes-xts-plain64\""]
    {
        let image = dir.luks2("image");
        rewrite(&image, |text| {
            assert!(text.contains(place), "{place}");
            text.replacen(place, &format!("\"{evil}\""), 1).into_bytes()
        });
        let dump = call(["luksDump", &image]);
        let json = call(["luksDump", "--dump-json-metadata", &image]);
        let more = [call(["luksUUID", &image]), call_with(b"secret", ["open", "--test-passphrase", &image])];
        [&dump, &json].into_iter().chain(&more).for_each(is_printable);
        assert_ne!(more[1].code, 0, "{place} can be anything");
    }
    let image = dir.luks2("image");
    rewrite(&image, |text| {
        let tokens = format!("\"tokens\":{{\"0\":{{\"type\":\"{evil}\",\"keyslots\":[]}}}}");
        text.replace("\"tokens\":{}", &tokens)
            .replacen("\"config\":{", &format!("\"config\":{{\"flags\":[\"{evil}\"],"), 1)
            .into_bytes()
    });
    let dump = call(["luksDump", &image]);
    is_printable(dump.works());
    assert!(dump.text().matches("31m").count() == 2, "flag and token are there: {dump:?}");
    let json = call(["luksDump", "--dump-json-metadata", &image]);
    is_printable(json.works());
    let value: Value = serde_json::from_str(json.text()).unwrap();
    assert_eq!(
        value["tokens"]["0"]["type"],
        serde_json::from_str::<Value>(&format!("\"{evil}\"")).unwrap(),
        "the same value"
    );
    // Labels with such characters are warned of, and UUIDs refused, in messages without them.
    for (at, len) in [(24, 48), (208, 48), (168, 40)] {
        let image = dir.luks2("image");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
        for copy in [0, HDR as u64] {
            let mut header = vec![0; HDR];
            file.read_exact_at(&mut header, copy).unwrap();
            let (block, area) = header.split_at_mut(BLOCK_LEN);
            block[at..at + len].fill(0);
            block[at..at + 6].copy_from_slice("\u{9b}\u{7f}x\u{1b}\u{8}".as_bytes());
            write_checksum(block.try_into().unwrap(), area, Hash::Sha256);
            file.write_all_at(&header, copy).unwrap();
        }
        for action in ["luksUUID", "luksDump", "table"] {
            let ended = call([action, &image]);
            match at {
                168 => ended.fails(1, &["is not a zero-terminated text"]),
                _ => assert!(ended.err.contains("has bytes that are no printable text"), "{ended:?}"),
            }
            is_printable(&ended);
        }
    }
}

/// Writes a policy, and checks that every action refuses `image` for `words` under it.
#[track_caller]
fn is_refused_under(dir: &Dir, image: &str, policy: &str, code: i32, words: &[&str]) {
    let policy = dir.file("policy.toml", policy.as_bytes());
    is_refused(dir, image, &["--policy", &policy], code, words);
}

#[test]
fn policy_file_is_checked_before_the_passphrase() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let present = call(["policy", &image]).works().text().to_owned();
    for text in ["", "cipher = ['aes-cbc-plain64', 'aes-xts-plain64']\n", &present] {
        let policy = dir.file("policy.toml", text.as_bytes());
        let more = ["--policy", &*policy];
        each_action(&dir, &image, b"secret", &more).iter().for_each(|ended| assert_eq!(ended.code, 0, "{ended:?}"));
        assert_eq!(in_the_background(&dir, &image, b"secret", &more).code, 0);
        std::fs::remove_file(dir.path("out")).unwrap();
    }
    is_refused_under(
        &dir,
        &image,
        "cipher = ['aes-cbc-plain64']",
        1,
        &["aes-xts-plain64", "aes-cbc-plain64 is required"],
    );
    is_refused_under(&dir, &image, "key-size = [256, 128]", 1, &["512 bits, but 256,128 are required", "--policy"]);
    is_refused_under(&dir, &image, "sector-size = [1024]", 1, &["segment 0 has sectors of", "1024 are required"]);
    is_refused_under(&dir, &image, "uuid = 'x'", 4, &["'x' is expected"]);
    is_refused_under(&dir, &image, "[pbkdf.pbkdf2]", 1, &["keyslot 0 has the PBKDF argon2id, but pbkdf2 is required"]);
    let memory = "[pbkdf.argon2id]\nmax-memory = 31";
    is_refused_under(&dir, &image, memory, 3, &["keyslot 0: argon2 memory in KiB 32 is more than the allowed 31"]);
    let memory = "[pbkdf.argon2id]\nmin-memory = 33";
    is_refused_under(&dir, &image, memory, 1, &["keyslot 0: argon2 memory in KiB 32 is less than the required 33"]);
}

/// Actions on keys check it too, before they ask; `--verbose` says the memory before it is taken.
#[test]
fn policy_is_checked_by_actions_on_keys() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let (key, policy) = (dir.file("key", b"secret"), call(["policy", &image]).works().text().to_owned());
    let present = dir.file("present.toml", policy.as_bytes());
    let other = dir.file("other.toml", b"[pbkdf.argon2id]\nmax-memory = 31\n");
    let actions: [&[&str]; 4] = [
        &["luksAddKey", "-q", &image, &key],
        &["luksChangeKey", "-q", &image, &key],
        &["luksKillSlot", &image, "0"],
        &["luksDump", "-q", "--dump-volume-key", &image],
    ];
    for words in actions {
        call_with(b"", words.iter().chain(&["--policy", &*other])).fails(3, &["keyslot 0: argon2 memory in KiB 32"]);
    }
    let open = call_with(b"secret", ["open", "-v", "--test-passphrase", &image, "--policy", &present]);
    assert_eq!(open.code, 0, "{open:?}");
    // 4000 stripes of 64 bytes; Argon2 takes less.
    assert!(open.err.contains("Unlocking takes at most 250 KiB of memory."), "{open:?}");
    call_with(b"secret", ["luksAddKey", "-q", &image, &key, "--policy", &present].iter().chain(&FAST)).works();
    call_with(b"secret", ["luksDump", &image, "--policy", &present].iter()).fails(4, &["has the digest"]);
}

/// Any change of the header breaks the pin, also one that the other rules do not see.
#[test]
fn policy_of_the_present_header_refuses_a_changed_one() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let policy = call(["policy", &image]).works().text().to_owned();
    change(&image, |json| json["tokens"]["0"] = json!({"type": "x", "keyslots": []}));
    is_refused_under(&dir, &image, &policy, 4, &["has the digest sha256:", "is expected", "`inlock policy`"]);
    let luks1 = dir.luks1("luks1");
    let policy = call(["policy", &luks1]).works().text().to_owned();
    let more = ["--policy", &*dir.file("policy.toml", policy.as_bytes())];
    each_action(&dir, &luks1, b"secret", &more).iter().for_each(|ended| assert_eq!(ended.code, 0, "{ended:?}"));
    std::fs::remove_file(dir.path("out")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&luks1).unwrap();
    // A salt of an unused keyslot.
    file.write_all_at(&[1], 208 + 48 + 8).unwrap();
    is_refused_under(&dir, &luks1, &policy, 4, &["has the digest sha256:"]);
}

#[test]
fn wrong_policy_file_is_1_with_its_line() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let open = |policy: &str| call(["open", "--test-passphrase", &image, "--policy", policy]);
    let with = |text: &str| open(&dir.file("policy.toml", text.as_bytes()));
    with("uuid = 'x'\ncihper = []\n").fails(1, &["policy.toml, line 2: unknown field `cihper`"]);
    with("key-size = [\n512,\n7]\n").fails(1, &["line 1: 7 bits are no multiple of 8"]);
    with("[pbkdf]\n").fails(1, &["table pbkdf"]);
    open(&dir.name("missing")).fails(4, &["missing"]);
    let uuid = dir.file("policy.toml", b"uuid = 'x'\ncipher = ['aes-xts-plain64']\n");
    call(["export", "--policy", &uuid, "--expect-uuid", UUID, &image, "-"]).fails(1, &["--expect-uuid", "has uuid"]);
    call(["export", "--policy", &uuid, "--require-cipher", "aes-cbc-plain", &image, "-"]).fails(1, &["has cipher"]);
    call(["export", "--type", "plain", "--policy", &uuid, &image, "-"]).fails(1, &["not allowed with type plain"]);
    let plain = dir.file("policy.toml", b"key-size = [512]\n");
    call(["export", "--type", "plain", "--policy", &plain, &image, "-"]).fails(1, &["256 bits, but 512 are required"]);
    let table = format!("0 8 crypt aes-cbc-plain {} 0 {image} 0", "00".repeat(32));
    call(["export", "--table", &table, "--policy", &plain, "-"]).fails(1, &["256 bits, but 512 are required"]);
}

/// The policy of the guide lets a volume with cryptsetup's defaults through, and stops others.
#[test]
fn policy_of_the_guide_allows_the_defaults() {
    let dir = Dir::new();
    let text = include_str!("../../../../docs/guide/policy.toml");
    assert!(include_str!("../../../../docs/guide/volumes.md").contains(text), "the chapter shows another file");
    let policy = dir.file("policy.toml", text.as_bytes());
    let image = dir.luks2("image");
    call(["open", "--test-passphrase", &image, "--policy", &policy])
        .fails(1, &["keyslot 0: argon2 memory in KiB 32 is less"]);
    let costs = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "65536", "--pbkdf-parallel", "1"];
    let made = dir.image("made", 24);
    call_with(b"secret", ["luksFormat", "-q", &made].iter().chain(&costs)).works();
    call_with(b"secret", ["open", "--test-passphrase", &made, "--policy", &policy].iter()).works();
}

/// Actions that read or write the data, and the options `more`.
fn each_use(dir: &Dir, image: &str, more: &[&str]) -> Vec<Ended> {
    let all = each_action(dir, image, b"secret", more);
    all.into_iter().skip(1).chain([in_the_background(dir, image, b"secret", more)]).collect()
}

#[test]
fn integrity_that_was_removed_from_the_header_is_refused() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    let words = ["luksFormat", "-q", "--cipher", "aes-gcm-random", "--integrity", "aead", "--sector-size", "4096"];
    call_with(b"secret", words.into_iter().chain(FAST).chain([&*image])).works();
    // Its own cipher has a name for policies.
    for spec in ["aes-gcm-random+aead", "capi:gcm(aes)-random", "aes-xts-plain64,aes-gcm-random+aead"] {
        each_use(&dir, &image, &["--require-cipher", spec])
            .iter()
            .for_each(|ended| assert_eq!(ended.code, 0, "{ended:?}"));
    }
    std::fs::remove_file(dir.path("out")).unwrap();
    for spec in ["aes-xts-random+hmac-sha256", "aes-xts-plain64+hmac-sha256", "aes-ccm-random+aead"] {
        is_refused(&dir, &image, &["--require-cipher", spec], 1, &["capi:gcm(aes)-random", "is required"]);
    }
    let policy = call(["policy", &image]);
    assert!(policy.works().text().contains("capi:gcm(aes)-random"), "{}", policy.text());
    let policy = dir.file("policy", b"cipher = [\"aes-gcm-random+aead\"]\n");
    let before = std::fs::read(&image).unwrap();
    change(&image, |json| {
        let segment = json["segments"]["0"].as_object_mut().unwrap();
        segment.remove("integrity").unwrap();
        segment.insert("encryption".to_owned(), json!("aes-xts-plain64"));
    });
    let changed = std::fs::read(&image).unwrap();
    assert!(changed != before);
    for ended in each_use(&dir, &image, &[]) {
        ended.fails(1, &["superblock of dm-integrity at byte 16777216", "--allow-integrity-superblock"]);
    }
    let doctor = call(["doctor", &image]);
    doctor.fails(11, &[]);
    assert!(doctor.text().contains("a superblock of dm-integrity is at byte 16777216"), "{}", doctor.text());
    // Those who pin the cipher are told so, also if the superblock is gone.
    is_refused(&dir, &image, &["--require-cipher", "aes-gcm-random+aead"], 1, &["aes-xts-plain64", "is required"]);
    is_refused(&dir, &image, &["--policy", &policy], 1, &["aes-xts-plain64", "is required"]);
    assert!(std::fs::read(&image).unwrap() == changed, "nothing was written");
    let read = call_with(b"secret", ["export", "--allow-integrity-superblock", "--range", "0:4096", &image, "-"]);
    assert_eq!(read.works().out.len(), 4096);
    let allowed = dir.file("allowed", b"allow-integrity-superblock = true\n");
    call_with(b"secret", ["export", "--policy", &allowed, "--range", "0:4096", &image, "-"]).works();
}

#[test]
fn new_volume_in_the_place_of_one_with_integrity_opens() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    let words = ["luksFormat", "-q", "--integrity", "hmac-sha256", "--integrity-no-wipe"];
    call_with(b"secret", words.into_iter().chain(FAST).chain([&*image])).works();
    assert_eq!(stored(&image, 16 << 20, 7), b"integrt");
    call_with(b"secret", ["luksFormat", "-q"].into_iter().chain(FAST).chain([&*image])).works();
    assert_eq!(stored(&image, 16 << 20, 7), [0; 7]);
    each_use(&dir, &image, &[]).iter().for_each(|ended| assert_eq!(ended.code, 0, "{ended:?}"));
    call(["doctor", &image]).works();
}

/// Changes of the segment, the integrity object in it, or the whole metadata.
fn changes_of_a_segment() -> Vec<(&'static str, Value)> {
    let ciphers = ["aes-xts-plain64", "aes-cbc-random", "aes-xts-random", "aes-gcm-random", "aes-ccm-random"];
    let more = ["aegis128-random", "chacha20-random", "serpent-xts-random", "aes-cbc-essiv:sha256"];
    let types = ["hmac(sha1)", "hmac(sha256)", "hmac(sha512)", "aead", "poly1305", "none", "", "cmac(aes)"];
    let mut all: Vec<(&str, Value)> =
        ciphers.into_iter().chain(more).map(|name| ("segments/0/encryption", json!(name))).collect();
    all.extend(types.map(|name| ("segments/0/integrity/type", json!(name))));
    all.extend([512, 1024, 2048, 4096].map(|size| ("segments/0/sector_size", json!(size))));
    all.extend(["8", "1", "4096", "-8"].map(|tweak| ("segments/0/iv_tweak", json!(tweak))));
    all.extend(["16773120", "16781312", "33554432"].map(|offset| ("segments/0/offset", json!(offset))));
    all.extend(["65536", "4194304", "1099511627776"].map(|size| ("segments/0/size", json!(size))));
    all.extend(["linear", "crypt"].map(|kind| ("segments/0/type", json!(kind))));
    all.extend([16, 20, 32, 64].map(|len| ("segments/0/integrity/key_size", json!(len))));
    all.extend(["journal_encryption", "journal_integrity"].map(|name| (name, json!("hmac(sha256)"))));
    all.extend(["no-journal", "allow-discards"].map(|flag| ("config/flags", json!([flag]))));
    all.push(("segments/0/integrity", Value::Null));
    all
}

#[test]
fn no_field_of_a_header_makes_a_sealed_unit_read_as_other_bytes() {
    let (mut opened, mut refused) = (0, 0);
    for (cipher, integrity) in [("aes-gcm-random", "aead"), ("aes-xts-random", "hmac-sha256")] {
        let dir = Dir::new();
        let image = dir.image("image", 24);
        let words = ["luksFormat", "-q", "--cipher", cipher, "--integrity", integrity, "--sector-size", "4096"];
        call_with(b"secret", words.into_iter().chain(FAST).chain([&*image])).works();
        let data = crate::harness::noise(65536);
        let input = dir.file("input", &data);
        call_with(b"secret", ["import", &input, &image]).works();
        let spec = format!("{cipher}+{integrity}");
        let export = |more: &[&str]| {
            let words = ["export", "--range", "0:65536", &image, "-"];
            call_with(b"secret", words.iter().chain(more))
        };
        assert!(export(&["--require-cipher", &spec]).works().out == data);
        let whole = std::fs::read(&image).unwrap();
        for (path, value) in changes_of_a_segment() {
            change(&image, |json| {
                let path =
                    if path.starts_with("journal_") { format!("segments/0/integrity/{path}") } else { path.into() };
                let (parent, name) = path.rsplit_once('/').unwrap();
                let parent = json.pointer_mut(&format!("/{parent}")).unwrap().as_object_mut().unwrap();
                match value {
                    Value::Null => _ = parent.remove(name),
                    _ => _ = parent.insert(name.to_owned(), value.clone()),
                }
            });
            // A MAC is that of the ciphertext, whose cipher it does not know: with another one units read as noise.
            let is_another_cipher = integrity != "aead" && path.ends_with("encryption");
            let pinned = ["--require-cipher", &spec];
            let ended = export(if is_another_cipher { &pinned } else { &[] });
            assert!(ended.out.is_empty() || data.starts_with(&ended.out), "{cipher}: {path} is {value}");
            if ended.code == 0 {
                opened += 1
            } else {
                refused += 1
            }
            std::fs::write(&image, &whole).unwrap();
        }
    }
    assert!(opened >= 6 && refused >= 40, "{opened} opened, {refused} refused");
}
