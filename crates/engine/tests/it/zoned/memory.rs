//! Zoned storage in memory, after the zoned block device standards: the reference that tests compare with.
//!
//! It shares no code with the stores of the engine. Zones of one length, the first ones conventional, the rest with a
//! capacity; limits of open and active zones, where a zone that a write has opened makes room. Bytes beyond a write
//! pointer read as zeroes.

use inlock_engine::BackingStore;
use inlock_engine::Errno;
use inlock_engine::store::Geometry;
use inlock_engine::zoned::{Zone, ZoneAction, ZoneCondition, ZoneKind, ZoneLimits, ZonedStore};
use std::sync::Mutex;

/// How the zones lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) zone_len: u64,
    pub(crate) capacity: u64,
    pub(crate) zones: u32,
    pub(crate) conventional: u32,
    pub(crate) max_open: u32,
    pub(crate) max_active: u32,
    pub(crate) granularity: u32,
}

impl Shape {
    pub(crate) fn len(&self) -> u64 {
        self.zone_len * u64::from(self.zones)
    }

    pub(crate) fn limits(&self) -> ZoneLimits {
        let mut limits = ZoneLimits::new(self.zone_len, self.zones);
        limits.max_open = self.max_open;
        limits.max_active = self.max_active;
        limits.write_granularity = self.granularity;
        limits
    }

    fn is_sequential(&self, zone: usize) -> bool {
        zone >= self.conventional as usize
    }
}

/// State of all zones, without their bytes.
#[derive(Clone, Debug)]
pub(crate) struct Zones {
    pub(crate) shape: Shape,
    states: Vec<(ZoneCondition, u64)>,
    /// Where the search for one that makes room begins.
    next: usize,
}

impl Zones {
    pub(crate) fn new(shape: Shape) -> Self {
        let condition =
            |zone| if shape.is_sequential(zone) { ZoneCondition::Empty } else { ZoneCondition::NotWritePointer };
        let states = (0..shape.zones as usize).map(|zone| (condition(zone), 0)).collect();
        Self { shape, states, next: shape.conventional as usize }
    }

    pub(crate) fn zone_at(&self, position: u64) -> usize {
        (position / self.shape.zone_len) as usize
    }

    /// How many bytes of it are written.
    pub(crate) fn written(&self, zone: usize) -> u64 {
        self.states[zone].1
    }

    pub(crate) fn condition(&self, zone: usize) -> ZoneCondition {
        self.states[zone].0
    }

    /// Takes a state over from a report.
    pub(crate) fn take_over(&mut self, zone: usize, reported: &Zone) {
        let written = match reported.condition {
            ZoneCondition::Full => self.states[zone].1,
            _ => reported.write_pointer.map_or(self.states[zone].1, |pointer| pointer - reported.start),
        };
        self.states[zone] = (reported.condition, written);
    }

    /// Changes a zone's condition as a drive or a tool may do outside the commands.
    pub(crate) fn retire(&mut self, zone: usize, condition: ZoneCondition) {
        self.states[zone].0 = condition;
    }

    pub(crate) fn set_written(&mut self, zone: usize, written: u64) {
        self.states[zone].1 = written;
    }

    /// Takes a zone's state over from another.
    pub(crate) fn copy(&mut self, zone: usize, from: &Self) {
        self.states[zone] = from.states[zone];
    }

    pub(crate) fn report(&self, zone: usize) -> Zone {
        let Shape { zone_len, capacity, .. } = self.shape;
        let start = zone as u64 * zone_len;
        let (condition, written) = self.states[zone];
        let sequential = self.shape.is_sequential(zone);
        let pointer = match condition {
            ZoneCondition::Full => Some(start + zone_len),
            _ if condition.is_active() || condition == ZoneCondition::Empty => Some(start + written),
            _ => None,
        };
        let mut reported = Zone::new(start, zone_len);
        if sequential {
            reported.capacity = capacity;
            reported.kind = ZoneKind::SequentialRequired;
        }
        reported.write_pointer = pointer;
        reported.condition = condition;
        reported
    }

    fn count(&self, which: impl Fn(ZoneCondition) -> bool) -> u32 {
        self.states.iter().filter(|(condition, _)| which(*condition)).count() as u32
    }

    /// Lets a zone be opened that is not.
    fn open(&mut self, zone: usize, into: ZoneCondition) -> Result<(), Errno> {
        let Shape { max_open, max_active, .. } = self.shape;
        let condition = self.states[zone].0;
        if !condition.is_active() && max_active > 0 && self.count(ZoneCondition::is_active) == max_active {
            return Err(Errno::OVERFLOW);
        }
        if !condition.is_open() && max_open > 0 && self.count(ZoneCondition::is_open) == max_open {
            let all = self.states.len();
            let first = self.shape.conventional as usize;
            let mut turn = (self.next..all).chain(first..self.next);
            let implicit = |zone: &usize| self.states[*zone].0 == ZoneCondition::ImplicitOpen;
            let given = turn.find(implicit).ok_or(Errno::TOOMANYREFS)?;
            self.close(given);
            self.next = if given + 1 == all { first } else { given + 1 };
        }
        self.states[zone].0 = into;
        Ok(())
    }

    fn close(&mut self, zone: usize) {
        let empty = self.states[zone].1 == 0;
        self.states[zone].0 = if empty { ZoneCondition::Empty } else { ZoneCondition::Closed };
    }

