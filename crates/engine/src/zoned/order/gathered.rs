//! Writes of a zone that go to the store as one: whoever has the turn of the first is lent the data of those behind it.

use super::table::{NONE, Queued, Table, Waiter};
use super::{TicketId, ZoneOrder};
use crate::ring::{MAX_PARTS, Part, Token};
use crate::target::Ciphertext;
use rustix::io::Errno;
use std::sync::Arc;

impl ZoneOrder {
    /// A write whose turn it is, and those behind it that may go to the store with it, into `parts`, which is empty: each is ready,
    /// begins where the one before ends, and fits into the zone; together they have at most `longest` bytes. Their tokens are the
    /// tickets'. The data of each are given back by [`ZoneOrder::part_ended`], [`ZoneOrder::wait_again`] or
    /// [`ZoneOrder::go_alone`]. If there is none behind, the write gets its data back.
    pub(crate) fn gather(
        &self,
        first: TicketId,
        data: Ciphertext,
        longest: usize,
        parts: &mut Vec<Part>,
    ) -> Option<Ciphertext> {
        let mut table = self.table();
        let Table { zones, tickets, .. } = &mut *table;
        let ticket = &mut tickets[first.0 as usize];
        if !ticket.joins {
            return Some(data);
        }
        parts.push(Part { data, range: 0..ticket.len as usize, token: Token(first.0.into()) });
        let zone_end = zones[ticket.zone as usize].end;
        let (mut next, mut end, mut room) = (ticket.next, ticket.position + ticket.len, longest as u64);
        room = room.saturating_sub(ticket.len);
        while next != NONE && parts.len() < MAX_PARTS {
            let ticket = &mut tickets[next as usize];
            let joins = ticket.joins && !ticket.granted && ticket.position == end && ticket.len <= room;
            let placed = |data: &mut (u64, Ciphertext)| data.0 == end;
            if !joins || end + ticket.len > zone_end {
                break;
            }
            let Some((_, data)) = ticket.data.take_if(placed) else { break };
            (ticket.granted, ticket.lent) = (true, true);
            parts.push(Part { data, range: 0..ticket.len as usize, token: Token(next.into()) });
            (end, room) = (end + ticket.len, room - ticket.len);
            next = ticket.next;
        }
        if parts.len() > 1 {
            tickets[first.0 as usize].lent = true;
            return None;
        }
        parts.pop().map(|part| part.data)
    }

    /// One of those that went together has ended; one after the other, those that have landed from the first on, those that have not from
    /// the last on. Its owner is told, or it is `me` and its token is returned with its data. Behind it: the token of the next one whose
    /// turn it is, if that is mine as well.
    pub(crate) fn part_ended(
        &self,
        part: Part,
        result: Result<(), Errno>,
        me: Option<&Arc<dyn Queued>>,
    ) -> (Option<(u64, Ciphertext)>, Option<u64>) {
        let mut table = self.table();
        let index = part.token.0 as u32;
        let ticket = &mut table.tickets[index as usize];
        let (zone, start, len, waiter) = (ticket.zone as usize, ticket.position, ticket.len, ticket.waiter.take());
        table.unlink(index);
        if result.is_ok() {
            let before = std::mem::replace(&mut table.zones[zone].written, start + len);
            if before != start {
                self.replace(&mut table, zone);
            }
        } else {
            // A store that does not answer now fails the next write.
            let _ = self.ask(&mut table, zone);
            self.replace(&mut table, zone);
        }
        let next = table.go(zone, me);
        let mine = match waiter {
            Some(Waiter::Message(to, token)) if me.is_some_and(|me| Arc::ptr_eq(me, &to)) => Some((token, part.data)),
            Some(Waiter::Message(to, token)) => {
                to.written(token, part.data, result);
                None
            }
            // Its owner has ended.
            Some(Waiter::Thread) | None => None,
        };
        self.end(table);
        (mine, next)
    }

    /// One that went with others waits for its own turn after all.
    pub(crate) fn wait_again(&self, part: Part) {
        let mut table = self.table();
        let ticket = &mut table.tickets[part.token.0 as usize];
        ticket.data = Some((ticket.position, part.data));
        (ticket.granted, ticket.lent) = (false, false);
        if ticket.waiter.is_none() {
            self.forget(&mut table, part.token.0 as u32);
        }
        self.end(table);
    }

    /// One that went with others goes alone, now: it is told, or its token is returned if it is `me`.
    pub(crate) fn go_alone(&self, part: Part, me: &Arc<dyn Queued>) -> Option<u64> {
        let mut table = self.table();
        let ticket = &mut table.tickets[part.token.0 as usize];
        ticket.data = Some((ticket.position, part.data));
        (ticket.joins, ticket.lent) = (false, false);
        let mine = match &ticket.waiter {
            Some(Waiter::Message(to, token)) if Arc::ptr_eq(me, to) => Some(*token),
            Some(Waiter::Message(to, token)) => {
                to.turn(*token);
                None
            }
            Some(Waiter::Thread) | None => {
                self.forget(&mut table, part.token.0 as u32);
                None
            }
        };
        self.end(table);
        mine
    }

    /// A ticket whose owner has ended leaves the queue.
    fn forget(&self, table: &mut Table, index: u32) {
        let zone = table.tickets[index as usize].zone as usize;
        table.unlink(index);
        self.replace(table, zone);
        table.go(zone, None);
    }
}
