//! Crash states of a re-encryption: every state that a power cut may leave on devices which reorder writes between
//! flushes and tear them at sectors. Each device has a flush of its own.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, VolumeKey, new_sector_cipher};
use inlock_engine::{BackingStore, Errno, Geometry};
use inlock_volume::luks2::reencryption::{
    Direction, NewSide, Protection, ReencryptedKeyslot, ReencryptionKeys, ReencryptionKeyslot,
    ReencryptionMode, ReencryptionStart, Resilience,
};
use inlock_volume::luks2::{self, FormatOptions, Luks2};
use inlock_volume::{Hash, HeaderDevice, KdfKind, KdfRequest, NewKeyslot, Secret};

use super::driver::{Devices, Driver};
use crate::lock::Lock;

const OLD_KEY: [u8; 32] = *b"the key of the old data, in full";
const NEW_KEY: [u8; 32] = *b"and that of the new data, in all";

/// Bytes before the data of an attached header, and the shift.
const HEADER: u64 = 88 * 4096;

/// Bytes of data, without those of a shift.
const DATA: usize = 6 * 4096;

/// Longest zone.
const ZONE: u64 = 2 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Write { device: usize, offset: usize, data: Vec<u8> },
    Sync(usize),
}

/// Devices in memory, which record what is written to them.
#[derive(Clone, Default)]
struct Disks {
    bytes: Vec<Arc<Mutex<Vec<u8>>>>,
    log: Arc<Mutex<Vec<Step>>>,
}

/// One of them.
struct Disk<'a>(&'a Disks, usize);

impl Disks {
    fn new(images: &[Vec<u8>]) -> Self {
        Self { bytes: images.iter().map(|bytes| Arc::new(Mutex::new(bytes.clone()))).collect(), log: Arc::default() }
    }

    fn images(&self) -> Vec<Vec<u8>> {
        self.bytes.iter().map(|bytes| bytes.lock().unwrap().clone()).collect()
    }

    fn header(&self) -> Disk<'_> {
        Disk(self, 0)
    }

    /// The data are on the device of the header if there is no other.
    fn data(&self) -> Disk<'_> {
        Disk(self, self.bytes.len() - 1)
    }
}

impl Disk<'_> {
    fn read(&self, into: &mut [u8], offset: u64) -> bool {
        let bytes = self.0.bytes[self.1].lock().unwrap();
        let found = bytes.get(offset as usize..offset as usize + into.len());
        found.is_some_and(|found| {
            into.copy_from_slice(found);
            true
        })
    }

    fn write(&self, data: &[u8], offset: u64) {
        let offset = offset as usize;
        self.0.bytes[self.1].lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
        self.0.log.lock().unwrap().push(Step::Write { device: self.1, offset, data: data.to_vec() });
    }

    fn flush(&self) {
        self.0.log.lock().unwrap().push(Step::Sync(self.1));
    }
}

impl HeaderDevice for Disk<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes[self.1].lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read(buf, offset) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write(data, offset);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.flush();
        Ok(())
    }
}

impl BackingStore for Disk<'_> {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.0.bytes[self.1].lock().unwrap().len() as u64)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if self.read(data, offset) { Ok(data.len()) } else { Err(Errno::IO) }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.write(data, offset);
        Ok(data.len())
    }

    fn sync(&self) -> Result<(), Errno> {
        self.flush();
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Whether a sector is one of those that a disk has written before others.
fn is_early(seed: usize, sector: usize) -> bool {
    (sector + 1).wrapping_mul(0x9e37_79b9 * (2 * seed + 1)) >> 16 & 1 == 1
}

/// Calls `check` with every state of the devices between `before` and the end of `log`: any of the writes that no flush
/// of their device has made durable, and of one more of them only some sectors. Returns the number of states.
fn each_state(before: &[Vec<u8>], log: &[Step], check: &mut dyn FnMut(Vec<Vec<u8>>)) -> usize {
    let (mut durable, mut pending, mut count) = (before.to_vec(), Vec::new(), 0);
    let put = |images: &mut Vec<Vec<u8>>, (device, offset, data): &(usize, usize, Vec<u8>), is: &dyn Fn(usize) -> bool| {
        for (sector, bytes) in data.chunks(512).enumerate().filter(|(sector, _)| is(*sector)) {
            images[*device][offset + sector * 512..][..bytes.len()].copy_from_slice(bytes);
        }
    };
    let all = |_: usize| true;
    for step in log.iter().chain([&Step::Sync(0), &Step::Sync(1)]) {
        let device = match step {
            Step::Write { device, offset, data } => {
                pending.push((*device, *offset, data.clone()));
                continue;
            }
            Step::Sync(device) => *device,
        };
        // Many writes between two flushes are those of an area that is overwritten at the end.
        let subsets: Vec<u64> = match pending.len() {
            few @ 0..=4 => (0..1 << few).collect(),
            many => (0..=many).map(|count| (1 << count) - 1).chain((0..many).map(|one| 1 << one)).collect(),
        };
        for subset in &subsets {
            let mut images = durable.clone();
            pending.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1).for_each(|(_, w)| put(&mut images, w, &all));
            check(images);
        }
        count += subsets.len();
        for (at, write) in pending.iter().enumerate() {
            let sectors = write.2.len().div_ceil(512);
            let cuts = (1..sectors).step_by((sectors / 8).max(1));
            for cut in cuts.clone() {
                for is_start in [true, false] {
                    let mut images = durable.clone();
                    pending[..at].iter().for_each(|write| put(&mut images, write, &all));
                    put(&mut images, write, &|sector| (sector < cut) == is_start);
                    check(images);
                }
            }
            for seed in 0..4 {
                let mut images = durable.clone();
                pending[..at].iter().filter(|_| seed % 2 == 0).for_each(|write| put(&mut images, write, &all));
                put(&mut images, write, &|sector| is_early(seed, sector));
                check(images);
            }
            count += 2 * cuts.count() + 4;
        }
        pending.iter().filter(|write| write.0 == device).for_each(|write| put(&mut durable, write, &all));
        pending.retain(|write| write.0 != device);
    }
    count
}

