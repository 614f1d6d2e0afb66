//! Conversions between LUKS1 and LUKS2: equal to cryptsetup's, opened by it, and opened after any power cut.

use crate::power_cut::{RecordingDevice, Step, each_state};
use crate::support::{
    Bench, VOLUME_KEY_64, cheap, installed, luks1_options, luks2_options, map_of, output, run, secret, text_of, with,
};
use inlock_volume::{
    Conversion, ConvertError, HeaderDevice, KdfKind, MemoryDevice, UnlockOptions, Volume, VolumeKey, luks1, luks2,
};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const PASSPHRASES: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];

/// Returns a LUKS1 volume with keys of 256 bits in these keyslots, each with its own passphrase.
pub(crate) fn luks1_volume(keyslots: &[u32]) -> Vec<u8> {
    let device = MemoryDevice::zeroed((2 << 20) + 4096);
    let key = VolumeKey::new(&VOLUME_KEY_64[..32]);
    let options = with!(luks1_options(); volume_key: Some(VolumeKey::new(&VOLUME_KEY_64[..32])), keyslot: keyslots[0]);
    luks1::format(&device, options, &secret(PASSPHRASES[keyslots[0] as usize].as_bytes())).unwrap();
    add_keys(&device, &key, &keyslots[1..]);
    device.to_vec()
}

pub(crate) fn luks2_volume(keyslots: &[u32]) -> Vec<u8> {
    let device = MemoryDevice::zeroed((2 << 20) + 4096);
    let key = VolumeKey::new(&VOLUME_KEY_64[..32]);
    let options = with!(
        luks2_options();
        kdf: cheap(KdfKind::Pbkdf2),
        key_len: 32,
        volume_key: Some(VolumeKey::new(&VOLUME_KEY_64[..32])),
        keyslot: keyslots[0],
        keyslots_len: None,
        data_offset: Some(2 << 20),
        label: String::new(),
        sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
    );
    luks2::format(&device, options, &secret(PASSPHRASES[keyslots[0] as usize].as_bytes())).unwrap();
    add_keys(&device, &key, &keyslots[1..]);
    device.to_vec()
}

fn add_keys(device: &MemoryDevice, key: &VolumeKey, keyslots: &[u32]) {
    for &number in keyslots {
        let mut volume = Volume::load(device).unwrap();
        let new = with!(volume.new_keyslot(); kdf: cheap(KdfKind::Pbkdf2), number: Some(number));
        volume.add_keyslot(device, key, &secret(PASSPHRASES[number as usize].as_bytes()), &new).unwrap();
    }
}

pub(crate) fn convert(device: &dyn HeaderDevice, version: u32) -> Result<Volume, ConvertError> {
    Conversion::new(&Volume::load(device).unwrap(), version)?.execute(device)
}

/// Returns how many of the passphrases open the volume.
pub(crate) fn opening(bytes: &[u8], keyslots: &[u32]) -> usize {
    let device = MemoryDevice::new(bytes.to_vec());
    let volume = Volume::load(&device).unwrap_or_else(|error| panic!("not a volume: {error}"));
    let opens = |number: &&u32| {
        let passphrase = secret(PASSPHRASES[**number as usize].as_bytes());
        volume.unlock_key(&device, &passphrase, &UnlockOptions::default()).is_ok()
    };
    keyslots.iter().filter(opens).count()
}

const SETS: [&[u32]; 6] = [&[0], &[0, 1, 2], &[7, 0], &[0, 1, 2, 3, 4, 5, 6], &[0, 1, 2, 3, 4, 5, 7], &[6, 3]];

#[test]
fn converted_header_is_that_of_cryptsetup_and_opens_there() {
    if !installed("cryptsetup") {
        return;
    }
    let mut converted = 0;
    for keyslots in SETS {
        for (before, version) in [(luks1_volume(keyslots), 2), (luks2_volume(keyslots), 1)] {
            let bench = Bench::new();
            let [ours, theirs] = ["ours", "theirs"].map(|name| {
                std::fs::write(bench.path(name), &before).unwrap();
                bench.text(name)
            });
            convert(&bench.device("ours"), version).unwrap();
            run("cryptsetup", &["convert", "-q", "--type", &format!("luks{version}"), &theirs]);
            let dump = |path: &str| run("cryptsetup", &["luksDump", path]).replace(path, "DEVICE");
            assert_eq!(dump(&ours), dump(&theirs), "{keyslots:?} to LUKS{version}");
            for &number in keyslots {
                let passphrase = PASSPHRASES[number as usize];
                std::fs::write(bench.path("key"), passphrase).unwrap();
                let slot = number.to_string();
                let key = bench.text("key");
                let args = ["open", "--test-passphrase", "--key-slot", &slot, "--key-file", &key, &ours];
                assert!(output("cryptsetup", &args).status.success(), "{keyslots:?} to LUKS{version}: {number}");
            }
            assert_eq!(opening(&std::fs::read(&ours).unwrap(), keyslots), keyslots.len());
            assert_eq!(opening(&std::fs::read(&theirs).unwrap(), keyslots), keyslots.len(), "of cryptsetup");
            // And back again, by the other program.
            let back = 3 - version;
            convert(&bench.device("theirs"), back).unwrap();
            run("cryptsetup", &["convert", "-q", "--type", &format!("luks{back}"), &ours]);
            assert_eq!(dump(&ours), dump(&theirs), "{keyslots:?} back to LUKS{back}");
            assert_eq!(opening(&std::fs::read(&theirs).unwrap(), keyslots), keyslots.len());
            converted += 2;
        }
    }
    println!("COUNT conversions_like_cryptsetup {converted}");
}

