//! One client: what it has sent that is not yet read, what it is owed, and what it holds.

use super::handshake::{Handshake, ReplyStyle};
use super::transmission::Head;
use inlock_engine::buffer::HEADROOM;
use inlock_engine::ring::{FileId, MAX_OUTGOING, Outgoing};
use inlock_engine::{Buffer, BufferPool, Extent};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Bytes received in one gulp: many small requests at once.
const INPUT_LEN: usize = 64 << 10;
/// Bytes of replies without data that leave at once.
const STAGING_LEN: usize = 16 << 10;
/// Replies without data that may wait before no more requests are read.
const MAX_TEXT: usize = 8 << 10;
/// Requests of one client at a time; more wait in its socket.
const MAX_TRANSFERS: usize = 256;
/// Bytes of request buffers that one client may hold; more waits.
pub(super) const MAX_HELD: usize = 8 << 20;
/// Bytes that leave in one send.
const MAX_SEND: usize = 4 << 20;

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
    pub(super) extent: Extent,
    /// `None` while the ring receives into it.
    pub(super) buffer: Option<Buffer>,
    pub(super) spare: Option<Buffer>,
    /// Bytes of [`Extent::requested`] that are there.
    pub(super) filled: usize,
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
    /// Whether it is among those that wait until their worker carries less.
    pub(super) paused: bool,
    pub(super) transfers: usize,
    pub(super) held: usize,
    pub(super) opened: Instant,
    pub(super) active: Instant,
}

impl Connection {
    pub(super) fn new(file: FileId, now: Instant) -> Self {
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
            paused: false,
            transfers: 0,
            held: 0,
            opened: now,
            active: now,
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
        self.transfers < MAX_TRANSFERS && self.held < MAX_HELD && self.text.len() < MAX_TEXT
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
    pub(super) fn next_send(&mut self) -> Option<Outgoing> {
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
        Some(parts)
    }

    /// Takes back what was sent; the data buffers go to the pool.
    pub(super) fn sent(&mut self, pool: &mut BufferPool, mut parts: Outgoing) {
        for (buffer, _) in parts.drain(..) {
            if std::mem::take(&mut self.staged) {
                self.staging = Some(buffer);
            } else {
                self.held -= buffer.capacity();
                pool.give(buffer);
            }
        }
        self.parts = parts;
    }

    /// A request buffer for this client.
    pub(super) fn take(&mut self, pool: &mut BufferPool, want: usize, least: usize) -> Option<Buffer> {
        let buffer = pool.take(want, least)?;
        self.held += buffer.capacity();
        Some(buffer)
    }

    pub(super) fn give(&mut self, pool: &mut BufferPool, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.held -= buffer.capacity();
            pool.give(buffer);
        }
    }
}
