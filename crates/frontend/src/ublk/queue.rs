//! One queue of a ublk device, as frontend of a worker.
//!
//! Each place of the queue has a buffer for the longest request. A write's bytes are brought there when it comes, a read's are
//! read from the store into it, decrypted there and taken away with the answer: by the driver, which has the buffer meanwhile, or
//! by this side ([`UserCopy`]). In between it is all the same. A request that is not whole data units of one segment (only where
//! units are longer than a page, or tables odd) goes in pieces through two buffers beside, one such request at a time.
//! What devices with zones need besides is in [`super::zoning`].

use super::driver::operation::{APPEND, DISCARD, FLUSH, READ, REPORT, WRITE, WRITE_ZEROES};
use super::driver::{Described, Descriptions, Info};
use super::user_copy::UserCopy;
use super::zoning::{self, Zoning};
use inlock_engine::request::Operation;
use inlock_engine::ring::{
    Completion, FileId, Operation as RingOperation, Returned, Token, UblkBytes, UblkCommand, Wait,
};
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request};
use inlock_engine::{Buffer, RequestError, rmw};
use rustix::io::Errno;
use std::collections::VecDeque;

/// The frontend.
pub(super) struct Queue {
    file: FileId,
    number: u16,
    descriptions: Descriptions,
    /// `None`: the driver copies.
    user_copy: Option<UserCopy>,
    /// Of a device with zones.
    zoning: Option<Zoning>,
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
    /// How much of [`Place::whole`] is done, and is in the piece that is under way.
    done: u64,
    piece: u64,
    /// The second buffer of a piece, where it did not need it.
    spare: Option<Buffer>,
    /// Where an append has landed.
    landed: u64,
}

impl Queue {
    /// The queue `number` of the device that `info` is about, with data units of at most `unit_len` bytes.
    pub(super) fn new(
        file: FileId,
        number: u16,
        descriptions: Descriptions,
        info: &Info,
        unit_len: usize,
        user_copy: Option<UserCopy>,
        zoning: Option<Zoning>,
    ) -> Self {
        let room = info.longest as usize + 2 * unit_len;
        let request = Described { operation: FLUSH, durable: false, offset: 0, len: 0 };
        let place = |_| Place { buffer: Some(resident(room)), request, done: 0, piece: 0, spare: None, landed: 0 };
        Self {
            file,
            number,
            descriptions,
            user_copy,
            zoning,
            places: (0..info.depth).map(place).collect(),
            begun: false,
            ended: 0,
            beside: Some((resident(room), resident(2 * unit_len))),
            waiting: VecDeque::with_capacity(info.depth.into()),
        }
    }

    /// Lets the driver put a request in a place, and tells it how the last one there has ended, if there was one.
    fn give(&mut self, cx: &mut Context<'_>, tag: u16, answer: Option<i32>) {
        let place = &mut self.places[usize::from(tag)];
        let bytes = match self.user_copy {
            None => {
                UblkBytes::Copied(place.buffer.take().expect("a request that is answered has given its buffer back"))
            }
            Some(_) => UblkBytes::Fetched(place.landed / 512),
        };
        let command = UblkCommand { queue: self.number, tag, answer, bytes };
        cx.ring.submit(self.file, RingOperation::Ublk(command), Token(tag.into()));
    }

    /// Takes in the request that the driver has put in a place.
    fn take_in(&mut self, cx: &Context<'_>, tag: u16) -> Result<(), RequestError> {
        let place = &mut self.places[usize::from(tag)];
        place.request = self.descriptions.request(tag);
        (place.done, place.landed) = (0, 0);
        let Described { operation, offset, len, .. } = place.request;
        if let (REPORT, Some(user_copy)) = (operation, &self.user_copy) {
            user_copy.hand_over(tag, zoning::report(cx.device, offset, len / 512, place.room())?)?;
            place.done = place.whole();
        }
        if !matches!(operation, READ | WRITE | APPEND) {
            return Ok(());
        }
        let bytes = usize::try_from(len).ok().and_then(|len| place.room().get_mut(..len));
        let bytes = bytes.ok_or(RequestError::Unsupported)?;
        if let Some(user_copy) = self.user_copy.as_ref().filter(|_| operation != READ) {
            user_copy.fetch(tag, bytes)?;
        }
        let zoning = self.zoning.as_ref().filter(|_| operation == APPEND);
        if let Some(landed) = zoning.and_then(|zoning| zoning.has_landed(offset, bytes)) {
            (place.landed, place.done) = (landed, len);
        }
        Ok(())
    }

