//! Edges of edits, conversions, restores and repairs: first and last numbers, exact lengths, and what stays as it was.

use crate::conversions::{convert, luks1_volume, luks2_volume, opening};
use crate::edit_steps::{self, key_of, luks2_of, pbkdf2};
use crate::power_cut::{FailingDevice, RecordingDevice, Step};
use crate::support::{
    PASSPHRASE, chain, cheap, luks1_image, luks1_options, luks2_image, luks2_options, map_of, secret, text_of, with,
};
use inlock_volume::{
    Conversion, ConvertError, EditError, HeaderBackup, HeaderDevice, KdfKind, KeyslotStatus, MemoryDevice, Repair,
    RepairError, RepairPlan, Replaced, RestoreError, UnlockOptions, Volume, VolumeKey, luks1, luks2,
};
use std::io;
use std::ops::Range;

const SECTOR: u64 = 512;
/// Start of LUKS1's keyslots in the header, and length of one.
const KEYSLOTS: usize = 208;
const KEYSLOT: usize = 48;
/// Length of an area of a key of 256 bits.
const AREA: u64 = 128 << 10;

/// Returns the ranges that are written between two syncs.
fn epochs(device: &RecordingDevice) -> Vec<Vec<Range<u64>>> {
    edit_steps::epochs(&device.log.lock().unwrap())
}

/// Returns a LUKS1 header that cannot be loaded: keyslot 3 has no place.
fn with_damage(mut image: Vec<u8>) -> Vec<u8> {
    image[KEYSLOTS + KEYSLOT * 3 + 40..][..4].fill(0);
    image
}

fn slot(image: &mut [u8], number: usize) -> &mut [u8] {
    &mut image[KEYSLOTS + KEYSLOT * number..][..KEYSLOT]
}

#[test]
fn luks1_key_material_is_durable_before_its_keyslot_and_gone_before_it_is_disabled() {
    let material = 32 * 4000;
    let area = |number: u64| 4096 + number * AREA..4096 + number * AREA + material;
    let (first, second) = (0..SECTOR, SECTOR..2 * SECTOR);
    for (number, enabling, disabling) in [
        (1, vec![first.clone()], vec![first.clone()]),
        (6, vec![second.clone(), first.clone()], vec![first.clone(), second.clone()]),
        (7, vec![second.clone()], vec![second.clone()]),
    ] {
        let device = RecordingDevice::new(luks1_image());
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device);
        let new = with!(pbkdf2(); number: Some(number));
        volume.add_keyslot(&device, &key, &secret(b"new"), &new).unwrap();
        let expected = |header: &[Range<u64>]| {
            let material = std::iter::once(area(number.into()));
            let steps = material.chain(header.iter().cloned()).map(|range| vec![range]);
            steps.chain([vec![]]).collect::<Vec<_>>()
        };
        assert_eq!(epochs(&device), expected(&enabling), "add {number}");
        device.log.lock().unwrap().clear();
        volume.kill_keyslot(&device, number).unwrap();
        assert_eq!(epochs(&device), expected(&disabling), "kill {number}");
    }
}

#[test]
fn luks2_key_material_is_durable_before_its_keyslot_and_gone_before_it_is_removed() {
    let device = RecordingDevice::new(luks2_image());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device);
    volume.add_keyslot(&device, &key, &secret(b"new"), &pbkdf2()).unwrap();
    let area = luks2_of(&device).metadata().keyslots[&1].area_offset;
    let copies = [16 << 10..32 << 10, 0..16 << 10];
    let is_ordered = |steps: &[Vec<Range<u64>>]| {
        let written = |at: usize| steps[at].first().cloned().unwrap_or_default();
        // The copies in turn, either first.
        let headers = [written(1), written(2)];
        let is_header = headers == copies || headers == [copies[1].clone(), copies[0].clone()];
        written(0).start == area && is_header && steps.len() == 4 && steps.iter().all(|epoch| epoch.len() <= 1)
    };
    assert!(is_ordered(&epochs(&device)), "{:?}", epochs(&device));
    device.log.lock().unwrap().clear();
    volume.kill_keyslot(&device, 1).unwrap();
    assert!(is_ordered(&epochs(&device)), "{:?}", epochs(&device));
}

