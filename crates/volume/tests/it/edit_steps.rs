//! Steps of edits, conversions, restores and repairs: their order, where they end, and failures of each.
//!
//! These are quick; `edit_states` and its neighbours try every state that a power cut leaves.

use crate::conversions::{convert, log_of, luks1_volume, luks2_volume, opening};
use crate::power_cut::{FailingDevice, RecordingDevice, Step};
use crate::support::{
    PASSPHRASE, cheap, luks1_image, luks1_options, luks2_image, luks2_options, map_of, secret, text_of, with,
};
use inlock_volume::{
    Conversion, ConvertError, EditError, FileDevice, HeaderBackup, HeaderDevice, KdfKind, LoadError, MemoryDevice,
    NewKeyslot, Priority, Repair, RepairError, RepairPlan, UnlockOptions, Volume, VolumeKey, luks1, luks2,
};
use std::io;
use std::ops::Range;
use std::sync::Mutex;

const SECTOR: u64 = 512;
/// Length of a copy of a LUKS2 header, and start of the keyslot areas.
const COPY: u64 = 16 << 10;
const AREAS: u64 = 32 << 10;
/// Number of LUKS1's field with the offset of keyslot 0, and of its length.
const KEYSLOTS: usize = 208;

pub(crate) fn pbkdf2() -> NewKeyslot {
    with!(NewKeyslot::default(); kdf: cheap(KdfKind::Pbkdf2))
}

pub(crate) fn key_of(volume: &Volume, device: &dyn HeaderDevice) -> VolumeKey {
    volume.unlock_key(device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap().1
}

pub(crate) fn luks2_of(device: &dyn HeaderDevice) -> luks2::Luks2 {
    let Ok(Volume::Luks2(luks2)) = Volume::load(device) else { panic!("not LUKS2") };
    *luks2
}

/// Returns the ranges that are written between two syncs.
pub(crate) fn epochs(log: &[Step]) -> Vec<Vec<Range<u64>>> {
    let ranges = |epoch: &[Step]| {
        epoch
            .iter()
            .map(|step| match step {
                Step::Write { offset, data } => *offset..*offset + data.len() as u64,
                Step::Sync => unreachable!("split at syncs"),
            })
            .collect()
    };
    log.split(|step| matches!(step, Step::Sync)).map(ranges).collect()
}

/// A range that is written between two syncs, and no other.
fn alone(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

fn recorded(image: Vec<u8>, edit: impl FnOnce(&RecordingDevice)) -> (Vec<u8>, Vec<Step>) {
    let device = RecordingDevice::new(image);
    edit(&device);
    (device.to_vec(), device.log.into_inner().unwrap())
}

#[test]
fn keyslots_are_erased_whole_and_before_the_header_says_so() {
    let erase = |device: &RecordingDevice| Volume::load(device).unwrap().erase_keyslots(device).unwrap();
    let luks1 = luks1_image();
    let areas: Vec<Range<u64>> = (0..8)
        .map(|number| {
            let at = KEYSLOTS + 48 * number + 40;
            let start = u64::from(u32::from_be_bytes(luks1[at..at + 4].try_into().unwrap())) * SECTOR;
            start..start + 32 * 4000
        })
        .collect();
    let (_, log) = recorded(luks1.clone(), erase);
    let steps = epochs(&log);
    let is_header = |epoch: &Vec<Range<u64>>| epoch.iter().all(|range| range.end <= 2 * SECTOR);
    assert!(steps[0].iter().zip(&areas).all(|(written, area)| written == area), "{steps:?}");
    assert!(steps[0].len() == 8 && steps[1..].iter().all(is_header), "{steps:?}");
    // Areas of disabled keyslots may end behind a file.
    let end = areas[3].start + 1000;
    let (_, log) = recorded(luks1[..end as usize].to_vec(), erase);
    assert_eq!(epochs(&log)[0], [&areas[..3], &alone(areas[3].start..end)].concat());

    let (after, log) = recorded(luks2_image(), erase);
    let steps = epochs(&log);
    assert_eq!(steps[0], alone(AREAS..AREAS + (512 << 10)));
    assert!(steps[1..].iter().flatten().all(|range| range.end <= AREAS), "{steps:?}");
    assert!(Volume::load(&MemoryDevice::new(after)).unwrap().active_keyslots().is_empty());
}

#[test]
fn change_of_a_luks1_keyslot_leaves_no_other_one() {
    for full in [false, true] {
        let device = MemoryDevice::new(if full { luks1_volume_of_eight() } else { luks1_image() });
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device);
        let before = volume.active_keyslots();
        let new = with!(pbkdf2(); number: Some(0), may_overwrite: true);
        assert_eq!(volume.change_keyslot(&device, 0, &key, &secret(b"new"), &new).unwrap(), 0);
        assert_eq!(Volume::load(&device).unwrap().active_keyslots(), before, "full: {full}");
        let opened = volume.unlock_key(&device, &secret(b"new"), &UnlockOptions::default()).unwrap();
        assert_eq!((opened.0, opened.1.as_bytes()), (0, key.as_bytes()), "full: {full}");
    }
}

#[test]
fn costs_above_the_limits_are_refused_and_nothing_is_written() {
    for image in [luks1_image(), luks2_image()] {
        let device = RecordingDevice::new(image);
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device);
        let mut new = pbkdf2();
        new.kdf.forced_iterations = Some(u32::MAX);
        assert!(volume.add_keyslot(&device, &key, &secret(b"b"), &new).is_err(), "LUKS{}", volume.version());
        assert!(device.log.lock().unwrap().is_empty());
    }
}