pub(crate) fn log_of(before: &[u8], version: u32) -> (Vec<u8>, Vec<Step>) {
    let device = RecordingDevice::new(before.to_vec());
    convert(&device, version).unwrap();
    (device.to_vec(), device.log.into_inner().unwrap())
}

#[test]
fn power_cut_while_converting_leaves_every_passphrase() {
    let mut total = 0;
    for keyslots in [&[0, 1][..], &[7, 0]] {
        for (before, version) in [(luks1_volume(keyslots), 2), (luks2_volume(keyslots), 1)] {
            let (_, log) = log_of(&before, version);
            let mut seen = HashMap::new();
            let mut versions = [0; 2];
            total += each_state(&before, &log, &mut |bytes| {
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                let version = seen.entry(hasher.finish()).or_insert_with(|| {
                    assert_eq!(opening(bytes, keyslots), keyslots.len(), "{keyslots:?} to LUKS{version}");
                    Volume::load(&MemoryDevice::new(bytes.to_vec())).unwrap().version()
                });
                versions[*version as usize - 1] += 1;
            });
            assert!(versions.iter().all(|count| *count > 0), "{keyslots:?} to LUKS{version}: {versions:?}");
        }
    }
    println!("{total} states of converting checked");
    assert!(total >= 600, "{total}");
}

/// The negative control: without the syncs in between, keys are lost.
#[test]
fn power_cut_check_of_converting_without_syncs_fails() {
    let before = luks1_volume(&[0, 1]);
    let (_, log) = log_of(&before, 2);
    let writes: Vec<_> = log.into_iter().filter(|step| matches!(step, Step::Write { .. })).take(3).collect();
    let mut lost = 0;
    each_state(&before, &writes, &mut |bytes| {
        let is_volume = Volume::load(&MemoryDevice::new(bytes.to_vec())).is_ok();
        lost += usize::from(!is_volume || opening(bytes, &[0, 1]) < 2);
    });
    assert!(lost > 0, "lost writes went unnoticed");
}

/// Without a free keyslot to move the others by, only the one that is being moved can be lost.
#[test]
fn power_cut_while_converting_eight_keyslots_loses_one_at_most() {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let before = luks1_volume(&all);
    let plan = Conversion::new(&Volume::load(&MemoryDevice::new(before.clone())).unwrap(), 2).unwrap();
    assert!(plan.may_lose_keyslot());
    let (after, log) = log_of(&before, 2);
    assert_eq!(opening(&after, &all), 8);
    let mut least = 8;
    let mut count = 0;
    each_state(&before, &log, &mut |bytes| {
        count += 1;
        // Opening all eight takes a while.
        if count % 7 == 0 {
            least = least.min(opening(bytes, &all));
        }
    });
    assert_eq!(least, 7);
    let (after, log) = log_of(&luks2_volume(&all), 1);
    assert_eq!(opening(&after, &all), 8);
    assert!(!log.is_empty());
}

#[test]
fn conversion_that_was_cut_off_can_be_repeated() {
    let keyslots = [0, 1, 2];
    let before = luks1_volume(&keyslots);
    let (after, log) = log_of(&before, 2);
    let layout = |bytes: &[u8]| {
        let Volume::Luks2(luks2) = Volume::load(&MemoryDevice::new(bytes.to_vec())).unwrap() else { panic!("LUKS1") };
        let slots = luks2.metadata().keyslots.values();
        slots.map(|slot| slot.area_offset).collect::<Vec<_>>()
    };
    let mut repeated = 0;
    for end in 0..log.len() {
        let mut bytes = before.clone();
        for step in &log[..end] {
            if let Step::Write { offset, data } = step {
                bytes[*offset as usize..][..data.len()].copy_from_slice(data);
            }
        }
        let device = MemoryDevice::new(bytes);
        if Volume::load(&device).unwrap().version() == 2 {
            break;
        }
        convert(&device, 2).unwrap();
        assert_eq!(opening(&device.to_vec(), &keyslots), 3, "after {end} steps");
        repeated += 1;
    }
    assert!(repeated > 20, "{repeated}");
    assert_eq!(layout(&after), [32768, 163_840, 294_912]);
}

