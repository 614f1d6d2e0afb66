//! One queue of a ublk device, as frontend of a worker.
//!
//! Each tag has a buffer for the longest request. The data of a write is copied into it when the request arrives; a
//! read is read from the store into it, decrypted there, and copied out on completion: by the driver, which has the
//! buffer meanwhile, or by this process ([`UserCopy`]). A request that is not whole data units of one segment (units
//! are longer than a page, or tables odd) is carried in pieces through two bounce buffers, one such request at a time.
//! For zoned devices see [`super::zoning`].

use super::driver::operation::{APPEND, DISCARD, FLUSH, READ, REPORT, WRITE, WRITE_ZEROES};
use super::driver::{Info, IoDescriptor, IoDescriptors};
use super::user_copy::UserCopy;
use super::zoning::{self, Zoning};
use inlock_engine::Errno;
use inlock_engine::request::Operation;
use inlock_engine::ring::{
    Completion, FileId, Operation as RingOperation, Returned, Token, UblkBytes, UblkCommand, Wait,
};
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request};
use inlock_engine::{Buffer, RequestError, rmw};
use std::collections::VecDeque;

/// The frontend of one queue.
pub(super) struct Queue {
    file: FileId,
    number: u16,
    descriptors: IoDescriptors,
    /// `None`: the driver copies data.
    user_copy: Option<UserCopy>,
    /// Only of a zoned device.
    zoning: Option<Zoning>,
    tags: Vec<TagState>,
    /// Whether the driver has been given the tags.
    has_begun: bool,
    /// Number of tags that the driver no longer uses.
    ended: usize,
    /// Buffers for a piece and for its edges; `None` while a request uses them.
    bounce: Option<(Buffer, Buffer)>,
    /// Requests that wait for the bounce buffers.
    waiting: VecDeque<u16>,
}

/// State of a tag and its request.
struct TagState {
    /// `None`: the driver or the worker has it.
    buffer: Option<Buffer>,
    request: IoDescriptor,
    /// How much of [`TagState::whole`] is done.
    done: u64,
    /// How much of it is in the piece in flight.
    piece: u64,
    /// Second bounce buffer, if the piece does not need it.
    spare: Option<Buffer>,
    /// Position at which an append was written.
    position: u64,
}

impl Queue {
    /// Queue `number` of the device of `info`, with data units of at most `unit_len` bytes.
    pub(super) fn new(
        file: FileId,
        number: u16,
        descriptors: IoDescriptors,
        info: &Info,
        unit_len: usize,
        user_copy: Option<UserCopy>,
        zoning: Option<Zoning>,
    ) -> Self {
        let room = info.longest as usize + 2 * unit_len;
        let request = IoDescriptor { operation: FLUSH, durable: false, offset: 0, len: 0 };
        let tag = |_| TagState { buffer: Some(resident(room)), request, done: 0, piece: 0, spare: None, position: 0 };
        Self {
            file,
            number,
            descriptors,
            user_copy,
            zoning,
            tags: (0..info.depth).map(tag).collect(),
            has_begun: false,
            ended: 0,
            bounce: Some((resident(room), resident(2 * unit_len))),
            waiting: VecDeque::with_capacity(info.depth.into()),
        }
    }

    /// Gives a tag to the driver for the next request, with the result of the last request, if there was one.
    fn complete(&mut self, cx: &mut Context<'_>, tag: u16, result: Option<i32>) {
        let state = &mut self.tags[usize::from(tag)];
        let bytes = match self.user_copy {
            None => {
                UblkBytes::Copied(state.buffer.take().expect("a request that is completed has returned its buffer"))
            }
            Some(_) => UblkBytes::Fetched(state.position / 512),
        };
        let command = UblkCommand { queue: self.number, tag, answer: result, bytes };
        cx.ring.submit(self.file, RingOperation::Ublk(command), Token(tag.into()));
    }

