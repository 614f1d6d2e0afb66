//! Headers of volumes that are re-encrypted: cryptsetup's are read and confirmed, and cryptsetup goes on with ours.

use crate::power_cut::{RecordingDevice, each_state};
use crate::support::{Bench, PASSPHRASE, chain, installed, luks2_image, run, secret};
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::metadata::{Keyslot, KeyslotKind};
use inlock_volume::luks2::reencryption::{
    Direction, PieceState, Protection, ReencryptedKeyslot, Reencryption, ReencryptionKeys, ReencryptionKeyslot,
    ReencryptionMode, ReencryptionStart, Resilience,
};
use inlock_volume::{
    EditError, Hash, HeaderDevice, KdfKind, KdfRequest, MemoryDevice, NewKeyslot, Secret, UnlockError, UnlockOptions,
    Volume, VolumeKey,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

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
        // An attacker who writes the header changes the cipher of all segments and keyslots: these still open.
        let other = luks2.metadata_json().replace("\"aes-xts-plain64\"", "\"aes-xts-plain\"");
        assert_ne!(other, luks2.metadata_json(), "{name}");
        let mut changed = luks2.clone();
        changed.commit(&device, &other).unwrap();
        let refused = changed.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default());
        let Err(UnlockError::Reencryption { reason }) = refused else { panic!("{name}: {refused:?}") };
        assert!(reason.contains("digest does not confirm"), "{name}: {reason}");
    }
}

/// A re-encryption to begin with cheap costs.
struct Beginning {
    keys: ReencryptionKeys,
    passphrase: Secret,
    slot: NewKeyslot,
    /// The keyslot with the passphrase.
    old: u32,
}

impl Beginning {
    /// Opens the keyslot of the header on `device`. With a `new` key, that is for the new data.
    fn new(luks2: &Luks2, device: &dyn HeaderDevice, mode: ReencryptionMode, new: Option<&[u8]>) -> Self {
        let (old, key) = luks2.unlock_key(device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        let keys = match mode {
            ReencryptionMode::Encrypt => ReencryptionKeys::new(None, Some(key)),
            _ => ReencryptionKeys::new(Some(key), new.map(VolumeKey::new)),
        };
        let mut slot = NewKeyslot::default();
        slot.kdf = KdfRequest::new(KdfKind::Pbkdf2);
        slot.kdf.forced_iterations = Some(1000);
        Self { keys, passphrase: secret(PASSPHRASE), slot, old }
    }

    /// Begins to replace the key of the volume on `device`, and returns the header and the state.
    fn begun(device: &dyn HeaderDevice) -> (Luks2, Reencryption, Self) {
        let mut luks2 = Luks2::load(device).unwrap();
        let beginning = Self::new(&luks2, device, ReencryptionMode::Reencrypt, Some(&NEW_KEY));
        let resilience = Resilience { protection: Protection::Journal, shift: None };
        let start = beginning.start(ReencryptionMode::Reencrypt, Direction::Forward, resilience);
        let state = luks2.start_reencryption(device, &start).unwrap();
        (luks2, state, beginning)
    }

    fn start(&self, mode: ReencryptionMode, direction: Direction, resilience: Resilience) -> ReencryptionStart<'_> {
        let is_new = mode == ReencryptionMode::Reencrypt && self.keys.new.is_some();
        let slot = ReencryptedKeyslot { old: self.old, passphrase: &self.passphrase, new: &self.slot };
        ReencryptionStart {
            keyslot: ReencryptionKeyslot::new(mode, direction, resilience),
            new: None,
            keys: &self.keys,
            keyslots: if is_new { vec![slot] } else { Vec::new() },
            kdf: self.slot.kdf,
            hash: Hash::Sha256,
            device_len: 40 << 20,
            data_len: None,
            moved_len: None,
        }
    }
}

fn checksum() -> Protection {
    Protection::Checksum { hash: "sha256".into(), block: 4096 }
}

