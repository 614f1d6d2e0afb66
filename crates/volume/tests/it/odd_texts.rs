//! Labels and tokens that are not UTF-8: the volume opens, and edits keep the bytes.

use crate::support::{PASSPHRASE, luks2_image, map_of, secret, text_of, unlock};
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::binary_header::{BLOCK_LEN, write_checksum};
use inlock_volume::{Hash, HeaderBackup, LoadWarning, MemoryDevice, RepairPlan, Volume};

const HDR: usize = 16 << 10;

/// Changes both copies, and corrects their checksums.
fn changed(mut image: Vec<u8>, change: impl Fn(&mut [u8])) -> Vec<u8> {
    for copy in image[..2 * HDR].chunks_mut(HDR) {
        change(copy);
        let (block, area) = copy.split_at_mut(BLOCK_LEN);
        write_checksum(block.try_into().unwrap(), area, Hash::Sha256);
    }
    image
}

fn count(image: &[u8], bytes: &[u8]) -> usize {
    image[..2 * HDR].windows(bytes.len()).filter(|window| *window == bytes).count()
}

#[test]
fn bytes_of_odd_texts_are_warned_of_kept_by_edits_and_mended_by_a_new_label() {
    let rows: [(&str, usize, &[u8]); 4] = [
        ("label", 24, b"caf\xe9\0"),
        ("label", 24, b"a\x1b[2J\0"),
        // Without a zero byte.
        ("label", 24, &[b'x'; 48]),
        ("subsystem label", 208, b"\xfc\xff\0"),
    ];
    for (name, at, bytes) in rows {
        let device =
            MemoryDevice::new(changed(luks2_image(), |copy| copy[at..at + bytes.len()].copy_from_slice(bytes)));
        let volume = Volume::load(&device).unwrap();
        let is_odd = bytes.last() == Some(&0);
        let wanted = if is_odd { vec![LoadWarning::OddText(name)] } else { vec![] };
        assert_eq!(volume.warnings(), wanted, "{bytes:?}");
        unlock(&device, PASSPHRASE).unwrap();
        assert!(RepairPlan::new(&device).unwrap().repairs().is_empty());
        HeaderBackup::of_device(&device).unwrap();
        let mut luks2 = Luks2::load(&device).unwrap();
        luks2.set_flags(&device, &["allow-discards"]).unwrap();
        let kept = bytes[..bytes.len() - 1].to_vec();
        assert_eq!(count(&device.to_vec(), &kept), 2, "{bytes:?} are kept");
        luks2.set_labels(&device, Some("new"), Some("sub")).unwrap();
        assert_eq!((luks2.label(), luks2.warnings()), (Some("new"), &[][..]));
        assert_eq!((count(&device.to_vec(), &kept), Luks2::load(&device).unwrap().warnings().len()), (0, 0));
    }
}

#[test]
fn token_that_is_not_utf_8_does_not_lock_the_volume_out() {
    let description = b"caf\xe9 \x80\xff";
    let image = luks2_image();
    let luks2 = Luks2::load(&MemoryDevice::new(image.clone())).unwrap();
    let mut map = map_of(&luks2);
    let token = serde_json::json!({"type": "luks2-keyring", "keyslots": ["0"], "key_description": "MARK"});
    map["tokens"]["0"] = token;
    let text = text_of(map);
    let at = text.find("MARK").unwrap();
    let text = [&text.as_bytes()[..at], description, &text.as_bytes()[at + 4..]].concat();
    let device = MemoryDevice::new(changed(image, |copy| {
        copy[BLOCK_LEN..].fill(0);
        copy[BLOCK_LEN..BLOCK_LEN + text.len()].copy_from_slice(&text);
    }));
    assert_eq!(Volume::load(&device).unwrap().warnings(), [LoadWarning::OddText("metadata")]);
    unlock(&device, PASSPHRASE).unwrap();
    let mut luks2 = Luks2::load(&device).unwrap();
    luks2.set_labels(&device, Some("new"), None).unwrap();
    assert_eq!(count(&device.to_vec(), description), 2, "an edit changed the token");
    // A damaged copy is made whole with the same bytes.
    let mut image = device.to_vec();
    image[HDR + 5000] ^= 1;
    let device = MemoryDevice::new(image);
    RepairPlan::new(&device).unwrap().execute(&device, false).unwrap();
    assert_eq!(count(&device.to_vec(), description), 2, "a repair changed the token");
    assert!(Luks2::load(&device).unwrap().unlock(&device, &secret(PASSPHRASE), &Default::default()).is_ok());
}
