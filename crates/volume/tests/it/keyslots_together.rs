//! Keyslots that are tried at the same time: the result is that of trying one after the other.

use crate::support::with;
use crate::support::{self, cheap, luks1_options, luks2_options, map_of, secret, text_of};
use inlock_volume::luks2::{self, Luks2};
use inlock_volume::{
    Hash, HeaderDevice, KdfKind, KdfRequest, MemoryDevice, NewKeyslot, Priority, UnlockError, UnlockOptions, Volume,
    luks1,
};
use serde_json::json;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A new keyslot: its passphrase, and the hash and the iterations of PBKDF2. `None`: Argon2.
type Slot = (&'static str, Option<(Hash, u32)>);

/// Returns a volume whose keyslots have these parameters, in this order.
fn volume(version: u32, slots: &[Slot]) -> MemoryDevice {
    let device = MemoryDevice::zeroed((5 << 20) + 8192);
    let request = |kdf: Option<(Hash, u32)>| match kdf {
        Some((hash, iterations)) => {
            with!(KdfRequest::new(KdfKind::Pbkdf2); hash: hash, forced_iterations: Some(iterations))
        }
        None => cheap(KdfKind::Argon2id),
    };
    let (first, kdf) = slots[0];
    match version {
        1 => luks1::format(
            &device,
            with!(luks1_options(); kdf: request(kdf), hash: kdf.unwrap().0),
            &secret(first.as_bytes()),
        )
        .map(drop),
        _ => {
            let options = with!(luks2_options(); kdf: request(kdf), keyslots_len: Some(4 << 20));
            luks2::format(&device, options, &secret(first.as_bytes())).map(drop)
        }
    }
    .unwrap();
    let mut volume = Volume::load(&device).unwrap();
    let key = volume.unlock_key(&device, &secret(first.as_bytes()), &UnlockOptions::default()).unwrap().1;
    for (number, &(passphrase, kdf)) in (0..).zip(slots).skip(1) {
        let hash = kdf.map(|(hash, _)| hash).filter(|_| version == 2);
        let new = with!(NewKeyslot::default(); number: Some(number), kdf: request(kdf), hash: hash);
        volume.add_keyslot(&device, &key, &secret(passphrase.as_bytes()), &new).unwrap();
    }
    device
}

/// Returns the keyslot that opens.
fn opened(device: &dyn HeaderDevice, passphrase: &str) -> Result<u32, UnlockError> {
    let volume = Volume::load(device).unwrap();
    let (passphrase, options) = (secret(passphrase.as_bytes()), UnlockOptions::default());
    let unlocked = volume.unlock(device, &passphrase, &options).map(|unlocked| unlocked.keyslot.unwrap());
    let key = volume.unlock_key(device, &passphrase, &options).map(|(number, _)| number);
    match (&unlocked, &key) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        other => panic!("{other:?}"),
    }
    unlocked
}

fn luks2_of(device: &dyn HeaderDevice) -> Luks2 {
    let Ok(Volume::Luks2(luks2)) = Volume::load(device) else { panic!("not LUKS2") };
    *luks2
}

const NAMES: [&str; 8] = ["zero", "one", "two", "three", "four", "five", "six", "seven"];

#[test]
fn each_passphrase_opens_its_own_keyslot() {
    let iterations = [1000, 9000, 1001, 40_000, 1000, 2000, 25_000, 1024];
    let luks1 = |hash| -> Vec<Slot> { NAMES.into_iter().zip(iterations.map(|count| Some((hash, count)))).collect() };
    let hashes = [Hash::Sha256, Hash::Sha512, Hash::Sha1, Hash::Sha256, Hash::Blake2b512, Hash::Sha256];
    let mixed: Vec<Slot> = (NAMES.into_iter().zip(hashes.into_iter().cycle()).zip(iterations))
        .map(|((name, hash), count)| (name, (name != "three").then_some((hash, count))))
        .collect();
    let volumes = [(1, luks1(Hash::Sha256)), (1, luks1(Hash::Sha512)), (1, luks1(Hash::Sha1)), (2, mixed)];
    for (version, slots) in volumes {
        let device = volume(version, &slots);
        let keys = (0..).zip(NAMES).map(|(number, name)| {
            assert_eq!(opened(&device, name).unwrap(), number, "LUKS{version}");
            support::unlock(&device, name.as_bytes()).unwrap().key.as_bytes().to_vec()
        });
        let keys: Vec<_> = keys.collect();
        assert!(keys.iter().all(|key| *key == keys[0]), "LUKS{version}");
        assert!(matches!(opened(&device, "none"), Err(UnlockError::WrongPassphrase)), "LUKS{version}");
    }
}