/// A disk that can no longer be read.
struct Unreadable(MemoryDevice, Mutex<bool>);

impl HeaderDevice for Unreadable {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if *self.1.lock().unwrap() { Err(io::Error::other("injected")) } else { self.0.read_exact_at(buf, offset) }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn header_that_cannot_be_read_any_more_is_not_changed() {
    let images = [luks1_image(), luks2_image()];
    for image in images {
        let device = Unreadable(MemoryDevice::new(image.clone()), Mutex::new(false));
        let mut volume = Volume::load(&device).unwrap();
        let plan = Conversion::new(&Volume::load(&MemoryDevice::new(luks2_volume(&[0]))).unwrap(), 1).unwrap();
        *device.1.lock().unwrap() = true;
        assert!(volume.set_uuid(&device, None).is_err() && device.0.to_vec() == image, "LUKS{}", volume.version());
        assert!(plan.find_foreign_metadata(&device).is_err());
    }
    let mut image = luks1_image();
    image[72..78].copy_from_slice(b"SHA256");
    let device = Unreadable(MemoryDevice::new(image.clone()), Mutex::new(false));
    let plan = RepairPlan::new(&device).unwrap();
    *device.1.lock().unwrap() = true;
    assert!(plan.execute(&device, false).is_err() && device.0.to_vec() == image);
}

#[test]
fn keyslots_and_tokens_that_cannot_be_changed_are_named() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    let text = |result: Result<(), EditError>| result.unwrap_err().to_string();
    let before = device.to_vec();
    assert_eq!(text(luks2.set_priority(&device, 1, Priority::Prefer)), "keyslot 1 is not active");
    assert!(matches!(luks2.remove_token(&device, 31), Err(EditError::TokenInactive(31))));
    assert!(matches!(luks2.remove_token(&device, 32), Err(EditError::TokenInvalid { number: 32, max: 31 })));
    assert_eq!(device.to_vec(), before);

    let key = key_of(&Volume::load(&device).unwrap(), &device);
    let mut map = map_of(&luks2);
    map["keyslots"]["0"]["type"] = "of-tomorrow".into();
    luks2.commit(&device, &text_of(map)).unwrap();
    let before = device.to_vec();
    let mut volume = Volume::load(&device).unwrap();
    let refused = volume.change_keyslot(&device, 0, &key, &secret(b"new"), &pbkdf2());
    assert!(refused.unwrap_err().to_string().contains("of-tomorrow"));
    assert_eq!(device.to_vec(), before);
}

