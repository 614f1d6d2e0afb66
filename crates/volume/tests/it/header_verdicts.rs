//! Broken headers, each judged by Inlock and, if it is installed, by cryptsetup.
//!
//! A row of `tests/header/verdicts.txt` has the breakage, cryptsetup's verdict (those of several versions with `|`
//! between them), Inlock's, and the reason if they differ. Breakages are of volumes with keyslots 0, 1 and 2; most are
//! of keyslot 1. A verdict tells whether the header is read, the keyslots that open by number, whether keyslot 2 opens
//! without a number, and what `repair` without questions does: nothing, or it fails, or the keyslots that open
//! afterwards.

use crate::support::{VOLUME_KEY_64, cheap, installed, is_full, luks1_options, luks2_options, secret, with};
use inlock_volume::luks2::binary_header::{BLOCK_LEN, write_checksum};
use inlock_volume::{
    Hash, KdfKind, KdfLimits, MemoryDevice, RepairPlan, UnlockOptions, Volume, VolumeKey, luks1, luks2,
};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

const TABLE: &str = include_str!("../../../../tests/header/verdicts.txt");
const HDR: usize = 16384;
pub(crate) const PASSPHRASES: [&str; 3] = ["pass 0", "pass 1", "pass 2"];

/// Returns volumes with three keyslots: LUKS1 and LUKS2.
pub(crate) fn volumes() -> [Vec<u8>; 2] {
    let one = MemoryDevice::zeroed(4 << 20);
    let key = || Some(VolumeKey::new(&VOLUME_KEY_64));
    let options = with!(luks1_options(); key_len: 64, volume_key: key());
    luks1::format(&one, options, &secret(PASSPHRASES[0].as_bytes())).unwrap();
    let two = MemoryDevice::zeroed(2 << 20);
    let options = with!(
        luks2_options();
        kdf: cheap(KdfKind::Pbkdf2),
        keyslots_len: Some((1 << 20) - 2 * HDR as u64),
        volume_key: key(),
        sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
        data_offset: Some(1 << 20),
    );
    luks2::format(&two, options, &secret(PASSPHRASES[0].as_bytes())).unwrap();
    [one, two].map(|device| {
        for passphrase in &PASSPHRASES[1..] {
            let mut volume = Volume::load(&device).unwrap();
            let new = with!(volume.new_keyslot(); kdf: cheap(KdfKind::Pbkdf2));
            volume.add_keyslot(&device, &key().unwrap(), &secret(passphrase.as_bytes()), &new).unwrap();
        }
        device.to_vec()
    })
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns a volume with the breakage that a row describes.
pub(crate) fn broken(row: &str, [luks1, luks2]: &[Vec<u8>; 2]) -> Vec<u8> {
    let (kind, rest) = row.split_once(' ').unwrap();
    let patch = |image: &mut [u8], base: usize| {
        let (at, hex) = rest.strip_prefix('@').unwrap().split_once(' ').unwrap();
        let (at, bytes) = (base + at.parse::<usize>().unwrap(), bytes_of(hex));
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    };
    let mut image = if kind.starts_with("luks1") { luks1.clone() } else { luks2.clone() };
    match kind {
        "luks1" => patch(&mut image, 0),
        "luks1-length" | "luks2-length" => image.truncate(rest.parse().unwrap()),
        "luks2-first-damaged" => patch(&mut image, 0),
        "luks2-second-damaged" => patch(&mut image, HDR),
        "luks2" => {
            let mut json: Value = serde_json::from_str(&text_of(&image)).unwrap();
            set(&mut json, rest);
            put_text(&mut image, json.to_string().as_bytes());
        }
        "luks2-text" => {
            let text = damaged_text(rest, &text_of(&image));
            put_text(&mut image, &text);
        }
        "luks2-both" | "luks2-first" | "luks2-second" => {
            let copies: &[usize] = match kind {
                "luks2-both" => &[0, HDR],
                "luks2-first" => &[0],
                _ => &[HDR],
            };
            for &copy in copies {
                patch(&mut image, copy);
                correct_checksum(&mut image, copy);
                // A change of the checksum itself is not corrected.
                if rest.starts_with("@448") || rest.starts_with("@480") {
                    patch(&mut image, copy);
                }
            }
        }
        _ => panic!("not a breakage: {row}"),
    }
    image
}

fn text_of(image: &[u8]) -> String {
    let area = &image[BLOCK_LEN..HDR];
    let end = area.iter().position(|&byte| byte == 0).unwrap();
    String::from_utf8(area[..end].to_vec()).unwrap()
}

fn put_text(image: &mut [u8], text: &[u8]) {
    for copy in [0, HDR] {
        image[copy + BLOCK_LEN..copy + HDR].fill(0);
        image[copy + BLOCK_LEN..][..text.len()].copy_from_slice(text);
        correct_checksum(image, copy);
    }
}

fn correct_checksum(image: &mut [u8], copy: usize) {
    let (block, area) = image[copy..copy + HDR].split_at_mut(BLOCK_LEN);
    write_checksum(block.try_into().unwrap(), area, Hash::Sha256);
}

/// Sets the value at a JSON pointer, or removes it.
fn set(json: &mut Value, change: &str) {
    // A pointer may contain a blank, a value starts with none.
    let (pointer, value) = change.split_once(" = ").unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = json.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value == "remove" {
        parent.shift_remove(name);
    } else {
        parent.insert(name.to_owned(), serde_json::from_str(value).unwrap());
    }
}

fn damaged_text(how: &str, text: &str) -> Vec<u8> {
    let replace = |from: &str, to: &str| text.replacen(from, to, 1).into_bytes();
    let nested = |depth: usize| replace("{", &format!("{{\"x\":{}{},", "[".repeat(depth), "]".repeat(depth)));
    let stripes = |value: &str| replace("\"stripes\":4000", &format!("\"stripes\":{value}"));
    match how {
        "empty" => Vec::new(),
        "array" => b"[]".to_vec(),
        "object" => b"{}".to_vec(),
        "full" => vec![b' '; HDR - BLOCK_LEN],
        "blank-before" => format!(" {text}").into(),
        "blank-behind" => format!("{text} ").into(),
        "newline-behind" => format!("{text}\n").into(),
        "twice" => format!("{text}{text}").into(),
        "behind-zero" => format!("{text}\0x").into(),
        "not-closed" => text[..text.len() - 1].into(),
        "zero-inside" => replace("\"raw\"", "\"r\0w\""),
        "not-utf8" => [b"{\"\xff\":1,", &text.as_bytes()[1..]].concat(),
        "control-character" => replace("{", "{\"x\":\"\u{1}\","),
        "lone-surrogate" => replace("{", "{\"x\":\"\\ud800\","),
        "duplicate-section" => replace("{", "{\"config\":{},"),
        "duplicate-field" => replace("\"stripes\"", "\"stripes\":1,\"stripes\""),
        "nested-30" => nested(30),
        "nested-40" => nested(40),
        "nested-2000" => nested(2000),
        "4000-digits" => stripes(&"4".repeat(4000)),
        "exponent" => stripes("4e3"),
        "fraction" => stripes("4000.0"),
        "nan" => stripes("NaN"),
        "comment" => format!("{}/* x */}}", &text[..text.len() - 1]).into(),
        "trailing-comma" => format!("{},}}", &text[..text.len() - 1]).into(),
        "single-quotes" => replace("{", "{'x':1,"),
        "true-in-capitals" => replace("{", "{\"x\":TRUE,"),
        _ => panic!("not a text: {how}"),
    }
}

/// Returns Inlock's verdict; `, warns` if it warns.
fn verdict(image: &[u8]) -> String {
    let device = MemoryDevice::new(image.to_vec());
    let loaded = Volume::load(&device);
    let warns = loaded.as_ref().is_ok_and(|volume| !volume.warnings().is_empty());
    let opens = |device: &MemoryDevice| Volume::load(device).map_or_else(|_| String::new(), |v| opening(&v, device));
    let before = match &loaded {
        Err(_) => "refused".to_owned(),
        Ok(volume) => {
            assert!(!volume.dump("image").to_string().is_empty());
            format!("read, opens {}", opening(volume, &device))
        }
    };
    assert!(device.to_vec() == image, "the device was changed");
    let repaired = RepairPlan::new(&device).and_then(|plan| plan.execute(&device, false));
    let after = match repaired {
        Err(_) => {
            assert!(device.to_vec() == image, "a failed repair wrote");
            "repair fails".to_owned()
        }
        Ok(_) if device.to_vec() == image => "kept".to_owned(),
        Ok(_) => format!("repaired, opens {}", opens(&device)),
    };
    format!("{before}, {after}{}", if warns { ", warns" } else { "" })
}

/// Returns the keyslots that open by number, and a star if keyslot 2 opens without its number.
fn opening(volume: &Volume, device: &MemoryDevice) -> String {
    let limits = with!(KdfLimits::default(); pbkdf2_iterations: 1 << 20, memory_kib: 1 << 16);
    let opens = |keyslot, passphrase: &str| {
        let options = with!(UnlockOptions::default(); limits: limits, keyslot: keyslot);
        match volume.unlock_key(device, &secret(passphrase.as_bytes()), &options) {
            Ok((_, key)) => {
                assert_eq!(key.as_bytes(), VOLUME_KEY_64, "a wrong key");
                true
            }
            Err(_) => false,
        }
    };
    let numbers: String =
        (0..3).filter(|slot| opens(Some(*slot), PASSPHRASES[*slot as usize])).map(|slot| slot.to_string()).collect();
    format!("{numbers}{}", if opens(None, PASSPHRASES[2]) { "*" } else { "-" })
}

/// Returns cryptsetup's verdict. It may take minutes for a key derivation; then it does not open.
fn verdict_of_cryptsetup(program: &[String], image: &[u8], dir: &Path) -> String {
    let path = dir.join("image");
    let path = path.to_str().unwrap();
    let run = |args: &[&str], input: &str| {
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "10"])
            .args(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).ok();
        child.wait().unwrap().success()
    };
    let opens = || {
        let open = |args: &[&str], passphrase: &str| {
            run(&[&["open", "--test-passphrase", "--key-file=-"], args, &[path]].concat(), passphrase)
        };
        let by_number = |slot: &usize| open(&["--key-slot", &slot.to_string()], PASSPHRASES[*slot]);
        let numbers: String = (0..3).filter(by_number).map(|slot| slot.to_string()).collect();
        format!("{numbers}{}", if open(&[], PASSPHRASES[2]) { "*" } else { "-" })
    };
    std::fs::write(path, image).unwrap();
    let before = match run(&["luksDump", path], "") {
        true => format!("read, opens {}", opens()),
        false => "refused".to_owned(),
    };
    std::fs::write(path, image).unwrap();
    let after = match run(&["repair", "-q", path], "") {
        false => "repair fails".to_owned(),
        true if std::fs::read(path).unwrap() == image => "kept".to_owned(),
        true => format!("repaired, opens {}", opens()),
    };
    format!("{before}, {after}")
}

