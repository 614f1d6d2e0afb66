//! Memory of requests, kept for the next ones, so that a request allocates nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that a request of a store reads or writes at a time.
pub(crate) const MAX_LEN: usize = 1 << 20;
/// Sets that are kept at most. Of more requests at a time, some allocate.
const MAX_IDLE: usize = 64;

/// Memory of one request.
///
/// One set for all that a request needs, so that each set is large enough for every request.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Whole blocks around the bytes of a request.
    pub(crate) blocks: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    pub(crate) tags: Vec<u8>,
    pub(crate) journaled: Vec<bool>,
}

/// Sets that no request uses.
pub(crate) struct ScratchPool {
    idle: Mutex<Vec<Scratch>>,
    data_len: usize,
    blocks: usize,
    tag_size: usize,
}

impl ScratchPool {
    /// Returns a pool without sets. Each is made for requests of up to `blocks` blocks with tags of `tag_size` bytes,
    /// and copies of up to `data_len` bytes of their data. Longer ones are possible, and make it grow.
    pub(crate) fn new(data_len: usize, blocks: usize, tag_size: usize) -> Self {
        Self { idle: Mutex::new(Vec::with_capacity(MAX_IDLE)), data_len, blocks, tag_size }
    }

    /// Returns a set that a request has left, or a new one, whose memory is reserved but not touched.
    pub(crate) fn take(&self) -> ScratchGuard<'_> {
        let scratch = self.idle().pop().unwrap_or_else(|| Scratch {
            blocks: Vec::with_capacity(self.data_len),
            sealed: Vec::with_capacity(self.data_len),
            tags: Vec::with_capacity(self.blocks * self.tag_size),
            journaled: Vec::with_capacity(self.blocks),
        });
        ScratchGuard { pool: self, scratch }
    }

    /// Frees the sets that no request uses.
    pub(crate) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Scratch>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A set in use; its drop gives it back.
pub(crate) struct ScratchGuard<'a> {
    pool: &'a ScratchPool,
    scratch: Scratch,
}

impl Deref for ScratchGuard<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for ScratchGuard<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for ScratchGuard<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.idle();
        if idle.len() < MAX_IDLE {
            idle.push(std::mem::take(&mut self.scratch));
        }
    }
}

/// Returns `len` bytes of `memory`, which grows if it is shorter. They have the content of an earlier use.
pub(crate) fn bytes_of(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_sets_are_kept_than_the_pool_has_room_for() {
        let pool = ScratchPool::new(0, 1, 1);
        let taken: Vec<_> = (0..=MAX_IDLE).map(|_| pool.take()).collect();
        drop(taken);
        assert_eq!(pool.idle().len(), MAX_IDLE);
    }
}
