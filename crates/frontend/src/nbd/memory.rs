//! Request buffers of one session: how many bytes it holds, and which buffers of the pool it may take.

use inlock_engine::{Buffer, BufferPool};
use std::time::{Duration, Instant};

/// Bytes of request buffers that a session may hold, and never more than half of the pool.
const MAX_HELD: usize = 4 << 20;
/// Buffers that belong to each session: one for a request, and one for the edges of a partial write.
pub(super) const OWN_BUFFERS: usize = 2;
/// Time after the last failed attempt for which a session still counts as waiting for memory.
const BLOCKED_FOR: Duration = Duration::from_secs(1);

/// The pool, and which of its buffers one request may take.
pub(super) struct Supply<'a> {
    pub(super) pool: &'a mut BufferPool,
    /// The session holds no buffer, or none that returns before the request has this one.
    pub(super) may_use_reserve: bool,
    /// Other sessions already wait for buffers like this one.
    pub(super) is_behind: bool,
    pub(super) now: Instant,
}

/// Request buffers of one session.
pub(super) struct Memory {
    /// Bytes in the buffers that the session holds.
    held: usize,
    max_held: usize,
    /// Buffers that no other session can take, for when the pool is empty.
    own: Vec<Buffer>,
    /// First and last time that the pool had no buffer for the session.
    blocked: Option<(Instant, Instant)>,
}

impl Memory {
    pub(super) fn new(pool: &BufferPool) -> Self {
        Self {
            held: 0,
            max_held: MAX_HELD.min(pool.capacity() / 2),
            own: (0..OWN_BUFFERS).map(|_| pool.another_small()).collect(),
            blocked: None,
        }
    }

    /// Maximum number of buffers that a session holds. The smallest buffers hold a page.
    pub(super) const fn max_buffers() -> usize {
        MAX_HELD / 4096 + OWN_BUFFERS
    }

    /// Whether the session holds no buffer.
    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Whether the session holds as many bytes as it may.
    pub(super) fn is_full(&self) -> bool {
        self.held >= self.max_held
    }

    /// Returns the time since which the pool has had no buffer for the session, if that still lasts.
    pub(super) fn blocked_since(&self, now: Instant) -> Option<Instant> {
        self.blocked.filter(|(_, last)| now - *last <= BLOCKED_FOR).map(|(since, _)| since)
    }

    /// Takes a buffer for `want` bytes, or a smaller one for at least `min` bytes. If the pool has none and the request
    /// may use the reserve, the session's own buffers serve.
    pub(super) fn take(&mut self, supply: &mut Supply<'_>, want: usize, min: usize) -> Option<Buffer> {
        let found = match supply {
            Supply { is_behind: true, .. } => None,
            Supply { may_use_reserve: true, pool, .. } => pool.take(want, min),
            Supply { pool, .. } => pool.take_unreserved(want, min),
        };
        let may_use_reserve = supply.may_use_reserve;
        if found.as_ref().is_none_or(|buffer| may_use_reserve && buffer.capacity() < want) {
            self.blocked = Some((self.blocked_since(supply.now).unwrap_or(supply.now), supply.now));
        }
        let own = || self.own.pop_if(|buffer| may_use_reserve && buffer.capacity() >= min);
        let buffer = found.or_else(own)?;
        self.held += buffer.capacity();
        Some(buffer)
    }

    /// Takes a buffer back: as one of the session's own if one is missing, else for the pool.
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
