//! Power cuts and failures while a header is changed: in every state the change is undone or done, and every other key
//! opens.

use crate::power_cut::{FailingDevice, RecordingDevice, Step, each_state};
use crate::support::{Bench, cheap, installed, luks1_options, luks2_options, output, secret, with};
use inlock_volume::{
    EditError, Hash, HeaderDevice, KdfKind, LoadError, MemoryDevice, NewKeyslot, Priority, UnlockOptions, Volume,
    VolumeKey, luks1, luks2,
};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Passphrases of the keyslots that no verb touches.
const OTHERS: [&str; 2] = ["second", "third"];
/// Passphrase of keyslot 0, or of the one that a verb changes.
const OLD: &str = "old";
const NEW: &str = "new";
/// Passphrase of an unbound keyslot of LUKS2.
const UNBOUND: &str = "unbound";
/// Length of the key material of a 16-byte key.
const AREA_LEN: usize = 64_000;
const UUID: &str = "99999999-2222-3333-4444-555555555555";

/// Outcome of a verb for the keyslot that it concerns.
#[derive(Clone, Copy, PartialEq)]
enum Effect {
    /// [`NEW`] opens afterwards, [`OLD`] as before.
    Adds,
    /// [`OLD`] does not open afterwards.
    Removes,
    /// [`UNBOUND`] does not open afterwards.
    RemovesUnbound,
    /// [`NEW`] opens afterwards instead of [`OLD`], and in every state one of them.
    Replaces,
    /// As [`Effect::Replaces`], but there are states where neither opens.
    Overwrites,
    /// [`OLD`] opens in every state.
    Keeps,
    /// No passphrase opens afterwards.
    Erases,
}

type Run = fn(&mut Volume, &dyn HeaderDevice, &VolumeKey) -> Result<(), EditError>;

struct Verb {
    name: &'static str,
    effect: Effect,
    run: Run,
}

const fn verb(name: &'static str, effect: Effect, run: Run) -> Verb {
    Verb { name, effect, run }
}

fn pbkdf2() -> NewKeyslot {
    with!(NewKeyslot::default(); kdf: cheap(KdfKind::Pbkdf2))
}

fn at(number: u32) -> NewKeyslot {
    with!(pbkdf2(); number: Some(number))
}

fn add(volume: &mut Volume, device: &dyn HeaderDevice, key: &VolumeKey, new: NewKeyslot) -> Result<(), EditError> {
    volume.add_keyslot(device, key, &secret(NEW.as_bytes()), &new).map(drop)
}

/// Changes the passphrase of the keyslot that [`OLD`] opens.
fn change(volume: &mut Volume, device: &dyn HeaderDevice, key: &VolumeKey, new: NewKeyslot) -> Result<(), EditError> {
    let (number, _) = volume.unlock_key(device, &secret(OLD.as_bytes()), &UnlockOptions::default())?;
    volume.change_keyslot(device, number, key, &secret(NEW.as_bytes()), &new).map(drop)
}

fn kill(volume: &mut Volume, device: &dyn HeaderDevice, passphrase: &str) -> Result<(), EditError> {
    let (number, _) = volume.unlock_key(device, &secret(passphrase.as_bytes()), &UnlockOptions::default())?;
    volume.kill_keyslot(device, number)
}

fn luks2_of(volume: &mut Volume) -> &mut luks2::Luks2 {
    let Volume::Luks2(luks2) = volume else { panic!("not LUKS2") };
    luks2
}

const TOKEN: &str = r#"{"type":"t","keyslots":["0","1"],"x":1}"#;

