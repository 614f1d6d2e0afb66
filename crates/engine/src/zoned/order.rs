//! The order of writes in sequential zones: one table for all workers and callers of a device.
//!
//! A write gets a *ticket* when it begins, and tickets of a zone form a queue. Cipher work goes on in any order; what then
//! goes to the store is the head of the queue, alone, so the store sees each zone's writes one after the other in the order
//! in which they were submitted. A write is not judged here: one that is not at the write pointer goes to the store in its
//! turn, and fails as it would there. An append is placed where the zone's queue will have written to, before it is
//! encrypted; when a write fails, the pointer is read again, and what was placed behind is placed anew.
//!
//! Requests of several front end queues may overtake each other on the way here. A write that is ahead of the pointer is
//! *held* until each worker has had two turns, in which the ones before it would have come.

use super::{Zone, ZoneAction, ZoneKind, ZoneLimits, ZonedStore};
use crate::request::RequestError;
use crate::ring::Waker;
use crate::store::BackingStore;
use crate::unaligned::Granted;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// No ticket.
const NONE: u32 = u32::MAX;
/// How often an append is placed anew because others write to its zone.
const MAX_MOVES: u8 = 8;
/// Workers that are told apart; later ones share the last bit, and may end a wait early.
const SEATS: u32 = 64;

/// A place in the queue of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketId(u32);

/// Orders to zones that wait for their writes, or are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActionId(u32);

/// What a write finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// No order is asked for.
    Free,
    /// It is in its zone's queue, and goes to this position of the store.
    Placed(TicketId, u64),
    /// It waits for those before it; it will be told when it may begin.
    Held(TicketId),
}

/// What becomes of a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It has left the queue. The next one may belong to the same waiter: its token.
    Gone(Option<u64>),
    /// It was placed where the zone's pointer was not, and is to be written here instead.
    Again(u64),
}

/// Who is told that it is a ticket's turn.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// A worker, by a message.
    Message(Arc<dyn Granted>, u64),
    /// A thread that sleeps until something has changed, and looks.
    Thread,
}

/// The queues of a store's zones.
pub(crate) struct ZoneOrder {
    store: Arc<dyn BackingStore>,
    limits: ZoneLimits,
    table: Mutex<Table>,
    changed: Condvar,
    /// Writes that are ahead of their zone's pointer.
    held: AtomicUsize,
}

struct Table {
    zones: Vec<State>,
    tickets: Vec<Ticket>,
    free: Vec<u32>,
    held: Vec<u32>,
    actions: Vec<Option<Action>>,
    seats: Vec<(u64, Waker)>,
    /// How many tickets there is memory for.
    room: usize,
    /// Somebody of [`Waiter::Thread`] has to look.
    wakes: bool,
}

#[derive(Clone, Copy)]
struct State {
    /// Whether the store was asked.
    known: bool,
    sequential: bool,
    /// Where its capacity ends.
    end: u64,
    /// The store's write pointer; `end` where the zone takes no writes.
    written: u64,
    /// Where the pointer will be when the queue is done.
    pointer: u64,
    head: u32,
    tail: u32,
}

struct Ticket {
    zone: u32,
    next: u32,
    position: u64,
    len: u64,
    kind: TicketKind,
    ready: bool,
    granted: bool,
    moves: u8,
    /// Of one that is held: who has had a turn since, and who another.
    turned: [u64; 2],
    waiter: Option<Waiter>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TicketKind {
    Write,
    Append,
    Action(u32, ZoneAction),
}

struct Action {
    action: ZoneAction,
    ranges: Vec<Range<u64>>,
    tickets: Vec<u32>,
    /// Zones whose queues have not come to it.
    missing: usize,
    waiter: Waiter,
}

impl ZoneOrder {
    /// For a store that has zones.
    pub(crate) fn new(store: &Arc<dyn BackingStore>) -> Self {
        let limits = store.zoned().expect("only made for stores that have zones").limits();
        let unknown = State { known: false, sequential: true, end: 0, written: 0, pointer: 0, head: NONE, tail: NONE };
        let table = Table {
            zones: vec![unknown; limits.zones as usize],
            tickets: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            actions: Vec::new(),
            seats: Vec::new(),
            room: 0,
            wakes: false,
        };
        let (table, changed, held) = (Mutex::new(table), Condvar::new(), AtomicUsize::new(0));
        Self { store: Arc::clone(store), limits, table, changed, held }
    }

