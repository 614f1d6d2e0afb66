//! Replies of one session: what is queued, in which order it leaves, and what the session still owes.

use super::memory::Memory;
use super::throttle::Charge;
use super::transmission::Head;
use inlock_engine::buffer::HEADROOM;
use inlock_engine::ring::{MAX_OUTGOING, Outgoing};
use inlock_engine::{Buffer, BufferPool};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Bytes of small replies that leave in one send.
const STAGING_LEN: usize = 16 << 10;
/// Bytes of small replies that may be queued before no more requests are read.
const MAX_SMALL_REPLIES: usize = 8 << 10;
/// Bytes that leave in one send. A send completes when all its bytes have left, so a client that takes its replies
/// slowly is noticed.
const MAX_SEND: usize = 1 << 20;

/// A chunk of a reply that carries data.
pub(super) struct OutgoingChunk {
    pub(super) buffer: Buffer,
    /// Header and data in [`Buffer::frame`].
    pub(super) range: Range<usize>,
    /// Number of the active request.
    pub(super) request: u32,
    /// More of the same simple reply follows, so nothing else may leave in between.
    pub(super) is_unfinished: bool,
    /// With the last chunk of a reply: among the bytes in flight of the export until it has left.
    pub(super) charge: Option<Charge>,
}

/// Replies of one session.
pub(super) struct Output {
    /// Handshake replies and replies without data.
    pub(super) small_replies: Vec<u8>,
    chunks: VecDeque<OutgoingChunk>,
    /// Number of `chunks` that leave before `small_replies`: those of a read that failed after them.
    chunks_first: usize,
    /// Request whose simple reply has left in part.
    exclusive: Option<u32>,
    /// Request whose simple reply has several pieces, of which some have not begun.
    pub(super) long_read: Option<u32>,
    /// Requests without a whole reply.
    pub(super) unanswered: usize,
    /// Where small replies leave from; `None` while they do.
    staging: Option<Buffer>,
    /// Empty list for the next send.
    parts: Outgoing,
    /// Of the chunks in the send in flight.
    charges: Vec<Charge>,
    /// Start of the send in flight.
    sending_since: Option<Instant>,
}

impl Output {
    /// Requests of one session at a time; more wait in its socket.
    pub(super) const MAX_UNANSWERED: usize = 256;

    pub(super) fn new() -> Self {
        Self {
            small_replies: Vec::with_capacity(MAX_SMALL_REPLIES + Self::MAX_UNANSWERED * Head::MAX_LEN),
            chunks: VecDeque::with_capacity(Memory::max_buffers()),
            chunks_first: 0,
            exclusive: None,
            long_read: None,
            unanswered: 0,
            staging: Some(Buffer::new(STAGING_LEN)),
            parts: Vec::with_capacity(MAX_OUTGOING),
            charges: Vec::with_capacity(MAX_OUTGOING),
            sending_since: None,
        }
    }

    /// Whether another request may be read.
    pub(super) fn has_room(&self) -> bool {
        self.unanswered < Self::MAX_UNANSWERED && self.small_replies.len() < MAX_SMALL_REPLIES
    }

    /// Whether a reply is queued, whether or not it can leave now.
    pub(super) fn has_queued(&self) -> bool {
        !self.small_replies.is_empty() || !self.chunks.is_empty()
    }

    /// Start of the send in flight.
    pub(super) fn sending_since(&self) -> Option<Instant> {
        self.sending_since
    }

    /// Whether every request was answered and every reply has left.
    pub(super) fn is_settled(&self) -> bool {
        self.unanswered == 0 && !self.has_queued() && self.sending_since.is_none()
    }

    /// Whether the client has something to take before it needs more of the reply to `request`.
    pub(super) fn is_leaving(&self, request: u32) -> bool {
        self.sending_since.is_some() || self.chunks.iter().any(|chunk| chunk.request == request)
    }

    /// Queues a reply without data.
    pub(super) fn queue_reply(&mut self, head: &Head) {
        self.small_replies.extend_from_slice(head.bytes());
    }

    /// Queues a chunk with data.
    pub(super) fn queue_chunk(&mut self, chunk: OutgoingChunk) {
        self.chunks.push_back(chunk);
    }

    /// Has the queued chunks of a request leave before the small replies: the chunk that ends a reply must not overtake
    /// the data of the reply.
    pub(super) fn send_chunks_first(&mut self, request: u32) {
        let last = self.chunks.iter().rposition(|chunk| chunk.request == request);
        self.chunks_first = self.chunks_first.max(last.map_or(0, |last| last + 1));
    }