#[test]
fn first_of_the_keyslots_that_open_is_reported_though_it_takes_longest() {
    let slots: Vec<Slot> = (0..8)
        .map(|number| match number {
            0 => ("other", Some((Hash::Sha256, 1000))),
            1 => ("same", Some((Hash::Sha256, 500_000))),
            _ => ("same", Some((Hash::Sha256, 1000))),
        })
        .collect();
    for version in [1, 2] {
        let device = volume(version, &slots);
        assert_eq!(opened(&device, "same").unwrap(), 1, "LUKS{version}");
        if version == 1 {
            continue;
        }
        let mut luks2 = luks2_of(&device);
        luks2.set_priority(&device, 1, Priority::Ignore).unwrap();
        assert_eq!(opened(&device, "same").unwrap(), 2);
        luks2.set_priority(&device, 5, Priority::Prefer).unwrap();
        luks2.set_priority(&device, 6, Priority::Prefer).unwrap();
        assert_eq!(opened(&device, "same").unwrap(), 5);
        luks2.set_priority(&device, 5, Priority::Ignore).unwrap();
        assert_eq!(opened(&device, "same").unwrap(), 6);
        let only = with!(UnlockOptions::default(); keyslot: Some(1));
        let named = Volume::load(&device).unwrap().unlock(&device, &secret(b"same"), &only).unwrap();
        assert_eq!(named.keyslot, Some(1), "by its number");
    }
}

#[test]
fn broken_keyslots_hide_no_other_and_the_first_error_is_reported() {
    let slots: Vec<Slot> = NAMES.map(|name| (name, Some((Hash::Sha256, 2000)))).to_vec();
    // Key material of LUKS1's keyslot 2 that is overwritten is that of no passphrase.
    let device = volume(1, &slots);
    let sector = {
        let mut bytes = [0; 4];
        device.read_exact_at(&mut bytes, 208 + 48 * 2 + 40).unwrap();
        u64::from(u32::from_be_bytes(bytes))
    };
    device.write_all_at(&[0x5a; 512], sector * 512).unwrap();
    for (number, name) in (0..).zip(NAMES) {
        match opened(&device, name) {
            Ok(opened) => assert_eq!(opened, number),
            Err(error) => assert!(number == 2 && matches!(error, UnlockError::WrongPassphrase), "{error:?}"),
        }
    }
    let device = volume(2, &slots);
    let mut luks2 = luks2_of(&device);
    let mut map = map_of(&luks2);
    map["keyslots"]["6"]["kdf"]["hash"] = json!("no-hash");
    map["keyslots"]["3"]["area"]["encryption"] = json!("no-cipher");
    luks2.commit(&device, &text_of(map)).unwrap();
    for (number, name) in (0..).zip(NAMES) {
        match opened(&device, name) {
            Ok(opened) => assert_eq!(opened, number),
            Err(UnlockError::UnsupportedCipher { .. }) => assert!(number == 3 || number == 6),
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(matches!(opened(&device, "none"), Err(UnlockError::UnsupportedCipher { .. })));
    luks2.set_priority(&device, 6, Priority::Prefer).unwrap();
    assert!(matches!(opened(&device, "none"), Err(UnlockError::UnsupportedHash { .. })), "it is tried first");
}

/// The derivations of the last keyslots take minutes.
#[test]
fn keyslot_that_opens_stops_the_derivations_behind_it() {
    let slots: Vec<Slot> = ["zero", "one", "two", "three"].map(|name| (name, Some((Hash::Sha256, 1000)))).to_vec();
    let device = volume(1, &slots);
    for number in 2..4 {
        device.write_all_at(&900_000_000_u32.to_be_bytes(), 208 + 48 * number + 4).unwrap();
    }
    assert_eq!(opened(&device, "one").unwrap(), 1);
}

/// A device that counts how many threads read key material from it.
struct CountingDevice {
    inner: MemoryDevice,
    reading: AtomicUsize,
    most: AtomicUsize,
    reads: AtomicUsize,
}

impl HeaderDevice for CountingDevice {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.len() >= 32 * 4000 {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.most.fetch_max(self.reading.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.reading.fetch_sub(1, Ordering::SeqCst);
        }
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// The bound of the memory of unlocking is that of one keyslot.
#[test]
fn key_material_of_one_keyslot_is_in_memory_at_a_time() {
    let slots: Vec<Slot> = NAMES.map(|name| (name, Some((Hash::Sha256, 1000)))).to_vec();
    for version in [1, 2] {
        let inner = volume(version, &slots);
        let [reading, most, reads] = [const { AtomicUsize::new(0) }; 3];
        let device = CountingDevice { inner, reading, most, reads };
        let volume = Volume::load(&device).unwrap();
        let refused = volume.unlock(&device, &secret(b"none"), &UnlockOptions::default()).map(drop);
        assert!(matches!(refused, Err(UnlockError::WrongPassphrase)), "{refused:?}");
        assert_eq!((device.reads.into_inner(), device.most.into_inner()), (8, 1), "LUKS{version}");
    }
}
