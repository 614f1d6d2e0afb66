//! Volumes of cryptsetup and QEMU open in Inlock, and vice versa.

use crate::support::with;
use crate::support::{self, Bench, PASSPHRASE, chain, cheap, installed, output, run, secret};
use inlock_volume::{
    CipherSpec, DataDeviceError, DataUnitSize, Hash, HeaderDevice, HeaderLocation, KdfKind, Secret, UnlockError,
    UnlockOptions, Volume, luks1, luks2,
};

const ARGON2: [&str; 4] = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32"];
const PBKDF2: [&str; 2] = ["--pbkdf-force-iterations", "1000"];

/// Runs `luksFormat` with these arguments, which include cheap costs.
fn luks_format(bench: &Bench, image: &str, args: &[&str]) {
    let key = bench.text("key");
    run("cryptsetup", &[&["luksFormat", "-q", image, &key], args].concat());
}

/// Unlocks an image, and compares the key with the one that cryptsetup prints.
fn opens_as_cryptsetup_does(bench: &Bench, name: &str) -> inlock_volume::Unlocked {
    let device = bench.device(name);
    let unlocked = support::unlock(&device, PASSPHRASE).unwrap_or_else(|error| panic!("{}", chain(&error)));
    let key_file = bench.path("volume-key");
    let _ = std::fs::remove_file(&key_file);
    let (image, key) = (bench.text(name), bench.text("key"));
    let out = bench.text("volume-key");
    run("cryptsetup", &["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &out, "-d", &key, &image]);
    assert_eq!(unlocked.key.as_bytes(), std::fs::read(&key_file).unwrap());
    let wrong = support::unlock(&device, b"wrong");
    assert!(matches!(wrong, Err(UnlockError::WrongPassphrase)), "{wrong:?}");
    dump_is_cryptsetup_s(bench, name);
    unlocked
}

fn dump_is_cryptsetup_s(bench: &Bench, name: &str) {
    let image = bench.text(name);
    let volume = Volume::load(&bench.device(name)).unwrap();
    let ours = volume.dump(&image).to_string();
    assert_eq!(ours.trim_end(), run("cryptsetup", &["luksDump", &image]).trim_end());
    assert_eq!(volume.uuid(), run("cryptsetup", &["luksUUID", &image]).trim());
}

#[test]
fn luks2_volumes_of_cryptsetup_open() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let rows: &[(&str, &[&str], usize, u32)] = &[
        ("argon2id", &ARGON2, 64, 4096),
        ("argon2i", &["--pbkdf", "argon2i"], 64, 4096),
        ("pbkdf2 sha256", &["--pbkdf", "pbkdf2", "--hash", "sha256"], 64, 4096),
        ("pbkdf2 sha1", &["--pbkdf", "pbkdf2", "--hash", "sha1"], 64, 4096),
        ("pbkdf2 sha512", &["--pbkdf", "pbkdf2", "--hash", "sha512"], 64, 4096),
        ("pbkdf2 ripemd160", &["--pbkdf", "pbkdf2", "--hash", "ripemd160"], 64, 4096),
        ("256 bits", &["-s", "256"], 32, 4096),
        ("cbc-essiv 256", &["-s", "256", "-c", "aes-cbc-essiv:sha256", "--hash", "sha512"], 32, 4096),
        ("cbc-plain64 128", &["-s", "128", "-c", "aes-cbc-plain64", "--hash", "sha1"], 16, 4096),
        ("cbc-plain 192", &["-s", "192", "-c", "aes-cbc-plain"], 24, 4096),
        ("512", &["--sector-size", "512"], 64, 512),
        ("1024", &["--sector-size", "1024"], 64, 1024),
        ("2048", &["--sector-size", "2048"], 64, 2048),
        ("4096", &["--sector-size", "4096", "--pbkdf-parallel", "1"], 64, 4096),
        ("metadata", &["--luks2-metadata-size", "64k", "--luks2-keyslots-size", "512k"], 64, 4096),
    ];
    for (name, args, key_len, unit) in rows {
        let image = bench.image("image", 32 << 20);
        let costs: &[&str] = if args.contains(&"pbkdf2") { &PBKDF2 } else { &ARGON2 };
        let costs = if *args == ARGON2 { &[] } else { costs };
        luks_format(&bench, &image, &[&["--type", "luks2", "--label", "a label"], costs, *args].concat());
        let unlocked = opens_as_cryptsetup_does(&bench, "image");
        assert_eq!(unlocked.key.len(), *key_len, "{name}");
        assert_eq!(unlocked.segments.len(), 1);
        let segment = unlocked.segments[0];
        assert_eq!(segment.unit.bytes(), *unit as usize, "{name}");
        assert_eq!(segment.data_offset.to_bytes(), Some(Volume::load(&bench.device("image")).unwrap().data_offset()));
        let volume = Volume::load(&bench.device("image")).unwrap();
        assert_eq!((volume.version(), volume.label()), (2, Some("a label")));
        assert!(volume.warnings().is_empty(), "{:?}", volume.warnings());
    }
}

#[test]
fn luks1_volumes_of_cryptsetup_open() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let rows: &[&[&str]] = &[
        &["--hash", "sha1", "-s", "256"],
        &["--hash", "sha256", "-s", "512"],
        &["--hash", "sha512", "-s", "512"],
        &["--hash", "ripemd160", "-s", "256", "-c", "aes-cbc-essiv:sha256"],
        &["--hash", "sha256", "-s", "128", "-c", "aes-cbc-plain"],
        &["--hash", "sha256", "-s", "192", "-c", "aes-cbc-plain64", "-S", "7"],
    ];
    for args in rows {
        let image = bench.image("image", 8 << 20);
        luks_format(&bench, &image, &[&["--type", "luks1"], &PBKDF2[..], *args].concat());
        let unlocked = opens_as_cryptsetup_does(&bench, "image");
        assert_eq!(unlocked.segments[0].unit.bytes(), 512);
        assert_eq!(unlocked.keyslot, Some(if args.contains(&"7") { 7 } else { 0 }));
    }
}

