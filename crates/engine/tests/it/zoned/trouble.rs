//! A zoned store that makes trouble: it takes its time, fails, and remembers in which order writes came.

use crate::support::Random;
use inlock_engine::BackingStore;
use inlock_engine::Errno;
use inlock_engine::store::{Geometry, StoreProfile};
use inlock_engine::zoned::{Zone, ZoneAction, ZoneKind, ZoneLimits, ZonedStore};
use inlock_tests::wait::eventually;
use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done.
    Before(Errno),
    /// Half of it is done, which is said.
    Short,
    /// Half of it is done, which is not said.
    Torn(Errno),
    /// All of it is done, which is not said.
    After(Errno),
    /// Nothing is done, and no error is reported, as at the end of a file.
    Nothing,
    /// Another user has written as much there before.
    Taken,
}

impl Fault {
    /// Whether the request goes on as if nothing had been.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Before(Errno::INTR | Errno::AGAIN) | Self::Short)
    }

    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Before(errno) | Self::Torn(errno) | Self::After(errno) => errno,
            Self::Short | Self::Nothing | Self::Taken => Errno::IO,
        }
    }
}

/// A write that came, or a reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) zone: u64,
    /// From the start of the zone; `None`: a reset.
    pub(crate) at: Option<u64>,
    pub(crate) len: u64,
    /// How many came as one.
    pub(crate) requests: usize,
    /// Another write of the zone had not ended.
    pub(crate) overlaps: bool,
}

pub(crate) struct Trouble {
    pub(crate) inner: Arc<dyn BackingStore>,
    zone_len: u64,
    /// One write in so many waits for some microseconds; 0: none.
    delays: u64,
    random: Mutex<Random>,
    log: Option<Mutex<Log>>,
    faults: Mutex<Faults>,
    /// The longest write that it says it takes in one piece.
    longest_write: u32,
    hold: (Mutex<Hold>, Condvar),
}

/// Effect of the fault on the next write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    No,
    /// It is not answered.
    Wanted,
    /// It is done, and waits.
    Holds,
}

struct Log {
    arrivals: Vec<Arrival>,
    busy: Vec<bool>,
}

#[derive(Default)]
struct Faults {
    /// Every how many operations one fails; 0: none.
    every: u64,
    count: u64,
    /// Which of them are drawn.
    kinds: Vec<Fault>,
    once: bool,
    next: usize,
    struck: Vec<Fault>,
}

impl Trouble {
    pub(crate) fn new(inner: Arc<dyn BackingStore>) -> Self {
        let zone_len = inner.zoned().unwrap().limits().zone_len;
        let (random, faults) = (Mutex::new(Random::new(1)), Mutex::default());
        Self {
            inner,
            zone_len,
            delays: 0,
            random,
            log: None,
            faults,
            longest_write: u32::MAX,
            hold: Default::default(),
        }
    }

    /// One write in `one_in` takes longer.
    pub(crate) fn delayed(self, one_in: u64, seed: u64) -> Self {
        Self { delays: one_in, random: Mutex::new(Random::new(seed)), ..self }
    }

    /// Does not answer the next write until [`Trouble::release`].
    pub(crate) fn hold(&self) {
        *self.hold.0.lock().unwrap() = Hold::Wanted;
    }

    /// Waits until a write is held.
    pub(crate) fn until_held(&self) {
        eventually("a write is held", || *self.hold.0.lock().unwrap(), |hold| *hold == Hold::Holds);
    }

    pub(crate) fn release(&self) {
        *self.hold.0.lock().unwrap() = Hold::No;
        self.hold.1.notify_all();
    }

    fn hold_back(&self) {
        let mut hold = self.hold.0.lock().unwrap();
        if *hold == Hold::Wanted {
            *hold = Hold::Holds;
            self.hold.1.notify_all();
            drop(self.hold.1.wait_while(hold, |hold| *hold == Hold::Holds).unwrap());
        }
    }

