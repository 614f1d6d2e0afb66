//! The NBD frontend of one worker: connects sessions with sockets, and shares the worker among them.
//!
//! The `on_…` functions store what arrives, and schedule the session; [`Session::process_input`] is called from two
//! places only, [`Frontend::process`] and [`Frontend::end_turn`]. Requests of one client run at once and are answered
//! in the order in which they end. Memory stays what the pool was made with: when it is used up requests wait, and a
//! client that does not free the buffers it holds for [`Limits::stall`] is dropped in favour of those that wait. In a
//! turn each session begins `QUANTUM` of work.

use super::active::{ActiveTable, After, QUANTUM, Turn};
use super::handshake::Negotiated;
use super::protocol::{Export, transmission_flag};
use super::session::{CountGuard, Next, Receive, Session, Target};
use super::throttle::{Allowance, Blocked, Throttle};
use inlock_engine::Access;
use inlock_engine::Errno;
use inlock_engine::ring::{self, Completion, FileId, Returned, Token, Wait};
use inlock_engine::worker::{Context, Finished, Flow, Frontend};
use rest::Rest;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod rest;
pub(super) use rest::Resting;

/// How long clients may keep others waiting. Checked every half second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum duration of a handshake.
    pub handshake: Duration,
    /// Maximum time for which a client may hold buffers that others wait for, without taking the replies that they are
    /// for, or sending the piece of a payload.
    pub stall: Duration,
    /// Time in which clients have to receive their last replies when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let limit = Duration::from_secs(10);
        Self { handshake: limit, stall: limit, drain: limit }
    }
}

/// Interval at which limits are checked while there is a reason to.
const SCAN: Duration = Duration::from_millis(500);
/// Interval at which clients that have left are looked for while some wait for a rate: each of them keeps its turn.
const DEPARTURE_SCAN: Duration = Duration::from_millis(10);
/// Cost that the sessions in the turn queue may begin in one turn, all together.
const TURN_QUANTUM: u64 = 8 * QUANTUM;
/// Bytes of replies that the kernel is asked to hold for a client.
const SEND_BUFFER: usize = 1 << 20;
/// A TCP peer that is silent for this long is probed; if it does not reply to any probe the connection ends.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// Kinds of operations, in the upper half of a token; the lower half is the index of the connection.
const RECEIVE: u64 = 1 << 32;
const RECEIVE_PAYLOAD: u64 = 2 << 32;
const SEND: u64 = 3 << 32;

/// Message from the server's other threads to a worker.
#[derive(Debug)]
pub(super) enum Message {
    /// A client has connected, one of the connections of the server.
    Accept(OwnedFd, CountGuard),
    /// A client has connected, and another thread has carried out its handshake.
    Adopt {
        socket: OwnedFd,
        negotiated: Negotiated,
        /// Among the connections of the export.
        live: CountGuard,
    },
    /// Finish what was asked for, then stop.
    Drain,
}

/// A session with its socket, and its places in the queues of the frontend.
struct Connection {
    file: FileId,
    session: Session,
    /// The socket is closed; what the session has with the ring and with the worker still returns.
    is_dropped: bool,
    is_input_scheduled: bool,
    is_send_scheduled: bool,
    is_queued: bool,
    /// Among the connections of all workers.
    live: CountGuard,
}

/// Causes for which connections of a turn queue wait at the limits of the export.
#[derive(Debug, Default)]
struct Throttled {
    is_some: bool,
    /// The first of those that wait for a rate has its turn then.
    until: Option<Instant>,
    /// One waits for bytes in flight of others.
    is_by_others: bool,
}

impl Throttled {
    fn add(&mut self, blocked: Blocked) {
        self.is_some = true;
        match blocked {
            Blocked::Until(at) => self.until = Some(self.until.map_or(at, |until| until.min(at))),
            Blocked::Others => self.is_by_others = true,
            Blocked::Own => {}
        }
    }
}

