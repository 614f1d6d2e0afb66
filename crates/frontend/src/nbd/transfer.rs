//! A command on its way: checked, carried out piece by piece, answered.
//!
//! A transfer is one command of one client. Reads go one piece after the other, so that a simple reply stays in order;
//! writes go as their payload arrives. Each piece is one request to the worker, with its own buffer. A read that is to be
//! answered in one chunk and is cut by the mapping is gathered in a second buffer, from which it is answered.

use super::connection::{Connection, Intake, Part, Phase, QUANTUM, Supply};
use super::frontend::Nbd;
use super::handshake::ReplyStyle;
use super::protocol::{MAX_PAYLOAD, NbdError, STATE_HOLE, STATE_ZERO, command, command_flag};
use super::transmission::{Command, Head, extent_len, put_extent};
use inlock_engine::buffer::HEADROOM;
use inlock_engine::request::Operation;
use inlock_engine::rmw;
use inlock_engine::worker::{Context, Finished, Request};
use inlock_engine::{Buffer, BufferPool, MappedRange, Mapping, RequestError};
use rustix::io::Errno;

/// A reply with this much data leaves at once, so that the client receives it while the next request is decrypted;
/// shorter ones leave together at the end of a turn.
const LONG_REPLY: usize = 128 << 10;
/// The most mapped_ranges in one block status reply.
const MAX_EXTENTS: usize = 256;
/// How many runs a store is asked for on behalf of one block status: a scattered file must not make a single request walk
/// all of it. The reply then covers less, as it may.
const MAX_RUNS: usize = 4 * MAX_EXTENTS;
/// Pieces of commands that move no data through buffers. The store works on one while other clients wait.
const CACHE_PIECE: u64 = 1 << 20;
const TRIM_PIECE: u64 = 128 << 20;
/// Pieces of TRIMs that one worker has under way at a time. A file system may carry out no write to the file meanwhile.
const MAX_TRIMS: u32 = 1;

/// A client's request on its way, in one piece or in several.
pub(super) struct Transfer {
    pub(super) connection: u32,
    pub(super) command: Command,
    /// Bytes for which pieces were begun.
    pub(super) begun: u64,
    /// Pieces that the worker has.
    pub(super) outstanding: u32,
    pub(super) error: Option<super::protocol::NbdError>,
}

/// The least lengths of requests for which the pool had no memory. A new request as long waits behind them, or they might
/// never find any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    /// Of clients that hold nothing, and may take what is reserved.
    empty: u64,
    /// Of all clients.
    any: u64,
}

impl Default for Blocked {
    fn default() -> Self {
        Self { empty: u64::MAX, any: u64::MAX }
    }
}

impl Blocked {
    fn add(&mut self, empty: bool, least: u64) {
        self.any = self.any.min(least);
        if empty {
            self.empty = self.empty.min(least);
        }
    }

    fn is_behind(&self, empty: bool, len: u64) -> bool {
        len >= if empty { self.empty } else { self.any }
    }
}

/// What came of the attempt to begin a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It has begun, or there was nothing to begin any more.
    Begun,
    /// There was no buffer of any size for this client.
    NoMemory,
    /// It waits for something else.
    Blocked,
}

impl Transfer {
    pub(super) fn is_begun(&self) -> bool {
        self.begun == self.command.len
    }

    /// How long a request must be to need memory of the kind that this one waits for. Most take any buffer.
    fn least(&self) -> u64 {
        let whole = self.command.kind == command::READ && self.command.has(command_flag::DF);
        if whole { self.command.len } else { 0 }
    }

    /// Whether it needs a buffer.
    pub(super) fn needs_memory(&self) -> bool {
        !matches!(self.command.kind, command::FLUSH | command::TRIM | command::CACHE)
    }

    /// Whether it holds nothing yet and needs memory.
    fn is_new(&self) -> bool {
        self.begun == 0 && self.needs_memory()
    }
}