    /// Says that it takes so much in one piece.
    pub(crate) fn in_pieces_of(self, longest_write: u32) -> Self {
        Self { longest_write, ..self }
    }

    /// Remembers what comes, room for `room` without growing.
    pub(crate) fn logged(self, room: usize) -> Self {
        let zones = self.zoned_inner().limits().zones as usize;
        let log = Log { arrivals: Vec::with_capacity(room), busy: vec![false; zones] };
        Self { log: Some(Mutex::new(log)), ..self }
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.log.as_ref().map(|log| log.lock().unwrap().arrivals.clone()).unwrap_or_default()
    }

    /// Every `every`-th operation fails from now on, in these ways by turns; 0: none does.
    pub(crate) fn fail(&self, every: u64, kinds: &[Fault]) {
        let mut faults = self.faults.lock().unwrap();
        *faults = Faults { every, kinds: kinds.to_vec(), ..Faults::default() };
    }

    /// The `nth` operation from now on fails in this way, and no other.
    pub(crate) fn fail_once(&self, nth: u64, fault: Fault) {
        self.fail(nth, &[fault]);
        self.faults.lock().unwrap().once = true;
    }

    /// Pauses failing, or goes on with it.
    pub(crate) fn pause(&self, pause: bool) {
        let mut faults = self.faults.lock().unwrap();
        // One that is not counted up never strikes.
        if pause != (faults.every >= PAUSED) {
            faults.every = if pause { faults.every + PAUSED } else { faults.every - PAUSED };
        }
    }

    /// Returns the faults since the last call.
    pub(crate) fn struck(&self) -> Vec<Fault> {
        std::mem::take(&mut self.faults.lock().unwrap().struck)
    }

    fn strike(&self, possible: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        if faults.every == 0 || faults.every >= PAUSED {
            return None;
        }
        faults.count += 1;
        if !faults.count.is_multiple_of(faults.every) {
            return None;
        }
        let kinds = faults.kinds.len();
        let fault = (0..kinds).map(|n| faults.kinds[(faults.next + n) % kinds]).find(|fault| possible(*fault))?;
        faults.next += 1;
        if faults.once {
            faults.every = 0;
        }
        faults.struck.push(fault);
        Some(fault)
    }

    fn wait(&self) {
        if self.delays == 0 {
            return;
        }
        let (late, long) = {
            let mut random = self.random.lock().unwrap();
            (random.below(self.delays) == 0, random.below(100))
        };
        match long {
            _ if !late => {}
            0..50 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(long)),
        }
    }

    fn arrive(&self, offset: u64, len: u64, requests: usize) {
        let Some(log) = &self.log else { return };
        let mut log = log.lock().unwrap();
        let zone = offset / self.zone_len;
        let overlaps = std::mem::replace(&mut log.busy[zone as usize], true);
        log.arrivals.push(Arrival { zone, at: Some(offset % self.zone_len), len, requests, overlaps });
    }

    fn depart(&self, offset: u64) {
        let Some(log) = &self.log else { return };
        log.lock().unwrap().busy[(offset / self.zone_len) as usize] = false;
    }

    fn zoned_inner(&self) -> &dyn ZonedStore {
        self.inner.zoned().unwrap()
    }

    /// Whether the zone has its pointer here, and room.
    fn can_take(&self, len: u64, offset: u64) -> bool {
        let mut zone = [Zone::UNKNOWN];
        let reported = self.zoned_inner().report(offset, &mut zone);
        let [Zone { start, capacity, write_pointer, kind, .. }] = zone;
        kind == ZoneKind::Conventional
            || reported == Ok(1) && write_pointer == Some(offset) && offset + len <= start + capacity
    }

    fn write_as_one(&self, data: &[u8], offset: u64, durable: bool, requests: usize) -> Result<usize, Errno> {
        self.arrive(offset, data.len() as u64, requests);
        self.wait();
        let written = self.write(data, offset, durable);
        self.hold_back();
        self.depart(offset);
        written
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<usize, Errno> {
        let granularity = self.zoned_inner().limits().write_granularity as usize;
        let half = (data.len() / 2).next_multiple_of(granularity).min(data.len());
        // What would be refused as a whole is not taken in part.
        let whole = self.can_take(data.len() as u64, offset);
        let write = |data: &[u8]| match durable {
            true => self.inner.write_at(data, offset).and_then(|written| self.inner.sync().map(|()| written)),
            false => self.inner.write_at(data, offset),
        };
        match self.strike(|fault| whole || !matches!(fault, Fault::Short | Fault::Torn(_))) {
            None => write(data),
            Some(Fault::Before(errno)) => Err(errno),
            Some(Fault::Short) => write(&data[..half]),
            Some(Fault::Torn(errno)) => write(&data[..half]).and(Err(errno)),
            Some(Fault::After(errno)) => write(data).and(Err(errno)),
            Some(Fault::Nothing) => Ok(0),
            Some(Fault::Taken) => self.inner.write_at(&vec![0x5a; data.len()], offset).and(Err(Errno::IO)),
        }
    }
}

