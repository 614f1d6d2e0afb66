//! Runs connections on a worker's ring: receives in large gulps, turns commands into requests, answers as they finish.
//!
//! Requests of one client run at once and are answered in the order they finish. A request longer than a
//! buffer is carried in pieces, so memory stays what the pool was made with: when it is used up,
//! requests wait, and a client that does not free the buffers it holds for [`Limits::stall`] is dropped in favour of those
//! that wait. No client takes the worker's time from the others: in a turn each begins a `QUANTUM` of work.

use super::connection::{Connection, Phase, QUANTUM, Skip};
use super::handshake::Step;
use super::protocol::{Export, command};
use super::server;
use super::transfer::{Attempt, Blocked, Transfer, nbd_error};
use super::transmission::{Command, Head};
use inlock_engine::ring::{self, Completion, Returned, Token, Wait};
use inlock_engine::worker::{Context, Finished, Flow, Frontend, MAX_REQUESTS_WITHOUT_DATA};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long clients may keep others waiting. They are looked at every half second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a client may take over its handshake.
    pub handshake: Duration,
    /// How long a client may hold buffers that others wait for without taking the replies, or sending the piece of a
    /// payload, that they are for.
    pub stall: Duration,
    /// How long clients may take to receive their last replies when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let limit = Duration::from_secs(10);
        Self { handshake: limit, stall: limit, drain: limit }
    }
}

/// How often limits are looked at while there is reason to.
const SCAN: Duration = Duration::from_millis(500);

/// Requests that one worker carries at a time, of all its clients together; more wait in their sockets.
const MAX_TRANSFERS: usize = MAX_REQUESTS_WITHOUT_DATA;
/// How many of them are reserved for clients that have none.
const RESERVED_TRANSFERS: usize = 1024;

/// What clients that have more to begin than their [`QUANTUM`] begin in a turn, all together.
const TURN_QUANTUM: u64 = 8 * QUANTUM;

/// Bytes of replies that the kernel is asked to hold for a client.
const SEND_BUFFER: usize = 1 << 20;

/// A TCP peer that is silent for so long is probed so often before its connection ends.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// What the server's other threads tell a worker's frontend.
#[derive(Debug)]
pub enum Message {
    /// A client has connected.
    Accept(OwnedFd),
    /// Finish what was asked for, then stop.
    Drain,
}

/// The NBD frontend of one worker.
pub struct Nbd {
    export: Arc<Export>,
    limits: Limits,
    pub(super) connections: Vec<Option<Connection>>,
    pub(super) transfers: Vec<Option<Transfer>>,
    pub(super) free_transfers: Vec<u32>,
    /// Connections with something to begin, each once: pieces that wait, or requests that are not read yet. Those that have
    /// waited longest are in front.
    queue: VecDeque<u32>,
    /// Those of the queue that have begun something in this turn.
    served: VecDeque<u32>,
    /// What found no memory since the last turn began.
    pub(super) blocked: Blocked,
    /// Pieces of TRIMs that are under way.
    pub(super) trims: u32,
    /// Number of the turn.
    pub(super) turn: u64,
    /// Connections that may have something to send, each once.
    dirty: VecDeque<u32>,
    /// Connections of all workers; the server's limit counts them.
    live: Arc<AtomicUsize>,
    /// Connections whose handshake is not finished.
    handshakes: usize,
    pub(super) now: Instant,
    next_scan: Instant,
    drain_until: Option<Instant>,
}

const RECEIVE: u64 = 1 << 32;
const PAYLOAD: u64 = 2 << 32;
const SEND: u64 = 3 << 32;

