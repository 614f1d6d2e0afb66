//! The progress of a re-encryption: which parts of the volume are old, new, or being written.

use super::Direction;
use std::ops::Range;

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceState {
    /// As before the re-encryption.
    Old,
    /// Being written: after a crash, old and new in parts.
    Hot,
    /// As after the re-encryption.
    New,
}

/// A part of the volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte.
    pub start: u64,
    /// Its end; `None`: that of the device.
    pub end: Option<u64>,
    /// Its state.
    pub state: PieceState,
}

/// All parts of a volume in order, without gaps. Neighbours have different states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    parts: Vec<Piece>,
    /// Whether the volume ends where its device does.
    is_open: bool,
}

/// The order in which zones follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) direction: Direction,
    /// Length of the moved first segment.
    pub(super) moved: Option<u64>,
}

impl Order {
    /// Whether the moved first segment comes last although the others go forward.
    fn is_first_last(self) -> bool {
        self.direction == Direction::Forward && self.moved.is_some()
    }
}

impl Pieces {
    /// Returns the parts, neighbours of the same state as one.
    pub(super) fn new(parts: impl IntoIterator<Item = Piece>, is_open: bool) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        for part in parts {
            match pieces.last_mut() {
                Some(last) if last.state == part.state => last.end = part.end,
                _ => pieces.push(part),
            }
        }
        match pieces.last_mut() {
            // What is being written has an end.
            Some(last) if is_open && last.state != PieceState::Hot => last.end = None,
            _ => {}
        }
        Self { parts: pieces, is_open }
    }

    /// Returns a volume that ends at `end`, and is in one state.
    pub(super) fn whole(state: PieceState, end: Option<u64>) -> Self {
        Self::new([Piece { start: 0, end, state }], end.is_none())
    }

    /// Returns the parts.
    pub fn as_slice(&self) -> &[Piece] {
        &self.parts
    }

    /// Returns the zone that is being written.
    pub fn hot(&self) -> Option<Range<u64>> {
        let hot = self.parts.iter().find(|piece| piece.state == PieceState::Hot)?;
        Some(hot.start..hot.end?)
    }

    /// Whether nothing is old or being written.
    pub fn is_finished(&self) -> bool {
        self.parts.iter().all(|piece| piece.state == PieceState::New)
    }

    /// Returns the number of bytes that are new, of a volume of `len` bytes.
    pub fn done(&self, len: u64) -> u64 {
        let new = self.parts.iter().filter(|piece| piece.state == PieceState::New);
        new.map(|piece| piece.end.unwrap_or(len).min(len).saturating_sub(piece.start)).sum()
    }

    /// Returns the parts with a zone in another state, of a volume of `len` bytes.
    #[must_use]
    pub fn with(&self, zone: &Range<u64>, state: PieceState, len: u64) -> Self {
        let parts = self.parts.iter().flat_map(|piece| {
            // A device may have become shorter.
            let (start, end) = (piece.start, piece.end.unwrap_or(len).max(piece.start));
            let cuts = [start, zone.start.clamp(start, end), zone.end.clamp(start, end), end];
            let states = [piece.state, state, piece.state];
            let part = |at: usize| Piece { start: cuts[at], end: Some(cuts[at + 1]), state: states[at] };
            (0..3).map(part).collect::<Vec<_>>()
        });
        Self::new(parts.filter(|part| part.end.is_some_and(|end| part.start < end)), self.is_open)
    }

    /// Whether zones in this order lead to these parts.
    pub(super) fn is_in_order(&self, order: Order) -> bool {
        use PieceState::{Hot, New, Old};
        let states: Vec<PieceState> = self.parts.iter().map(|piece| piece.state).collect();
        if order.is_first_last() {
            let moved = order.moved.unwrap_or(0);
            // The boundary between the moved segment and the others.
            let is_behind = self.parts.get(1).is_none_or(|piece| piece.start == moved);
            return match states[..] {
                [Old] | [Hot] | [New] => true,
                [Hot, New] | [Old, New] | [Old, Hot] | [Old, New, Old] | [Old, New, Hot] | [Old, Hot, Old] => is_behind,
                [Old, New, Hot, Old] => is_behind,
                _ => false,
            };
        }
        let mut forward = states;
        if order.direction == Direction::Backward {
            forward.reverse();
        }
        matches!(forward[..], [Old] | [New] | [Hot] | [New, Old] | [New, Hot] | [Hot, Old] | [New, Hot, Old])
    }

    /// Returns the next zone of at most `limit` bytes of a volume of `len` bytes. `None`: nothing is old.
    pub(super) fn next_zone(&self, order: Order, limit: u64, len: u64) -> Option<Range<u64>> {
        let old = |piece: &&Piece| piece.state == PieceState::Old && piece.start < len;
        let end = |piece: &Piece| piece.end.unwrap_or(len).min(len);
        if order.is_first_last() {
            let moved = order.moved.unwrap_or(0).min(len);
            let later = self.parts.iter().filter(old).find(|piece| end(piece) > moved);
            return Some(match later {
                Some(piece) => {
                    let start = piece.start.max(moved);
                    start..end(piece).min(start.saturating_add(limit))
                }
                None => self.parts.iter().find(old).map(|piece| piece.start..end(piece))?,
            });
        }
        if order.direction == Direction::Forward {
            let piece = self.parts.iter().find(old)?;
            return Some(piece.start..end(piece).min(piece.start.saturating_add(limit)));
        }
        let piece = self.parts.iter().rfind(old)?;
        let zone = end(piece).saturating_sub(limit).max(piece.start)..end(piece);
        Some(match order.moved {
            // The moved segment is a zone of its own.
            Some(moved) if zone.start < moved && moved < zone.end => moved..zone.end,
            _ => zone,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through a volume of `len` bytes, and returns its zones.
    fn zones(order: Order, limit: u64, len: u64, end: Option<u64>) -> Vec<Range<u64>> {
        let mut pieces = Pieces::whole(PieceState::Old, end);
        let mut zones = Vec::new();
        while let Some(zone) = pieces.next_zone(order, limit, len) {
            assert!(zone.start < zone.end && zone.end - zone.start <= limit, "{zone:?}");
            pieces = pieces.with(&zone, PieceState::Hot, len);
            assert!(pieces.is_in_order(order) && pieces.hot() == Some(zone.clone()), "{pieces:?}");
            pieces = pieces.with(&zone, PieceState::New, len);
            assert!(pieces.is_in_order(order) && pieces.hot().is_none(), "{pieces:?}");
            zones.push(zone);
            assert_eq!(pieces.done(len), zones.iter().map(|zone| zone.end - zone.start).sum::<u64>());
        }
        assert!(pieces.is_finished());
        assert_eq!(pieces, Pieces::whole(PieceState::New, end));
        zones
    }

    #[test]
    fn zones_follow_in_the_order_of_the_keyslot() {
        let order = |direction, moved| Order { direction, moved };
        let forward = order(Direction::Forward, None);
        assert_eq!(zones(forward, 4, 10, None), [0..4, 4..8, 8..10]);
        assert_eq!(zones(forward, 4, 10, Some(10)), [0..4, 4..8, 8..10]);
        assert_eq!(zones(forward, 64, 10, None), std::slice::from_ref(&(0..10)));
        let backward = order(Direction::Backward, None);
        assert_eq!(zones(backward, 4, 10, None), [6..10, 2..6, 0..2]);
        let encrypt = order(Direction::Backward, Some(4));
        assert_eq!(zones(encrypt, 4, 12, Some(12)), [8..12, 4..8, 0..4]);
        assert_eq!(zones(encrypt, 4, 10, Some(10)), [6..10, 4..6, 0..4]);
        assert_eq!(zones(encrypt, 4, 4, Some(4)), std::slice::from_ref(&(0..4)));
        let decrypt = order(Direction::Forward, Some(4));
        assert_eq!(zones(decrypt, 4, 10, None), [4..8, 8..10, 0..4]);
        assert_eq!(zones(decrypt, 4, 8, None), [4..8, 0..4]);
        assert_eq!(zones(decrypt, 4, 3, None), std::slice::from_ref(&(0..3)));
    }

    #[test]
    fn parts_in_another_order_are_refused() {
        use PieceState::{Hot, New, Old};
        let pieces = |states: &[PieceState]| {
            let parts = (0u64..).zip(states).map(|(at, &state)| Piece { start: 4 * at, end: Some(4 * at + 4), state });
            Pieces::new(parts, false)
        };
        let order = |direction, moved| Order { direction, moved };
        let (forward, backward) = (order(Direction::Forward, None), order(Direction::Backward, None));
        for states in [&[Old, New][..], &[Hot, New], &[Old, Hot, New], &[New, Old, New], &[New, Hot, New]] {
            assert!(!pieces(states).is_in_order(forward), "{states:?}");
        }
        for states in [&[New, Old][..], &[New, Hot, Old], &[Old, New, Old]] {
            assert!(!pieces(states).is_in_order(backward), "{states:?}");
        }
        let decrypt = order(Direction::Forward, Some(4));
        assert!(pieces(&[Old, New, Hot, Old]).is_in_order(decrypt) && pieces(&[Hot, New]).is_in_order(decrypt));
        for states in [&[New, Old][..], &[Old, Hot, New], &[New, Hot, Old], &[Old, Old, New]] {
            assert!(!pieces(states).is_in_order(decrypt), "{states:?}");
        }
    }
}
