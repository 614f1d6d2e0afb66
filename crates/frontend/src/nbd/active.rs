//! Active requests: commands that are checked, carried out in pieces, and answered.
//!
//! An active request is one command of one session. Each piece of it is one request to the worker, with a buffer of its
//! own. Reads run one piece after the other, so that the data of a simple reply stays in order; pieces of a write run
//! as their payload arrives. A read that must be answered in one chunk, and that the mapping splits, is gathered in a
//! second buffer. Nothing here knows the session: it lends its [`Output`] and its [`Memory`].

mod pending_write;
mod turn;

use super::block_status::{MAX_EXTENTS, MAX_STATUS_TIME, put_block_status};
use super::handshake::ReplyStyle;
use super::memory::{Memory, Supply};
use super::output::{OutgoingChunk, Output};
use super::protocol::{NbdError, command, command_flag};
use super::throttle::{Allowance, Blocked, Charge, Piece};
use super::transmission::{Command, Head, extent_len};
use super::zeroing::zeroing;
use inlock_engine::buffer::HEADROOM;
use inlock_engine::request::Operation;
use inlock_engine::rmw;
use inlock_engine::worker::{Finished, MAX_REQUESTS_WITHOUT_DATA, Request};
use inlock_engine::{Buffer, BufferPool, Errno, MappedRange, Mapping, RequestError, Zeroing};

pub(super) use pending_write::PendingWrite;
pub(super) use turn::Turn;

/// Cost that one session may begin in a turn, in bytes that are moved. The rest begins in later turns, so that other
/// sessions begin theirs in between.
pub(super) const QUANTUM: u64 = 1 << 20;
/// Replies with at least this much data leave at once, so that the client receives them while the worker decrypts the
/// next request. Shorter ones leave together at the end of a turn.
const LONG_REPLY: usize = 128 << 10;
/// Length of the pieces of CACHE and TRIM, which use no buffer. Other sessions are served between two pieces.
const CACHE_PIECE: u64 = 1 << 20;
const TRIM_PIECE: u64 = 128 << 20;
/// TRIM pieces of one worker in flight: a file system may block writes to the file during a discard.
const MAX_TRIMS: u32 = 1;
/// Active requests of one worker, of all its sessions together; more wait in their sockets.
const MAX_ACTIVE: usize = MAX_REQUESTS_WITHOUT_DATA;
/// Active requests that are reserved for sessions that have none.
const RESERVED_ACTIVE: usize = 1024;

/// Parts of a session that it lends to its active requests.
pub(super) struct Owner<'a> {
    /// Index of the session.
    pub(super) session: u32,
    pub(super) style: ReplyStyle,
    pub(super) output: &'a mut Output,
    pub(super) memory: &'a mut Memory,
    /// Its part in the limits of the export.
    pub(super) allowance: Option<&'a mut Allowance>,
}

/// Command of a session, in one piece or in several.
struct ActiveRequest {
    session: u32,
    command: Command,
    /// Bytes for which pieces have begun.
    begun: u64,
    /// Length of the last piece that has no buffer.
    dataless: u64,
    /// Whether it may leave holes: a deallocation of it was not refused.
    can_deallocate: bool,
    /// Pieces that the worker has, or whose payload is arriving.
    outstanding: u32,
    /// First failure of a piece.
    error: Option<NbdError>,
    /// Bytes of pieces that have begun, among those in flight of the export.
    charge: Option<Charge>,
}

impl ActiveRequest {
    fn new(session: u32, command: Command) -> Self {
        let (begun, dataless, outstanding) = (0, 0, 0);
        Self { session, command, begun, dataless, can_deallocate: true, outstanding, error: None, charge: None }
    }

    /// Takes note that the buffer of a piece returns.
    fn release(&mut self, piece: &MappedRange) {
        if let Some(charge) = &mut self.charge {
            charge.release(piece.len as u64);
        }
    }

    /// Whether all its pieces have begun.
    fn is_begun(&self) -> bool {
        self.begun == self.command.len
    }

    /// Whether its reply must be one chunk.
    fn is_unfragmented(&self) -> bool {
        self.command.kind == command::READ && self.command.has_flag(command_flag::DF)
    }

