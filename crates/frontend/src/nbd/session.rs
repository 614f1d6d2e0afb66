//! One client's session: a state machine over its input, with the replies that it owes and the buffers that it holds.
//!
//! [`Session::step`] takes what has arrived one step further. It does no I/O: requests for the worker go to [`Turn`],
//! and a receive is returned to the caller, which owns the socket. Each state of [`Input`] owns what it needs.

use super::active::{ActiveTable, Attempt, Owner, PendingWrite, QUANTUM, Turn};
use super::check::{Verdict, check};
use super::handshake::{Handshake, Negotiated, Step};
use super::memory::Memory;
use super::output::Output;
use super::protocol::command;
use super::throttle::{Allowance, Blocked};
use super::transmission::{Command, Head};
use inlock_engine::{Buffer, BufferPool};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes that one receive takes from the socket: many small requests at once.
const INBOX_LEN: usize = 64 << 10;
/// Minimum cost of a request.
const MIN_COST: u64 = 16 << 10;

/// State of the input: the meaning of the next bytes from the client.
enum Input {
    Handshake(Negotiation),
    /// The header of a command.
    Header,
    /// The payload of an active request, for which there is no buffer yet. Nothing is read until there is one.
    AwaitBuffer(u32),
    /// Payload that is copied from the inbox, and then received into the buffer.
    Payload {
        write: PendingWrite,
        buffer: Buffer,
    },
    /// Payload that the ring receives into the buffer of the piece.
    PayloadInRing {
        write: PendingWrite,
    },
    /// Payload that is not written.
    Skip {
        rest: u64,
        then: AfterSkip,
    },
    /// Nothing: what still arrives is not read. The limit of a handshake that has not led to transmission still holds.
    Closed(Option<Negotiation>),
}

/// End of a payload that is skipped.
enum AfterSkip {
    /// The reply to a command that was refused.
    Reply(Head),
    /// The end of an active request, which has failed.
    End(u32),
}

/// One of those that a counter counts, as long as it lives.
#[derive(Debug)]
pub(super) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    /// Adds one to `counter`.
    pub(super) fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counter))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handshake, and since when it has lasted.
struct Negotiation {
    handshake: Handshake,
    since: Instant,
    /// Among the handshakes of the worker.
    _count: CountGuard,
}

/// Bytes that were received and not yet read.
enum Inbox {
    Here {
        buffer: Buffer,
        unread: Range<usize>,
    },
    /// The ring receives behind the first `kept` bytes.
    InRing {
        kept: usize,
    },
}

impl Inbox {
    fn unread(&self) -> &[u8] {
        match self {
            Self::Here { buffer, unread } => &buffer.data()[unread.clone()],
            Self::InRing { .. } => &[],
        }
    }

    fn consume(&mut self, len: usize) {
        if let Self::Here { unread, .. } = self {
            unread.start += len;
            if Range::is_empty(unread) {
                *unread = 0..0;
            }
        }
    }

    /// Moves what is unread to the front of the buffer and hands the buffer out, to be filled behind it.
    fn receive(&mut self) -> Next {
        let kept = match self {
            Self::Here { unread, .. } => unread.len(),
            Self::InRing { kept } => *kept,
        };
        let Self::Here { mut buffer, unread } = std::mem::replace(self, Self::InRing { kept }) else {
            return Next::Wait;
        };
        buffer.data_mut().copy_within(unread, 0);
        let range = kept..buffer.capacity();
        Next::Receive(Receive { buffer, range, target: Target::Inbox })
    }
}

/// Where received bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// As many as there are, at least one.
    Inbox,
    /// All that are missing of a payload.
    Payload,
}

/// A receive that the caller has to start; its buffer returns through [`Session::on_received`].
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) buffer: Buffer,
    pub(super) range: Range<usize>,
    pub(super) target: Target,
}

/// Next action of a session.
#[derive(Debug)]
pub(super) enum Next {
    /// Another step.
    Again,
    /// It needs more bytes.
    Receive(Receive),
    /// Nothing, until a piece ends, a reply has left, or bytes arrive.
    Wait,
    /// Nothing more in this turn, though there may be input.
    Queue,
    /// Nothing more in this turn, since the export is at a limit.
    Throttled,
    /// The client violated the protocol: the connection ends.
    Disconnect,
}