/// Without a keyslot, the cipher of the data says how long the key is: PBKDF2 pads a shorter one with zeroes.
#[test]
fn volume_without_keyslots_takes_its_key_back_and_no_longer_one() {
    for aead in [None, Some("aes-gcm-random")] {
        let device = MemoryDevice::zeroed((2 << 20) + 8192);
        let aead_spec = aead.map(|cipher| inlock_cipher::AeadSpec::from_luks2(cipher, "aead").unwrap());
        let options = with!(
            luks2_options();
            kdf: cheap(KdfKind::Pbkdf2),
            keyslots_len: Some(1 << 20),
            key_len: 32,
            aead: aead_spec,
        );
        let mut volume = Volume::from(luks2::format(&device, options, &secret(PASSPHRASE)).unwrap());
        let key = key_of(&volume, &device);
        volume.add_keyslot(&device, &key, &secret(b"second"), &pbkdf2()).unwrap();
        volume.erase_keyslots(&device).unwrap();
        let longer = VolumeKey::new(&[key.as_bytes(), &[0]].concat());
        let added = volume.add_keyslot(&device, &longer, &secret(b"b"), &pbkdf2());
        assert!(matches!(added, Err(EditError::WrongKey)), "{aead:?}: {added:?}");
        assert_eq!(volume.add_keyslot(&device, &key, &secret(b"b"), &pbkdf2()).unwrap(), 0, "{aead:?}");
    }
}

/// A failure of each write or sync, in turn, is an error, and every passphrase opens the volume.
#[test]
fn failed_step_ends_a_conversion() {
    for (before, version) in [(luks1_volume(&[0, 1]), 2), (luks2_volume(&[0, 1]), 1)] {
        let (_, log) = log_of(&before, version);
        for failing in 0..log.len() {
            let device = FailingDevice::new(before.clone(), failing);
            assert!(convert(&device, version).is_err(), "to LUKS{version}: step {failing}");
            assert_eq!(opening(&device.to_vec(), &[0, 1]), 2, "to LUKS{version}: step {failing}");
        }
        assert!(log.len() > 20, "{}", log.len());
    }
    // Without a free keyslot.
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let before = luks1_volume(&all);
    let (after, log) = log_of(&before, 2);
    assert_eq!(opening(&after, &all), all.len());
    for failing in 0..log.len() {
        assert!(convert(&FailingDevice::new(before.clone(), failing), 2).is_err(), "step {failing}");
    }
}

#[test]
fn sector_that_makes_another_version_is_written_alone() {
    let before = luks2_volume(&[0, 1]);
    let end = Volume::load(&MemoryDevice::new(before.clone())).unwrap().header_len();
    let (after, log) = log_of(&before, 1);
    let steps = epochs(&log);
    // The second copy is gone before keyslots move to where it was.
    assert_eq!(steps[..3], [alone(SECTOR..2 * SECTOR), alone(0..SECTOR), alone(COPY..COPY + SECTOR)]);
    assert!(
        log.iter().any(|step| matches!(step, Step::Write { offset, data } if *offset == COPY && *data == [0; 512]))
    );
    assert_eq!(steps.iter().flatten().map(|range| range.end).max(), Some(end), "all areas are overwritten");
    assert!(after[592..4096].iter().all(|byte| *byte == 0), "the old header is left");
    assert!(matches!(log.last(), Some(Step::Sync)));

    let before = luks1_volume(&[0, 1]);
    let (after, log) = log_of(&before, 2);
    let steps = epochs(&log);
    let parts = [COPY..2 * COPY, 4096..COPY, 0..SECTOR, SECTOR..4096].map(|range| vec![range]);
    let at = steps.iter().position(|step| *step == parts[0]).unwrap();
    assert_eq!(steps[at..at + 4], parts);
    assert!(matches!(log.last(), Some(Step::Sync)));
    // What is behind belongs to keyslots without a key.
    let luks2 = luks2_of(&MemoryDevice::new(after));
    let used: Vec<u64> = luks2.metadata().keyslots.values().map(|slot| slot.area_offset).collect();
    let wiped: Vec<&Range<u64>> = steps[at + 4..].iter().flatten().collect();
    assert!(wiped.len() == 6 && wiped.iter().all(|range| !used.contains(&range.start)), "{wiped:?}");
}