#[test]
fn wrong_keys_and_numbers_change_nothing() {
    for (image, end) in [(luks1_image(), 8), (luks2_image(), 32)] {
        let device = RecordingDevice::new(image);
        let mut volume = Volume::load(&device).unwrap();
        let right = key_of(&volume, &device);
        let wrong = VolumeKey::new(&vec![7; right.len()]);
        let longer = VolumeKey::new(&[right.as_bytes(), &[0]].concat());
        for key in [&wrong, &longer] {
            let added = volume.add_keyslot(&device, key, &secret(b"b"), &pbkdf2());
            assert!(matches!(added, Err(EditError::WrongKey)), "{added:?}");
            let changed = volume.change_keyslot(&device, 0, key, &secret(b"b"), &pbkdf2());
            assert!(matches!(changed, Err(EditError::WrongKey)), "{changed:?}");
        }
        for number in [1, end - 1, end] {
            let is_named = |result: Result<(), EditError>| match result {
                Err(EditError::KeyslotInactive(n)) => n == number && number < end,
                Err(EditError::KeyslotInvalid { number: n, max }) => n == number && number > max && max == end - 1,
                _ => false,
            };
            let changed = volume.change_keyslot(&device, number, &right, &secret(b"b"), &pbkdf2()).map(drop);
            assert!(is_named(changed) && is_named(volume.kill_keyslot(&device, number)), "{number}");
            let status = if number < end { KeyslotStatus::Inactive } else { KeyslotStatus::Invalid };
            assert_eq!(volume.keyslot_status(number), status);
        }
        assert!(device.log.lock().unwrap().is_empty());
        let last = with!(pbkdf2(); number: Some(end - 1));
        volume.add_keyslot(&device, &right, &secret(b"b"), &last).unwrap();
        assert_eq!(volume.keyslot_status(end - 1), KeyslotStatus::Active);
    }
}

#[test]
fn new_uuid_of_luks1_leaves_nothing_of_its_field() {
    let mut image = luks1_image();
    image[168 + 36..208].copy_from_slice(b"\0abc");
    let device = MemoryDevice::new(image);
    let new = "11111111-2222-3333-4444-555555555555";
    Volume::load(&device).unwrap().set_uuid(&device, Some(new)).unwrap();
    assert_eq!(device.to_vec()[168..208], *[new.as_bytes(), &[0; 4]].concat());
}

#[test]
fn change_to_another_number_keeps_the_key_and_the_other_keyslots() {
    for image in [luks1_image(), luks2_image()] {
        let device = MemoryDevice::new(image);
        let mut volume = Volume::load(&device).unwrap();
        let key = key_of(&volume, &device);
        if volume.version() == 2 {
            // Space for three.
            let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), keyslots_len: Some(900 << 10));
            volume = luks2::format(&device, options, &secret(PASSPHRASE)).unwrap().into();
        }
        let key = if volume.version() == 2 { key_of(&volume, &device) } else { key };
        volume.add_keyslot(&device, &key, &secret(b"second"), &pbkdf2()).unwrap();
        let new = with!(pbkdf2(); number: Some(5));
        assert_eq!(volume.change_keyslot(&device, 0, &key, &secret(b"new"), &new).unwrap(), 5);
        let volume = Volume::load(&device).unwrap();
        assert_eq!(volume.active_keyslots(), [1, 5]);
        for (passphrase, number) in [(&b"second"[..], 1), (b"new", 5)] {
            let opened = volume.unlock_key(&device, &secret(passphrase), &UnlockOptions::default()).unwrap();
            assert_eq!((opened.0, opened.1.as_bytes()), (number, key.as_bytes()));
            assert_eq!(volume.keyslot_status(number), KeyslotStatus::Active);
        }
    }
}