const LUKS2_VERBS: &[Verb] = &[
    verb("add", Effect::Adds, |v, d, k| add(v, d, k, pbkdf2())),
    verb("add argon2id at 31", Effect::Adds, |v, d, k| {
        add(v, d, k, with!(at(31); kdf: cheap(KdfKind::Argon2id), hash: Some(Hash::Sha512)))
    }),
    verb("add unbound", Effect::Keeps, |v, d, _| {
        v.add_unbound_keyslot(d, &VolumeKey::new(&[7; 24]), &secret(b"x"), &pbkdf2()).map(drop)
    }),
    verb("change", Effect::Replaces, |v, d, k| change(v, d, k, pbkdf2())),
    verb("change to another number", Effect::Replaces, |v, d, k| change(v, d, k, at(9))),
    verb("convert", Effect::Keeps, |v, d, k| {
        let cipher = Some(("aes-xts-plain64".parse().unwrap(), 64));
        let new = with!(NewKeyslot::default(); kdf: cheap(KdfKind::Argon2id), cipher: cipher);
        v.change_keyslot(d, 0, k, &secret(OLD.as_bytes()), &new).map(drop)
    }),
    verb("kill", Effect::Removes, |v, d, _| kill(v, d, OLD)),
    verb("kill unbound", Effect::RemovesUnbound, |v, d, _| kill(v, d, UNBOUND)),
    verb("erase", Effect::Erases, |v, d, _| v.erase_keyslots(d)),
    verb("uuid", Effect::Keeps, |v, d, _| v.set_uuid(d, Some(UUID))),
    verb("labels", Effect::Keeps, |v, d, _| luks2_of(v).set_labels(d, Some("new label"), Some("sub"))),
    verb("priority", Effect::Keeps, |v, d, _| luks2_of(v).set_priority(d, 0, Priority::Prefer)),
    verb("flags", Effect::Keeps, |v, d, _| luks2_of(v).set_flags(d, &["allow-discards"])),
    verb("requirements", Effect::Keeps, |v, d, _| luks2_of(v).set_requirements(d, &["of-tomorrow"])),
    verb("token add", Effect::Keeps, |v, d, _| luks2_of(v).add_token(d, None, TOKEN).map(drop)),
    verb("token replace", Effect::Keeps, |v, d, _| luks2_of(v).replace_token(d, 0, TOKEN)),
    verb("token remove", Effect::Keeps, |v, d, _| luks2_of(v).remove_token(d, 0)),
    verb("token assign", Effect::Keeps, |v, d, _| luks2_of(v).assign_token(d, 0, None)),
    verb("token unassign", Effect::Keeps, |v, d, _| luks2_of(v).unassign_token(d, 0, Some(0))),
];

const LUKS1_VERBS: &[Verb] = &[
    verb("add", Effect::Adds, |v, d, k| add(v, d, k, pbkdf2())),
    verb("add 5", Effect::Adds, |v, d, k| add(v, d, k, at(5))),
    verb("add 6", Effect::Adds, |v, d, k| add(v, d, k, at(6))),
    verb("add 7", Effect::Adds, |v, d, k| add(v, d, k, at(7))),
    verb("change", Effect::Replaces, |v, d, k| change(v, d, k, pbkdf2())),
    verb("change 0", Effect::Replaces, |v, d, k| change(v, d, k, at(0))),
    verb("change to 6", Effect::Replaces, |v, d, k| change(v, d, k, at(6))),
    verb("kill", Effect::Removes, |v, d, _| kill(v, d, OLD)),
    verb("erase", Effect::Erases, |v, d, _| v.erase_keyslots(d)),
    verb("uuid", Effect::Keeps, |v, d, _| v.set_uuid(d, Some(UUID))),
];

/// Verbs for a LUKS1 volume where [`OLD`] opens keyslot 6, which lies in two sectors.
const LUKS1_VERBS_OF_6: &[Verb] = &[
    verb("change from 6", Effect::Replaces, |v, d, k| change(v, d, k, pbkdf2())),
    verb("change 6", Effect::Replaces, |v, d, k| change(v, d, k, at(6))),
    verb("change 6 to 7", Effect::Replaces, |v, d, k| change(v, d, k, at(7))),
    verb("kill 6", Effect::Removes, |v, d, _| kill(v, d, OLD)),
    verb("erase with 6", Effect::Erases, |v, d, _| v.erase_keyslots(d)),
];