#[test]
fn keyslots_tokens_and_priorities_of_cryptsetup_are_read() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let image = bench.image("image", 32 << 20);
    let key = bench.text("key");
    luks_format(&bench, &image, &[&["--type", "luks2", "--subsystem", "sub"], &ARGON2[..]].concat());
    std::fs::write(bench.path("second"), b"second").unwrap();
    std::fs::write(bench.path("third"), b"third").unwrap();
    let (second, third) = (bench.text("second"), bench.text("third"));
    run("cryptsetup", &["luksAddKey", "-q", "-d", &key, &image, &second, "--pbkdf", "pbkdf2", PBKDF2[0], PBKDF2[1]]);
    run("cryptsetup", &[&["luksAddKey", "-q", "-d", &key, "-S", "9", &image, &third], &ARGON2[..]].concat());
    let unbound = ["luksAddKey", "-q", "--unbound", "-S", "5", "-s", "128", &image, &third];
    run("cryptsetup", &[&unbound, &ARGON2[..]].concat());
    run("cryptsetup", &["config", &image, "-S", "9", "--priority", "prefer"]);
    run("cryptsetup", &["config", &image, "-S", "1", "--priority", "ignore"]);
    run("cryptsetup", &["token", "add", &image, "--key-description", "some:key"]);
    std::fs::write(bench.path("token"), r#"{"type":"of-no-tool","keyslots":["0"],"x":{"y":[1,2]}}"#).unwrap();
    run("cryptsetup", &["token", "import", &image, "--json-file", &bench.text("token")]);
    dump_is_cryptsetup_s(&bench, "image");

    let device = bench.device("image");
    let volume = Volume::load(&device).unwrap();
    assert_eq!(volume.active_keyslots(), [9, 0], "preferred first, ignored not at all");
    let unlock = |passphrase: &[u8], keyslot| {
        volume.unlock(&device, &secret(passphrase), &with!(UnlockOptions::default(); keyslot: keyslot))
    };
    assert_eq!(unlock(PASSPHRASE, None).unwrap().keyslot, Some(0));
    assert_eq!(unlock(b"third", None).unwrap().keyslot, Some(9));
    assert!(matches!(unlock(b"second", None), Err(UnlockError::WrongPassphrase)));
    assert_eq!(unlock(b"second", Some(1)).unwrap().keyslot, Some(1));
    assert!(matches!(unlock(b"third", Some(5)), Err(UnlockError::KeyslotUnbound(5))));
    assert!(matches!(unlock(b"third", Some(6)), Err(UnlockError::KeyslotInactive(6))));
    assert!(matches!(unlock(b"third", Some(0)), Err(UnlockError::WrongPassphrase)));
    let json = run("cryptsetup", &["luksDump", "--dump-json-metadata", &image]);
    let theirs: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ours: serde_json::Value = serde_json::from_str(volume.metadata_json().unwrap()).unwrap();
    assert_eq!(ours, theirs);
}

