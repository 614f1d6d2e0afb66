//! Table behind [`super::ZoneWriteQueues`]: the queues of the zones, and the owners to inform when the head of one is
//! dispatched.
//!
//! Entries lie in one vector, and queues are lists of indices into it, so a write does not allocate.

use super::{WriteId, WriteKind};
use crate::ciphertext::Ciphertext;
use crate::events::{Event, EventQueue, ReplyTo, RequestId};
use crate::ring::Waker;
use crate::zoned::ZoneAction;
use std::ops::Range;
use std::sync::Arc;

/// Index of no write.
pub(super) const NONE: u32 = u32::MAX;

/// Owner of a write or zone management operation that waits.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// A request of a worker.
    Request(ReplyTo),
    /// A thread that sleeps until the table changes, and checks its entry.
    Thread,
}

pub(super) struct Table {
    pub(super) zones: Vec<State>,
    pub(super) entries: Vec<QueuedWrite>,
    pub(super) free: Vec<u32>,
    pub(super) held: Vec<u32>,
    pub(super) actions: Vec<Option<Action>>,
    pub(super) workers: Vec<(u64, Waker)>,
    /// Number of entries that there is memory for.
    pub(super) room: usize,
    /// Whether a [`Waiter::Thread`] has to be woken.
    pub(super) wakes: bool,
}

#[derive(Clone, Copy)]
pub(super) struct State {
    /// Whether the store's state of the zone is known.
    pub(super) known: bool,
    pub(super) sequential: bool,
    /// End of the zone's capacity.
    pub(super) end: u64,
    /// Write pointer of the store; `end` if the zone takes no writes.
    pub(super) written: u64,
    /// Write pointer after the writes in the queue.
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
    /// Whether it may be merged with the writes before and behind it.
    pub(super) can_merge: bool,
    /// Ciphertext while it waits, and the position for which it is encrypted.
    pub(super) data: Option<(u64, Ciphertext)>,
    /// Worker that has borrowed the data for a merged write, and reports its outcome.
    pub(super) lent: Option<Arc<EventQueue>>,
    /// Number of entries that used this index before.
    pub(super) generation: u32,
    pub(super) moves: u8,
    /// For a deferred write: the workers that have had one turn since, and those that have had two.
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
    /// Number of zones in which it is not yet the head.
    pub(super) missing: usize,
    pub(super) waiter: Waiter,
}

impl State {
    /// Returns the pointer after `action`, if that succeeds.
    pub(super) fn after(&self, action: ZoneAction, start: u64) -> u64 {
        match action {
            ZoneAction::Reset | ZoneAction::ResetAll => start,
            ZoneAction::Finish => self.end,
            ZoneAction::Open | ZoneAction::Close => self.pointer,
        }
    }

    /// Returns whether the zone has no room for `len` more bytes after the queue.
    pub(super) fn is_short_of(&self, len: u64) -> bool {
        self.pointer + len > self.end
    }

    /// Returns the pointer after a write, if the store takes it.
    pub(super) fn after_write(&self, kind_of_write: WriteKind, position: u64, len: u64) -> u64 {
        let end = position + len;
        let takes = match kind_of_write {
            // The bytes that the zone holds already are skipped.
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

    /// Returns a write that its owner has not completed.
    pub(super) fn write(&mut self, id: WriteId) -> &mut QueuedWrite {
        let write = &mut self.entries[id.index as usize];
        assert_eq!(write.generation, id.generation, "a write is used until it has ended");
        write
    }

    /// Returns whether the write has ended; its owner may still have to be informed.
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

    /// Appends a write to the queue of its zone, moves the pointer on, and returns the zone.
    pub(super) fn link_data(&mut self, index: u32) -> usize {
        self.link(index);
        let QueuedWrite { zone, position, len, kind, .. } = self.entries[index as usize];
        let state = &mut self.zones[zone as usize];
        if let QueuedKind::Data(kind_of_write) = kind {
            state.pointer = state.after_write(kind_of_write, position, len);
        }
        zone as usize
    }

    /// Removes a write, usually the head, from its queue.
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

    /// Dispatches the head of a zone's queue if it is ready. Returns its request if `me` is the owner's queue.
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

    /// Wakes the workers that deferred writes wait for.
    pub(super) fn wake_workers(&self) {
        let waited = self.held.iter().map(|index| self.entries[*index as usize].turned[1]);
        let Some(all) = waited.reduce(|all, seen| all & seen) else { return };
        self.workers.iter().filter(|(worker, _)| all & worker == 0).for_each(|(_, waker)| waker.wake());
    }
}