impl Nbd {
    /// Whether there is anything to do for the command, and whether it is allowed.
    pub(super) fn check(&mut self, cx: &Context<'_>, index: u32, command: &Command) -> Result<bool, NbdError> {
        let access = cx.device.access();
        let in_range = command.offset.checked_add(command.len).is_some_and(|end| end <= cx.device.len());
        let Some(Connection { phase: Phase::Transmission { style, allocation }, reading, .. }) = self.connection(index)
        else {
            return Err(NbdError::Inval);
        };
        if command.kind == command::DISC {
            *reading = false;
            return Ok(true);
        }
        if !command.flags_are_valid(*style) {
            return Err(NbdError::Inval);
        }
        match command.kind {
            command::FLUSH => return Ok(true),
            command::READ | command::CACHE => {}
            command::BLOCK_STATUS if *allocation && command.len > 0 => {}
            command::WRITE | command::WRITE_ZEROES if access.read_only => return Err(NbdError::Perm),
            command::TRIM if access.read_only => return Err(NbdError::Perm),
            command::WRITE | command::WRITE_ZEROES if !in_range => return Err(NbdError::NoSpace),
            command::WRITE_ZEROES if command.has(command_flag::FAST_ZERO) => return Err(NbdError::NotSup),
            command::WRITE | command::WRITE_ZEROES => {}
            command::TRIM if access.allow_discards => {}
            _ => return Err(NbdError::Inval),
        }
        let carries_data = matches!(command.kind, command::READ | command::WRITE);
        if !in_range || (carries_data && command.len > u64::from(MAX_PAYLOAD)) {
            return Err(NbdError::Inval);
        }
        Ok(command.len > 0)
    }

    pub(super) fn begin(&mut self, cx: &mut Context<'_>, index: u32, command: Command) {
        let Some(connection) = self.connection(index) else { return };
        if command.kind == command::DISC {
            return;
        }
        connection.transfers += 1;
        let transfer = Transfer { connection: index, command, begun: 0, outstanding: 0, error: None };
        let id = match self.free_transfers.pop() {
            Some(id) => id,
            None => {
                self.transfers.push(None);
                (self.transfers.len() - 1) as u32
            }
        };
        self.transfers[id as usize] = Some(transfer);
        let _ = self.begin_piece(cx, id);
    }

    /// Begins the next piece of a transfer, or puts it where it waits.
    pub(super) fn begin_piece(&mut self, cx: &mut Context<'_>, id: u32) -> Attempt {
        let attempt = self.try_piece(cx, id);
        if attempt != Attempt::Begun {
            self.wait(id);
        }
        attempt
    }

    /// Puts a transfer where its next piece waits.
    pub(super) fn wait(&mut self, id: u32) {
        let Some((index, kind)) = self.transfers[id as usize].as_ref().map(|t| (t.connection, t.command.kind)) else {
            return;
        };
        if let Some(connection) = self.connection(index) {
            connection.waiting.push_back(id);
            if kind == command::WRITE {
                connection.waiting_write = Some(id);
            }
        }
        self.enqueue(index);
    }

    fn try_piece(&mut self, cx: &mut Context<'_>, id: u32) -> Attempt {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return Attempt::Begun };
        if transfer.needs_memory() {
            return self.try_with_memory(cx, id);
        }
        let Some(connection) = self.connections[transfer.connection as usize].as_mut() else { return Attempt::Begun };
        let command = transfer.command;
        let offset = command.offset + transfer.begun;
        let rest = command.len - transfer.begun;
        let durable = command.has(command_flag::FUA);
        let (operation, len) = match command.kind {
            command::TRIM if self.trims >= MAX_TRIMS => return Attempt::Blocked,
            command::TRIM | command::CACHE => {
                let trims = command.kind == command::TRIM;
                self.trims += u32::from(trims);
                let piece = if trims { TRIM_PIECE } else { CACHE_PIECE };
                // Pieces end on multiples of their length, so that no data unit is cut and kept for it.
                let here = rest.min(piece - offset % piece);
                let here = cx.mapping.place(offset, here).map_or(here, |p| p.len);
                (if trims { Operation::Discard { durable } } else { Operation::Prefetch }, here)
            }
            _ => (Operation::Flush, rest),
        };
        transfer.begun += len;
        connection.spend(self.turn, QUANTUM);
        transfer.outstanding += 1;
        cx.requests.push_back(Request { id: id.into(), operation, offset, len, data: None, spare: None });
        Attempt::Begun
    }