#[test]
fn detached_headers_of_cryptsetup_open() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let data = bench.image("data", 8 << 20);
    for (kind, costs) in [("luks1", &PBKDF2[..]), ("luks2", &ARGON2[..])] {
        let _ = std::fs::remove_file(bench.path("header"));
        luks_format(&bench, &data, &[&["--type", kind, "--header", &bench.text("header")], costs].concat());
        let unlocked = opens_as_cryptsetup_does(&bench, "header");
        assert_eq!(unlocked.segments[0].data_offset.0, 0);
        assert!(Volume::load(&bench.device("data")).is_err());
    }
}

#[test]
fn luks_images_of_qemu_open() {
    if !installed("qemu-img") || !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let secret_arg = format!("secret,id=sec0,file={}", bench.text("key"));
    for more in ["", ",cipher-alg=aes-128,hash-alg=sha1", ",cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256"] {
        // On a busy machine QEMU may fail to measure its speed.
        let created = [20, 200, 1000, 200, 2000, 500].into_iter().any(|iter_time| {
            let _ = std::fs::remove_file(bench.path("image"));
            let options = format!("key-secret=sec0,iter-time={iter_time}{more}");
            let args =
                ["create", "-q", "-f", "luks", "--object", &secret_arg, "-o", &options, &bench.text("image"), "4M"];
            let output = output("qemu-img", &args);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || errors.contains("accurate CPU usage"), "{errors}");
            output.status.success()
        });
        if !created {
            println!("SKIPPED: qemu-img cannot measure CPU time here");
            return;
        }
        opens_as_cryptsetup_does(&bench, "image");
    }
}

/// Checks that cryptsetup opens an image of Inlock.
fn cryptsetup_opens(bench: &Bench, name: &str) {
    let (image, key) = (bench.text(name), bench.text("key"));
    run("cryptsetup", &["isLuks", &image]);
    run("cryptsetup", &["open", "--test-passphrase", "-d", &key, &image]);
    std::fs::write(bench.path("wrong"), b"wrong").unwrap();
    let wrong = output("cryptsetup", &["open", "--test-passphrase", "-d", &bench.text("wrong"), &image]);
    assert_eq!(wrong.status.code(), Some(2));
    opens_as_cryptsetup_does(bench, name);
}

#[test]
fn luks2_volumes_of_ours_open_in_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let base = || with!(luks2::FormatOptions::default(); kdf: cheap(KdfKind::Argon2id));
    let cbc = |text: &str| -> CipherSpec { text.parse().unwrap() };
    let unit = |bytes| DataUnitSize::new(bytes).ok();
    let rows = [
        base(),
        with!(base(); kdf: cheap(KdfKind::Argon2i), sector_size: unit(512)),
        with!(base(); kdf: cheap(KdfKind::Pbkdf2), hash: Hash::Sha1),
        with!(base(); kdf: cheap(KdfKind::Pbkdf2), hash: Hash::Sha512, sector_size: unit(1024)),
        with!(base(); key_len: 32, sector_size: unit(2048), label: "x".repeat(47)),
        with!(base(); cipher: cbc("aes-cbc-essiv:sha256"), key_len: 32, keyslot: 31),
        with!(base(); cipher: cbc("aes-cbc-plain64"), key_len: 16, subsystem: "sub".into()),
        with!(base(); keyslot_cipher: Some((cbc("aes-cbc-plain"), 24))),
        with!(base(); metadata_len: 1 << 20),
        with!(base(); data_offset: Some(1 << 20)),
    ];
    for options in rows {
        bench.image("image", 32 << 20);
        let device = bench.device("image");
        let shown = format!("{options:?}");
        let offset = options.data_offset();
        let volume = luks2::format(&device, options, &secret(PASSPHRASE)).unwrap_or_else(|e| panic!("{shown}: {e}"));
        assert_eq!(volume.data_offset(), offset);
        cryptsetup_opens(&bench, "image");
        // cryptsetup rewrites the header without an error, and both still read it.
        let (image, key) = (bench.text("image"), bench.text("key"));
        std::fs::write(bench.path("more"), b"more").unwrap();
        let args =
            ["luksAddKey", "-q", "-d", &key, "--pbkdf", "pbkdf2", PBKDF2[0], PBKDF2[1], &image, &bench.text("more")];
        run("cryptsetup", &args);
        support::unlock(&device, b"more").unwrap();
        let repair = output("cryptsetup", &["repair", "-q", &image]);
        assert!(repair.status.success(), "{repair:?}");
    }
}

