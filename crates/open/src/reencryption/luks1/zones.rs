//! Moving and changing the data of a LUKS1 volume, zone by zone.
//!
//! A zone is either written over itself or to a place of which nothing is left to read. In the first case its content
//! is kept elsewhere before, since nothing else could tell after a crash which sectors are new. Order of writes:
//!
//! 1. the content of the zone, to its file: flush (only where it is written over what it was read from);
//! 2. the data of the zone: flush;
//! 3. the log, in which the zone is new: flush.

use std::ops::{ControlFlow, Range};

use inlock_engine::BackingStore;
use inlock_engine::store::{read_all, write_all};
use inlock_volume::luks2::reencryption::Direction;

use super::super::ciphers::Ciphers;
use super::super::parallel;
use super::files::KeptZone;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// Bytes that a thread reads or writes at once.
const CHUNK: usize = 1 << 20;

/// Place of the data before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Start on the device before, in bytes.
    pub(super) old: u64,
    /// Start after.
    pub(super) new: u64,
    /// Length in bytes.
    pub(super) len: u64,
    pub(super) direction: Direction,
}

impl Place {
    /// Returns the distance by which the data move.
    pub(super) fn shift(&self) -> u64 {
        self.old.abs_diff(self.new)
    }
}

/// What is kept on stable storage besides the data.
pub(super) trait Records {
    /// Keeps the content of a zone.
    fn keep(&mut self, zone: &Range<u64>, data: &[u8], is_new: bool) -> Result<()>;
    /// Records where new data meet old ones.
    fn advance(&mut self, offset: u64) -> Result<()>;
}

/// The data of a volume that no other process uses.
pub(super) struct Zones<'a> {
    pub(super) store: &'a dyn BackingStore,
    pub(super) ciphers: &'a Ciphers,
    pub(super) place: Place,
    /// Where new data meet old ones, in bytes of the volume.
    pub(super) offset: u64,
    /// Longest zone in bytes.
    pub(super) limit: u64,
    /// Whether the content of a zone is kept.
    pub(super) is_kept: bool,
    /// Whether the new content is plaintext, which is not kept.
    pub(super) is_decryption: bool,
}

impl Zones<'_> {
    /// Returns the next zone, in bytes of the volume. `None`: all data are new.
    fn next(&self) -> Option<Range<u64>> {
        let zone = match self.place.direction {
            Direction::Forward => self.offset..self.place.len.min(self.offset.saturating_add(self.limit)),
            Direction::Backward => self.offset.saturating_sub(self.limit)..self.offset,
        };
        (zone.start < zone.end).then_some(zone)
    }

    /// Returns the number of bytes that are new.
    pub(super) fn done(&self) -> u64 {
        match self.place.direction {
            Direction::Forward => self.offset,
            Direction::Backward => self.place.len - self.offset,
        }
    }

    /// Goes on to the end, or until `watch` stops it after a zone. Returns whether it has reached the end.
    pub(super) fn run(
        &mut self,
        records: &mut dyn Records,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let mut buffer = Vec::new();
        while let Some(zone) = self.next() {
            self.step(&zone, &mut buffer, records)?;
            if watch(self.done()).is_break() && self.next().is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn step(&mut self, zone: &Range<u64>, buffer: &mut Vec<u8>, records: &mut dyn Records) -> Result<()> {
        let len = (zone.end - zone.start) as usize;
        if buffer.len() < len {
            buffer.try_reserve_exact(len - buffer.len()).context("cannot keep a zone in memory")?;
            buffer.resize(len, 0);
        }
        let data = &mut buffer[..len];
        let keeps_old = self.is_kept && self.is_decryption;
        self.in_chunks(zone, data, |at, data| {
            read_all(self.store, data, self.place.old + at).context("cannot read the data")?;
            if !keeps_old {
                self.ciphers.renew(at, data);
            }
            Ok(())
        })?;
        if self.is_kept {
            records.keep(zone, data, !keeps_old)?;
        }
        self.write(zone, data, !keeps_old, records)
    }

    /// Writes a zone again whose data may be old, new, or both.
    pub(super) fn redo(&mut self, mut kept: KeptZone, records: &mut dyn Records) -> Result<()> {
        match self.next() {
            Some(next) if self.is_next(&next, &kept.zone) => {
                self.write(&kept.zone, &mut kept.data, kept.is_new, records)
            }
            // The log says that it was written.
            _ => Ok(()),
        }
    }

    /// Whether a kept zone is the next one.
    pub(super) fn is_in_flight(&self, kept: &KeptZone) -> bool {
        self.next().is_some_and(|next| self.is_next(&next, &kept.zone))
    }

    /// Whether a kept zone begins where new data meet old ones. The limit may have been another one.
    fn is_next(&self, next: &Range<u64>, kept: &Range<u64>) -> bool {
        match self.place.direction {
            Direction::Forward => kept.start == next.start && kept.end <= self.place.len,
            Direction::Backward => kept.end == next.end,
        }
    }

    /// Writes the data of a zone, durably, and records it.
    fn write(&mut self, zone: &Range<u64>, data: &mut [u8], is_new: bool, records: &mut dyn Records) -> Result<()> {
        self.in_chunks(zone, data, |at, data| {
            if !is_new {
                self.ciphers.renew(at, data);
            }
            write_all(self.store, data, self.place.new + at).context("cannot write the data")
        })?;
        self.store.sync().context("cannot flush the data")?;
        self.offset = match self.place.direction {
            Direction::Forward => zone.end,
            Direction::Backward => zone.start,
        };
        records.advance(self.offset)
    }

    fn in_chunks(
        &self,
        zone: &Range<u64>,
        data: &mut [u8],
        work: impl Fn(u64, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let chunks: Vec<_> = data.chunks_mut(CHUNK).enumerate().collect();
        parallel::for_each(chunks.into_iter(), |(index, data)| work(zone.start + (index * CHUNK) as u64, data))
    }

    /// Overwrites a range of the device with zeroes, durably.
    pub(super) fn clear(&self, range: Range<u64>) -> Result<()> {
        let zeroes = vec![0; CHUNK];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(CHUNK as u64);
            write_all(self.store, &zeroes[..len as usize], at).context("cannot overwrite old data")?;
            at += len;
        }
        self.store.sync().context("cannot overwrite old data")
    }
}

/// The error of data that cannot be re-encrypted from here.
pub(super) fn cannot_go_on(reason: &str) -> Error {
    Error::new(ErrorKind::CannotReencrypt, format!("The re-encryption cannot go on: {reason}."))
}
