//! One client: what it has sent that is not yet read, what it is owed, and what it holds.

use super::handshake::{Handshake, ReplyStyle};
use super::transmission::Head;
use inlock_engine::buffer::HEADROOM;
use inlock_engine::ring::{FileId, MAX_OUTGOING, Outgoing};
use inlock_engine::{Buffer, BufferPool, MappedRange};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes received in one gulp: many small requests at once.
const INPUT_LEN: usize = 64 << 10;
/// Bytes of replies without data that leave at once.
const STAGING_LEN: usize = 16 << 10;
/// Replies without data that may wait before no more requests are read.
const MAX_TEXT: usize = 8 << 10;
/// Requests of one client at a time; more wait in its socket.
const MAX_TRANSFERS: usize = 256;
/// Bytes of request buffers that one client may hold, and never more than half of the pool; more waits.
const MAX_HELD: usize = 4 << 20;
/// Bytes that leave in one send, which ends when all of them have left: so a client that takes its replies slowly shows
/// that it does.
const MAX_SEND: usize = 1 << 20;
/// What one client may begin in a turn, as bytes that are moved. What it asks beyond that is begun in later turns, between
/// which other clients have theirs.
pub(super) const QUANTUM: u64 = 1 << 20;
/// What beginning a request costs at least.
const LEAST_COST: u64 = 16 << 10;
/// Buffers of its own: one for a request, and one for the edges of a partial write.
pub(super) const OWN_BUFFERS: usize = 2;

/// How long after it had to do without a buffer a client still counts as one that waits for memory.
const HUNGER_LASTS: Duration = Duration::from_secs(1);

/// Where a request's buffers come from.
pub(super) struct Supply<'a> {
    pub(super) pool: &'a mut BufferPool,
    /// Whether the client has none yet, or none that comes back before it gets one.
    pub(super) first: bool,
    /// Whether other clients waited before for what the pool has.
    pub(super) behind: bool,
    pub(super) now: Instant,
}

pub(super) enum Phase {
    Handshake(Handshake),
    Transmission { style: ReplyStyle, allocation: bool },
}

/// A stretch of a reply that carries data.
pub(super) struct Part {
    pub(super) buffer: Buffer,
    pub(super) range: Range<usize>,
    pub(super) transfer: u32,
    /// Whether the same simple reply goes on after it, so that nothing else may come between.
    pub(super) unfinished: bool,
}

/// A write whose payload is arriving.
pub(super) struct Intake {
    pub(super) transfer: u32,
    pub(super) mapped: MappedRange,
    /// `None` while the ring receives into it.
    pub(super) buffer: Option<Buffer>,
    pub(super) spare: Option<Buffer>,
    /// Bytes of [`MappedRange::requested`] that are there.
    pub(super) filled: usize,
    pub(super) begun: Instant,
}

/// Payload that is thrown away, and the answer when it is gone.
pub(super) struct Skip {
    pub(super) rest: u64,
    pub(super) answer: Head,
}

pub(super) struct Connection {
    pub(super) file: FileId,
    pub(super) phase: Phase,
    /// `None` while the ring receives into it.
    pub(super) input: Option<Buffer>,
    pub(super) unread: Range<usize>,
    /// Whether a receive is in the ring, into the input or into the intake.
    pub(super) receiving: bool,
    pub(super) sending: bool,
    /// Whether requests are still read: not after a disconnect, or when the server stops.
    pub(super) reading: bool,
    pub(super) dead: bool,
    pub(super) intake: Option<Intake>,
    pub(super) skip: Option<Skip>,
    /// Handshake replies and replies without data.
    pub(super) text: Vec<u8>,
    pub(super) out: VecDeque<Part>,
    /// The simple reply that has begun and not ended.
    exclusive: Option<u32>,
    /// How many stretches of `out` leave before `text`: those of a read that has failed since.
    pub(super) text_after: usize,
    /// The simple reply in several pieces of which pieces are still to be begun.
    pub(super) long_read: Option<u32>,
    staging: Option<Buffer>,
    staged: bool,
    parts: Outgoing,
    /// Whether it is among those that may have something to send.
    pub(super) dirty: bool,
    /// Whether it is among those that have something to begin.
    pub(super) queued: bool,
    pub(super) transfers: usize,
    /// Those of them whose next piece waits: for memory, or for its turn.
    pub(super) waiting: VecDeque<u32>,
    /// The one of them that is a write, whose payload has no buffer yet: until it has, nothing more is read.
    pub(super) waiting_write: Option<u32>,
    /// Bytes of request buffers that it holds.
    pub(super) held: usize,
    /// How many it may hold.
    most_held: usize,
    /// Buffers that no other client can take, for when the pool has none.
    own: Vec<Buffer>,
    /// What it has begun, as bytes that are moved, in the turn of that number.
    spent: (u64, u64),
    /// From when to when the pool had no buffer that it needed.
    hungry: Option<(Instant, Instant)>,
    pub(super) opened: Instant,
    /// When the send that is in the ring began.
    sending_since: Instant,
}