/// The NBD frontend of one worker.
pub(super) struct NbdFrontend {
    export: Arc<Export>,
    limits: Limits,
    connections: Vec<Option<Connection>>,
    active: ActiveTable,
    /// Connections whose input can be read.
    input_queue: VecDeque<u32>,
    /// Connections with something to begin in a later turn: pieces that wait, or requests that are not read yet. Those
    /// that have waited longest are in front.
    turn_queue: VecDeque<u32>,
    /// Connections of the turn queue that have begun something in this turn.
    served: VecDeque<u32>,
    /// Connections with something to send at the end of the turn.
    send_queue: VecDeque<u32>,
    /// Number of connections of all workers.
    live: Arc<AtomicUsize>,
    /// Maximum of `live`.
    max_clients: usize,
    /// Number of connections in their handshake.
    handshakes: Arc<AtomicUsize>,
    /// Number of the turn.
    turn: u64,
    now: Instant,
    next_scan: Instant,
    next_departure_scan: Instant,
    drain_until: Option<Instant>,
    /// Limits of the export.
    throttle: Option<Arc<Throttle>>,
    /// Connections of the turn queue that wait for a limit of the export.
    throttled: Throttled,
    /// The throttle counts the time for which some wait.
    is_holding: bool,
    /// Connections of the turn queue are being served.
    is_serving: bool,
    /// Set if the worker stops when its clients are at rest.
    rest: Option<Rest>,
    /// Whether a client did something in this turn.
    was_used: bool,
}