#[test]
fn metadata_of_others_are_found_at_their_first_byte() {
    let plan = |image: &[u8], version| {
        Conversion::new(&Volume::load(&MemoryDevice::new(image.to_vec())).unwrap(), version).unwrap()
    };
    let find =
        |image: &[u8], version| plan(image, version).find_foreign_metadata(&MemoryDevice::new(image.to_vec())).unwrap();
    for (image, version) in [(luks1_volume(&[0, 1]), 2), (luks2_volume(&[0, 1]), 1)] {
        assert_eq!(find(&image, version), None, "to LUKS{version}");
        // In the last sector before the data, which is the only place behind the keyslots that both have.
        let last = if version == 2 { (2 << 20) - SECTOR } else { 900 << 10 };
        for (at, is_luksmeta) in [(last, false), (last - 1024, true)] {
            let mut image = image.clone();
            // Random bytes are no metadata.
            image[at as usize..][..SECTOR as usize].fill(0);
            image[at as usize..][..8].copy_from_slice(if is_luksmeta { b"LUKSMETA" } else { b"MINE1234" });
            let found = find(&image, version).unwrap_or_else(|| panic!("to LUKS{version}: nothing at {at}"));
            assert_eq!((found.offset, found.is_luksmeta), (at, is_luksmeta), "to LUKS{version}");
        }
    }
    // Of the last sector, one byte is enough.
    let mut image = luks1_volume(&[0, 1]);
    image[(2 << 20) - 1] = 1;
    assert_eq!(find(&image, 2).unwrap().offset, (2 << 20) - SECTOR);
    // A conversion that was cut off has left parts of keyslots: they are not of others.
    let before = luks1_volume(&[0, 1]);
    let (_, log) = log_of(&before, 2);
    let mut bytes = before;
    let mut cut = 0;
    for step in &log {
        let Step::Write { offset, data } = step else { continue };
        bytes[*offset as usize..][..data.len()].copy_from_slice(data);
        if Volume::load(&MemoryDevice::new(bytes.clone())).unwrap().version() == 2 {
            break;
        }
        assert_eq!(find(&bytes, 2), None, "after {cut} writes");
        cut += 1;
    }
    assert!(cut > 10, "{cut}");
}

#[test]
fn failed_step_ends_a_restore() {
    let luks1 = |passphrase: &[u8]| {
        let device = MemoryDevice::zeroed((2 << 20) + 4096);
        luks1::format(&device, luks1_options(), &secret(passphrase)).unwrap();
        device.to_vec()
    };
    let mut same = luks2_image();
    same[5000] ^= 1;
    for (name, new, old) in [
        ("LUKS1", luks1(b"new"), luks1(b"old")),
        ("LUKS2", luks2_image(), vec![0; (1 << 20) + 8192]),
        ("copies", luks2_image(), same),
    ] {
        let new = if name == "copies" { old.clone() } else { new };
        let backup = HeaderBackup::of_device(&MemoryDevice::new(new)).unwrap();
        let (_, log) = recorded(old.clone(), |device| backup.restore(device).unwrap());
        for failing in 0..log.len() {
            assert!(backup.restore(&FailingDevice::new(old.clone(), failing)).is_err(), "{name}: step {failing}");
        }
        let len = backup.volume().header_len();
        let expected = match name {
            "LUKS1" => vec![alone(0..SECTOR), alone(SECTOR..len), alone(0..SECTOR), vec![]],
            "LUKS2" => vec![
                alone(0..SECTOR),
                vec![2 * COPY..len, SECTOR..COPY, COPY + SECTOR..2 * COPY],
                alone(0..SECTOR),
                alone(COPY..COPY + SECTOR),
                vec![],
            ],
            // The damaged one first.
            _ => vec![alone(0..COPY), alone(COPY..2 * COPY), vec![]],
        };
        assert_eq!(epochs(&log), expected, "{name}");
        // A device that is just long enough takes it.
        let exact = MemoryDevice::zeroed(backup.bytes().len());
        backup.restore(&exact).unwrap();
        assert!(HeaderBackup::of_file(&exact).unwrap().bytes() == backup.bytes(), "{name}");
    }
}