/// Verbs for volumes without space for another keyslot.
const FULL_VERBS: &[Verb] = &[
    verb("change in place", Effect::Overwrites, |v, d, k| change(v, d, k, with!(pbkdf2(); may_overwrite: true))),
    verb("kill of a full volume", Effect::Removes, |v, d, _| kill(v, d, OLD)),
];

/// Verbs for a LUKS2 volume with all numbers in use, but space in the keyslot areas.
const ALL_NUMBERS_VERBS: &[Verb] =
    &[verb("change without a free number", Effect::Replaces, |v, d, k| change(v, d, k, pbkdf2()))];

/// Returns a LUKS2 volume with a 16-byte key, and space for `areas` keyslots.
fn luks2_base(areas: u64) -> (MemoryDevice, Volume, VolumeKey) {
    let device = MemoryDevice::zeroed((32 << 10) + (areas as usize * (64 << 10)).next_multiple_of(4096) + 8192);
    let options = with!(
        luks2_options();
        cipher: "aes-cbc-plain64".parse().unwrap(),
        key_len: 16,
        kdf: cheap(KdfKind::Pbkdf2),
        keyslots_len: Some(areas * (64 << 10)),
        data_offset: Some((32 << 10) + areas * (64 << 10)),
    );
    let luks2 = luks2::format(&device, options, &secret(OLD.as_bytes())).unwrap();
    let volume = Volume::from(luks2);
    let (_, key) = volume.unlock_key(&device, &secret(OLD.as_bytes()), &UnlockOptions::default()).unwrap();
    (device, volume, key)
}

fn luks2_before() -> Vec<u8> {
    let (device, mut volume, key) = luks2_base(8);
    for passphrase in OTHERS {
        volume.add_keyslot(&device, &key, &secret(passphrase.as_bytes()), &pbkdf2()).unwrap();
    }
    let unbound = VolumeKey::new(&[5; 16]);
    volume.add_unbound_keyslot(&device, &unbound, &secret(UNBOUND.as_bytes()), &pbkdf2()).unwrap();
    luks2_of(&mut volume).add_token(&device, None, TOKEN).unwrap();
    device.to_vec()
}

/// Returns a LUKS2 volume whose keyslot areas or numbers are all in use.
fn luks2_full(areas: u64, keyslots: u32) -> Vec<u8> {
    let (device, mut volume, key) = luks2_base(areas);
    for number in 1..keyslots {
        let passphrase = OTHERS.get(number as usize - 1).copied().unwrap_or("filler");
        volume.add_keyslot(&device, &key, &secret(passphrase.as_bytes()), &pbkdf2()).unwrap();
    }
    device.to_vec()
}

/// Returns a LUKS1 volume with [`OLD`] in keyslot `first`; with `full`, no keyslot is free.
fn luks1_before(first: u32, full: bool) -> Vec<u8> {
    let device = MemoryDevice::zeroed((1 << 20) + 8192);
    let options = with!(
        luks1_options();
        cipher: "aes-cbc-plain64".parse().unwrap(),
        key_len: 16,
        keyslot: first,
    );
    let mut volume = Volume::from(luks1::format(&device, options, &secret(OLD.as_bytes())).unwrap());
    let (_, key) = volume.unlock_key(&device, &secret(OLD.as_bytes()), &UnlockOptions::default()).unwrap();
    for number in 1..if full { 8 } else { 3 } {
        let passphrase = OTHERS.get(number - 1).copied().unwrap_or("filler");
        volume.add_keyslot(&device, &key, &secret(passphrase.as_bytes()), &pbkdf2()).unwrap();
    }
    device.to_vec()
}