    /// Collects what can leave now, unless a send is in flight. Small replies leave together and first. Nothing leaves
    /// between the pieces of a simple reply.
    pub(super) fn next_send(&mut self, now: Instant) -> Option<Outgoing> {
        if self.sending_since.is_some() {
            return None;
        }
        let mut parts = std::mem::take(&mut self.parts);
        let mut bytes = 0;
        if self.exclusive.is_none()
            && self.chunks_first == 0
            && !self.small_replies.is_empty()
            && let Some(mut staging) = self.staging.take()
        {
            let len = self.small_replies.len().min(staging.capacity());
            staging.data_mut()[..len].copy_from_slice(&self.small_replies[..len]);
            self.small_replies.drain(..len);
            bytes += len;
            parts.push((staging, HEADROOM..HEADROOM + len));
        }
        while parts.len() < MAX_OUTGOING && bytes < MAX_SEND {
            let next = match self.exclusive {
                None => 0,
                Some(request) => match self.chunks.iter().position(|chunk| chunk.request == request) {
                    Some(index) => index,
                    None => break,
                },
            };
            let Some(chunk) = self.chunks.remove(next) else { break };
            self.chunks_first = self.chunks_first.saturating_sub(1);
            self.exclusive = chunk.is_unfinished.then_some(chunk.request);
            bytes += chunk.range.len();
            self.charges.extend(chunk.charge);
            parts.push((chunk.buffer, chunk.range));
        }
        if self.chunks.is_empty() {
            // Starts again at the front of its memory.
            self.chunks.clear();
        }
        if parts.is_empty() {
            self.parts = parts;
            return None;
        }
        self.sending_since = Some(now);
        Some(parts)
    }

    /// Takes back what a send has sent, and returns the buffers of chunks to where they came from.
    pub(super) fn on_sent(&mut self, mut parts: Outgoing, memory: &mut Memory, pool: &mut BufferPool) {
        self.sending_since = None;
        self.charges.clear();
        for (buffer, _) in parts.drain(..) {
            // Small replies are the first part of the send that has them.
            if self.staging.is_none() {
                self.staging = Some(buffer);
            } else {
                memory.give(pool, Some(buffer));
            }
        }
        self.parts = parts;
    }