#[test]
fn luks1_header_is_repaired_in_both_sectors_and_its_useless_keyslot_erased() {
    let mut good = luks1_image();
    // Behind the header, in its second sector.
    good[700] = 7;
    let mut image = good.clone();
    image[72..78].copy_from_slice(b"SHA256");
    image[KEYSLOTS + 48 * 7..][..4].fill(0x12);
    let plan = RepairPlan::new(&MemoryDevice::new(image.clone())).unwrap();
    assert!(matches!(plan.repairs(), [Repair::LowerHash { .. }, Repair::MendKeyslot { keyslot: 7, .. }]));
    let repair = |device: &dyn HeaderDevice| RepairPlan::new(device).unwrap().execute(device, false);
    let (after, log) = recorded(image.clone(), |device| drop(repair(device).unwrap()));
    assert!(after == good);
    assert_eq!(epochs(&log), [alone(SECTOR..2 * SECTOR), alone(0..SECTOR), vec![]]);
    for failing in 0..log.len() {
        assert!(repair(&FailingDevice::new(image.clone(), failing)).is_err(), "step {failing}");
    }

    let mut image = good.clone();
    image[KEYSLOTS + 48..][..8].copy_from_slice(&[0x00, 0xac, 0x71, 0xf3, 0, 0, 0, 0]);
    let device = MemoryDevice::new(image);
    let plan = RepairPlan::new(&device).unwrap();
    assert!(matches!(plan.repairs(), [Repair::EraseKeyslot { keyslot: 1, .. }]), "{:?}", plan.repairs());
    plan.execute(&device, true).unwrap();
    assert!(device.to_vec() == good);
}

#[test]
fn only_a_header_without_magic_is_salvaged() {
    for image in [luks1_image(), luks2_image()] {
        let plan = |bytes: &[u8]| RepairPlan::new(&MemoryDevice::new(bytes.to_vec()));
        assert!(!plan(&image).unwrap().is_salvage());
        let mut lost = image.clone();
        lost[..6].fill(0);
        lost[COPY as usize..][..6].fill(0);
        assert!(plan(&lost).unwrap().is_salvage());
        // As much as LUKS1's header, and one byte less.
        let short = |len: usize| match plan(&image[..len]) {
            Err(RepairError::Load(error)) => Some(error),
            _ => None,
        };
        if image[7] == 1 {
            assert!(matches!(short(591), Some(LoadError::Truncated { needed: 592, len: 591, .. })));
            assert!(!matches!(short(592), Some(LoadError::Truncated { needed: 592, .. })));
        }
    }
}

fn luks1_volume_of_eight() -> Vec<u8> {
    let device = MemoryDevice::new(luks1_image());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device);
    for _ in 1..8 {
        volume.add_keyslot(&device, &key, &secret(b"other"), &pbkdf2()).unwrap();
    }
    device.to_vec()
}

