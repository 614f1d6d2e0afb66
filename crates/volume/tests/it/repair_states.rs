//! Power cuts and failures while a damaged header is repaired: no keyslot that opened is lost, and the repair can be
//! repeated to the same end.
//!
//! The damaged headers are the rows of `tests/header/verdicts.txt` that need a repair. `cargo xtask header-proof` takes
//! all of them, other runs each of LUKS1 and one in six of LUKS2.

use crate::header_verdicts::{PASSPHRASES, broken, in_parallel, rows, volumes};
use crate::power_cut::{FailingDevice, RecordingDevice, Step, each_state};
use crate::support::{PASSPHRASE, is_full, luks1_image, secret, with};
use inlock_volume::{HeaderDevice, KdfLimits, MemoryDevice, Repair, RepairPlan, UnlockOptions, Volume};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

/// Start of the keyslot areas of LUKS2.
const AREAS: usize = 32 << 10;
const COPY: usize = 16 << 10;

/// A damaged header, and a repair with or without erasing keyslots.
struct Case {
    name: String,
    before: Vec<u8>,
    erase: bool,
}

/// Returns the cases of a row.
fn cases(row: &str, volumes: &[Vec<u8>; 2]) -> Vec<Case> {
    let mut image = broken(row, volumes);
    // Only the header and the keyslot areas matter.
    image.truncate(if row.starts_with("luks1") { (2 << 20) + 8192 } else { (1 << 20) + 8192 });
    let mut images = vec![(row.to_owned(), image.clone())];
    if row.starts_with("luks2 /keyslots") {
        image[COPY + 5000] ^= 1;
        images.push((format!("{row}, and the second copy damaged"), image));
    }
    let mut cases = Vec::new();
    for (name, before) in images {
        let device = MemoryDevice::new(before.clone());
        let Ok(mut plan) = RepairPlan::new(&device) else { continue };
        prove(&mut plan, &device);
        if !plan.unproven().is_empty() {
            continue;
        }
        let erasing = plan.repairs().iter().filter(|repair| repair.is_erasure()).count();
        if erasing < plan.repairs().len() {
            cases.push(Case { name: name.clone(), before: before.clone(), erase: false });
        }
        if erasing > 0 {
            cases.push(Case { name: format!("{name}, erasing"), before, erase: true });
        }
    }
    cases
}

fn selected() -> Vec<Vec<&'static str>> {
    let (luks1, luks2): (Vec<_>, Vec<_>) = rows().into_iter().partition(|row| row[0].starts_with("luks1"));
    // Of the other rows, most need no repair.
    let needs_repair = |row: &Vec<&str>| !cases(row[0], &volumes_once()).is_empty();
    let luks2 = luks2.into_iter().filter(needs_repair).step_by(if is_full() { 1 } else { 6 });
    luks1.into_iter().filter(needs_repair).chain(luks2).collect()
}

fn volumes_once() -> [Vec<u8>; 2] {
    static VOLUMES: std::sync::LazyLock<[Vec<u8>; 2]> = std::sync::LazyLock::new(volumes);
    VOLUMES.clone()
}

/// Which keyslots open, computed once for the same metadata and keyslot areas.
#[derive(Default)]
struct Opener(HashMap<u64, BTreeSet<u32>>);

impl Opener {
    /// Returns the keyslots that open by number. `None`: there is no header.
    fn opening(&mut self, bytes: &[u8]) -> Option<BTreeSet<u32>> {
        let device = MemoryDevice::new(bytes.to_vec());
        let volume = Volume::load(&device).ok()?;
        let mut hasher = DefaultHasher::new();
        let metadata = volume.metadata_json().map_or(&bytes[..1024], str::as_bytes);
        (metadata, &bytes[if volume.version() == 1 { 1024 } else { AREAS }..]).hash(&mut hasher);
        let opening = self.0.entry(hasher.finish()).or_insert_with(|| {
            let limits = with!(KdfLimits::default(); pbkdf2_iterations: 1 << 20, memory_kib: 1 << 16);
            let opens = |number: &u32| {
                let options = with!(UnlockOptions::default(); limits: limits, keyslot: Some(*number));
                volume.unlock_key(&device, &secret(PASSPHRASES[*number as usize].as_bytes()), &options).is_ok()
            };
            (0..3).filter(opens).collect()
        });
        Some(opening.clone())
    }
}