/// A volume that is re-encrypted.
#[derive(Clone, Debug)]
struct Case {
    mode: ReencryptionMode,
    direction: Direction,
    resilience: Resilience,
    units: [u32; 2],
    is_detached: bool,
}

fn unit(bytes: u32) -> DataUnitSize {
    DataUnitSize::new(bytes).unwrap()
}

fn kdf() -> KdfRequest {
    let mut kdf = KdfRequest::new(KdfKind::Pbkdf2);
    kdf.forced_iterations = Some(1000);
    kdf
}

fn plaintext(len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at << 40);
    words.flat_map(u64::to_le_bytes).collect()
}

fn encrypted(data: &[u8], key: &[u8], bytes: u32) -> Vec<u8> {
    let mut data = data.to_vec();
    let cipher = new_sector_cipher(&CipherSpec::AES_XTS_PLAIN64, key, unit(bytes), IvNumbering::Sectors).unwrap();
    cipher.encrypt(IvNumber(0), InOut::InPlace(&mut data));
    data
}

impl Case {
    /// Returns the content of the data area before and after.
    fn contents(&self) -> [Vec<u8>; 2] {
        let plain = plaintext(self.len());
        let [old, new] = self.units;
        match self.mode {
            ReencryptionMode::Reencrypt => [encrypted(&plain, &OLD_KEY, old), encrypted(&plain, &NEW_KEY, new)],
            ReencryptionMode::Encrypt => [plain.clone(), encrypted(&plain, &OLD_KEY, new)],
            ReencryptionMode::Decrypt => [encrypted(&plain, &OLD_KEY, old), plain],
        }
    }

    fn keys(&self) -> ReencryptionKeys {
        let key = |bytes: &[u8]| Some(VolumeKey::new(bytes));
        match self.mode {
            ReencryptionMode::Reencrypt => ReencryptionKeys::new(key(&OLD_KEY), key(&NEW_KEY)),
            ReencryptionMode::Encrypt => ReencryptionKeys::new(None, key(&OLD_KEY)),
            ReencryptionMode::Decrypt => ReencryptionKeys::new(key(&OLD_KEY), None),
        }
    }

    /// Returns the number of bytes of data: with a shift, of that and a part.
    fn len(&self) -> usize {
        DATA + self.shift() as usize
    }

    fn shift(&self) -> u64 {
        self.resilience.shift.unwrap_or(0)
    }

    /// Returns the start of the data before and after.
    fn places(&self) -> [u64; 2] {
        let attached = if self.is_detached { 0 } else { HEADER };
        match self.mode {
            ReencryptionMode::Reencrypt => [attached; 2],
            ReencryptionMode::Encrypt => [attached - self.shift().min(attached), attached],
            ReencryptionMode::Decrypt => [self.shift(), 0],
        }
    }