#[test]
fn numbers_of_tokens_end_at_thirty_one() {
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    let token = r#"{"type":"x","keyslots":[]}"#;
    for number in 0..32 {
        assert_eq!(luks2.add_token(&device, None, token).unwrap(), number);
    }
    assert!(matches!(luks2.add_token(&device, None, token), Err(EditError::NoFreeToken)));
    let before = device.to_vec();
    let refused = luks2.replace_token(&device, 32, token);
    assert!(matches!(refused, Err(EditError::TokenInvalid { number: 32, max: 31 })), "{refused:?}");
    assert!(device.to_vec() == before);
    luks2.replace_token(&device, 31, &token.replace('x', "y")).unwrap();
    assert!(luks2_of(&device).token_json(31).unwrap().contains("\"y\""));
}

/// A disk with a range that cannot be read.
struct Unreadable(RecordingDevice, Range<u64>);

impl HeaderDevice for Unreadable {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match offset < self.1.end && self.1.start < offset + buf.len() as u64 {
            true => Err(io::Error::other("injected")),
            false => self.0.read_exact_at(buf, offset),
        }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Whether the areas are the same decides how a backup is written.
#[test]
fn backup_is_not_restored_over_areas_that_cannot_be_read() {
    let image = luks2_image();
    let backup = HeaderBackup::of_device(&MemoryDevice::new(image.clone())).unwrap();
    let device = Unreadable(RecordingDevice::new(image), (40 << 10)..(41 << 10));
    assert!(matches!(backup.restore(&device), Err(RestoreError::Io(_))));
    assert!(device.0.log.lock().unwrap().is_empty());
    assert!(chain(&HeaderBackup::of_device(&device).unwrap_err()).ends_with("injected"));
    // Of the copies one is enough.
    let device = Unreadable(RecordingDevice::new(device.0.to_vec()), (20 << 10)..(21 << 10));
    let whole = HeaderBackup::of_device(&device).unwrap().bytes().to_vec();
    assert!(Volume::load(&MemoryDevice::new(whole)).unwrap().warnings().is_empty());
}

#[test]
fn damaged_second_copy_is_whole_before_a_conversion_replaces_the_first() {
    let mut image = luks2_volume(&[0, 1]);
    image[(16 << 10) + 5000] ^= 1;
    let device = RecordingDevice::new(image.clone());
    convert(&device, 1).unwrap();
    let steps = epochs(&device);
    assert_eq!(steps[..2], [16 << 10..32 << 10, SECTOR..2 * SECTOR].map(|range| vec![range]));
    assert_eq!(opening(&device.to_vec(), &[0, 1]), 2);
    assert!(convert(&FailingDevice::new(image, 0), 1).is_err());
}

/// Areas that do not overlap their new places are copied there, and nowhere else.
#[test]
fn area_that_moves_far_is_copied_once() {
    for (metadata_len, copies) in [(16 << 10, 2), (128 << 10, 1)] {
        let device = MemoryDevice::zeroed((3 << 20) + 4096);
        let options = with!(
            luks2_options();
            kdf: cheap(KdfKind::Pbkdf2),
            key_len: 32,
            metadata_len: metadata_len,
            keyslots_len: Some(8 * AREA),
            data_offset: Some(2 << 20),
            label: String::new(),
            sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
        );
        luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
        let device = RecordingDevice::new(device.to_vec());
        let volume = convert(&device, 1).unwrap();
        key_of(&volume, &device);
        let log = device.log.lock().unwrap();
        let is_material = |step: &&Step| matches!(step, Step::Write { data, .. } if data.len() == 32 * 4000);
        assert_eq!(log.iter().filter(is_material).count(), copies, "metadata of {metadata_len} bytes");
    }
}

#[test]
fn backup_is_compared_before_it_is_restored() {
    let image = luks2_image();
    let backup = HeaderBackup::of_device(&MemoryDevice::new(image.clone())).unwrap();
    let same = Replaced::Header { same_uuid: true, has_requirements: false };
    assert_eq!(backup.compare(&MemoryDevice::new(image.clone())).unwrap(), same);
    let device = RecordingDevice::new(image[..backup.bytes().len() - 512].to_vec());
    assert!(matches!(backup.restore(&device), Err(RestoreError::DeviceTooSmall { .. })));
    let device = MemoryDevice::zeroed((3 << 20) + 8192);
    let options = with!(luks2_options(); kdf: cheap(KdfKind::Pbkdf2), data_offset: Some(2 << 20));
    luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let other = RecordingDevice::new(device.to_vec());
    assert!(matches!(backup.restore(&other), Err(RestoreError::OtherDataOffset { .. })));
    assert!(device.to_vec() == other.to_vec() && other.log.lock().unwrap().is_empty());
}

#[test]
fn tokens_that_do_not_exist_or_break_rules_change_nothing() {
    let device = RecordingDevice::new(luks2_image());
    let mut luks2 = luks2_of(&device);
    for keyslot in [None, Some(0)] {
        assert!(matches!(luks2.assign_token(&device, 3, keyslot), Err(EditError::TokenInactive(3))));
        assert!(matches!(luks2.unassign_token(&device, 3, keyslot), Err(EditError::TokenInactive(3))));
    }
    for json in [r#"{"type":"clevis","keyslots":[]}"#, r#"{"type":"luks2-mine","keyslots":[]}"#] {
        let refused = luks2.add_token(&device, None, json);
        assert!(matches!(refused, Err(EditError::TokenType { .. })), "{refused:?}");
    }
    assert!(device.log.lock().unwrap().is_empty());
}

/// While an area moves, no keyslot is enabled whose area is being overwritten.
#[test]
fn enabled_keyslots_open_after_every_step_of_a_conversion() {
    for (before, version) in [(luks1_volume(&[0, 1]), 2), (luks2_volume(&[0, 1]), 1)] {
        let device = RecordingDevice::new(before.clone());
        convert(&device, version).unwrap();
        let log = device.log.lock().unwrap();
        let present = MemoryDevice::new(before);
        for (number, step) in log.iter().enumerate() {
            let Step::Write { offset, data } = step else { continue };
            present.write_all_at(data, *offset).unwrap();
            let volume = Volume::load(&present).unwrap();
            for keyslot in volume.active_keyslots() {
                let options = with!(UnlockOptions::default(); keyslot: Some(keyslot));
                let opens = |passphrase: &&[u8]| volume.unlock_key(&present, &secret(passphrase), &options).is_ok();
                let has_opened = [&b"p0"[..], b"p1"].iter().any(opens);
                assert!(has_opened, "to LUKS{version}: keyslot {keyslot} after step {number}");
            }
        }
        // Copies of key material are durable before the header refers to them.
        let steps = edit_steps::epochs(&log);
        let has_area = |epoch: &&Vec<Range<u64>>| epoch.iter().any(|range| range.end - range.start == 32 * 4000);
        // At last what no keyslot uses is overwritten.
        let areas = steps[..steps.len() - 2].iter().filter(has_area);
        assert!(areas.clone().count() > 3 && areas.clone().all(|epoch| epoch.len() == 1), "{steps:?}");
    }
}

/// A partition table over a header is a question only if the header has damage.
#[test]
fn table_over_a_luks1_header_is_foreign_if_repairs_are_needed() {
    let image = luks1_image();
    let foreign =
        |image: Vec<u8>| RepairPlan::new(&MemoryDevice::new(image)).unwrap().foreign().map(|found| found.name);
    let with_table = |mut image: Vec<u8>| {
        image[512..520].copy_from_slice(b"EFI PART");
        image
    };
    let damaged = |mut image: Vec<u8>| {
        image[72..78].copy_from_slice(b"SHA256");
        image
    };
    assert_eq!(foreign(damaged(image.clone())), None);
    assert_eq!(foreign(with_table(image.clone())), None);
    assert_eq!(foreign(damaged(with_table(image))), Some("gpt"));
}

/// The header's second sector has bytes behind it, which are written again.
#[test]
fn repair_of_luks1_does_not_write_what_it_could_not_read() {
    let mut image = luks1_image();
    image[72..78].copy_from_slice(b"SHA256");
    let plan = RepairPlan::new(&MemoryDevice::new(image.clone())).unwrap();
    let device = Unreadable(RecordingDevice::new(image), 700..1024);
    assert!(plan.execute(&device, false).is_err());
    assert!(device.0.log.lock().unwrap().is_empty());
}

/// The first bytes tell that it is LUKS1.
#[test]
fn luks1_header_that_cannot_be_read_whole_is_not_called_damaged() {
    let device = Unreadable(RecordingDevice::new(luks1_image()), SECTOR..2 * SECTOR);
    let refused = RepairPlan::new(&device).unwrap_err();
    assert!(chain(&refused).ends_with("injected"), "{refused:?}");
}

#[test]
fn free_keyslot_of_any_number_keeps_a_conversion_safe() {
    let may_lose = |keyslots: &[u32]| {
        let device = MemoryDevice::new(luks1_volume(keyslots));
        Conversion::new(&Volume::load(&device).unwrap(), 2).unwrap().may_lose_keyslot()
    };
    assert!(may_lose(&[0, 1, 2, 3, 4, 5, 6, 7]));
    for free in 0..8 {
        let others: Vec<u32> = (0..8).filter(|number| *number != free).collect();
        assert!(!may_lose(&others), "keyslot {free} is free");
    }
}

#[test]
fn parts_of_a_header_are_not_metadata_of_others_in_any_order() {
    let find = |image: &[u8], version| {
        let device = MemoryDevice::new(image.to_vec());
        let plan = Conversion::new(&Volume::load(&device).unwrap(), version).unwrap();
        plan.find_foreign_metadata(&device).unwrap().map(|found| found.offset)
    };
    // The area of any keyslot, and what is behind the header.
    let image = luks1_volume(&[0, 1]);
    for place in (0..8).map(|number| 4096 + number * AREA).chain([2 << 20]) {
        let mut image = image.clone();
        // Random bytes would be no metadata anywhere.
        image[place as usize..][..SECTOR as usize].fill(0);
        image[place as usize..][..8].copy_from_slice(b"MINE1234");
        assert_eq!(find(&image, 2), None, "at {place}");
    }
    // The end of an area that lies below the one before.
    let device = MemoryDevice::new(luks2_volume(&[0, 1]));
    let mut luks2 = luks2_of(&device);
    let mut map = map_of(&luks2);
    let area = map["keyslots"]["0"]["area"].clone();
    map["keyslots"]["0"]["area"] = map["keyslots"]["1"]["area"].clone();
    map["keyslots"]["1"]["area"] = area.clone();
    luks2.commit(&device, &text_of(map)).unwrap();
    let number = |field: &str| area[field].as_str().unwrap().parse::<usize>().unwrap();
    let mut image = device.to_vec();
    let last = number("offset") + number("size") - 512;
    image[last..last + 512].fill(0);
    image[last..][..8].copy_from_slice(b"MINE1234");
    assert_eq!(find(&image, 1), None);
}

#[test]
fn luks2_header_with_what_luks1_does_not_hold_is_named() {
    let changed = |change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let device = MemoryDevice::new(luks2_volume(&[0]));
        let mut luks2 = luks2_of(&device);
        let mut map = map_of(&luks2);
        change(&mut map);
        luks2.commit(&device, &text_of(map)).unwrap();
        Conversion::new(&Volume::load(&device).unwrap(), 1).map(drop)
    };
    changed(&|_| ()).unwrap();
    let renamed = changed(&|map| {
        let slot = map["keyslots"].as_object_mut().unwrap().shift_remove("0").unwrap();
        map["keyslots"]["8"] = slot;
        map["digests"]["0"]["keyslots"] = serde_json::json!(["8"]);
    });
    assert!(matches!(renamed, Err(ConvertError::KeyslotNumber(8))), "{renamed:?}");
    let hash = |len: usize| {
        changed(&|map| {
            let name: serde_json::Value = "h".repeat(len).into();
            map["keyslots"]["0"]["kdf"]["hash"] = name.clone();
            map["keyslots"]["0"]["af"]["hash"] = name.clone();
            map["digests"]["0"]["hash"] = name;
        })
    };
    let cipher = |name: &str| {
        changed(&|map| {
            map["keyslots"]["0"]["area"]["encryption"] = name.into();
            map["segments"]["0"]["encryption"] = name.into();
        })
    };
    let long = cipher(&format!("{}-cbc-plain64", "c".repeat(32)));
    assert!(matches!(long, Err(ConvertError::TooLong("the cipher"))), "{long:?}");
    let long = cipher(&format!("aes-{}", "c".repeat(32)));
    assert!(matches!(long, Err(ConvertError::TooLong("the cipher mode"))), "{long:?}");
    // A field of 32 bytes ends with a zero.
    assert!(matches!(hash(32), Err(ConvertError::TooLong("the hash"))), "{:?}", hash(32));
    assert!(!matches!(hash(31), Err(ConvertError::TooLong(_))), "{:?}", hash(31));
}