/// A failure of each write or sync, in turn, is an error.
#[test]
fn failed_step_ends_an_edit() {
    type Edit = fn(&mut Volume, &dyn HeaderDevice, &VolumeKey) -> Result<(), EditError>;
    fn change(
        volume: &mut Volume,
        device: &dyn HeaderDevice,
        key: &VolumeKey,
        number: Option<u32>,
    ) -> Result<(), EditError> {
        let new = with!(pbkdf2(); number: number, may_overwrite: true);
        volume.change_keyslot(device, 0, key, &secret(b"new"), &new).map(drop)
    }
    let edits: [(&str, Edit); 7] = [
        ("add", |v, d, k| v.add_keyslot(d, k, &secret(b"new"), &pbkdf2()).map(drop)),
        ("change", |v, d, k| change(v, d, k, None)),
        ("change 0", |v, d, k| change(v, d, k, Some(0))),
        ("change to 6", |v, d, k| change(v, d, k, Some(6))),
        ("kill", |v, d, _| v.kill_keyslot(d, 0)),
        ("erase", |v, d, _| v.erase_keyslots(d)),
        ("uuid", |v, d, _| v.set_uuid(d, None)),
    ];
    // With space for one keyslot only, and for several.
    let luks2 = |areas: u64| {
        let device = MemoryDevice::zeroed((2 << 20) + 8192);
        let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), keyslots_len: Some(areas * (256 << 10)));
        luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
        device.to_vec()
    };
    let mut failed = 0;
    let full_luks1 = luks1_volume_of_eight();
    for (case, image) in
        [("LUKS1", luks1_image()), ("LUKS1, full", full_luks1), ("LUKS2", luks2(3)), ("LUKS2, full", luks2(1))]
    {
        let volume = Volume::load(&MemoryDevice::new(image.clone())).unwrap();
        let key = key_of(&volume, &MemoryDevice::new(image.clone()));
        let needs_space = |name: &str| name == "add" || case == "LUKS1, full" && name == "change to 6";
        for (name, edit) in edits.iter().filter(|(name, _)| !case.ends_with("full") || !needs_space(name)) {
            let run = |device: &dyn HeaderDevice| edit(&mut Volume::load(device).unwrap(), device, &key);
            let (_, log) = recorded(image.clone(), |device| run(device).unwrap());
            for failing in 0..log.len() {
                let device = FailingDevice::new(image.clone(), failing);
                assert!(run(&device).is_err(), "{case}, {name}: step {failing}");
                Volume::load(&device).unwrap_or_else(|error| panic!("{case}, {name}: step {failing}: {error}"));
            }
            assert!(matches!(log.last(), Some(Step::Sync)), "{case}, {name}");
            failed += log.len();
        }
    }
    assert!(failed > 100, "{failed}");
}

#[test]
fn luks2_keyslot_is_overwritten_when_the_new_one_is_durable() {
    let device = RecordingDevice::new(luks2_image());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device);
    let area_of = |volume: &Volume| {
        let Volume::Luks2(luks2) = volume else { panic!("not LUKS2") };
        let slot = &luks2.metadata().keyslots[&0];
        slot.area_offset..slot.area_offset + slot.area_len
    };
    let old = area_of(&volume);
    assert_eq!(volume.change_keyslot(&device, 0, &key, &secret(b"new"), &pbkdf2()).unwrap(), 0);
    let new = area_of(&volume);
    let steps = epochs(&device.log.lock().unwrap());
    let at = |area: &Range<u64>| {
        let is_there = |epoch: &Vec<Range<u64>>| epoch.iter().any(|range| range.start == area.start);
        (steps.iter().position(is_there).unwrap(), steps.iter().filter(|epoch| is_there(epoch)).count())
    };
    assert_eq!(at(&new), (0, 1), "{steps:?}");
    // In between, both copies of the header are written, each durably.
    assert!(at(&old).0 >= 3 && at(&old).1 == 1, "{steps:?}");
    assert!(steps.iter().all(|epoch| epoch.len() <= 1), "{steps:?}");
    assert!(steps[at(&old).0..].iter().flatten().any(|range| range.end <= AREAS), "the old keyslot is removed last");

    // In place, the old key material goes first.
    let image = MemoryDevice::zeroed((1 << 20) + 8192);
    let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), keyslots_len: Some(256 << 10));
    luks2::format(&image, options, &secret(PASSPHRASE)).unwrap();
    let (_, log) = recorded(image.to_vec(), |device| {
        let mut volume = Volume::load(device).unwrap();
        let new = with!(pbkdf2(); may_overwrite: true);
        volume.change_keyslot(device, 0, &key_of(&volume, device), &secret(b"new"), &new).unwrap();
    });
    let steps = epochs(&log);
    assert!(steps[..2].iter().all(|epoch| epoch.len() == 1 && epoch[0].start == AREAS), "{steps:?}");
    assert!(steps[2..].iter().flatten().all(|range| range.end <= AREAS), "{steps:?}");
}

