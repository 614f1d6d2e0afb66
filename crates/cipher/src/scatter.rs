//! Calls whose data are in several pieces, as the kernel and other processes pass them, with cuts at any byte.
//!
//! The whole units of a piece are passed to the cipher where they are. A unit that lies in several pieces is copied to
//! the stack and back, at most one for each cut. If one side is contiguous, it is encrypted or decrypted there, in one
//! call with its neighbours; so are runs of units that are shorter than the cipher is fast with.

use crate::in_out::check_data_len;
use crate::{CipherError, DataUnitSize, InOut};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

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
    /// Read from pieces, written to contiguous memory.
    Gather {
        /// Read, never written.
        src: &'a [IoSlice<'b>],
        /// Bytes of `src` before the data. Bytes behind the data are not used either.
        skip: usize,
        /// Written; its length is that of the data.
        dst: &'a mut [u8],
    },
    /// Read from contiguous memory, written to pieces.
    Scatter {
        /// The data. Undefined after the call, since some units are processed here.
        src: &'a mut [u8],
        /// Written, never read.
        dst: &'a mut [IoSliceMut<'b>],
        /// Bytes of `dst` before the data. Neither they nor the bytes behind the data are written.
        skip: usize,
    },
}

impl ScatterList<'_, '_> {
    /// Returns the length of the data in bytes: of the source, if there are two lists of pieces.
    pub fn len(&self) -> usize {
        match self {
            Self::InPlace(data) => len_of(data),
            Self::Copy { src, .. } => len_of(src),
            Self::Gather { dst, .. } => dst.len(),
            Self::Scatter { src, .. } => src.len(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the data is a positive number of whole units, and that source and destination fit.
    pub(crate) fn check(&self, unit: DataUnitSize) -> Result<(), CipherError> {
        let len = self.len();
        let (len, destination) = match self {
            Self::InPlace(_) => (len, len),
            Self::Copy { dst, .. } => (len, len_of(dst)),
            Self::Gather { src, skip, .. } => (len_of(src).saturating_sub(*skip).min(len), len),
            Self::Scatter { dst, skip, .. } => (len, len_of(dst).saturating_sub(*skip).min(len)),
        };
        if len != destination {
            return Err(CipherError::DestinationLength { len, destination });
        }
        check_data_len(unit, len)
    }

    /// Calls `run` with all units in order, several at a time where they are in one piece. The number of units before
    /// them comes first. If one side is contiguous, runs of less than `min_run` bytes are joined. The data has passed
    /// [`ScatterList::check`].
    pub(crate) fn for_each_run(self, unit: DataUnitSize, min_run: usize, run: impl FnMut(usize, InOut<'_>)) {
        match self {
            Self::InPlace(data) => in_place_runs(data, unit, run),
            Self::Copy { src, dst } => copy_runs(src, dst, unit, run),
            Self::Gather { src, skip, dst } => gather_runs(src, skip, dst, (unit, min_run), run),
            Self::Scatter { src, dst, skip } => scatter_runs(src, dst, skip, (unit, min_run), run),
        }
    }
}

fn in_place_runs(data: &mut [IoSliceMut<'_>], unit: DataUnitSize, mut run: impl FnMut(usize, InOut<'_>)) {
    let (mut at, mut done, total) = (Position::START, 0, len_of(data));
    while done < total {
        let before = done >> unit.log2();
        let whole = whole_units(unit, at.left_of_piece(data));
        if whole == 0 {
            with_room(unit, |room| {
                at.clone().gather(data, room);
                run(before, InOut::InPlace(room));
                at.scatter(data, room);
            });
            done += unit.bytes();
        } else {
            run(before, InOut::InPlace(&mut data[at.piece][at.at..at.at + whole]));
            at.at += whole;
            done += whole;
        }
    }
}

fn copy_runs(
    src: &[IoSlice<'_>],
    dst: &mut [IoSliceMut<'_>],
    unit: DataUnitSize,
    mut run: impl FnMut(usize, InOut<'_>),
) {
    let (mut from, mut to, mut done, total) = (Position::START, Position::START, 0, len_of(src));
    while done < total {
        let before = done >> unit.log2();
        let whole = whole_units(unit, from.left_of_piece(src).min(to.left_of_piece(dst)));
        if whole == 0 {
            with_room(unit, |room| {
                from.gather(src, room);
                run(before, InOut::InPlace(room));
                to.scatter(dst, room);
            });
            done += unit.bytes();
        } else {
            let src = &src[from.piece][from.at..from.at + whole];
            run(before, InOut::copy(src, &mut dst[to.piece][to.at..to.at + whole]));
            (from.at, to.at, done) = (from.at + whole, to.at + whole, done + whole);
        }
    }
}

/// Units that lie in several pieces, and short runs, are copied first; those that follow each other are one call.
fn gather_runs(
    src: &[IoSlice<'_>],
    skip: usize,
    dst: &mut [u8],
    (unit, min_run): (DataUnitSize, usize),
    mut run: impl FnMut(usize, InOut<'_>),
) {
    let mut from = Position::START;
    from.skip(src, skip);
    let (mut copied, mut done) = (0..0, 0);
    while done < dst.len() {
        let whole = whole_units(unit, from.left_of_piece(src).min(dst.len() - done));
        if whole < min_run.max(1) {
            let len = whole.max(unit.bytes());
            from.gather(src, &mut dst[done..done + len]);
            done += len;
            copied.end = done;
            continue;
        }
        run_in_place(unit, dst, copied, &mut run);
        let src = &src[from.piece][from.at..from.at + whole];
        run(done >> unit.log2(), InOut::copy(src, &mut dst[done..done + whole]));
        (from.at, done) = (from.at + whole, done + whole);
        copied = done..done;
    }
    run_in_place(unit, dst, copied, &mut run);
}

/// As [`gather_runs`]; units that lie in several pieces, and short runs, are copied after the call.
fn scatter_runs(
    src: &mut [u8],
    dst: &mut [IoSliceMut<'_>],
    skip: usize,
    (unit, min_run): (DataUnitSize, usize),
    mut run: impl FnMut(usize, InOut<'_>),
) {
    let mut to = Position::START;
    to.skip(dst, skip);
    let (mut pending, mut pending_to, mut done) = (0..0, to.clone(), 0);
    while done < src.len() {
        let whole = whole_units(unit, to.left_of_piece(dst).min(src.len() - done));
        if whole < min_run.max(1) {
            let len = whole.max(unit.bytes());
            to.skip(dst, len);
            done += len;
            pending.end = done;
            continue;
        }
        run_in_place(unit, src, pending.clone(), &mut run);
        pending_to.scatter(dst, &src[pending]);
        let dst = &mut dst[to.piece][to.at..to.at + whole];
        run(done >> unit.log2(), InOut::copy(&src[done..done + whole], dst));
        (to.at, done) = (to.at + whole, done + whole);
        (pending, pending_to) = (done..done, to.clone());
    }
    run_in_place(unit, src, pending.clone(), &mut run);
    pending_to.scatter(dst, &src[pending]);
}

fn run_in_place(unit: DataUnitSize, data: &mut [u8], range: Range<usize>, run: &mut impl FnMut(usize, InOut<'_>)) {
    if !range.is_empty() {
        run(range.start >> unit.log2(), InOut::InPlace(&mut data[range]));
    }
}

/// Default of the length in bytes from which on a run of units is worth a call of its own: a call costs as much as
/// copying some hundred bytes.
pub(crate) const MIN_RUN: usize = 2048;

/// Returns the length of the whole units in `len` bytes.
fn whole_units(unit: DataUnitSize, len: usize) -> usize {
    len >> unit.log2() << unit.log2()
}

/// Calls `run` with memory for a unit. Only the largest units need the larger memory.
fn with_room(unit: DataUnitSize, run: impl FnOnce(&mut [u8])) {
    #[inline(never)]
    fn with<const LEN: usize>(len: usize, run: impl FnOnce(&mut [u8])) {
        run(&mut [0; LEN][..len]);
    }
    if unit <= DataUnitSize::LUKS_MAX {
        with::<{ DataUnitSize::LUKS_MAX.bytes() }>(unit.bytes(), run);
    } else {
        with::<{ DataUnitSize::MAX.bytes() }>(unit.bytes(), run);
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