    /// Drops the queued chunks.
    pub(super) fn discard_chunks(&mut self, memory: &mut Memory, pool: &mut BufferPool) {
        self.chunks.drain(..).for_each(|chunk| memory.give(pool, Some(chunk.buffer)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::handshake::ReplyStyle;
    use crate::nbd::protocol::{NbdError, command};
    use crate::nbd::transmission::Command;
    use inlock_engine::buffer::BufferClass;

    fn queue_chunk(output: &mut Output, byte: u8, request: u32, is_unfinished: bool) {
        let mut buffer = Buffer::new(4096);
        buffer.data_mut()[0] = byte;
        output.queue_chunk(OutgoingChunk {
            buffer,
            range: HEADROOM..HEADROOM + 1,
            request,
            is_unfinished,
            charge: None,
        });
    }

    fn queue_reply(output: &mut Output) {
        let command = Command { flags: 0, kind: command::FLUSH, cookie: 0, offset: 0, len: 0 };
        output.queue_reply(&Head::error(&command, ReplyStyle::Simple, NbdError::Io));
    }

    /// Returns the first byte of each part of the next send; small replies begin with 0x67.
    fn sent(output: &mut Output) -> Vec<u8> {
        let parts = output.next_send(Instant::now()).unwrap_or_default();
        let first_bytes = parts.iter().map(|(buffer, range)| buffer.frame()[range.start]).collect();
        output.parts = Vec::new();
        output.staging = Some(Buffer::new(STAGING_LEN));
        output.sending_since = None;
        first_bytes
    }

    #[test]
    fn small_replies_leave_together_before_chunks() {
        let mut output = Output::new();
        queue_chunk(&mut output, 1, 1, false);
        queue_reply(&mut output);
        queue_reply(&mut output);
        assert_eq!(sent(&mut output), [0x67, 1]);
        assert!(!output.has_queued() && output.is_settled());
    }

    #[test]
    fn simple_reply_in_pieces_is_not_interrupted() {
        let mut output = Output::new();
        queue_chunk(&mut output, 1, 1, true);
        queue_chunk(&mut output, 2, 2, false);
        queue_reply(&mut output);
        assert_eq!(sent(&mut output), [0x67, 1]);
        queue_reply(&mut output);
        assert_eq!(sent(&mut output), [], "the next piece is not here");
        queue_chunk(&mut output, 3, 1, true);
        queue_chunk(&mut output, 4, 1, false);
        assert_eq!(sent(&mut output), [3, 4, 2]);
        assert_eq!(sent(&mut output), [0x67]);
    }

    #[test]
    fn reply_of_failed_read_leaves_after_its_chunks() {
        let mut output = Output::new();
        queue_chunk(&mut output, 1, 1, false);
        queue_chunk(&mut output, 2, 2, false);
        queue_chunk(&mut output, 3, 3, false);
        output.send_chunks_first(2);
        queue_reply(&mut output);
        assert_eq!(sent(&mut output), [1, 2, 3]);
        assert_eq!(sent(&mut output), [0x67]);
    }

    #[test]
    fn requests_and_replies_that_are_queued_are_limited() {
        let mut output = Output::new();
        let room = MAX_SMALL_REPLIES + Output::MAX_UNANSWERED * Head::MAX_LEN;
        assert!(output.small_replies.capacity() >= room, "no reply allocates");
        for (unanswered, queued, has_room) in [
            (Output::MAX_UNANSWERED - 1, MAX_SMALL_REPLIES - 1, true),
            (Output::MAX_UNANSWERED, 0, false),
            (0, MAX_SMALL_REPLIES, false),
        ] {
            output.unanswered = unanswered;
            output.small_replies.resize(queued, 0);
            assert_eq!(output.has_room(), has_room, "{unanswered} requests, {queued} bytes");
        }
    }

    #[test]
    fn reply_of_failed_read_waits_for_chunks_that_take_several_sends() {
        let mut output = Output::new();
        for request in [1, 2] {
            let mut buffer = Buffer::new(MAX_SEND);
            buffer.data_mut()[0] = request as u8;
            let range = HEADROOM..HEADROOM + MAX_SEND;
            output.queue_chunk(OutgoingChunk { buffer, range, request, is_unfinished: false, charge: None });
        }
        output.send_chunks_first(2);
        queue_reply(&mut output);
        assert_eq!([sent(&mut output), sent(&mut output), sent(&mut output)], [[1], [2], [0x67]]);
    }

    #[test]
    fn send_in_flight_lets_nothing_else_leave() {
        let pool = &mut BufferPool::new(&[BufferClass { capacity: 4096, count: 1 }]);
        let (mut output, mut memory) = (Output::new(), Memory::new(pool));
        queue_reply(&mut output);
        let parts = output.next_send(Instant::now()).unwrap();
        queue_chunk(&mut output, 1, 1, false);
        assert!(output.next_send(Instant::now()).is_none());
        assert!(!output.is_settled());
        output.on_sent(parts, &mut memory, pool);
        assert_eq!(sent(&mut output), [1]);
    }

    #[test]
    fn list_of_parts_keeps_its_memory() {
        let pool = &mut BufferPool::new(&[BufferClass { capacity: 4096, count: 1 }]);
        let (mut output, mut memory) = (Output::new(), Memory::new(pool));
        let has_room = |output: &Output| output.parts.capacity() >= MAX_OUTGOING;
        assert!(output.next_send(Instant::now()).is_none() && has_room(&output), "nothing is queued");
        queue_reply(&mut output);
        let parts = output.next_send(Instant::now()).unwrap();
        output.on_sent(parts, &mut memory, pool);
        assert!(has_room(&output), "a send allocates");
    }

    #[test]
    fn send_is_bounded() {
        let mut output = Output::new();
        let queue = |output: &mut Output, request| {
            let buffer = Buffer::new(MAX_SEND / 2);
            output.queue_chunk(OutgoingChunk {
                buffer,
                range: 0..MAX_SEND / 2,
                request,
                is_unfinished: false,
                charge: None,
            });
        };
        (0..3).for_each(|request| queue(&mut output, request));
        assert_eq!(sent(&mut output).len(), 2);
        assert_eq!(sent(&mut output).len(), 1);
        (0..MAX_OUTGOING as u32 + 3).for_each(|request| queue_chunk(&mut output, 1, request, false));
        assert_eq!([sent(&mut output).len(), sent(&mut output).len()], [MAX_OUTGOING, 3]);
        // Small replies count too.
        queue_reply(&mut output);
        for range in [0..MAX_SEND - 16, 0..1] {
            let chunk =
                OutgoingChunk { buffer: Buffer::new(MAX_SEND), range, request: 1, is_unfinished: false, charge: None };
            output.queue_chunk(chunk);
        }
        assert_eq!(sent(&mut output).len(), 2);
        assert_eq!(sent(&mut output).len(), 1);
    }
}