#[test]
fn removed_luks1_keyslot_leaves_none_of_its_fields() {
    let device = MemoryDevice::new(luks1_volume_of_eight());
    Volume::load(&device).unwrap().kill_keyslot(&device, 3).unwrap();
    let bytes = device.to_vec();
    let slot = &bytes[KEYSLOTS + 48 * 3..][..40];
    assert!(slot[..4] == [0, 0, 0xde, 0xad] && slot[4..].iter().all(|byte| *byte == 0), "{slot:x?}");
}

#[test]
fn backup_file_with_a_damaged_copy_is_made_whole_and_the_longest_one_taken() {
    let mut image = luks2_image();
    image[5000] ^= 1;
    let backup = HeaderBackup::of_file(&MemoryDevice::new(image)).unwrap();
    let whole = Volume::load(&MemoryDevice::new(backup.bytes().to_vec())).unwrap();
    assert!(whole.warnings().is_empty());

    let file = tempfile::tempfile().unwrap();
    file.set_len(inlock_volume::MAX_BACKUP_LEN + 4096).unwrap();
    let file = FileDevice::new(file);
    let options = with!(
        luks2_options();
        kdf: cheap(KdfKind::Pbkdf2),
        metadata_len: 4 << 20,
        keyslots_len: Some(inlock_volume::MAX_BACKUP_LEN - (8 << 20)),
    );
    luks2::format(&file, options, &secret(PASSPHRASE)).unwrap();
    let backup = HeaderBackup::of_device(&file).unwrap();
    assert_eq!(backup.bytes().len() as u64, inlock_volume::MAX_BACKUP_LEN);
}

#[test]
fn header_is_converted_into_space_that_is_just_enough() {
    let convert_at = |sectors: u64| {
        let device = MemoryDevice::zeroed((2 << 20) + 4096);
        let options = with!(luks1_options(); payload_offset: Some(sectors));
        luks1::format(&device, options, &secret(PASSPHRASE)).unwrap();
        convert(&device, 2).map(drop)
    };
    // Eight areas of 128 KiB behind both copies.
    let end = (AREAS + 8 * (128 << 10)) / SECTOR;
    convert_at(end).unwrap();
    assert!(convert_at(end - 1).is_err());

    let to_luks1 = |keyslots_len: u64| {
        let device = MemoryDevice::zeroed((3 << 20) + 4096);
        let options = with!(
            luks2_options();
            kdf: cheap(KdfKind::Pbkdf2),
            key_len: 32,
            keyslots_len: Some(keyslots_len),
            data_offset: Some(2 << 20),
            label: String::new(),
            sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
        );
        luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
        convert(&device, 1).map(drop)
    };
    to_luks1(8 * (128 << 10)).unwrap();
    assert!(to_luks1(8 * (128 << 10) - 4096).is_err());
}

/// Sets the first sector of a LUKS1 keyslot's area.
fn put_area(image: &mut [u8], keyslot: usize, start: u64) {
    let sector = u32::try_from(start / SECTOR).unwrap();
    image[KEYSLOTS + 48 * keyslot + 40..][..4].copy_from_slice(&sector.to_be_bytes());
}