    /// Begins the next piece of a transfer that needs a buffer.
    fn try_with_memory(&mut self, cx: &mut Context<'_>, id: u32) -> Attempt {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return Attempt::Begun };
        let Some(connection) = self.connections[transfer.connection as usize].as_mut() else { return Attempt::Begun };
        let command = transfer.command;
        let empty = connection.held == 0;
        // The rest of a simple reply that has begun may be what all that the client holds waits for.
        let first = empty || connection.long_read == Some(id);
        // What has begun goes on in any case: memory that others wait for may come back only when it ends.
        let behind = transfer.is_new() && self.blocked.is_behind(empty, command.len);
        let mut supply = Supply { pool: cx.pool, first, behind, now: self.now };
        if command.kind == command::BLOCK_STATUS {
            let want = MAX_EXTENTS * extent_len(ReplyStyle::Extended);
            let Some(buffer) = connection.take(&mut supply, want, want) else {
                self.blocked.add(empty, transfer.least());
                return Attempt::NoMemory;
            };
            transfer.begun = command.len;
            connection.spend(self.turn, QUANTUM);
            self.block_status(cx, id, buffer);
            return Attempt::Begun;
        }
        let (offset, rest) = (command.offset + transfer.begun, command.len - transfer.begun);
        let reads = command.kind == command::READ;
        let whole = command.has(command_flag::DF) && reads;
        // Replies behind a simple one that is not finished cannot leave; the memory they held would be missing from it.
        if reads && connection.long_read.is_some_and(|long| long != id) {
            return Attempt::Blocked;
        }
        if whole && rest > BufferPool::LARGEST_PIECE as u64 {
            transfer.error = Some(NbdError::Overflow);
            let index = transfer.connection;
            self.finish_transfer(index, id);
            return Attempt::Begun;
        }
        if connection.is_full() {
            return Attempt::NoMemory;
        }
        let taken = take_buffers(&mut supply, cx.mapping, connection, (offset, rest), whole, !reads);
        let Some((mapped, buffer, spare)) = taken else {
            self.blocked.add(empty, transfer.least());
            return if whole { Attempt::Blocked } else { Attempt::NoMemory };
        };
        // A durable write may take the store as long as a flush.
        let durable = command.has(command_flag::FUA);
        connection.spend(self.turn, if durable && !reads { QUANTUM } else { mapped.len as u64 });
        transfer.begun += mapped.len as u64;
        if reads && connection.style() == ReplyStyle::Simple {
            connection.long_read = (!transfer.is_begun()).then_some(id);
        }
        if command.kind == command::WRITE {
            let begun = self.now;
            connection.intake = Some(Intake { transfer: id, mapped, buffer: Some(buffer), spare, filled: 0, begun });
            return Attempt::Begun;
        }
        let operation = if reads { Operation::Read } else { Operation::WriteZeroes { durable } };
        let data = Some((mapped, buffer));
        transfer.outstanding += 1;
        cx.requests.push_back(Request { id: id.into(), operation, offset, len: rest, data, spare });
        Attempt::Begun
    }

    /// Hands a piece of a write whose payload is complete to the worker, and begins the next piece.
    pub(super) fn begin_write(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        let Some(Intake { transfer: id, mapped, buffer, spare, .. }) = connection.intake.take() else { return };
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        if transfer.error.is_some() {
            // An earlier piece has failed; the rest of the payload is only read to stay in step.
            let connection = self.connections[index as usize].as_mut().filter(|c| !c.dead);
            if let Some(connection) = connection {
                connection.give(cx.pool, buffer);
                connection.give(cx.pool, spare);
            }
            if transfer.is_begun() && transfer.outstanding == 0 {
                return self.finish_transfer(index, id);
            }
        } else if let Some(buffer) = buffer {
            transfer.outstanding += 1;
            let durable = transfer.command.has(command_flag::FUA);
            let operation = Operation::Write { durable };
            cx.requests.push_back(Request {
                id: id.into(),
                operation,
                offset: 0,
                len: 0,
                data: Some((mapped, buffer)),
                spare,
            });
        }
        if !transfer.is_begun() {
            // When the server stops, what has not been received yet will not be.
            match self.connection(index).is_some_and(|c| c.reading) {
                true => {
                    let _ = self.begin_piece(cx, id);
                }
                false => self.abandon(id),
            }
        }
    }

