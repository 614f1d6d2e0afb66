//! A sync during a reset: no crash may find an old pointer over bytes that were written after the reset.

use super::*;
use records::Table;
use std::sync::OnceLock;

/// A call that changes a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write(u64),
    Sync,
    Discard(u64),
}

type Hook = Box<dyn Fn(Call) -> Result<(), Errno> + Send + Sync>;

/// Storage that runs a function before each call that changes it.
struct Hooked {
    store: Arc<MemoryStore>,
    hook: OnceLock<Hook>,
}

impl Hooked {
    fn new(store: &Arc<MemoryStore>) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), hook: OnceLock::new() })
    }

    fn set(&self, hook: impl Fn(Call) -> Result<(), Errno> + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok(), "one hook for each store");
    }

    fn call(&self, call: Call) -> Result<(), Errno> {
        self.hook.get().map_or(Ok(()), |hook| hook(call))
    }
}

impl BackingStore for Hooked {
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.store.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.call(Call::Write(offset))?;
        self.store.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.call(Call::Sync)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.call(Call::Discard(offset))?;
        self.store.discard(offset, len)
    }
}

/// The zones under test.
const FIRST: u64 = 2;
const SECOND: u64 = 3;
const OLD: [u8; 4 * BLOCK as usize] = [0x0d; 4 * BLOCK as usize];
const NEW: [u8; BLOCK as usize] = [0x4e; BLOCK as usize];

/// Number of the boot before the power cut, and after it.
const BOOTS: [u64; 2] = [1, 2];

struct Setup {
    data: Arc<MemoryStore>,
    sidecar: Arc<MemoryStore>,
    hooked_data: Arc<Hooked>,
    hooked_sidecar: Arc<Hooked>,
    file: Arc<ZonedFile>,
}

/// Returns a file with four old blocks in both zones, promised or only acknowledged.
fn setup(promised: bool) -> Setup {
    let (data, sidecar) = stores(&layout());
    let (hooked_data, hooked_sidecar) = (Hooked::new(&data), Hooked::new(&sidecar));
    let file = ZonedFile::over(hooked_data.clone(), hooked_sidecar.clone(), BOOTS[0]).unwrap();
    for zone in [FIRST, SECOND] {
        assert_eq!(file.write_at(&OLD, zone * ZONE), Ok(OLD.len()));
    }
    if promised {
        file.sync().unwrap();
    }
    Setup { data, sidecar, hooked_data, hooked_sidecar, file: Arc::new(file) }
}

impl Setup {
    /// Resets both zones. While the space of the first is freed, another thread syncs the file completely.
    fn reset_both_beside_a_sync(&self) {
        let file = Arc::downgrade(&self.file);
        self.hooked_data.set(move |call| {
            if call == Call::Discard(FIRST * ZONE) {
                let file = file.upgrade().expect("the test holds the file");
                std::thread::spawn(move || file.sync()).join().expect("the sync does not panic").unwrap();
            }
            Ok(())
        });
        self.file.manage(ZoneAction::Reset, FIRST * ZONE, 2 * ZONE).unwrap();
        assert_eq!(state(&self.file, SECOND), (ZoneCondition::Empty, 0));
    }

    /// Cuts the power after writeback of both caches, and returns the state of the zone afterwards.
    fn cut_power(&self, zone_number: u64) -> Result<(), String> {
        let copy = |store: &MemoryStore| Arc::new(MemoryStore::new(store.contents()));
        let file = ZonedFile::over(copy(&self.data), copy(&self.sidecar), BOOTS[1]).map_err(|e| e.to_string())?;
        let (condition, written) = state(&file, zone_number);
        let mut bytes = vec![0; written as usize];
        read_all(&file, &mut bytes, zone_number * ZONE).unwrap();
        let is_new = NEW.starts_with(&bytes);
        if is_new { Ok(()) } else { Err(format!("{condition:?} with {written} bytes, the first {:#x}", bytes[0])) }
    }
}

#[test]
fn reset_during_sync_keeps_no_old_write_pointer() {
    let setup = setup(false);
    setup.reset_both_beside_a_sync();
    assert_eq!(setup.file.write_at(&NEW, SECOND * ZONE), Ok(NEW.len()));
    assert_eq!(setup.cut_power(SECOND), Ok(()));
}

#[test]
fn reset_of_promised_zone_during_torn_sync_keeps_no_old_write_pointer() {
    let setup = setup(true);
    setup.reset_both_beside_a_sync();
    assert_eq!(setup.file.write_at(&NEW, SECOND * ZONE), Ok(NEW.len()));
    // The power cut hits the next sync, and tears the record of the zone in either table.
    let zones = layout().zones();
    let before = setup.sidecar.contents();
    setup.file.sync().unwrap();
    let after = setup.sidecar.contents();
    let records = [Table::PromisedA, Table::PromisedB].map(|table| records::record_at(table, SECOND as u32, zones));
    let rewritten: Vec<_> = records
        .into_iter()
        .map(|at| at as usize..at as usize + records::RECORD)
        .filter(|range| before[range.clone()] != after[range.clone()])
        .collect();
    assert_eq!(rewritten.len(), 1, "a sync writes one of the two");
    let half = rewritten[0].start..rewritten[0].start + records::RECORD / 2;
    let written_over = setup.sidecar.write_at(&before[half.clone()], half.start as u64);
    assert_eq!(written_over, Ok(half.len()));
    assert_eq!(setup.cut_power(SECOND), Ok(()));
}

#[test]
fn reset_after_partly_failed_sync_keeps_no_old_write_pointer() {
    let setup = setup(false);
    let zones = layout().zones();
    let second = [Table::PromisedA, Table::PromisedB].map(|table| records::record_at(table, SECOND as u32, zones));
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    setup.hooked_sidecar.set(move |call| match call {
        Call::Write(at) if second.contains(&at) && failing.load(Ordering::Relaxed) => Err(Errno::NOSPC),
        _ => Ok(()),
    });
    // The promise of the first zone is written by then, and may reach the disk at any time.
    assert_eq!(setup.file.sync(), Err(Errno::NOSPC));
    fails.store(false, Ordering::Relaxed);
    setup.file.manage(ZoneAction::Reset, FIRST * ZONE, ZONE).unwrap();
    assert_eq!(setup.file.write_at(&NEW, FIRST * ZONE), Ok(NEW.len()));
    assert_eq!(setup.cut_power(FIRST), Ok(()));
}

#[test]
fn reset_defers_syncs_until_states_have_changed() {
    let setup = setup(false);
    let zones = layout().zones();
    let answers = [FIRST, SECOND].map(|zone| records::record_at(Table::Answered, zone as u32, zones));
    let (file, seen) = (Arc::downgrade(&setup.file), Arc::new(Mutex::new(Vec::new())));
    let note = seen.clone();
    setup.hooked_sidecar.set(move |call| {
        // When the file is dropped at the end, there is nothing to check.
        if let (Call::Write(at), Some(file)) = (call, file.upgrade()) {
            let can_sync = file.promises.try_lock().is_ok();
            note.lock().unwrap().push((at, can_sync));
        }
        Ok(())
    });
    setup.file.manage(ZoneAction::Reset, FIRST * ZONE, 2 * ZONE).unwrap();
    assert_eq!(*seen.lock().unwrap(), answers.map(|at| (at, false)));
}