/// Proves what the passphrases prove.
fn prove(plan: &mut RepairPlan, device: &dyn HeaderDevice) {
    let limits = with!(KdfLimits::default(); pbkdf2_iterations: 1 << 20, memory_kib: 1 << 16);
    let options = with!(UnlockOptions::default(); limits: limits);
    for passphrase in PASSPHRASES.iter().filter(|_| !plan.unproven().is_empty()).collect::<Vec<_>>() {
        let _ = plan.prove(device, &secret(passphrase.as_bytes()), &options);
    }
}

fn repair(device: &dyn HeaderDevice, erase: bool) -> Result<Volume, String> {
    let mut plan = RepairPlan::new(device).map_err(|error| error.to_string())?;
    prove(&mut plan, device);
    plan.execute(device, erase).map_err(|error| error.to_string())
}

/// Returns the repairs that are left after one.
fn left(bytes: &[u8], erase: bool) -> Vec<Repair> {
    let plan = RepairPlan::new(&MemoryDevice::new(bytes.to_vec())).unwrap();
    plan.repairs().iter().filter(|repair| erase || !repair.is_erasure()).cloned().collect()
}

/// Contents that a state must have.
struct Promise {
    before: Option<BTreeSet<u32>>,
    after: BTreeSet<u32>,
    erase: bool,
}

impl Promise {
    /// Why a state is wrong.
    fn fault_of(&self, opener: &mut Opener, bytes: &[u8]) -> Option<String> {
        let opening = opener.opening(bytes);
        match (&self.before, &opening) {
            (Some(_), None) => return Some("there is no header".to_owned()),
            // Keyslots that are erased opened with no passphrase.
            (Some(before), Some(now)) if !now.is_superset(before) => return Some(format!("{now:?} open")),
            _ => {}
        }
        let device = MemoryDevice::new(bytes.to_vec());
        if let Err(error) = repair(&device, self.erase) {
            return Some(format!("repeating the repair: {error}"));
        }
        let repaired = device.to_vec();
        let now = opener.opening(&repaired);
        if now.as_ref() != Some(&self.after) {
            return Some(format!("{now:?} open after repeating the repair"));
        }
        let left = left(&repaired, self.erase);
        (!left.is_empty()).then(|| format!("after repeating the repair: {left:?}"))
    }
}

/// Repairs the header, and returns its log and the promise.
fn record(case: &Case, opener: &mut Opener) -> (Vec<Step>, Promise) {
    let device = RecordingDevice::new(case.before.clone());
    let name = &case.name;
    repair(&device, case.erase).unwrap_or_else(|error| panic!("{name}: {error}"));
    let after = device.to_vec();
    assert!(after != case.before && left(&after, case.erase).is_empty(), "{name}");
    let before = opener.opening(&case.before);
    let promise = Promise { before, after: opener.opening(&after).unwrap(), erase: case.erase };
    let log = device.log.lock().unwrap().clone();
    assert!(matches!(log.last(), Some(Step::Sync)), "{name}: the end is durable");
    (log, promise)
}

#[test]
fn power_cut_while_repairing_loses_no_keyslot_and_repair_can_be_repeated() {
    let volumes = volumes_once();
    let counts = in_parallel(&selected(), |_, row| {
        let (mut opener, mut states) = (Opener::default(), [0; 2]);
        for case in cases(row, &volumes) {
            let (log, promise) = record(&case, &mut opener);
            states[usize::from(case.erase)] += each_state(&case.before, &log, &mut |bytes| {
                if let Some(fault) = promise.fault_of(&mut opener, bytes) {
                    panic!("{}: {fault}", case.name);
                }
            });
        }
        states
    });
    let [kept, erased] = counts.iter().fold([0; 2], |sum, states| [sum[0] + states[0], sum[1] + states[1]]);
    println!("COUNT states_of_repairs {}", kept + erased);
    println!("{} damaged headers, {erased} states while keyslots are erased", counts.len());
    assert!(kept > 500 && erased > 50, "{kept}, {erased}");
}