/// One client.
pub(super) struct Session {
    /// Index among the sessions of the worker.
    index: u32,
    input: Input,
    inbox: Inbox,
    negotiated: Negotiated,
    pub(super) output: Output,
    memory: Memory,
    /// Active requests whose next piece waits: for memory, or for a turn.
    waiting: VecDeque<u32>,
    /// Number of a turn, and the cost of what began in it.
    spent: (u64, u64),
    /// Its part in the limits of the export, if that has some.
    pub(super) allowance: Option<Allowance>,
    /// The limit that something to begin has waited for since the worker last looked.
    pub(super) throttled: Option<Blocked>,
}

impl Session {
    /// A session whose greeting is queued.
    pub(super) fn new(index: u32, now: Instant, handshakes: CountGuard, pool: &BufferPool) -> Self {
        let mut output = Output::new();
        let handshake = Handshake::new(&mut output.small_replies);
        let input = Input::Handshake(Negotiation { handshake, since: now, _count: handshakes });
        Self::with(index, input, Negotiated::default(), output, pool)
    }

    /// A session whose handshake was carried out elsewhere.
    pub(super) fn negotiated(index: u32, negotiated: Negotiated, pool: &BufferPool) -> Self {
        Self::with(index, Input::Header, negotiated, Output::new(), pool)
    }

    fn with(index: u32, input: Input, negotiated: Negotiated, output: Output, pool: &BufferPool) -> Self {
        Self {
            index,
            input,
            inbox: Inbox::Here { buffer: Buffer::new(INBOX_LEN), unread: 0..0 },
            negotiated,
            output,
            memory: Memory::new(pool),
            waiting: VecDeque::with_capacity(Output::MAX_UNANSWERED),
            spent: (0, 0),
            allowance: None,
            throttled: None,
        }
    }

    /// Reads what has arrived, as far as it can be.
    pub(super) fn process_input(&mut self, active: &mut ActiveTable, turn: &mut Turn<'_>) -> Next {
        loop {
            match self.step(active, turn) {
                Next::Again => {}
                next => return next,
            }
        }
    }

    /// Reads one item of the input.
    fn step(&mut self, active: &mut ActiveTable, turn: &mut Turn<'_>) -> Next {
        if matches!(self.inbox, Inbox::InRing { .. }) {
            return Next::Wait;
        }
        match &self.input {
            Input::Header => return self.read_header(active, turn),
            Input::AwaitBuffer(_) | Input::PayloadInRing { .. } | Input::Closed(_) => return Next::Wait,
            Input::Handshake(_) | Input::Payload { .. } | Input::Skip { .. } => {}
        }
        match std::mem::replace(&mut self.input, Input::Header) {
            Input::Handshake(negotiation) => self.negotiate(negotiation, turn),
            Input::Payload { write, buffer } => self.read_payload(write, buffer, active, turn),
            Input::Skip { rest, then } => self.skip_payload(rest, then, active),
            Input::Header | Input::AwaitBuffer(_) | Input::PayloadInRing { .. } | Input::Closed(_) => Next::Again,
        }
    }

    fn negotiate(&mut self, mut negotiation: Negotiation, turn: &Turn<'_>) -> Next {
        // The last reply leaves first, so a client that takes none is owed no more than one.
        if self.output.has_queued() || self.output.sending_since().is_some() {
            self.input = Input::Handshake(negotiation);
            return Next::Wait;
        }
        let replies = &mut self.output.small_replies;
        let Ok((len, step)) = negotiation.handshake.advance(&mut &*turn.export, self.inbox.unread(), replies) else {
            return Next::Disconnect;
        };
        self.inbox.consume(len);
        match step {
            Step::Continue => {
                self.input = Input::Handshake(negotiation);
                if len == 0 { self.inbox.receive() } else { Next::Again }
            }
            Step::Start(negotiated) => {
                self.negotiated = negotiated;
                Next::Again
            }
            Step::Close => {
                self.input = Input::Closed(Some(negotiation));
                Next::Again
            }
            // Not offered here: handshakes of servers with TLS have a thread of their own.
            Step::StartTls => Next::Disconnect,
        }
    }