impl Nbd {
    /// A frontend for `export`. `live` counts the connections of all workers.
    pub fn new(export: Arc<Export>, live: Arc<AtomicUsize>, limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            export,
            limits,
            connections: Vec::new(),
            transfers: Vec::with_capacity(MAX_TRANSFERS),
            free_transfers: Vec::with_capacity(MAX_TRANSFERS),
            queue: VecDeque::new(),
            served: VecDeque::new(),
            blocked: Blocked::default(),
            trims: 0,
            turn: 1,
            dirty: VecDeque::new(),
            live,
            handshakes: 0,
            now,
            next_scan: now,
            drain_until: None,
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>, socket: OwnedFd) {
        configure(&socket);
        let Ok(file) = cx.ring.add_socket(socket) else {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let connection = Some(Connection::new(file, self.now, cx.pool));
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        self.connections[index] = connection;
        // A place may be taken by the next client while the one before is still in a queue.
        let most = 2 * self.connections.len();
        for queue in [&mut self.dirty, &mut self.queue, &mut self.served] {
            queue.reserve(most.saturating_sub(queue.len()));
        }
        self.handshakes += 1;
        if self.drain_until.is_some() {
            self.kill(cx, index as u32);
        } else {
            self.mark(index as u32);
            self.pump(cx, index as u32);
        }
    }

    pub(super) fn connection(&mut self, index: u32) -> Option<&mut Connection> {
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
            } else if !connection.may_begin() || connection.waiting_write.is_some() {
                return;
            } else if self.connections[index as usize]
                .as_ref()
                .is_some_and(|c| c.is_spent(self.turn) || !self.has_room(c))
            {
                return self.enqueue(index);
            } else {
                self.next_command(cx, index)
            };
            match wants_more {
                None => {}
                Some(false) => return,
                Some(true) => return self.receive(cx, index),
            }
        }
        self.close_if_settled(cx, index);
    }

    /// A connection may have something to send.
    pub(super) fn mark(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut().filter(|c| !c.dirty) {
            connection.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Puts a connection where it waits for its turn.
    pub(super) fn enqueue(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut().filter(|c| !c.queued && !c.dead) {
            connection.queued = true;
            self.queue.push_back(index);
        }
    }

    /// Whether the worker can carry one more request, and of this client.
    fn has_room(&self, connection: &Connection) -> bool {
        let room = MAX_TRANSFERS - (self.transfers.len() - self.free_transfers.len());
        room > if connection.transfers == 0 { 0 } else { RESERVED_TRANSFERS }
    }

    /// Lets the connections of the queue begin what they have to, in turn, as much as one turn of the worker takes. True:
    /// some have more to begin that waits for nothing but the next turn.
    fn serve_queue(&mut self, cx: &mut Context<'_>) -> bool {
        self.blocked = Blocked::default();
        let mut ready = false;
        let mut spent = 0;
        for _ in 0..self.queue.len() {
            if spent >= TURN_QUANTUM {
                ready = true;
                break;
            }
            let Some(index) = self.queue.pop_front() else { break };
            let before = self.begin_turn_of(index);
            self.serve(cx, index);
            let Some(connection) = self.connections[index as usize].as_ref() else { continue };
            let begun = connection.spent_in(self.turn) - before;
            spent += begun;
            ready |= connection.queued && connection.is_spent(self.turn);
            // Whoever found no memory keeps the place in front.
            if begun > 0 && connection.queued {
                self.queue.pop_back();
                self.served.push_back(index);
            }
        }
        self.queue.append(&mut self.served);
        ready
    }

    /// Takes a connection from the queue; what it has begun in this turn before.
    fn begin_turn_of(&mut self, index: u32) -> u64 {
        let turn = self.turn;
        let Some(connection) = self.connections[index as usize].as_mut() else { return 0 };
        connection.queued = false;
        connection.spent_in(turn)
    }

    /// Begins the pieces of a connection that wait, each at most once, and then what it asks for next.
    fn serve(&mut self, cx: &mut Context<'_>, index: u32) {
        let turn = self.turn;
        let waiting = self.connection(index).map_or(0, |c| c.waiting.len());
        let mut no_memory = false;
        for _ in 0..waiting {
            let Some(connection) = self.connections[index as usize].as_mut().filter(|c| !c.is_spent(turn)) else {
                break;
            };
            let Some(id) = connection.waiting.pop_front() else { break };
            let in_vain = |t: &Transfer| t.needs_memory() && connection.long_read != Some(id);
            if no_memory && self.transfers[id as usize].as_ref().is_some_and(in_vain) {
                connection.waiting.push_back(id);
                continue;
            }
            connection.waiting_write.take_if(|write| *write == id);
            no_memory |= self.begin_piece(cx, id) == Attempt::NoMemory;
        }
        self.pump(cx, index);
        if self.connection(index).is_some_and(|c| !c.waiting.is_empty()) {
            self.enqueue(index);
        }
    }

    /// What new clients are told: since others were, the device may have grown, and discards may have been allowed, or not
    /// any more.
    fn export_now(&mut self, cx: &Context<'_>) -> Arc<Export> {
        let flags = server::discard_flags(self.export.flags, cx.device.access());
        let size = cx.device.len();
        if (size, flags) != (self.export.size, self.export.flags) {
            self.export = Arc::new(Export { size, flags, ..Export::clone(&self.export) });
        }
        Arc::clone(&self.export)
    }

    fn negotiate(&mut self, cx: &mut Context<'_>, index: u32) -> Option<bool> {
        let export = self.export_now(cx);
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
        self.mark(index);
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
        self.mark(index);
        None
    }

    /// Moves payload from the input into the buffer of the write it belongs to.
    fn take_in(&mut self, cx: &mut Context<'_>, index: u32) -> Option<bool> {
        let connection = self.connection(index)?;
        let intake = connection.intake.as_mut()?;
        let buffer = intake.buffer.as_mut()?;
        let into = &mut buffer.data_mut()[intake.mapped.requested()][intake.filled..];
        let input = connection.input.as_ref().map_or(&[][..], |i| &i.data()[connection.unread.clone()]);
        let len = into.len().min(input.len());
        into[..len].copy_from_slice(&input[..len]);
        intake.filled += len;
        let full = intake.filled == intake.mapped.len;
        connection.consume(len);
        if full {
            self.begin_write(cx, index);
            return None;
        }
        Some(true)
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
            let requested = intake.mapped.requested();
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
            self.mark(index);
        }
    }

    /// Drops a client at once. What it holds comes back as its operations end.
    pub(super) fn kill(&mut self, cx: &mut Context<'_>, index: u32) {
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
        connection.waiting.clear();
        if std::mem::take(&mut connection.queued) {
            self.queue.retain(|queued| *queued != index);
        }
        for id in 0..self.transfers.len() as u32 {
            let idle = self.transfers[id as usize].as_ref();
            if idle.is_some_and(|t| t.connection == index && t.outstanding == 0) {
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

    pub(super) fn flush(&mut self, cx: &mut Context<'_>, index: u32) {
        let now = self.now;
        let Some(connection) = self.connection(index) else { return };
        if connection.sending {
            return;
        }
        if let Some(outgoing) = connection.next_send(now) {
            cx.ring.submit(connection.file, ring::Operation::Send(outgoing), Token(SEND | u64::from(index)));
        }
        self.close_if_settled(cx, index);
    }

    /// Drops clients that are over a limit.
    fn scan(&mut self, cx: &mut Context<'_>) {
        let (now, limits) = (self.now, self.limits);
        let hungry = self.hungry_since(now);
        for index in 0..self.connections.len() as u32 {
            // Nobody waits for memory that the client itself holds, and all do while the device is suspended.
            let others = hungry.iter().flatten().find(|(_, hungry)| *hungry != index).filter(|_| !cx.suspended);
            let Some(connection) = self.connection(index) else { continue };
            let slow = connection.in_handshake() && now - connection.opened > limits.handshake;
            // A slow store is not the client's fault: only what it owes itself makes it late.
            let stalled = connection
                .owes_since()
                .zip(others)
                .is_some_and(|(owes, (waits, _))| now - owes.max(*waits) > limits.stall);
            if slow || stalled || self.drain_until.is_some_and(|until| now > until) {
                self.kill(cx, index);
            }
        }
    }

    /// The two clients that have waited for memory longest, and since when.
    fn hungry_since(&self, now: Instant) -> [Option<(Instant, u32)>; 2] {
        let mut longest = [None; 2];
        for (index, connection) in (0..).zip(&self.connections) {
            let since = connection.as_ref().filter(|c| !c.dead).and_then(|c| c.hungry_since(now));
            if let Some(since) = since {
                let found = Some((since, index));
                let earlier = |than: Option<(Instant, u32)>| than.is_none_or(|(other, _)| since < other);
                if earlier(longest[0]) {
                    longest = [found, longest[0]];
                } else if earlier(longest[1]) {
                    longest[1] = found;
                }
            }
        }
        longest
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.drain_until = Some(self.now + self.limits.drain);
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
            self.abandon_waiting_write(index);
            self.close_if_settled(cx, index);
        }
    }

    /// Forgets the write whose next piece waits for memory: its payload will not be read.
    fn abandon_waiting_write(&mut self, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        let Some(id) = connection.waiting_write.take() else { return };
        connection.waiting.retain(|waiting| *waiting != id);
        self.abandon(id);
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
        self.abandon_waiting_write(index);
        self.close_if_settled(cx, index);
    }

    fn received(&mut self, cx: &mut Context<'_>, index: u32, payload: bool, done: Completion) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        connection.receiving = false;
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
                    intake.filled == intake.mapped.len
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

/// Sets a client's socket up. What fails is for TCP, and the socket is not.
fn configure(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    // A peer that has vanished would keep its descriptor for ever.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    // As much as the system allows: a long reply that fits leaves in one go.
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}

impl Frontend for Nbd {
    type Message = Message;

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message) {
        self.now = Instant::now();
        match message {
            Message::Accept(socket) => self.accept(cx, socket),
            Message::Drain => self.drain(cx),
        }
    }

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        // A wait may have been long; what a client just did must not look old.
        self.now = Instant::now();
        let index = done.token.0 as u32;
        match done.token.0 & !0xffff_ffff {
            RECEIVE => self.received(cx, index, false, done),
            PAYLOAD => self.received(cx, index, true, done),
            _ => {
                let Some(connection) = self.connections[index as usize].as_mut() else { return };
                connection.sending = false;
                if let Returned::Outgoing(parts) = done.returned {
                    connection.sent(cx.pool, parts);
                }
                if connection.dead {
                    return self.reap(index);
                }
                if done.result.is_err() {
                    return self.kill(cx, index);
                }
                self.mark(index);
                self.pump(cx, index);
            }
        }
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let id = done.id as u32;
        let Some(transfer) = self.transfers[id as usize].as_mut() else { return };
        transfer.outstanding -= 1;
        let (index, kind) = (transfer.connection, transfer.command.kind);
        self.trims -= u32::from(kind == command::TRIM);
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.dead {
            connection.give(cx.pool, done.spare);
            connection.give(cx.pool, done.data.map(|(_, buffer)| buffer));
            if transfer.outstanding == 0 {
                self.free_transfer(id);
            }
            return self.reap(index);
        }
        if kind == command::READ {
            self.read_finished(cx, index, id, done);
        } else {
            connection.give(cx.pool, done.spare);
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
                self.wait(id);
            }
        }
        self.pump(cx, index);
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        let ready = self.serve_queue(cx);
        while let Some(index) = self.dirty.pop_front() {
            if let Some(connection) = &mut self.connections[index as usize] {
                connection.dirty = false;
            }
            self.flush(cx, index);
        }
        self.turn += 1;
        self.now = Instant::now();
        let mut wait = Wait::Forever;
        if self.now >= self.next_scan {
            self.scan(cx);
            self.next_scan = self.now + SCAN;
        }
        if self.handshakes > 0 || !self.queue.is_empty() || self.drain_until.is_some() {
            wait = Wait::Until(self.next_scan - self.now);
        }
        if ready {
            wait = Wait::No;
        }
        let stopped = self.drain_until.is_some() && self.connections.iter().all(Option::is_none);
        (if stopped { Flow::Stop } else { Flow::Continue }, wait)
    }
}