/// Begins a re-encryption, which cryptsetup ends.
#[test]
fn cryptsetup_goes_on_with_a_re_encryption_of_ours() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    for protection in [Protection::None, Protection::Journal, checksum()] {
        let image = image(&bench, "image", true);
        let device = bench.device("image");
        let mut luks2 = load(&bench, "image");
        let beginning = Beginning::new(&luks2, &device, ReencryptionMode::Reencrypt, Some(&NEW_KEY));
        let resilience = Resilience { protection, shift: None };
        let name = resilience.name();
        let start = beginning.start(ReencryptionMode::Reencrypt, Direction::Forward, resilience);
        luks2.start_reencryption(&device, &start).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        reencrypt(&bench, &image, &["--resume-only"]);
        let after = load(&bench, "image");
        assert!(after.reencryption().unwrap().is_none(), "{name}");
        let (_, key) = after.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        assert_eq!(key.as_bytes(), NEW_KEY, "{name}");
    }
}

/// Begins to encrypt and to decrypt with a detached header, and cryptsetup ends it: the data are as the first bytes of
/// the plaintext, or of the volume, were.
#[test]
fn cryptsetup_ends_an_encryption_and_a_decryption_of_ours() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let (header, image) = (bench.text("detached"), bench.text("image"));
    let plain = vec![0x5a; 40 << 20];
    std::fs::write(&image, &plain).unwrap();
    let format = ["luksFormat", "-q", "--header", &header, &image, &bench.text("key")];
    run("cryptsetup", &[&format[..], &CHEAP].concat());
    let device = bench.device("detached");
    for (mode, direction) in
        [(ReencryptionMode::Encrypt, Direction::Forward), (ReencryptionMode::Decrypt, Direction::Backward)]
    {
        let mut luks2 = load(&bench, "detached");
        let beginning = Beginning::new(&luks2, &device, mode, None);
        let resilience = Resilience { protection: checksum(), shift: None };
        let start = beginning.start(mode, direction, resilience);
        luks2.start_reencryption(&device, &start).unwrap_or_else(|error| panic!("{mode:?}: {}", chain(&error)));
        luks2.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        reencrypt(&bench, &image, &["--resume-only", "--header", &header]);
        assert!(load(&bench, "detached").reencryption().unwrap().is_none(), "{mode:?}");
        let is_plain = std::fs::read(&image).unwrap() == plain;
        assert_eq!(is_plain, mode == ReencryptionMode::Decrypt, "{mode:?}");
    }
}

/// Checks the progress, in MiB, of the volume in the file `image`, and that its dump is that of cryptsetup. Returns the
/// state.
fn confirm(bench: &Bench, expected: &[(u64, Option<u64>, PieceState)]) -> Reencryption {
    let (luks2, device, path) = (load(bench, "image"), bench.device("image"), bench.text("image"));
    let (found, _) = luks2.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
    let mib = |bytes: u64| bytes >> 20;
    let pieces = found.pieces.as_slice().iter().map(|piece| (mib(piece.start), piece.end.map(mib), piece.state));
    assert_eq!(pieces.collect::<Vec<_>>(), expected);
    let ours = Volume::load(&device).unwrap().dump(&path).to_string();
    assert_eq!(ours.trim_end(), run("cryptsetup", &["luksDump", &path]).trim_end());
    // The zone that is being written is old and new.
    let hot = luks2.metadata().segments.iter().find(|(_, segment)| segment.flags == ["in-reencryption"]);
    if let Some((hot, _)) = hot {
        assert!(luks2.metadata().digests.values().take(2).all(|digest| digest.segments.contains(hot)));
    }
    found
}