    fn read_header(&mut self, active: &mut ActiveTable, turn: &mut Turn<'_>) -> Next {
        if turn.is_draining {
            self.input = Input::Closed(None);
            return Next::Again;
        }
        if self.memory.is_full() || !self.output.has_room() {
            // Others are not to blame for it.
            self.allowance.iter_mut().for_each(Allowance::wait_for_client);
            return Next::Wait;
        }
        if self.is_spent(turn.number) || !active.has_room(self.output.unanswered) {
            return Next::Queue;
        }
        // A client that has sent nothing waits for nothing.
        let has_input = !self.inbox.unread().is_empty();
        if has_input && turn.must_wait {
            return self.throttle(Blocked::Others);
        }
        if let Some(allowance) = self.allowance.as_mut().filter(|_| !has_input && self.waiting.is_empty()) {
            allowance.settle(turn.now);
        }
        match Command::parse(self.inbox.unread(), self.negotiated.style) {
            Err(_) => Next::Disconnect,
            Ok(None) => self.inbox.receive(),
            Ok(Some((command, len))) => {
                let admitted = self.allowance.as_mut().map(|allowance| allowance.admit(&command, turn.now));
                if let Some(Err(blocked)) = admitted {
                    return self.throttle(blocked);
                }
                self.inbox.consume(len);
                self.begin(command, active, turn);
                Next::Again
            }
        }
    }

    fn throttle(&mut self, blocked: Blocked) -> Next {
        self.throttled = Some(blocked);
        Next::Throttled
    }

    /// Begins a command, or replies to it. A header follows unless the command has a payload or ends the input.
    fn begin(&mut self, command: Command, active: &mut ActiveTable, turn: &mut Turn<'_>) {
        let style = self.negotiated.style;
        match check(&command, self.negotiated, turn.device.access(), turn.device.len(), turn.mapping) {
            Verdict::Disconnect => self.input = Input::Closed(None),
            Verdict::Empty => self.reply(&command, Head::done(&command, style), turn),
            Verdict::Refused(error) => {
                turn.device.stats().refuse();
                self.reply(&command, Head::error(&command, style, error), turn);
            }
            Verdict::Accepted => {
                let id = active.insert(command, &mut self.owner());
                if command.kind == command::WRITE {
                    self.begin_payload(id, active, turn);
                } else {
                    self.begin_piece(id, active, turn);
                }
            }
        }
    }

    /// Replies to a command that is not carried out, now or when its payload has been skipped.
    fn reply(&mut self, command: &Command, reply: Head, turn: &Turn<'_>) {
        self.spend(MIN_COST, turn);
        match command.payload_len(self.negotiated.style) {
            0 => self.output.queue_reply(&reply),
            rest => self.input = Input::Skip { rest, then: AfterSkip::Reply(reply) },
        }
    }

    fn begin_payload(&mut self, id: u32, active: &mut ActiveTable, turn: &mut Turn<'_>) {
        self.input = match self.begin_piece(id, active, turn) {
            Attempt::Payload { write, buffer, .. } => Input::Payload { write, buffer },
            Attempt::Skip { rest } => Input::Skip { rest, then: AfterSkip::End(id) },
            _ => Input::AwaitBuffer(id),
        }
    }

    /// Adds what has begun to the cost of the turn.
    fn spend(&mut self, cost: u64, turn: &Turn<'_>) {
        self.spent = (turn.number, self.spent_in(turn.number) + cost);
    }

    /// Begins the next piece of a request, or has the request wait.
    fn begin_piece(&mut self, id: u32, active: &mut ActiveTable, turn: &mut Turn<'_>) -> Attempt {
        let attempt = active.begin_piece(id, &mut self.owner(), turn);
        match &attempt {
            Attempt::Begun { cost } | Attempt::Payload { cost, .. } => {
                self.spend((*cost).max(MIN_COST), turn);
            }
            Attempt::NoMemory | Attempt::Blocked => self.waiting.push_back(id),
            Attempt::Throttled(blocked) => {
                self.throttled = Some(*blocked);
                self.waiting.push_back(id);
            }
            Attempt::Skip { .. } | Attempt::Disconnect => {}
        }
        attempt
    }

    fn read_payload(
        &mut self,
        mut write: PendingWrite,
        mut buffer: Buffer,
        active: &mut ActiveTable,
        turn: &mut Turn<'_>,
    ) -> Next {
        let len = write.copy_payload(self.inbox.unread(), &mut buffer);
        self.inbox.consume(len);
        if !write.is_whole() {
            let receive = Receive { buffer, range: write.missing(), target: Target::Payload };
            self.input = Input::PayloadInRing { write };
            return Next::Receive(receive);
        }
        let id = write.request;
        let has_more = active.begin_write(write, buffer, &mut self.owner(), turn);
        if has_more && turn.is_draining {
            // The next step reads no header.
            active.abandon(id, &mut self.output);
        } else if has_more {
            self.begin_payload(id, active, turn);
        }
        Next::Again
    }

