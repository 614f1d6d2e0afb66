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

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::buffer::BufferClass;

    const SMALL: usize = 4096;
    const LARGE: usize = 8192;

    /// A pool of two small buffers and one large one, and the memory of a session.
    fn pool_and_memory() -> (BufferPool, Memory) {
        let classes = [(SMALL, 2), (LARGE, 1)].map(|(capacity, count)| BufferClass { capacity, count });
        let pool = BufferPool::new(&classes);
        let memory = Memory::new(&pool);
        (pool, memory)
    }

    fn take(pool: &mut BufferPool, memory: &mut Memory, reserve: bool, want: usize, min: usize) -> Option<Buffer> {
        let now = Instant::now();
        memory.take(&mut Supply { pool, may_use_reserve: reserve, is_behind: false, now }, want, min)
    }

    #[test]
    fn own_buffers_serve_when_the_pool_is_empty_and_return_first() {
        let (mut pool, mut memory) = pool_and_memory();
        let taken: Vec<_> = (0..5).map(|_| take(&mut pool, &mut memory, true, SMALL, SMALL).unwrap()).collect();
        assert_eq!(taken.iter().map(Buffer::capacity).collect::<Vec<_>>(), [SMALL, SMALL, LARGE, SMALL, SMALL]);
        assert_eq!((pool.outstanding(), memory.own.len()), (3, 0));
        assert!(take(&mut pool, &mut memory, true, SMALL, SMALL).is_none());
        assert!(memory.is_full());
        // Large ones, and more small ones than its own, are the pool's.
        for (buffer, (outstanding, own)) in taken.into_iter().zip([(3, 1), (3, 2), (2, 2), (1, 2), (0, 2)]) {
            memory.give(&mut pool, Some(buffer));
            assert_eq!((pool.outstanding(), memory.own.len()), (outstanding, own));
        }
        assert!(memory.is_empty());
    }

    #[test]
    fn own_buffers_are_for_requests_that_may_use_the_reserve_and_fit() {
        let (mut pool, mut memory) = pool_and_memory();
        let all: Vec<_> = (0..3).map(|_| pool.take(1, 1).unwrap()).collect();
        assert!(take(&mut pool, &mut memory, false, SMALL, SMALL).is_none());
        assert!(take(&mut pool, &mut memory, true, LARGE, LARGE).is_none());
        assert_eq!(take(&mut pool, &mut memory, true, LARGE, SMALL).unwrap().capacity(), SMALL);
        drop(all);
    }

    /// Whether a session counts as waiting for memory after it took a buffer of a pool that has no large one.
    fn is_blocked(reserve: bool, want: usize) -> bool {
        let (mut pool, mut memory) = pool_and_memory();
        let _large = pool.take(LARGE, LARGE).unwrap();
        assert_eq!(take(&mut pool, &mut memory, reserve, want, SMALL).unwrap().capacity(), SMALL);
        memory.blocked_since(Instant::now()).is_some()
    }

    #[test]
    fn session_that_gets_less_than_it_wants_of_the_reserve_is_waiting() {
        assert!(is_blocked(true, LARGE));
        assert!(!is_blocked(true, SMALL));
        assert!(!is_blocked(true, SMALL - 1));
        assert!(!is_blocked(false, LARGE));
    }

    #[test]
    fn session_behind_others_gets_nothing_of_the_pool() {
        let (mut pool, mut memory) = pool_and_memory();
        let now = Instant::now();
        let mut supply = Supply { pool: &mut pool, may_use_reserve: false, is_behind: true, now };
        assert!(memory.take(&mut supply, SMALL, SMALL).is_none());
        assert_eq!(memory.blocked_since(now), Some(now));
        assert_eq!(memory.blocked_since(now + BLOCKED_FOR), Some(now));
        assert_eq!(memory.blocked_since(now + BLOCKED_FOR + Duration::from_millis(1)), None);
    }
}