/// Whether passphrases open keyslots, computed once for the same keyslot with the same key material.
#[derive(Default)]
struct Opener {
    known: HashMap<(u64, &'static str), bool>,
}

impl Opener {
    /// Whether `passphrase` opens one of `keyslots`.
    fn opens(
        &mut self,
        volume: &Volume,
        device: &MemoryDevice,
        keyslots: &[(u32, u64)],
        passphrase: &'static str,
    ) -> bool {
        keyslots.iter().any(|&(number, keyslot)| {
            *self.known.entry((keyslot, passphrase)).or_insert_with(|| {
                let options = with!(UnlockOptions::default(); keyslot: Some(number));
                volume.unlock_key(device, &secret(passphrase.as_bytes()), &options).is_ok()
            })
        })
    }
}

/// Returns numbers of all keyslots, each with a hash of its fields and its key material.
fn keyslots(volume: &Volume, bytes: &[u8]) -> Vec<(u32, u64)> {
    let hash = |fields: &str, offset: u64| {
        let mut hasher = DefaultHasher::new();
        (fields, &bytes[offset as usize..][..AREA_LEN]).hash(&mut hasher);
        hasher.finish()
    };
    match volume {
        Volume::Luks2(luks2) => {
            let slots = luks2.metadata().keyslots.iter();
            slots.map(|(&number, slot)| (number, hash(&format!("{slot:?}"), slot.area_offset))).collect()
        }
        _ => {
            let fields = |number: u32| &bytes[208 + 48 * number as usize..][..48];
            let sector = |number| u32::from_be_bytes(fields(number)[40..44].try_into().unwrap());
            let slots = volume.active_keyslots().into_iter();
            slots
                .map(|number| (number, hash(&format!("{:?}", fields(number)), u64::from(sector(number)) * 512)))
                .collect()
        }
    }
}

/// Why a state is wrong.
fn fault_of(opener: &mut Opener, effect: Effect, bytes: &[u8], is_done: bool) -> Option<String> {
    let device = MemoryDevice::new(bytes.to_vec());
    let volume = match Volume::load(&device) {
        Ok(volume) => volume,
        Err(error) => return Some(format!("does not load: {error}")),
    };
    let slots = keyslots(&volume, bytes);
    let mut opens = |passphrase| opener.opens(&volume, &device, &slots, passphrase);
    if effect != Effect::Erases {
        for other in OTHERS {
            if !opens(other) {
                return Some(format!("'{other}' does not open"));
            }
        }
    }
    let (old, new) = (opens(OLD), opens(NEW));
    let is_right = match (effect, is_done) {
        (Effect::Adds, false) => old,
        (Effect::Adds, true) => old && new,
        (Effect::Removes | Effect::Erases, false) => !new,
        (Effect::Removes | Effect::Erases, true) => !old,
        (Effect::RemovesUnbound, false) => old,
        (Effect::RemovesUnbound, true) => old && !opens(UNBOUND),
        (Effect::Replaces, false) => old || new,
        (Effect::Overwrites, false) => true,
        (Effect::Replaces | Effect::Overwrites, true) => new && !old,
        (Effect::Keeps, _) => old && !new,
    };
    if !is_right {
        return Some(format!("old opens: {old}, new opens: {new}, done: {is_done}"));
    }
    (effect == Effect::Erases && is_done && !volume.active_keyslots().is_empty()).then(|| "keyslots are left".into())
}

/// Runs a verb, and returns its log and the bytes afterwards.
fn record(verb: &Verb, before: &[u8]) -> (Vec<Step>, Vec<u8>) {
    let device = RecordingDevice::new(before.to_vec());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device);
    (verb.run)(&mut volume, &device, &key).unwrap_or_else(|error| panic!("{}: {error}", verb.name));
    let after = device.to_vec();
    // The value in memory is what a fresh load finds.
    let loaded = Volume::load(&MemoryDevice::new(after.clone())).unwrap();
    assert_eq!(loaded.dump("x").to_string(), volume.dump("x").to_string(), "{}", verb.name);
    assert!(loaded.warnings().is_empty(), "{}: {:?}", verb.name, loaded.warnings());
    let log = device.log.lock().unwrap().clone();
    (log, after)
}

fn key_of(volume: &Volume, device: &dyn HeaderDevice) -> VolumeKey {
    volume.unlock_key(device, &secret(OTHERS[0].as_bytes()), &UnlockOptions::default()).unwrap().1
}