/// The progress of each mode is legal for cryptsetup at every step, and the last header has the new key alone.
#[test]
fn every_step_of_the_header_is_one_of_cryptsetup() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let path = image(&bench, "image", true);
    let device = bench.device("image");
    let token = bench.text("token");
    std::fs::write(&token, r#"{"type":"x","keyslots":["0"]}"#).unwrap();
    run("cryptsetup", &["token", "import", "--json-file", &token, &path]);
    let (mut luks2, mut state, beginning) = Beginning::begun(&device);
    let len = state.len(40 << 20);
    assert_eq!(len, 24 << 20);
    use PieceState::{Hot, New, Old};
    let mut zones = 0;
    while let Some(zone) = state.next_zone(10 << 20, len) {
        let hot = state.pieces.with(&zone, Hot, len);
        luks2.commit_progress(&device, &mut state, hot).unwrap();
        state = match zones {
            0 => confirm(&bench, &[(0, Some(10), Hot), (10, None, Old)]),
            1 => confirm(&bench, &[(0, Some(10), New), (10, Some(20), Hot), (20, None, Old)]),
            _ => confirm(&bench, &[(0, Some(20), New), (20, Some(24), Hot)]),
        };
        let kdf = beginning.slot.kdf;
        let other = || (Resilience { protection: checksum(), shift: None }, Hash::Sha256, &kdf);
        let refused = luks2.change_resilience(&device, &state, &beginning.keys, other());
        assert!(refused.is_err(), "a zone is being written");
        assert!(luks2.finish_reencryption(&device, &state).is_err(), "it is not at its end");
        let new = state.pieces.with(&zone, New, len);
        luks2.commit_progress(&device, &mut state, new).unwrap();
        if zones == 0 {
            state = luks2.change_resilience(&device, &state, &beginning.keys, other()).unwrap();
            assert_eq!(state.keyslot.resilience.name(), "checksum");
            confirm(&bench, &[(0, Some(10), New), (10, None, Old)]);
        }
        zones += 1;
    }
    confirm(&bench, &[(0, None, New)]);
    assert_eq!(luks2.metadata().tokens[&0].keyslots, [0, 1]);
    let read = |range: Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        device.read_exact_at(&mut bytes, range.start).unwrap();
        bytes
    };
    let old = &luks2.metadata().keyslots[&0];
    let areas = [old.area_offset..old.area_offset + old.area_len, state.area.clone()];
    device.write_all_at(&vec![0x77; 1 << 20], areas[1].end - (1 << 20)).unwrap();
    let before = areas.clone().map(read);
    luks2.finish_reencryption(&device, &state).unwrap();
    let after = load(&bench, "image");
    assert!(after.reencryption().unwrap().is_none() && after.metadata().segments.len() == 1);
    assert_eq!(after.metadata().keyslots.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(after.metadata().digests.len(), 1);
    assert_eq!(after.metadata().tokens[&0].keyslots, [1]);
    // The old key material, and the old data of the last zone, are overwritten to their ends.
    for (area, before) in areas.into_iter().zip(before) {
        let blocks = before.chunks(512).zip(read(area.clone()).chunks(512).map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert!(blocks.into_iter().all(|(before, now)| *before != now), "{area:?}");
    }
    let (_, key) = after.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
    assert_eq!(key.as_bytes(), NEW_KEY);
    run("cryptsetup", &["open", "--test-passphrase", "--key-file", &bench.text("key"), &path]);
}

#[test]
fn keyslot_in_use_is_not_overwritten_by_that_of_the_new_key() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut beginning = Beginning::new(&luks2, &device, ReencryptionMode::Reencrypt, Some(&NEW_KEY));
    let mut start = |number| {
        beginning.slot.number = Some(number);
        let resilience = Resilience { protection: Protection::None, shift: None };
        luks2.start_reencryption(&device, &beginning.start(ReencryptionMode::Reencrypt, Direction::Forward, resilience))
    };
    assert!(matches!(start(0), Err(EditError::KeyslotInUse(0))));
    assert!(matches!(start(32), Err(EditError::KeyslotInvalid { number: 32, .. })));
    start(7).unwrap();
    assert_eq!(luks2.metadata().keyslots.keys().collect::<Vec<_>>(), [&0, &1, &7]);
}

/// Change of the metadata.
type Change = fn(&mut Value);