impl NbdFrontend {
    /// A frontend for `export`. `live` counts the connections of all workers.
    pub(super) fn new(export: Arc<Export>, live: Arc<AtomicUsize>, limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            export,
            limits,
            connections: Vec::new(),
            active: ActiveTable::new(),
            input_queue: VecDeque::new(),
            turn_queue: VecDeque::new(),
            served: VecDeque::new(),
            send_queue: VecDeque::new(),
            live,
            max_clients: usize::MAX,
            handshakes: Arc::default(),
            turn: 1,
            now,
            next_scan: now,
            next_departure_scan: now,
            drain_until: None,
            throttle: None,
            throttled: Throttled::default(),
            is_holding: false,
            is_serving: false,
            rest: None,
            was_used: false,
        }
    }

    /// Limits the number of clients.
    pub(super) fn with_max_clients(self, max_clients: usize) -> Self {
        Self { max_clients, ..self }
    }

    /// Limits the export.
    pub(super) fn with_throttle(self, throttle: Arc<Throttle>) -> Self {
        Self { throttle: Some(throttle), ..self }
    }

    /// Drops the client that has been in its handshake for longest, so that idle ones keep no other out. Returns
    /// whether there was one.
    fn has_made_room(&mut self, cx: &mut Context<'_>) -> bool {
        let since = |connection: &Connection| connection.session.handshake_since().filter(|_| !connection.is_dropped);
        let all = (0..).zip(&self.connections);
        let in_handshake = all.filter_map(|(index, connection)| Some((since(connection.as_ref()?)?, index)));
        let Some((_, oldest)) = in_handshake.min() else { return false };
        self.drop_connection(cx, oldest);
        true
    }

    /// Takes a client. `negotiated`: the result of its handshake, unless that is still to come.
    fn accept(&mut self, cx: &mut Context<'_>, socket: OwnedFd, live: CountGuard, negotiated: Option<Negotiated>) {
        configure(&socket);
        let Ok(file) = cx.ring.add_socket(socket) else { return };
        if self.drain_until.is_some() {
            return cx.ring.close(file);
        }
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        let mut session = match negotiated {
            Some(negotiated) => Session::negotiated(index as u32, negotiated, cx.pool),
            None => Session::new(index as u32, self.now, CountGuard::new(&self.handshakes), cx.pool),
        };
        session.allowance = self.throttle.as_ref().map(|throttle| Allowance::new(throttle, self.now));
        self.connections[index] = Some(Connection {
            file,
            session,
            is_dropped: false,
            is_input_scheduled: false,
            is_send_scheduled: false,
            is_queued: false,
            live,
        });
        // A place may be reused while the connection that had it is still in a queue.
        let max_len = 2 * self.connections.len();
        for queue in [&mut self.input_queue, &mut self.send_queue, &mut self.turn_queue, &mut self.served] {
            queue.reserve(max_len.saturating_sub(queue.len()));
        }
        self.schedule_send(index as u32);
        self.schedule_input(index as u32);
    }

    /// Returns a connection unless it was dropped.
    fn connection(&mut self, index: u32) -> Option<&mut Connection> {
        self.connections.get_mut(index as usize)?.as_mut().filter(|connection| !connection.is_dropped)
    }

    /// Puts a connection in the queue of those whose input is read.
    fn schedule_input(&mut self, index: u32) {
        if let Some(connection) = self.connection(index).filter(|connection| !connection.is_input_scheduled) {
            connection.is_input_scheduled = true;
            self.input_queue.push_back(index);
        }
    }

    /// Puts a connection in the queue of those that send at the end of the turn.
    fn schedule_send(&mut self, index: u32) {
        if let Some(connection) = self.connection(index).filter(|connection| !connection.is_send_scheduled) {
            connection.is_send_scheduled = true;
            self.send_queue.push_back(index);
        }
    }

    /// Puts a connection in the queue of those that begin more in a later turn.
    fn queue_for_turn(&mut self, index: u32) {
        if let Some(connection) = self.connection(index).filter(|connection| !connection.is_queued) {
            connection.is_queued = true;
            self.turn_queue.push_back(index);
        }
    }

    /// Reads the input of a connection as far as it goes, and starts what the session asks for.
    fn process_connection(&mut self, cx: &mut Context<'_>, index: u32) {
        self.refresh_export(cx);
        let (number, now, is_draining) = (self.turn, self.now, self.drain_until.is_some());
        // Otherwise a client with many requests in its socket would take each byte that its replies give back.
        let must_wait = self.throttled.is_by_others && !self.is_serving;
        let Self { connections, active, export, throttled, .. } = self;
        let Some(connection) = connections[index as usize].as_mut().filter(|c| !c.is_dropped) else { return };
        let Connection { file, session, .. } = connection;
        let mut turn = lend(cx, export, number, now, is_draining);
        turn.must_wait = must_wait;
        let next = session.process_input(active, &mut turn);
        session.throttled.take().into_iter().for_each(|blocked| throttled.add(blocked));
        let (has_queued, has_waiting) = (session.output.has_queued(), session.has_waiting());
        let is_finished = session.is_finished();
        match next {
            Next::Receive(Receive { buffer, range, target }) => {
                let (kind, all) = match target {
                    Target::Inbox => (RECEIVE, false),
                    Target::Payload => (RECEIVE_PAYLOAD, true),
                };
                let operation = ring::Operation::Receive { buffer, range, all };
                cx.ring.submit(*file, operation, Token(kind | u64::from(index)));
            }
            Next::Queue | Next::Throttled => self.queue_for_turn(index),
            Next::Disconnect => return self.drop_connection(cx, index),
            Next::Again | Next::Wait => {}
        }
        if is_finished {
            return self.drop_connection(cx, index);
        }
        if has_queued {
            self.schedule_send(index);
        }
        if has_waiting {
            self.queue_for_turn(index);
        }
    }

    /// Has the connections of the turn queue begin what they have to, each once, as much as one turn takes. Returns
    /// whether some have more to begin that waits for the next turn only.
    fn serve_queue(&mut self, cx: &mut Context<'_>) -> bool {
        self.active.begin_turn();
        (self.throttled, self.is_serving) = (Throttled::default(), true);
        let mut is_ready = false;
        let mut spent = 0;
        for _ in 0..self.turn_queue.len() {
            if spent >= TURN_QUANTUM {
                is_ready = true;
                break;
            }
            let Some(index) = self.turn_queue.pop_front() else { break };
            let number = self.turn;
            let Some(connection) = self.connection(index) else { continue };
            connection.is_queued = false;
            let before = connection.session.spent_in(number);
            self.begin_waiting(cx, index);
            self.process_connection(cx, index);
            let Some(Connection { session, is_queued, .. }) = self.connection(index) else { continue };
            let begun = session.spent_in(number) - before;
            let (is_spent, is_queued) = (session.is_spent(number), *is_queued);
            spent += begun;
            is_ready |= is_queued && is_spent;
            // A connection that found no memory keeps its place in front.
            if begun > 0 && is_queued {
                self.turn_queue.pop_back();
                self.served.push_back(index);
            }
        }
        self.turn_queue.append(&mut self.served);
        self.is_serving = false;
        is_ready
    }

    fn begin_waiting(&mut self, cx: &mut Context<'_>, index: u32) {
        let (number, now, is_draining) = (self.turn, self.now, self.drain_until.is_some());
        let Self { connections, active, export, throttled, .. } = self;
        let Some(Connection { session, .. }) = &mut connections[index as usize] else { return };
        let next = session.begin_waiting(active, &mut lend(cx, export, number, now, is_draining));
        session.throttled.take().into_iter().for_each(|blocked| throttled.add(blocked));
        if matches!(next, Next::Disconnect) {
            self.drop_connection(cx, index);
        }
    }

    /// Updates what is advertised to new clients: the device may have grown, and discards may have been allowed or
    /// forbidden.
    fn refresh_export(&mut self, cx: &Context<'_>) {
        if self.handshakes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let flags = with_discards(self.export.flags, cx.device.access());
        let size = cx.device.len();
        if (size, flags) != (self.export.size, self.export.flags) {
            self.export = Arc::new(Export { size, flags, ..Export::clone(&self.export) });
        }
    }

    /// Sends what can leave now.
    fn send_queued(&mut self, cx: &mut Context<'_>, index: u32) {
        let now = self.now;
        let Some(Connection { file, session, .. }) = self.connection(index) else { return };
        if let Some(outgoing) = session.output.next_send(now) {
            cx.ring.submit(*file, ring::Operation::Send(outgoing), Token(SEND | u64::from(index)));
        }
    }

    /// Drops a client at once. What its session has with the ring and with the worker returns as that ends.
    fn drop_connection(&mut self, cx: &mut Context<'_>, index: u32) {
        let Self { connections, active, turn_queue, .. } = self;
        let Some(connection) = connections[index as usize].as_mut().filter(|c| !c.is_dropped) else { return };
        connection.is_dropped = true;
        cx.ring.close(connection.file);
        connection.session.release(active, cx.pool);
        if std::mem::take(&mut connection.is_queued) {
            turn_queue.retain(|queued| *queued != index);
        }
        self.remove_if_idle(index);
    }

    /// Removes a dropped connection as soon as nothing of it is elsewhere.
    fn remove_if_idle(&mut self, index: u32) {
        let place = &mut self.connections[index as usize];
        place.take_if(|connection| connection.is_dropped && connection.session.is_idle());
    }

    /// Drops clients that have left while their requests wait for a limit: nothing is received from them.
    fn drop_departed(&mut self, cx: &mut Context<'_>) {
        for index in 0..self.connections.len() as u32 {
            let Some(Connection { file, is_queued: true, .. }) = self.connection(index) else { continue };
            if cx.ring.has_peer_left(*file) {
                self.drop_connection(cx, index);
            }
        }
    }

    /// Drops clients that are over a limit.
    fn scan(&mut self, cx: &mut Context<'_>) {
        let (now, limits) = (self.now, self.limits);
        if self.throttled.is_some {
            self.drop_departed(cx);
        }
        let blocked = self.blocked_since(now);
        for index in 0..self.connections.len() as u32 {
            // A client does not wait for memory that it holds itself, and all wait while the device is suspended.
            let others = blocked.iter().flatten().find(|(_, blocked)| *blocked != index).filter(|_| !cx.suspended);
            let Some(Connection { session, .. }) = self.connection(index) else { continue };
            let is_slow = session.handshake_since().is_some_and(|since| now - since > limits.handshake);
            // A slow store is not the client's fault: only what the client owes makes it late.
            let is_stalled = session
                .owes_since()
                .zip(others)
                .is_some_and(|(owes, (waits, _))| now - owes.max(*waits) > limits.stall);
            if is_slow || is_stalled || self.drain_until.is_some_and(|until| now > until) {
                self.drop_connection(cx, index);
            }
        }
    }

    /// Returns the two connections that have waited for memory longest, and since when.
    fn blocked_since(&self, now: Instant) -> [Option<(Instant, u32)>; 2] {
        let mut longest = [None; 2];
        for (index, connection) in (0..).zip(&self.connections) {
            let live = connection.as_ref().filter(|connection| !connection.is_dropped);
            if let Some(since) = live.and_then(|connection| connection.session.blocked_since(now)) {
                let found = Some((since, index));
                let is_earlier = |than: Option<(Instant, u32)>| than.is_none_or(|(other, _)| since < other);
                if is_earlier(longest[0]) {
                    longest = [found, longest[0]];
                } else if is_earlier(longest[1]) {
                    longest[1] = found;
                }
            }
        }
        longest
    }

    /// Reads no more commands. Connections end when their requests are answered.
    fn drain(&mut self, cx: &mut Context<'_>) {
        self.drain_until = Some(self.now + self.limits.drain);
        for index in 0..self.connections.len() as u32 {
            let Self { connections, active, .. } = self;
            let Some(connection) = connections[index as usize].as_mut().filter(|c| !c.is_dropped) else { continue };
            if connection.session.handshake_since().is_some() {
                self.drop_connection(cx, index);
                continue;
            }
            connection.session.close_input(active, cx.pool);
            cx.ring.stop_receiving(connection.file);
            self.schedule_input(index);
        }
    }

    fn received(&mut self, cx: &mut Context<'_>, index: u32, target: Target, done: Completion) {
        let Self { connections, active, .. } = self;
        let Some(connection) = &mut connections[index as usize] else { return };
        let Returned::Buffer(buffer) = done.returned else { return };
        if connection.is_dropped {
            connection.session.on_received_dropped(buffer, target, cx.pool);
            return self.remove_if_idle(index);
        }
        if done.result == Err(Errno::CANCELED) && target == Target::Inbox {
            connection.session.on_canceled(buffer);
            return self.receive_again(index);
        }
        connection.session.on_received(buffer, done.result.unwrap_or(0), target, active, cx.pool);
        match done.result {
            Ok(_) | Err(Errno::CONNRESET) => self.schedule_input(index),
            Err(_) => self.drop_connection(cx, index),
        }
    }

    fn sent(&mut self, cx: &mut Context<'_>, index: u32, done: Completion) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        if let Returned::Outgoing(parts) = done.returned {
            connection.session.on_sent(parts, cx.pool);
        }
        if connection.is_dropped {
            return self.remove_if_idle(index);
        }
        if done.result.is_err() {
            return self.drop_connection(cx, index);
        }
        // Schedules the replies as well.
        self.schedule_input(index);
    }
}