    fn skip_payload(&mut self, rest: u64, then: AfterSkip, active: &mut ActiveTable) -> Next {
        let available = self.inbox.unread().len();
        let len = available.min(usize::try_from(rest).unwrap_or(usize::MAX));
        self.inbox.consume(len);
        if rest == len as u64 {
            match then {
                AfterSkip::Reply(reply) => self.output.queue_reply(&reply),
                AfterSkip::End(id) => active.on_skipped(id, &mut self.owner()),
            }
            return Next::Again;
        }
        self.input = Input::Skip { rest: rest - len as u64, then };
        self.inbox.receive()
    }

    /// Takes back the buffer of a receive, with `len` more bytes. None at all, or a part of a payload: the client sends
    /// no more.
    pub(super) fn on_received(
        &mut self,
        buffer: Buffer,
        len: usize,
        target: Target,
        active: &mut ActiveTable,
        pool: &mut BufferPool,
    ) {
        if target == Target::Inbox {
            if let Inbox::InRing { kept } = self.inbox {
                self.inbox = Inbox::Here { buffer, unread: 0..kept + len };
            }
            if len == 0 {
                self.close_input(active, pool);
            }
            return;
        }
        match std::mem::replace(&mut self.input, Input::Closed(None)) {
            Input::PayloadInRing { mut write } => {
                write.on_received(len);
                let is_whole = write.is_whole();
                self.input = Input::Payload { write, buffer };
                if !is_whole {
                    self.close_input(active, pool);
                }
            }
            other => {
                self.input = other;
                self.memory.give(pool, Some(buffer));
            }
        }
    }

    /// Takes back the buffer of a receive that was cancelled before bytes came. The next step receives again.
    pub(super) fn on_canceled(&mut self, buffer: Buffer) {
        if let Inbox::InRing { kept } = self.inbox {
            self.inbox = Inbox::Here { buffer, unread: 0..kept };
        }
    }