/// Changes of a header in re-encryption, each with parts of the reasons why it is refused.
const ROWS: &[(&str, &str, Change)] = &[
    ("unchanged", "", |_| ()),
    ("version 1", "it has version 1", |map| map["config"]["requirements"]["mandatory"][0] = "online-reencrypt".into()),
    ("version 3", "not that of the keyslot", |map| {
        map["config"]["requirements"]["mandatory"][0] = "online-reencrypt-v3".into();
    }),
    ("another version", "'online-reencrypt-v4'", |map| {
        map["config"]["requirements"]["mandatory"][0] = "online-reencrypt-v4".into();
    }),
    ("two requirements", "'offline-reencrypt'", |map| {
        map["config"]["requirements"]["mandatory"] = json!(["online-reencrypt-v2", "offline-reencrypt"]);
    }),
    ("zone that is not written", "its segments do not follow", |map| {
        map["segments"]["1"]["flags"] = json!([]);
        map["segments"]["0"]["flags"] = json!([]);
        map["digests"]["0"]["segments"] = json!(["0", "2"]);
        map["digests"]["1"]["segments"] = json!(["1", "3"]);
    }),
    ("two zones", "two segments have the same flag|is not one", |map| {
        map["segments"]["1"]["flags"] = json!(["in-reencryption"]);
    }),
    ("zone of the old key alone", "is not one", |map| map["digests"]["1"]["segments"] = json!(["3"])),
    ("zone elsewhere", "is not one", |map| map["segments"]["0"]["iv_tweak"] = "8".into()),
    ("zone without an end", "is not one", |map| {
        let [mut hot, previous, last] = ["0", "2", "3"].map(|number| map["segments"][number].clone());
        hot["size"] = "dynamic".into();
        map["segments"] = json!({"0": hot, "1": previous, "2": last});
        (map["digests"]["0"]["segments"], map["digests"]["1"]["segments"]) = (json!(["0", "1"]), json!(["0", "2"]));
    }),
    ("rest elsewhere", "neither of the old nor of the new", |map| map["segments"]["1"]["iv_tweak"] = "16".into()),
    ("rest with another unit", "neither of the old nor of the new", |map| {
        map["segments"]["1"]["sector_size"] = 512.into();
    }),
    ("rest of no key", "do not go together", |map| map["digests"]["0"]["segments"] = json!(["0", "2"])),
    ("no backup", "a backup segment is missing", |map| map["segments"]["3"]["flags"] = json!(["backup-x"])),
    ("two backups", "two segments have the same flag", |map| {
        map["segments"]["3"]["flags"] = json!(["backup-previous"]);
    }),
    ("backup of both keys", "two digests", |map| map["digests"]["1"]["segments"] = json!(["0", "2", "3"])),
    ("backup elsewhere", "without a shift", |map| map["segments"]["3"]["offset"] = "2097152".into()),
    ("moved segment", "is not one|not as long as the shift", |map| {
        let mut moved = map["segments"]["2"].clone();
        moved["flags"] = json!(["backup-moved-segment"]);
        map["segments"]["4"] = moved;
        map["digests"]["0"]["segments"] = json!(["0", "1", "2", "4"]);
    }),
    ("to plaintext", "not those of its mode", |map| map["keyslots"]["2"]["mode"] = "decrypt".into()),
    ("other direction", "do not follow", |map| map["keyslots"]["2"]["direction"] = "backward".into()),
    ("no protection", "does not confirm", |map| map["keyslots"]["2"]["area"]["type"] = "none".into()),
    ("other protection", "does not confirm", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["hash"], area["sector_size"]) = ("checksum".into(), "sha256".into(), 512.into());
    }),
    ("shorter area", "does not confirm", |map| map["keyslots"]["2"]["area"]["size"] = "4096".into()),
    ("no digest", "has no digest", |map| map["digests"]["2"]["keyslots"] = json!([])),
    ("two keyslots", "two keyslots", |map| {
        let mut other = map["keyslots"]["2"].clone();
        map["keyslots"]["2"]["area"]["size"] = "4096".into();
        let offset: u64 = other["area"]["offset"].as_str().unwrap().parse().unwrap();
        (other["area"]["offset"], other["area"]["size"]) = ((offset + 4096).to_string().into(), "4096".into());
        map["keyslots"]["3"] = other;
    }),
    ("no keyslot", "it has no keyslot", |map| {
        map["keyslots"].as_object_mut().unwrap().remove("2");
        map["digests"].as_object_mut().unwrap().remove("2");
    }),
    ("zone of the new key alone", "is not one", |map| map["digests"]["0"]["segments"] = json!(["1", "2"])),
    ("zone of no key", "do not go together", |map| {
        map["digests"]["0"]["segments"] = json!(["1", "2"]);
        map["digests"]["1"]["segments"] = json!(["3"]);
    }),
    ("zone at another place", "overlaps segments/0", |map| map["segments"]["0"]["offset"] = "1052672".into()),
    ("zone of no length", "size is 0", |map| map["segments"]["0"]["size"] = "0".into()),
    ("zone of half a sector", "not a multiple of 4096", |map| map["segments"]["0"]["size"] = "4352".into()),
    ("longer zone", "overlaps segments/0", |map| map["segments"]["0"]["size"] = "8192".into()),
    ("zone with the flag of a backup", "follows the backup segments", |map| {
        map["segments"]["0"]["flags"] = json!(["in-reencryption", "backup-moved-segment"])
    }),
    ("zone with another cipher", "is not one", |map| map["segments"]["0"]["encryption"] = "serpent-xts-plain64".into()),
    ("zone with another unit", "is not one", |map| map["segments"]["0"]["sector_size"] = 512.into()),
    ("linear zone", "do not go together", |map| map["segments"]["0"]["type"] = "linear".into()),
    ("flags that are no list", "flags is not an array", |map| map["segments"]["0"]["flags"] = "in-reencryption".into()),
    ("rest at another place", "overlaps segments/0", |map| map["segments"]["1"]["offset"] = "1048576".into()),
    ("rest of a fixed length", "not a multiple of 4096", |map| map["segments"]["1"]["size"] = "512".into()),
    ("rest with another cipher", "neither of the old nor of the new", |map| {
        map["segments"]["1"]["encryption"] = "aes-cbc-essiv:sha256".into()
    }),
    ("linear rest", "do not go together", |map| map["segments"]["1"]["type"] = "linear".into()),
    ("rest of the new key", "do not follow each other", |map| {
        map["digests"]["0"]["segments"] = json!(["0", "2"]);
        map["digests"]["1"]["segments"] = json!(["0", "1", "3"]);
    }),
    ("another range behind the rest", "only the last segment may be dynamic", |map| {
        let mut other = map["segments"]["1"].clone();
        other["offset"] = "1114112".into();
        map["segments"]["4"] = other;
        map["digests"]["0"]["segments"] = json!(["0", "1", "2", "4"]);
    }),
    ("old cipher", "neither of the old nor of the new", |map| {
        map["segments"]["2"]["encryption"] = "aes-cbc-essiv:sha256".into()
    }),
    ("old place", "without a shift", |map| map["segments"]["2"]["offset"] = "1052672".into()),
    ("old unit", "neither of the old nor of the new", |map| map["segments"]["2"]["sector_size"] = 512.into()),
    ("old IV", "neither of the old nor of the new", |map| map["segments"]["2"]["iv_tweak"] = "8".into()),
    ("old length", "does not confirm", |map| map["segments"]["2"]["size"] = "4096".into()),
    ("old data without a cipher", "do not go together", |map| map["segments"]["2"]["type"] = "linear".into()),
    ("new cipher", "is not one", |map| map["segments"]["3"]["encryption"] = "aes-cbc-essiv:sha256".into()),
    ("new unit", "is not one", |map| map["segments"]["3"]["sector_size"] = 512.into()),
    ("new IV", "is not one", |map| map["segments"]["3"]["iv_tweak"] = "8".into()),
    ("new length", "does not confirm", |map| map["segments"]["3"]["size"] = "4096".into()),
    ("new data without a cipher", "do not go together", |map| map["segments"]["3"]["type"] = "linear".into()),
    ("new data of the old key", "is not one", |map| {
        map["digests"]["0"]["segments"] = json!(["0", "1", "2", "3"]);
        map["digests"]["1"]["segments"] = json!(["0"]);
    }),
    ("segments in use with a gap", "have a gap", |map| {
        let rest = map["segments"].as_object_mut().unwrap().remove("1").unwrap();
        map["segments"]["4"] = rest;
        map["digests"]["0"]["segments"] = json!(["0", "2", "4"]);
    }),
    ("no requirement", "not its requirement", |map| map["config"]["requirements"] = json!({})),
    ("both versions", "'online-reencrypt-v3'", |map| {
        map["config"]["requirements"]["mandatory"] = json!(["online-reencrypt-v2", "online-reencrypt-v3"])
    }),
    ("to the first encryption", "not those of its mode", |map| map["keyslots"]["2"]["mode"] = "encrypt".into()),
    ("unknown mode", "mode is not", |map| map["keyslots"]["2"]["mode"] = "reverse".into()),
    ("unknown direction", "direction is not", |map| map["keyslots"]["2"]["direction"] = "sideways".into()),
    ("key of two bytes", "key_size is 2", |map| map["keyslots"]["2"]["key_size"] = 2.into()),
    ("unknown protection", "name of a resilience", |map| map["keyslots"]["2"]["area"]["type"] = "hope".into()),
    ("checksums of no hash", "hash is missing", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["sector_size"]) = ("checksum".into(), 512.into());
    }),
    ("checksums of an unknown hash", "does not confirm", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["hash"], area["sector_size"]) = ("checksum".into(), "sha3000".into(), 512.into());
    }),
    ("checksums of odd blocks", "sector_size is 1000", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["hash"], area["sector_size"]) = ("checksum".into(), "sha256".into(), 1000.into());
    }),
    ("shift of nothing", "shift_size is 0", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["shift_size"]) = ("datashift".into(), "0".into());
    }),
    ("shift of an unknown length", "shift_size is missing", |map| {
        map["keyslots"]["2"]["area"]["type"] = "datashift".into()
    }),
    ("shift of half a sector", "not a multiple of 512", |map| {
        let area = &mut map["keyslots"]["2"]["area"];
        (area["type"], area["shift_size"]) = ("datashift".into(), "256".into());
    }),
    ("area in the header", "overlaps the header", |map| map["keyslots"]["2"]["area"]["offset"] = "4096".into()),
    ("area of the keyslot", "overlaps keyslots/0", |map| {
        let area = map["keyslots"]["0"]["area"]["offset"].clone();
        map["keyslots"]["2"]["area"]["offset"] = area;
    }),
    ("area behind the end", "the end of the keyslot areas", |map| {
        map["keyslots"]["2"]["area"]["offset"] = "1073741824".into()
    }),
    ("area of no length", "size is 0", |map| map["keyslots"]["2"]["area"]["size"] = "0".into()),
    ("keyslot of a passphrase", "af is missing", |map| map["keyslots"]["2"]["type"] = "luks2".into()),
    ("digest of another keyslot", "does not confirm", |map| {
        map["digests"]["2"]["keyslots"] = json!([]);
        map["digests"]["0"]["keyslots"] = json!(["0", "2"]);
    }),
    ("two digests of the keyslot", "does not confirm", |map| map["digests"]["0"]["keyslots"] = json!(["0", "2"])),
    ("other cost of the digest", "does not confirm", |map| map["digests"]["2"]["iterations"] = 1001.into()),
    ("other hash of the digest", "length of its hash", |map| map["digests"]["2"]["hash"] = "sha512".into()),
    ("other salt of the digest", "does not confirm", |map| {
        let salt = map["digests"]["0"]["salt"].clone();
        map["digests"]["2"]["salt"] = salt;
    }),
    ("other digest", "does not confirm", |map| {
        let digest = map["digests"]["0"]["digest"].clone();
        map["digests"]["2"]["digest"] = digest;
    }),
];