    /// Fetches the request that the driver has given a tag.
    fn fetch_request(&mut self, cx: &Context<'_>, tag: u16) -> Result<(), RequestError> {
        let state = &mut self.tags[usize::from(tag)];
        state.request = self.descriptors.request(tag);
        (state.done, state.position) = (0, 0);
        let IoDescriptor { operation, offset, len, .. } = state.request;
        if let (REPORT, Some(user_copy)) = (operation, &self.user_copy) {
            user_copy.hand_over(tag, zoning::report(cx.device, offset, len / 512, state.room())?)?;
            state.done = state.whole();
        }
        if !matches!(operation, READ | WRITE | APPEND) {
            return Ok(());
        }
        let bytes = usize::try_from(len).ok().and_then(|len| state.room().get_mut(..len));
        let bytes = bytes.ok_or(RequestError::Unsupported)?;
        if let Some(user_copy) = self.user_copy.as_ref().filter(|_| operation != READ) {
            user_copy.fetch(tag, bytes)?;
        }
        let zoning = self.zoning.as_ref().filter(|_| operation == APPEND);
        if let Some(position) = zoning.and_then(|zoning| zoning.take_unacked(offset, bytes)) {
            (state.position, state.done) = (position, len);
        }
        Ok(())
    }

    /// Continues a request after a step with this result, or completes it.
    fn continue_request(&mut self, cx: &mut Context<'_>, tag: u16, step: Result<(), RequestError>) {
        let done = match step.and_then(|()| self.advance(cx, tag)) {
            Ok(true) => return,
            Ok(false) => self.finish(cx, tag),
            Err(error) => Err(error),
        };
        self.complete(cx, tag, Some(done.map_or_else(|error| -number_of(error), bytes_done)));
    }

