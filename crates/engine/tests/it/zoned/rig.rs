//! Fixture for tests of zoned devices: stores, a device on them, workers, and another user of the same store.

use super::memory::{MemoryZones, Shape};
use super::team::{Answer, Ask, Team};
pub(crate) use super::trouble::Fault;
use super::trouble::Trouble;
use super::{DATA_ZONES, segment};
use crate::scripted::offload_options;
use crate::support::key;
use inlock_engine::Errno;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::zoned::{Zone, ZoneCondition};
use inlock_engine::{Access, BackingStore, BlockingDevice, Device, Offload, OffloadPolicy};
use inlock_zoned_file::{ZonedFile, ZonedLayout};
use std::sync::Arc;

/// Which store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The reference.
    Memory,
    /// The engine's zoned file, over memory.
    File,
}

pub(crate) const FAULTS: [Fault; 9] = [
    Fault::Before(Errno::IO),
    Fault::Short,
    Fault::Torn(Errno::IO),
    Fault::Before(Errno::NOSPC),
    Fault::After(Errno::IO),
    Fault::Before(Errno::INTR),
    Fault::Nothing,
    Fault::Torn(Errno::NOSPC),
    Fault::Before(Errno::AGAIN),
];

enum Inner {
    Memory(Arc<MemoryZones>),
    File(Arc<ZonedFile>),
}

pub(crate) struct Rig {
    inner: Inner,
    shape: Shape,
    unit: u32,
    pub(crate) team: Team,
    pub(crate) trouble: Arc<Trouble>,
    pub(crate) device: Arc<Device>,
    pub(crate) blocking: BlockingDevice,
    /// Blocking device of another user, which only reads.
    reader: BlockingDevice,
}

fn zoned_file(shape: Shape) -> ZonedFile {
    let mapping = ZonedLayout {
        len: shape.len(),
        zone_len: shape.zone_len,
        capacity: shape.capacity,
        conventional: shape.conventional,
        max_open: shape.max_open,
        max_active: shape.max_active,
        write_granularity: shape.granularity,
    };
    let memory = |len: u64| Arc::new(MemoryStore::new(vec![0; len as usize]));
    let (data, sidecar) = (memory(ZonedFile::data_len(&mapping)), memory(ZonedFile::sidecar_len(&mapping)));
    ZonedFile::format(&*data, &*sidecar, &mapping).unwrap();
    ZonedFile::over(data, sidecar, 1).unwrap()
}

impl Rig {
    pub(crate) fn new(kind: Kind, shape: Shape, unit: u32, workers: usize) -> Self {
        Self::with(kind, shape, unit, workers, false, |store| store)
    }

    /// `offloaded`: a pool does the cipher work, so that requests wait in the queues. `trouble`: what the store is to
    /// do from the beginning.
    pub(crate) fn with(
        kind: Kind,
        shape: Shape,
        unit: u32,
        workers: usize,
        offloaded: bool,
        trouble: impl FnOnce(Trouble) -> Trouble,
    ) -> Self {
        let inner = match kind {
            Kind::Memory => Inner::Memory(Arc::new(MemoryZones::new(shape))),
            Kind::File => Inner::File(Arc::new(zoned_file(shape))),
        };
        let trouble = Arc::new(trouble(Trouble::new(inner.store())));
        let device = open(Arc::clone(&trouble) as _, shape, unit);
        let options = offload_options(OffloadPolicy::Both, 3);
        let pool = if offloaded { Offload::start(&device, &options).unwrap() } else { None };
        let (team, blocking) = (Team::start(&device, workers, pool.as_ref()), BlockingDevice::new(Arc::clone(&device)));
        let reader = BlockingDevice::new(open(inner.store(), shape, unit));
        Self { inner, shape, unit, team, trouble, device, blocking, reader }
    }

    /// The device as it reports its zones.
    pub(crate) fn report(&self) -> Vec<Zone> {
        let mut zones = vec![Zone::UNKNOWN; self.shape.zones as usize];
        let count = self.device.report_zones(0, &mut zones).unwrap();
        zones.truncate(count);
        zones
    }

    /// The store as it reports its zones.
    pub(crate) fn inner_report(&self) -> Vec<Zone> {
        let mut zones = vec![Zone::UNKNOWN; self.shape.zones as usize];
        let count = self.inner.store().zoned().unwrap().report(0, &mut zones).unwrap();
        assert_eq!(count, zones.len());
        zones
    }

    /// Returns a device of another user on the same store, which is unaware of this one and meets no faults.
    pub(crate) fn outsider(&self) -> BlockingDevice {
        BlockingDevice::new(open(self.inner.store(), self.shape, self.unit))
    }

    /// Returns the decrypted first bytes of one of the store's zones.
    pub(crate) fn plain(&self, zone: usize, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.reader.read_at(&mut bytes, (zone as u64 - u64::from(DATA_ZONES)) * self.shape.zone_len).unwrap();
        bytes
    }

    pub(crate) fn retire(&self, zone: usize, condition: ZoneCondition) {
        match &self.inner {
            Inner::Memory(store) => store.retire(zone, condition),
            Inner::File(store) => store.retire(zone as u32, condition).unwrap(),
        }
    }

    /// Has all of these begin before one of them can end, in their order where there is one worker; the answers in that
    /// order. `prepare` is called just before.
    pub(crate) fn at_once(&self, asks: &[Ask], prepare: impl FnOnce()) -> Vec<Answer> {
        self.device.suspend().unwrap();
        prepare();
        self.team.post_all(asks);
        self.device.resume().unwrap();
        self.team.answers(asks.len())
    }

    /// Has all of these wait, encrypted, while an append of a block to the zone is with the store; there is no pool.
    /// `prepare` is called just before they go on.
    pub(crate) fn behind_another(&self, zone: u64, asks: &[Ask], prepare: impl FnOnce()) -> Vec<Answer> {
        self.trouble.hold();
        std::thread::scope(|scope| {
            let blocking = &self.blocking;
            let another = scope.spawn(move || blocking.append(zone, &[7; 4096]));
            self.trouble.until_held();
            self.team.post_all(asks);
            // It begins after the others, and waits for none.
            let last = Ask::Read { offset: zone, len: 512 };
            (0..self.team.workers()).for_each(|worker| drop(self.team.ask(worker, last.clone()).unwrap()));
            prepare();
            self.trouble.release();
            another.join().unwrap().unwrap();
            self.team.answers(asks.len())
        })
    }

    /// Suspends the device and lets it go on.
    pub(crate) fn suspend(&self, wipe: bool) {
        self.device.suspend().unwrap();
        if wipe {
            self.device.wipe_key().unwrap();
            self.device.set_key(&key()).unwrap();
        }
        self.device.resume().unwrap();
    }
}

impl Inner {
    fn store(&self) -> Arc<dyn BackingStore> {
        match self {
            Self::Memory(store) => Arc::clone(store) as _,
            Self::File(store) => Arc::clone(store) as _,
        }
    }
}

fn open(store: Arc<dyn BackingStore>, shape: Shape, unit: u32) -> Arc<Device> {
    let access = Access { read_only: false, allow_discards: true };
    Arc::new(Device::new(&[segment(shape.zone_len, unit)], &key(), store, access).unwrap())
}