    /// What is true of all zones of the store.
    pub(crate) fn limits(&self) -> ZoneLimits {
        self.limits
    }

    /// Where the write pointer of the zone around `position` is, as far as the store is known to have written.
    pub(crate) fn written(&self, position: u64) -> Result<u64, Errno> {
        let mut table = self.table();
        let zone = self.zones_of(position, 1).start;
        self.know(&mut table, zone).map_err(RequestError::errno)?;
        Ok(table.zones[zone].written)
    }

    /// Whether a stretch of the store touches a sequential zone.
    pub(crate) fn is_sequential(&self, position: u64, len: u64) -> Result<bool, RequestError> {
        let mut table = self.table();
        for zone in self.zones_of(position, len) {
            self.know(&mut table, zone)?;
            if table.zones[zone].sequential {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a stretch of the store lies in several zones, not all of them conventional.
    pub(crate) fn crosses(&self, position: u64, len: u64) -> Result<bool, RequestError> {
        Ok(self.zones_of(position, len).len() > 1 && self.is_sequential(position, len)?)
    }

    /// Makes room for `more` tickets at a time.
    pub(crate) fn reserve(&self, more: usize) {
        let mut table = self.table();
        table.room += more;
        let room = table.room;
        let Table { tickets, free, held, .. } = &mut *table;
        tickets.reserve(room.saturating_sub(tickets.len()));
        free.reserve(room.saturating_sub(free.len()));
        held.reserve(room.saturating_sub(held.len()));
    }

    /// A worker that `waker` wakes; its seat.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut table = self.table();
        let taken = |bit: u32| table.seats.iter().any(|(seat, _)| *seat == 1 << bit);
        let seat = 1 << (0..SEATS - 1).find(|bit| !taken(*bit)).unwrap_or(SEATS - 1);
        table.seats.push((seat, waker));
        seat
    }

    /// A worker has ended.
    pub(crate) fn leave_seat(&self, seat: u64) {
        let mut table = self.table();
        if let Some(index) = table.seats.iter().position(|(s, _)| *s == seat) {
            table.seats.remove(index);
        }
        self.expire(&mut table);
        self.end(table);
    }

    /// Whether some are held, so that [`ZoneOrder::turned`] has to be called.
    pub(crate) fn has_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// A worker has come to the end of a turn.
    pub(crate) fn turned(&self, seat: u64) {
        let mut table = self.table();
        let Table { held, tickets, .. } = &mut *table;
        for index in held.iter() {
            let [first, second] = &mut tickets[*index as usize].turned;
            if *first & seat == 0 { *first |= seat } else { *second |= seat }
        }
        self.expire(&mut table);
        table.wake_seats();
        self.end(table);
    }

    /// Puts a write of `len` bytes at `position` of the store into its zone's queue, or an append wherever that ends. `may_hold`:
    /// a write that is ahead of the pointer waits for those before it.
    ///
    /// # Errors
    ///
    /// `EIO` for a write across the end of a zone, and an append that does not fit or is not to a sequential zone.
    pub(crate) fn admit(
        &self,
        position: u64,
        len: u64,
        append: bool,
        may_hold: bool,
        waiter: Waiter,
    ) -> Result<Admission, RequestError> {
        const REFUSED: RequestError = RequestError::Io(Errno::IO);
        let mut table = self.table();
        let zones = self.zones_of(position, len);
        for zone in zones.clone() {
            self.know(&mut table, zone)?;
        }
        if !zones.clone().any(|zone| table.zones[zone].sequential) {
            return if append { Err(REFUSED) } else { Ok(Admission::Free) };
        }
        if zones.len() > 1 {
            return Err(REFUSED);
        }
        let zone = zones.start;
        let State { pointer, end, .. } = table.zones[zone];
        let kind = if append { TicketKind::Append } else { TicketKind::Write };
        let position = if append { pointer } else { position };
        if append && pointer + len > end {
            return Err(REFUSED);
        }
        let ticket = Ticket {
            zone: zone as u32,
            next: NONE,
            position,
            len,
            kind,
            ready: false,
            granted: false,
            moves: 0,
            turned: [0; 2],
            waiter: Some(waiter),
        };
        let index = table.add(ticket);
        if may_hold && position > pointer && position < end {
            table.held.push(index);
            self.held.store(table.held.len(), Ordering::Release);
            table.wake_seats();
            return Ok(Admission::Held(TicketId(index)));
        }
        self.place(&mut table, index);
        self.end(table);
        Ok(Admission::Placed(TicketId(index), position))
    }

    /// Takes a held write back, as if it had not come. False: it is held no more, and is told so.
    pub(crate) fn unhold(&self, ticket: TicketId) -> bool {
        let mut table = self.table();
        let Some(at) = table.held.iter().position(|index| *index == ticket.0) else { return false };
        table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.remove(ticket.0);
        true
    }

    /// The write is encrypted. True: it is its turn; otherwise it is told.
    pub(crate) fn ready(&self, ticket: TicketId) -> bool {
        let mut table = self.table();
        let ticket = &mut table.tickets[ticket.0 as usize];
        ticket.ready = true;
        let zone = ticket.zone as usize;
        let State { head, .. } = table.zones[zone];
        let first = &mut table.tickets[head as usize];
        if !first.ready || first.granted {
            return false;
        }
        // Nobody else was ready, so it is this one.
        first.granted = true;
        true
    }

    /// As [`ZoneOrder::ready`], on a thread that waits for its turn.
    pub(crate) fn ready_blocking(&self, ticket: TicketId) {
        if !self.ready(ticket) {
            self.wait(|table| table.tickets[ticket.0 as usize].granted);
        }
    }

    /// Where the write goes, as of now. It stays so once it is its turn.
    pub(crate) fn position(&self, ticket: TicketId) -> u64 {
        self.table().tickets[ticket.0 as usize].position
    }

    /// The write, whose turn it was, has ended.
    pub(crate) fn settle(&self, ticket: TicketId, succeeded: bool, me: Option<&Arc<dyn Granted>>) -> Settled {
        let mut table = self.table();
        let Ticket { zone, position, len, kind, moves, .. } = table.tickets[ticket.0 as usize];
        let zone = zone as usize;
        if succeeded {
            let state = &mut table.zones[zone];
            let expected = std::mem::replace(&mut state.written, position + len) == position;
            table.unlink(ticket.0);
            if !expected {
                self.replace(&mut table, zone);
            }
        } else {
            table.zones[zone].known = false;
            // Who cannot be asked now is asked by the next one.
            let known = self.know(&mut table, zone).is_ok();
            let State { written, end, .. } = table.zones[zone];
            let touched = written >= position && written <= position + len;
            let elsewhere = known && kind == TicketKind::Append && !touched && written + len <= end;
            if elsewhere && moves < MAX_MOVES {
                let ticket = &mut table.tickets[ticket.0 as usize];
                (ticket.position, ticket.moves) = (written, moves + 1);
                self.replace(&mut table, zone);
                self.end(table);
                return Settled::Again(written);
            }
            table.unlink(ticket.0);
            self.replace(&mut table, zone);
        }
        let next = table.go(zone, me);
        self.end(table);
        Settled::Gone(next)
    }

    /// The write is given up before its turn, or without having been held.
    pub(crate) fn leave(&self, ticket: TicketId, me: Option<&Arc<dyn Granted>>) -> Option<u64> {
        if self.unhold(ticket) {
            return None;
        }
        let mut table = self.table();
        let zone = table.tickets[ticket.0 as usize].zone as usize;
        table.unlink(ticket.0);
        self.replace(&mut table, zone);
        let next = table.go(zone, me);
        self.end(table);
        next
    }

    /// Puts an order to whole zones, which lie in these ranges of the store, into the queues of all of them. True: it is its
    /// turn; otherwise it is told.
    pub(crate) fn admit_action(&self, action: ZoneAction, ranges: Vec<Range<u64>>, waiter: Waiter) -> (ActionId, bool) {
        let mut table = self.table();
        let free = table.actions.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            table.actions.push(None);
            table.actions.len() - 1
        });
        let zones = ranges.iter().flat_map(|range| self.zones_of(range.start, range.end - range.start));
        let mut tickets = Vec::new();
        for zone in zones {
            let kind = TicketKind::Action(number as u32, action);
            let (position, len, turned) = (0, 0, [0; 2]);
            let (ready, granted, moves, waiter) = (true, false, 0, None);
            let zone = zone as u32;
            let ticket = Ticket { zone, next: NONE, position, len, kind, ready, granted, moves, turned, waiter };
            tickets.push(table.add(ticket));
        }
        let (missing, all) = (tickets.len(), tickets.clone());
        table.actions[number] = Some(Action { action, ranges, tickets, missing, waiter });
        for index in all {
            let zone = table.tickets[index as usize].zone as usize;
            table.link(index);
            let start = self.start_of(zone);
            let state = &mut table.zones[zone];
            state.pointer = state.after(action, start);
            if table.zones[zone].head == index {
                table.tickets[index as usize].granted = true;
                table.action(number).missing -= 1;
            }
        }
        let now = table.action(number).missing == 0;
        (ActionId(number as u32), now)
    }

