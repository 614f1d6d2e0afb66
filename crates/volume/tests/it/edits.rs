//! Changes of a header: their rules, and cryptsetup's view of the result.

use crate::support::{
    self, Bench, PASSPHRASE, cheap, installed, luks1_image, luks2_image, map_of, output, run, secret, text_of, with,
};
use inlock_volume::{
    CommitError, EditError, HeaderDevice, KdfKind, KeyslotStatus, MemoryDevice, NewKeyslot, Priority, UnlockOptions,
    Volume, VolumeKey, luks2,
};

fn images() -> [(u32, MemoryDevice); 2] {
    [(1, MemoryDevice::new(luks1_image())), (2, roomy_luks2())]
}

/// Returns a LUKS2 volume with space for 16 keyslots.
fn roomy_luks2() -> MemoryDevice {
    let device = MemoryDevice::zeroed((5 << 20) + 8192);
    let options = with!(support::luks2_options(); keyslots_len: Some(4 << 20));
    luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    device
}

fn pbkdf2() -> NewKeyslot {
    with!(NewKeyslot::default(); kdf: cheap(KdfKind::Pbkdf2))
}

fn key_of(volume: &Volume, device: &dyn HeaderDevice, passphrase: &[u8]) -> VolumeKey {
    volume.unlock_key(device, &secret(passphrase), &UnlockOptions::default()).unwrap().1
}

fn luks2_of(device: &dyn HeaderDevice) -> luks2::Luks2 {
    let Ok(Volume::Luks2(luks2)) = Volume::load(device) else { panic!("not LUKS2") };
    *luks2
}

#[test]
fn status_of_keyslot_follows_the_changes() {
    use KeyslotStatus::{Active, ActiveLast, Inactive, Invalid, Unbound};
    for (version, device) in images() {
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device, PASSPHRASE);
        let invalid = if version == 1 { 8 } else { 32 };
        let status = |volume: &Volume| [0, 1, invalid].map(|number| volume.keyslot_status(number));
        assert_eq!(status(&volume), [ActiveLast, Inactive, Invalid], "LUKS{version}");
        assert_eq!(volume.add_keyslot(&device, &key, &secret(b"b"), &pbkdf2()).unwrap(), 1);
        assert_eq!(status(&volume), [Active, Active, Invalid], "LUKS{version}");
        volume.kill_keyslot(&device, 0).unwrap();
        assert_eq!(status(&volume), [Inactive, ActiveLast, Invalid], "LUKS{version}");
        if version == 2 {
            let number = volume.add_unbound_keyslot(&device, &VolumeKey::new(&[1; 20]), &secret(b"c"), &pbkdf2());
            assert_eq!((number.unwrap(), volume.keyslot_status(0)), (0, Unbound));
        }
        volume.erase_keyslots(&device).unwrap();
        assert_eq!(status(&volume), [Inactive, Inactive, Invalid], "LUKS{version}");
        // The volume key still opens it, and can be put under a passphrase again.
        assert_eq!(volume.add_keyslot(&device, &key, &secret(b"d"), &pbkdf2()).unwrap(), 0, "LUKS{version}");
        assert_eq!(support::unlock(&device, b"d").unwrap().key.as_bytes(), key.as_bytes());
    }
}

#[test]
fn key_that_is_not_the_volume_key_is_not_added() {
    for (version, device) in images() {
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device, PASSPHRASE);
        let before = device.to_vec();
        let mut other = key.as_bytes().to_vec();
        other[0] ^= 1;
        // PBKDF2 pads its password with zeroes, so that the digest alone would take the longer key.
        for wrong in [other.clone(), [key.as_bytes(), &[0]].concat(), vec![0; key.len()]] {
            let wrong = VolumeKey::new(&wrong);
            let added = volume.add_keyslot(&device, &wrong, &secret(b"b"), &pbkdf2());
            assert!(matches!(added, Err(EditError::WrongKey)), "LUKS{version}: {added:?}");
            let changed = volume.change_keyslot(&device, 0, &wrong, &secret(b"b"), &pbkdf2());
            assert!(matches!(changed, Err(EditError::WrongKey)), "LUKS{version}: {changed:?}");
        }
        assert_eq!(device.to_vec(), before, "LUKS{version}");
    }
}