/// Unused keyslots get areas on both sides of a used one, which they adjoin.
#[test]
fn keyslot_in_any_of_eight_places_leaves_room_for_the_others() {
    let device = MemoryDevice::zeroed((3 << 20) + 4096);
    let options = with!(
        luks2_options();
        kdf: cheap(KdfKind::Pbkdf2),
        key_len: 32,
        keyslots_len: Some(8 * AREA),
        data_offset: Some(2 << 20),
        label: String::new(),
        sector_size: Some(inlock_volume::DataUnitSize::SECTOR),
    );
    let mut luks2 = luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    for place in 0..8 {
        let mut map = map_of(&luks2);
        map["keyslots"]["0"]["area"]["offset"] = ((32 << 10) + place * AREA).to_string().into();
        luks2.commit(&device, &text_of(map)).unwrap();
        let plan = Conversion::new(&Volume::load(&device).unwrap(), 1);
        assert!(plan.is_ok(), "place {place}: {plan:?}");
    }
}

/// A header that LUKS2 does not take is found before an area moves.
#[test]
fn luks1_header_that_luks2_does_not_take_is_refused_before_it_is_written() {
    let mut image = luks1_volume(&[7, 0]);
    let area = 4096 + 7 * AREA as usize;
    image.copy_within(area..area + 32 * 4000, area + SECTOR as usize);
    let start = u32::try_from(area as u64 / SECTOR + 1).unwrap();
    slot(&mut image, 7)[40..44].copy_from_slice(&start.to_be_bytes());
    // The areas end with it, and not at a block.
    let end = (32 << 10) + 8 * AREA + SECTOR;
    image[104..108].copy_from_slice(&u32::try_from(end / SECTOR).unwrap().to_be_bytes());
    let refused = Conversion::new(&Volume::load(&MemoryDevice::new(image.clone())).unwrap(), 2);
    assert!(matches!(refused, Err(ConvertError::Commit(_))), "{refused:?}");
    let device = RecordingDevice::new(image);
    assert!(convert(&device, 2).is_err() && device.log.lock().unwrap().is_empty());
}