    /// As [`ZoneOrder::admit_action`], on a thread that waits for its turn.
    pub(crate) fn admit_action_blocking(&self, action: ZoneAction, ranges: Vec<Range<u64>>) -> ActionId {
        let (id, now) = self.admit_action(action, ranges, Waiter::Thread);
        if !now {
            self.wait(|table| table.actions[id.0 as usize].as_ref().is_none_or(|action| action.missing == 0));
        }
        id
    }

    /// Carries out an order whose turn it is, and lets the writes behind it go on. Blocks.
    pub(crate) fn carry_out(&self, id: ActionId) -> Result<(), Errno> {
        let (action, ranges) = {
            let mut table = self.table();
            let order = table.action(id.0 as usize);
            (order.action, order.ranges.clone())
        };
        let result = self.manage(action, &ranges);
        self.leave_action(id);
        result
    }

    /// An order that was carried out, or is given up, leaves the queues.
    pub(crate) fn leave_action(&self, id: ActionId) {
        let mut table = self.table();
        let order = table.actions[id.0 as usize].take().expect("an order stays until it was carried out");
        for index in order.tickets {
            let zone = table.tickets[index as usize].zone as usize;
            table.zones[zone].known = false;
            table.unlink(index);
            if table.zones[zone].head != NONE {
                // A store that does not answer now fails the next write.
                let _ = self.know(&mut table, zone);
                self.replace(&mut table, zone);
                table.go(zone, None);
            }
        }
        self.end(table);
    }

