//! Power cuts while a volume is created or its metadata are rewritten: every state is the old volume, the new one, or
//! none.

use crate::power_cut::{FailingDevice, RecordingDevice, Step, each_state};
use crate::support::{PASSPHRASE, chain, luks1_options, luks2_image, luks2_options, secret, unlock};
use crate::support::{map_of, text_of, with};
use inlock_volume::{HeaderDevice, LoadError, MemoryDevice, Volume, luks1, luks2};

const OLD: &[u8] = b"old passphrase";
const LEN: usize = (2 << 20) + 8192;

#[derive(Debug, PartialEq)]
enum State {
    Old,
    New,
    NoVolume,
    Half(String),
}

fn state(bytes: &[u8]) -> State {
    let device = MemoryDevice::new(bytes.to_vec());
    match Volume::load(&device) {
        Err(LoadError::NotLuks) => return State::NoVolume,
        Err(error) => return State::Half(chain(&error)),
        Ok(_) => {}
    }
    if unlock(&device, PASSPHRASE).is_ok() {
        State::New
    } else if unlock(&device, OLD).is_ok() {
        State::Old
    } else {
        State::Half("opens with neither passphrase".into())
    }
}

fn befores() -> Vec<(&'static str, Vec<u8>)> {
    let old_luks2 = MemoryDevice::zeroed(LEN);
    let options = with!(luks2_options(); metadata_len: 64 << 10, uuid: None);
    luks2::format(&old_luks2, options, &secret(OLD)).unwrap();
    let old_luks1 = MemoryDevice::zeroed(LEN);
    luks1::format(&old_luks1, luks1_options(), &secret(OLD)).unwrap();
    // With a damaged first copy, so that the old volume depends on its second one.
    let mut second_only = old_luks2.to_vec();
    second_only[..4096].fill(0);
    vec![
        ("empty", vec![0; LEN]),
        ("LUKS2", old_luks2.to_vec()),
        ("LUKS1", old_luks1.to_vec()),
        ("second copy only", second_only),
    ]
}

fn format_logs() -> Vec<(String, Vec<u8>, Vec<Step>)> {
    let mut logs = Vec::new();
    for (name, before) in befores() {
        for version in [1, 2] {
            let device = RecordingDevice::new(before.clone());
            match version {
                1 => drop(luks1::format(&device, luks1_options(), &secret(PASSPHRASE)).unwrap()),
                _ => drop(luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).unwrap()),
            }
            logs.push((format!("LUKS{version} over {name}"), before.clone(), device.log.into_inner().unwrap()));
        }
    }
    logs
}

#[test]
fn power_cut_while_formatting_leaves_old_or_new_or_none() {
    let mut total = 0;
    for (name, before, log) in format_logs() {
        let mut seen = [0; 3];
        total += each_state(&before, &log, &mut |bytes| match state(bytes) {
            State::Old => seen[0] += 1,
            State::New => seen[1] += 1,
            State::NoVolume => seen[2] += 1,
            State::Half(why) => panic!("{name}: {why}"),
        });
        assert!(seen[1] > 0 && seen[2] > 0, "{name}: {seen:?}");
        assert!(matches!(log.last(), Some(Step::Sync)), "{name}: the end is durable");
    }
    println!("{total} states of formatting checked");
    assert!(total >= 500, "{total}");
}

/// The negative control: without the syncs in between, the same check must fail.
#[test]
fn power_cut_check_without_syncs_fails() {
    for (name, before, log) in format_logs().into_iter().filter(|(name, ..)| name.ends_with("empty")) {
        let unsynced: Vec<_> = log.into_iter().filter(|step| matches!(step, Step::Write { .. })).collect();
        let mut halves = 0;
        each_state(&before, &unsynced, &mut |bytes| halves += usize::from(matches!(state(bytes), State::Half(_))));
        assert!(halves > 0, "{name}: lost writes went unnoticed");
    }
}

#[test]
fn power_cut_while_rewriting_leaves_a_whole_copy() {
    let whole = luks2_image();
    let (mut first_damaged, mut second_damaged) = (whole.clone(), whole.clone());
    first_damaged[5000] ^= 1;
    second_damaged[16384 + 5000] ^= 1;
    for before in [whole, first_damaged, second_damaged] {
        let device = RecordingDevice::new(before.clone());
        let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("not LUKS2") };
        let old = luks2.metadata_json().to_owned();
        let mut map = map_of(&luks2);
        map["config"]["flags"] = serde_json::json!(["allow-discards"]);
        luks2.commit(&device, &text_of(map)).unwrap();
        let new = luks2.metadata_json().to_owned();
        assert_ne!(old, new);
        let log = device.log.lock().unwrap().clone();
        let count = each_state(&before, &log, &mut |bytes| {
            let device = MemoryDevice::new(bytes.to_vec());
            let volume = Volume::load(&device).unwrap_or_else(|error| panic!("{}", chain(&error)));
            let json = volume.metadata_json().unwrap();
            assert!(json == old || json == new);
            unlock(&device, PASSPHRASE).unwrap();
        });
        assert!(count > 100, "{count}");
        let volume = Volume::load(&device).unwrap();
        assert_eq!((volume.metadata_json().unwrap(), volume.warnings()), (new.as_str(), &[][..]), "repaired");
        assert_eq!(device.len().unwrap(), before.len() as u64);
    }
}

/// A failure of each write or sync, in turn, is an error, and the device has the old or the new volume.
#[test]
fn failed_write_is_an_error_and_keeps_a_whole_header() {
    let (_, before) = befores().swap_remove(1);
    let steps = {
        let device = RecordingDevice::new(before.clone());
        luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).unwrap();
        device.log.into_inner().unwrap().len()
    };
    for failing in 0..steps {
        let device = FailingDevice::new(before.clone(), failing);
        assert!(luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).is_err(), "step {failing}");
        let left = state(&device.to_vec());
        assert!(!matches!(left, State::Half(_)), "step {failing}: {left:?}");
    }
}