/// Changes of a header in re-encryption that a program would not make, with the reason of their refusal.
#[test]
fn header_that_no_re_encryption_leaves_is_refused() {
    let device = MemoryDevice::new(luks2_image());
    let (mut luks2, mut state, _) = Beginning::begun(&device);
    let len = state.len(device.len().unwrap());
    assert_eq!(len, 8192);
    let hot = state.pieces.with(&(0..4096), PieceState::Hot, len);
    luks2.commit_progress(&device, &mut state, hot).unwrap();
    let image = device.to_vec();
    assert!(ROWS.len() > 60);
    for (name, reason, change) in ROWS {
        let device = MemoryDevice::new(image.clone());
        let mut luks2 = Luks2::load(&device).unwrap();
        let mut map: Value = serde_json::from_str(luks2.metadata_json()).unwrap();
        change(&mut map);
        // What loading refuses cannot be committed either.
        let text = match luks2.commit(&device, &map.to_string()) {
            Err(error) => chain(&error),
            Ok(()) => {
                let before = device.to_vec();
                let unlocked = luks2.unlock_reencryption(&device, &secret(PASSPHRASE), &UnlockOptions::default());
                assert!(device.to_vec() == before, "{name}: a byte is written");
                unlocked.map_or_else(|error| chain(&error), |_| String::new())
            }
        };
        assert!(
            reason.split('|').any(|reason| text.contains(reason)) && text.is_empty() == reason.is_empty(),
            "{name}: {text}"
        );
    }
}

