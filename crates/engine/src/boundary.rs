//! Boundary of a device that is re-encrypted while it is used.
//!
//! Such a device has two sides, each described over its whole length: the old cipher in the old place, and the new
//! ones. On one side of the boundary the bytes are new, on the other old. The boundary moves while requests are in
//! flight, but only under the lock of the bytes that it passes ([`crate::Device::lock_zone`]). A request may have been
//! mapped before it moved. So it is checked again when it holds its own lock, behind which the boundary cannot pass.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Direction in which a device is re-encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveDirection {
    /// From the start: the bytes before the boundary are new.
    Forward,
    /// From the end: the bytes from the boundary on are new.
    Backward,
}

/// Index of the old side's target, and of the new one's. They never change, so that a mapped range that names one means
/// the same cipher and place at any time.
pub(crate) const OLD: usize = 0;
pub(crate) const NEW: usize = 1;

/// Boundary between the new and the old bytes of a device. Clones of a mapping share it.
#[derive(Debug)]
pub(crate) struct Boundary {
    direction: MoveDirection,
    /// In bytes of the device.
    position: AtomicU64,
    /// A zone is neither old nor new.
    has_failed: AtomicBool,
    /// The zone that is being written, if it can be read meanwhile.
    readable: RwLock<Option<Readable>>,
}

/// A zone with its plaintext.
#[derive(Debug)]
struct Readable {
    /// In bytes of the device.
    zone: Range<u64>,
    plaintext: Arc<Vec<u8>>,
}

impl Boundary {
    pub(crate) fn new(direction: MoveDirection, position: u64) -> Self {
        Self {
            direction,
            position: AtomicU64::new(position),
            has_failed: AtomicBool::new(false),
            readable: RwLock::default(),
        }
    }

    /// Returns the position in bytes of the device.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Returns the side that the byte at `offset` is on, and where that side ends in a device of `len` bytes.
    pub(crate) fn side_at(&self, offset: u64, len: u64) -> (usize, u64) {
        let position = self.position();
        let is_before = offset < position;
        let side = if is_before == (self.direction == MoveDirection::Forward) { NEW } else { OLD };
        (side, if is_before { position } else { len })
    }

    /// Returns where the boundary will be when the bytes of `zone` are new. `None`: they are not the next ones.
    pub(crate) fn behind(&self, zone: &Range<u64>) -> Option<u64> {
        let (next, behind) = match self.direction {
            MoveDirection::Forward => (zone.start, zone.end),
            MoveDirection::Backward => (zone.end, zone.start),
        };
        (next == self.position()).then_some(behind)
    }

    /// Whether a zone could not be written, so that its bytes are neither old nor new.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Makes all requests fail. The caller holds the lock of a zone that is neither old nor new.
    pub(crate) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Moves the boundary behind `zone`, which is the next. The caller holds its lock.
    pub(crate) fn pass(&self, zone: &Range<u64>) {
        if let Some(behind) = self.behind(zone) {
            self.position.store(behind, Ordering::Release);
        }
    }

    /// Lets requests read `zone` from memory, or no longer. The caller holds its lock.
    pub(crate) fn set_readable(&self, zone: Range<u64>, plaintext: Option<Arc<Vec<u8>>>) {
        let readable = plaintext.map(|plaintext| Readable { zone, plaintext });
        *self.readable.write().unwrap_or_else(PoisonError::into_inner) = readable;
    }

    /// Calls `take` with the plaintext of `range` if memory has it. Returns whether it has.
    pub(crate) fn read(&self, range: Range<u64>, take: impl FnOnce(&[u8])) -> bool {
        let readable = self.readable.read().unwrap_or_else(PoisonError::into_inner);
        let found = readable.as_ref().and_then(|Readable { zone, plaintext }| {
            let start = range.start.checked_sub(zone.start)? as usize;
            plaintext.get(start..start + (range.end - range.start) as usize)
        });
        found.map(take).is_some()
    }
}