    /// Whether the next bytes of the client begin a request, and nothing else is left to do: a new session with the
    /// same result of the handshake could take over.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_read = match &self.inbox {
            Inbox::Here { unread, .. } => unread.is_empty(),
            Inbox::InRing { kept } => *kept == 0,
        };
        let is_idle = self.output.is_settled() && self.waiting.is_empty() && self.memory.is_empty();
        matches!(self.input, Input::Header) && is_read && is_idle
    }

    /// Whether the ring receives into the inbox.
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.inbox, Inbox::InRing { .. })
    }

    /// Returns the result of the handshake.
    pub(super) fn negotiated_result(&self) -> Negotiated {
        self.negotiated
    }

    /// Reads nothing more. A write whose payload is incomplete is abandoned; one that the ring receives into is so when
    /// its buffer returns incomplete.
    pub(super) fn close_input(&mut self, active: &mut ActiveTable, pool: &mut BufferPool) {
        match std::mem::replace(&mut self.input, Input::Closed(None)) {
            Input::Payload { mut write, buffer } => {
                self.memory.give(pool, Some(buffer));
                self.memory.give(pool, write.take_spare());
                active.cancel_piece(write.request);
                active.abandon(write.request, &mut self.output);
            }
            Input::AwaitBuffer(id) => {
                self.waiting.retain(|waiting| *waiting != id);
                active.abandon(id, &mut self.output);
            }
            in_ring @ Input::PayloadInRing { .. } => self.input = in_ring,
            Input::Handshake(negotiation) => self.input = Input::Closed(Some(negotiation)),
            closed @ Input::Closed(_) => self.input = closed,
            Input::Skip { then: AfterSkip::End(id), .. } => active.abandon(id, &mut self.output),
            Input::Header | Input::Skip { then: AfterSkip::Reply(_), .. } => {}
        }
    }

    /// Gives up everything that is not with the worker or in the ring, when the connection is dropped.
    pub(super) fn release(&mut self, active: &mut ActiveTable, pool: &mut BufferPool) {
        self.output.discard_chunks(&mut self.memory, pool);
        match &mut self.input {
            // Stays, since its buffer is still to return.
            Input::PayloadInRing { write } => {
                self.memory.give(pool, write.take_spare());
                active.cancel_piece(write.request);
            }
            _ => {
                self.close_input(active, pool);
                self.input = Input::Closed(None);
            }
        }
        self.waiting.clear();
        active.remove_idle(self.index, &mut self.output);
    }

    /// Takes back the buffer of a receive after the connection was dropped.
    pub(super) fn on_received_dropped(&mut self, buffer: Buffer, target: Target, pool: &mut BufferPool) {
        match target {
            Target::Inbox => self.inbox = Inbox::Here { buffer, unread: 0..0 },
            Target::Payload => {
                self.input = Input::Closed(None);
                self.memory.give(pool, Some(buffer));
            }
        }
    }

    /// Begins the next pieces of the requests that wait, each at most once. Requests that need memory keep their order.
    /// Returns [`Next::Disconnect`] if one failed in a way that has no reply, otherwise [`Next::Again`].
    pub(super) fn begin_waiting(&mut self, active: &mut ActiveTable, turn: &mut Turn<'_>) -> Next {
        let mut no_memory = false;
        for _ in 0..self.waiting.len() {
            if self.is_spent(turn.number) {
                break;
            }
            let Some(id) = self.waiting.pop_front() else { break };
            if no_memory && active.needs_memory(id) && self.output.long_read != Some(id) {
                self.waiting.push_back(id);
                continue;
            }
            match self.begin_piece(id, active, turn) {
                Attempt::Payload { write, buffer, .. } => self.input = Input::Payload { write, buffer },
                Attempt::Skip { rest } => self.input = Input::Skip { rest, then: AfterSkip::End(id) },
                Attempt::NoMemory | Attempt::Throttled(_) => no_memory = true,
                Attempt::Begun { .. } | Attempt::Blocked => {}
                Attempt::Disconnect => return Next::Disconnect,
            }
        }
        Next::Again
    }

    /// Has the next piece of a request wait for a turn.
    pub(super) fn wait(&mut self, id: u32) {
        self.waiting.push_back(id);
    }

    /// Whether pieces wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Lends what an active request needs.
    pub(super) fn owner(&mut self) -> Owner<'_> {
        let Self { index, negotiated, output, memory, allowance, .. } = self;
        Owner { session: *index, style: negotiated.style, output, memory, allowance: allowance.as_mut() }
    }

    /// Takes back what a send has sent.
    pub(super) fn on_sent(&mut self, parts: inlock_engine::ring::Outgoing, pool: &mut BufferPool) {
        self.output.on_sent(parts, &mut self.memory, pool);
    }

    /// Start of the handshake, unless it has led to transmission.
    pub(super) fn handshake_since(&self) -> Option<Instant> {
        match &self.input {
            Input::Handshake(negotiation) | Input::Closed(Some(negotiation)) => Some(negotiation.since),
            _ => None,
        }
    }

    /// Whether nothing is in the ring or with the worker.
    pub(super) fn is_idle(&self) -> bool {
        let is_receiving =
            matches!(self.inbox, Inbox::InRing { .. }) || matches!(self.input, Input::PayloadInRing { .. });
        !is_receiving && self.output.sending_since().is_none() && self.output.unanswered == 0
    }

    /// Whether nothing more is read, and everything was answered and sent.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.input, Input::Closed(_)) && self.output.is_settled()
    }

    /// Whether as much has begun in this turn as may.
    pub(super) fn is_spent(&self, turn: u64) -> bool {
        self.spent_in(turn) >= QUANTUM
    }

    /// Returns the cost of what has begun in this turn.
    pub(super) fn spent_in(&self, turn: u64) -> u64 {
        if self.spent.0 == turn { self.spent.1 } else { 0 }
    }

    /// Returns the time since which the session has waited for others: the pool has no buffer, or others hold the bytes
    /// in flight of the export.
    pub(super) fn blocked_since(&self, now: Instant) -> Option<Instant> {
        let kept_waiting = self.allowance.as_ref().and_then(|allowance| allowance.kept_waiting_since(now));
        self.memory.blocked_since(now).into_iter().chain(kept_waiting).min()
    }

    /// Returns the time since which the client has owed what frees the memory that the session holds: taking replies,
    /// or sending the rest of a payload. Nothing else that it sends or takes counts.
    pub(super) fn owes_since(&self) -> Option<Instant> {
        let payload = match &self.input {
            Input::Payload { write, .. } | Input::PayloadInRing { write } => Some(write.since),
            _ => None,
        };
        self.output.sending_since().into_iter().chain(payload).min().filter(|_| !self.memory.is_empty())
    }
}

#[cfg(test)]
mod tests;