    /// A write of `len` bytes at `position`, which lies in one sequential zone: whether it may be. Opens the zone.
    pub(crate) fn begin(&mut self, position: u64, len: u64) -> Result<(), Errno> {
        let granularity = u64::from(self.shape.granularity);
        if !position.is_multiple_of(granularity) || !len.is_multiple_of(granularity) {
            return Err(Errno::INVAL);
        }
        let zone = self.zone_at(position);
        let (condition, written) = self.states[zone];
        let at = position - zone as u64 * self.shape.zone_len;
        let writable = condition.is_active() || condition == ZoneCondition::Empty;
        if !writable || at != written || written + len > self.shape.capacity {
            return Err(Errno::IO);
        }
        if !condition.is_open() {
            self.open(zone, ZoneCondition::ImplicitOpen)?;
        }
        Ok(())
    }

    /// So much of it was written.
    pub(crate) fn end(&mut self, position: u64, len: u64) {
        let zone = self.zone_at(position);
        let (condition, written) = &mut self.states[zone];
        *written += len;
        *condition = match *condition {
            _ if *written == self.shape.capacity => ZoneCondition::Full,
            // It had to make room meanwhile.
            ZoneCondition::Empty => ZoneCondition::Closed,
            condition => condition,
        };
    }

    /// An action on one zone.
    pub(crate) fn act(&mut self, action: ZoneAction, zone: usize) -> Result<(), Errno> {
        use ZoneCondition::{Closed, Empty, ExplicitOpen, Full, ImplicitOpen};
        let condition = self.states[zone].0;
        if !(condition.is_active() || matches!(condition, Empty | Full)) {
            return Err(Errno::IO);
        }
        match (action, condition) {
            (ZoneAction::Reset | ZoneAction::ResetAll, _) => self.states[zone] = (Empty, 0),
            (ZoneAction::Open, ImplicitOpen | ExplicitOpen) => self.states[zone].0 = ExplicitOpen,
            (ZoneAction::Open, Empty | Closed) => self.open(zone, ExplicitOpen)?,
            (ZoneAction::Close, ImplicitOpen | ExplicitOpen) => self.close(zone),
            (ZoneAction::Close, Closed) | (ZoneAction::Finish, Full) => {}
            (ZoneAction::Finish, _) => {
                if !condition.is_open() {
                    self.open(zone, ImplicitOpen)?;
                }
                self.states[zone].0 = Full;
            }
            _ => return Err(Errno::IO),
        }
        Ok(())
    }

    /// An action on whole zones: on all of them, and the first error.
    pub(crate) fn manage(&mut self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        if action == ZoneAction::ResetAll {
            (0..self.states.len()).for_each(|zone| _ = self.act(action, zone));
            return Ok(());
        }
        let zones = self.zone_at(offset)..self.zone_at(offset + len);
        let mut first = Ok(());
        for zone in zones {
            first = first.and(self.act(action, zone));
        }
        first
    }
}

/// The store.
pub(crate) struct MemoryZones {
    shape: Shape,
    zones: Mutex<Zones>,
    bytes: Vec<Mutex<Vec<u8>>>,
}

impl MemoryZones {
    pub(crate) fn new(shape: Shape) -> Self {
        let bytes = (0..shape.zones).map(|_| Mutex::new(vec![0; shape.zone_len as usize])).collect();
        Self { shape, zones: Mutex::new(Zones::new(shape)), bytes }
    }

    pub(crate) fn retire(&self, zone: usize, condition: ZoneCondition) {
        self.zones.lock().unwrap().retire(zone, condition);
    }

    /// Returns the bytes of a zone in any condition.
    #[allow(dead_code)] // Not every program that has this store looks at them.
    pub(crate) fn zone_bytes(&self, zone: usize) -> Vec<u8> {
        self.bytes[zone].lock().unwrap().clone()
    }

    /// The rest of the zone from `offset`: its number, where in it, and how much of `len`.
    fn part(&self, offset: u64, len: usize) -> Option<(usize, usize, usize)> {
        let zone_len = self.shape.zone_len;
        let at = offset % zone_len;
        (offset < self.shape.len())
            .then(|| ((offset / zone_len) as usize, at as usize, len.min((zone_len - at) as usize)))
    }
}

impl BackingStore for MemoryZones {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.shape.len())
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let Some((zone, at, len)) = self.part(offset, data.len()) else { return Ok(0) };
        let bytes = self.bytes[zone].lock().unwrap();
        let (condition, written) = {
            let zones = self.zones.lock().unwrap();
            (zones.condition(zone), zones.written(zone) as usize)
        };
        if condition == ZoneCondition::Offline {
            return Err(Errno::IO);
        }
        let there = if self.shape.is_sequential(zone) { written.saturating_sub(at).min(len) } else { len };
        data[..there].copy_from_slice(&bytes[at..at + there]);
        data[there..len].fill(0);
        Ok(len)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let (zone, at, len) = self.part(offset, data.len()).ok_or(Errno::NOSPC)?;
        let mut bytes = self.bytes[zone].lock().unwrap();
        let sequential = self.shape.is_sequential(zone);
        if sequential {
            self.zones.lock().unwrap().begin(offset, len as u64)?;
        }
        bytes[at..at + len].copy_from_slice(&data[..len]);
        if sequential {
            self.zones.lock().unwrap().end(offset, len as u64);
        }
        Ok(len)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn zoned(&self) -> Option<&dyn ZonedStore> {
        Some(self)
    }
}

impl ZonedStore for MemoryZones {
    fn limits(&self) -> ZoneLimits {
        self.shape.limits()
    }

    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno> {
        let zones = self.zones.lock().unwrap();
        let from = zones.zone_at(offset)..self.shape.zones as usize;
        Ok(into.iter_mut().zip(from).map(|(into, zone)| *into = zones.report(zone)).count())
    }

    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        self.zones.lock().unwrap().manage(action, offset, len)
    }
}
