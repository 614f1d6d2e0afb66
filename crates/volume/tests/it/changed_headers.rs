//! A loaded header that is not the one on the device: no change of it writes a byte.

use crate::support::{PASSPHRASE, cheap, luks1_image, luks2_image, secret, with};
use inlock_volume::luks2::Luks2;
use inlock_volume::{
    CommitError, Conversion, ConvertError, EditError, HeaderDevice, KdfKind, MemoryDevice, NewKeyslot, Priority,
    RepairError, RepairPlan, UnlockOptions, Volume, VolumeKey,
};

type Change = (&'static str, fn(&mut Volume, &MemoryDevice, &VolumeKey) -> Result<(), EditError>);

fn new_keyslot() -> NewKeyslot {
    with!(NewKeyslot::default(); kdf: cheap(KdfKind::Pbkdf2))
}

fn luks2_of(volume: &mut Volume) -> &mut Luks2 {
    match volume {
        Volume::Luks2(luks2) => luks2,
        _ => panic!("another version"),
    }
}

const TOKEN: &str = r#"{"type":"own","keyslots":[]}"#;

/// Every change of both versions, all of which are possible.
const CHANGES: [Change; 6] = [
    ("add", |volume, device, key| volume.add_keyslot(device, key, &secret(b"another"), &new_keyslot()).map(drop)),
    ("change", |volume, device, key| {
        volume.change_keyslot(device, 0, key, &secret(b"another"), &new_keyslot()).map(drop)
    }),
    ("change of its number", |volume, device, key| {
        let new = with!(new_keyslot(); number: Some(5));
        volume.change_keyslot(device, 0, key, &secret(b"another"), &new).map(drop)
    }),
    ("kill", |volume, device, _| volume.kill_keyslot(device, 0)),
    ("erase", |volume, device, _| volume.erase_keyslots(device)),
    ("UUID", |volume, device, _| volume.set_uuid(device, None)),
];

/// Every change of LUKS2 only. The volume has a token.
const CHANGES_2: [Change; 11] = [
    ("add unbound", |volume, device, _| {
        let key = VolumeKey::new(&[7; 32]);
        volume.add_unbound_keyslot(device, &key, &secret(b"another"), &new_keyslot()).map(drop)
    }),
    ("labels", |volume, device, _| luks2_of(volume).set_labels(device, Some("new"), None)),
    ("priority", |volume, device, _| luks2_of(volume).set_priority(device, 0, Priority::Prefer)),
    ("flags", |volume, device, _| luks2_of(volume).set_flags(device, &["allow-discards"])),
    ("requirements", |volume, device, _| luks2_of(volume).set_requirements(device, &["unknown"])),
    ("add token", |volume, device, _| luks2_of(volume).add_token(device, None, TOKEN).map(drop)),
    ("replace token", |volume, device, _| luks2_of(volume).replace_token(device, 0, TOKEN)),
    ("remove token", |volume, device, _| luks2_of(volume).remove_token(device, 0)),
    ("assign token", |volume, device, _| luks2_of(volume).assign_token(device, 0, Some(0))),
    ("unassign token", |volume, device, _| luks2_of(volume).unassign_token(device, 0, None)),
    ("commit", |volume, device, _| {
        let luks2 = luks2_of(volume);
        let text = luks2.metadata_json().to_owned();
        Ok(luks2.commit(device, &text)?)
    }),
];

/// A change by another program, by name.
type Other = (&'static str, fn(&MemoryDevice));

/// Ways in which another program leaves the header.
fn others(version: u32) -> Vec<Other> {
    let mut others: Vec<Other> = vec![
        ("another UUID", |device| Volume::load(device).unwrap().set_uuid(device, None).unwrap()),
        ("no header", |device| {
            device.write_all_at(&[0; 4096], 0).unwrap();
            device.write_all_at(&[0; 4096], 16 << 10).unwrap();
        }),
    ];
    if version == 1 {
        // One bit, in the salt of a keyslot that holds no key.
        others.push(("one bit", |device| device.write_all_at(&[1], 208 + 48 * 3 + 20).unwrap()));
    } else {
        others.push(("a sequence number", |device| {
            let mut luks2 = Luks2::load(device).unwrap();
            let text = luks2.metadata_json().to_owned();
            luks2.commit(device, &text).unwrap();
        }));
        // What is written first must not be the only whole copy.
        others.push(("a damaged first copy", |device| device.write_all_at(&[1], 5000).unwrap()));
    }
    others
}

fn image(version: u32) -> Vec<u8> {
    if version == 1 {
        return luks1_image();
    }
    let device = MemoryDevice::new(luks2_image());
    let mut luks2 = Luks2::load(&device).unwrap();
    luks2.add_token(&device, None, TOKEN).unwrap();
    device.to_vec()
}

#[test]
fn header_that_is_not_the_loaded_one_is_not_changed() {
    for version in [1, 2] {
        let before = image(version);
        let device = MemoryDevice::new(before.clone());
        let loaded = Volume::load(&device).unwrap();
        let (_, key) = loaded.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        let changes: Vec<Change> = match version {
            1 => CHANGES.to_vec(),
            _ => CHANGES.iter().chain(&CHANGES_2).copied().collect(),
        };
        for (name, change) in changes {
            for (other, leave) in others(version) {
                let device = MemoryDevice::new(before.clone());
                leave(&device);
                let left = device.to_vec();
                let error = change(&mut loaded.clone(), &device, &key).unwrap_err();
                let is_named = matches!(error, EditError::Commit(CommitError::HeaderChanged));
                assert!(is_named, "LUKS{version}, {name} on {other}: {error}");
                assert!(device.to_vec() == left, "LUKS{version}, {name} on {other}: it wrote");
            }
            let device = MemoryDevice::new(before.clone());
            change(&mut loaded.clone(), &device, &key).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn plan_for_another_header_is_not_executed() {
    for version in [1, 2] {
        let mut before = if version == 1 { luks1_image() } else { luks2_image() };
        // The header needs a repair: of an unused keyslot's stripes, or of its second copy.
        let damaged = if version == 1 { 208 + 48 * 5 + 44 } else { (16 << 10) + 5000 };
        before[damaged] ^= 1;
        for (other, leave) in others(version) {
            let device = MemoryDevice::new(before.clone());
            let plan = RepairPlan::new(&device).unwrap();
            assert_eq!(plan.repairs().len(), 1, "LUKS{version}");
            let conversion = if version == 2 { None } else { Some(luks1_image()) };
            if other != "another UUID" || version == 2 {
                leave(&device);
                let left = device.to_vec();
                let error = plan.execute(&device, true).unwrap_err();
                assert!(matches!(error, RepairError::Commit(CommitError::HeaderChanged)), "{other}: {error}");
                assert!(device.to_vec() == left, "LUKS{version}, {other}: it wrote");
            }
            let Some(image) = conversion else { continue };
            let device = MemoryDevice::new(image);
            let conversion = Conversion::new(&Volume::load(&device).unwrap(), 2).unwrap();
            leave(&device);
            let left = device.to_vec();
            let error = conversion.execute(&device).unwrap_err();
            assert!(matches!(error, ConvertError::Commit(CommitError::HeaderChanged)), "{other}: {error}");
            assert!(device.to_vec() == left, "{other}: it wrote");
        }
    }
}

#[test]
fn keyslot_is_the_same_until_its_key_or_passphrase_changes() {
    for version in [1, 2] {
        let device = MemoryDevice::new(image(version));
        let loaded = Volume::load(&device).unwrap();
        let (_, key) = loaded.unlock_key(&device, &secret(PASSPHRASE), &UnlockOptions::default()).unwrap();
        let mut volume = loaded.clone();
        let same = |volume: &Volume, number| loaded.has_same_keyslot(volume, number);
        assert!(same(&volume, 0) && !same(&volume, 1) && !same(&volume, 99) && loaded.is_same_header(&volume));
        volume.add_keyslot(&device, &key, &secret(b"another"), &new_keyslot()).unwrap();
        if let Volume::Luks2(luks2) = &mut volume {
            luks2.set_priority(&device, 0, Priority::Prefer).unwrap();
            luks2.assign_token(&device, 0, Some(0)).unwrap();
        }
        assert!(same(&volume, 0) && !same(&volume, 1) && !loaded.is_same_header(&volume));
        // The same passphrase: its derivation is another one.
        let new = with!(new_keyslot(); number: Some(0), may_overwrite: true);
        volume.change_keyslot(&device, 0, &key, &secret(PASSPHRASE), &new).unwrap();
        assert!(!same(&volume, 0));
        volume.kill_keyslot(&device, 0).unwrap();
        assert!(!same(&volume, 0));
    }
}
