//! Memory of a caller, in pieces as `readv` and `writev` take it.

use std::io::{IoSlice, IoSliceMut};

/// Range of the pieces that a call writes from. Pieces may be empty.
#[derive(Clone, Copy)]
pub(crate) struct SourcePieces<'a> {
    pieces: &'a [IoSlice<'a>],
    /// Bytes of the first piece before the range.
    skip: usize,
    len: usize,
}

/// Range of the pieces that a call reads into. Pieces may be empty.
pub(crate) struct DestinationPieces<'a, 'b> {
    pieces: &'a mut [IoSliceMut<'b>],
    /// Bytes of the first piece before the range.
    skip: usize,
    len: usize,
}

impl<'a> SourcePieces<'a> {
    /// Returns the range of all pieces. The same memory may be in several, so the sum of lengths may saturate.
    pub(crate) fn new(pieces: &'a [IoSlice<'a>]) -> Self {
        let len = pieces.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        let empty = passed(pieces.iter().map(|piece| piece.len()), 0, 0).0;
        Self { pieces: &pieces[empty..], skip: 0, len }
    }

    /// Returns the length of the range in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first `len` bytes.
    pub(crate) fn first(&self, len: usize) -> Self {
        Self { len, ..*self }
    }

    /// Drops the first `len` bytes from the range.
    pub(crate) fn advance(&mut self, len: usize) {
        let (passed, skip) = passed(self.pieces.iter().map(|piece| piece.len()), self.skip, len);
        *self = Self { pieces: &self.pieces[passed..], skip, len: self.len - len };
    }

    /// Returns the range if it lies in one piece.
    pub(crate) fn contiguous(&self) -> Option<&'a [u8]> {
        self.pieces.first()?.get(self.skip..self.skip + self.len)
    }

    /// Returns the pieces, and the number of bytes before the range.
    pub(crate) fn parts(&self) -> (&'a [IoSlice<'a>], usize) {
        (self.pieces, self.skip)
    }

    /// Copies the range to `into`, which is as long.
    pub(crate) fn copy_to(&self, mut into: &mut [u8]) {
        let mut skip = self.skip;
        for piece in self.pieces {
            let from = &piece[skip..];
            let (now, later) = into.split_at_mut(from.len().min(into.len()));
            now.copy_from_slice(&from[..now.len()]);
            (into, skip) = (later, 0);
            if into.is_empty() {
                break;
            }
        }
    }
}

impl<'a, 'b> DestinationPieces<'a, 'b> {
    /// Returns the range of all pieces.
    pub(crate) fn new(pieces: &'a mut [IoSliceMut<'b>]) -> Self {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let empty = passed(pieces.iter().map(|piece| piece.len()), 0, 0).0;
        Self { pieces: &mut pieces[empty..], skip: 0, len }
    }

    /// Returns the range without its end behind `len` bytes.
    pub(crate) fn limited(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Returns the length of the range in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first `len` bytes.
    pub(crate) fn first(&mut self, len: usize) -> DestinationPieces<'_, 'b> {
        DestinationPieces { pieces: self.pieces, skip: self.skip, len }
    }

    /// Drops the first `len` bytes from the range.
    pub(crate) fn advance(&mut self, len: usize) {
        let (passed, skip) = passed(self.pieces.iter().map(|piece| piece.len()), self.skip, len);
        let pieces = &mut std::mem::take(&mut self.pieces)[passed..];
        (self.pieces, self.skip, self.len) = (pieces, skip, self.len - len);
    }

    /// Returns the range if it lies in one piece.
    pub(crate) fn contiguous(&mut self) -> Option<&mut [u8]> {
        self.pieces.first_mut()?.get_mut(self.skip..self.skip + self.len)
    }

    /// Returns the pieces, and the number of bytes before the range.
    pub(crate) fn parts(&mut self) -> (&mut [IoSliceMut<'b>], usize) {
        (self.pieces, self.skip)
    }

    /// Fills the range with zeroes.
    pub(crate) fn zero(&mut self) {
        self.for_each(|into, _| into.fill(0));
    }

    /// Copies `from`, which is as long, to the range.
    pub(crate) fn copy_from(&mut self, from: &[u8]) {
        self.for_each(|into, at| into.copy_from_slice(&from[at..at + into.len()]));
    }

    /// Calls `run` with each part of the range, and the number of bytes before it.
    fn for_each(&mut self, mut run: impl FnMut(&mut [u8], usize)) {
        let (mut skip, mut at) = (self.skip, 0);
        for piece in self.pieces.iter_mut() {
            let len = (piece.len() - skip).min(self.len - at);
            run(&mut piece[skip..skip + len], at);
            (at, skip) = (at + len, 0);
            if at == self.len {
                break;
            }
        }
    }
}

/// Returns the number of pieces that end within `len` bytes behind the first `skip`, and the bytes of the next one
/// before that position.
fn passed(pieces: impl Iterator<Item = usize>, skip: usize, len: usize) -> (usize, usize) {
    let (mut passed, mut position) = (0, skip + len);
    for piece in pieces {
        if position < piece {
            break;
        }
        (passed, position) = (passed + 1, position - piece);
    }
    (passed, position)
}
