//! The table behind [`super::ZoneWriteQueues`]: the queues of the zones, and who is told when the first of one may go.
//!
//! Tickets lie in one vector, and queues are lists of indices through it: nothing is allocated for a write.

use super::{WriteId, WriteKind};
use crate::crypt_mapping::Ciphertext;
use crate::events::{Event, EventQueue, ReplyTo, RequestId};
use crate::ring::Waker;
use crate::zoned::ZoneAction;
use std::ops::Range;
use std::sync::Arc;

/// No write.
pub(super) const NONE: u32 = u32::MAX;

/// Where a write or a zone management operation waits.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// In a worker.
    Request(ReplyTo),
    /// A thread that sleeps until something has changed, and looks.
    Thread,
}

pub(super) struct Table {
    pub(super) zones: Vec<State>,
    pub(super) entries: Vec<QueuedWrite>,
    pub(super) free: Vec<u32>,
    pub(super) held: Vec<u32>,
    pub(super) actions: Vec<Option<Action>>,
    pub(super) workers: Vec<(u64, Waker)>,
    /// How many entries there is memory for.
    pub(super) room: usize,
    /// Somebody of [`Waiter::Thread`] has to look.
    pub(super) wakes: bool,
}

#[derive(Clone, Copy)]
pub(super) struct State {
    /// Whether the store was asked.
    pub(super) known: bool,
    pub(super) sequential: bool,
    /// Where its capacity ends.
    pub(super) end: u64,
    /// The store's write pointer; `end` where the zone takes no writes.
    pub(super) written: u64,
    /// Where the pointer will be when the queue is done.
    pub(super) pointer: u64,
    pub(super) head: u32,
    pub(super) tail: u32,
}

pub(super) struct QueuedWrite {
    pub(super) zone: u32,
    pub(super) next: u32,
    pub(super) position: u64,
    pub(super) len: u64,
    pub(super) kind: QueuedKind,
    pub(super) ready: bool,
    pub(super) granted: bool,
    /// It may go to the store together with those before and behind it.
    pub(super) can_merge: bool,
    /// What it writes, while it waits for its turn, and the position for which that is encrypted.
    pub(super) data: Option<(u64, Ciphertext)>,
    /// Who has its data, with others', and says what becomes of it.
    pub(super) lent: Option<Arc<EventQueue>>,
    /// How many entries have lain here before.
    pub(super) generation: u32,
    pub(super) moves: u8,
    /// Of one that is held: who has had a turn since, and who another.
    pub(super) turned: [u64; 2],
    pub(super) waiter: Option<Waiter>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueuedKind {
    Data(WriteKind),
    Action(u32, ZoneAction),
}

pub(super) struct Action {
    pub(super) action: ZoneAction,
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) entries: Vec<u32>,
    /// Zones whose queues have not come to it.
    pub(super) missing: usize,
    pub(super) waiter: Waiter,
}

impl State {
    /// Where the pointer is after `action`, if that succeeds.
    pub(super) fn after(&self, action: ZoneAction, start: u64) -> u64 {
        match action {
            ZoneAction::Reset | ZoneAction::ResetAll => start,
            ZoneAction::Finish => self.end,
            ZoneAction::Open | ZoneAction::Close => self.pointer,
        }
    }

    /// Whether there is no room for another `len` bytes when the queue is done.
    pub(super) fn is_short_of(&self, len: u64) -> bool {
        self.pointer + len > self.end
    }

    /// Where the pointer is after a write, if the store takes it.
    pub(super) fn after_write(&self, kind_of_write: WriteKind, position: u64, len: u64) -> u64 {
        let end = position + len;
        let takes = match kind_of_write {
            // The part that is there already is left out.
            WriteKind::Reissued => (position..end).contains(&self.pointer),
            WriteKind::Data | WriteKind::Append => position == self.pointer,
        };
        if takes && end <= self.end { end } else { self.pointer }
    }
}

impl QueuedWrite {
    pub(super) fn new(zone: u32, position: u64, len: u64, kind: QueuedKind, waiter: Option<Waiter>) -> Self {
        let (ready, granted, can_merge, moves, turned) = (false, false, false, 0, [0; 2]);
        let (next, data, lent, generation) = (NONE, None, None, 0);
        Self {
            zone,
            next,
            position,
            len,
            kind,
            ready,
            granted,
            can_merge,
            data,
            lent,
            generation,
            moves,
            turned,
            waiter,
        }
    }
}