pub(crate) fn rows() -> Vec<Vec<&'static str>> {
    let rows = TABLE.lines().filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| row.split('\t').collect()).collect()
}

/// Splits work between two threads, and returns the results in order.
pub(crate) fn in_parallel<T: Send>(rows: &[Vec<&'static str>], judge: impl Fn(usize, &str) -> T + Sync) -> Vec<T> {
    let results = Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (results, next, judge) = (&results, &next, &judge);
            scope.spawn(move || {
                while let Some(row) = rows.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let result = judge(thread, row[0]);
                    results.lock().unwrap().push((row[0], result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    let order: std::collections::HashMap<&str, usize> = rows.iter().zip(0..).map(|(row, at)| (row[0], at)).collect();
    results.sort_by_key(|(row, _)| order[row]);
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn broken_header_gets_its_verdict_and_reasons_for_differences() {
    let volumes = volumes();
    let all = rows();
    let verdicts = in_parallel(&all, |_, row| verdict(&broken(row, &volumes)));
    let mut wrong = Vec::new();
    let (mut equal, mut differ) = (0, 0);
    for (row, found) in all.iter().zip(verdicts) {
        let [breakage, cryptsetup, inlock, why @ ..] = &row[..] else {
            wrong.push(format!("{}\t\t{found}", row[0]));
            continue;
        };
        let is_equal = cryptsetup.split('|').any(|verdict| verdict == found.trim_end_matches(", warns"));
        if found != *inlock || is_equal != why.is_empty() {
            wrong.push(format!("{breakage}\t{cryptsetup}\t{found}{}", if is_equal { "" } else { "\tWHY" }));
        }
        if is_equal { equal += 1 } else { differ += 1 }
    }
    assert!(wrong.is_empty(), "{} rows as they are now:\n{}", wrong.len(), wrong.join("\n"));
    println!("{equal} verdicts are cryptsetup's, {differ} differ for a reason");
    assert!(equal >= 400, "{equal}");
}

/// The reasons at the head of the table are the only ones.
#[test]
fn reason_of_a_difference_is_explained() {
    let reasons: Vec<&str> =
        TABLE.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(": ")).map(|r| r.0).collect();
    for row in rows() {
        if let Some(why) = row.get(3) {
            assert!(reasons.contains(why), "{row:?}");
        }
    }
}

/// `INLOCK_TEST_CRYPTSETUP` may name another program, with arguments. `cargo xtask header-proof` judges every row,
/// other runs one in four: what this compares is the table, not Inlock.
#[test]
fn broken_header_gets_the_noted_verdict_of_cryptsetup() {
    let program = std::env::var("INLOCK_TEST_CRYPTSETUP").unwrap_or_else(|_| "cryptsetup".into());
    let program: Vec<String> = program.split(' ').map(str::to_owned).collect();
    if !installed(&program[0]) {
        return;
    }
    let volumes = volumes();
    let step = if is_full() { 1 } else { 4 };
    let all: Vec<_> = rows().into_iter().step_by(step).collect();
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let verdicts =
        in_parallel(&all, |thread, row| verdict_of_cryptsetup(&program, &broken(row, &volumes), dirs[thread].path()));
    let mut wrong = Vec::new();
    for (row, found) in all.iter().zip(&verdicts) {
        if !row.get(1).is_some_and(|noted| noted.split('|').any(|noted| noted == found)) {
            wrong.push(format!("{}\t{found}\t{}", row[0], row[2..].join("\t")));
        }
    }
    assert!(wrong.is_empty(), "{} verdicts of this cryptsetup:\n{}", wrong.len(), wrong.join("\n"));
    println!("COUNT header_breakages_judged {}", verdicts.len());
}