#[test]
fn luks1_header_that_stays_invalid_is_not_written() {
    let mut image = luks1_image();
    // Keyslot 0 lies in the header, and no passphrase has proved its repair.
    slot(&mut image, 0)[40..44].copy_from_slice(&1_u32.to_be_bytes());
    image[72..78].copy_from_slice(b"SHA256");
    let device = RecordingDevice::new(image.clone());
    let plan = RepairPlan::new(&device).unwrap();
    assert_eq!(plan.repairs().len(), 2, "{:?}", plan.repairs());
    let refused = plan.execute(&device, false);
    assert!(matches!(refused, Err(RepairError::Load(_))), "{refused:?}");
    assert!(device.to_vec() == image && device.log.lock().unwrap().is_empty());
}

#[test]
fn damaged_luks1_keyslot_without_a_key_is_as_new() {
    let good = luks1_image();
    for number in [5, 7] {
        let mut image = good.clone();
        let damaged = slot(&mut image, number);
        damaged[4..40].fill(0x5a);
        damaged[44..48].fill(0);
        let device = MemoryDevice::new(image);
        let plan = RepairPlan::new(&device).unwrap();
        let [Repair::MendKeyslot { keyslot, field: "stripes", .. }] = plan.repairs() else {
            panic!("{:?}", plan.repairs())
        };
        assert_eq!(*keyslot, number as u32);
        plan.execute(&device, false).unwrap();
        assert!(device.to_vec() == good, "keyslot {number}");
    }
}

