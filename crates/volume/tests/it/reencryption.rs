//! Headers of volumes that are re-encrypted: cryptsetup's are read and confirmed, and cryptsetup goes on with ours.

use crate::support::{Bench, PASSPHRASE, chain, installed, run, secret};
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::reencryption::{
    Direction, PieceState, Protection, ReencryptedKeyslot, ReencryptionKeys, ReencryptionKeyslot, ReencryptionMode,
    ReencryptionStart, Resilience,
};
use inlock_volume::{Hash, HeaderDevice, KdfKind, KdfRequest, NewKeyslot, UnlockError, UnlockOptions, Volume};

const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// A key with different halves, as XTS wants it.
const NEW_KEY: [u8; 64] = {
    let mut key = [7; 64];
    key[63] = 8;
    key
};

/// Makes an image of 40 MiB: a volume with a header of 16 MiB, or without one.
fn image(bench: &Bench, name: &str, is_volume: bool) -> String {
    let image = bench.text(name);
    std::fs::write(&image, vec![0x5a; 40 << 20]).unwrap();
    if is_volume {
        run("cryptsetup", &[&["luksFormat", "-q", &image, &bench.text("key")], &CHEAP[..]].concat());
    }
    image
}

fn reencrypt(bench: &Bench, image: &str, args: &[&str]) {
    let key = bench.text("key");
    let all = ["reencrypt", "-q", "--force-offline-reencrypt", "--key-file", &key];
    run("cryptsetup", &[&all, &CHEAP[..], args, &[image]].concat());
}

fn load(bench: &Bench, name: &str) -> Luks2 {
    Luks2::load(&bench.device(name)).unwrap()
}

#[test]
fn re_encryptions_of_cryptsetup_are_read_and_confirmed() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let header = bench.text("detached");
    let rows: &[(&str, bool, &[&str], &str, ReencryptionMode)] = &[
        ("checksum", true, &["--resilience", "checksum"], "checksum", ReencryptionMode::Reencrypt),
        ("other hash", true, &["--resilience-hash", "sha512"], "checksum", ReencryptionMode::Reencrypt),
        ("journal", true, &["--resilience", "journal", "--sector-size", "512"], "journal", ReencryptionMode::Reencrypt),
        ("none", true, &["--resilience", "none", "-s", "256"], "none", ReencryptionMode::Reencrypt),
        ("encrypt", false, &["--encrypt", "--reduce-device-size", "16M"], "datashift", ReencryptionMode::Encrypt),
        ("encrypt, detached", false, &["--encrypt", "--header", &header], "checksum", ReencryptionMode::Encrypt),
        ("decrypt", true, &["--decrypt", "--header", &header], "datashift-checksum", ReencryptionMode::Decrypt),
    ];
    for (name, is_volume, args, resilience, mode) in rows {
        let _ = std::fs::remove_file(&header);
        let image = image(&bench, "image", *is_volume);
        reencrypt(&bench, &image, &[&["--init-only"], *args].concat());
        let is_detached = args.contains(&"--header");
        let holder = if is_detached { "detached" } else { "image" };
        let luks2 = load(&bench, holder);
        let found = luks2.reencryption().unwrap().unwrap();
        assert_eq!((found.keyslot.mode, found.keyslot.resilience.name()), (*mode, *resilience), "{name}");
        assert!(found.pieces.as_slice().iter().all(|piece| piece.state == PieceState::Old), "{name}");
        let device = bench.device(holder);
        let unlock =
            |passphrase: &[u8]| luks2.unlock_reencryption(&device, &secret(passphrase), &UnlockOptions::default());
        let (_, keys) = unlock(PASSPHRASE).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        let has = |is: bool, key: bool| assert_eq!(is, key, "{name}");
        has(keys.old.is_some(), *mode != ReencryptionMode::Encrypt);
        has(keys.new.is_some(), *mode != ReencryptionMode::Decrypt);
        assert!(matches!(unlock(b"wrong"), Err(UnlockError::WrongPassphrase)), "{name}");
        let path = bench.text(holder);
        let ours = Volume::load(&device).unwrap().dump(&path).to_string();
        assert_eq!(ours.trim_end(), run("cryptsetup", &["luksDump", &path]).trim_end(), "{name}");
        // An attacker who writes the header changes the cipher or the protection.
        let other = match mode {
            ReencryptionMode::Decrypt => luks2.metadata_json().replace("\"sector_size\":4096}", "\"sector_size\":512}"),
            _ => luks2
                .metadata_json()
                .replace("\"encryption\":\"aes-xts-plain64\"", "\"encryption\":\"aes-cbc-plain64\""),
        };
        assert_ne!(other, luks2.metadata_json(), "{name}");
        let mut changed = luks2.clone();
        if changed.commit(&device, &other).is_ok() {
            let refused = changed.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default());
            assert!(refused.is_err(), "{name}: {refused:?}");
        }
    }
}

/// Begins a re-encryption, which cryptsetup ends.
#[test]
fn cryptsetup_goes_on_with_a_re_encryption_of_ours() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    for protection in
        [Protection::None, Protection::Journal, Protection::Checksum { hash: "sha256".into(), block: 4096 }]
    {
        let image = image(&bench, "image", true);
        let device = bench.device("image");
        let mut luks2 = load(&bench, "image");
        let (number, old) = luks2.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        let new = inlock_volume::VolumeKey::new(&NEW_KEY);
        let keys = ReencryptionKeys::new(Some(old), Some(new));
        let mut kdf = KdfRequest::new(KdfKind::Pbkdf2);
        kdf.forced_iterations = Some(1000);
        let mut slot = NewKeyslot::default();
        slot.kdf = kdf;
        let (passphrase, resilience) = (secret(PASSPHRASE), Resilience { protection, shift: None });
        let name = resilience.name();
        let start = ReencryptionStart {
            keyslot: ReencryptionKeyslot::new(ReencryptionMode::Reencrypt, Direction::Forward, resilience),
            new: None,
            keys: &keys,
            keyslots: vec![ReencryptedKeyslot { old: number, passphrase: &passphrase, new: &slot }],
            kdf,
            hash: Hash::Sha256,
            device_len: device.len().unwrap(),
            data_len: None,
        };
        luks2.start_reencryption(&device, &start).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        luks2.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        reencrypt(&bench, &image, &["--resume-only"]);
        let after = load(&bench, "image");
        assert!(after.reencryption().unwrap().is_none(), "{name}");
        let (_, key) = after.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        assert_eq!(key.as_bytes(), NEW_KEY, "{name}");
    }
}