    pub(super) fn read_finished(&mut self, cx: &mut Context<'_>, index: u32, id: u32, done: Finished) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let style = connection.style();
        let command = transfer.command;
        let Some((mapped, mut buffer)) = done.data else { return };
        let mut here = mapped.requested();
        let mut offset = command.offset + transfer.begun - mapped.len as u64;
        if let Some(mut whole) = done.spare {
            if done.result.is_ok() {
                let at = (offset - command.offset) as usize;
                whole.data_mut()[at..at + mapped.len].copy_from_slice(&buffer.data()[here]);
                if !transfer.is_begun() {
                    return self.gather(cx, id, buffer, whole);
                }
            }
            connection.give(cx.pool, Some(buffer));
            (buffer, here, offset) = (whole, 0..command.len as usize, command.offset);
        }
        match done.result {
            Ok(()) => {
                let last = transfer.is_begun();
                let head = Head::data(&command, style, offset, here.len(), last);
                let start = buffer.put_header(here.start, head.bytes());
                let range = start..HEADROOM + here.end;
                let long = here.len() >= LONG_REPLY;
                let unfinished = !last && style == ReplyStyle::Simple;
                connection.out.push_back(Part { buffer, range, transfer: id, unfinished });
                if last {
                    self.free_transfer(id);
                } else {
                    self.wait(id);
                }
                if long {
                    self.flush(cx, index);
                    cx.ring.submit_now();
                } else {
                    self.mark(index);
                }
            }
            Err(error) => {
                connection.give(cx.pool, Some(buffer));
                if style == ReplyStyle::Simple && offset > command.offset {
                    // The reply has begun as a success; the protocol leaves nothing but to hang up.
                    return self.kill(cx, index);
                }
                transfer.error = Some(nbd_error(error));
                // The chunk that ends a reply must not overtake the reply's data.
                let behind = connection.out.iter().rposition(|p| p.transfer == id).map_or(0, |at| at + 1);
                connection.text_after = connection.text_after.max(behind);
                self.finish_transfer(index, id);
            }
        }
    }

    /// Begins the next piece of a read that is gathered in `whole`, into the buffer of the piece before.
    fn gather(&mut self, cx: &mut Context<'_>, id: u32, buffer: Buffer, whole: Buffer) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        let (offset, rest) = (transfer.command.offset + transfer.begun, transfer.command.len - transfer.begun);
        let located = cx.mapping.locate(offset, rest, buffer.capacity());
        let mapped = located.expect("a device never gets shorter, and the read lies in it");
        transfer.begun += mapped.len as u64;
        transfer.outstanding += 1;
        cx.requests.push_back(Request {
            id: id.into(),
            operation: Operation::Read,
            offset,
            len: mapped.len as u64,
            data: Some((mapped, buffer)),
            spare: Some(whole),
        });
    }

