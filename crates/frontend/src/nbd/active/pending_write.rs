//! Pieces of writes whose payload is arriving.

use inlock_engine::{Buffer, MappedRange};
use std::time::Instant;

/// Piece of a write whose payload is arriving. Its buffer is with the session or in the ring.
pub(in super::super) struct PendingWrite {
    /// Number of the active request.
    pub(in super::super) request: u32,
    pub(super) mapped: MappedRange,
    pub(super) spare: Option<Buffer>,
    /// Bytes of [`MappedRange::requested`] that have arrived.
    pub(super) filled: usize,
    /// When the piece got its buffer.
    pub(in super::super) since: Instant,
}

impl PendingWrite {
    /// Copies payload from the front of `input` into the buffer of the piece, and returns its length.
    pub(in super::super) fn copy_payload(&mut self, input: &[u8], buffer: &mut Buffer) -> usize {
        let missing = &mut buffer.data_mut()[self.missing()];
        let len = missing.len().min(input.len());
        missing[..len].copy_from_slice(&input[..len]);
        self.filled += len;
        len
    }

    /// Range of the buffer's data that has not arrived.
    pub(in super::super) fn missing(&self) -> std::ops::Range<usize> {
        let requested = self.mapped.requested();
        requested.start + self.filled..requested.end
    }

    /// Takes note of `len` bytes that were received into the buffer.
    pub(in super::super) fn on_received(&mut self, len: usize) {
        self.filled += len;
    }

    pub(in super::super) fn is_whole(&self) -> bool {
        self.filled == self.mapped.len
    }

    /// Takes the second buffer, to return it.
    pub(in super::super) fn take_spare(&mut self) -> Option<Buffer> {
        self.spare.take()
    }
}
