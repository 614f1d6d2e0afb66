//! Crash states of a re-encryption of LUKS1: every state that a power cut may leave on a device which reorders writes
//! between flushes and tears them at sectors. What is kept and recorded is durable before the next step, or it is not.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

use inlock_cipher::{CipherSpec, VolumeKey};
use inlock_engine::{BackingStore, Errno, Geometry};
use inlock_volume::luks2::reencryption::Direction;

use super::files::{Files, KeptZone, ZoneFile};
use super::zones::{Place, Records, Zones};
use crate::error::Result;
use crate::reencryption::ciphers::Ciphers;

/// Bytes of data, in zones of at most [`ZONE`] bytes.
const DATA: usize = 11 * 1024;
const ZONE: u64 = 4096;
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Sync,
    Keep(Range<u64>, bool, Vec<u8>),
    Advance(u64),
}

/// A device in memory, and the steps that it has taken.
#[derive(Clone, Default)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Disk {
    fn new(bytes: &[u8]) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes.to_vec())), steps: Arc::default() }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn add(&self, step: Step) {
        self.steps.lock().unwrap().push(step);
    }
}

impl BackingStore for Disk {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.bytes.lock().unwrap().len() as u64)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let offset = offset as usize;
        data.copy_from_slice(&self.bytes.lock().unwrap()[offset..offset + data.len()]);
        Ok(data.len())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.bytes.lock().unwrap()[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        self.add(Step::Write(offset as usize, data.to_vec()));
        Ok(data.len())
    }

    fn sync(&self) -> Result<(), Errno> {
        self.add(Step::Sync);
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

impl Records for Disk {
    fn keep(&mut self, zone: &Range<u64>, data: &[u8], is_new: bool) -> Result<()> {
        self.add(Step::Keep(zone.clone(), is_new, data.to_vec()));
        Ok(())
    }

    fn advance(&mut self, offset: u64) -> Result<()> {
        self.add(Step::Advance(offset));
        Ok(())
    }
}

/// What is on stable storage.
struct State {
    bytes: Vec<u8>,
    offset: u64,
    kept: Option<(Range<u64>, bool, Vec<u8>)>,
}

/// One way to re-encrypt.
#[derive(Clone, Copy, Debug)]
struct Case {
    place: Place,
    is_kept: bool,
    is_encrypted: [bool; 2],
}

impl Case {
    fn ciphers(&self, swapped: bool) -> Ciphers {
        let sides = [(CipherSpec::AES_XTS_PLAIN64, [1; 64]), (CipherSpec::AES_XTS_PLAIN64, [2; 64])]
            .map(|(spec, key)| (spec, VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|n| key[n] ^ n as u8))));
        let [old, new] = [0, 1].map(|n| self.is_encrypted[n].then_some((&sides[n].0, &sides[n].1)));
        if swapped { Ciphers::of_sectors(new, None) } else { Ciphers::of_sectors(old, new) }.unwrap()
    }

    fn plaintext() -> Vec<u8> {
        (0..DATA).map(|n| (n * 31 + n / 256 * 7) as u8).collect()
    }

    /// Returns the device before, with a cipher or without.
    fn device(&self) -> Vec<u8> {
        let mut data = Self::plaintext();
        if self.is_encrypted[0] {
            let Place { len, .. } = self.place;
            assert_eq!(len as usize, DATA);
            Ciphers::of_sectors(
                None,
                Some((
                    &CipherSpec::AES_XTS_PLAIN64,
                    &VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|n| 1 ^ n as u8)),
                )),
            )
            .unwrap()
            .renew(0, &mut data);
        }
        let mut bytes = vec![0xee; DATA + self.place.old.max(self.place.new) as usize];
        bytes[self.place.old as usize..][..DATA].copy_from_slice(&data);
        bytes
    }

    fn zones<'a>(&self, store: &'a Disk, ciphers: &'a Ciphers, (offset, longest): (u64, u64)) -> Zones<'a> {
        let limit = if self.is_kept { longest } else { longest.min(self.place.shift()) };
        let (place, is_kept, is_decryption) = (self.place, self.is_kept, !self.is_encrypted[1]);
        Zones { store, ciphers, place, offset, limit, is_kept, is_decryption }
    }

    fn start(&self) -> u64 {
        if self.place.direction == Direction::Forward { 0 } else { self.place.len }
    }

    /// Goes on from a state with zones of at most `longest` bytes. Returns the steps and the bytes.
    fn go_on(&self, state: &State, longest: u64) -> (Vec<Step>, Vec<u8>) {
        let (mut disk, ciphers) = (Disk::new(&state.bytes), self.ciphers(false));
        let store = disk.clone();
        let mut zones = self.zones(&store, &ciphers, (state.offset, longest));
        if let Some((zone, is_new, data)) = state.kept.clone() {
            zones.redo(KeptZone { zone, is_new, data }, &mut disk).unwrap();
        }
        assert!(zones.run(&mut disk, &mut |_| ControlFlow::Continue(())).unwrap());
        (disk.steps.lock().unwrap().clone(), disk.bytes())
    }

    fn check(&self, bytes: &[u8], what: &str) {
        let mut data = bytes[self.place.new as usize..][..DATA].to_vec();
        self.ciphers(true).renew(0, &mut data);
        assert!(data == Self::plaintext(), "{self:?}: {what}");
    }

    /// Returns the state after a cut in step `cut`, of which, and of all writes since a flush, some sectors are left.
    fn cut(&self, before: &State, steps: &[Step], cut: usize, seed: usize) -> State {
        let mut state = State { bytes: before.bytes.clone(), offset: before.offset, kept: before.kept.clone() };
        let flushed = steps[..cut].iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
        for (index, step) in steps.iter().take(cut + 1).enumerate() {
            let is_last = index == cut;
            let is_left = |sector: usize| match seed {
                0 => false,
                1 => true,
                _ => (sector + index * 13 + 1).wrapping_mul(0x9e37_79b9 * (2 * seed + 1)) >> 16 & 1 == 1,
            };
            match step {
                Step::Write(offset, data) => {
                    for (number, sector) in data.chunks(SECTOR).enumerate() {
                        if index < flushed || is_left(offset / SECTOR + number) {
                            let at = offset + number * SECTOR;
                            state.bytes[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                Step::Sync => {}
                Step::Keep(zone, is_new, data) if !is_last || seed == 1 => {
                    state.kept = Some((zone.clone(), *is_new, data.clone()));
                }
                // It was overwritten, so that its digest does not fit.
                Step::Keep(..) => state.kept = None,
                Step::Advance(offset) if !is_last || seed % 2 == 1 => state.offset = *offset,
                Step::Advance(_) => {}
            }
        }
        state
    }
}

/// Returns all cases: in place, and with shifts that are longer than a zone, and shorter.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (is_encrypted, old, new, is_kept) in [
        ([true, true], 4096, 4096, true),
        ([true, true], 4096, 4096 + 1536, true),
        ([true, true], 4096, 4096 + 1536, false),
        ([true, true], 4096, 4096 + 8192, false),
        ([false, true], 0, 0, true),
        ([false, true], 0, 4608, false),
        ([false, true], 0, 512, true),
        ([true, false], 0, 0, true),
        ([true, false], 4608, 0, false),
        ([true, false], 1024, 0, true),
    ] {
        let direction = if new > old { Direction::Backward } else { Direction::Forward };
        cases.push(Case { place: Place { old, new, len: DATA as u64, direction }, is_kept, is_encrypted });
    }
    cases
}

#[test]
fn every_byte_is_right_after_a_power_cut_at_any_point() {
    let mut count = 0;
    for case in cases() {
        let before = State { bytes: case.device(), offset: case.start(), kept: None };
        let (steps, bytes) = case.go_on(&before, ZONE);
        case.check(&bytes, "without a cut");
        for cut in 0..steps.len() {
            for seed in 0..6 {
                let state = case.cut(&before, &steps, cut, seed);
                // Zones may be shorter or longer than before.
                let longest = [ZONE, ZONE / 2, 3 * ZONE / 2][seed % 3];
                let (again, bytes) = case.go_on(&state, longest);
                case.check(&bytes, &format!("cut in step {cut}, {seed}"));
                // A second cut while it goes on.
                for second in 0..again.len().min(4) {
                    let state = case.cut(&state, &again, second, 2 + (cut + seed) % 4);
                    let (_, bytes) = case.go_on(&state, ZONE);
                    case.check(&bytes, &format!("cut in step {cut}, {seed}, then {second}"));
                    count += 1;
                }
            }
        }
    }
    println!("COUNT luks1_crash_states {count}");
    assert!(count > 1000);
}

#[test]
fn stop_after_a_zone_leaves_the_rest_and_goes_on() {
    for case in cases() {
        let (mut disk, ciphers) = (Disk::new(&case.device()), case.ciphers(false));
        let store = disk.clone();
        let mut zones = case.zones(&store, &ciphers, (case.start(), ZONE));
        let mut stops = 0;
        while !zones.run(&mut disk, &mut |_| ControlFlow::Break(())).unwrap() {
            stops += 1;
        }
        assert!(stops >= 2, "{case:?}: {stops}");
        case.check(&disk.bytes(), "stopped after each zone");
    }
}

#[test]
fn kept_zone_is_read_as_it_was_written_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path(), "ab");
    let file = ZoneFile::allocate(&files, 3 << 20).unwrap();
    assert_eq!(ZoneFile::kept(&files).unwrap(), None);
    let mut data: Vec<u8> = (0..(2 << 20) + 512).map(|n| (n / 511) as u8).collect();
    file.keep(&(512..(2 << 20) + 1024), &data, false).unwrap();
    data.truncate(1024);
    file.keep(&(4096..5120), &data, true).unwrap();
    assert_eq!(ZoneFile::kept(&files).unwrap(), Some(KeptZone { zone: 4096..5120, is_new: true, data }));
    let whole = std::fs::read(files.zone()).unwrap();
    for at in [0, 16, 24, 32, 40, 4096, 5119] {
        let mut torn = whole.clone();
        torn[at] ^= 1;
        std::fs::write(files.zone(), &torn).unwrap();
        assert_eq!(ZoneFile::kept(&files).unwrap(), None, "{at}");
    }
    for len in [0, 4095, 4096, 5119] {
        std::fs::write(files.zone(), &whole[..len]).unwrap();
        assert_eq!(ZoneFile::kept(&files).unwrap(), None, "{len} bytes");
    }
}
