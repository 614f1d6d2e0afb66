//! One queue of a ublk device, as front end of a worker.
//!
//! Each place of the queue has a buffer for the longest request. With a write its bytes are in it when the request comes; a read
//! is read from the store into it and decrypted there; the driver copies from it with the answer. A request that is not whole data
//! units of one segment (only where units are longer than a page, or tables odd) goes in pieces through two buffers
//! beside, one such request at a time.

use super::driver::operation::{DISCARD, FLUSH, READ, WRITE, WRITE_ZEROES};
use super::driver::{Described, Descriptions};
use inlock_engine::request::Operation;
use inlock_engine::ring::{
    Completion, FileId, Operation as RingOperation, Returned, Token, UblkBytes, UblkCommand, Wait,
};
use inlock_engine::worker::{Context, Finished, Flow, FrontEnd, Request};
use inlock_engine::{Buffer, RequestError, unaligned};
use rustix::io::Errno;
use std::collections::VecDeque;

/// The front end.
pub(super) struct Queue {
    file: FileId,
    number: u16,
    descriptions: Descriptions,
    places: Vec<Place>,
    /// Places that wait for requests have been handed to the driver.
    begun: bool,
    /// Places that the driver will not use any more.
    ended: usize,
    /// For requests that go in pieces; `None` while one does.
    beside: Option<(Buffer, Buffer)>,
    /// Requests that wait for it.
    waiting: VecDeque<u16>,
}

struct Place {
    /// `None`: with the driver, or with the worker.
    buffer: Option<Buffer>,
    request: Described,
    /// Bytes that are done, and of the piece that is under way.
    done: u64,
    piece: u64,
    /// The second buffer of a piece, where it did not need it.
    spare: Option<Buffer>,
}

impl Queue {
    /// A queue with these descriptions and `depth` places for requests of up to `longest` bytes, on data units of at most
    /// `granule`.
    pub(super) fn new(
        file: FileId,
        number: u16,
        descriptions: Descriptions,
        depth: u16,
        longest: usize,
        granule: usize,
    ) -> Self {
        let room = longest + 2 * granule;
        let place = |_| Place {
            buffer: Some(resident(room)),
            request: Described { operation: FLUSH, durable: false, offset: 0, len: 0 },
            done: 0,
            piece: 0,
            spare: None,
        };
        Self {
            file,
            number,
            descriptions,
            places: (0..depth).map(place).collect(),
            begun: false,
            ended: 0,
            beside: Some((resident(room), resident(2 * granule))),
            waiting: VecDeque::with_capacity(depth.into()),
        }
    }

    /// Tells the driver how the last request in a place ended, and lets it put another there.
    fn answer(&mut self, cx: &mut Context<'_>, tag: u16, result: Option<Result<u64, RequestError>>) {
        let place = &mut self.places[usize::from(tag)];
        let buffer = place.buffer.take().expect("a request that is answered has given its buffer back");
        let answer = result.map(|result| match result {
            Ok(len) => bytes_done(len),
            Err(error) => -number_of(error),
        });
        let command = UblkCommand { queue: self.number, tag, answer, bytes: UblkBytes::Copied(buffer) };
        cx.ring.submit(self.file, RingOperation::Ublk(command), Token(tag.into()));
    }

    /// Begins what is left of the request in a place, or answers it.
    fn advance(&mut self, cx: &mut Context<'_>, tag: u16) {
        let place = &mut self.places[usize::from(tag)];
        let Described { operation, durable, offset, len } = place.request;
        let (offset, rest) = (offset.saturating_add(place.done), len - place.done);
        let request = |operation, len| Request { id: tag.into(), operation, offset, len, data: None, spare: None };
        match operation {
            FLUSH => cx.requests.push_back(request(Operation::Flush, 0)),
            DISCARD if rest > 0 => match cx.layout.place(offset, rest) {
                Ok(here) => {
                    place.piece = here.len;
                    cx.requests.push_back(request(Operation::Discard { durable }, here.len));
                }
                Err(error) => self.answer(cx, tag, Some(Err(error))),
            },
            READ | WRITE | WRITE_ZEROES if rest > 0 => {
                let moved = match operation {
                    READ => Operation::Read,
                    WRITE => Operation::Write { durable },
                    _ => Operation::WriteZeroes { durable },
                };
                if let Err(error) = self.begin_piece(cx, tag, request(moved, 0), rest) {
                    self.answer(cx, tag, Some(Err(error)));
                }
            }
            READ | WRITE | WRITE_ZEROES | DISCARD => self.answer(cx, tag, Some(Ok(len))),
            _ => self.answer(cx, tag, Some(Err(RequestError::Unsupported))),
        }
    }