    fn needs_memory(&self) -> bool {
        !matches!(self.command.kind, command::FLUSH | command::TRIM | command::CACHE)
    }

    /// Minimum length of requests that compete for the same buffers; 0 if any buffer will do.
    fn min_competing_len(&self) -> u64 {
        if self.is_unfragmented() { self.command.len } else { 0 }
    }

    /// Returns offset in the export and length of the bytes without a piece.
    fn rest(&self) -> (u64, u64) {
        (self.command.offset + self.begun, self.command.len - self.begun)
    }

    /// Length of the next piece, of at most `max` bytes. It ends on a multiple of them in its segment, so that no data
    /// unit is split and left out.
    fn piece_len(&self, max: u64, turn: &Turn<'_>) -> u64 {
        let (offset, rest) = self.rest();
        turn.mapping.place(offset, rest).map_or(rest.min(max), |place| place.len.min(max - place.within % max))
    }

    fn is_durable(&self) -> bool {
        self.command.has_flag(command_flag::FUA)
    }
}

/// Lengths of the shortest requests that got no buffer in this turn. New requests that are at least as long wait behind
/// them, so that they do not starve.
#[derive(Clone, Copy, Debug)]
struct MinBlockedLen {
    /// Of sessions that hold no buffer, and may use the reserve.
    without_memory: u64,
    /// Of all sessions.
    any: u64,
}

impl MinBlockedLen {
    const NONE: Self = Self { without_memory: u64::MAX, any: u64::MAX };

    fn add(&mut self, holds_none: bool, len: u64) {
        self.any = self.any.min(len);
        if holds_none {
            self.without_memory = self.without_memory.min(len);
        }
    }

    fn is_behind(&self, holds_none: bool, len: u64) -> bool {
        len >= if holds_none { self.without_memory } else { self.any }
    }
}

/// Result of an attempt to begin a piece.
pub(super) enum Attempt {
    /// The worker has the piece, or the request has ended.
    Begun { cost: u64 },
    /// The piece has a buffer for its payload.
    Payload { write: PendingWrite, buffer: Buffer, cost: u64 },
    /// The rest of a write is beyond the end of the device. Its payload of this length is to be skipped, and then
    /// [`ActiveTable::on_skipped`] called.
    Skip { rest: u64 },
    /// There was no buffer of any size for this session.
    NoMemory,
    /// The piece waits for something else.
    Blocked,
    /// The piece waits for a limit of the export.
    Throttled(Blocked),
    /// A simple reply failed after its first data: as [`After::Disconnect`].
    Disconnect,
}

/// Consequence of the end of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing: other pieces are in flight, or the request has ended.
    Nothing,
    /// The next piece waits for a turn.
    NextPiece,
    /// A chunk with data was queued; unless it is the last, the next piece waits for a turn.
    Data { is_last: bool, is_long: bool },
    /// A simple reply failed after its first data, which cannot be told in the protocol: the connection has to end.
    Disconnect,
}

/// Active requests of all sessions of a worker.
pub(super) struct ActiveTable {
    requests: Vec<Option<ActiveRequest>>,
    free: Vec<u32>,
    min_blocked_len: MinBlockedLen,
    /// TRIM pieces in flight.
    trims: u32,
}

impl ActiveTable {
    pub(super) fn new() -> Self {
        Self {
            requests: Vec::with_capacity(MAX_ACTIVE),
            free: Vec::with_capacity(MAX_ACTIVE),
            min_blocked_len: MinBlockedLen::NONE,
            trims: 0,
        }
    }

    /// Forgets which requests got no buffer.
    pub(super) fn begin_turn(&mut self) {
        self.min_blocked_len = MinBlockedLen::NONE;
    }

    /// Whether a session with `unanswered` requests may have one more.
    pub(super) fn has_room(&self, unanswered: usize) -> bool {
        let room = MAX_ACTIVE - (self.requests.len() - self.free.len());
        room > if unanswered == 0 { 0 } else { RESERVED_ACTIVE }
    }