/// A keyslot with an odd flag holds a key unless too little of it is left.
#[test]
fn luks1_keyslot_with_an_odd_flag_holds_a_key_if_enough_is_left() {
    let good = luks1_image();
    let enabled = good[KEYSLOTS..][..40].to_vec();
    type Change = fn(&mut [u8]);
    let cases: [(&str, Change, bool); 8] = [
        ("nothing else", |_| (), true),
        ("eight zeroes in the salt", |slot| slot[8..16].fill(0), true),
        ("nine zeroes in the salt", |slot| slot[8..17].fill(0), false),
        ("no iterations", |slot| slot[4..8].fill(0), false),
        ("no salt", |slot| slot[8..40].fill(0), false),
        ("stripes", |slot| slot[44..48].fill(0), true),
        ("place", |slot| slot[40..44].copy_from_slice(&[0, 0, 0, 1]), true),
        ("place and stripes", |slot| slot[40..48].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]), false),
    ];
    for (name, change, may_hold_key) in cases {
        let mut image = good.clone();
        let damaged = slot(&mut image, 2);
        damaged[..40].copy_from_slice(&enabled);
        damaged[8..40].fill(0x5a);
        damaged[..4].fill(0x12);
        change(damaged);
        let plan = RepairPlan::new(&MemoryDevice::new(image)).unwrap();
        let active = plan.mended().unwrap().active_keyslots();
        assert_eq!(active.contains(&2), may_hold_key, "{name}: {:?}", plan.repairs());
        assert_eq!(plan.unproven().contains(&2), may_hold_key, "{name}");
    }
}