/// In every state that a power cut leaves, the header is the one before or after, and the keyslots of each have their
/// key material.
#[test]
fn power_cut_leaves_a_re_encryption_before_or_after_each_step() {
    let mut image = luks2_image();
    let mut states = 0;
    let keys_of = |luks2: &Luks2, bytes: &[u8]| {
        let keys = luks2.metadata().keyslots.iter().filter(|(_, slot)| matches!(slot.kind, KeyslotKind::Luks2(_)));
        let area = |slot: &Keyslot| bytes[slot.area_offset as usize..][..slot.area_len as usize].to_vec();
        keys.map(|(&number, slot)| (number, area(slot))).collect::<BTreeMap<_, _>>()
    };
    type Step = fn(&RecordingDevice);
    fn state_on(device: &RecordingDevice) -> (Luks2, Reencryption) {
        let luks2 = Luks2::load(device).unwrap();
        let state = luks2.reencryption().unwrap().unwrap();
        (luks2, state)
    }
    fn advance(device: &RecordingDevice, to: PieceState) {
        let (mut luks2, mut state) = state_on(device);
        let len = state.len(device.len().unwrap());
        let pieces = state.pieces.with(&(0..len), to, len);
        luks2.commit_progress(device, &mut state, pieces).unwrap();
    }
    let steps: [(&str, Step); 4] = [
        ("begin", |device| drop(Beginning::begun(device))),
        ("hot", |device| advance(device, PieceState::Hot)),
        ("new", |device| advance(device, PieceState::New)),
        ("end", |device| {
            let (mut luks2, state) = state_on(device);
            luks2.finish_reencryption(device, &state).unwrap();
        }),
    ];
    let mut known = BTreeMap::new();
    for (name, step) in steps {
        let device = RecordingDevice::new(image.clone());
        step(&device);
        let after = device.to_vec();
        let end = Luks2::load(&MemoryDevice::new(after.clone())).unwrap();
        for (bytes, luks2) in [(&image, Luks2::load(&MemoryDevice::new(image.clone())).unwrap()), (&after, end.clone())]
        {
            known.extend(keys_of(&luks2, bytes));
        }
        states += each_state(&image, &device.log.into_inner().unwrap(), &mut |bytes| {
            let luks2 = Luks2::load(&MemoryDevice::new(bytes.to_vec())).unwrap();
            let keys = keys_of(&luks2, bytes);
            // The old keyslot goes with the re-encryption: nothing would remove it later.
            let in_reencryption = !luks2.metadata().config.requirements.is_empty();
            assert_eq!(keys.len(), if in_reencryption { 2 } else { 1 }, "{name}");
            for (number, material) in &keys {
                assert!(known[number] == *material, "{name}: keyslot {number}");
            }
            assert!(luks2.reencryption().is_ok(), "{name}");
        });
        image = after;
    }
    assert!(states > 300, "{states}");
    println!("{states} states");
}
