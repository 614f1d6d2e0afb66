//! Calls whose data are in several pieces, as the kernel and other processes pass them, with cuts at any byte.
//!
//! The whole units of a piece are passed to the cipher where they are. A unit that lies in several pieces is copied,
//! encrypted or decrypted, and copied back: at most one unit for each cut.

use crate::in_out::check_data_len;
use crate::{CipherError, DataUnitSize, InOut};
use std::io::{IoSlice, IoSliceMut};

/// The bytes that one cipher call reads and writes, in several pieces. Pieces may be empty.
#[derive(Debug)]
pub enum ScatterList<'a, 'b> {
    /// Read and written in place.
    InPlace(&'a mut [IoSliceMut<'b>]),
    /// Read from `src`, written to `dst`, which has the same length in all, but may have other cuts.
    Copy {
        /// Read, never written.
        src: &'a [IoSlice<'b>],
        /// Written, never read.
        dst: &'a mut [IoSliceMut<'b>],
    },
}

impl ScatterList<'_, '_> {
    /// Returns the length of all pieces in bytes: of the source, if there are two.
    pub fn len(&self) -> usize {
        match self {
            Self::InPlace(data) => len_of(data),
            Self::Copy { src, .. } => len_of(src),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the data is a positive number of whole units, and as long as its destination.
    pub(crate) fn check(&self, unit: DataUnitSize) -> Result<(), CipherError> {
        let len = self.len();
        if let Self::Copy { dst, .. } = self
            && len_of(dst) != len
        {
            return Err(CipherError::DestinationLength { len, destination: len_of(dst) });
        }
        check_data_len(unit, len)
    }

    /// Calls `run` with all units in order, several at a time where they are in one piece. The number of units before
    /// them comes first. The data has passed [`ScatterList::check`].
    pub(crate) fn for_each_run(mut self, unit: DataUnitSize, mut run: impl FnMut(usize, InOut<'_>)) {
        let (mut from, mut to, mut units) = (Position::START, Position::START, 0);
        let total = self.len() >> unit.log2();
        while units < total {
            let here = match &self {
                Self::InPlace(data) => from.left_of_piece(data),
                Self::Copy { src, dst } => from.left_of_piece(src).min(to.left_of_piece(dst)),
            };
            let whole = here >> unit.log2();
            let len = whole << unit.log2();
            if whole == 0 {
                self.straddling(unit, &mut from, &mut to, |data| run(units, data));
                units += 1;
                continue;
            }
            match &mut self {
                Self::InPlace(data) => run(units, InOut::InPlace(&mut data[from.piece][from.at..from.at + len])),
                Self::Copy { src, dst } => {
                    let src = &src[from.piece][from.at..from.at + len];
                    run(units, InOut::copy(src, &mut dst[to.piece][to.at..to.at + len]));
                }
            }
            from.at += len;
            to.at += len;
            units += whole;
        }
    }

    /// Calls `run` with a copy of the next unit. Only the largest units need the larger room.
    fn straddling(&mut self, unit: DataUnitSize, from: &mut Position, to: &mut Position, run: impl FnOnce(InOut<'_>)) {
        if unit <= DataUnitSize::LUKS_MAX {
            self.straddling_in(&mut [0; DataUnitSize::LUKS_MAX.bytes()][..unit.bytes()], from, to, run);
        } else {
            self.straddling_in(&mut [0; DataUnitSize::MAX.bytes()][..unit.bytes()], from, to, run);
        }
    }

    #[inline(never)]
    fn straddling_in(&mut self, room: &mut [u8], from: &mut Position, to: &mut Position, run: impl FnOnce(InOut<'_>)) {
        match self {
            Self::InPlace(data) => from.clone().gather(data, room),
            Self::Copy { src, .. } => from.clone().gather(src, room),
        }
        run(InOut::InPlace(room));
        match self {
            Self::InPlace(data) => from.scatter(data, room),
            Self::Copy { dst, .. } => to.scatter(dst, room),
        }
        if let Self::Copy { src, .. } = self {
            from.skip(src, room.len());
        }
    }
}

fn len_of<P: std::ops::Deref<Target = [u8]>>(pieces: &[P]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// A place in a list of pieces.
#[derive(Clone)]
struct Position {
    piece: usize,
    /// Byte in the piece, at most its length.
    at: usize,
}

impl Position {
    const START: Self = Self { piece: 0, at: 0 };

    /// Goes to the next piece that is not empty where this one ends, and returns the bytes left in it; 0 at the end.
    fn left_of_piece<P: std::ops::Deref<Target = [u8]>>(&mut self, pieces: &[P]) -> usize {
        while let Some(piece) = pieces.get(self.piece) {
            if self.at < piece.len() {
                return piece.len() - self.at;
            }
            *self = Self { piece: self.piece + 1, at: 0 };
        }
        0
    }

    /// Copies from the next pieces to `room`.
    fn gather<P: std::ops::Deref<Target = [u8]>>(&mut self, pieces: &[P], mut room: &mut [u8]) {
        while !room.is_empty() {
            let len = self.left_of_piece(pieces).min(room.len());
            let (now, later) = room.split_at_mut(len);
            now.copy_from_slice(&pieces[self.piece][self.at..self.at + len]);
            (self.at, room) = (self.at + len, later);
        }
    }

    /// Copies `data` to the next pieces.
    fn scatter(&mut self, pieces: &mut [IoSliceMut<'_>], mut data: &[u8]) {
        while !data.is_empty() {
            let len = self.left_of_piece(pieces).min(data.len());
            let (now, later) = data.split_at(len);
            pieces[self.piece][self.at..self.at + len].copy_from_slice(now);
            (self.at, data) = (self.at + len, later);
        }
    }

    /// Goes `len` bytes further.
    fn skip<P: std::ops::Deref<Target = [u8]>>(&mut self, pieces: &[P], mut len: usize) {
        while len > 0 {
            let here = self.left_of_piece(pieces).min(len);
            (self.at, len) = (self.at + here, len - here);
        }
    }
}