/// The negative control: without the syncs in between, a header is lost.
#[test]
fn power_cut_check_of_unordered_repair_fails() {
    let volumes = volumes_once();
    let mut faults = 0;
    for case in cases("luks2 /keyslots/1/priority = 3", &volumes) {
        let mut opener = Opener::default();
        let (log, promise) = record(&case, &mut opener);
        let unsynced: Vec<_> = log.into_iter().filter(|step| matches!(step, Step::Write { .. })).collect();
        each_state(&case.before, &unsynced, &mut |bytes| {
            faults += usize::from(promise.fault_of(&mut opener, bytes).is_some());
        });
    }
    assert!(faults > 0, "lost writes went unnoticed");
}

#[test]
fn failed_write_of_repair_is_an_error_and_loses_no_keyslot() {
    let volumes = volumes_once();
    let counts = in_parallel(&selected(), |_, row| {
        let (mut opener, mut steps) = (Opener::default(), 0);
        for case in cases(row, &volumes) {
            let (log, promise) = record(&case, &mut opener);
            for failing in 0..log.len() {
                let device = FailingDevice::new(case.before.clone(), failing);
                assert!(repair(&device, case.erase).is_err(), "{}: step {failing}", case.name);
                if let Some(fault) = promise.fault_of(&mut opener, &device.to_vec()) {
                    panic!("{}, step {failing}: {fault}", case.name);
                }
                steps += 1;
            }
        }
        steps
    });
    let steps: usize = counts.iter().sum();
    println!("COUNT failed_writes_of_repairs {steps}");
    assert!(steps > 100, "{steps}");
}

/// Key material of an erased keyslot is overwritten.
#[test]
fn erased_keyslot_has_no_key_material_left() {
    let volumes = volumes_once();
    let mut erased = 0;
    for row in rows().iter().filter(|row| row[0].starts_with("luks2 ")) {
        for case in cases(row[0], &volumes).into_iter().filter(|case| case.erase) {
            let device = MemoryDevice::new(case.before.clone());
            let Ok(Volume::Luks2(luks2)) = Volume::load(&device) else { panic!("{}", case.name) };
            let plan = RepairPlan::new(&device).unwrap();
            let numbers = plan.repairs().iter().filter_map(|repair| match repair {
                Repair::EraseKeyslot { keyslot, .. } => Some(*keyslot),
                _ => None,
            });
            let areas: Vec<_> = numbers.map(|number| luks2.metadata().keyslots[&number].clone()).collect();
            repair(&device, true).unwrap();
            for slot in areas {
                let area = slot.area_offset as usize..(slot.area_offset + slot.area_len) as usize;
                let (before, after) = (&case.before[area.clone()], &device.to_vec()[area]);
                let kept = before.chunks(16).zip(after.chunks(16)).filter(|(old, new)| old == new).count();
                assert!(kept < 4, "{}: {kept} blocks are left", case.name);
                erased += 1;
            }
        }
    }
    assert!(erased > 0);
}

#[test]
fn odd_flag_of_luks1_keyslot_is_mended_to_the_keyslot_s_state() {
    let good = luks1_image();
    for (keyslot, state) in [(0, "enabled"), (5, "disabled")] {
        let mut image = good.clone();
        image[208 + 48 * keyslot..][..4].copy_from_slice(&[0x12; 4]);
        let device = MemoryDevice::new(image);
        let mut plan = RepairPlan::new(&device).unwrap();
        let is_flag =
            |repair: &Repair| matches!(repair, Repair::MendKeyslot { field: "active flag", to, .. } if to == state);
        assert!(plan.repairs().iter().all(is_flag) && plan.repairs().len() == 1, "{:?}", plan.repairs());
        if state == "enabled" {
            // Only a passphrase can tell.
            assert_eq!(plan.unproven().iter().copied().collect::<Vec<_>>(), [keyslot as u32]);
            let options = UnlockOptions::default();
            assert!(plan.prove(&device, &secret(b"wrong"), &options).is_err());
            assert_eq!(plan.prove(&device, &secret(PASSPHRASE), &options).unwrap(), keyslot as u32);
        }
        plan.execute(&device, false).unwrap();
        assert!(device.to_vec() == good, "keyslot {keyslot} differs");
    }
}