fn cases() -> Vec<(&'static str, Vec<u8>, &'static [Verb])> {
    let luks2 = luks2_before();
    let (mut first_damaged, mut second_damaged) = (luks2.clone(), luks2.clone());
    first_damaged[5000] ^= 1;
    second_damaged[16384 + 5000] ^= 1;
    vec![
        ("LUKS2", luks2, LUKS2_VERBS),
        ("LUKS2, first copy damaged", first_damaged, LUKS2_VERBS),
        ("LUKS2, second copy damaged", second_damaged, LUKS2_VERBS),
        ("LUKS2, areas full", luks2_full(3, 3), FULL_VERBS),
        ("LUKS2, numbers full", luks2_full(34, 32), ALL_NUMBERS_VERBS),
        ("LUKS1", luks1_before(0, false), LUKS1_VERBS),
        ("LUKS1, keyslot 6", luks1_before(6, false), LUKS1_VERBS_OF_6),
        ("LUKS1 full", luks1_before(0, true), FULL_VERBS),
        ("LUKS1 full, keyslot 6", luks1_before(6, true), FULL_VERBS),
    ]
}

/// Calls `judge` with the name of each case, its volume and its verbs, on two threads, and returns the sum.
fn sum_of_cases(judge: impl Fn(&str, &[u8], &[Verb]) -> usize + Sync) -> usize {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let judge_some = || {
        let mut sum = 0;
        while let Some((name, before, verbs)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            sum += judge(name, before, verbs);
        }
        sum
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(judge_some), scope.spawn(judge_some)];
        threads.map(|thread| thread.join().unwrap()).into_iter().sum()
    })
}

#[test]
fn power_cut_while_editing_leaves_change_undone_or_done() {
    let total = sum_of_cases(|name, before, verbs| {
        let (mut opener, mut total) = (Opener::default(), 0);
        for verb in verbs {
            let (log, after) = record(verb, before);
            assert!(matches!(log.last(), Some(Step::Sync)), "{name}, {}: the end is durable", verb.name);
            let check = |bytes: &[u8], is_done: bool, opener: &mut Opener| {
                if let Some(fault) = fault_of(opener, verb.effect, bytes, is_done) {
                    panic!("{name}, {}: {fault}", verb.name);
                }
            };
            let count = each_state(before, &log, &mut |bytes| check(bytes, false, &mut opener));
            check(&after, true, &mut opener);
            assert!(count >= 4, "{name}, {}: {count} states", verb.name);
            total += count;
        }
        total
    });
    println!("COUNT states_of_header_edits {total}");
    assert!(total >= 2000, "{total}");
}

/// cryptsetup opens the states, too, and repairs what it repairs.
#[test]
fn power_cut_while_editing_leaves_volume_that_cryptsetup_opens() {
    if !installed("cryptsetup") {
        return;
    }
    let bench = Bench::new();
    let (image, key) = (bench.text("image"), bench.text("other"));
    std::fs::write(&key, OTHERS[1]).unwrap();
    let (mut states, mut opened) = (0, 0);
    for (name, before, verbs) in cases() {
        for verb in verbs.iter().filter(|verb| verb.effect != Effect::Erases && verb.name != "requirements") {
            let (log, _) = record(verb, &before);
            each_state(&before, &log, &mut |bytes| {
                states += 1;
                if states % 150 != 0 {
                    return;
                }
                std::fs::write(&image, bytes).unwrap();
                let done = output("cryptsetup", &["open", "--test-passphrase", "-d", &key, &image]);
                assert!(done.status.success(), "{name}, {}, state {states}: {done:?}", verb.name);
                opened += 1;
            });
        }
    }
    println!("COUNT states_of_header_edits_opened_by_cryptsetup {opened}");
}