    fn begin_piece(
        &mut self,
        cx: &mut Context<'_>,
        tag: u16,
        mut request: Request,
        rest: u64,
    ) -> Result<(), RequestError> {
        let place = &mut self.places[usize::from(tag)];
        let buffer = place.buffer.take().expect("a request that goes on has its buffer");
        let layout = cx.layout;
        let located = layout.locate(request.offset, rest, buffer.capacity());
        let extent = match located {
            Ok(extent) => extent,
            Err(error) => {
                place.buffer = Some(buffer);
                return Err(error);
            }
        };
        place.piece = extent.len as u64;
        if place.piece == place.request.len && !extent.is_partial() {
            request.data = Some((extent, buffer));
        } else if let Some((mut piece, spare)) = self.beside.take() {
            let from = place.done as usize;
            if matches!(request.operation, Operation::Write { .. }) {
                piece.data_mut()[extent.requested()].copy_from_slice(&buffer.data()[from..from + extent.len]);
            }
            place.buffer = Some(buffer);
            request.data = Some((extent, piece));
            match unaligned::spare_len(&extent) {
                0 => place.spare = Some(spare),
                _ => request.spare = Some(spare),
            }
        } else {
            place.buffer = Some(buffer);
            self.waiting.push_back(tag);
            return Ok(());
        }
        cx.requests.push_back(request);
        Ok(())
    }
}

impl FrontEnd for Queue {
    type Message = ();

    fn buffers(&mut self) -> Vec<&mut Buffer> {
        let beside = self.beside.iter_mut().flat_map(|(whole, edges)| [whole, edges]);
        self.places.iter_mut().filter_map(|place| place.buffer.as_mut()).chain(beside).collect()
    }

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        let tag = done.token.0 as u16;
        let place = &mut self.places[usize::from(tag)];
        if let Returned::Buffer(buffer) = done.returned {
            place.buffer = Some(buffer);
        }
        if done.result != Ok(0) {
            // The device ends, or the driver refuses to go on: either way there will be no request here.
            self.ended += 1;
            return;
        }
        place.request = self.descriptions.request(tag);
        place.done = 0;
        if place.request.operation <= WRITE && place.request.len > place.room() {
            return self.answer(cx, tag, Some(Err(RequestError::Unsupported)));
        }
        self.advance(cx, tag);
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let tag = done.id as u16;
        let place = &mut self.places[usize::from(tag)];
        let was_beside = place.buffer.is_some() && done.data.is_some();
        match (done.data, &mut place.buffer) {
            (Some((extent, piece)), Some(buffer)) => {
                let from = place.done as usize;
                if place.request.operation == READ && done.result.is_ok() {
                    buffer.data_mut()[from..from + extent.len].copy_from_slice(&piece.data()[extent.requested()]);
                }
                self.beside = done.spare.or(place.spare.take()).map(|spare| (piece, spare));
            }
            (Some((_, buffer)), none) => *none = Some(buffer),
            (None, _) => {}
        }
        place.done += place.piece;
        let flushed = place.request.operation == FLUSH;
        match done.result {
            Ok(()) if flushed => self.answer(cx, tag, Some(Ok(0))),
            Ok(()) => self.advance(cx, tag),
            Err(error) => self.answer(cx, tag, Some(Err(error))),
        }
        if was_beside
            && self.beside.is_some()
            && let Some(next) = self.waiting.pop_front()
        {
            self.advance(cx, next);
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if !self.begun {
            self.begun = true;
            for tag in 0..self.places.len() as u16 {
                self.answer(cx, tag, None);
            }
            return (Flow::Continue, Wait::No);
        }
        if self.ended == self.places.len() { (Flow::Stop, Wait::No) } else { (Flow::Continue, Wait::Forever) }
    }
}

impl Place {
    fn room(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.capacity() as u64)
    }
}

/// A buffer whose pages are there: a device that others swap to must not ask for memory when it is used.
pub(super) fn resident(len: usize) -> Buffer {
    let mut buffer = Buffer::new(len);
    buffer.data_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    buffer
}

/// An answer of success. A discard may be longer than an answer can say; of that the driver reads only whether it failed.
pub(super) fn bytes_done(len: u64) -> i32 {
    i32::try_from(len).unwrap_or(0)
}

/// The error number that the block layer understands.
pub(super) fn number_of(error: RequestError) -> i32 {
    let errno = match error {
        RequestError::OutOfRange => Errno::IO,
        error => error.errno(),
    };
    errno.raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_discard_that_succeeds_is_not_answered_as_an_error() {
        let longest = u64::from(u32::MAX / 512) * 512;
        assert_eq!([4096, (1 << 31) - 512, 1 << 31, longest].map(bytes_done), [4096, i32::MAX - 511, 0, 0]);
    }
}