    /// Begins what is left of a request. Returns false if nothing is.
    fn advance(&mut self, cx: &mut Context<'_>, tag: u16) -> Result<bool, RequestError> {
        let state = &mut self.tags[usize::from(tag)];
        let IoDescriptor { operation, durable, offset, len } = state.request;
        if state.done == state.whole() {
            return Ok(false);
        }
        let (mut offset, mut rest) = (offset.saturating_add(state.done), len - state.done);
        let operation = match operation {
            READ => Operation::Read,
            WRITE if self.zoning.as_ref().is_some_and(|zoning| zoning.is_reissued(offset)) => {
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
        state.piece = if state.is_in_bytes() { rest } else { 1 };
        let request = Request { id: tag.into(), operation, offset, len: rest, data: None, spare: None };
        match operation {
            Operation::Flush | Operation::Discard { .. } | Operation::Zones(_) => cx.requests.push_back(request),
            _ => self.begin_piece(cx, tag, request)?,
        }
        Ok(true)
    }

    /// Begins as much of a request that moves data as one buffer holds.
    fn begin_piece(&mut self, cx: &mut Context<'_>, tag: u16, mut request: Request) -> Result<(), RequestError> {
        let state = &mut self.tags[usize::from(tag)];
        let buffer = state.buffer.as_mut().expect("a request that continues has its buffer");
        let mapped = cx.mapping.locate(request.offset, request.len, buffer.capacity())?;
        state.piece = mapped.len as u64;
        request.len = state.piece;
        if state.piece == state.request.len && !mapped.is_partial() {
            request.data = state.buffer.take().map(|buffer| (mapped, buffer));
        } else if matches!(request.operation, Operation::Append { .. }) {
            return Err(RequestError::Unsupported);
        } else if let Some((mut piece, spare)) = self.bounce.take() {
            if request.operation.writes_data() {
                let from = state.done as usize;
                piece.data_mut()[mapped.requested()].copy_from_slice(&buffer.data()[from..from + mapped.len]);
            }
            request.data = Some((mapped, piece));
            match rmw::spare_len(&mapped) {
                0 => state.spare = Some(spare),
                _ => request.spare = Some(spare),
            }
        } else {
            self.waiting.push_back(tag);
            return Ok(());
        }
        cx.requests.push_back(request);
        Ok(())
    }

    /// Hands over the data of a request that is done, and returns the number of its bytes.
    fn finish(&mut self, cx: &Context<'_>, tag: u16) -> Result<u64, RequestError> {
        let state = &self.tags[usize::from(tag)];
        let IoDescriptor { operation, len, .. } = state.request;
        let buffer = state.buffer.as_ref().expect("a request that is done has returned its buffer");
        if let (READ, Some(user_copy)) = (operation, &self.user_copy) {
            user_copy.hand_over(tag, &buffer.data()[..len as usize])?;
        }
        if let Some(zoning) = &mut self.zoning {
            zoning.note(&state.request, state.position, cx.device);
        }
        match operation {
            // At least as many as the driver has room for.
            REPORT => Ok(buffer.capacity() as u64),
            _ if state.is_in_bytes() => Ok(len),
            _ => Ok(0),
        }
    }
}

impl Frontend for Queue {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        let tag = done.token.0 as u16;
        if let Returned::Buffer(buffer) = done.returned {
            self.tags[usize::from(tag)].buffer = Some(buffer);
        }
        if done.result != Ok(0) {
            // The device ends, or the driver refuses: either way this tag gets no more requests.
            self.ended += 1;
            return;
        }
        let fetched = self.fetch_request(cx, tag);
        self.continue_request(cx, tag, fetched);
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let tag = done.id as u16;
        let state = &mut self.tags[usize::from(tag)];
        let was_bounced = state.buffer.is_some() && done.data.is_some();
        match (done.data, &mut state.buffer) {
            (Some((mapped, piece)), Some(buffer)) => {
                let from = state.done as usize;
                if state.request.operation == READ && done.result.is_ok() {
                    buffer.data_mut()[from..from + mapped.len].copy_from_slice(&piece.data()[mapped.requested()]);
                }
                self.bounce = done.spare.or(state.spare.take()).map(|spare| (piece, spare));
            }
            (Some((mapped, buffer)), none) => {
                if state.request.operation == APPEND {
                    state.position = mapped.offset;
                }
                *none = Some(buffer);
            }
            (None, _) => {}
        }
        state.done += state.piece;
        self.continue_request(cx, tag, done.result);
        if was_bounced
            && self.bounce.is_some()
            && let Some(next) = self.waiting.pop_front()
        {
            self.continue_request(cx, next, Ok(()));
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if !self.has_begun {
            self.has_begun = true;
            for tag in 0..self.tags.len() as u16 {
                self.complete(cx, tag, None);
            }
            return (Flow::Continue, Wait::No);
        }
        if let Some(zoning) = &mut self.zoning {
            zoning.end_turn(cx.ring);
        }
        if self.ended == self.tags.len() { (Flow::Stop, Wait::No) } else { (Flow::Continue, Wait::Forever) }
    }
}

impl TagState {
    /// Returns the buffer, which a tag has while its request arrives.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("a tag has its buffer when a request arrives").data_mut()
    }

    /// Whether the request is counted in bytes.
    fn is_in_bytes(&self) -> bool {
        matches!(self.request.operation, READ | WRITE | APPEND | WRITE_ZEROES | DISCARD)
    }

    /// Returns how much there is to do: bytes, or one step.
    fn whole(&self) -> u64 {
        if self.is_in_bytes() { self.request.len } else { 1 }
    }
}

/// Makes a buffer whose pages are resident: a device that is used for swap must not need memory for a request.
fn resident(len: usize) -> Buffer {
    let mut buffer = Buffer::new(len);
    buffer.data_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    buffer
}

/// Returns the result of a request that succeeded. A discard may be longer than a result can be; of that the driver
/// reads only whether it failed.
fn bytes_done(len: u64) -> i32 {
    i32::try_from(len).unwrap_or(0)
}

/// Returns the error number for the block layer.
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
    fn result_of_long_discard_is_no_error() {
        let longest = u64::from(u32::MAX / 512) * 512;
        assert_eq!([4096, (1 << 31) - 512, 1 << 31, longest].map(bytes_done), [4096, i32::MAX - 511, 0, 0]);
    }
}
