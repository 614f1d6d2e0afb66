//! Discards: deallocation of a range, target by target.

use super::action::{Action, Ending, Hold};
use crate::errno::Errno;
use crate::events::Event;
use crate::mapping::{MappedRange, Mapping};
use crate::request::RequestError;
use inlock_cipher::TargetType;

/// A discard of a range that lies within the device.
pub(super) struct Discard {
    /// First byte that is not yet deallocated.
    pub(super) next: u64,
    pub(super) end: u64,
    pub(super) fua: bool,
    /// Bytes from `next` that the store was asked to deallocate.
    pub(super) asked: u64,
    /// The lock on the piece, if it takes one.
    pub(super) hold: Hold,
    /// Piece that waits for its lock.
    pub(super) locking: Option<MappedRange>,
}

impl Discard {
    /// Returns a discard that has not begun.
    pub(super) fn new(offset: u64, len: u64, fua: bool) -> Self {
        Self { next: offset, end: offset + len, fua, asked: 0, hold: Hold::None, locking: None }
    }

    /// Requests the next piece.
    pub(super) fn start(&mut self, mapping: &Mapping) -> Action {
        while self.next < self.end {
            let (range, place) = match mapping.discardable(self.next, self.end - self.next) {
                Ok(located) => located,
                Err(error) => return finish(Err(error)),
            };
            match place.kind {
                TargetType::Crypt | TargetType::Linear if !range.is_empty() => {
                    self.asked = place.len;
                    self.locking = mapping.discard_lock(&range, &place);
                    if self.locking.is_some() {
                        return Action::Lock;
                    }
                    return Action::Discard { store: place.store, range };
                }
                TargetType::Crypt | TargetType::Linear | TargetType::Zero => self.next += place.len,
                TargetType::Error => return finish(Err(Errno::IO.into())),
            }
        }
        if self.fua { Action::Sync } else { finish(Ok(())) }
    }

    /// Advances by one event.
    pub(super) fn step(&mut self, event: Event, mapping: &Mapping) -> Action {
        match event {
            Event::Locked => {
                let piece = self.locking.take().expect("a piece waits for the lock");
                if !mapping.is_current(&piece) {
                    return self.start(mapping);
                }
                let MappedRange { store, store_offset, aligned_len, .. } = piece;
                Action::Discard { store, range: store_offset..store_offset + aligned_len as u64 }
            }
            Event::Discarded(Ok(())) => {
                self.next += std::mem::take(&mut self.asked);
                self.start(mapping)
            }
            // Try again: deallocating twice is harmless.
            Event::Discarded(Err(Errno::INTR | Errno::AGAIN)) => self.start(mapping),
            Event::Discarded(Err(Errno::OPNOTSUPP)) => finish(Err(RequestError::Unsupported)),
            Event::Discarded(Err(error)) => finish(Err(error.into())),
            Event::Synced(result) => finish(result),
            event => unreachable!("{event:?} of a discard"),
        }
    }
}

fn finish(result: Result<(), RequestError>) -> Action {
    Action::Finish(Ending::new(result, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt_mapping::CryptMapping;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    /// A file system refuses to deallocate no bytes.
    #[test]
    fn discard_without_whole_units_asks_the_store_for_nothing() {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).unwrap());
        let crypt = CryptMapping::new(&[segment], &VolumeKey::new(&[3; 64]), 1 << 20).unwrap();
        let start = |next, end| Discard::new(next, end - next, false).start(crypt.mapping());
        for (next, end) in [(1, 4096), (0, 4095), (1, 8191), (4095, 4097)] {
            let action = start(next, end);
            assert!(matches!(action, Action::Finish(Ending { result: Ok(()), .. })), "{next}..{end}: {action:?}");
        }
        let action = start(1, 8193);
        assert!(matches!(&action, Action::Discard { range, .. } if *range == (4096..8192)), "{action:?}");
    }
}