    /// Adds a request that was accepted, and returns its number.
    pub(super) fn insert(&mut self, command: Command, owner: &mut Owner<'_>) -> u32 {
        owner.output.unanswered += 1;
        let request = ActiveRequest::new(owner.session, command);
        let id = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            (self.requests.len() - 1) as u32
        });
        self.requests[id as usize] = Some(request);
        id
    }

    /// Returns the index of a request's session.
    pub(super) fn session_of(&self, id: u32) -> u32 {
        self.request(id).session
    }

    pub(super) fn needs_memory(&self, id: u32) -> bool {
        self.request(id).needs_memory()
    }

    fn request(&self, id: u32) -> &ActiveRequest {
        self.requests[id as usize].as_ref().expect("a request is used until it is removed")
    }

    fn request_mut(&mut self, id: u32) -> &mut ActiveRequest {
        self.requests[id as usize].as_mut().expect("a request is used until it is removed")
    }

    fn remove(&mut self, id: u32, output: &mut Output) {
        self.requests[id as usize] = None;
        self.free.push(id);
        output.unanswered -= 1;
        output.long_read.take_if(|long| *long == id);
    }

    /// Removes the requests of a dropped session that the worker does not have.
    pub(super) fn remove_idle(&mut self, session: u32, output: &mut Output) {
        for id in 0..self.requests.len() as u32 {
            let request = self.requests[id as usize].as_ref();
            if request.is_some_and(|request| request.session == session && request.outstanding == 0) {
                self.remove(id, output);
            }
        }
    }

    /// Begins the next piece of a request.
    pub(super) fn begin_piece(&mut self, id: u32, owner: &mut Owner<'_>, turn: &mut Turn<'_>) -> Attempt {
        let request = self.request(id);
        let durable = request.is_durable();
        let zeroing = zeroing(&request.command, request.rest(), TRIM_PIECE, turn.device.access(), turn.mapping);
        match (request.command.kind, zeroing.filter(|_| request.can_deallocate)) {
            // A trim leaves what is no whole hole, which the device knows: zeroes there would allocate.
            (command::TRIM, Some(Zeroing::Deallocate(len) | Zeroing::Write(len))) => {
                self.begin_discard(id, Operation::Discard { durable }, len, turn)
            }
            (_, Some(Zeroing::Deallocate(len))) => self.begin_discard(id, Operation::Deallocate { durable }, len, turn),
            (_, Some(Zeroing::Write(len))) => self.begin_transfer(id, len, owner, turn),
            (command::TRIM, _) => {
                let len = request.piece_len(TRIM_PIECE, turn);
                self.begin_discard(id, Operation::Discard { durable }, len, turn)
            }
            (command::FLUSH | command::CACHE, _) => self.begin_without_buffer(id, turn),
            (command::BLOCK_STATUS, _) => self.begin_block_status(id, owner, turn),
            _ => self.begin_transfer(id, u64::MAX, owner, turn),
        }
    }

    fn begin_without_buffer(&mut self, id: u32, turn: &mut Turn<'_>) -> Attempt {
        let request = self.request(id);
        match request.command.kind {
            command::CACHE => self.begin_dataless(id, Operation::Prefetch, request.piece_len(CACHE_PIECE, turn), turn),
            _ => self.begin_dataless(id, Operation::Flush, request.rest().1, turn),
        }
    }

    fn begin_discard(&mut self, id: u32, operation: Operation, len: u64, turn: &mut Turn<'_>) -> Attempt {
        if self.trims >= MAX_TRIMS {
            return Attempt::Blocked;
        }
        self.trims += 1;
        self.begin_dataless(id, operation, len, turn)
    }

    fn begin_dataless(&mut self, id: u32, operation: Operation, len: u64, turn: &mut Turn<'_>) -> Attempt {
        let (offset, _) = self.request(id).rest();
        let request = self.request_mut(id);
        request.begun += len;
        request.dataless = len;
        request.outstanding += 1;
        turn.requests.push_back(Request { id: id.into(), operation, offset, len, data: None, spare: None });
        // As long as the store takes, which is not known.
        Attempt::Begun { cost: QUANTUM }
    }

    fn begin_block_status(&mut self, id: u32, owner: &mut Owner<'_>, turn: &mut Turn<'_>) -> Attempt {
        let len = MAX_EXTENTS * extent_len(ReplyStyle::Extended);
        let holds_none = owner.memory.is_empty();
        let Some(buffer) = owner.memory.take(&mut self.supply(id, owner.output, holds_none, turn), len, len) else {
            self.min_blocked_len.add(holds_none, self.request(id).min_competing_len());
            return Attempt::NoMemory;
        };
        self.block_status(id, buffer, owner, turn);
        Attempt::Begun { cost: QUANTUM }
    }

    /// Begins a piece of at most `max_len` bytes that moves data through a buffer.
    fn begin_transfer(&mut self, id: u32, max_len: u64, owner: &mut Owner<'_>, turn: &mut Turn<'_>) -> Attempt {
        let request = self.request(id);
        let (offset, rest) = request.rest();
        if turn.mapping.place(offset, rest).is_err() {
            // The device was resized after the command was checked. A longer one may be ahead of the worker's mapping.
            let is_beyond = offset.saturating_add(rest) > turn.device.len();
            return if is_beyond { self.end_beyond_device(id, owner) } else { Attempt::Blocked };
        }
        let rest = rest.min(max_len);
        let (is_durable, min_competing_len) = (request.is_durable(), request.min_competing_len());
        let purpose = Purpose::of(request);
        let is_read = matches!(purpose, Purpose::Read | Purpose::ReadWhole);
        // Replies behind an unfinished simple one cannot leave, and hold memory that its next pieces may need.
        if is_read && owner.output.long_read.is_some_and(|long| long != id) {
            return Attempt::Blocked;
        }
        if purpose == Purpose::ReadWhole && rest > BufferPool::LARGEST_PIECE as u64 {
            self.request_mut(id).error = Some(NbdError::Overflow);
            self.finish(id, owner);
            return Attempt::Begun { cost: 0 };
        }
        if owner.memory.is_full() {
            return Attempt::NoMemory;
        }
        // Everything that the session holds may wait for the rest of a simple reply.
        let is_awaited = owner.output.long_read == Some(id) && !owner.output.is_leaving(id);
        let piece = Piece { len: rest, is_whole: purpose == Purpose::ReadWhole, is_awaited };
        let max_len = match owner.allowance.as_deref_mut().map(|allowance| allowance.piece(piece, turn.now)) {
            Some(Err(blocked)) => return Attempt::Throttled(blocked),
            Some(Ok(max_len)) => max_len,
            None => u64::MAX,
        };
        let holds_none = owner.memory.is_empty();
        let mapping = turn.mapping;
        let mut supply = self.supply(id, owner.output, holds_none, turn);
        let range = (offset, rest, max_len);
        let Some((mapped, buffer, spare)) = take_buffers(&mut supply, mapping, owner.memory, range, purpose) else {
            self.min_blocked_len.add(holds_none, min_competing_len);
            return if purpose == Purpose::ReadWhole { Attempt::Blocked } else { Attempt::NoMemory };
        };
        let request = self.request_mut(id);
        if let Some(allowance) = owner.allowance.as_deref_mut() {
            // Further pieces of a read in one chunk take no further buffer.
            let len = if purpose == Purpose::ReadWhole { rest } else { mapped.len as u64 };
            let charge = allowance.begin_piece(len);
            match &mut request.charge {
                Some(sum) => sum.add(charge),
                none => *none = Some(charge),
            }
        }
        request.begun += mapped.len as u64;
        request.outstanding += 1;
        if is_read && owner.style == ReplyStyle::Simple {
            owner.output.long_read = (!request.is_begun()).then_some(id);
        }
        // A durable write may take the store as long as a flush.
        let cost = if is_durable && !is_read { QUANTUM } else { mapped.len as u64 };
        let operation = match purpose {
            Purpose::Read | Purpose::ReadWhole => Operation::Read,
            Purpose::WriteZeroes => Operation::WriteZeroes { durable: is_durable },
            Purpose::Write => {
                let write = PendingWrite { request: id, mapped, spare, filled: 0, since: turn.now };
                return Attempt::Payload { write, buffer, cost };
            }
        };
        let data = Some((mapped, buffer));
        turn.requests.push_back(Request { id: id.into(), operation, offset, len: rest, data, spare });
        Attempt::Begun { cost }
    }

    /// Ends a request whose rest is beyond the end of the device.
    fn end_beyond_device(&mut self, id: u32, owner: &mut Owner<'_>) -> Attempt {
        let request = self.request_mut(id);
        let (kind, begun) = (request.command.kind, request.begun);
        // As the check of a command answers.
        let error = if kind == command::READ { NbdError::Inval } else { NbdError::NoSpace };
        request.error.get_or_insert(error);
        match kind {
            command::WRITE => return Attempt::Skip { rest: request.rest().1 },
            command::READ if owner.style == ReplyStyle::Simple && begun > 0 => return Attempt::Disconnect,
            _ => {}
        }
        owner.output.send_chunks_first(id);
        self.finish(id, owner);
        Attempt::Begun { cost: 0 }
    }

    /// Takes note that the rest of a write's payload was skipped.
    pub(super) fn on_skipped(&mut self, id: u32, owner: &mut Owner<'_>) {
        let request = self.request_mut(id);
        request.begun = request.command.len;
        if request.outstanding == 0 {
            self.finish(id, owner);
        }
    }

    /// Returns the buffers that the next piece of a request may take.
    fn supply<'a>(&self, id: u32, output: &Output, holds_none: bool, turn: &'a mut Turn<'_>) -> Supply<'a> {
        let request = self.request(id);
        // A request that has begun goes on in any case: memory that others wait for may return only when it ends.
        let is_new = request.begun == 0;
        Supply {
            pool: turn.pool,
            // Everything that the session holds may wait for the rest of a simple reply.
            may_use_reserve: holds_none || output.long_read == Some(id),
            is_behind: is_new && self.min_blocked_len.is_behind(holds_none, request.command.len),
            now: turn.now,
        }
    }

    /// Hands a piece of a write whose payload is complete to the worker. Returns whether more of the payload is to
    /// come.
    pub(super) fn begin_write(
        &mut self,
        write: PendingWrite,
        buffer: Buffer,
        owner: &mut Owner<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let PendingWrite { request: id, mapped, spare, .. } = write;
        let request = self.request_mut(id);
        let has_more = !request.is_begun();
        if request.error.is_some() {
            // An earlier piece failed. The rest of the payload is read only to find the next command.
            request.outstanding -= 1;
            let is_over = !has_more && request.outstanding == 0;
            request.release(&mapped);
            owner.memory.give(turn.pool, Some(buffer));
            owner.memory.give(turn.pool, spare);
            if is_over {
                self.finish(id, owner);
            }
        } else {
            let operation = Operation::Write { durable: request.is_durable() };
            let data = Some((mapped, buffer));
            turn.requests.push_back(Request { id: id.into(), operation, offset: 0, len: 0, data, spare });
        }
        has_more
    }

    /// Takes note that the payload of a piece will not arrive.
    pub(super) fn cancel_piece(&mut self, id: u32) {
        self.request_mut(id).outstanding -= 1;
    }

    /// Forgets a write whose payload will not come. Pieces that the worker has still end.
    pub(super) fn abandon(&mut self, id: u32, output: &mut Output) {
        let request = self.request_mut(id);
        request.command.len = request.begun;
        request.error = Some(NbdError::Io);
        if request.outstanding == 0 {
            self.remove(id, output);
        }
    }

    /// Takes back a piece that has ended.
    pub(super) fn on_finished(&mut self, done: Finished, owner: &mut Owner<'_>, turn: &mut Turn<'_>) -> After {
        let id = done.id as u32;
        let kind = self.piece_ended(id, &done);
        if kind == command::READ {
            return self.read_finished(id, done, owner, turn);
        }
        let is_refused = done.result == Err(RequestError::Unsupported) && done.data.is_none();
        let request = self.request_mut(id);
        if let Some((mapped, _)) = &done.data {
            request.release(mapped);
        }
        give_back(done.data, done.spare, owner.memory, turn.pool);
        if is_refused && kind == command::WRITE_ZEROES && !request.command.has_flag(command_flag::FAST_ZERO) {
            // Table or access have changed, or the store cannot deallocate: zeroes are written instead.
            request.begun -= request.dataless;
            request.can_deallocate = false;
            return After::NextPiece;
        }
        if let Err(error) = done.result {
            request.error.get_or_insert(nbd_error(error));
        }
        // Of a write that failed the rest of the payload is still read.
        let is_over = request.is_begun() || (request.error.is_some() && kind != command::WRITE);
        match (is_over, request.outstanding) {
            (true, 0) => self.finish(id, owner),
            // The next piece waits for the next turn, so that a long request does not hold up others.
            (false, _) if kind != command::WRITE => return After::NextPiece,
            _ => {}
        }
        After::Nothing
    }

    /// Takes back a piece that has ended after its session was dropped.
    pub(super) fn on_finished_dropped(&mut self, done: Finished, owner: &mut Owner<'_>, pool: &mut BufferPool) {
        let id = done.id as u32;
        self.piece_ended(id, &done);
        give_back(done.data, done.spare, owner.memory, pool);
        if self.request(id).outstanding == 0 {
            self.remove(id, owner.output);
        }
    }

    fn piece_ended(&mut self, id: u32, done: &Finished) -> u16 {
        let request = self.request_mut(id);
        request.outstanding -= 1;
        let kind = request.command.kind;
        // Other pieces of these commands write zeroes.
        let is_discard = matches!(kind, command::TRIM | command::WRITE_ZEROES) && done.data.is_none();
        self.trims -= u32::from(is_discard);
        kind
    }

    fn read_finished(&mut self, id: u32, done: Finished, owner: &mut Owner<'_>, turn: &mut Turn<'_>) -> After {
        let Some((mapped, mut buffer)) = done.data else { return After::Nothing };
        let request = self.request(id);
        let (command, style, is_last) = (request.command, owner.style, request.is_begun());
        let mut range = mapped.requested();
        let mut offset = command.offset + request.begun - mapped.len as u64;
        if let Some(mut whole) = done.spare {
            if done.result.is_ok() {
                let at = (offset - command.offset) as usize;
                whole.data_mut()[at..at + mapped.len].copy_from_slice(&buffer.data()[range]);
                if !is_last {
                    self.begin_gathered(id, buffer, whole, owner, turn);
                    return After::Nothing;
                }
            }
            owner.memory.give(turn.pool, Some(buffer));
            (buffer, range, offset) = (whole, 0..command.len as usize, command.offset);
        }
        if let Err(error) = done.result {
            owner.memory.give(turn.pool, Some(buffer));
            if style == ReplyStyle::Simple && offset > command.offset {
                return After::Disconnect;
            }
            self.request_mut(id).error = Some(nbd_error(error));
            owner.output.send_chunks_first(id);
            self.finish(id, owner);
            return After::Nothing;
        }
        let head = Head::data(&command, style, offset, range.len(), is_last);
        let start = buffer.put_header(range.start, head.bytes());
        let is_long = range.len() >= LONG_REPLY;
        let range = start..HEADROOM + range.end;
        let is_unfinished = !is_last && style == ReplyStyle::Simple;
        let charge = self.request_mut(id).charge.take();
        owner.output.queue_chunk(OutgoingChunk { buffer, range, request: id, is_unfinished, charge });
        if is_last {
            self.remove(id, owner.output);
        }
        After::Data { is_last, is_long }
    }

    /// Begins the next piece of a read that is gathered in `whole`, into the buffer of the piece before.
    fn begin_gathered(&mut self, id: u32, buffer: Buffer, whole: Buffer, owner: &mut Owner<'_>, turn: &mut Turn<'_>) {
        let request = self.request_mut(id);
        let (offset, rest) = request.rest();
        let mapped = match turn.mapping.locate(offset, rest, buffer.capacity()) {
            Ok(mapped) => mapped,
            // The device became shorter meanwhile.
            Err(error) => {
                request.error = Some(nbd_error(error));
                owner.memory.give(turn.pool, Some(buffer));
                owner.memory.give(turn.pool, Some(whole));
                return self.finish(id, owner);
            }
        };
        request.begun += mapped.len as u64;
        request.outstanding += 1;
        turn.requests.push_back(Request {
            id: id.into(),
            operation: Operation::Read,
            offset,
            len: mapped.len as u64,
            data: Some((mapped, buffer)),
            spare: Some(whole),
        });
    }

    fn block_status(&mut self, id: u32, mut buffer: Buffer, owner: &mut Owner<'_>, turn: &mut Turn<'_>) {
        let command = self.request(id).command;
        match put_block_status(&mut buffer, &command, owner.style, turn.device, turn.mapping, MAX_STATUS_TIME) {
            Ok(count) => {
                let head = Head::block_status(&command, owner.style, count);
                let start = buffer.put_header(0, head.bytes());
                let range = start..HEADROOM + count * extent_len(owner.style);
                let charge = None;
                owner.output.queue_chunk(OutgoingChunk { buffer, range, request: id, is_unfinished: false, charge });
                self.remove(id, owner.output);
            }
            Err(error) => {
                owner.memory.give(turn.pool, Some(buffer));
                self.request_mut(id).error = Some(nbd_error(error));
                self.finish(id, owner);
            }
        }
    }

    /// Queues the reply of a request whose pieces have all ended, unless its data is the reply.
    fn finish(&mut self, id: u32, owner: &mut Owner<'_>) {
        let ActiveRequest { command, error, .. } = self.request(id);
        owner.output.queue_reply(&match error {
            Some(error) => Head::error(command, owner.style, *error),
            None => Head::done(command, owner.style),
        });
        self.remove(id, owner.output);
    }
}