    fn manage(&self, action: ZoneAction, ranges: &[Range<u64>]) -> Result<(), Errno> {
        let store = self.zoned();
        if action != ZoneAction::ResetAll {
            return ranges.iter().try_for_each(|range| store.manage(action, range.start, range.end - range.start));
        }
        let len: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if len == self.store.geometry().len {
            return store.manage(action, 0, len);
        }
        // Other zones of the store are not this device's.
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let mut zones = [Zone::UNKNOWN; 64];
                let count = store.report(at, &mut zones)?;
                for zone in zones[..count].iter().filter(|zone| zone.start < range.end && zone.can_be_reset()) {
                    store.manage(ZoneAction::Reset, zone.start, zone.len)?;
                }
                at = zones[..count].last().map_or(range.end, |zone| zone.start + zone.len);
            }
        }
        Ok(())
    }

    fn zoned(&self) -> &dyn ZonedStore {
        self.store.zoned().expect("only made for stores that have zones")
    }

    fn start_of(&self, zone: usize) -> u64 {
        zone as u64 * self.limits.zone_len
    }

    fn zones_of(&self, position: u64, len: u64) -> Range<usize> {
        let last = self.limits.zone_of(position + len.max(1) - 1).min(u64::from(self.limits.zones) - 1);
        self.limits.zone_of(position) as usize..last as usize + 1
    }

    /// Asks the store about a zone where that was not done, or something has gone wrong since.
    fn know(&self, table: &mut Table, zone: usize) -> Result<(), RequestError> {
        let state = &mut table.zones[zone];
        if state.known {
            return Ok(());
        }
        let mut reported = [Zone::UNKNOWN];
        if self.zoned().report(self.start_of(zone), &mut reported)? != 1 {
            return Err(RequestError::Io(Errno::IO));
        }
        let [found] = reported;
        state.known = true;
        state.sequential = found.kind == ZoneKind::SequentialRequired;
        state.end = found.start + found.capacity;
        state.written = found.write_pointer.unwrap_or(state.end).min(state.end);
        self.replace(table, zone);
        Ok(())
    }

    /// Appends a ticket to its zone's queue, and lets those that were held for it follow.
    fn place(&self, table: &mut Table, index: u32) {
        table.link(index);
        let Ticket { zone, position, len, .. } = table.tickets[index as usize];
        let state = &mut table.zones[zone as usize];
        if state.pointer == position {
            state.pointer += len;
            self.follow(table, zone as usize);
        }
    }

    /// Places the writes that were held and are at the pointer now.
    fn follow(&self, table: &mut Table, zone: usize) {
        loop {
            let pointer = table.zones[zone].pointer;
            let fits = |index: &u32| {
                let ticket = &table.tickets[*index as usize];
                ticket.zone as usize == zone && ticket.position == pointer
            };
            let Some(at) = table.held.iter().position(fits) else { return };
            self.admit_held(table, at);
            let state = &mut table.zones[zone];
            state.pointer += table.tickets[state.tail as usize].len;
        }
    }

    /// Puts the held write at `at` of the list into its queue, and tells it.
    fn admit_held(&self, table: &mut Table, at: usize) {
        let index = table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.link(index);
        if let Some(Waiter::Message(to, token)) = &table.tickets[index as usize].waiter {
            to.granted(*token);
        }
    }

    /// Those that were held long enough go where they want to, and fail.
    fn expire(&self, table: &mut Table) {
        let seats = table.seats.iter().fold(0, |all, (seat, _)| all | seat);
        let is_over = |table: &Table, at: usize| {
            let [_, second] = table.tickets[table.held[at] as usize].turned;
            second & seats == seats
        };
        while let Some(at) = (0..table.held.len()).find(|at| is_over(table, *at)) {
            self.admit_held(table, at);
        }
    }

    /// Computes anew where the queue of a zone leads to, and places its appends there.
    fn replace(&self, table: &mut Table, zone: usize) {
        let (start, mut at) = (self.start_of(zone), table.zones[zone].head);
        let mut state = table.zones[zone];
        state.pointer = state.written;
        while at != NONE {
            let ticket = &mut table.tickets[at as usize];
            match ticket.kind {
                TicketKind::Append if !ticket.granted => {
                    ticket.position = state.pointer;
                    state.pointer += ticket.len;
                }
                TicketKind::Action(_, action) => state.pointer = state.after(action, start),
                _ if ticket.position == state.pointer => state.pointer += ticket.len,
                _ => {}
            }
            at = ticket.next;
        }
        table.zones[zone].pointer = state.pointer;
        self.follow(table, zone);
    }

    fn wait(&self, ready: impl Fn(&Table) -> bool) {
        let waiting = self.changed.wait_while(self.table(), |table| !ready(table));
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, mut table: MutexGuard<'_, Table>) {
        let wakes = std::mem::take(&mut table.wakes);
        drop(table);
        if wakes {
            self.changed.notify_all();
        }
    }
}

