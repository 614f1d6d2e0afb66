//! Writes to a sequential zone that go to the store together.
//!
//! A drive has one write of a zone at a time. While it has one, others are encrypted and queue up behind; when it is the
//! turn of the first of them, those behind it that are ready go with it, as one write of several buffers. So small appends to
//! one zone are as many a second as the drive takes bytes, and not as it takes turns.

use super::{FrontEnd, OWN, Step, Worker};
use crate::buffer::{Buffer, BufferPool};
use crate::device::Device;
use crate::request::RequestError;
use crate::ring::{self, MAX_PARTS, Part, Ring, Token};
use crate::stats::Phase;
use crate::store;
use crate::target::Ciphertext;
use crate::zoned::order::TicketId;
use rustix::io::Errno;
use std::sync::Arc;

/// How many such writes a worker has under way at a time, in different zones. Those beyond go one by one.
const MAX_GATHERED: usize = 16;

/// Room for them, for a device that has zones.
pub(super) fn room(device: &Device, ring: &mut Ring) -> Vec<Vec<Part>> {
    let count = if device.zones().is_some() { MAX_GATHERED } else { 0 };
    ring.reserve_parts(count);
    (0..count).map(|_| Vec::with_capacity(MAX_PARTS)).collect()
}

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// Writes what it is the turn of, and with it what is behind it and ready.
    pub(super) fn write_gathered(&mut self, index: u32, ticket: TicketId, data: Ciphertext) {
        let Some(mut parts) = self.gathers.pop() else { return self.write_now(index, data) };
        self.add_part(&mut parts, index, data);
        self.gather(ticket, &mut parts);
        if parts.len() > 1 {
            let extent = self.flight(index).extent.expect("a write has an extent");
            return self.submit(
                index,
                extent.store,
                ring::Operation::WriteParts { offset: extent.store_offset, parts },
            );
        }
        let alone = parts.pop().expect("the first is there");
        self.gathers.push(parts);
        self.write_now(index, alone.data);
    }

    fn add_part(&mut self, parts: &mut Vec<Part>, index: u32, data: Ciphertext) {
        let flight = self.flight(index);
        (flight.step, flight.progress) = (Step::Write, 0);
        let len = flight.extent.expect("a write has an extent").cover_len;
        parts.push(Part { data, len, token: Token(OWN | u64::from(index)) });
    }

    /// Adds those behind a write whose turn it is.
    fn gather(&mut self, ticket: TicketId, parts: &mut Vec<Part>) {
        let device = Arc::clone(&self.device);
        let zones = device.zones().expect("tickets are those of zones");
        let longest = (zones.limits().longest_write as usize).min(BufferPool::LARGEST_PIECE);
        let mut last = ticket;
        while parts.len() < MAX_PARTS {
            let len: usize = parts.iter().map(|part| part.len).sum();
            let behind = zones.behind(last, longest.saturating_sub(len) as u64, &self.granted);
            let Some(index) = behind.map(|token| token as u32) else { return };
            let flight = self.flight(index);
            flight.lap(Phase::Queue);
            last = flight.ticket.expect("only writes with a ticket wait for a turn");
            let data = flight.kept.take().expect("kept until it is its turn");
            match self.placed_at(index, zones.position(last), data) {
                Ok(data) => self.add_part(parts, index, data),
                Err(error) => return self.finish(index, Err(error)),
            }
        }
    }

    /// Such a write has ended. What is there is done. The first of the rest goes on alone, so that an error is its own; the others
    /// wait for their turns again.
    pub(super) fn gathered_written(&mut self, mut parts: Vec<Part>, result: Result<usize, Errno>) {
        let device = Arc::clone(&self.device);
        let zones = device.zones().expect("only writes in order go together");
        let (mut left, mut whole) = (result.unwrap_or(0), 0);
        while let Some(part) = parts.get(whole).filter(|part| part.len <= left) {
            (left, whole) = (left - part.len, whole + 1);
        }
        parts.iter().for_each(|part| self.flight(part.token.0 as u32).lap(Phase::Store));
        let failed = result.err().map(|error| (error, self.touched(&parts))).filter(|(_, touched)| *touched > 0);
        let ended = failed.map_or(whole + 1, |(_, touched)| touched);
        for part in parts.drain(ended.min(parts.len())..) {
            let flight = self.flight(part.token.0 as u32);
            (flight.step, flight.kept) = (Step::Turn, Some(part.data));
            zones.not_yet(flight.ticket.expect("only writes with a ticket wait for a turn"));
        }
        if let Some((error, _)) = failed {
            // From the last on: whoever is behind the first gets his turn when that one leaves.
            while let Some(part) = parts.pop() {
                let index = part.token.0 as u32;
                self.flight(index).kept = Some(part.data);
                self.finish(index, Err(RequestError::Io(error)));
            }
            return self.gathers.push(parts);
        }
        let alone = if parts.len() > whole { parts.pop() } else { None };
        for part in parts.drain(..) {
            self.written(part.token.0 as u32, Ok(true), Some(part.data));
        }
        self.gathers.push(parts);
        if let Some(part) = alone {
            let index = part.token.0 as u32;
            self.flight(index).progress = left;
            self.store_write(index, part.data);
        }
    }

    /// How many parts of a write that failed the store has something of: as little is known of those as of any write that
    /// fails on its way. Blocks: it is rare.
    fn touched(&mut self, parts: &[Part]) -> usize {
        let device = Arc::clone(&self.device);
        let part = &parts[0];
        let extent = self.flight(part.token.0 as u32).extent.expect("a write has an extent");
        let start = extent.store_offset;
        // A store that does not answer now says so to the first.
        let pointer = device.zones().and_then(|zones| zones.ask_again(start).ok()).unwrap_or(start);
        let len = (pointer.saturating_sub(start) as usize).min(part.len);
        let mut stored = Buffer::new(part.len);
        let read = store::read_all(&*device.stores()[extent.store as usize], &mut stored.data_mut()[..len], start);
        if read.is_ok() && stored.data()[..len] != part.data.bytes()[..len] {
            // Somebody else's.
            return 0;
        }
        let ends = parts.iter().scan(start, |end, part| Some(std::mem::replace(end, *end + part.len as u64)));
        ends.take_while(|start| *start < pointer).count()
    }
}
