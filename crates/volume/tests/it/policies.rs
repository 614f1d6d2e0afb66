//! Policies of volumes, and reports on keyslots: what can be told without a passphrase.

use crate::support::with;
use crate::support::{PASSPHRASE, luks1_image, luks2_image, luks2_options, map_of, secret, text_of};
use inlock_volume::luks2::{self, Luks2};
use inlock_volume::{
    HeaderDevice, HeaderPolicy, KdfLimits, KeyslotState, MemoryDevice, UnlockError, UnlockOptions, Volume,
};
use serde_json::json;

fn load(image: Vec<u8>) -> Volume {
    Volume::load(&MemoryDevice::new(image)).unwrap()
}

fn is_refused<T>(checked: Result<T, UnlockError>) -> bool {
    matches!(checked, Err(UnlockError::Policy(_)))
}

#[test]
fn present_policy_accepts_the_header_and_no_other() {
    for image in [luks1_image, luks2_image] {
        let (volume, other) = (load(image()), load(image()));
        let policy = volume.present_policy().unwrap();
        assert_ne!(policy, HeaderPolicy::default());
        assert!(policy.needs_header() && !policy.required_ciphers.is_empty() && !policy.kdfs.is_empty());
        volume.check_policy(&policy).unwrap();
        volume.check_policy_for_keys(&policy).unwrap();
        assert!(is_refused(other.check_policy(&policy)), "another header of the same kind");
        assert!(is_refused(other.check_policy_for_keys(&policy)));
    }
}

#[test]
fn luks1_header_with_unknown_cipher_is_refused_for_keys_only_by_rules() {
    let mut image = luks1_image();
    image[8..11].copy_from_slice(b"xyz");
    let volume = load(image);
    let rule = with!(HeaderPolicy::default(); key_lens: vec![32]);
    volume.check_policy_for_keys(&HeaderPolicy::default()).unwrap();
    let refused = volume.check_policy_for_keys(&rule);
    assert!(matches!(refused, Err(UnlockError::UnsupportedCipher { .. })), "{refused:?}");
    assert!(volume.check_policy(&HeaderPolicy::default()).is_err());
}

#[test]
fn luks2_header_with_unknown_cipher_is_refused_for_keys_only_by_rules_for_segments() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut map = map_of(&luks2);
    map["segments"]["0"]["encryption"] = json!("xyz-xts-plain64");
    luks2.commit(&device, &text_of(map)).unwrap();
    let volume = Volume::load(&device).unwrap();
    volume.check_policy_for_keys(&with!(HeaderPolicy::default(); key_lens: vec![64])).unwrap();
    let present = load(luks2_image()).present_policy().unwrap();
    let rule = with!(HeaderPolicy::default(); required_ciphers: present.required_ciphers);
    let refused = volume.check_policy_for_keys(&rule);
    assert!(matches!(refused, Err(UnlockError::UnsupportedCipher { .. })), "{refused:?}");
}

#[test]
fn luks1_keyslots_in_use_or_damaged_are_reported() {
    let reported = |flag: u32| {
        let mut image = luks1_image();
        // The flag of keyslot 1.
        image[256..260].copy_from_slice(&flag.to_be_bytes());
        let device = MemoryDevice::new(image);
        let reports = Volume::load(&device).unwrap().report_keyslots(&device, &KdfLimits::default()).unwrap();
        assert!(matches!(reports[0].state, KeyslotState::Usable), "{reports:?}");
        reports.iter().map(|report| report.number).collect::<Vec<_>>()
    };
    assert_eq!(reported(0xdead), [0]);
    assert_eq!(reported(0x1234), [0, 1], "neither in use nor not");
}

#[test]
fn damaged_uuid_of_luks1_is_shown_without_control_characters() {
    let mut image = luks1_image();
    image[168..208].fill(b'd');
    image[168..179].copy_from_slice(b"a\x1b[2Jb\xff~ c\0");
    assert_eq!(load(image).uuid(), "a?[2Jb?~ c");
}