#[test]
fn old_key_material_is_not_left_behind() {
    for (before, version) in [(luks1_volume(&[0, 1]), 2), (luks2_volume(&[0, 1]), 1)] {
        let (after, _) = log_of(&before, version);
        let volume = |bytes: &[u8]| Volume::load(&MemoryDevice::new(bytes.to_vec())).unwrap();
        let (old, new) = (volume(&before), volume(&after));
        assert_eq!((old.uuid(), old.data_offset()), (new.uuid(), new.data_offset()));
        assert!(after[old.data_offset() as usize..] == before[old.data_offset() as usize..], "data changed");
        // A sector of key material occurs once: in the area of its keyslot.
        let material = &before[if version == 2 { 4096 } else { 32768 }..][..128_000];
        for sector in material.chunks(512) {
            let times = after.chunks(512).filter(|other| *other == sector).count();
            assert_eq!(times, 1, "to LUKS{version}");
        }
    }
}

#[test]
fn volume_that_the_other_format_cannot_have_is_refused() {
    let volume = luks2_volume(&[0, 1]);
    let refuse = |change: fn(&mut serde_json::Value)| {
        let device = MemoryDevice::new(volume.clone());
        let Volume::Luks2(mut luks2) = Volume::load(&device).unwrap() else { panic!("not LUKS2") };
        let mut map = map_of(&luks2).into();
        change(&mut map);
        let serde_json::Value::Object(map) = map else { unreachable!("it was one") };
        luks2.commit(&device, &text_of(map)).unwrap();
        let before = device.to_vec();
        let error = Conversion::new(&Volume::load(&device).unwrap(), 1).unwrap_err();
        assert!(device.to_vec() == before);
        error.to_string()
    };
    use serde_json::json;
    for (text, change) in [
        (
            "contains 1 token",
            (|j| j["tokens"]["0"] = json!({"type": "x", "keyslots": []})) as fn(&mut serde_json::Value),
        ),
        ("the cipher is too long", |j| {
            j["segments"]["0"]["encryption"] = json!(format!("{}-xts-plain64", "a".repeat(32)));
        }),
        ("sector size is not 512", |j| j["segments"]["0"]["sector_size"] = json!(4096)),
        ("has an IV offset", |j| j["segments"]["0"]["iv_tweak"] = json!("8")),
        ("has a length", |j| j["segments"]["0"]["size"] = json!("4096")),
        ("has integrity", |j| {
            let integrity = json!({"type": "x", "journal_encryption": "none", "journal_integrity": "none"});
            j["segments"]["0"]["integrity"] = integrity;
        }),
        ("unmet LUKS2 requirement", |j| j["config"]["requirements"] = json!({"mandatory": ["x"]})),
        ("keyslot 1 is not LUKS1 compatible", |j| j["keyslots"]["1"]["af"]["hash"] = json!("sha512")),
        ("keyslot 1 is not LUKS1 compatible", |j| j["keyslots"]["1"]["kdf"]["hash"] = json!("sha512")),
        ("keyslot 1 is not LUKS1 compatible", |j| j["keyslots"]["1"]["area"]["encryption"] = json!("aes-cbc-plain64")),
        ("keyslot 1 is not LUKS1 compatible", |j| j["keyslots"]["1"]["type"] = json!("x")),
        ("keyslot 1 is damaged", |j| j["keyslots"]["1"]["priority"] = json!(7)),
        ("there is not exactly one", |j| {
            j["digests"]["1"] = json!({"type": "x", "keyslots": [], "segments": []});
        }),
        ("slot 8 (over maximum slots)", |j| {
            j["keyslots"]["8"] = j["keyslots"]["1"].take();
            j["keyslots"].as_object_mut().unwrap().shift_remove("1");
            j["digests"]["0"]["keyslots"] = json!(["0", "8"]);
        }),
    ] {
        let error = refuse(change);
        assert!(error.contains(text), "{text}: {error}");
    }
    let device = MemoryDevice::new(volume);
    assert!(matches!(convert(&device, 2), Err(ConvertError::SameVersion(2))));
    assert!(matches!(convert(&device, 3), Err(ConvertError::UnknownVersion(3))));
    let small = MemoryDevice::zeroed((2 << 20) + 4096);
    // 1056768 bytes are the end of the keyslots of LUKS1: LUKS2 needs 28 KiB more.
    let options = with!(luks1_options(); payload_offset: Some(2064));
    luks1::format(&small, options, &secret(b"x")).unwrap();
    assert!(matches!(convert(&small, 2), Err(ConvertError::NoSpace { .. })));
}
