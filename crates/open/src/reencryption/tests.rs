//! Crash states of a re-encryption: every state that a power cut may leave on devices which reorder writes between
//! flushes and tear them at sectors. Each device has a flush of its own.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, VolumeKey, new_sector_cipher};
use inlock_engine::{BackingStore, Errno, Geometry};
use inlock_volume::luks2::reencryption::{
    Direction, NewSide, Protection, ReencryptedKeyslot, ReencryptionKeys, ReencryptionKeyslot, ReencryptionMode,
    ReencryptionStart, Resilience,
};
use inlock_volume::luks2::{self, FormatOptions, Luks2};
use inlock_volume::{Hash, HeaderDevice, KdfKind, KdfRequest, NewKeyslot, Secret};

use super::driver::{Devices, Driver};
use crate::error::ResultExt as _;
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

/// A write to a device: its index, the offset, the data.
type Write = (usize, usize, Vec<u8>);

/// Returns the sets of writes, as bits, that a power cut may have made durable.
fn subsets(pending: usize) -> Vec<u64> {
    match pending {
        0..=4 => (0..1 << pending).collect(),
        // Many writes between two flushes are those of an area that is overwritten at the end.
        _ => (0..=pending).map(|count| (1 << count) - 1).chain((0..pending).map(|one| 1 << one)).collect(),
    }
}