    /// Goes on with a request that has come so far, or answers it.
    fn go_on(&mut self, cx: &mut Context<'_>, tag: u16, so_far: Result<(), RequestError>) {
        let done = match so_far.and_then(|()| self.advance(cx, tag)) {
            Ok(true) => return,
            Ok(false) => self.hand_over(cx, tag),
            Err(error) => Err(error),
        };
        self.give(cx, tag, Some(done.map_or_else(|error| -number_of(error), bytes_done)));
    }

    /// Begins what is left of the request in a place; false: nothing is.
    fn advance(&mut self, cx: &mut Context<'_>, tag: u16) -> Result<bool, RequestError> {
        let place = &mut self.places[usize::from(tag)];
        let Described { operation, durable, offset, len } = place.request;
        if place.done == place.whole() {
            return Ok(false);
        }
        let (mut offset, mut rest) = (offset.saturating_add(place.done), len - place.done);
        let operation = match operation {
            READ => Operation::Read,
            WRITE if self.zoning.as_ref().is_some_and(|zoning| zoning.comes_again(offset)) => {
                Operation::WriteReissued { durable }
            }
            WRITE => Operation::Write { durable },
            APPEND => Operation::Append { durable },
            WRITE_ZEROES => Operation::WriteZeroes { durable },
            DISCARD => {
                rest = cx.mapping.place(offset, rest)?.len;
                Operation::Discard { durable }
            }
            FLUSH => Operation::Flush,
            _ => {
                let zoning = self.zoning.as_ref().ok_or(RequestError::Unsupported)?;
                let action = zoning::action(operation).ok_or(RequestError::Unsupported)?;
                (offset, rest) = zoning.range(action, offset, cx.mapping.len());
                Operation::Zones(action)
            }
        };
        place.piece = if place.in_bytes() { rest } else { 1 };
        let request = Request { id: tag.into(), operation, offset, len: rest, data: None, spare: None };
        match operation {
            Operation::Flush | Operation::Discard { .. } | Operation::Zones(_) => cx.requests.push_back(request),
            _ => self.begin_piece(cx, tag, request)?,
        }
        Ok(true)
    }

    /// Begins as much of a request that moves data as one buffer carries.
    fn begin_piece(&mut self, cx: &mut Context<'_>, tag: u16, mut request: Request) -> Result<(), RequestError> {
        let place = &mut self.places[usize::from(tag)];
        let buffer = place.buffer.as_mut().expect("a request that goes on has its buffer");
        let mapped = cx.mapping.locate(request.offset, request.len, buffer.capacity())?;
        place.piece = mapped.len as u64;
        request.len = place.piece;
        if place.piece == place.request.len && !mapped.is_partial() {
            request.data = place.buffer.take().map(|buffer| (mapped, buffer));
        } else if matches!(request.operation, Operation::Append { .. }) {
            return Err(RequestError::Unsupported);
        } else if let Some((mut piece, spare)) = self.beside.take() {
            if request.operation.writes_data() {
                let from = place.done as usize;
                piece.data_mut()[mapped.requested()].copy_from_slice(&buffer.data()[from..from + mapped.len]);
            }
            request.data = Some((mapped, piece));
            match rmw::spare_len(&mapped) {
                0 => place.spare = Some(spare),
                _ => request.spare = Some(spare),
            }
        } else {
            self.waiting.push_back(tag);
            return Ok(());
        }
        cx.requests.push_back(request);
        Ok(())
    }