const PAUSED: u64 = 1 << 60;

/// Alignment of memory, as for a drive with direct I/O.
const ALIGNMENT: usize = 512;

fn check_alignment(data: &[u8]) -> Result<(), Errno> {
    if data.as_ptr().addr().is_multiple_of(ALIGNMENT) { Ok(()) } else { Err(Errno::INVAL) }
}

impl BackingStore for Trouble {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        profile.memory_alignment = ALIGNMENT;
        // As drives have it, which report a write that landed and could not be made durable.
        profile.has_native_fua = true;
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        check_alignment(data)?;
        match self.strike(|fault| !matches!(fault, Fault::Torn(_) | Fault::After(_))) {
            None => self.inner.read_at(data, offset),
            Some(Fault::Short) => {
                let half = data.len().div_ceil(2).next_multiple_of(ALIGNMENT).min(data.len());
                self.inner.read_at(&mut data[..half], offset)
            }
            Some(Fault::Nothing) => Ok(0),
            Some(fault) => Err(fault.errno()),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        check_alignment(data)?;
        self.write_as_one(data, offset, false, 1)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        check_alignment(data)?;
        self.write_as_one(data, offset, true, 1)
    }

    /// One write, as it is for a drive.
    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        parts.iter().try_for_each(|part| check_alignment(part))?;
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.write_as_one(&whole, offset, false, parts.len())
    }

    fn sync(&self) -> Result<(), Errno> {
        match self.strike(|fault| matches!(fault, Fault::Before(_)) && !fault.is_transient()) {
            Some(fault) => Err(fault.errno()),
            None => self.inner.sync(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.inner.discard(offset, len)
    }

    fn zoned(&self) -> Option<&dyn ZonedStore> {
        Some(self)
    }
}

impl ZonedStore for Trouble {
    fn limits(&self) -> ZoneLimits {
        let mut limits = self.zoned_inner().limits();
        limits.longest_write = self.longest_write;
        limits
    }

    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno> {
        match self.strike(|fault| matches!(fault, Fault::Before(_)) && !fault.is_transient()) {
            Some(fault) => Err(fault.errno()),
            None => self.zoned_inner().report(offset, into),
        }
    }

    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        if let (Some(log), ZoneAction::Reset) = (&self.log, action) {
            let arrival = Arrival { zone: offset / self.zone_len, at: None, len: 0, requests: 0, overlaps: false };
            log.lock().unwrap().arrivals.push(arrival);
        }
        match self.strike(|fault| matches!(fault, Fault::Before(_) | Fault::After(_)) && !fault.is_transient()) {
            None => self.zoned_inner().manage(action, offset, len),
            Some(Fault::After(errno)) => self.zoned_inner().manage(action, offset, len).and(Err(errno)),
            Some(fault) => Err(fault.errno()),
        }
    }
}