impl State {
    /// Where the pointer is after `action`, if that succeeds.
    fn after(&self, action: ZoneAction, start: u64) -> u64 {
        match action {
            ZoneAction::Reset | ZoneAction::ResetAll => start,
            ZoneAction::Finish => self.end,
            ZoneAction::Open | ZoneAction::Close => self.pointer,
        }
    }
}

impl Table {
    fn add(&mut self, ticket: Ticket) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.tickets[index as usize] = ticket;
                index
            }
            None => {
                self.tickets.push(ticket);
                (self.tickets.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, index: u32) {
        self.tickets[index as usize].waiter = None;
        self.free.push(index);
    }

    fn link(&mut self, index: u32) {
        let state = &mut self.zones[self.tickets[index as usize].zone as usize];
        match std::mem::replace(&mut state.tail, index) {
            NONE => state.head = index,
            last => self.tickets[last as usize].next = index,
        }
    }

    /// Takes a ticket out of its queue, mostly the first.
    fn unlink(&mut self, index: u32) {
        let Ticket { zone, next, .. } = self.tickets[index as usize];
        let state = &mut self.zones[zone as usize];
        let mut before = NONE;
        let mut at = state.head;
        while at != index {
            assert_ne!(at, NONE, "a ticket is in the queue of its zone");
            before = at;
            at = self.tickets[at as usize].next;
        }
        match before {
            NONE => state.head = next,
            before => self.tickets[before as usize].next = next,
        }
        if state.tail == index {
            state.tail = before;
        }
        self.remove(index);
    }

    /// Gives the first of a zone's queue its turn, if it is ready. A token is returned where `me` is the one to be told.
    fn go(&mut self, zone: usize, me: Option<&Arc<dyn Granted>>) -> Option<u64> {
        let head = self.zones[zone].head;
        if head == NONE {
            return None;
        }
        let ticket = &mut self.tickets[head as usize];
        if !ticket.ready || ticket.granted {
            return None;
        }
        ticket.granted = true;
        let waiter = match ticket.kind {
            TicketKind::Action(number, _) => {
                let action = self.actions[number as usize].as_mut().expect("an order stays until it was carried out");
                action.missing -= 1;
                if action.missing > 0 {
                    return None;
                }
                &action.waiter
            }
            _ => ticket.waiter.as_ref()?,
        };
        match waiter {
            Waiter::Message(to, token) if me.is_some_and(|me| Arc::ptr_eq(me, to)) => return Some(*token),
            Waiter::Message(to, token) => to.granted(*token),
            Waiter::Thread => self.wakes = true,
        }
        None
    }

    fn action(&mut self, number: usize) -> &mut Action {
        self.actions[number].as_mut().expect("an order stays until it was carried out")
    }

    /// Those whose turns are waited for.
    fn wake_seats(&self) {
        let waited = self.held.iter().map(|index| self.tickets[*index as usize].turned[1]);
        let Some(all) = waited.reduce(|all, seen| all & seen) else { return };
        self.seats.iter().filter(|(seat, _)| all & seat == 0).for_each(|(_, waker)| waker.wake());
    }
}