/// The digest takes a key with zeroes behind it, and a cipher takes several lengths: a keyslot tells the right one.
#[test]
fn longer_key_that_the_cipher_takes_is_not_the_volume_key() {
    let device = MemoryDevice::zeroed((1 << 20) + 8192);
    let cipher = "aes-cbc-essiv:sha256".parse().unwrap();
    let options = with!(support::luks2_options(); cipher: cipher, key_len: 16);
    luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device, PASSPHRASE);
    let longer = VolumeKey::new(&[key.as_bytes(), &[0; 8]].concat());
    let added = volume.add_keyslot(&device, &longer, &secret(b"b"), &pbkdf2());
    assert!(matches!(added, Err(EditError::WrongKey)), "{added:?}");
    volume.add_keyslot(&device, &key, &secret(b"b"), &pbkdf2()).unwrap();
}

#[test]
fn number_that_is_not_free_or_not_active_is_refused() {
    for (version, device) in images() {
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device, PASSPHRASE);
        let before = device.to_vec();
        let max = if version == 1 { 7 } else { 31 };
        let at = |number| with!(pbkdf2(); number: Some(number));
        let text = |result: Result<u32, EditError>| result.unwrap_err().to_string();
        let add = |volume: &mut Volume, number| text(volume.add_keyslot(&device, &key, &secret(b"b"), &at(number)));
        assert_eq!(add(&mut volume, 0), "keyslot 0 is full, select another one");
        let invalid = format!("keyslot {} is invalid, select between 0 and {max}", max + 1);
        assert_eq!(add(&mut volume, max + 1), invalid);
        let change = text(volume.change_keyslot(&device, 3, &key, &secret(b"b"), &pbkdf2()));
        assert_eq!(change, "keyslot 3 is not active");
        let kill = |volume: &mut Volume, number| text(volume.kill_keyslot(&device, number).map(|()| 0));
        assert_eq!((kill(&mut volume, 1), kill(&mut volume, max + 1)), ("keyslot 1 is not active".into(), invalid));
        assert_eq!(device.to_vec(), before, "LUKS{version}");
    }
}