    /// Returns devices on which it has begun.
    fn begun(&self) -> Disks {
        let [old_content, _] = self.contents();
        let [old, new] = self.places();
        let shift = self.shift();
        // What an encryption moves out of the way is at the end.
        let tail = if self.mode == ReencryptionMode::Encrypt { shift } else { 0 };
        let data_len = old.max(new) + self.len() as u64 + tail;
        let images = if self.is_detached {
            vec![vec![0; HEADER as usize], vec![0; data_len as usize]]
        } else {
            vec![vec![0; data_len as usize]]
        };
        let disks = Disks::new(&images);
        let mut options = FormatOptions::default();
        let is_encryption = self.mode == ReencryptionMode::Encrypt;
        (options.key_len, options.volume_key, options.kdf) = (32, Some(VolumeKey::new(&OLD_KEY)), kdf());
        options.sector_size = Some(unit(self.units[usize::from(is_encryption)]));
        options.keyslots_len = Some(HEADER - 2 * options.metadata_len);
        (options.detached, options.data_len) = (self.is_detached, Some(data_len));
        options.data_offset = Some(if is_encryption { new } else { old });
        let passphrase = Secret::new(b"a".to_vec());
        luks2::format(&disks.header(), options, &passphrase).unwrap();
        let first = (shift as usize).min(self.len());
        let moved = if is_encryption { data_len - shift } else { 0 };
        let offset = old + first as u64;
        disks.data().write(&old_content[first..], offset);
        disks.data().write(&old_content[..first], if shift > 0 { moved } else { old });
        let mut luks2 = Luks2::load(&disks.header()).unwrap();
        let mut slot = NewKeyslot::default();
        slot.kdf = kdf();
        let keyslots = vec![ReencryptedKeyslot { old: 0, passphrase: &passphrase, new: &slot }];
        let has_new_key = self.mode == ReencryptionMode::Reencrypt;
        let start = ReencryptionStart {
            keyslot: ReencryptionKeyslot::new(self.mode, self.direction, self.resilience.clone()),
            new: has_new_key.then(|| NewSide { cipher: CipherSpec::AES_XTS_PLAIN64, unit: unit(self.units[1]) }),
            keys: &self.keys(),
            keyslots: if has_new_key { keyslots } else { Vec::new() },
            kdf: kdf(),
            hash: Hash::Sha256,
            device_len: data_len,
            data_len: None,
        };
        luks2.start_reencryption(&disks.header(), &start).unwrap();
        disks.log.lock().unwrap().clear();
        disks
    }

    /// Goes on to the end, or until a number of zones are written. Returns whether it was the end.
    fn go_on(&self, disks: &Disks, zones: usize) -> crate::Result<bool> {
        let luks2 = Luks2::load(&disks.header()).unwrap();
        let Some(state) = luks2.reencryption().unwrap() else { return Ok(true) };
        let (header, data) = (disks.header(), disks.data());
        let devices = Devices { header: &header, data: &data, lock: &|| Ok(Lock::none()) };
        let mut left = zones;
        Driver::new(devices, luks2, state, &self.keys(), Some(ZONE))?.run(&mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    fn check_new(&self, disks: &Disks) {
        let [_, content] = self.contents();
        let luks2 = Luks2::load(&disks.header()).unwrap();
        assert!(luks2.reencryption().unwrap().is_none(), "{self:?}: it has ended");
        let place = self.places()[1] as usize;
        let found = &disks.images()[disks.bytes.len() - 1][place..][..self.len()];
        let wrong = found.chunks(512).zip(content.chunks(512)).position(|(found, right)| found != right);
        assert_eq!(wrong, None, "{self:?}: sector");
    }
}

fn protections() -> [Protection; 3] {
    [512, 4096].map(|block| Protection::Checksum { hash: "sha256".into(), block }).into_iter().chain([Protection::Journal])
        .collect::<Vec<_>>().try_into().unwrap()
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for is_detached in [false, true] {
        for units in [[512, 512], [512, 4096], [4096, 4096]] {
            for protection in protections() {
                if matches!(protection, Protection::Checksum { block, .. } if block < units[1]) {
                    continue;
                }
                for direction in [Direction::Forward, Direction::Backward] {
                    let resilience = Resilience { protection: protection.clone(), shift: None };
                    let mode = ReencryptionMode::Reencrypt;
                    cases.push(Case { mode, direction, resilience: resilience.clone(), units, is_detached });
                    if is_detached && units[0] == units[1] {
                        for mode in [ReencryptionMode::Encrypt, ReencryptionMode::Decrypt] {
                            cases.push(Case { mode, direction, resilience: resilience.clone(), units, is_detached });
                        }
                    }
                }
            }
        }
    }
    for units in [[512, 512], [4096, 4096]] {
        let resilience = Resilience { protection: Protection::None, shift: Some(HEADER) };
        let (mode, direction) = (ReencryptionMode::Encrypt, Direction::Backward);
        cases.push(Case { mode, direction, resilience, units, is_detached: false });
    }
    cases
}

/// Runs to the end, cuts the power at each point, and goes on.
#[test]
fn every_byte_is_right_after_a_power_cut_at_any_point() {
    let (mut states, mut of_recoveries) = (0, 0);
    for case in cases() {
        let disks = case.begun();
        let before = disks.images();
        assert!(case.go_on(&disks, usize::MAX).unwrap());
        case.check_new(&disks);
        let log = disks.log.lock().unwrap().clone();
        let mut number = 0;
        states += each_state(&before, &log, &mut |images| {
            let again = Disks::new(&images);
            case.go_on(&again, usize::MAX).unwrap_or_else(|error| panic!("{case:?}: {error:?}"));
            case.check_new(&again);
            number += 1;
            // The recovery is cut, too.
            if number % 101 == 7 {
                let log = again.log.lock().unwrap().clone();
                of_recoveries += each_state(&images, &log, &mut |images| {
                    let last = Disks::new(&images);
                    case.go_on(&last, usize::MAX).unwrap();
                    case.check_new(&last);
                });
            }
        });
    }
    println!("{states} states, {of_recoveries} of recoveries");
    assert!(states > 1_000 && of_recoveries > 1_000, "{states} {of_recoveries}");
}
