//! A zoned file against a model of the standard, under random operations, with and without failing storage.

use super::*;
use std::sync::atomic::AtomicU32;

/// Storage on which every n-th changing call fails, after writing a part or nothing.
struct Failing {
    store: Arc<MemoryStore>,
    calls: Arc<AtomicU32>,
    /// 0: none.
    every: u32,
    failures: Arc<AtomicU32>,
    armed: Arc<AtomicBool>,
}

impl Failing {
    fn is_failing(&self) -> bool {
        if !self.armed.load(Ordering::Relaxed) {
            return false;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = self.every != 0 && call.is_multiple_of(self.every);
        self.failures.fetch_add(u32::from(fails), Ordering::Relaxed);
        fails
    }
}

impl BackingStore for Failing {
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.store.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.is_failing() {
            // Like a full disk: some bytes first, then an error at the next call.
            let part = data.len() * (self.failures.load(Ordering::Relaxed) % 3) as usize / 3;
            return if part == 0 { Err(Errno::NOSPC) } else { self.store.write_at(&data[..part], offset) };
        }
        self.store.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        if self.is_failing() { Err(Errno::IO) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.is_failing() { Err(Errno::OPNOTSUPP) } else { self.store.discard(offset, len) }
    }
}

/// A zone of the standard: its data, block by block, and its condition.
#[derive(Clone, Debug, PartialEq)]
struct ModelZone {
    blocks: Vec<u8>,
    condition: ZoneCondition,
}

struct Model {
    layout: ZonedLayout,
    zones: Vec<ModelZone>,
    conventional: Vec<u8>,
    turn: usize,
}

impl Model {
    fn new(layout: ZonedLayout) -> Self {
        let of_kind =
            |zone| if zone < layout.conventional { ZoneCondition::NotWritePointer } else { ZoneCondition::Empty };
        let zones = (0..layout.zones()).map(|zone| ModelZone { blocks: Vec::new(), condition: of_kind(zone) });
        let conventional = vec![0; (layout.conventional_end() / BLOCK) as usize];
        Self { layout, zones: zones.collect(), conventional, turn: layout.conventional as usize }
    }

    fn having(&self, which: impl Fn(ZoneCondition) -> bool) -> usize {
        self.zones.iter().filter(|zone| which(zone.condition)).count()
    }

    fn room(&self, zone: usize) -> usize {
        (self.layout.capacity_of(zone as u32) / BLOCK) as usize - self.zones[zone].blocks.len()
    }

    /// Opens a zone, implicitly or explicitly.
    fn make_open(&mut self, zone: usize, how: ZoneCondition) -> Result<(), Errno> {
        use ZoneCondition::{Closed, Empty, ImplicitOpen};
        let (open, active) = (self.layout.max_open as usize, self.layout.max_active as usize);
        let is = self.zones[zone].condition;
        if is == Empty && active > 0 && self.having(ZoneCondition::is_active) >= active {
            return Err(Errno::OVERFLOW);
        }
        if !is.is_open() && open > 0 && self.having(ZoneCondition::is_open) >= open {
            let count = self.zones.len();
            let next = (0..count).map(|n| (self.turn + n) % count);
            let give_way = next.into_iter().find(|n| self.zones[*n].condition == ImplicitOpen);
            let give_way = give_way.ok_or(Errno::TOOMANYREFS)?;
            self.zones[give_way].condition = if self.zones[give_way].blocks.is_empty() { Empty } else { Closed };
            self.turn = give_way + 1;
        }
        self.zones[zone].condition = how;
        Ok(())
    }

    fn write(&mut self, zone: usize, at: usize, count: usize, fill: u8) -> Result<(), Errno> {
        use ZoneCondition::{Closed, Empty, ExplicitOpen, Full, ImplicitOpen};
        let is = self.zones[zone].condition;
        let takes = matches!(is, Empty | Closed | ImplicitOpen | ExplicitOpen);
        if !takes || at != self.zones[zone].blocks.len() || count > self.room(zone) {
            return Err(Errno::IO);
        }
        self.make_open(zone, if is == ExplicitOpen { is } else { ImplicitOpen })?;
        self.zones[zone].blocks.extend(std::iter::repeat_n(fill, count));
        if self.room(zone) == 0 {
            self.zones[zone].condition = Full;
        }
        Ok(())
    }

