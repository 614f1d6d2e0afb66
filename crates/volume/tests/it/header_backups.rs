//! Backups of headers: equal to cryptsetup's, restored by either program, and whole or reported after a power cut.

use crate::power_cut::{FailingDevice, RecordingDevice, Step, each_state};
use crate::support::{Bench, cheap, installed, luks1_options, luks2_options, output, run, secret, unlock, with};
use inlock_volume::{
    BackupError, HeaderBackup, HeaderDevice, KdfKind, LoadError, MemoryDevice, Replaced, RestoreError, Volume, luks1,
    luks2,
};

const LEN: usize = (2 << 20) + 8192;
const OLD: &[u8] = b"old passphrase";
const NEW: &[u8] = b"new passphrase";

fn luks2_volume(passphrase: &[u8]) -> Vec<u8> {
    let device = MemoryDevice::zeroed(LEN);
    let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), uuid: None, data_offset: Some(1 << 20));
    luks2::format(&device, options, &secret(passphrase)).unwrap();
    device.to_vec()
}

fn luks1_volume(passphrase: &[u8]) -> Vec<u8> {
    let device = MemoryDevice::zeroed(LEN);
    luks1::format(&device, luks1_options(), &secret(passphrase)).unwrap();
    device.to_vec()
}

fn backup_of(image: &[u8]) -> HeaderBackup {
    HeaderBackup::of_device(&MemoryDevice::new(image.to_vec())).unwrap()
}

#[test]
fn backup_is_that_of_cryptsetup_and_each_restores_the_others() {
    if !installed("cryptsetup") {
        return;
    }
    for (name, mut image) in [("luks1", luks1_volume(OLD)), ("luks2", luks2_volume(OLD))] {
        // Bytes that belong to nothing: behind the LUKS1 header, and in a free area.
        image[700] = 7;
        image[3000] = 7;
        image[500_000..500_100].fill(9);
        if name == "luks2" {
            (image[700], image[3000]) = (0, 0);
        }
        let bench = Bench::new();
        let (path, theirs) = (bench.text("image"), bench.text("theirs"));
        std::fs::write(&path, &image).unwrap();
        run("cryptsetup", &["luksHeaderBackup", &path, "--header-backup-file", &theirs]);
        let backup = HeaderBackup::of_device(&bench.device("image")).unwrap();
        assert!(backup.bytes() == std::fs::read(&theirs).unwrap(), "{name}: another backup");

        std::fs::write(bench.path("ours"), backup.bytes()).unwrap();
        std::fs::write(&path, vec![0; LEN]).unwrap();
        run("cryptsetup", &["luksHeaderRestore", "-q", &path, "--header-backup-file", &bench.text("ours")]);
        unlock(&bench.device("image"), OLD).unwrap();

        std::fs::write(&path, vec![0; LEN]).unwrap();
        let read = HeaderBackup::of_file(&MemoryDevice::new(std::fs::read(&theirs).unwrap())).unwrap();
        read.restore(&bench.device("image")).unwrap();
        std::fs::write(bench.path("passphrase"), OLD).unwrap();
        let opened =
            output("cryptsetup", &["open", "--test-passphrase", "--key-file", &bench.text("passphrase"), &path]);
        assert!(opened.status.success(), "{name}");
    }
}

#[test]
fn backup_of_a_damaged_header_is_whole() {
    let whole = luks2_volume(OLD);
    for damaged in [0, 16384] {
        let mut image = whole.clone();
        image[damaged + 5000] ^= 1;
        let backup = backup_of(&image);
        let device = MemoryDevice::new(backup.bytes().to_vec());
        assert_eq!(Volume::load(&device).unwrap().warnings(), [], "{damaged}");
        unlock(&device, OLD).unwrap();
    }
}

#[test]
fn restoring_tells_what_is_replaced_and_refuses_what_cannot_fit() {
    let [mine, other] = [luks2_volume(OLD), luks2_volume(OLD)];
    let backup = backup_of(&mine);
    let compare = |image: &[u8]| backup.compare(&MemoryDevice::new(image.to_vec()));
    let replaced = |same_uuid| match compare(if same_uuid { &mine } else { &other }).unwrap() {
        Replaced::Header { same_uuid, has_requirements: false } => same_uuid,
        replaced => panic!("{replaced:?}"),
    };
    assert!(replaced(true) && !replaced(false));
    assert_eq!(compare(&vec![0; LEN]).unwrap(), Replaced::Nothing);
    assert_eq!(compare(&luks1_volume(OLD)).unwrap(), Replaced::Nothing);
    let short = vec![0; backup.bytes().len() - 1];
    assert!(matches!(compare(&short), Err(RestoreError::DeviceTooSmall { .. })));

    let device = MemoryDevice::zeroed(3 << 20);
    let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), data_offset: Some(2 << 20));
    luks2::format(&device, options, &secret(OLD)).unwrap();
    assert!(matches!(
        backup.compare(&device),
        Err(RestoreError::OtherDataOffset { device: 0x20_0000, backup: 0x10_0000 })
    ));
    let before = device.to_vec();
    assert!(backup.restore(&device).is_err() && device.to_vec() == before, "a refused backup was written");

    let device = MemoryDevice::zeroed(LEN);
    let options = with!(luks1_options(); key_len: 64, payload_offset: Some(4096));
    luks1::format(&device, options, &secret(OLD)).unwrap();
    let other_key = backup_of(&luks1_volume(OLD)).compare(&device);
    assert!(matches!(other_key, Err(RestoreError::OtherKeyLength | RestoreError::OtherDataOffset { .. })));

    let truncated = HeaderBackup::of_file(&MemoryDevice::new(backup.bytes()[..40_000].to_vec()));
    assert!(matches!(truncated, Err(BackupError::Load(LoadError::Truncated { .. }))));
}