#[test]
fn activation_flags_are_those_of_the_header() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    assert_eq!(luks2.activation_flags(), Default::default());
    let mut map = map_of(&luks2);
    map["config"]["flags"] = json!(["allow-discards", "no-read-workqueue"]);
    luks2.commit(&device, &text_of(map)).unwrap();
    let found = luks2.activation_flags();
    assert!(found.allow_discards && found.no_read_workqueue, "{found:?}");
    assert!(!found.same_cpu_crypt && !found.submit_from_crypt_cpus && !found.no_write_workqueue, "{found:?}");
}

#[test]
fn luks2_keyslots_are_reported_with_their_priority() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    for (priority, only_by_number) in [(1, false), (0, true), (2, false)] {
        let mut map = map_of(&luks2);
        map["keyslots"]["0"]["priority"] = json!(priority);
        luks2.commit(&device, &text_of(map)).unwrap();
        let reports = Volume::load(&device).unwrap().report_keyslots(&device, &KdfLimits::default()).unwrap();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].number, 0);
        let state = &reports[0].state;
        assert_eq!(matches!(state, KeyslotState::OnlyByNumber), only_by_number, "{state:?}");
        assert_eq!(matches!(state, KeyslotState::Usable), !only_by_number, "{state:?}");
    }
}

#[test]
fn overwritten_key_material_is_reported_with_its_sectors() {
    let device = MemoryDevice::new(luks2_image());
    let luks2 = Luks2::load(&device).unwrap();
    let area = map_of(&luks2)["keyslots"]["0"]["area"]["offset"].as_str().unwrap().parse::<u64>().unwrap();
    // A key of 64 bytes in 4000 stripes; behind them an area has anything.
    let material = 64 * 4000;
    device.write_all_at(&vec![0; material], area).unwrap();
    device.write_all_at(&[1, 2, 3], area + material as u64).unwrap();
    let reports = Volume::from(luks2).report_keyslots(&device, &KdfLimits::default()).unwrap();
    let state = &reports[0].state;
    assert!(matches!(state, KeyslotState::Overwritten { sectors: 500, of: 500 }), "{state:?}");
}

#[test]
fn key_of_a_keyslot_that_is_not_there_is_refused_by_number() {
    let device = MemoryDevice::new(luks2_image());
    let volume = Volume::load(&device).unwrap();
    let key_of = |number| {
        let options = with!(UnlockOptions::default(); keyslot: Some(number));
        volume.unlock_key(&device, &secret(PASSPHRASE), &options).map(|(number, _)| number)
    };
    assert_eq!(key_of(0).unwrap(), 0);
    let refused = key_of(5);
    assert!(matches!(refused, Err(UnlockError::KeyslotInactive(5))), "{refused:?}");
}

#[test]
fn keyslot_areas_have_at_most_128_mib() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut with_len = |len: u64| {
        let mut map = map_of(&luks2);
        map["config"]["keyslots_size"] = json!(len.to_string());
        map["segments"]["0"]["offset"] = json!((256u64 << 20).to_string());
        luks2.commit(&device, &text_of(map)).map_err(|error| error.to_string())
    };
    with_len((128 << 20) + 4096).unwrap_err();
    with_len(128 << 20).unwrap();
}

#[test]
fn metadata_that_are_too_long_are_refused_with_their_length() {
    let device = MemoryDevice::zeroed(2 << 20);
    luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).unwrap();
    let mut luks2 = Luks2::load(&device).unwrap();
    let area = 16384 - 4096;
    let with_token = |luks2: &Luks2, filler: usize| {
        let mut map = map_of(luks2);
        map["tokens"]["0"] = json!({ "type": "filler", "keyslots": [], "text": "x".repeat(filler) });
        text_of(map)
    };
    let fixed = with_token(&luks2, 0).len();
    // The text ends with a zero byte.
    luks2.commit(&device, &with_token(&luks2, area - fixed - 1)).unwrap();
    let said = luks2.commit(&device, &with_token(&luks2, area - fixed)).unwrap_err().to_string();
    assert!(said.contains(&(area + 1).to_string()) && said.contains(&area.to_string()), "{said}");
}
