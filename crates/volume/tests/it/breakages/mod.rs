//! Damaged headers, each with its verdict.
//!
//! Checksums are corrected after every damage except to the checksum itself, so that the rule behind it is reached. A
//! header that is refused with damage in both copies must open through the second if only the first is damaged, and a
//! refused header must leave the device unchanged.

mod luks1;
mod luks2_rows;

use crate::support::with;
use crate::support::{PASSPHRASE, chain, luks1_image, luks2_image, secret};
use Verdict::{Load, Opens, Unlock};
use inlock_volume::luks2::binary_header::{BLOCK_LEN, write_checksum};
use inlock_volume::{Hash, HeaderDevice, KdfLimits, LoadError, LoadWarning, MemoryDevice, UnlockOptions, Volume};
use serde_json::{Value, json};

/// The required result for a damaged header.
enum Verdict {
    /// Loading fails with this in the message; it opens through the second copy.
    Load(&'static str),
    /// It loads and can be dumped; unlocking fails with this in the message.
    Unlock(&'static str),
    /// It opens with this in the warnings, or with none.
    Opens(&'static str),
}

/// The damage to a LUKS2 header.
enum Break {
    /// A change of the metadata.
    Json(fn(&mut Value)),
    /// A change of the JSON text.
    Text(fn(&str) -> Vec<u8>),
    /// A change of the binary header.
    Header(fn(&mut [u8; BLOCK_LEN])),
    /// A change of the whole image; checksums are not corrected.
    Raw(fn(&mut Vec<u8>)),
}

const HDR: usize = 16384;
const COPIES: [usize; 2] = [0, HDR];

impl Break {
    fn apply(&self, image: &mut Vec<u8>, copies: &[usize]) {
        if let Self::Raw(change) = self {
            return change(image);
        }
        for &at in copies {
            let mut block: [u8; BLOCK_LEN] = image[at..at + BLOCK_LEN].try_into().unwrap();
            let text = json_text(&image[at..at + HDR]);
            let mut area = match self {
                Self::Json(change) => {
                    let mut value = serde_json::from_str(&text).unwrap();
                    change(&mut value);
                    value.to_string().into_bytes()
                }
                Self::Text(change) => change(&text),
                Self::Header(change) => {
                    change(&mut block);
                    text.into_bytes()
                }
                Self::Raw(_) => unreachable!("done above"),
            };
            area.resize(HDR - BLOCK_LEN, 0);
            write_checksum(&mut block, &area, Hash::Sha256);
            image[at..at + BLOCK_LEN].copy_from_slice(&block);
            image[at + BLOCK_LEN..at + HDR].copy_from_slice(&area);
        }
    }
}

fn json_text(copy: &[u8]) -> String {
    let area = &copy[BLOCK_LEN..];
    let end = area.iter().position(|&byte| byte == 0).unwrap();
    String::from_utf8(area[..end].to_vec()).unwrap()
}

/// Returns limits that keep a damaged cost from taking the tests' time.
fn options() -> UnlockOptions {
    let limits = with!(KdfLimits::default(); pbkdf2_iterations: 100_000, memory_kib: 1 << 20);
    with!(UnlockOptions::default(); limits: limits)
}

/// Loads, dumps and unlocks. `Ok` has the warnings, `Err` the message and whether loading failed.
fn verdict(image: &[u8]) -> Result<String, (bool, String)> {
    let device = MemoryDevice::new(image.to_vec());
    let outcome = (|| {
        let volume = Volume::load(&device).map_err(|error| (true, chain(&error)))?;
        assert!(!volume.dump("image").to_string().is_empty());
        let warnings: Vec<_> = volume.warnings().iter().map(LoadWarning::to_string).collect();
        volume.unlock(&device, &secret(PASSPHRASE), &options()).map_err(|error| (false, chain(&error)))?;
        Ok(warnings.join("; "))
    })();
    assert!(device.to_vec() == image, "the device was changed");
    let (Ok(text) | Err((_, text))) = &outcome;
    assert!(!text.contains(char::is_control), "{text:?} could steer a terminal");
    outcome
}

/// Records a verdict that is not the expected one.
fn check(name: &str, image: &[u8], expected: &Verdict, wrong: &mut Vec<String>) {
    let got = verdict(image);
    let (as_expected, message, part) = match (&got, expected) {
        (Err((true, message)), Load(part)) | (Err((false, message)), Unlock(part)) | (Ok(message), Opens(part)) => {
            (true, message.as_str(), *part)
        }
        _ => (false, "", ""),
    };
    if !as_expected || !message.contains(part) || part.is_empty() != message.is_empty() {
        wrong.push(format!("{name}: {got:?}"));
    }
}

#[test]
fn broken_luks2_headers() {
    use luks2_rows as rows;
    let whole = luks2_image();
    assert_eq!(verdict(&whole), Ok(String::new()));
    let sections = [
        rows::header_rows(),
        rows::text_rows(),
        rows::config_rows(),
        rows::keyslot_rows(),
        rows::kdf_rows(),
        rows::digest_rows(),
        rows::segment_rows(),
    ];
    let (mut rows, mut through_second, mut wrong) = (0, 0, Vec::new());
    for (name, how, expected) in sections.into_iter().flatten() {
        let mut image = whole.clone();
        how.apply(&mut image, &COPIES);
        check(name, &image, &expected, &mut wrong);
        rows += 1;
        if !matches!(how, Break::Raw(_)) && matches!(expected, Load(_)) {
            let mut image = whole.clone();
            how.apply(&mut image, &COPIES[..1]);
            check(name, &image, &Opens("first header copy is damaged, using the second"), &mut wrong);
            let mut image = whole.clone();
            how.apply(&mut image, &COPIES[1..]);
            check(name, &image, &Opens("second header copy is damaged, using the first"), &mut wrong);
            through_second += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{rows} breakages of LUKS2 headers, {through_second} of them also in one copy");
    assert!(rows >= 150 && through_second >= 100);
}

#[test]
fn newer_copy_counts() {
    fn seqid(image: &mut Vec<u8>, copy: usize, seqid: u8) {
        let change: fn(&mut [u8; BLOCK_LEN]) = match seqid {
            1 => |block| block[23] = 1,
            2 => |block| block[23] = 2,
            _ => |block| block[23] = 3,
        };
        Break::Header(change).apply(image, &[copy]);
    }
    let flags = Break::Json(|j| j["config"]["flags"] = json!(["allow-discards"]));
    let load = |image: &[u8]| Volume::load(&MemoryDevice::new(image.to_vec())).unwrap();
    let has_flag = |volume: &Volume| volume.metadata_json().unwrap().contains("allow-discards");

    let mut newer_second = luks2_image();
    flags.apply(&mut newer_second, &COPIES[1..]);
    let same = load(&newer_second);
    assert_eq!(same.warnings(), [LoadWarning::SameSequenceDifferentContent { seqid: 1 }]);
    assert!(!has_flag(&same), "the first copy counts");
    seqid(&mut newer_second, HDR, 2);
    let newer = load(&newer_second);
    assert_eq!(newer.warnings(), [LoadWarning::CopiesDiffer { primary: 1, secondary: 2 }]);
    assert!(has_flag(&newer));
    seqid(&mut newer_second, 0, 3);
    let older = load(&newer_second);
    assert_eq!(older.warnings(), [LoadWarning::CopiesDiffer { primary: 3, secondary: 2 }]);
    assert!(!has_flag(&older));
}

/// The second copy is found at every possible offset without the first.
#[test]
fn second_copy_is_found_at_every_offset() {
    for log2 in 14..=22 {
        let device = MemoryDevice::zeroed(16 << 20);
        let format_options = with!(crate::support::luks2_options(); metadata_len: 1 << log2);
        inlock_volume::luks2::format(&device, format_options, &secret(PASSPHRASE)).unwrap();
        device.write_all_at(&[0; BLOCK_LEN], 0).unwrap();
        let volume = Volume::load(&device).unwrap();
        assert!(matches!(volume.warnings(), [LoadWarning::PrimaryDamaged(_)]), "{log2}");
        volume.unlock(&device, &secret(PASSPHRASE), &options()).unwrap();
    }
}

#[test]
fn every_bit_flip_of_the_first_copy_opens_through_the_second() {
    let whole = luks2_image();
    let json = json_text(&whole[HDR..]);
    let device = MemoryDevice::new(whole.clone());
    let mut flips = 0;
    for at in 0..HDR {
        for bit in 0..8 {
            let flipped = whole[at] ^ 1 << bit;
            device.write_all_at(&[flipped], at as u64).unwrap();
            let volume = Volume::load(&device).unwrap_or_else(|error| panic!("{at}.{bit}: {}", chain(&error)));
            assert!(matches!(volume.warnings(), [LoadWarning::PrimaryDamaged(_)]), "{at}.{bit}");
            assert!(volume.metadata_json() == Some(&json), "{at}.{bit}");
            if flips % 512 == 0 {
                volume.unlock(&device, &secret(PASSPHRASE), &options()).unwrap();
            }
            flips += 1;
        }
        device.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    assert!(device.to_vec() == whole, "loading wrote");
    println!("{flips} bit flips");
}

/// Random changes of the JSON text and the binary headers, with corrected checksums: no panic, no write, and never a
/// wrong key.
#[test]
fn random_changes_never_give_a_wrong_key() {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    println!("seed {SEED:#x}");
    let mut state = SEED;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let whole = luks2_image();
    let text_len = json_text(&whole[..HDR]).len();
    let limits = with!(KdfLimits::default(); pbkdf2_iterations: 2000, memory_kib: 1024, argon2_work_kib: 4096);
    let cheap = with!(UnlockOptions::default(); limits: limits);
    let unlocked = |device: &MemoryDevice| {
        let volume = Volume::load(device).ok()?;
        volume.dump("image").to_string();
        Some(volume.unlock(device, &secret(PASSPHRASE), &cheap).ok()?.key.as_bytes().to_vec())
    };
    let key = unlocked(&MemoryDevice::new(whole.clone())).unwrap();
    let alphabet = b"0123456789\"{}[]:,-.e \\\0\xff";
    let mut opened = 0;
    for _ in 0..6000 {
        let mut image = whole.clone();
        for _ in 0..1 + random(3) {
            let at = if random(4) == 0 { random(512) } else { BLOCK_LEN + random(text_len + 2) };
            let byte = if random(2) == 0 { alphabet[random(alphabet.len())] } else { random(256) as u8 };
            COPIES.iter().for_each(|copy| image[copy + at] = byte);
        }
        for copy in COPIES {
            let (block, area) = image[copy..copy + HDR].split_at_mut(BLOCK_LEN);
            write_checksum(block.try_into().unwrap(), area, Hash::Sha256);
        }
        let device = MemoryDevice::new(image.clone());
        if let Some(got) = unlocked(&device) {
            assert_eq!(got, key);
            opened += 1;
        }
        assert!(device.to_vec() == image, "the device was changed");
    }
    println!("{opened} of 6000 changed headers still open");
    assert!((100..5900).contains(&opened), "{opened}");
}

#[test]
fn every_truncation_opens_or_is_refused_by_name() {
    let mut opened = 0;
    for whole in [luks1_image(), luks2_image()] {
        let steps = (0..4096).step_by(64).chain((4096..whole.len()).step_by(4001));
        for len in steps.chain((512..whole.len()).step_by(512 * 23)) {
            match verdict(&whole[..len]) {
                Ok(_) => opened += 1,
                Err((refused_by_load, message)) => {
                    assert!(refused_by_load && !message.is_empty(), "{len}: {message}");
                    let named = ["not a LUKS volume", "but the device has only"];
                    assert!(named.iter().any(|part| message.contains(part)), "{len}: {message}");
                }
            }
        }
    }
    assert!(opened > 100, "{opened} opened");
}

#[test]
fn kinds_of_errors_can_be_told_apart() {
    let load = |bytes: &[u8]| Volume::load(&MemoryDevice::new(bytes.to_vec()));
    assert!(matches!(load(&[]), Err(LoadError::NotLuks)));
    assert!(matches!(load(&[0; 100_000]), Err(LoadError::NotLuks)));
    assert!(matches!(load(&luks1_image()[..591]), Err(LoadError::Truncated { needed: 592, len: 591, .. })));
    assert!(matches!(load(&luks2_image()[..4095]), Err(LoadError::Truncated { needed: 4096, len: 4095, .. })));
    assert!(matches!(load(&luks2_image()[..40_000]), Err(LoadError::Truncated { len: 40_000, .. })));
    let mut version = luks1_image();
    version[7] = 9;
    assert!(matches!(load(&version), Err(LoadError::UnsupportedVersion(9))));
    let mut damaged = luks1_image();
    damaged[8..40].fill(b'a');
    assert!(matches!(load(&damaged), Err(LoadError::Damaged(_))));
}