/// The negative control: with writes of a verb in one epoch, or key material after the metadata, the check fails.
#[test]
fn power_cut_check_of_unordered_edits_fails() {
    let (luks2, luks1) = (luks2_before(), luks1_before(6, false));
    for (name, before, verb) in [
        ("LUKS2 add", &luks2, &LUKS2_VERBS[0]),
        ("LUKS2 change", &luks2, &LUKS2_VERBS[3]),
        ("LUKS1 change", &luks1, &LUKS1_VERBS_OF_6[1]),
    ] {
        let (log, after) = record(verb, before);
        let unsynced: Vec<_> = log.into_iter().filter(|step| matches!(step, Step::Write { .. })).collect();
        let mut opener = Opener::default();
        let mut faults = 0;
        // An addition that is lost leaves a keyslot without a key; that one is found by its number.
        let active = |bytes: &[u8]| {
            Volume::load(&MemoryDevice::new(bytes.to_vec())).map_or(0, |volume| volume.active_keyslots().len())
        };
        let done = active(&after);
        each_state(before, &unsynced, &mut |bytes| {
            let lost = verb.effect == Effect::Adds && active(bytes) == done && !opens_new(bytes);
            faults += usize::from(lost || fault_of(&mut opener, verb.effect, bytes, false).is_some());
        });
        assert!(faults > 0, "{name}: lost writes went unnoticed");
    }
}

fn opens_new(bytes: &[u8]) -> bool {
    let device = MemoryDevice::new(bytes.to_vec());
    let volume = Volume::load(&device).unwrap();
    volume.unlock_key(&device, &secret(NEW.as_bytes()), &UnlockOptions::default()).is_ok()
}

/// In no state does the header show a new keyslot whose key material is missing.
#[test]
fn keyslot_appears_after_its_key_material() {
    for (before, verbs) in [(luks2_before(), &LUKS2_VERBS[..2]), (luks1_before(0, false), &LUKS1_VERBS[..4])] {
        for verb in verbs {
            let (log, after) = record(verb, &before);
            let count = |bytes: &[u8]| {
                Volume::load(&MemoryDevice::new(bytes.to_vec())).map(|volume| volume.active_keyslots().len())
            };
            let (old, new) = (count(&before).unwrap(), count(&after).unwrap());
            assert_eq!(old + 1, new, "{}", verb.name);
            let mut seen = [0; 2];
            each_state(&before, &log, &mut |bytes| {
                let shown = count(bytes).unwrap() == new;
                seen[usize::from(shown)] += 1;
                assert!(!shown || opens_new(bytes), "{}", verb.name);
            });
            assert!(seen[0] > 0 && seen[1] > 0, "{}: {seen:?}", verb.name);
        }
    }
}

/// Returns the 16-byte blocks of the key material that a verb removes, and the salts in the header.
fn removed_bytes(effect: Effect, before: &[u8]) -> Vec<[u8; 16]> {
    let device = MemoryDevice::new(before.to_vec());
    let volume = Volume::load(&device).unwrap();
    let passphrase = if effect == Effect::RemovesUnbound { UNBOUND } else { OLD };
    let (number, _) = volume.unlock_key(&device, &secret(passphrase.as_bytes()), &UnlockOptions::default()).unwrap();
    let (offset, salt) = match &volume {
        Volume::Luks2(luks2) => {
            let slot = &luks2.metadata().keyslots[&number];
            let json: serde_json::Value = serde_json::from_str(luks2.metadata_json()).unwrap();
            let salt = json["keyslots"][number.to_string()]["kdf"]["salt"].as_str().unwrap();
            (slot.area_offset as usize, salt.as_bytes()[..16].to_vec())
        }
        _ => {
            let at = 208 + 48 * number as usize;
            let sector = u32::from_be_bytes(before[at + 40..at + 44].try_into().unwrap());
            (sector as usize * 512, before[at + 8..at + 24].to_vec())
        }
    };
    let material = &before[offset..offset + AREA_LEN];
    let blocks = material.chunks_exact(16).chain([&salt[..]]);
    blocks.map(|block| block.try_into().unwrap()).collect()
}

/// Number of the blocks that are somewhere on the device, at any byte.
fn found(blocks: &[[u8; 16]], bytes: &[u8]) -> usize {
    let blocks: HashSet<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    bytes.windows(16).filter(|window| blocks.contains(window)).count()
}