/// Purpose of the buffers of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Read,
    /// A read whose data leaves in one chunk.
    ReadWhole,
    Write,
    WriteZeroes,
}

impl Purpose {
    fn of(request: &ActiveRequest) -> Self {
        match request.command.kind {
            command::READ if request.is_unfragmented() => Self::ReadWhole,
            command::READ => Self::Read,
            command::WRITE => Self::Write,
            _ => Self::WriteZeroes,
        }
    }
}

/// Takes a buffer for the first piece of a range (offset, length, and maximum length of the piece), and a spare one for
/// the edges of a partial write, or for the whole of a read that the mapping splits.
fn take_buffers(
    supply: &mut Supply<'_>,
    mapping: &Mapping,
    memory: &mut Memory,
    (offset, len, max_len): (u64, u64, u64),
    purpose: Purpose,
) -> Option<(MappedRange, Buffer, Option<Buffer>)> {
    let min_len = 2 * mapping.unit_len();
    let max_len = BufferPool::LARGEST_PIECE.min(usize::try_from(max_len).unwrap_or(usize::MAX)).max(min_len);
    let mut mapped = mapping.locate(offset, len, max_len).ok()?;
    let whole = purpose == Purpose::ReadWhole;
    let enough = if whole { mapped.aligned_len } else { mapped.aligned_len.min(min_len) };
    let buffer = memory.take(supply, mapped.aligned_len, enough)?;
    if buffer.capacity() < mapped.aligned_len {
        mapped = mapping.locate(offset, len, buffer.capacity()).ok()?;
    }
    let spare_len = match purpose {
        Purpose::Write | Purpose::WriteZeroes => rmw::spare_len(&mapped),
        Purpose::ReadWhole if (mapped.len as u64) < len => len as usize,
        Purpose::Read | Purpose::ReadWhole => 0,
    };
    if spare_len == 0 {
        return Some((mapped, buffer, None));
    }
    match memory.take(supply, spare_len, spare_len) {
        Some(spare) => Some((mapped, buffer, Some(spare))),
        None => {
            memory.give(supply.pool, Some(buffer));
            None
        }
    }
}

fn give_back(data: Option<(MappedRange, Buffer)>, spare: Option<Buffer>, memory: &mut Memory, pool: &mut BufferPool) {
    memory.give(pool, spare);
    memory.give(pool, data.map(|(_, buffer)| buffer));
}

fn nbd_error(error: RequestError) -> NbdError {
    match error {
        RequestError::OutOfRange => NbdError::Inval,
        RequestError::ReadOnly => NbdError::Perm,
        RequestError::Unsupported => NbdError::NotSup,
        RequestError::Io(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NbdError::NoSpace,
        _ => NbdError::Io,
    }
}

#[cfg(test)]
mod tests;