#[test]
fn luks1_keyslots_of_other_layouts_keep_their_places() {
    let offset = |start: u64| u32::try_from(start / SECTOR).unwrap().to_be_bytes();
    // With a detached header the payload begins at 0, and areas may lie anywhere.
    let mut image = with_damage(luks1_image());
    image[104..108].fill(0);
    slot(&mut image, 7)[40..44].copy_from_slice(&offset(4096 + 9 * AREA));
    let fields = |image: &[u8]| {
        let plan = RepairPlan::new(&MemoryDevice::new(image.to_vec())).unwrap();
        let field = |repair: &Repair| match repair {
            Repair::MendKeyslot { keyslot, field, .. } => (*keyslot, *field),
            other => panic!("{other:?}"),
        };
        plan.repairs().iter().map(field).collect::<Vec<_>>()
    };
    assert_eq!(fields(&image), [(3, "offset")]);
    // Within the payload they may not.
    let mut image = with_damage(luks1_image());
    slot(&mut image, 7)[40..44].copy_from_slice(&offset((2 << 20) - AREA + SECTOR));
    assert_eq!(fields(&image), [(3, "offset"), (7, "offset")]);
    // Nor within another one.
    let mut image = with_damage(luks1_image());
    slot(&mut image, 7)[40..44].copy_from_slice(&offset(4096 + 6 * AREA + SECTOR));
    assert_eq!(fields(&image), [(3, "offset"), (7, "offset")]);
}

#[test]
fn salvaged_header_is_what_it_was() {
    for image in [luks1_image(), luks2_image()] {
        let mut lost = image.clone();
        lost[..6].fill(0);
        lost[16 << 10..][..6].fill(0);
        if image[7] == 1 {
            lost[16 << 10..][..6].copy_from_slice(&image[16 << 10..][..6]);
        }
        let device = MemoryDevice::new(lost);
        let plan = RepairPlan::new(&device).unwrap();
        assert!(plan.is_salvage());
        let volume = plan.execute(&device, false).unwrap();
        assert!(volume.warnings().is_empty());
        key_of(&volume, &device);
        if volume.version() == 1 {
            assert!(device.to_vec() == image);
        }
    }
}