/// The end of a partition table lies in the salt of keyslot 6, which may be in use.
#[test]
fn signature_in_salt_of_luks1_keyslot_in_use_stays() {
    const KEYSLOT_3: usize = 208 + 48 * 3;
    const KEYSLOT_6: usize = 208 + 48 * 6;
    for is_enabled in [false, true] {
        let mut image = luks1_image();
        // So that the header cannot be read: an area within the header.
        image[KEYSLOT_3 + 40..][..4].fill(0);
        let (enabled, table) = (image[208..256].to_vec(), [0x55, 0xaa]);
        if is_enabled {
            image[KEYSLOT_6..][..40].copy_from_slice(&enabled[..40]);
        }
        image[510..512].copy_from_slice(&table);
        let device = MemoryDevice::new(image);
        let plan = RepairPlan::new(&device).unwrap();
        let wipes = plan.repairs().iter().any(|repair| matches!(repair, Repair::WipePartitionTable { .. }));
        assert_eq!(wipes, !is_enabled, "{:?}", plan.repairs());
        plan.execute(&device, false).unwrap();
        assert_eq!(device.to_vec()[510..512] == table, is_enabled);
    }
}

/// A keyslot with an odd flag may hold a key, unless a partition table lies over its salt.
#[test]
fn partition_table_tells_which_luks1_keyslots_hold_nothing() {
    for (keyslot, has_table, may_hold_key) in
        [(4, false, true), (5, false, true), (6, false, true), (4, true, true), (5, true, false), (6, true, false)]
    {
        let mut image = luks1_image();
        let enabled = image[208..248].to_vec();
        let at = 208 + 48 * keyslot;
        image[at..][..40].copy_from_slice(&enabled);
        image[at..][..4].fill(0x12);
        // The states of four entries, the number of sectors of one, and the end of the table.
        if has_table {
            [446, 462, 478, 494].iter().for_each(|state| image[*state] = 0);
            image[458..462].fill(1);
            image[510..512].copy_from_slice(&[0x55, 0xaa]);
        } else {
            image[511] = 1;
        }
        let device = MemoryDevice::new(image);
        let plan = RepairPlan::new(&device).unwrap();
        let of_flag = |repair: &Repair| matches!(repair, Repair::MendKeyslot { keyslot: n, field: "active flag", to, .. } if *n == keyslot as u32 && to == "enabled");
        assert_eq!(plan.repairs().iter().any(of_flag), may_hold_key, "{keyslot} {has_table}: {:?}", plan.repairs());
        assert_eq!(plan.unproven().contains(&(keyslot as u32)), may_hold_key, "{keyslot} {has_table}");
        // What may hold a key stays as it is without a passphrase.
        let before = device.to_vec()[at..][..4].to_vec();
        let disabled = 0x0000_dead_u32.to_be_bytes().to_vec();
        let _ = plan.execute(&device, false);
        let wanted = if may_hold_key { before } else { disabled };
        assert_eq!(device.to_vec()[at..][..4], wanted, "{keyslot} {has_table}");
    }
}

/// A header that can be planned for and then not read is not overwritten.
#[test]
fn repair_of_a_luks1_header_that_cannot_be_read_again_writes_nothing() {
    struct Unreadable(RecordingDevice);

    impl HeaderDevice for Unreadable {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::Error::other("injected"))
        }
        fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_all_at(data, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
    }

    let mut image = luks1_image();
    image[208 + 48 * 5..][..4].fill(0x12);
    let plan = RepairPlan::new(&MemoryDevice::new(image.clone())).unwrap();
    let device = Unreadable(RecordingDevice::new(image.clone()));
    assert!(plan.execute(&device, false).is_err());
    assert!(device.0.to_vec() == image);
}