impl Connection {
    pub(super) fn new(file: FileId, now: Instant, pool: &BufferPool) -> Self {
        let mut text = Vec::with_capacity(MAX_TEXT + MAX_TRANSFERS * Head::MAX_LEN);
        let handshake = Handshake::new(&mut text);
        Self {
            file,
            phase: Phase::Handshake(handshake),
            input: Some(Buffer::new(INPUT_LEN)),
            unread: 0..0,
            receiving: false,
            sending: false,
            reading: true,
            dead: false,
            intake: None,
            skip: None,
            text,
            // The smallest buffers hold a page.
            out: VecDeque::with_capacity(MAX_HELD / 4096 + 2),
            exclusive: None,
            long_read: None,
            text_after: 0,
            staging: Some(Buffer::new(STAGING_LEN)),
            staged: false,
            parts: Vec::with_capacity(MAX_OUTGOING),
            dirty: false,
            queued: false,
            transfers: 0,
            waiting: VecDeque::with_capacity(MAX_TRANSFERS),
            waiting_write: None,
            held: 0,
            most_held: MAX_HELD.min(pool.capacity() / 2),
            own: (0..OWN_BUFFERS).map(|_| pool.another_small()).collect(),
            spent: (0, 0),
            hungry: None,
            opened: now,
            sending_since: now,
        }
    }

    pub(super) fn in_handshake(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }

    pub(super) fn style(&self) -> ReplyStyle {
        match self.phase {
            Phase::Handshake(_) => ReplyStyle::Simple,
            Phase::Transmission { style, .. } => style,
        }
    }

    /// Whether another request may be read now.
    pub(super) fn may_begin(&self) -> bool {
        self.transfers < MAX_TRANSFERS && !self.is_full() && self.text.len() < MAX_TEXT
    }

    /// Whether it holds all memory that it may.
    pub(super) fn is_full(&self) -> bool {
        self.held >= self.most_held
    }

    /// Whether it has begun as much in this turn as it may.
    pub(super) fn is_spent(&self, turn: u64) -> bool {
        self.spent.0 == turn && self.spent.1 >= QUANTUM
    }

    /// Takes note of `cost` that was begun in this turn.
    pub(super) fn spend(&mut self, turn: u64, cost: u64) {
        let before = if self.spent.0 == turn { self.spent.1 } else { 0 };
        self.spent = (turn, before + cost.max(LEAST_COST));
    }

    /// What it has begun in this turn.
    pub(super) fn spent_in(&self, turn: u64) -> u64 {
        if self.spent.0 == turn { self.spent.1 } else { 0 }
    }

    /// Since when it has lacked a buffer that the pool did not have, if it still does.
    pub(super) fn hungry_since(&self, now: Instant) -> Option<Instant> {
        self.hungry.filter(|(_, last)| now - *last <= HUNGER_LASTS).map(|(since, _)| since)
    }

    fn lacks_memory(&mut self, now: Instant) {
        self.hungry = Some((self.hungry_since(now).unwrap_or(now), now));
    }

    /// Since when it owes what frees the memory that it holds: taking replies, or the rest of a payload. Nothing else that
    /// it sends or takes counts.
    pub(super) fn owes_since(&self) -> Option<Instant> {
        let replies = self.sending.then_some(self.sending_since);
        let payload = self.intake.as_ref().map(|intake| intake.begun);
        replies.into_iter().chain(payload).min().filter(|_| self.held > 0)
    }