/// Its areas are as long as any.
#[test]
fn luks1_header_of_the_longest_key_is_repaired() {
    const LONGEST: u32 = 512;
    let area = u64::from(LONGEST) * 4000;
    let area = area.next_multiple_of(4096);
    let mut image = luks1_image();
    image.resize((4096 + 8 * area) as usize, 0);
    image[104..108].fill(0);
    image[108..112].copy_from_slice(&LONGEST.to_be_bytes());
    let offset = |number: u64| u32::try_from((4096 + number * area) / SECTOR).unwrap().to_be_bytes();
    (0..8).for_each(|number| slot(&mut image, number as usize)[40..44].copy_from_slice(&offset(number)));
    let good = image.clone();
    slot(&mut image, 5)[44..48].fill(0);
    let device = MemoryDevice::new(image);
    RepairPlan::new(&device).unwrap().execute(&device, false).unwrap();
    assert!(device.to_vec() == good);
}

#[test]
fn keyslots_take_ciphers_that_inlock_has() {
    let device = RecordingDevice::new(luks2_image());
    let mut volume = Volume::load(&device).unwrap();
    let key = key_of(&volume, &device);
    for (cipher, len) in [("aes-xts-plain64", 33), ("cipher_null-ecb", 32)] {
        let new = with!(pbkdf2(); cipher: Some((cipher.parse().unwrap(), len)));
        assert!(volume.add_keyslot(&device, &key, &secret(b"b"), &new).is_err(), "{cipher}");
    }
    assert!(device.log.lock().unwrap().is_empty());
    for len in [0, 513] {
        let refused = volume.add_unbound_keyslot(&device, &VolumeKey::zeroed(len), &secret(b"b"), &pbkdf2());
        assert!(matches!(refused, Err(EditError::InvalidOption { option: "key-size", .. })), "{refused:?}");
    }
    // An area is encrypted like the data, though its key is shorter.
    volume.add_unbound_keyslot(&device, &VolumeKey::zeroed(32), &secret(b"b"), &pbkdf2()).unwrap();
    assert_eq!(map_of(&luks2_of(&device))["keyslots"]["1"]["area"]["key_size"], 64);
}

#[test]
fn luks1_backup_has_no_bytes_between_its_parts() {
    let device = MemoryDevice::zeroed((2 << 20) + 4096);
    luks1::format(&device, luks1_options(), &secret(PASSPHRASE)).unwrap();
    device.write_all_at(&[7; 4096 - 592], 592).unwrap();
    let end = 4096 + 7 * AREA + 32 * 4000;
    device.write_all_at(&[7; 4096], end).unwrap();
    let backup = HeaderBackup::of_device(&device).unwrap();
    let bytes = backup.bytes();
    // The rest of the second sector is the header's.
    assert!(bytes[592..1024].iter().all(|byte| *byte == 7) && bytes[1024..4096].iter().all(|byte| *byte == 0));
    assert!(bytes[end as usize..].iter().all(|byte| *byte == 0) && bytes[4096..8192].iter().any(|byte| *byte != 0));
}

#[test]
fn luks2_keyslot_takes_a_gap_of_exactly_its_length() {
    let area: u64 = 258_048;
    for (room, fits) in [(2 * area, true), (2 * area - 4096, false)] {
        let device = MemoryDevice::zeroed((1 << 20) + 8192);
        let options = with!(luks2_options(); keyslots_len: Some(room), data_offset: Some(1 << 20));
        let mut volume = Volume::from(luks2::format(&device, options, &secret(PASSPHRASE)).unwrap());
        let key = key_of(&volume, &device);
        let added = volume.add_keyslot(&device, &key, &secret(b"other"), &pbkdf2());
        assert_eq!(added.is_ok(), fits, "{added:?}");
        assert_eq!(luks2_of(&device).metadata().keyslots.len(), 1 + usize::from(fits));
    }
}
