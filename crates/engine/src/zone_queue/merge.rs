//! Merging of a zone's writes: the worker whose write is dispatched borrows the data of the writes behind it, writes
//! all of them to the store at once, and reports the outcome of each write, from the first on for those that were
//! written and from the last on for those that were not.

use super::table::{NONE, Table, Waiter};
use super::{WriteId, ZoneWriteQueues};
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::events::{Event, EventQueue, MergedWrite, RequestId};
use crate::ring::{MAX_WRITE_SEGMENTS, WriteSegment};
use std::sync::Arc;
use std::time::Instant;

/// Message to the owner of a merged write.
pub(crate) enum Told {
    /// The write of this request has ended.
    Written(RequestId, MergedWrite),
    /// The write of this request is dispatched.
    Turn(RequestId),
}

impl ZoneWriteQueues {
    /// Moves the write at the head of a queue, and the writes behind it that can be merged with it, into `segments`,
    /// which is empty. Each of them is ready, begins where the one before ends, and fits into the zone; together they
    /// have at most `longest` bytes and [`MAX_WRITE_SEGMENTS`] segments. Their tokens are the entries'. All are lent to
    /// `lender` until [`ZoneWriteQueues::part_ended`], [`ZoneWriteQueues::wait_again`] or
    /// [`ZoneWriteQueues::go_alone`]. Returns the write's data if there is no other write to merge.
    pub(crate) fn gather(
        &self,
        first: WriteId,
        data: Ciphertext,
        longest: usize,
        segments: &mut Vec<WriteSegment>,
        lender: &Arc<EventQueue>,
    ) -> Option<Ciphertext> {
        let mut table = self.table();
        let write = table.write(first);
        let (mut next, mut end, can_merge) = (write.next, write.position + write.len, write.can_merge);
        let mut room = (longest as u64).saturating_sub(write.len);
        let zone = write.zone as usize;
        let zone_end = table.zones[zone].end;
        let mut since = None;
        let mut first_data = Some(data);
        while can_merge && next != NONE && segments.len() < MAX_WRITE_SEGMENTS {
            let token = table.id(next).token();
            let write = &mut table.entries[next as usize];
            let follows = write.can_merge && !write.granted && write.position == end;
            if !follows || write.len > room || end + write.len > zone_end {
                break;
            }
            // A write that was reassigned is encrypted for another position.
            let Some((_, data)) = write.data.take_if(|(position, _)| *position == end) else { break };
            (write.granted, write.lent) = (true, Some(Arc::clone(lender)));
            (next, end, room) = (write.next, end + write.len, room - write.len);
            let since = *since.get_or_insert_with(Instant::now);
            let segment = WriteSegment { data, range: 0..write.len as usize, token, since };
            if let Some(data) = first_data.take() {
                let write = table.write(first);
                write.lent = Some(Arc::clone(lender));
                let range = 0..write.len as usize;
                segments.push(WriteSegment { data, range, token: first.token(), since });
            }
            segments.push(segment);
        }
        first_data
    }

    /// Ends one of the merged writes. Informs its owner, unless that is `me`, and the owner of the write dispatched
    /// next.
    pub(crate) fn part_ended(
        &self,
        segment: WriteSegment,
        result: Result<(), Errno>,
        me: &Arc<EventQueue>,
        mut tell: impl FnMut(Told),
    ) {
        let WriteSegment { data, token, since, .. } = segment;
        let (mine, next) = self.lent_ended(WriteId::of(token), MergedWrite { data: Some(data), result, since }, me);
        let mine = mine.map(|(token, written)| Told::Written(token, written));
        mine.into_iter().chain(next.map(Told::Turn)).for_each(&mut tell);
    }

    fn lent_ended(
        &self,
        id: WriteId,
        written: MergedWrite,
        me: &Arc<EventQueue>,
    ) -> (Option<(RequestId, MergedWrite)>, Option<RequestId>) {
        let mut table = self.table();
        let write = table.write(id);
        let (zone, start, len, waiter) = (write.zone as usize, write.position, write.len, write.waiter.take());
        table.unlink(id.index);
        if written.result.is_ok() {
            let before = std::mem::replace(&mut table.zones[zone].written, start + len);
            if before != start {
                self.replace(&mut table, zone);
            }
        } else {
            // If the store does not answer now, the next write fails.
            let _ = self.ask(&mut table, zone);
            self.replace(&mut table, zone);
        }
        let next = table.go(zone, Some(me));
        let mine = match waiter {
            Some(Waiter::Request(reply)) => match reply.request_of(me) {
                Some(mine) => Some((mine, written)),
                None => {
                    reply.post(Event::Merged(written));
                    None
                }
            },
            // The owner has ended.
            Some(Waiter::Thread) | None => None,
        };
        self.end(table);
        (mine, next)
    }

    /// Returns a merged write to its queue, where it waits to be dispatched.
    pub(crate) fn wait_again(&self, segment: WriteSegment) {
        self.give_back(segment, false);
    }

    /// Dispatches a merged write, which is now the head of its queue, on its own.
    pub(crate) fn go_alone(&self, segment: WriteSegment, me: &Arc<EventQueue>, mut tell: impl FnMut(Told)) {
        match self.give_back(segment, true) {
            Some(Waiter::Request(reply)) => match reply.request_of(me) {
                Some(mine) => tell(Told::Turn(mine)),
                None => reply.post(Event::Released),
            },
            Some(Waiter::Thread) | None => {}
        }
    }

    /// Gives the write its data back, with `granted` as passed. Returns its owner.
    fn give_back(&self, segment: WriteSegment, granted: bool) -> Option<Waiter> {
        let mut table = self.table();
        let id = WriteId::of(segment.token);
        let write = table.write(id);
        write.data = Some((write.position, segment.data));
        (write.granted, write.lent) = (granted, None);
        write.can_merge &= !granted;
        let waiter = write.waiter.clone();
        if waiter.is_none() {
            // The owner has ended.
            let zone = write.zone as usize;
            table.unlink(id.index);
            self.replace(&mut table, zone);
            table.go(zone, None);
        }
        self.end(table);
        waiter
    }

    /// Ends the loans of a lender that ends without reporting the outcome of some writes, which is then unknown.
    pub(crate) fn lender_ends(&self, lender: &Arc<EventQueue>) {
        let lost = |table: &Table| {
            let is_lost = |at: &usize| table.entries[*at].lent.as_ref().is_some_and(|lent| Arc::ptr_eq(lent, lender));
            let last = (0..table.entries.len()).filter(is_lost).max_by_key(|at| table.entries[*at].position);
            last.map(|at| table.id(at as u32))
        };
        loop {
            let Some(id) = lost(&self.table()) else { return };
            let written = MergedWrite { data: None, result: Err(Errno::IO), since: Instant::now() };
            let _ = self.lent_ended(id, written, lender);
        }
    }
}
