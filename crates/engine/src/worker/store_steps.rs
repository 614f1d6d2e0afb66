//! What a step of a request asks of its store, through the ring or, where the store answers from memory, by a call.

use super::{Frontend, OWN, Step, Worker};
use crate::crypt_mapping::Ciphertext;
use crate::mapping::Kind;
use crate::request::RequestError;
use crate::ring::{self, Completion, Token};
use crate::rmw;
use rustix::io::Errno;

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// Starts a store operation that needs no ciphertext.
    pub(super) fn store_step(&mut self, index: u32, step: Step) {
        let flight = self.flight(index);
        flight.step = step;
        flight.progress = 0;
        match step {
            Step::Discard => self.discard(index),
            _ => self.store_read(index),
        }
    }

    /// Gives back what one segment has of the range; goes on with the next when that is done.
    pub(super) fn discard(&mut self, index: u32) {
        loop {
            let flight = self.flight(index);
            let done = flight.progress as u64;
            let (offset, len) = (flight.offset + done, flight.len - done);
            if len == 0 {
                return self.last_step(index, Step::Discard, Ok(()));
            }
            let located = self.mapping.discardable(offset, len);
            let (range, place) = located.expect("checked when the request began");
            self.flight(index).progress += place.len as usize;
            match place.kind {
                Kind::Crypt | Kind::Linear if !range.is_empty() => {
                    let operation = ring::Operation::Discard { offset: range.start, len: range.end - range.start };
                    return self.submit(index, place.store, operation);
                }
                Kind::Crypt | Kind::Linear | Kind::Zero => {}
                Kind::Error => return self.finish(index, Err(RequestError::Io(Errno::IO))),
            }
        }
    }

    /// Reads what the current step still needs.
    pub(super) fn store_read(&mut self, index: u32) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("a read has an mapped");
        let (offset, range, buffer) = match flight.step {
            Step::Edge(edge) => {
                let edge = rmw::edges(&mapped)[edge].expect("only edges that exist are read");
                (edge.store_offset, edge.spare_offset..edge.spare_offset + edge.len, flight.spare.take())
            }
            _ => (mapped.store_offset, 0..mapped.aligned_len, flight.buffer.take()),
        };
        let progress = flight.progress;
        let buffer = buffer.expect("the buffer is here between store operations");
        let range = range.start + progress..range.end;
        self.submit(index, mapped.store, ring::Operation::Read { offset: offset + progress as u64, buffer, range });
    }

    pub(super) fn store_write(&mut self, index: u32, data: Ciphertext) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("a write has an mapped");
        let (progress, durable) = (flight.progress, flight.operation.durable());
        let durable = durable && self.device.stores()[mapped.store as usize].has_native_fua();
        let offset = mapped.store_offset + progress as u64;
        let range = progress..mapped.aligned_len;
        self.submit(index, mapped.store, ring::Operation::Write { offset, data, range, durable });
    }

    pub(super) fn submit(&mut self, index: u32, store: u32, operation: ring::Operation) {
        self.submit_as(Token(OWN | u64::from(index)), store, operation);
    }

    pub(super) fn submit_as(&mut self, token: Token, store: u32, operation: ring::Operation) {
        let short = operation.transfer_len().is_some_and(|len| self.is_inline(store, len));
        let called = &self.device.stores()[store as usize];
        match self.stores[store as usize].filter(|_| !short) {
            Some(file) => self.ring.submit(file, operation, token),
            None => {
                let (result, returned) = operation.execute(&**called);
                self.executed.push_back(Completion { token, result, returned });
            }
        }
    }
}