    fn act(&mut self, action: ZoneAction, zone: usize) -> Result<(), Errno> {
        use ZoneCondition::{Closed, Empty, ExplicitOpen, Full, ImplicitOpen};
        let is = self.zones[zone].condition;
        if matches!(is, ZoneCondition::NotWritePointer | ZoneCondition::ReadOnly | ZoneCondition::Offline) {
            return Err(Errno::IO);
        }
        match action {
            ZoneAction::Open if is == Full => return Err(Errno::IO),
            ZoneAction::Open => self.make_open(zone, ExplicitOpen)?,
            ZoneAction::Close => match is {
                Closed => {}
                ImplicitOpen | ExplicitOpen => {
                    self.zones[zone].condition = if self.zones[zone].blocks.is_empty() { Empty } else { Closed };
                }
                _ => return Err(Errno::IO),
            },
            ZoneAction::Finish if is != Full => self.make_open(zone, Full)?,
            ZoneAction::Finish => {}
            ZoneAction::Reset | ZoneAction::ResetAll => {
                self.zones[zone] = ModelZone { blocks: Vec::new(), condition: Empty };
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }
}

/// Returns the zone in terms of the model. The data are read with `whole`, otherwise taken from `known`.
fn observe(file: &ZonedFile, zone: usize, known: &ModelZone, whole: bool) -> ModelZone {
    let State { written, condition, .. } = file.states().get(zone as u32);
    let zone = file.states().report(zone as u32);
    let count = (written / BLOCK) as usize;
    if condition == ZoneCondition::NotWritePointer || (!whole && count == known.blocks.len()) {
        return ModelZone { blocks: known.blocks.clone(), condition };
    }
    let mut bytes = vec![0xee; zone.len as usize];
    read_all(file, &mut bytes, zone.start).unwrap();
    let (blocks, beyond) = bytes.split_at(written as usize);
    assert!(beyond == vec![0; beyond.len()], "bytes beyond the pointer");
    let blocks = blocks.chunks(BLOCK as usize).map(|block| {
        assert!(block == [block[0]; BLOCK as usize], "a block is torn");
        block[0]
    });
    ModelZone { blocks: blocks.collect(), condition }
}

struct Run {
    data: Arc<MemoryStore>,
    sidecar: Arc<MemoryStore>,
    calls: Arc<AtomicU32>,
    failures: Arc<AtomicU32>,
}

impl Run {
    fn open(&self, every: u32) -> ZonedFile {
        let armed = Arc::new(AtomicBool::new(false));
        let failing = |store: &Arc<MemoryStore>| {
            let (calls, failures, armed) = (self.calls.clone(), self.failures.clone(), armed.clone());
            Arc::new(Failing { store: store.clone(), calls, every, failures, armed })
        };
        // If opening fails, there is nothing to check.
        let file = ZonedFile::over(failing(&self.data), failing(&self.sidecar), 1).unwrap();
        armed.store(true, Ordering::Relaxed);
        file
    }
}

/// Runs an operation on one zone or on all, and returns the results of the file and of the model.
fn operate(
    file: &ZonedFile,
    model: &mut Model,
    zone: usize,
    random: &mut Random,
) -> (Result<(), Errno>, Result<(), Errno>) {
    let layout = model.layout;
    let start = zone as u64 * ZONE;
    match random.below(20) {
        0..=9 => {
            let fill = 1 + random.below(255) as u8;
            let count = 1 + random.below(5) as usize;
            let here = model.zones[zone].blocks.len();
            let at = if random.below(8) == 0 { random.below(14) as usize } else { here };
            let bytes = vec![fill; count * BLOCK as usize];
            if zone < layout.conventional as usize {
                let block = random.below(2 * 16 - 5) as usize;
                let got = file.write_at(&bytes, block as u64 * BLOCK);
                if got.is_ok() {
                    model.conventional[block..block + count].fill(fill);
                }
                (got.map(drop), got.map(drop))
            } else {
                let offset = start + at as u64 * BLOCK;
                let fits = ((count as u64) * BLOCK).min(layout.range(zone as u32).end.saturating_sub(offset));
                let mut got = file.write_at(&bytes, offset);
                if random.below(30) == 0 {
                    got = got.and_then(|written| file.sync().map(|()| written));
                }
                let expected = if offset >= layout.len {
                    Err(Errno::NOSPC)
                } else {
                    model.write(zone, at, (fits / BLOCK) as usize, fill)
                };
                (got.map(drop), expected)
            }
        }
        10..=17 => {
            let actions = [ZoneAction::Open, ZoneAction::Close, ZoneAction::Finish, ZoneAction::Reset];
            let action = actions[random.below(4) as usize];
            let len = layout.range(zone as u32).end - start;
            (file.manage(action, start, len), model.act(action, zone))
        }
        18 if random.below(50) == 0 => {
            for zone in 0..model.zones.len() {
                let _ = model.act(ZoneAction::ResetAll, zone);
            }
            (file.manage(ZoneAction::ResetAll, 0, 0), Ok(()))
        }
        _ => (file.sync(), Ok(())),
    }
}

/// Runs random operations. Results of file and model must be the same; after a failure of the storage the file must be
/// as before or as after the operation. Returns the numbers of successful operations and of failed calls.
fn compare(seed: u64, operations: u32, every: u32) -> (u32, u32) {
    let layout = ZonedLayout { max_open: 2, max_active: 4, ..layout() };
    let (data, sidecar) = stores(&layout);
    let run = Run { data, sidecar, calls: Arc::default(), failures: Arc::default() };
    let mut file = run.open(every);
    let (mut model, mut random, mut succeeded) = (Model::new(layout), Random::new(seed), 0);
    for number in 0..operations {
        let zone = random.below(u64::from(layout.zones())) as usize;
        let before: Vec<_> = model.zones.clone();
        let failures = run.failures.load(Ordering::Relaxed);
        let (got, expected) = operate(&file, &mut model, zone, &mut random);
        let failed = run.failures.load(Ordering::Relaxed) != failures;
        let broken = file.check_unbroken().is_err();
        if !failed && !broken {
            assert_eq!(got, expected, "seed {seed}, operation {number}, zone {zone}");
            succeeded += u32::from(got.is_ok());
        }
        for (at, old) in before.iter().enumerate() {
            let found = observe(&file, at, &model.zones[at], at == zone || failed || number % 64 == 0);
            if found == model.zones[at] {
                continue;
            }
            let new = &model.zones[at];
            // Some of the blocks may be written, and the zone may have been opened for them.
            let between = found.blocks.len() >= old.blocks.len() && new.blocks.starts_with(&found.blocks);
            let plausible = found.blocks == old.blocks || between;
            assert!(
                (failed || broken) && plausible,
                "seed {seed}, operation {number}: zone {at} is {found:?}, not {new:?}"
            );
            model.zones[at] = found;
        }
        if failed || broken {
            // The next zone to close depends on what succeeded.
            model.turn = file.states().next_to_close as usize;
        }
        if broken || number % 1000 == 999 {
            // Killed and reopened.
            std::mem::forget(file);
            file = run.open(every);
            for at in 0..model.zones.len() {
                let found = observe(&file, at, &model.zones[at], true);
                // A write that failed may have opened the zone.
                let known = &model.zones[at];
                let same = found == *known || (every != 0 && found.blocks == known.blocks && known.condition.is_open());
                assert!(broken || same, "seed {seed}, killed at {number}: zone {at} is {found:?}, not {known:?}");
                model.zones[at] = found;
            }
            model.turn = layout.conventional as usize;
        }
    }
    std::mem::forget(file);
    let end = layout.conventional_end() as usize;
    let conventional: Vec<u8> = model.conventional.iter().flat_map(|fill| vec![*fill; BLOCK as usize]).collect();
    assert!(every != 0 || run.data.contents()[..end] == conventional);
    (succeeded, run.failures.load(Ordering::Relaxed))
}

#[test]
fn zoned_file_agrees_with_the_model() {
    let (mut succeeded, mut failures) = (0, 0);
    for seed in 0..6 {
        succeeded += compare(seed, 10_000, 0).0;
    }
    assert!(succeeded > 20_000, "{succeeded}");
    for (seed, every) in (10..).zip([3, 5, 7, 11, 13, 29, 97]) {
        let (of_this, failed) = compare(seed, 4_000, every);
        succeeded += of_this;
        failures += failed;
    }
    println!("{succeeded} operations succeeded, {failures} calls failed");
    assert!(failures > 2_000, "{failures}");
}

/// Several threads write to zones of their own, more than may be open, while another one syncs and reports.
#[test]
fn concurrent_writes_to_zones_succeed() {
    let layout = ZonedLayout { max_open: 2, conventional: 1, ..ZonedLayout::new(9 * ZONE, ZONE) };
    let (data, sidecar) = stores(&layout);
    let file = ZonedFile::over(data.clone(), sidecar.clone(), 1).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..9_u64)
            .map(|zone| {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..20_u8 {
                        for block in 0..12_u64 {
                            let bytes = [round + zone as u8; BLOCK as usize];
                            assert_eq!(file.write_at(&bytes, zone * ZONE + block * BLOCK), Ok(4096));
                        }
                        if round < 19 {
                            file.manage(ZoneAction::Reset, zone * ZONE, ZONE).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.sync().unwrap();
                let mut zones = [Zone::UNKNOWN; 9];
                assert_eq!(file.report(0, &mut zones), Ok(9));
                assert!(zones.iter().filter(|zone| zone.condition.is_open()).count() <= 2);
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    std::mem::forget(file);
    let file = ZonedFile::over(data, sidecar, 1).unwrap();
    for zone in 1..9 {
        assert_eq!(state(&file, zone).1, 12 * BLOCK);
        let mut bytes = vec![0; 12 * BLOCK as usize];
        read_all(&file, &mut bytes, zone * ZONE).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 19 + zone as u8));
    }
}