#[test]
fn luks1_volumes_of_ours_open_in_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let base = || with!(luks1::FormatOptions::default(); kdf: cheap(KdfKind::Pbkdf2));
    let rows = [
        base(),
        with!(base(); key_len: 32, hash: Hash::Sha1),
        with!(base(); hash: Hash::Sha512, keyslot: 3),
        with!(base(); cipher: "aes-cbc-essiv:sha256".parse().unwrap(), key_len: 16),
        with!(base(); cipher: "aes-cbc-plain".parse().unwrap(), key_len: 24, keyslot: 7),
        with!(base(); payload_offset: Some(8192)),
    ];
    for options in rows {
        bench.image("image", 16 << 20);
        luks1::format(&bench.device("image"), options, &secret(PASSPHRASE)).unwrap();
        cryptsetup_opens(&bench, "image");
    }
}

#[test]
fn detached_headers_of_ours_open_in_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let options = with!(luks2::FormatOptions::default(); detached: true, kdf: cheap(KdfKind::Argon2id));
    bench.image("image", options.header_len());
    let volume = luks2::format(&bench.device("image"), options, &secret(PASSPHRASE)).unwrap();
    assert_eq!(volume.data_offset(), 0);
    cryptsetup_opens(&bench, "image");
    let options = with!(luks1::FormatOptions::default(); detached: true, kdf: cheap(KdfKind::Pbkdf2));
    bench.image("image", options.header_len());
    let luks1 = luks1::format(&bench.device("image"), options, &secret(PASSPHRASE)).unwrap();
    assert_eq!(luks1.payload_offset(), 0);
    cryptsetup_opens(&bench, "image");
}

#[test]
fn rewrite_keeps_what_is_not_known_and_cryptsetup_reads_it() {
    let device = inlock_volume::MemoryDevice::new(support::luks2_image());
    let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("not LUKS2") };
    let mut map = support::map_of(&luks2);
    map["config"]["flags"] = serde_json::json!(["allow-discards", "flag-of-tomorrow"]);
    map["config"]["unknown"] = serde_json::json!({"b": 1, "a": [1.5, null, "x"]});
    map["keyslots"]["0"]["unknown"] = serde_json::json!("kept");
    map.insert("of-tomorrow".into(), serde_json::json!({"z": 1, "y": 2}));
    luks2.commit(&device, &support::text_of(map.clone())).unwrap();
    // A second rewrite, of the header as read back.
    let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("not LUKS2") };
    assert!(luks2.warnings().is_empty());
    assert_eq!((luks2.header().seqid, &support::map_of(&luks2)), (2, &map));
    let json = luks2.metadata_json().to_owned();
    luks2.commit(&device, &json).unwrap();
    let volume = Volume::load(&device).unwrap();
    assert_eq!(volume.metadata_json().unwrap(), support::text_of(map), "order is kept too");
    let unlocked = volume.unlock(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
    assert!(unlocked.flags.allow_discards);
    if installed("cryptsetup") {
        let bench = Bench::new();
        std::fs::write(bench.path("image"), device.to_vec()).unwrap();
        let key = bench.text("key");
        run("cryptsetup", &["open", "--test-passphrase", "-d", &key, &bench.text("image")]);
    }
}