#[test]
fn removed_key_material_is_nowhere_on_the_device() {
    for (name, before, verbs) in cases() {
        let removes = |verb: &&Verb| verb.name == "convert" || !matches!(verb.effect, Effect::Adds | Effect::Keeps);
        for verb in verbs.iter().filter(removes) {
            let blocks = removed_bytes(verb.effect, &before);
            // The control: the search finds every block where it is.
            assert!(found(&blocks, &before) >= blocks.len(), "{name}, {}", verb.name);
            let (_, after) = record(verb, &before);
            assert_eq!(found(&blocks, &after), 0, "{name}, {}", verb.name);
        }
    }
}

/// A failure of each write or sync, in turn, is an error, and the device has the change undone or done.
#[test]
fn failed_write_while_editing_is_an_error() {
    let total = sum_of_cases(|name, before, verbs| {
        let (mut opener, mut total) = (Opener::default(), 0);
        for verb in verbs {
            let (log, _) = record(verb, before);
            for failing in 0..log.len() {
                let device = FailingDevice::new(before.to_vec(), failing);
                let mut volume = Volume::load(&device).unwrap();
                let key = key_of(&volume, &device);
                let done = (verb.run)(&mut volume, &device, &key);
                assert!(done.is_err(), "{name}, {}: step {failing}", verb.name);
                if let Some(fault) = fault_of(&mut opener, verb.effect, &device.to_vec(), false) {
                    panic!("{name}, {}, step {failing}: {fault}", verb.name);
                }
                total += 1;
            }
        }
        total
    });
    println!("COUNT failed_writes_of_header_edits {total}");
    assert!(total >= 100, "{total}");
}

/// After a power cut, the same verb, or the removal of what it left, ends in the wanted state.
#[test]
fn interrupted_removal_can_be_repeated() {
    for (before, verb) in [(luks2_before(), &LUKS2_VERBS[6]), (luks1_before(6, false), &LUKS1_VERBS_OF_6[3])] {
        let device = MemoryDevice::new(before.clone());
        let (number, _) =
            Volume::load(&device).unwrap().unlock_key(&device, &secret(b"old"), &UnlockOptions::default()).unwrap();
        let mut blocks = removed_bytes(verb.effect, &before);
        // The salt stays in the old copy of LUKS2 metadata until the next commit.
        blocks.pop();
        let (log, _) = record(verb, &before);
        let mut repeated = 0;
        each_state(&before, &log, &mut |bytes| {
            let device = MemoryDevice::new(bytes.to_vec());
            let mut volume = Volume::load(&device).unwrap();
            match volume.kill_keyslot(&device, number) {
                Ok(()) => repeated += 1,
                Err(EditError::KeyslotInactive(_)) => {}
                Err(error) => panic!("{}: {error}", verb.name),
            }
            assert_eq!(found_aligned(&blocks, &device.to_vec()), 0, "{}", verb.name);
        });
        assert!(repeated > 10, "{}: {repeated}", verb.name);
    }
}

/// As [`found`], at multiples of 16 bytes only.
fn found_aligned(blocks: &[[u8; 16]], bytes: &[u8]) -> usize {
    let blocks: HashSet<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    bytes.chunks_exact(16).filter(|chunk| blocks.contains(chunk)).count()
}

#[test]
fn header_without_space_is_refused_and_unchanged() {
    let full = luks2_full(3, 3);
    let luks1 = luks1_before(0, true);
    for (before, wanted) in [(full, "no space for new keyslot"), (luks1, "all keyslots are full")] {
        let device = RecordingDevice::new(before.clone());
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device);
        for refused in [add(&mut volume, &device, &key, pbkdf2()), change(&mut volume, &device, &key, pbkdf2())] {
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with(wanted), "{text}");
        }
        assert!(device.log.lock().unwrap().is_empty() && device.to_vec() == before);
    }
    assert!(matches!(Volume::load(&MemoryDevice::zeroed(4096)), Err(LoadError::NotLuks)));
}
