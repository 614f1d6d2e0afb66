//! States of all zones of a zoned file, and their changes by writes and zone management. No I/O.
//!
//! The conditions and their changes are those of the zoned block device standards. At the limit of open zones, an
//! implicitly open zone is closed, a different one each time.

use crate::layout::ZonedLayout;
use inlock_engine::Errno;
use inlock_engine::zoned::{Zone, ZoneAction, ZoneCondition, ZoneKind};

/// The state of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Number of written bytes, from the start of the zone.
    pub written: u64,
    /// Its condition.
    pub condition: ZoneCondition,
    /// Grows with every change.
    pub sequence: u64,
}

impl State {
    /// Returns the state of an unused zone.
    pub(crate) fn new(layout: &ZonedLayout, zone: u32) -> Self {
        let condition = match layout.kind(zone) {
            ZoneKind::Conventional => ZoneCondition::NotWritePointer,
            _ => ZoneCondition::Empty,
        };
        Self { written: 0, condition, sequence: 0 }
    }

    /// Whether a zone of `layout` can be in this state.
    pub(crate) fn is_possible(&self, layout: &ZonedLayout, zone: u32) -> bool {
        if layout.kind(zone) == ZoneKind::Conventional {
            return self.condition == ZoneCondition::NotWritePointer && self.written == 0;
        }
        let capacity = layout.capacity_of(zone);
        let whole = self.written.is_multiple_of(u64::from(layout.write_granularity)) && self.written <= capacity;
        whole
            && match self.condition {
                ZoneCondition::Empty => self.written == 0,
                ZoneCondition::Closed | ZoneCondition::ImplicitOpen | ZoneCondition::ExplicitOpen => {
                    self.written < capacity
                }
                ZoneCondition::Full | ZoneCondition::ReadOnly | ZoneCondition::Offline => true,
                _ => false,
            }
    }

    /// Returns the state after a power cut, when no zone is open.
    pub(crate) fn at_rest(self) -> Self {
        let condition = match self.condition {
            active if active.is_active() && self.written == 0 => ZoneCondition::Empty,
            active if active.is_active() => ZoneCondition::Closed,
            other => other,
        };
        Self { condition, ..self }
    }
}

/// The states of all zones.
#[derive(Debug)]
pub(crate) struct States {
    layout: ZonedLayout,
    zones: Vec<Entry>,
    /// Numbers of open zones, of implicitly open ones, and of open or closed ones.
    open: u32,
    implicit: u32,
    active: u32,
    /// Start of the search for a zone to close.
    pub next_to_close: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// A write is in flight.
    writing: bool,
}

impl States {
    pub(crate) fn new(layout: ZonedLayout, states: impl Iterator<Item = State>) -> Self {
        let zones: Vec<_> = states.map(|state| Entry { state, writing: false }).collect();
        let mut this = Self { layout, zones, open: 0, implicit: 0, active: 0, next_to_close: layout.conventional };
        for zone in 0..this.zones.len() {
            this.count(this.zones[zone].state.condition, 1);
        }
        this
    }

    /// Returns the state of a zone.
    pub(crate) fn get(&self, zone: u32) -> State {
        self.zones[zone as usize].state
    }

    /// Sets a state unchanged.
    pub(crate) fn put(&mut self, zone: u32, state: State) {
        self.count(self.get(zone).condition, -1);
        self.zones[zone as usize].state = state;
        self.count(state.condition, 1);
    }

    fn count(&mut self, condition: ZoneCondition, by: i32) {
        let add = |count: &mut u32, of_this: bool| {
            if of_this {
                *count = count.wrapping_add_signed(by);
            }
        };
        add(&mut self.open, condition.is_open());
        add(&mut self.implicit, condition == ZoneCondition::ImplicitOpen);
        add(&mut self.active, condition.is_active());
    }

    fn change(&mut self, zone: u32, condition: ZoneCondition) {
        let state = self.get(zone);
        self.put(zone, State { condition, sequence: state.sequence + 1, ..state });
    }

    /// Returns the zone for a report.
    pub(crate) fn report(&self, zone: u32) -> Zone {
        let range = self.layout.range(zone);
        let State { written, condition, .. } = self.get(zone);
        let write_pointer = match condition {
            ZoneCondition::NotWritePointer | ZoneCondition::ReadOnly | ZoneCondition::Offline => None,
            ZoneCondition::Full => Some(range.end),
            _ => Some(range.start + written),
        };
        let mut reported = Zone::new(range.start, range.end - range.start);
        reported.capacity = self.layout.capacity_of(zone);
        reported.write_pointer = write_pointer;
        reported.kind = self.layout.kind(zone);
        reported.condition = condition;
        reported
    }

