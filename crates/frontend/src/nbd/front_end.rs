//! Runs connections on a worker's ring: receives in large gulps, turns commands into requests, answers as they finish.
//!
//! Requests of one client run at once and are answered in the order they finish. A request longer than
//! [`BufferPool::LARGEST_PIECE`] is carried in pieces, so memory stays what the pool was made with: when it is used up,
//! requests wait, and a client that holds buffers without moving for [`STALL`] is dropped in favour of those that wait.

use super::connection::{Connection, Intake, MAX_HELD, Part, Phase, Skip, Transfer};
use super::handshake::{ReplyStyle, Step};
use super::protocol::{Export, MAX_PAYLOAD, NbdError, STATE_HOLE, STATE_ZERO, command, command_flag};
use super::transmission::{Command, Head, extent_len, put_extent};
use inlock_engine::buffer::HEADROOM;
use inlock_engine::request::Operation;
use inlock_engine::ring::{self, Completion, Returned, Token, Wait};
use inlock_engine::unaligned;
use inlock_engine::worker::{Context, Finished, Flow, FrontEnd, Request};
use inlock_engine::{Buffer, BufferPool, Extent, RequestError};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a client may take over its handshake.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may hold buffers that others wait for without sending or taking a byte.
pub const STALL: Duration = Duration::from_secs(10);
/// How long clients may take to receive their last replies when the server stops.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How often limits are looked at while there is reason to.
const SCAN: Duration = Duration::from_millis(500);
/// The most extents in one block status reply.
const MAX_EXTENTS: usize = 256;

/// What the server's other threads tell a worker's front end.
#[derive(Debug)]
pub enum Message {
    /// A client has connected.
    Accept(OwnedFd),
    /// Finish what was asked for, then stop.
    Drain,
}

/// The NBD front end of one worker.
pub struct Nbd {
    export: Arc<Export>,
    connections: Vec<Option<Connection>>,
    transfers: Vec<Option<Transfer>>,
    free_transfers: Vec<u32>,
    /// Transfers whose next piece waits: for memory, or for its turn.
    waiting: VecDeque<u32>,
    /// Connections that may have something to send.
    dirty: VecDeque<u32>,
    /// Connections of all workers; the server's limit counts them.
    live: Arc<AtomicUsize>,
    /// Connections whose handshake is not finished.
    handshakes: usize,
    now: Instant,
    next_scan: Instant,
    drain_until: Option<Instant>,
}

const RECEIVE: u64 = 1 << 32;
const PAYLOAD: u64 = 2 << 32;
const SEND: u64 = 3 << 32;