impl Table {
    pub(super) fn new(zones: u32) -> Self {
        let unknown = State { known: false, sequential: true, end: 0, written: 0, pointer: 0, head: NONE, tail: NONE };
        Self {
            zones: vec![unknown; zones as usize],
            entries: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            actions: Vec::new(),
            workers: Vec::new(),
            room: 0,
            wakes: false,
        }
    }

    /// Makes sure that there is memory for `room` entries.
    pub(super) fn make_room(&mut self) {
        let Self { entries, free, held, room, .. } = self;
        entries.reserve(room.saturating_sub(entries.len()));
        free.reserve(room.saturating_sub(free.len()));
        held.reserve(room.saturating_sub(held.len()));
    }

    pub(super) fn add(&mut self, write: QueuedWrite) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let generation = self.entries[index as usize].generation;
                self.entries[index as usize] = QueuedWrite { generation, ..write };
                index
            }
            None => {
                self.entries.push(write);
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let write = &mut self.entries[index as usize];
        (write.waiter, write.data, write.lent) = (None, None, None);
        write.generation = write.generation.wrapping_add(1);
        self.free.push(index);
    }

    pub(super) fn id(&self, index: u32) -> WriteId {
        WriteId { index, generation: self.entries[index as usize].generation }
    }

    /// A write that its owner has not seen end.
    pub(super) fn write(&mut self, id: WriteId) -> &mut QueuedWrite {
        let write = &mut self.entries[id.index as usize];
        assert_eq!(write.generation, id.generation, "a write is used until it has ended");
        write
    }

    /// Whether the write has ended, which its owner may have to be told yet.
    pub(super) fn has_ended(&self, id: WriteId) -> bool {
        self.entries[id.index as usize].generation != id.generation
    }

    pub(super) fn link(&mut self, index: u32) {
        let state = &mut self.zones[self.entries[index as usize].zone as usize];
        match std::mem::replace(&mut state.tail, index) {
            NONE => state.head = index,
            last => self.entries[last as usize].next = index,
        }
    }

    /// Appends a write to the queue of its zone, which is returned, and moves the pointer on.
    pub(super) fn link_data(&mut self, index: u32) -> usize {
        self.link(index);
        let QueuedWrite { zone, position, len, kind, .. } = self.entries[index as usize];
        let state = &mut self.zones[zone as usize];
        if let QueuedKind::Data(kind_of_write) = kind {
            state.pointer = state.after_write(kind_of_write, position, len);
        }
        zone as usize
    }

    /// Takes a write out of its queue, mostly the first.
    pub(super) fn unlink(&mut self, index: u32) {
        let QueuedWrite { zone, next, .. } = self.entries[index as usize];
        let state = &mut self.zones[zone as usize];
        let mut before = NONE;
        let mut at = state.head;
        while at != index {
            assert_ne!(at, NONE, "a write is in the queue of its zone");
            before = at;
            at = self.entries[at as usize].next;
        }
        match before {
            NONE => state.head = next,
            before => self.entries[before as usize].next = next,
        }
        if state.tail == index {
            state.tail = before;
        }
        self.remove(index);
    }

    /// Gives the first of a zone's queue its turn, if it is ready. A token is returned where `me` is the one to be told.
    pub(super) fn go(&mut self, zone: usize, me: Option<&Arc<EventQueue>>) -> Option<RequestId> {
        let head = self.zones[zone].head;
        if head == NONE {
            return None;
        }
        let write = &mut self.entries[head as usize];
        if !write.ready || write.granted {
            return None;
        }
        write.granted = true;
        let waiter = match write.kind {
            QueuedKind::Action(number, _) => {
                let action = self.actions[number as usize].as_mut().expect("an order stays until it was carried out");
                action.missing -= 1;
                if action.missing > 0 {
                    return None;
                }
                &action.waiter
            }
            _ => write.waiter.as_ref()?,
        };
        match waiter {
            Waiter::Request(reply) => match me.and_then(|me| reply.request_of(me)) {
                Some(mine) => return Some(mine),
                None => reply.post(Event::Released),
            },
            Waiter::Thread => self.wakes = true,
        }
        None
    }

    pub(super) fn action(&mut self, number: usize) -> &mut Action {
        self.actions[number].as_mut().expect("an order stays until it was carried out")
    }

    /// Those whose turns are waited for.
    pub(super) fn wake_workers(&self) {
        let waited = self.held.iter().map(|index| self.entries[*index as usize].turned[1]);
        let Some(all) = waited.reduce(|all, seen| all & seen) else { return };
        self.workers.iter().filter(|(worker, _)| all & worker == 0).for_each(|(_, waker)| waker.wake());
    }
}