#[test]
fn volume_key_opens_too() {
    let device = inlock_volume::MemoryDevice::zeroed(1 << 21);
    let key = inlock_volume::VolumeKey::new(&support::VOLUME_KEY_64);
    let options = with!(support::luks2_options(); volume_key: Some(key));
    let volume = luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let with =
        |bytes: &[u8]| volume.unlock_with_volume_key(inlock_volume::VolumeKey::new(bytes), &UnlockOptions::default());
    assert_eq!(with(&support::VOLUME_KEY_64).unwrap().key.as_bytes(), support::VOLUME_KEY_64);
    assert!(matches!(with(&[0; 64]), Err(UnlockError::WrongPassphrase)));
    assert!(matches!(with(&[0; 63]), Err(UnlockError::WrongPassphrase)));
    assert_eq!(device.len().unwrap(), 1 << 21);
    assert_eq!(format!("{:?}", Secret::new(b"hush".to_vec())), "Secret(..)");
}

#[test]
fn unusual_metadata_is_dumped_as_cryptsetup_does() {
    if !installed("cryptsetup") {
        return;
    }
    use serde_json::{Value, json};
    type Change = fn(&mut serde_json::Map<String, Value>);
    let changes: &[Change] = &[
        |map| map["config"]["flags"] = json!(["allow-discards", "no-journal", "no-read-workqueue"]),
        |map| map["config"]["requirements"] = json!({"mandatory": ["of-tomorrow"]}),
        |map| map["segments"]["0"]["size"] = json!("4096"),
        |map| map["segments"]["0"]["iv_tweak"] = json!("8"),
        |map| map["keyslots"]["0"]["priority"] = json!(0),
        |map| map["tokens"]["7"] = json!({"type": "of-tomorrow", "keyslots": []}),
        |map| {
            map["segments"]["0"]["size"] = json!("4096");
            map["segments"]["1"] = json!({"type": "linear", "offset": "1052672", "size": "dynamic"});
        },
        |map| {
            let integrity = json!({"type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none"});
            map["segments"]["0"]["integrity"] = integrity;
        },
    ];
    let bench = Bench::new();
    let image = support::luks2_image();
    for change in changes {
        let device = inlock_volume::MemoryDevice::new(image.clone());
        let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("not LUKS2") };
        let mut map = support::map_of(&luks2);
        change(&mut map);
        luks2.commit(&device, &support::text_of(map)).unwrap();
        std::fs::write(bench.path("image"), device.to_vec()).unwrap();
        dump_is_cryptsetup_s(&bench, "image");
    }
}

#[test]
fn data_device_must_hold_the_payload() {
    let load = |bytes: Vec<u8>| Volume::load(&inlock_volume::MemoryDevice::new(bytes)).unwrap();
    let luks2 = load(support::luks2_image());
    assert_eq!(luks2.check_data_device(HeaderLocation::DataDevice, 1 << 20 | 512), Ok(()));
    let small = luks2.check_data_device(HeaderLocation::DataDevice, 1 << 20);
    assert_eq!(small, Err(DataDeviceError::TooSmall { needed: (1 << 20) + 512, len: 1 << 20 }));
    let luks1 = load(support::luks1_image());
    assert!(
        luks1.check_data_device(HeaderLocation::DataDevice, 2 << 20 | 512).is_ok()
            && luks1.check_data_device(HeaderLocation::DataDevice, 2 << 20).is_err()
    );
    let mut detached = support::luks1_image();
    detached[104..108].fill(0);
    assert_eq!(
        load(detached.clone()).check_data_device(HeaderLocation::DataDevice, 1 << 30),
        Err(DataDeviceError::Detached)
    );
    assert_eq!(load(detached).check_data_device(HeaderLocation::Detached, 512), Ok(()));
}

#[test]
fn luks2_header_is_cut_down_to_one_keyslot_and_no_further() {
    let options = |len| {
        with!(
            support::luks2_options();
            keyslots_len: None,
            data_offset: Some(len),
            sector_size: Some(DataUnitSize::SECTOR),
        )
    };
    let least = options(0).least_header_len();
    let format = |len| {
        let device = inlock_volume::MemoryDevice::zeroed(least as usize + 4096);
        luks2::format(&device, options(len), &secret(PASSPHRASE)).map(|_| device)
    };
    let unlocked = support::unlock(&format(least).unwrap(), PASSPHRASE).unwrap();
    assert_eq!(unlocked.segments[0].data_offset.to_bytes(), Some(least));
    let refused = format(least - 4096).unwrap_err();
    assert!(matches!(refused, inlock_volume::FormatError::InvalidOption { .. }), "{refused}");
}
