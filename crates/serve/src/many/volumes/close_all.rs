//! Closing many volumes at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::many::entry::{Entry, IfOpening, Stage, caught, lock};

/// Volumes that are closed at the same time by loading the file, or when the server stops.
const CLOSING_AT_ONCE: usize = 32;

/// Closes volumes, several at a time: each may take as long as its clients have to receive their last replies, or its
/// key to come. One that takes long delays no other. Returns whether all writes are on stable storage.
pub(super) fn close_all(entries: &[Arc<Entry>], opening: IfOpening) -> bool {
    let is_opening = |entry: &&Arc<Entry>| matches!(lock(&entry.state).stage, Stage::Opening(_));
    // Those that wait for a key are taken last.
    let (mut left, others): (Vec<_>, Vec<_>) = entries.iter().partition(is_opening);
    left.extend(others);
    let (count, left, is_flushed) = (left.len(), Mutex::new(left), AtomicBool::new(true));
    let closer = || {
        let next = || lock(&left).pop();
        while let Some(entry) = next() {
            let closed = caught(|| entry.close(opening));
            is_flushed.fetch_and(closed.is_ok(), Ordering::AcqRel);
        }
    };
    std::thread::scope(|scope| (0..count.min(CLOSING_AT_ONCE)).for_each(|_| drop(scope.spawn(closer))));
    is_flushed.into_inner()
}