#[test]
fn change_keeps_priority_and_what_is_not_known() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    let mut map = map_of(&luks2);
    map["keyslots"]["0"]["unknown"] = serde_json::json!({"b": 1, "a": 2});
    map["config"]["unknown"] = serde_json::json!([1.5, null]);
    luks2.commit(&device, &text_of(map)).unwrap();
    luks2.set_priority(&device, 0, Priority::Prefer).unwrap();
    luks2.add_token(&device, Some(3), r#"{"type":"t","keyslots":["0"],"z":1,"a":2}"#).unwrap();
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device, PASSPHRASE);
    assert_eq!(volume.change_keyslot(&device, 0, &key, &secret(b"new"), &pbkdf2()).unwrap(), 0);
    let map = map_of(&luks2_of(&device));
    assert_eq!(map["keyslots"]["0"]["unknown"].to_string(), r#"{"b":1,"a":2}"#);
    assert_eq!(map["config"]["unknown"].to_string(), "[1.5,null]");
    assert_eq!(map["keyslots"]["0"]["priority"], 2);
    assert_eq!(map["keyslots"].as_object().unwrap().len(), 1);
    assert_eq!(map["digests"]["0"]["keyslots"].to_string(), r#"["0"]"#);
    assert_eq!(map["tokens"]["3"].to_string(), r#"{"type":"t","keyslots":["0"],"z":1,"a":2}"#);
    // Another number takes the references along.
    let new = with!(pbkdf2(); number: Some(5));
    assert_eq!(volume.change_keyslot(&device, 0, &key, &secret(b"newer"), &new).unwrap(), 5);
    let map = map_of(&luks2_of(&device));
    assert_eq!(map["tokens"]["3"]["keyslots"].to_string(), r#"["5"]"#);
    assert_eq!(map["digests"]["0"]["keyslots"].to_string(), r#"["5"]"#);
    assert_eq!(support::unlock(&device, b"newer").unwrap().keyslot, Some(5));
}

#[test]
fn metadata_that_would_not_fit_is_refused_and_nothing_written() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    let long = |len: usize| format!(r#"{{"type":"t","keyslots":[],"x":"{}"}}"#, "y".repeat(len));
    luks2.add_token(&device, None, &long(11_300)).unwrap();
    let mut volume = Volume::from(luks2);
    let key = key_of(&volume, &device, PASSPHRASE);
    let before = device.to_vec();
    let refused = volume.add_keyslot(&device, &key, &secret(b"b"), &pbkdf2()).unwrap_err();
    let EditError::Commit(CommitError::MetadataTooLarge { needed, area: 12_288 }) = refused else {
        panic!("{refused:?}");
    };
    assert!(needed > 12_288 && device.to_vec() == before);
    // Both keyslots at once do not fit, but one does.
    volume.change_keyslot(&device, 0, &key, &secret(b"b"), &pbkdf2()).unwrap();
    assert!(support::unlock(&device, PASSPHRASE).is_err());
    assert_eq!(support::unlock(&device, b"b").unwrap().keyslot, Some(0));
}

#[test]
fn requirement_that_is_not_known_allows_only_removal() {
    let device = MemoryDevice::new(luks2_image());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device, PASSPHRASE);
    volume.add_keyslot(&device, &key, &secret(b"b"), &pbkdf2()).unwrap();
    let mut luks2 = luks2_of(&device);
    luks2.set_requirements(&device, &["of-tomorrow"]).unwrap();
    let before = device.to_vec();
    let mut volume = Volume::load(&device).unwrap();
    let refused = [
        volume.add_keyslot(&device, &key, &secret(b"c"), &pbkdf2()).map(drop),
        volume.add_unbound_keyslot(&device, &key, &secret(b"c"), &pbkdf2()).map(drop),
        volume.change_keyslot(&device, 0, &key, &secret(b"c"), &pbkdf2()).map(drop),
        volume.set_uuid(&device, None),
        luks2.set_labels(&device, Some("x"), None),
        luks2.set_priority(&device, 0, Priority::Ignore),
        luks2.set_flags(&device, &[]),
        luks2.add_token(&device, None, r#"{"type":"t","keyslots":[]}"#).map(drop),
        luks2.remove_token(&device, 0),
        luks2.assign_token(&device, 0, None),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(EditError::Requirement(_))), "{refused:?}");
    }
    assert_eq!(device.to_vec(), before);
    volume.kill_keyslot(&device, 0).unwrap();
    volume.erase_keyslots(&device).unwrap();
    let mut luks2 = luks2_of(&device);
    luks2.set_requirements(&device, &[]).unwrap();
    assert!(!luks2.metadata_json().contains("requirements"));
}

#[test]
fn uuid_and_labels_have_their_form() {
    for (version, device) in images() {
        let mut volume = Volume::load(&device).unwrap();
        let before = device.to_vec();
        for bad in ["", "x", "11111111-2222-3333-4444-55555555555", "{1111111-2222-3333-4444-55555555555}"] {
            let refused = volume.set_uuid(&device, Some(bad));
            assert!(matches!(refused, Err(EditError::InvalidOption { option: "uuid", .. })), "LUKS{version} {bad}");
        }
        assert_eq!(device.to_vec(), before);
        volume.set_uuid(&device, Some("AAAAAAAA-2222-3333-4444-555555555555")).unwrap();
        assert_eq!(Volume::load(&device).unwrap().uuid(), "aaaaaaaa-2222-3333-4444-555555555555");
        volume.set_uuid(&device, None).unwrap();
        assert_ne!(volume.uuid(), "aaaaaaaa-2222-3333-4444-555555555555");
    }
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    for bad in ["x".repeat(48), "a\u{1b}b".into(), "a\0".into()] {
        assert!(
            luks2.set_labels(&device, Some(&bad), None).is_err()
                && luks2.set_labels(&device, None, Some(&bad)).is_err()
        );
    }
    luks2.set_labels(&device, None, Some(&"s".repeat(47))).unwrap();
    let loaded = luks2_of(&device);
    assert_eq!((loaded.label(), loaded.subsystem()), (Some("label"), Some("s".repeat(47).as_str())));
    luks2.set_labels(&device, Some(""), Some("")).unwrap();
    let loaded = luks2_of(&device);
    assert_eq!((loaded.label(), loaded.subsystem()), (None, None));
}

/// Tokens, and whether they are valid. cryptsetup agrees on each.
const TOKENS: &[(&str, bool)] = &[
    (r#"{"type":"t","keyslots":[]}"#, true),
    (r#"{"type":"t","keyslots":["0"],"x":{"y":[1,null]}}"#, true),
    (r#"{"type":"t","keyslots":["0","0"]}"#, true),
    (r#" {"type":"t","keyslots":[]} "#, true),
    (r#"{"type":"luks2-keyring","keyslots":[],"key_description":"d"}"#, true),
    (r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"d","x":1}"#, false),
    (r#"{"type":"luks2-keyring","keyslots":["0"]}"#, false),
    (r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":1}"#, false),
    (r#"{"type":"luks2-t","keyslots":[]}"#, false),
    (r#"{"type":"t"}"#, false),
    (r#"{"keyslots":[]}"#, false),
    (r#"{"type":"t","keyslots":["9"]}"#, false),
    (r#"{"type":"t","keyslots":[0]}"#, false),
    (r#"{"type":"t","keyslots":["00"]}"#, false),
    (r#"{"type":"t","keyslots":["x"]}"#, false),
    (r#"{"type":"t","keyslots":{}}"#, false),
    (r#"{"type":3,"keyslots":[]}"#, false),
    (r#"{"type":"","keyslots":[]}"#, false),
    ("[]", false),
    ("", false),
    ("{", false),
];

#[test]
fn tokens_are_judged_as_by_cryptsetup() {
    let image = luks2_image();
    for (json, is_valid) in TOKENS {
        let device = MemoryDevice::new(image.clone());
        let added = luks2_of(&device).add_token(&device, None, json);
        assert_eq!(added.is_ok(), *is_valid, "{json}: {added:?}");
        assert_eq!(device.to_vec() == image, !is_valid, "{json}");
    }
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let (path, token) = (bench.text("image"), bench.text("token"));
    for (json, is_valid) in TOKENS {
        std::fs::write(&path, &image).unwrap();
        std::fs::write(&token, json).unwrap();
        let imported = output("cryptsetup", &["token", "import", "--json-file", &token, &path]);
        assert_eq!(imported.status.success(), *is_valid, "{json}: {imported:?}");
    }
    println!("COUNT tokens_judged {}", TOKENS.len());
}

#[test]
fn tokens_are_added_replaced_assigned_and_removed() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    let empty = r#"{"type":"t","keyslots":[]}"#;
    assert_eq!(luks2.add_token(&device, None, empty).unwrap(), 0);
    assert_eq!(luks2.add_token(&device, Some(31), empty).unwrap(), 31);
    assert!(matches!(luks2.add_token(&device, Some(31), empty), Err(EditError::TokenInUse(31))));
    assert!(matches!(luks2.add_token(&device, Some(32), empty), Err(EditError::TokenInvalid { number: 32, max: 31 })));
    luks2.replace_token(&device, 31, r#"{"type":"u","keyslots":["0"]}"#).unwrap();
    luks2.assign_token(&device, 0, Some(0)).unwrap();
    assert_eq!(luks2.token_json(0).unwrap(), r#"{"type":"t","keyslots":["0"]}"#);
    assert!(matches!(luks2.assign_token(&device, 0, Some(7)), Err(EditError::KeyslotInactive(7))));
    luks2.unassign_token(&device, 31, None).unwrap();
    assert_eq!(luks2.token_json(31).unwrap(), r#"{"type":"u","keyslots":[]}"#);
    let again = luks2.unassign_token(&device, 31, Some(0));
    assert_eq!(again.unwrap_err().to_string(), "token 31 is not assigned to keyslot 0");
    assert!(matches!(luks2.remove_token(&device, 5), Err(EditError::TokenInactive(5))));
    // A keyslot that goes takes its references along.
    Volume::load(&device).unwrap().kill_keyslot(&device, 0).unwrap();
    luks2 = luks2_of(&device);
    assert_eq!(luks2.token_json(0).unwrap(), empty);
    luks2.remove_token(&device, 0).unwrap();
    assert_eq!((luks2.token_json(0), luks2.add_token(&device, None, empty).unwrap()), (None, 0));
    for _ in 0..30 {
        luks2.add_token(&device, None, empty).unwrap();
    }
    assert!(matches!(luks2.add_token(&device, None, empty), Err(EditError::NoFreeToken)));
}

#[test]
fn areas_are_allocated_as_by_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let paths = [bench.text("ours"), bench.text("theirs")];
    let image = roomy_luks2().to_vec();
    paths.iter().for_each(|path| std::fs::write(path, &image).unwrap());
    let (key, new) = (bench.text("key"), bench.text("new"));
    std::fs::write(&new, b"new").unwrap();
    // Keyslots to add (Some: at that number) and to remove; a first key of half the length leaves gaps that differ.
    let steps: &[(&str, u32)] = &[("unbound", 1), ("unbound", 3), ("kill", 1), ("add", 1), ("kill", 3), ("unbound", 2)];
    let small = bench.text("small");
    std::fs::write(&small, [9; 16]).unwrap();
    for (step, number) in steps {
        let device = bench.device("ours");
        let mut volume = Volume::load(&device).unwrap();
        let at = with!(pbkdf2(); number: Some(*number));
        let (slot, theirs) = (number.to_string(), &paths[1]);
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "-q"];
        match *step {
            "kill" => {
                volume.kill_keyslot(&device, *number).unwrap();
                run("cryptsetup", &["luksKillSlot", "-q", "-d", &key, theirs, &slot]);
            }
            "add" => {
                let volume_key = key_of(&volume, &device, PASSPHRASE);
                volume.add_keyslot(&device, &volume_key, &secret(b"new"), &at).unwrap();
                let args = ["luksAddKey", "-d", &key, "-S", &slot, theirs, &new];
                run("cryptsetup", &[&args[..], &cheap].concat());
            }
            _ => {
                volume.add_unbound_keyslot(&device, &VolumeKey::new(&[9; 16]), &secret(b"new"), &at).unwrap();
                let args = ["luksAddKey", "--unbound", "-s", "128", "--volume-key-file", &small, "-S", &slot];
                run("cryptsetup", &[&args[..], &[theirs, &new], &cheap].concat());
            }
        }
        let shape = |path: &str| {
            let mut map = map_of(&luks2_of(&support::open(path.as_ref())));
            for slot in map["keyslots"].as_object_mut().unwrap().values_mut() {
                slot["kdf"].as_object_mut().unwrap().remove("salt");
            }
            for digest in map["digests"].as_object_mut().unwrap().values_mut() {
                let digest = digest.as_object_mut().unwrap();
                digest.remove("salt");
                digest.remove("digest");
            }
            text_of(map)
        };
        assert_eq!(shape(&paths[0]), shape(&paths[1]), "{step} {number}");
    }
}

/// An edited volume is dumped, checked and opened by cryptsetup.
#[test]
fn edited_volumes_open_in_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    for (version, device) in images() {
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device, PASSPHRASE);
        for (passphrase, number) in [("b", None), ("c", Some(6)), ("d", Some(7))] {
            let new = with!(pbkdf2(); number: number);
            volume.add_keyslot(&device, &key, &secret(passphrase.as_bytes()), &new).unwrap();
        }
        volume.kill_keyslot(&device, 7).unwrap();
        let new = with!(pbkdf2(); number: Some(6));
        volume.change_keyslot(&device, 6, &key, &secret(b"e"), &new).unwrap();
        volume.set_uuid(&device, None).unwrap();
        let image = bench.text("image");
        std::fs::write(&image, device.to_vec()).unwrap();
        assert_eq!(volume.dump(&image).to_string().trim_end(), run("cryptsetup", &["luksDump", &image]).trim_end());
        for (passphrase, status) in [(&b"b"[..], 0), (b"e", 0), (PASSPHRASE, 0), (b"c", 2), (b"d", 2)] {
            let file = bench.text("passphrase");
            std::fs::write(&file, passphrase).unwrap();
            let opened = output("cryptsetup", &["open", "--test-passphrase", "-d", &file, &image]);
            assert_eq!(opened.status.code(), Some(status), "LUKS{version} {passphrase:?}");
        }
    }
}
