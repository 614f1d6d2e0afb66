//! Keyslots that open a volume, and volume keys that are accepted.

use crate::support::with;
use crate::support::{PASSPHRASE, chain, luks1_image, luks2_image, secret, unlock};
use inlock_volume::{MemoryDevice, UnlockError, UnlockOptions, UnlockWarning, Volume, VolumeKey};

fn images() -> [(u32, MemoryDevice); 2] {
    [(1, MemoryDevice::new(luks1_image())), (2, MemoryDevice::new(luks2_image()))]
}

#[test]
fn named_keyslot_opens_and_an_inactive_one_is_refused() {
    for (version, device) in images() {
        let volume = Volume::load(&device).unwrap();
        assert_eq!(volume.version(), version);
        let with = |number| {
            let options = with!(UnlockOptions::default(); keyslot: Some(number));
            volume.unlock(&device, &secret(PASSPHRASE), &options).map(|unlocked| unlocked.keyslot)
        };
        assert_eq!(with(0).unwrap(), Some(0), "LUKS{version}");
        for inactive in [1, 7] {
            let refused = with(inactive);
            assert!(
                matches!(refused, Err(UnlockError::KeyslotInactive(number)) if number == inactive),
                "LUKS{version}: {refused:?}"
            );
        }
    }
}

#[test]
fn volume_key_that_the_digest_does_not_confirm_is_refused() {
    for (version, device) in images() {
        let volume = Volume::load(&device).unwrap();
        let unlocked = unlock(&device, PASSPHRASE).unwrap();
        let right = unlocked.key.as_bytes();
        let with = |bytes: &[u8]| volume.unlock_with_volume_key(VolumeKey::new(bytes), &UnlockOptions::default());
        let opened = with(right).unwrap();
        assert_eq!((opened.key.as_bytes(), &opened.segments), (right, &unlocked.segments), "LUKS{version}");
        let mut other = right.to_vec();
        other[0] ^= 1;
        let longer = [right, &[0]].concat();
        // PBKDF2 pads its password with zeroes, so that the digest alone would take the longer key.
        for wrong in [&other[..], &longer, &right[..right.len() - 1], &[]] {
            let refused = with(wrong).map(|unlocked| unlocked.keyslot);
            assert!(
                matches!(refused, Err(UnlockError::WrongPassphrase)),
                "LUKS{version}, {} bytes: {refused:?}",
                wrong.len()
            );
        }
    }
}

#[test]
fn warning_of_equal_halves_says_what_is_equal() {
    let said = UnlockWarning::EqualXtsKeyHalves.to_string();
    assert_eq!(said, "both halves of the XTS volume key are equal");
}

#[test]
fn luks1_key_has_at_most_512_bytes() {
    let with = |key_len: u32| {
        let mut image = luks1_image();
        image[108..112].copy_from_slice(&key_len.to_be_bytes());
        Volume::load(&MemoryDevice::new(image)).map_or_else(|error| chain(&error), |_| String::new())
    };
    assert!(with(513).contains("key bytes"), "{}", with(513));
    // With more bytes its areas overlap, which is another fault.
    assert!(!with(512).contains("key bytes"), "{}", with(512));
}

#[test]
fn luks1_device_may_end_with_the_last_keyslot_in_use() {
    // The first keyslot has sectors 8 to 257.
    let load = |len: usize| Volume::load(&MemoryDevice::new(luks1_image()[..len].to_vec())).map(|_| ());
    load(258 * 512).unwrap();
    let refused = chain(&load(258 * 512 - 1).unwrap_err());
    assert!(refused.contains("the last keyslot in use"), "{refused}");
}

#[test]
fn luks1_keyslots_may_adjoin_but_not_overlap() {
    // A key area of 32 bytes and 4000 stripes has 250 sectors.
    let load = |moved: &[(usize, u32)]| {
        let mut image = luks1_image();
        for (keyslot, sector) in moved {
            let at = 208 + 48 * keyslot + 40;
            image[at..at + 4].copy_from_slice(&sector.to_be_bytes());
        }
        Volume::load(&MemoryDevice::new(image)).map_or_else(|error| chain(&error), |_| "loads".into())
    };
    assert_eq!(load(&[]), "loads");
    for (behind, before) in [(250, 1540), (249, 1540), (250, 1541)] {
        let loaded = load(&[(1, 8 + behind), (6, 1790), (7, before)]);
        assert_eq!(loaded == "loads", (behind, before) == (250, 1540), "{loaded}");
    }
}