impl Nbd {
    /// A front end for `export`. `live` counts the connections of all workers.
    pub fn new(export: Arc<Export>, live: Arc<AtomicUsize>) -> Self {
        let now = Instant::now();
        Self {
            export,
            connections: Vec::new(),
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            waiting: VecDeque::new(),
            dirty: VecDeque::new(),
            live,
            handshakes: 0,
            now,
            next_scan: now,
            drain_until: None,
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>, socket: OwnedFd) {
        // Fails for sockets that are not TCP, which need it not.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        let Ok(file) = cx.ring.add_socket(socket) else {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let connection = Some(Connection::new(file, self.now));
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        self.connections[index] = connection;
        self.handshakes += 1;
        if self.drain_until.is_some() {
            self.kill(cx, index as u32);
        } else {
            self.dirty.push_back(index as u32);
            self.pump(cx, index as u32);
        }
    }

    fn connection(&mut self, index: u32) -> Option<&mut Connection> {
        self.connections.get_mut(index as usize)?.as_mut().filter(|c| !c.dead)
    }

    /// Reads what a client has sent as far as it can be taken on, then asks for more.
    fn pump(&mut self, cx: &mut Context<'_>, index: u32) {
        loop {
            let Some(connection) = self.connection(index) else { return };
            if !connection.reading || connection.receiving {
                break;
            }
            let wants_more = if connection.skip.is_some() {
                self.skip_payload(index)
            } else if connection.intake.is_some() {
                self.take_in(cx, index)
            } else if connection.in_handshake() {
                self.negotiate(cx, index)
            } else if connection.may_begin() && !self.is_waiting_to_write(index) {
                self.next_command(cx, index)
            } else {
                return;
            };
            match wants_more {
                None => {}
                Some(false) => return,
                Some(true) => return self.receive(cx, index),
            }
        }
        self.close_if_settled(cx, index);
    }

    /// Whether the client's last command is a write whose payload has no buffer yet.
    fn is_waiting_to_write(&self, index: u32) -> bool {
        self.waiting.iter().any(|t| {
            let transfer = self.transfers[*t as usize].as_ref();
            transfer.is_some_and(|t| t.connection == index && t.command.kind == command::WRITE)
        })
    }

    fn negotiate(&mut self, cx: &mut Context<'_>, index: u32) -> Option<bool> {
        let export = Arc::clone(&self.export);
        let connection = self.connection(index)?;
        if !connection.text.is_empty() || connection.sending {
            return Some(false);
        }
        let mut text = std::mem::take(&mut connection.text);
        let Phase::Handshake(handshake) = &mut connection.phase else { return None };
        let unread = connection.input.as_ref().map_or(&[][..], |i| &i.data()[connection.unread.clone()]);
        let step = handshake.advance(&export, unread, &mut text);
        connection.text = text;
        let Ok((consumed, step)) = step else {
            self.kill(cx, index);
            return Some(false);
        };
        connection.consume(consumed);
        match step {
            Step::Continue => {}
            Step::Start(chosen) => {
                connection.phase = Phase::Transmission { style: chosen.style, allocation: chosen.allocation };
                self.handshakes -= 1;
            }
            Step::Close => connection.reading = false,
        }
        self.dirty.push_back(index);
        if consumed == 0 { Some(true) } else { None }
    }

    fn skip_payload(&mut self, index: u32) -> Option<bool> {
        let connection = self.connection(index)?;
        let available = connection.unread.len();
        let skip = connection.skip.as_mut()?;
        let skipped = available.min(usize::try_from(skip.rest).unwrap_or(usize::MAX));
        skip.rest -= skipped as u64;
        let (rest, answer) = (skip.rest, skip.answer);
        connection.consume(skipped);
        if rest > 0 {
            return Some(true);
        }
        connection.skip = None;
        connection.say(&answer);
        self.dirty.push_back(index);
        None
    }

    /// Moves payload from the input into the buffer of the write it belongs to.
    fn take_in(&mut self, cx: &mut Context<'_>, index: u32) -> Option<bool> {
        let connection = self.connection(index)?;
        let intake = connection.intake.as_mut()?;
        let buffer = intake.buffer.as_mut()?;
        let into = &mut buffer.data_mut()[intake.extent.requested()][intake.filled..];
        let input = connection.input.as_ref().map_or(&[][..], |i| &i.data()[connection.unread.clone()]);
        let len = into.len().min(input.len());
        into[..len].copy_from_slice(&input[..len]);
        intake.filled += len;
        let full = intake.filled == intake.extent.len;
        connection.consume(len);
        if full {
            self.begin_write(cx, index);
            return None;
        }
        Some(true)
    }

    /// Hands a piece of a write whose payload is complete to the worker, and begins the next piece.
    fn begin_write(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        let Some(Intake { transfer: id, extent, buffer, spare, .. }) = connection.intake.take() else { return };
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
                data: Some((extent, buffer)),
                spare,
            });
        }
        if !transfer.is_begun() {
            self.begin_piece(cx, id);
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        if connection.receiving {
            return;
        }
        let file = connection.file;
        if let Some(intake) = &mut connection.intake
            && let Some(buffer) = intake.buffer.take()
        {
            let requested = intake.extent.requested();
            let range = requested.start + intake.filled..requested.end;
            connection.receiving = true;
            let operation = ring::Operation::Receive { buffer, range, all: true };
            return cx.ring.submit(file, operation, Token(PAYLOAD | u64::from(index)));
        }
        if let Some((buffer, range)) = connection.take_input() {
            connection.receiving = true;
            let operation = ring::Operation::Receive { buffer, range, all: false };
            cx.ring.submit(file, operation, Token(RECEIVE | u64::from(index)));
        }
    }

    fn next_command(&mut self, cx: &mut Context<'_>, index: u32) -> Option<bool> {
        let connection = self.connection(index)?;
        let style = connection.style();
        match Command::parse(connection.unread(), style) {
            Ok(None) => Some(true),
            Ok(Some((command, header_len))) => {
                connection.consume(header_len);
                match self.check(cx, index, &command) {
                    Ok(true) => self.begin(cx, index, command),
                    Ok(false) => self.answer(index, &command, Head::done(&command, style)),
                    Err(error) => self.answer(index, &command, Head::error(&command, style, error)),
                }
                None
            }
            Err(_) => {
                self.kill(cx, index);
                Some(false)
            }
        }
    }

    /// Answers a command at once, or as soon as its payload has been skipped.
    fn answer(&mut self, index: u32, command: &Command, answer: Head) {
        let Some(connection) = self.connection(index) else { return };
        let rest = command.payload_len(connection.style());
        if rest > 0 {
            connection.skip = Some(Skip { rest, answer });
        } else {
            connection.say(&answer);
            self.dirty.push_back(index);
        }
    }

    /// Whether there is anything to do for the command, and whether it is allowed.
    fn check(&mut self, cx: &Context<'_>, index: u32, command: &Command) -> Result<bool, NbdError> {
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

    fn begin(&mut self, cx: &mut Context<'_>, index: u32, command: Command) {
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
        self.begin_piece(cx, id);
    }

    /// Begins the next piece of a transfer, or puts it where it waits for memory.
    fn begin_piece(&mut self, cx: &mut Context<'_>, id: u32) {
        if !self.try_piece(cx, id) {
            self.waiting.push_back(id);
        }
    }

    /// False: there is no memory for it now.
    fn try_piece(&mut self, cx: &mut Context<'_>, id: u32) -> bool {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return true };
        let Some(connection) = self.connections[transfer.connection as usize].as_mut() else { return true };
        let command = transfer.command;
        let offset = command.offset + transfer.begun;
        let rest = command.len - transfer.begun;
        let mut request =
            Request { id: id.into(), operation: Operation::Flush, offset, len: rest, data: None, spare: None };
        match command.kind {
            command::READ | command::WRITE | command::WRITE_ZEROES => {
                let reads = command.kind == command::READ;
                let whole = command.has(command_flag::DF) && reads;
                let Some((extent, buffer, spare)) = take_buffers(cx, connection, offset, rest, whole, !reads) else {
                    return false;
                };
                if whole && (extent.len as u64) < rest {
                    connection.give(cx.pool, Some(buffer));
                    transfer.error = Some(NbdError::Overflow);
                    let index = transfer.connection;
                    self.finish_transfer(index, id);
                    return true;
                }
                transfer.begun += extent.len as u64;
                if command.kind == command::WRITE {
                    connection.intake = Some(Intake { transfer: id, extent, buffer: Some(buffer), spare, filled: 0 });
                    return true;
                }
                let durable = command.has(command_flag::FUA);
                request.operation = if reads { Operation::Read } else { Operation::WriteZeroes { durable } };
                request.data = Some((extent, buffer));
                request.spare = spare;
            }
            command::TRIM | command::CACHE => {
                let here = cx.device.target().place(offset, rest).map_or(rest, |p| p.len);
                request.len = here;
                request.operation =
                    if command.kind == command::TRIM { Operation::Discard } else { Operation::Prefetch };
                transfer.begun += here;
            }
            command::BLOCK_STATUS => {
                let want = MAX_EXTENTS * extent_len(ReplyStyle::Extended);
                let Some(buffer) = connection.take(cx.pool, want, want) else { return false };
                transfer.begun = command.len;
                self.block_status(cx, id, buffer);
                return true;
            }
            _ => transfer.begun = command.len,
        }
        transfer.outstanding += 1;
        cx.requests.push_back(request);
        true
    }

    fn block_status(&mut self, cx: &mut Context<'_>, id: u32, mut buffer: Buffer) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        let index = transfer.connection;
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let style = connection.style();
        let command = transfer.command;
        let most = if command.has(command_flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
        let hole_flags = if cx.device.target().is_encrypted() { STATE_HOLE } else { STATE_HOLE | STATE_ZERO };
        let mut extents: Vec<(u64, u32)> = Vec::with_capacity(8);
        let mut at = command.offset;
        let end = command.offset + command.len;
        while at < end && extents.len() <= most {
            let longest = if style == ReplyStyle::Extended { u64::MAX } else { u64::from(u32::MAX - 0xffff) };
            match cx.device.run_at(at, (end - at).min(longest)) {
                Ok(run) => {
                    let flags = if run.hole { hole_flags } else { 0 };
                    match extents.last_mut() {
                        Some((len, last)) if *last == flags && *len + run.len <= longest => *len += run.len,
                        _ => extents.push((run.len, flags)),
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
        extents.truncate(most);
        let size = extent_len(style);
        for ((len, flags), into) in extents.iter().zip(buffer.data_mut().chunks_exact_mut(size)) {
            put_extent(into, style, *len, *flags);
        }
        let head = Head::block_status(&command, style, extents.len());
        let start = buffer.put_header(0, head.bytes());
        let range = start..HEADROOM + extents.len() * size;
        connection.out.push_back(Part { buffer, range, transfer: id, unfinished: false });
        self.dirty.push_back(index);
        self.free_transfer(id);
    }

    /// Answers a transfer whose pieces have all ended, unless its data is the answer.
    fn finish_transfer(&mut self, index: u32, id: u32) {
        let Some(transfer) = self.transfers[id as usize].as_ref() else { return };
        let (command, error) = (transfer.command, transfer.error);
        if let Some(connection) = self.connection(index) {
            let style = connection.style();
            connection.say(&match error {
                Some(error) => Head::error(&command, style, error),
                None => Head::done(&command, style),
            });
            self.dirty.push_back(index);
        }
        self.free_transfer(id);
    }

    fn free_transfer(&mut self, id: u32) {
        if let Some(transfer) = self.transfers[id as usize].take() {
            self.free_transfers.push(id);
            if let Some(connection) = self.connections[transfer.connection as usize].as_mut() {
                connection.transfers -= 1;
            }
        }
    }

    fn read_finished(&mut self, cx: &mut Context<'_>, index: u32, id: u32, done: Finished) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let style = connection.style();
        let command = transfer.command;
        let Some((extent, mut buffer)) = done.data else { return };
        let offset = command.offset + transfer.begun - extent.len as u64;
        match done.result {
            Ok(()) => {
                let last = transfer.is_begun();
                let head = Head::data(&command, style, offset, extent.len, last);
                let start = buffer.put_header(extent.skip, head.bytes());
                let range = start..HEADROOM + extent.requested().end;
                let unfinished = !last && style == ReplyStyle::Simple;
                connection.out.push_back(Part { buffer, range, transfer: id, unfinished });
                self.dirty.push_back(index);
                if last {
                    self.free_transfer(id);
                } else {
                    self.waiting.push_back(id);
                }
            }
            Err(error) => {
                connection.give(cx.pool, Some(buffer));
                if style == ReplyStyle::Simple && offset > command.offset {
                    // The reply has begun as a success; the protocol leaves nothing but to hang up.
                    return self.kill(cx, index);
                }
                transfer.error = Some(nbd_error(error));
                self.finish_transfer(index, id);
            }
        }
    }

    /// Drops a client at once. What it holds comes back as its operations end.
    fn kill(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connections[index as usize].as_mut().filter(|c| !c.dead) else { return };
        connection.dead = true;
        self.handshakes -= usize::from(connection.in_handshake());
        cx.ring.close(connection.file);
        for part in std::mem::take(&mut connection.out) {
            connection.give(cx.pool, Some(part.buffer));
        }
        if let Some(intake) = &mut connection.intake {
            let spare = intake.spare.take();
            let buffer = intake.buffer.take();
            connection.give(cx.pool, spare);
            connection.give(cx.pool, buffer);
        }
        for id in 0..self.transfers.len() as u32 {
            let idle = self.transfers[id as usize].as_ref();
            if idle.is_some_and(|t| t.connection == index && t.outstanding == 0) {
                self.waiting.retain(|w| *w != id);
                self.free_transfer(id);
            }
        }
        self.reap(index);
    }

    fn reap(&mut self, index: u32) {
        let slot = &mut self.connections[index as usize];
        if slot.as_ref().is_some_and(|c| c.dead && !c.receiving && !c.sending && c.transfers == 0) {
            *slot = None;
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn close_if_settled(&mut self, cx: &mut Context<'_>, index: u32) {
        if self.connection(index).is_some_and(|c| !c.reading && c.is_settled()) {
            self.kill(cx, index);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        if connection.sending {
            return;
        }
        if let Some(outgoing) = connection.next_send() {
            connection.sending = true;
            cx.ring.submit(connection.file, ring::Operation::Send(outgoing), Token(SEND | u64::from(index)));
        }
        self.close_if_settled(cx, index);
    }

    /// Drops clients that are over a limit.
    fn scan(&mut self, cx: &mut Context<'_>) {
        let short_of_memory = !self.waiting.is_empty();
        for index in 0..self.connections.len() as u32 {
            let now = self.now;
            let Some(connection) = self.connection(index) else { continue };
            let slow = connection.in_handshake() && now - connection.opened > HANDSHAKE_LIMIT;
            let stalled = short_of_memory && connection.held > 0 && now - connection.active > STALL;
            if slow || stalled || self.drain_until.is_some_and(|until| now > until) {
                self.kill(cx, index);
            }
        }
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.drain_until = Some(self.now + DRAIN_LIMIT);
        for index in 0..self.connections.len() as u32 {
            let Some(connection) = self.connection(index) else { continue };
            connection.reading = false;
            let file = connection.file;
            if connection.in_handshake() {
                self.kill(cx, index);
                continue;
            }
            connection.skip = None;
            if let Some(intake) = connection.intake.take_if(|i| i.buffer.is_some()) {
                connection.give(cx.pool, intake.buffer);
                connection.give(cx.pool, intake.spare);
                self.abandon(intake.transfer);
            }
            cx.ring.stop_receiving(file);
            self.close_if_settled(cx, index);
        }
    }

    /// Forgets a write whose payload will not come; pieces that are under way still end.
    fn abandon(&mut self, id: u32) {
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        transfer.command.len = transfer.begun;
        transfer.error = Some(NbdError::Io);
        if transfer.outstanding == 0 {
            self.free_transfer(id);
        }
    }

    /// The client has closed its side, or the server has: nothing more is read from it.
    fn stop_reading(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        connection.reading = false;
        connection.skip = None;
        if let Some(intake) = connection.intake.take() {
            connection.give(cx.pool, intake.buffer);
            connection.give(cx.pool, intake.spare);
            self.abandon(intake.transfer);
        }
        let waiting_write = |t: &Transfer| t.connection == index && t.command.kind == command::WRITE;
        let writes =
            self.waiting.iter().copied().filter(|id| self.transfers[*id as usize].as_ref().is_some_and(waiting_write));
        for id in writes.collect::<Vec<_>>() {
            self.waiting.retain(|w| *w != id);
            self.abandon(id);
        }
        self.close_if_settled(cx, index);
    }

    fn received(&mut self, cx: &mut Context<'_>, index: u32, payload: bool, done: Completion) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        connection.receiving = false;
        connection.active = self.now;
        let Returned::Buffer(buffer) = done.returned else { return };
        if !payload {
            connection.input = Some(buffer);
        } else if connection.dead {
            connection.intake = None;
            connection.give(cx.pool, Some(buffer));
        } else if let Some(intake) = &mut connection.intake {
            intake.buffer = Some(buffer);
        }
        if connection.dead {
            return self.reap(index);
        }
        match done.result {
            Ok(0) | Err(Errno::CONNRESET) => self.stop_reading(cx, index),
            Ok(n) if payload => {
                let full = connection.intake.as_mut().is_some_and(|intake| {
                    intake.filled += n;
                    intake.filled == intake.extent.len
                });
                if full {
                    self.begin_write(cx, index);
                    self.pump(cx, index);
                } else {
                    // Less than everything: the client hung up half-way.
                    self.stop_reading(cx, index);
                }
            }
            Ok(n) => {
                connection.unread.end += n;
                self.pump(cx, index);
            }
            Err(_) => self.kill(cx, index),
        }
    }
}

/// A buffer for the first piece of a range, and a spare one if it is a partial write.
fn take_buffers(
    cx: &mut Context<'_>,
    connection: &mut Connection,
    offset: u64,
    len: u64,
    whole: bool,
    writes: bool,
) -> Option<(Extent, Buffer, Option<Buffer>)> {
    if connection.held >= MAX_HELD {
        return None;
    }
    let target = cx.device.target();
    let least = 2 * target.granule();
    let longest = BufferPool::LARGEST_PIECE.max(least);
    let mut extent = target.locate(offset, len, longest).ok()?;
    let enough = if whole { extent.cover_len } else { extent.cover_len.min(least) };
    let buffer = connection.take(cx.pool, extent.cover_len, enough)?;
    if buffer.capacity() < extent.cover_len {
        extent = target.locate(offset, len, buffer.capacity()).ok()?;
    }
    let spare_len = if writes { unaligned::spare_len(&extent) } else { 0 };
    if spare_len == 0 {
        return Some((extent, buffer, None));
    }
    match connection.take(cx.pool, spare_len, spare_len) {
        Some(spare) => Some((extent, buffer, Some(spare))),
        None => {
            connection.give(cx.pool, Some(buffer));
            None
        }
    }
}

fn nbd_error(error: RequestError) -> NbdError {
    match error {
        RequestError::OutOfRange => NbdError::Inval,
        RequestError::ReadOnly => NbdError::Perm,
        RequestError::Unsupported => NbdError::NotSup,
        RequestError::Io(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NbdError::NoSpace,
        RequestError::Io(_) => NbdError::Io,
    }
}

impl FrontEnd for Nbd {
    type Message = Message;

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message) {
        self.now = Instant::now();
        match message {
            Message::Accept(socket) => self.accept(cx, socket),
            Message::Drain => self.drain(cx),
        }
    }

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        let index = done.token.0 as u32;
        match done.token.0 & !0xffff_ffff {
            RECEIVE => self.received(cx, index, false, done),
            PAYLOAD => self.received(cx, index, true, done),
            _ => {
                let Some(connection) = self.connections[index as usize].as_mut() else { return };
                connection.sending = false;
                connection.active = self.now;
                if let Returned::Outgoing(parts) = done.returned {
                    connection.sent(cx.pool, parts);
                }
                if connection.dead {
                    return self.reap(index);
                }
                if done.result.is_err() {
                    return self.kill(cx, index);
                }
                self.dirty.push_back(index);
                self.pump(cx, index);
            }
        }
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let id = done.id as u32;
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        transfer.outstanding -= 1;
        let (index, kind) = (transfer.connection, transfer.command.kind);
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let mut done = done;
        connection.give(cx.pool, done.spare.take());
        if connection.dead {
            connection.give(cx.pool, done.data.map(|(_, buffer)| buffer));
            if transfer.outstanding == 0 {
                self.free_transfer(id);
            }
            return self.reap(index);
        }
        if kind == command::READ {
            self.read_finished(cx, index, id, done);
        } else {
            connection.give(cx.pool, done.data.map(|(_, buffer)| buffer));
            if let Err(error) = done.result {
                transfer.error.get_or_insert(nbd_error(error));
            }
            let arriving = kind == command::WRITE && connection.intake.as_ref().is_some_and(|i| i.transfer == id);
            let over = transfer.is_begun() || (transfer.error.is_some() && kind != command::WRITE);
            if over && transfer.outstanding == 0 && !arriving {
                self.finish_transfer(index, id);
            } else if !over && kind != command::WRITE {
                // Its next piece waits for the next turn, so that a long request does not keep others waiting.
                self.waiting.push_back(id);
            }
        }
        self.pump(cx, index);
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            let index = self.transfers[id as usize].as_ref().map(|t| t.connection);
            self.begin_piece(cx, id);
            if let Some(index) = index {
                self.pump(cx, index);
            }
        }
        while let Some(index) = self.dirty.pop_front() {
            self.flush(cx, index);
        }
        self.now = Instant::now();
        let mut wait = Wait::Forever;
        if self.handshakes > 0 || !self.waiting.is_empty() || self.drain_until.is_some() {
            if self.now >= self.next_scan {
                self.scan(cx);
                self.next_scan = self.now + SCAN;
            }
            wait = Wait::Until(self.next_scan - self.now);
        }
        let stopped = self.drain_until.is_some() && self.connections.iter().all(Option::is_none);
        (if stopped { Flow::Stop } else { Flow::Continue }, wait)
    }
}