fn logs() -> Vec<(String, Vec<u8>, Vec<Step>)> {
    let new = [("LUKS1", luks1_volume(NEW)), ("LUKS2", luks2_volume(NEW))];
    let mut logs = Vec::new();
    for (new_name, new) in new {
        let backup = backup_of(&new);
        let mut damaged = new.clone();
        damaged[300] ^= 1;
        for (name, before) in [
            ("nothing", vec![0; LEN]),
            ("LUKS1", luks1_volume(OLD)),
            ("LUKS2", luks2_volume(OLD)),
            ("itself", new.clone()),
            ("itself, damaged", damaged),
        ] {
            let device = RecordingDevice::new(before.clone());
            backup.restore(&device).unwrap();
            // The backup of LUKS1 is longer, and what is behind the keyslots stays.
            let header = &backup.bytes()[..backup.volume().header_len() as usize];
            assert!(device.to_vec().starts_with(header), "{name}");
            let log = device.log.into_inner().unwrap();
            logs.push((format!("{new_name} over {name}"), before, log));
        }
    }
    logs
}

#[test]
fn power_cut_while_restoring_leaves_old_or_new_or_none() {
    let mut total = 0;
    for (name, before, log) in logs() {
        let (mut old, mut new, mut none) = (0, 0, 0);
        let had_key = !name.ends_with("nothing");
        total += each_state(&before, &log, &mut |bytes| {
            let device = MemoryDevice::new(bytes.to_vec());
            match Volume::load(&device) {
                Err(LoadError::NotLuks) => none += 1,
                // A damaged LUKS1 header was damaged before.
                Err(error) => assert!(bytes == before, "{name}: {error}"),
                Ok(_) if unlock(&device, NEW).is_ok() => new += 1,
                Ok(_) if unlock(&device, OLD).is_ok() => old += 1,
                Ok(_) => assert!(bytes == before, "{name}: opens with neither"),
            }
        });
        assert!(new > 0 && (had_key || old == 0), "{name}: {old} {new} {none}");
        if name == "LUKS2 over itself" {
            assert_eq!(none, 0, "one copy is whole at any time");
        }
    }
    println!("{total} states of restoring checked");
    assert!(total >= 500, "{total}");
}

/// The negative control: without the syncs in between, there are states with neither.
#[test]
fn power_cut_check_of_restoring_without_syncs_fails() {
    let (_, before, log) = logs().into_iter().find(|(name, ..)| name == "LUKS2 over LUKS2").unwrap();
    let unsynced: Vec<_> = log.into_iter().filter(|step| matches!(step, Step::Write { .. })).collect();
    let mut halves = 0;
    each_state(&before, &unsynced, &mut |bytes| {
        let device = MemoryDevice::new(bytes.to_vec());
        if Volume::load(&device).is_ok() && unlock(&device, NEW).is_err() && unlock(&device, OLD).is_err() {
            halves += 1;
        }
    });
    assert!(halves > 0, "lost writes went unnoticed");
}

#[test]
fn failed_write_of_restoring_is_an_error() {
    let backup = backup_of(&luks2_volume(NEW));
    for failing in 0..5 {
        let device = FailingDevice::new(luks2_volume(OLD), failing);
        assert!(backup.restore(&device).is_err(), "step {failing}");
        assert_eq!(device.len().unwrap(), LEN as u64);
    }
}

/// cryptsetup aligns a LUKS1 payload to any sector, and a backup has a multiple of 4096 bytes.
#[test]
fn restoring_writes_no_byte_behind_the_keyslots() {
    for sectors in 0..16_u64 {
        for detached in [false, true] {
            let device = MemoryDevice::new(vec![0xa5; LEN]);
            let key_len = luks1_options().key_len as u64;
            let end = 4096 + 8 * (key_len * 4000).next_multiple_of(4096);
            let payload = if detached { 0 } else { end / 512 + sectors };
            let options = with!(luks1_options(); detached: detached, payload_offset: Some(payload));
            luks1::format(&device, options, &secret(OLD)).unwrap();
            // A keyslot may end anywhere: the last one is moved to the end of the space.
            let last = u32::try_from(end / 512 - 250 + sectors.min(1)).unwrap();
            device.write_all_at(&last.to_be_bytes(), 208 + 48 * 7 + 40).unwrap();
            let backup = HeaderBackup::of_device(&device).unwrap();
            let end = backup.volume().header_len();
            device.write_all_at(&vec![0x5a; LEN - end as usize], end).unwrap();
            let before = device.to_vec();
            device.write_all_at(&[0; 1000], 0).unwrap();
            backup.restore(&device).unwrap();
            let after = device.to_vec();
            let changed = (0..LEN).find(|&at| after[at] != before[at] && at as u64 >= end);
            assert_eq!(changed, None, "{sectors} sectors, detached: {detached}, keyslots end at {end}");
            unlock(&device, OLD).unwrap();
        }
    }
}