    /// What was received and not yet read.
    pub(super) fn unread(&self) -> &[u8] {
        self.input.as_ref().map_or(&[], |i| &i.data()[self.unread.clone()])
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.unread.start += len;
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
    }

    /// The input buffer with the free range behind what is unread, which moves to the front.
    pub(super) fn take_input(&mut self) -> Option<(Buffer, Range<usize>)> {
        let mut input = self.input.take()?;
        if self.unread.start > 0 {
            input.data_mut().copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let free = self.unread.end..input.capacity();
        Some((input, free))
    }

    pub(super) fn say(&mut self, head: &Head) {
        self.text.extend_from_slice(head.bytes());
    }

    /// Whether everything it asked for was answered and sent.
    pub(super) fn is_settled(&self) -> bool {
        self.transfers == 0 && self.text.is_empty() && self.out.is_empty() && !self.sending && self.skip.is_none()
    }

    /// Collects what can leave now. Replies without data go together, in front; a simple reply in several pieces is
    /// not interrupted.
    pub(super) fn next_send(&mut self, now: Instant) -> Option<Outgoing> {
        let mut parts = std::mem::take(&mut self.parts);
        let mut bytes = 0;
        let text_first = self.text_after == 0;
        if self.exclusive.is_none()
            && text_first
            && !self.text.is_empty()
            && let Some(mut staging) = self.staging.take()
        {
            let len = self.text.len().min(staging.capacity());
            staging.data_mut()[..len].copy_from_slice(&self.text[..len]);
            self.text.drain(..len);
            self.staged = true;
            bytes += len;
            parts.push((staging, HEADROOM..HEADROOM + len));
        }
        while parts.len() < MAX_OUTGOING && bytes < MAX_SEND {
            let next = match self.exclusive {
                None => 0,
                Some(transfer) => match self.out.iter().position(|p| p.transfer == transfer) {
                    Some(index) => index,
                    None => break,
                },
            };
            let Some(part) = self.out.remove(next) else { break };
            self.text_after = self.text_after.saturating_sub(1);
            self.exclusive = part.unfinished.then_some(part.transfer);
            bytes += part.range.len();
            parts.push((part.buffer, part.range));
        }
        if self.out.is_empty() {
            // Starts over from the front of its memory.
            self.out.clear();
        }
        if parts.is_empty() {
            self.parts = parts;
            return None;
        }
        self.sending = true;
        self.sending_since = now;
        Some(parts)
    }

    /// Takes back what was sent; the data buffers go to the pool.
    pub(super) fn sent(&mut self, pool: &mut BufferPool, mut parts: Outgoing) {
        for (buffer, _) in parts.drain(..) {
            if std::mem::take(&mut self.staged) {
                self.staging = Some(buffer);
            } else {
                self.give(pool, Some(buffer));
            }
        }
        self.parts = parts;
    }

    /// A request buffer for this client. Where that is its first, also one that is reserved, and one of its own where the
    /// pool has none for it.
    pub(super) fn take(&mut self, supply: &mut Supply<'_>, want: usize, least: usize) -> Option<Buffer> {
        let found = match supply {
            Supply { behind: true, .. } => None,
            Supply { first: true, pool, .. } => pool.take(want, least),
            Supply { pool, .. } => pool.take_unreserved(want, least),
        };
        if found.as_ref().is_none_or(|buffer| supply.first && buffer.capacity() < want) {
            self.lacks_memory(supply.now);
        }
        let own = || self.own.pop_if(|buffer| supply.first && buffer.capacity() >= least);
        let buffer = found.or_else(own)?;
        self.held += buffer.capacity();
        Some(buffer)
    }

    /// Takes a buffer back: in place of one of its own, or for the pool.
    pub(super) fn give(&mut self, pool: &mut BufferPool, buffer: Option<Buffer>) {
        let Some(buffer) = buffer else { return };
        self.held -= buffer.capacity();
        if self.own.len() < OWN_BUFFERS && buffer.capacity() == pool.smallest() {
            self.own.push(buffer);
        } else {
            pool.give(buffer);
        }
    }
}