    /// The request in a place is done: brings what it has read to where it belongs, and says how many bytes it was.
    fn hand_over(&mut self, cx: &Context<'_>, tag: u16) -> Result<u64, RequestError> {
        let place = &self.places[usize::from(tag)];
        let Described { operation, len, .. } = place.request;
        let buffer = place.buffer.as_ref().expect("a request that is done has given its buffer back");
        if let (READ, Some(user_copy)) = (operation, &self.user_copy) {
            user_copy.hand_over(tag, &buffer.data()[..len as usize])?;
        }
        if let Some(zoning) = &mut self.zoning {
            zoning.note(&place.request, place.landed, cx.device);
        }
        match operation {
            // At least as many as the driver has made room for.
            REPORT => Ok(buffer.capacity() as u64),
            _ if place.in_bytes() => Ok(len),
            _ => Ok(0),
        }
    }
}

impl Frontend for Queue {
    type Message = ();

    fn buffers(&mut self) -> Vec<&mut Buffer> {
        let beside = self.beside.iter_mut().flat_map(|(whole, edges)| [whole, edges]);
        self.places.iter_mut().filter_map(|place| place.buffer.as_mut()).chain(beside).collect()
    }

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        let tag = done.token.0 as u16;
        if let Returned::Buffer(buffer) = done.returned {
            self.places[usize::from(tag)].buffer = Some(buffer);
        }
        if done.result != Ok(0) {
            // The device ends, or the driver refuses to go on: either way there will be no request here.
            self.ended += 1;
            return;
        }
        let taken = self.take_in(cx, tag);
        self.go_on(cx, tag, taken);
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let tag = done.id as u16;
        let place = &mut self.places[usize::from(tag)];
        let was_beside = place.buffer.is_some() && done.data.is_some();
        match (done.data, &mut place.buffer) {
            (Some((mapped, piece)), Some(buffer)) => {
                let from = place.done as usize;
                if place.request.operation == READ && done.result.is_ok() {
                    buffer.data_mut()[from..from + mapped.len].copy_from_slice(&piece.data()[mapped.requested()]);
                }
                self.beside = done.spare.or(place.spare.take()).map(|spare| (piece, spare));
            }
            (Some((mapped, buffer)), none) => {
                if place.request.operation == APPEND {
                    place.landed = mapped.offset;
                }
                *none = Some(buffer);
            }
            (None, _) => {}
        }
        place.done += place.piece;
        self.go_on(cx, tag, done.result);
        if was_beside
            && self.beside.is_some()
            && let Some(next) = self.waiting.pop_front()
        {
            self.go_on(cx, next, Ok(()));
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if !self.begun {
            self.begun = true;
            for tag in 0..self.places.len() as u16 {
                self.give(cx, tag, None);
            }
            return (Flow::Continue, Wait::No);
        }
        if let Some(zoning) = &mut self.zoning {
            zoning.end_turn(cx.ring);
        }
        if self.ended == self.places.len() { (Flow::Stop, Wait::No) } else { (Flow::Continue, Wait::Forever) }
    }
}

impl Place {
    /// Where a request's bytes are when it comes.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("a place has its buffer when a request comes").data_mut()
    }

    /// Whether its request is done byte by byte, not as a whole.
    fn in_bytes(&self) -> bool {
        matches!(self.request.operation, READ | WRITE | APPEND | WRITE_ZEROES | DISCARD)
    }

    /// What there is to do: bytes, or the one step of a request that has none.
    fn whole(&self) -> u64 {
        if self.in_bytes() { self.request.len } else { 1 }
    }
}

/// A buffer whose pages are there: a device that others swap to must not ask for memory when it is used.
fn resident(len: usize) -> Buffer {
    let mut buffer = Buffer::new(len);
    buffer.data_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    buffer
}

/// An answer of success. A discard may be longer than an answer can say; of that the driver reads only whether it failed.
fn bytes_done(len: u64) -> i32 {
    i32::try_from(len).unwrap_or(0)
}

/// The error number that the block layer understands.
fn number_of(error: RequestError) -> i32 {
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