/// Returns what a turn lends to a session.
fn lend<'a>(cx: &'a mut Context<'_>, export: &'a Export, number: u64, now: Instant, is_draining: bool) -> Turn<'a> {
    let Context { pool, device, mapping, requests, .. } = cx;
    Turn { pool, device, mapping, requests, export, number, now, is_draining, must_wait: false }
}

/// Returns transmission flags with SEND_TRIM as access rights have it.
pub(super) fn with_discards(flags: u16, access: Access) -> u16 {
    let allowed = access.allow_discards && !access.read_only;
    if allowed { flags | transmission_flag::SEND_TRIM } else { flags & !transmission_flag::SEND_TRIM }
}

/// Sets the options of a client's socket. Those of TCP fail on a unix socket.
pub(super) fn configure(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    // Without probes a peer that has vanished would keep its descriptor for ever.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    // As much as the system allows: a long reply that fits leaves at once.
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}

impl Frontend for NbdFrontend {
    type Message = Message;

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message) {
        self.now = Instant::now();
        self.was_used = true;
        // A new client is received from, which would not end by itself.
        self.stay_if_leaving();
        match message {
            Message::Accept(socket, live) => {
                if self.live.load(Ordering::Relaxed) <= self.max_clients || self.has_made_room(cx) {
                    self.accept(cx, socket, live, None);
                }
            }
            Message::Adopt { socket, negotiated, live } => self.accept(cx, socket, live, Some(negotiated)),
            Message::Drain => self.drain(cx),
        }
    }

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        // The wait before may have been long, and what a client did just now must not look old.
        self.now = Instant::now();
        self.was_used = true;
        let index = done.token.0 as u32;
        match done.token.0 & !0xffff_ffff {
            RECEIVE => self.received(cx, index, Target::Inbox, done),
            RECEIVE_PAYLOAD => self.received(cx, index, Target::Payload, done),
            _ => self.sent(cx, index, done),
        }
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let id = done.id as u32;
        let index = self.active.session_of(id);
        let (number, now, is_draining) = (self.turn, self.now, self.drain_until.is_some());
        let Self { connections, active, export, .. } = self;
        let Some(Connection { session, is_dropped, .. }) = &mut connections[index as usize] else { return };
        if *is_dropped {
            active.on_finished_dropped(done, &mut session.owner(), cx.pool);
            return self.remove_if_idle(index);
        }
        let mut turn = lend(cx, export, number, now, is_draining);
        let after = active.on_finished(done, &mut session.owner(), &mut turn);
        if matches!(after, After::NextPiece | After::Data { is_last: false, .. }) {
            session.wait(id);
            self.queue_for_turn(index);
        }
        match after {
            After::Disconnect => return self.drop_connection(cx, index),
            After::Data { is_long: true, .. } => {
                self.send_queued(cx, index);
                cx.ring.submit_now();
            }
            After::Nothing | After::NextPiece | After::Data { .. } => {}
        }
        // Schedules the replies as well.
        self.schedule_input(index);
    }

    fn process(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(index) = self.input_queue.pop_front() else { return false };
        if let Some(connection) = self.connection(index) {
            connection.is_input_scheduled = false;
            self.process_connection(cx, index);
        }
        true
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        let is_ready = self.serve_queue(cx);
        while let Some(index) = self.send_queue.pop_front() {
            if let Some(connection) = self.connection(index) {
                connection.is_send_scheduled = false;
                self.send_queued(cx, index);
            }
        }
        self.turn += 1;
        self.now = Instant::now();
        let mut wait = Wait::Forever;
        if self.now >= self.next_scan {
            self.scan(cx);
            self.next_scan = self.now + SCAN;
        }
        if self.throttled.until.is_some() && self.now >= self.next_departure_scan {
            self.drop_departed(cx);
            self.next_departure_scan = self.now + DEPARTURE_SCAN;
        }
        let in_handshake = self.handshakes.load(Ordering::Relaxed) > 0;
        if in_handshake || !self.turn_queue.is_empty() || self.drain_until.is_some() {
            wait = Wait::Until(self.next_scan - self.now);
        }
        // The last one may have been dropped since it was served.
        if self.turn_queue.is_empty() {
            self.throttled = Throttled::default();
        }
        let is_holding = self.throttled.is_some;
        if let Some(throttle) = self.throttle.as_ref().filter(|_| is_holding != self.is_holding) {
            throttle.note_waiting(is_holding, self.now);
            self.is_holding = is_holding;
        }
        if let Some(until) = self.throttled.until {
            // Bytes in flight that return wake the worker. New limits are noticed with the next scan.
            let next = until.min(self.next_scan).min(self.next_departure_scan);
            wait = Wait::Until(next.saturating_duration_since(self.now));
        }
        if is_ready {
            wait = Wait::No;
        }
        let is_stopped = self.drain_until.is_some() && self.connections.iter().all(Option::is_none);
        if self.rest.is_some() && !is_stopped {
            return self.end_turn_at_rest(cx, wait);
        }
        (if is_stopped { Flow::Stop } else { Flow::Continue }, wait)
    }
}

#[cfg(test)]
mod tests;