    fn block_status(&mut self, cx: &mut Context<'_>, id: u32, mut buffer: Buffer) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        let index = transfer.connection;
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let style = connection.style();
        let command = transfer.command;
        let most = if command.has(command_flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
        let hole_flags = if cx.mapping.is_encrypted() { STATE_HOLE } else { STATE_HOLE | STATE_ZERO };
        let size = extent_len(style);
        // The last mapped, which the next run may make longer.
        let mut last: Option<(u64, u32)> = None;
        let mut count = 0;
        let mut at = command.offset;
        let end = command.offset + command.len;
        let mut runs = 0;
        while at < end && runs < MAX_RUNS {
            runs += 1;
            let longest = if style == ReplyStyle::Extended { u64::MAX } else { u64::from(u32::MAX - 0xffff) };
            match cx.device.block_status(at, (end - at).min(longest)) {
                Ok(run) => {
                    let flags = if run.hole { hole_flags } else { 0 };
                    match &mut last {
                        Some((len, same)) if *same == flags && *len + run.len <= longest => *len += run.len,
                        _ if count == most => break,
                        next => {
                            *next = Some((run.len, flags));
                            count += 1;
                        }
                    }
                    if let Some((len, flags)) = last {
                        put_extent(&mut buffer.data_mut()[(count - 1) * size..], style, len, flags);
                    }
                    at += run.len;
                }
                Err(error) => {
                    connection.give(cx.pool, Some(buffer));
                    transfer.error = Some(nbd_error(error));
                    return self.finish_transfer(index, id);
                }
            }
        }
        let head = Head::block_status(&command, style, count);
        let start = buffer.put_header(0, head.bytes());
        let range = start..HEADROOM + count * size;
        connection.out.push_back(Part { buffer, range, transfer: id, unfinished: false });
        self.mark(index);
        self.free_transfer(id);
    }

    /// Answers a transfer whose pieces have all ended, unless its data is the answer.
    pub(super) fn finish_transfer(&mut self, index: u32, id: u32) {
        let Some(transfer) = self.transfers[id as usize].as_ref() else { return };
        let (command, error) = (transfer.command, transfer.error);
        if let Some(connection) = self.connection(index) {
            let style = connection.style();
            connection.say(&match error {
                Some(error) => Head::error(&command, style, error),
                None => Head::done(&command, style),
            });
            self.mark(index);
        }
        self.free_transfer(id);
    }

    /// Forgets a write whose payload will not come; pieces that are under way still end.
    pub(super) fn abandon(&mut self, id: u32) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        transfer.command.len = transfer.begun;
        transfer.error = Some(NbdError::Io);
        if transfer.outstanding == 0 {
            self.free_transfer(id);
        }
    }

    pub(super) fn free_transfer(&mut self, id: u32) {
        if let Some(transfer) = self.transfers[id as usize].take() {
            self.free_transfers.push(id);
            if let Some(connection) = self.connections[transfer.connection as usize].as_mut() {
                connection.transfers -= 1;
                connection.long_read.take_if(|long| *long == id);
            }
        }
    }
}

/// A buffer for the first piece of a range (offset and length), and a spare one if it is a partial write, or a `whole` read
/// that is cut.
fn take_buffers(
    supply: &mut Supply<'_>,
    mapping: &Mapping,
    connection: &mut Connection,
    (offset, len): (u64, u64),
    whole: bool,
    writes: bool,
) -> Option<(MappedRange, Buffer, Option<Buffer>)> {
    let least = 2 * mapping.unit_len();
    let longest = BufferPool::LARGEST_PIECE.max(least);
    let mut mapped = mapping.locate(offset, len, longest).ok()?;
    let enough = if whole { mapped.aligned_len } else { mapped.aligned_len.min(least) };
    let buffer = connection.take(supply, mapped.aligned_len, enough)?;
    if buffer.capacity() < mapped.aligned_len {
        mapped = mapping.locate(offset, len, buffer.capacity()).ok()?;
    }
    let spare_len = match writes {
        true => rmw::spare_len(&mapped),
        false if whole && (mapped.len as u64) < len => len as usize,
        false => 0,
    };
    if spare_len == 0 {
        return Some((mapped, buffer, None));
    }
    match connection.take(supply, spare_len, spare_len) {
        Some(spare) => Some((mapped, buffer, Some(spare))),
        None => {
            connection.give(supply.pool, Some(buffer));
            None
        }
    }
}

pub(super) fn nbd_error(error: RequestError) -> NbdError {
    match error {
        RequestError::OutOfRange => NbdError::Inval,
        RequestError::ReadOnly => NbdError::Perm,
        RequestError::Unsupported => NbdError::NotSup,
        RequestError::Io(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NbdError::NoSpace,
        RequestError::Io(_) => NbdError::Io,
    }
}