    /// Starts a write of `len` bytes at `at`, counted from the start of the zone, and opens the zone. Returns the zone
    /// that was closed for it, if any. [`States::end_write`] must follow.
    pub(crate) fn begin_write(&mut self, zone: u32, at: u64, len: u64) -> Result<Option<u32>, Errno> {
        let state = self.get(zone);
        let takes_writes = state.condition.is_active() || state.condition == ZoneCondition::Empty;
        if !takes_writes || at != state.written || len > self.layout.capacity_of(zone) - state.written {
            return Err(Errno::IO);
        }
        let mut closed = None;
        if !state.condition.is_open() {
            closed = self.make_room_for(zone)?;
            self.change(zone, ZoneCondition::ImplicitOpen);
        }
        self.zones[zone as usize].writing = true;
        Ok(closed)
    }

    /// Ends the write, of which `len` bytes were written, and moves the write pointer.
    pub(crate) fn end_write(&mut self, zone: u32, len: u64) {
        self.zones[zone as usize].writing = false;
        let mut state = self.get(zone);
        state.written += len;
        state.sequence += 1;
        state.condition = match state.condition {
            _ if state.written == self.layout.capacity_of(zone) => ZoneCondition::Full,
            // It was closed for another zone meanwhile.
            ZoneCondition::Closed if state.written == 0 => ZoneCondition::Empty,
            condition => condition,
        };
        self.put(zone, state);
    }

    /// Opens, closes or finishes a zone. Returns the zone that was closed for it, if any.
    pub(crate) fn act(&mut self, action: ZoneAction, zone: u32) -> Result<Option<u32>, Errno> {
        use ZoneCondition::{Closed, Empty, ExplicitOpen, Full, ImplicitOpen};
        let state = self.get(zone);
        let mut closed = None;
        match (action, state.condition) {
            (ZoneAction::Open, ExplicitOpen) | (ZoneAction::Close, Closed) | (ZoneAction::Finish, Full) => {}
            (ZoneAction::Open, Empty | Closed | ImplicitOpen) => {
                if state.condition != ImplicitOpen {
                    closed = self.make_room_for(zone)?;
                }
                self.change(zone, ExplicitOpen);
            }
            (ZoneAction::Close, ImplicitOpen | ExplicitOpen) => self.close(zone),
            (ZoneAction::Finish, Empty | Closed | ImplicitOpen | ExplicitOpen) => {
                // A zone is open while it is being finished.
                if !state.condition.is_open() {
                    closed = self.make_room_for(zone)?;
                }
                self.change(zone, Full);
            }
            _ => return Err(Errno::IO),
        }
        Ok(closed)
    }

    /// Returns the state after a reset; `None`: the zone is empty already.
    pub(crate) fn reset(&self, zone: u32) -> Result<Option<State>, Errno> {
        let state = self.get(zone);
        match state.condition {
            ZoneCondition::Empty => Ok(None),
            ZoneCondition::NotWritePointer | ZoneCondition::ReadOnly | ZoneCondition::Offline => Err(Errno::IO),
            _ => {
                // Before this state is set, the zone may be closed for another one, which is a change too.
                let sequence = state.sequence + 2;
                Ok(Some(State { written: 0, condition: ZoneCondition::Empty, sequence }))
            }
        }
    }

    /// Makes a zone read-only or offline.
    pub(crate) fn retire(&mut self, zone: u32, condition: ZoneCondition) -> Result<(), Errno> {
        let retired = matches!(condition, ZoneCondition::ReadOnly | ZoneCondition::Offline);
        if !retired || self.layout.kind(zone) == ZoneKind::Conventional {
            return Err(Errno::INVAL);
        }
        self.change(zone, condition);
        Ok(())
    }

    fn close(&mut self, zone: u32) {
        let Entry { state, writing } = self.zones[zone as usize];
        let untouched = state.written == 0 && !writing;
        self.change(zone, if untouched { ZoneCondition::Empty } else { ZoneCondition::Closed });
    }

    /// Closes another zone if that is needed to open this one, and returns it.
    fn make_room_for(&mut self, zone: u32) -> Result<Option<u32>, Errno> {
        let (max_open, max_active) = (self.layout.max_open, self.layout.max_active);
        if !self.get(zone).condition.is_active() && max_active != 0 && self.active >= max_active {
            return Err(Errno::OVERFLOW);
        }
        if max_open == 0 || self.open < max_open {
            return Ok(None);
        }
        if self.implicit == 0 {
            return Err(Errno::TOOMANYREFS);
        }
        let (first, zones) = (self.layout.conventional, self.layout.zones());
        let mut candidates = (self.next_to_close..zones).chain(first..self.next_to_close);
        let closed = candidates.find(|zone| self.get(*zone).condition == ZoneCondition::ImplicitOpen);
        let closed = closed.expect("the zones that are counted as implicitly open are among the sequential ones");
        self.close(closed);
        self.next_to_close = if closed + 1 == zones { first } else { closed + 1 };
        Ok(Some(closed))
    }
}