fn put(images: &mut [Vec<u8>], (device, offset, data): &Write, is_written: &dyn Fn(usize) -> bool) {
    for (sector, bytes) in data.chunks(512).enumerate().filter(|(sector, _)| is_written(*sector)) {
        images[*device][offset + sector * 512..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// States of devices after a power cut, of which some are tried.
struct States<'a> {
    check: &'a mut dyn FnMut(Vec<Vec<u8>>),
    /// One of so many is tried.
    stride: usize,
    seen: usize,
    tried: usize,
}

impl<'a> States<'a> {
    /// `phase`: another one for each case, so that together they try states at every point of a zone.
    fn new(stride: usize, phase: usize, check: &'a mut dyn FnMut(Vec<Vec<u8>>)) -> Self {
        Self { check, stride, seen: phase, tried: 0 }
    }

    fn visit(&mut self, durable: &[Vec<u8>], change: &dyn Fn(&mut [Vec<u8>])) {
        self.seen += 1;
        if self.seen.is_multiple_of(self.stride) {
            self.tried += 1;
            let mut images = durable.to_vec();
            change(&mut images);
            (self.check)(images);
        }
    }

    /// Goes through every state between `before` and the end of `log`: any of the writes that no flush of their device
    /// has made durable, and of one more of them only some sectors.
    fn of(&mut self, before: &[Vec<u8>], log: &[Step]) {
        let (mut durable, mut pending) = (before.to_vec(), Vec::<Write>::new());
        let all = |_: usize| true;
        for step in log.iter().chain([&Step::Sync(0), &Step::Sync(1)]) {
            let device = match step {
                Step::Write { device, offset, data } => {
                    pending.push((*device, *offset, data.clone()));
                    continue;
                }
                Step::Sync(device) => *device,
            };
            for subset in subsets(pending.len()) {
                let chosen = || pending.iter().enumerate().filter(move |(at, _)| subset >> at & 1 == 1);
                self.visit(&durable, &|images| chosen().for_each(|(_, write)| put(images, write, &all)));
            }
            for at in 0..pending.len() {
                self.of_torn(&durable, &pending[..=at]);
            }
            pending.iter().filter(|write| write.0 == device).for_each(|write| put(&mut durable, write, &all));
            pending.retain(|write| write.0 != device);
        }
    }

    /// Goes through states in which the last of these writes is torn.
    fn of_torn(&mut self, durable: &[Vec<u8>], writes: &[Write]) {
        let [others @ .., torn] = writes else { return };
        let sectors = torn.2.len().div_ceil(512);
        for cut in (1..sectors).step_by((sectors / 8).max(1)) {
            for is_start in [true, false] {
                self.visit(durable, &|images| {
                    others.iter().for_each(|write| put(images, write, &|_| true));
                    put(images, torn, &|sector| (sector < cut) == is_start);
                });
            }
        }
        for seed in 0..4 {
            self.visit(durable, &|images| {
                others.iter().filter(|_| seed % 2 == 0).for_each(|write| put(images, write, &|_| true));
                put(images, torn, &|sector| is_early(seed, sector));
            });
        }
    }
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

/// Returns the devices of a driver.
fn devices<'a>(
    header: &'a Disk<'_>,
    data: &'a Disk<'_>,
    sync: &'a (dyn Fn() -> crate::Result<()> + Sync),
) -> Devices<'a> {
    Devices { header, data, sync, syncs_header: false, lock: &|| Ok(Lock::none()) }
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
            moved_len: None,
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
        let sync = || BackingStore::sync(&data).context("cannot flush");
        let devices = Devices { syncs_header: !self.is_detached, ..devices(&header, &data, &sync) };
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

/// Whether all states are tried: `cargo xtask header-proof` sets this. Otherwise some of each case are.
fn is_whole() -> bool {
    std::env::var_os("INLOCK_HEADER_PROOF").is_some()
}

fn protections() -> [Protection; 3] {
    [512, 4096]
        .map(|block| Protection::Checksum { hash: "sha256".into(), block })
        .into_iter()
        .chain([Protection::Journal])
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
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
        // No area has room for a journal of the moved first segment, which is as long as the header.
        let protection = Protection::Checksum { hash: "sha256".into(), block: 4096 };
        let resilience = Resilience { protection, shift: Some(HEADER) };
        let (mode, direction) = (ReencryptionMode::Decrypt, Direction::Forward);
        cases.push(Case { mode, direction, resilience, units, is_detached: true });
    }
    cases
}

/// Runs to the end, cuts the power at each point, and goes on.
#[test]
fn every_byte_is_right_after_a_power_cut_at_any_point() {
    // Of the number of states, so that it has no divisor in common with the steps of a zone.
    let stride = if is_whole() { 1 } else { 23 };
    let (mut states, mut of_recoveries) = (0, 0);
    for (phase, case) in cases().into_iter().enumerate() {
        let disks = case.begun();
        let before = disks.images();
        assert!(case.go_on(&disks, usize::MAX).unwrap());
        case.check_new(&disks);
        let log = disks.log.lock().unwrap().clone();
        let mut number = 0;
        let mut check = |images: Vec<Vec<u8>>| {
            let again = Disks::new(&images);
            case.go_on(&again, usize::MAX).unwrap_or_else(|error| panic!("{case:?}: {error:?}"));
            case.check_new(&again);
            number += 1;
            // The recovery is cut, too.
            if number % 101 == 7 {
                let log = again.log.lock().unwrap().clone();
                let mut check = |images: Vec<Vec<u8>>| {
                    let last = Disks::new(&images);
                    case.go_on(&last, usize::MAX).unwrap();
                    case.check_new(&last);
                };
                let mut of_recovery = States::new(stride, number, &mut check);
                of_recovery.of(&images, &log);
                of_recoveries += of_recovery.tried;
            }
        };
        let mut tried = States::new(stride, phase, &mut check);
        tried.of(&before, &log);
        states += tried.tried;
    }
    println!("{states} states, {of_recoveries} of recoveries");
    let least = if is_whole() { 10_000 } else { 300 };
    assert!(states > least && of_recoveries > least / 10, "{states} {of_recoveries}");
}

/// Stops after each zone, and goes on: as one run.
#[test]
fn re_encryption_that_stops_after_each_zone_goes_on() {
    for case in cases() {
        let disks = case.begun();
        let mut stops = 0;
        while !case.go_on(&disks, 1).unwrap() {
            stops += 1;
            let luks2 = Luks2::load(&disks.header()).unwrap();
            let state = luks2.reencryption().unwrap().unwrap();
            assert!(state.pieces.hot().is_none(), "{case:?}: a legal state");
        }
        assert!(stops > 0, "{case:?}");
        case.check_new(&disks);
    }
}

/// Interrupts the writing of a zone, and changes what protects it.
fn hot(case: &Case) -> Disks {
    let disks = case.begun();
    let before = disks.images();
    case.go_on(&disks, 1).unwrap();
    let log = disks.log.lock().unwrap().clone();
    // The zone is written last but for the header that says so.
    let data = disks.bytes.len() - 1;
    let place = case.places()[1] as usize;
    let is_zone =
        |step: &Step| matches!(step, Step::Write { device, offset, .. } if *device == data && *offset >= place);
    let first = log.iter().position(is_zone).unwrap();
    let mut images = before;
    for step in &log[..first] {
        if let Step::Write { device, offset, data } = step {
            images[*device][*offset..*offset + data.len()].copy_from_slice(data);
        }
    }
    Disks::new(&images)
}

fn case(protection: Protection) -> Case {
    let resilience = Resilience { protection, shift: None };
    let (mode, direction) = (ReencryptionMode::Reencrypt, Direction::Forward);
    Case { mode, direction, resilience, units: [512, 512], is_detached: true }
}

#[test]
fn zone_that_nothing_protects_is_lost_and_nothing_is_written() {
    let none = case(Protection::None);
    let disks = hot(&none);
    let before = disks.images();
    let error = none.go_on(&disks, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::ZoneLost);
    assert!(disks.images() == before);
}

#[test]
fn checksums_of_other_data_are_refused_and_nothing_is_written() {
    let checksum = case(Protection::Checksum { hash: "sha256".into(), block: 512 });
    let disks = hot(&checksum);
    let area = Luks2::load(&disks.header()).unwrap().reencryption().unwrap().unwrap().area;
    disks.header().write(&[0xa5; 4096], area.start);
    let before = disks.images();
    let error = checksum.go_on(&disks, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::ZoneLost);
    assert!(disks.images() == before);
}

#[test]
fn block_that_is_neither_old_nor_new_is_named_and_stays() {
    let checksum = case(Protection::Checksum { hash: "sha256".into(), block: 4096 });
    let disks = hot(&checksum);
    let zone = ZONE as usize;
    let foreign = vec![0x77; 4096];
    disks.data().write(&foreign, 4096);
    let luks2 = Luks2::load(&disks.header()).unwrap();
    let state = luks2.reencryption().unwrap().unwrap();
    let (header, data) = (disks.header(), disks.data());
    let sync = || BackingStore::sync(&data).context("cannot flush");
    let keys = checksum.keys();
    let mut driver = Driver::new(devices(&header, &data, &sync), luks2, state, &keys, Some(ZONE)).unwrap();
    let found = driver.recover().unwrap().unwrap();
    assert_eq!((found.zone, found.torn, found.unknown), (0..ZONE, 0, vec![4096]));
    let [_, new] = checksum.contents();
    assert!(disks.images()[1][..4096] == new[..4096], "the others are new");
    assert!(disks.images()[1][4096..zone] == foreign[..]);
}