#[test]
fn luks1_keyslot_is_moved_only_where_it_cannot_be_and_with_proof() {
    const AREA: u64 = 128 << 10;
    let good = luks1_image();
    let plan = |image: &[u8]| RepairPlan::new(&MemoryDevice::new(image.to_vec()));
    // An area in the header. Without proof nothing is written.
    let mut image = good.clone();
    put_area(&mut image, 0, SECTOR);
    for proven in [false, true] {
        let device = MemoryDevice::new(image.clone());
        let mut plan = plan(&image).unwrap();
        assert!(matches!(plan.repairs(), [Repair::MendKeyslot { keyslot: 0, field: "offset", .. }]));
        assert_eq!(plan.unproven().iter().copied().collect::<Vec<_>>(), [0]);
        if proven {
            plan.prove(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        }
        assert_eq!(plan.execute(&device, false).is_ok(), proven);
        assert!(device.to_vec() == if proven { &good[..] } else { &image[..] }, "proven: {proven}");
    }
    // An enabled keyslot may hold a key, though its iterations are 0.
    image[KEYSLOTS + 4..][..4].fill(0);
    assert_eq!(plan(&image).unwrap().unproven().iter().copied().collect::<Vec<_>>(), [0]);

    // Areas that adjoin each other and the data may be anywhere, when another keyslot is damaged.
    let mut image = good.clone();
    let last = 4096 + 7 * AREA;
    put_area(&mut image, 6, last);
    put_area(&mut image, 7, last + AREA);
    let payload = u32::try_from((last + 2 * AREA) / SECTOR).unwrap();
    image[104..108].copy_from_slice(&payload.to_be_bytes());
    image[KEYSLOTS + 48 * 5 + 44..][..4].fill(0);
    let found = plan(&image).unwrap();
    let stripes = matches!(found.repairs(), [Repair::MendKeyslot { keyslot: 5, field: "stripes", .. }]);
    assert!(stripes, "{:?}", found.repairs());

    // Key material that the device does not have is no header to repair.
    let mut short = good[..(AREA / 2) as usize].to_vec();
    short[72..78].copy_from_slice(b"SHA256");
    assert!(plan(&short).is_err());
}

#[test]
fn conversion_names_what_is_lost_and_needs_space_in_one_piece() {
    let device = MemoryDevice::new(luks2_volume(&[0, 1]));
    let loses = |device: &MemoryDevice| Conversion::new(&Volume::load(device).unwrap(), 1).unwrap().loses();
    assert_eq!(loses(&device), [""; 0]);
    let mut luks2 = luks2_of(&device);
    luks2.set_flags(&device, &["allow-discards"]).unwrap();
    assert_eq!(loses(&device), ["activation flags"]);
    luks2.set_priority(&device, 1, Priority::Prefer).unwrap();
    luks2.set_labels(&device, Some("label"), Some("subsystem")).unwrap();
    let all = ["the label", "the subsystem label", "activation flags", "priorities of keyslots"];
    assert_eq!(loses(&device), all);

    // Eight areas would fit, but not with one that lies in the middle of two places.
    let device = MemoryDevice::zeroed((3 << 20) + 4096);
    let options = with!(
        luks2_options();
        kdf: cheap(KdfKind::Pbkdf2),
        key_len: 32,
        keyslots_len: Some(1 << 20),
        data_offset: Some(2 << 20),
        label: String::new(),
        sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
    );
    let mut luks2 = luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let mut map = map_of(&luks2);
    map["keyslots"]["0"]["area"]["offset"] = (AREAS + (64 << 10)).to_string().into();
    luks2.commit(&device, &text_of(map)).unwrap();
    let refused = Conversion::new(&Volume::load(&device).unwrap(), 1);
    assert!(matches!(refused, Err(ConvertError::NoSpace { .. })), "{refused:?}");
}
