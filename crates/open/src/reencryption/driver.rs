//! Carrying out a re-encryption, zone by zone.
//!
//! On a disk that reorders writes between flushes and tears them at sectors, each state can be recovered:
//!
//! 1. what recovers the zone, in the area of the keyslot: flush;
//! 2. one copy of the header, in which the zone is being written: flush;
//! 3. the other copy, and the data of the zone: flush;
//! 4. one copy, in which the zone is new: flush. The flush of the next zone's area includes the other copy. After the
//!    last zone this header is that of the finished volume.
//!
//! Data that move by a shift need nothing in the area: what a zone overwrites was read before the zone before it was
//! finished, and its own source stays until the next one.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use inlock_engine::BackingStore;
use inlock_engine::store::{read_all, write_all};
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::reencryption::{PieceState, Protection, Reencryption, ReencryptionKeys, ReencryptionMode};
use inlock_volume::{EditError, HeaderDevice};

use super::checksums::{Checksums, Verdict};
use super::ciphers::Ciphers;
use super::parallel;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::lock::Lock;

/// Bytes that a thread reads or writes at once, unless a block of checksums is longer.
const CHUNK: usize = 1 << 20;

/// Longest zone unless a longer one is asked for. A crash costs at most its recovery, and zones have flushes.
const ZONE: u64 = 64 << 20;

/// Longest zone that is kept in memory.
const MAX_ZONE: u64 = 1 << 30;

/// The devices of a re-encryption.
#[derive(Clone, Copy)]
pub struct Devices<'a> {
    /// The device with the header.
    pub header: &'a dyn HeaderDevice,
    /// The device with the data.
    pub data: &'a dyn BackingStore,
    /// Makes the data durable.
    pub sync: &'a (dyn Fn() -> Result<()> + Sync),
    /// `sync` makes the header durable, too.
    pub syncs_header: bool,
    /// Locks the header while it is written.
    pub lock: &'a (dyn Fn() -> Result<Lock> + Sync),
}

/// Takes the plaintext of a zone before it is written.
pub(super) type Readers<'a> = &'a dyn Fn(&Arc<Vec<u8>>);

/// A re-encryption that is carried out. Its caller has the volume, and the re-encryption, to itself.
pub struct Driver<'a> {
    devices: Devices<'a>,
    luks2: Luks2,
    state: Reencryption,
    ciphers: Ciphers,
    checksums: Option<Checksums>,
    /// Length of the volume in bytes.
    len: u64,
    /// Longest zone in bytes.
    limit: u64,
    /// Holes of the store stay holes.
    keeps_holes: bool,
    /// The header is that of the finished volume.
    is_finished: bool,
    /// The header may say that a zone is being written.
    is_writing: bool,
    /// Memory for a zone.
    buffer: Vec<u8>,
    /// Memory for its plaintext.
    plaintext: Arc<Vec<u8>>,
}

/// What a recovery has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// The zone that was being written, in bytes of the volume.
    pub zone: Range<u64>,
    /// Number of blocks that had old and new sectors.
    pub torn: u64,
    /// Positions in the volume of blocks that are neither old nor new: their content is lost, or was new and damaged.
    pub unknown: Vec<u64>,
}

impl<'a> Driver<'a> {
    /// Returns a driver of the re-encryption `state` of `luks2`, which `keys` have confirmed. `longest_zone`: in bytes;
    /// `None`: the default.
    ///
    /// # Errors
    ///
    /// Fails if the length of the volume is no multiple of its data units, if a cipher or a hash is not supported, or
    /// if the area of the keyslot has no room for a zone.
    pub fn new(
        devices: Devices<'a>,
        luks2: Luks2,
        state: Reencryption,
        keys: &ReencryptionKeys,
        longest_zone: Option<u64>,
    ) -> Result<Self> {
        let ciphers = Ciphers::new(&state, keys).context("cannot use the ciphers of the re-encryption")?;
        let checksums = match &state.keyslot.resilience.protection {
            Protection::Checksum { hash, block } => Some(Checksums::new(hash, *block)?),
            Protection::None | Protection::Journal => None,
        };
        let len = state.len(devices.data.geometry().len);
        let mut driver = Self {
            devices,
            luks2,
            state,
            ciphers,
            checksums,
            len,
            limit: 0,
            keeps_holes: false,
            is_finished: false,
            is_writing: false,
            buffer: Vec::new(),
            plaintext: Arc::default(),
        };
        let unit = driver.unit();
        if len == 0 || !len.is_multiple_of(unit) {
            let text = format!("The data have {len} bytes, which is no multiple of the sector size of {unit} bytes.");
            return Err(Error::new(ErrorKind::UnitMisfit, text));
        }
        let start = driver.state.pieces.as_slice().iter().map(|piece| piece.start).max().unwrap_or(0);
        if start > len {
            let text = format!("The data have {len} bytes, and were re-encrypted up to byte {start}.");
            return Err(Error::new(ErrorKind::PayloadMisfit, text));
        }
        driver.limit = driver.longest_zone(longest_zone)?;
        Ok(driver)
    }

    /// Leaves holes of the store holes, which read as other bytes afterwards: those of data that were encrypted and
    /// never written, or discarded.
    ///
    /// # Errors
    ///
    /// Fails for data that were not encrypted: their holes are zeroes.
    pub fn keep_holes(&mut self) -> Result<()> {
        if self.state.keyslot.mode == ReencryptionMode::Encrypt {
            return Err(Error::new(ErrorKind::CannotReencrypt, "Holes of data that are not encrypted are zeroes."));
        }
        self.keeps_holes = true;
        Ok(())
    }

    /// Returns the data unit of both sides.
    fn unit(&self) -> u64 {
        self.state.old.unit.max(self.state.new.unit).bytes() as u64
    }

    fn longest_zone(&self, asked: Option<u64>) -> Result<u64> {
        if let Some(shift) = self.state.keyslot.resilience.shift {
            return Ok(shift);
        }
        let alignment = self.checksums.as_ref().map_or(1, |checksums| checksums.block() as u64).max(self.unit());
        let asked = asked.unwrap_or(ZONE).min(MAX_ZONE).max(alignment);
        let limit = asked.min(self.room());
        match limit - limit % alignment {
            0 => Err(no_space()),
            limit => Ok(limit),
        }
    }

    /// Returns the length of the longest zone that the area of the keyslot protects.
    fn room(&self) -> u64 {
        let area = self.state.area.end - self.state.area.start;
        match (&self.checksums, &self.state.keyslot.resilience.protection) {
            (Some(checksums), _) => checksums.fitting(area),
            (None, Protection::Journal) => area,
            (None, _) => u64::MAX,
        }
    }

    /// Returns the length of the volume in bytes.
    pub fn total(&self) -> u64 {
        self.len
    }

    /// Returns the number of bytes that are new.
    pub fn done(&self) -> u64 {
        self.state.pieces.done(self.len)
    }

    /// Returns the state.
    pub fn state(&self) -> &Reencryption {
        &self.state
    }

    /// Returns the header.
    pub fn into_luks2(self) -> Luks2 {
        self.luks2
    }

    /// Goes on to the end, or until `watch` stops it after a zone; `watch` takes the number of bytes that are new. Ends
    /// the re-encryption in the header with the last zone. Returns whether it has reached the end.
    ///
    /// # Errors
    ///
    /// Fails if a device fails, or if another program has changed the header. Goes on where it was when called again
    /// with a new driver.
    pub fn run(&mut self, watch: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<bool> {
        self.recover()?;
        while let Some(zone) = self.next_zone() {
            self.step(&zone, None)?;
            if watch(self.done()).is_break() && !self.is_finished {
                self.rest()?;
                return Ok(false);
            }
        }
        // Another program may have left a header of which nothing else is missing.
        self.finish()?;
        Ok(true)
    }

    /// Returns the next zone. `None`: all data are new.
    pub fn next_zone(&self) -> Option<Range<u64>> {
        self.state.next_zone(self.limit, self.len)
    }

    /// Re-encrypts the next zone, and ends the re-encryption in the header with the last one: until then a crash makes
    /// the zone one to recover, which must not change in a volume that is in use. `readers` gets the plaintext of a zone
    /// that stays in its place.
    ///
    /// # Errors
    ///
    /// As [`Driver::run`]; [`Driver::is_writing`] tells what is left.
    pub fn step(&mut self, zone: &Range<u64>, readers: Option<Readers<'_>>) -> Result<()> {
        self.write_zone(zone, readers)?;
        if self.state.pieces.is_finished() { self.finish() } else { Ok(()) }
    }

    /// Makes the whole header durable, to stop after a zone, or to wait.
    ///
    /// # Errors
    ///
    /// Fails if the device fails.
    pub fn rest(&mut self) -> Result<()> {
        self.luks2.sync(self.devices.header).context("cannot write the progress of the re-encryption")
    }

    /// Tries once more to end a zone whose step has failed while it was being written.
    ///
    /// # Errors
    ///
    /// Fails if a device fails again, or if the header does not say that the zone is being written.
    pub fn mend(&mut self) -> Result<()> {
        if self.state.pieces.is_finished() {
            return self.finish();
        }
        match self.recover()? {
            Some(_) => Ok(()),
            None => Err(cannot_recover("the header may not say that it is being written")),
        }
    }

    /// Whether the zone of a step that has failed may be neither old nor new, and has to be recovered.
    pub fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Whether the new data of a zone are in the place of the old ones.
    fn is_in_place(&self, zone: &Range<u64>) -> bool {
        self.state.old_place(zone.start) == self.state.new_place(zone.start)
    }

    fn write_zone(&mut self, zone: &Range<u64>, readers: Option<Readers<'_>>) -> Result<()> {
        if self.is_in_place(zone) {
            if zone.end - zone.start > self.room() {
                return Err(no_space());
            }
            // Memory that is new takes a fault for each page.
            let mut data = std::mem::take(&mut self.buffer);
            resize(&mut data, zone)?;
            self.read_protected(zone, &mut data, readers)?;
            self.devices.header.sync().with_context(cannot_write_area)?;
            self.luks2.set_durable();
            self.is_writing = true;
            let holes = if self.keeps_holes { self.holes(zone)? } else { Vec::new() };
            self.commit(zone, PieceState::Hot)?;
            self.write(zone, &data, &holes)?;
            self.buffer = data;
        } else {
            self.is_writing = true;
            self.commit(zone, PieceState::Hot)?;
            self.move_zone(zone)?;
        }
        self.end_zone(zone)?;
        self.is_writing = self.state.pieces.is_finished();
        Ok(())
    }

    /// Makes the data of a zone durable, and then the header that says so.
    fn end_zone(&mut self, zone: &Range<u64>) -> Result<()> {
        (self.devices.sync)().context("cannot write the data")?;
        if self.devices.syncs_header {
            self.luks2.set_durable();
        }
        let pieces = self.state.pieces.with(zone, PieceState::New, self.len);
        if pieces.is_finished() {
            // Without a header in between that has all data new, and in which cryptsetup would encrypt them again.
            self.state.pieces = pieces;
            return Ok(());
        }
        self.commit(zone, PieceState::New)
    }

    fn commit(&mut self, zone: &Range<u64>, state: PieceState) -> Result<()> {
        let pieces = self.state.pieces.with(zone, state, self.len);
        let _lock = (self.devices.lock)()?;
        self.luks2.commit_progress(self.devices.header, &mut self.state, pieces).map_err(cannot_commit)
    }

    /// Ends the re-encryption in the header. Overwrites what is left of old data outside of the new ones afterwards:
    /// before, a recovery may need them.
    fn finish(&mut self) -> Result<()> {
        if self.is_finished {
            return Ok(());
        }
        {
            let _lock = (self.devices.lock)()?;
            self.luks2.finish_reencryption(self.devices.header, &self.state).map_err(cannot_commit)?;
        }
        (self.is_finished, self.is_writing) = (true, false);
        let Some(shift) = self.state.keyslot.resilience.shift else { return Ok(()) };
        let left = match (&self.state.moved, self.state.keyslot.mode) {
            // The first segment, which was moved to the end of the device.
            (Some(moved), ReencryptionMode::Encrypt) => moved.clone(),
            // The old place of the last data.
            _ => {
                let (new_end, end) = (self.state.new_place(self.len), self.devices.data.geometry().len);
                new_end..end.min(new_end.saturating_add(shift))
            }
        };
        let mut noise = vec![0; CHUNK];
        let mut at = left.start;
        while at < left.end {
            let part = &mut noise[..(left.end - at).min(CHUNK as u64) as usize];
            getrandom::fill(part).context("cannot read random bytes")?;
            write_all(self.devices.data, part, at).context("cannot overwrite old data")?;
            at += part.len() as u64;
        }
        (self.devices.sync)().context("cannot overwrite old data")
    }

    /// Reads a zone, writes what recovers it to the area, and turns it into new data.
    fn read_protected(&mut self, zone: &Range<u64>, data: &mut [u8], readers: Option<Readers<'_>>) -> Result<()> {
        let mut plaintext = std::mem::take(&mut self.plaintext);
        // No other thread has it: that of the zone before was taken back when its lock was released.
        let kept = Arc::make_mut(&mut plaintext);
        kept.resize(if readers.is_some() { data.len() } else { 0 }, 0);
        let result = self.read_and_renew(zone, data, kept);
        if let (Ok(()), Some(readers)) = (&result, readers) {
            readers(&plaintext);
        }
        self.plaintext = plaintext;
        result
    }

    /// [`Driver::read_protected`] into `data`, and the plaintext into `kept` if that is not empty.
    fn read_and_renew(&self, zone: &Range<u64>, data: &mut [u8], kept: &mut [u8]) -> Result<()> {
        let Devices { header, data: store, .. } = self.devices;
        let (place, area) = (self.state.old_place(zone.start), self.state.area.start);
        let is_journal = self.state.keyslot.resilience.protection == Protection::Journal;
        let (chunk, mut digests) = (self.chunk(), self.digests_of(data.len()));
        let digests_of_chunk = self.digests_of(chunk).len().max(1);
        let (mut without, mut kept) = (digests.chunks_mut(digests_of_chunk), kept.chunks_mut(chunk));
        let chunks = data.chunks_mut(chunk).enumerate();
        let chunks = chunks.map(|(index, data)| (index, data, without.next(), kept.next()));
        parallel::for_each(chunks.collect::<Vec<_>>().into_iter(), |(index, data, digests, kept)| {
            let offset = (index * chunk) as u64;
            read_all(store, data, place + offset).with_context(cannot_read)?;
            match (&self.checksums, digests) {
                (Some(checksums), Some(digests)) => checksums.digest(data, digests),
                _ if is_journal => header.write_all_at(data, area + offset).with_context(cannot_write_area)?,
                _ => {}
            }
            self.ciphers.renew_keeping(zone.start + offset, data, kept);
            Ok(())
        })?;
        header.write_all_at(&digests, area).with_context(cannot_write_area)
    }

    /// Returns the whole data units of a zone that are holes of the store, as ranges of it, in order.
    fn holes(&self, zone: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let (place, len, unit) = (self.state.old_place(zone.start), zone.end - zone.start, self.unit());
        let (mut holes, mut at) = (Vec::new(), 0);
        while at < len {
            let status = self.devices.data.block_status(place + at, len - at).context("cannot look for holes")?;
            let end = (status.offset + status.len - place).clamp(at + 1, len);
            let hole = at.next_multiple_of(unit)..end / unit * unit;
            if status.hole && !hole.is_empty() {
                holes.push(hole);
            }
            at = end;
        }
        Ok(holes)
    }

    /// Writes the new data of a zone, except its holes.
    fn write(&self, zone: &Range<u64>, data: &[u8], holes: &[Range<u64>]) -> Result<()> {
        let (place, chunk) = (self.state.new_place(zone.start), self.chunk());
        let starts = holes.iter().map(|hole| hole.end);
        let ends = holes.iter().map(|hole| hole.start).chain([data.len() as u64]);
        let between = [0]
            .into_iter()
            .chain(starts)
            .zip(ends)
            .flat_map(|(start, end)| (start..end).step_by(chunk).map(move |at| at..end.min(at + chunk as u64)));
        parallel::for_each(between.collect::<Vec<_>>().into_iter(), |part| {
            let data = &data[part.start as usize..part.end as usize];
            write_all(self.devices.data, data, place + part.start).with_context(cannot_write)
        })
    }

    /// Writes the new data of a zone whose old data are elsewhere.
    fn move_zone(&self, zone: &Range<u64>) -> Result<()> {
        let (from, to) = (self.state.old_place(zone.start), self.state.new_place(zone.start));
        let (len, chunk) = (zone.end - zone.start, CHUNK as u64);
        let offsets = (0..len.div_ceil(chunk) as usize).map(|index| index as u64 * chunk);
        parallel::for_each(offsets, |offset| {
            let mut data = vec![0; chunk.min(len - offset) as usize];
            read_all(self.devices.data, &mut data, from + offset).with_context(cannot_read)?;
            self.ciphers.renew(zone.start + offset, &mut data);
            write_all(self.devices.data, &data, to + offset).with_context(cannot_write)
        })
    }

    /// Returns the number of bytes that a thread reads or writes at once.
    fn chunk(&self) -> usize {
        CHUNK.max(self.checksums.as_ref().map_or(0, Checksums::block))
    }

    /// Returns room for the digests of `len` bytes.
    fn digests_of(&self, len: usize) -> Vec<u8> {
        vec![0; self.checksums.as_ref().map_or(0, |checksums| checksums.len_of(len as u64)) as usize]
    }

    /// Finishes a zone that was being written when a program or the machine stopped. `None`: there is none.
    ///
    /// # Errors
    ///
    /// Fails before it writes if nothing protects the zone, or if the checksums are not those of the zone.
    pub fn recover(&mut self) -> Result<Option<Recovered>> {
        let Some(zone) = self.state.pieces.hot() else { return Ok(None) };
        let mut found = Recovered { zone: zone.clone(), ..Recovered::default() };
        if zone.end > self.len || zone.is_empty() {
            return Err(cannot_recover("it is longer than the volume"));
        }
        if !zone.start.is_multiple_of(self.unit()) || !zone.end.is_multiple_of(self.unit()) {
            return Err(cannot_recover("it does not begin and end at data units"));
        }
        if self.is_in_place(&zone) {
            if zone.end - zone.start > self.room() {
                return Err(cannot_recover("it is longer than what the keyslot area protects"));
            }
            let mut data = Vec::new();
            resize(&mut data, &zone)?;
            let holes = if self.keeps_holes { self.holes(&zone)? } else { Vec::new() };
            match (&self.checksums, &self.state.keyslot.resilience.protection) {
                (_, Protection::None) => {
                    return Err(cannot_recover(
                        "the re-encryption had no resilience, and the data of the zone are lost",
                    ));
                }
                (Some(checksums), _) => {
                    let verdict = self.recover_by_checksums(checksums, &zone, &mut data)?;
                    (found.torn, found.unknown) = (verdict.torn, verdict.unknown);
                }
                (None, _) => {
                    let area = self.state.area.start;
                    self.devices.header.read_exact_at(&mut data, area).with_context(cannot_read_area)?;
                    self.ciphers.renew(zone.start, &mut data);
                }
            }
            self.write(&zone, &data, &holes)?;
        } else {
            self.move_zone(&zone)?;
        }
        self.end_zone(&zone)?;
        if self.state.pieces.is_finished() {
            self.finish()?;
        }
        Ok(Some(found))
    }

    /// Reads a zone, and turns it into new data as its checksums tell.
    fn recover_by_checksums(&self, checksums: &Checksums, zone: &Range<u64>, data: &mut [u8]) -> Result<Verdict> {
        let mut digests = self.digests_of(data.len());
        self.devices.header.read_exact_at(&mut digests, self.state.area.start).with_context(cannot_read_area)?;
        read_all(self.devices.data, data, self.state.new_place(zone.start)).with_context(cannot_read)?;
        let chunk = self.chunk();
        let verdict = std::sync::Mutex::new(Verdict::default());
        let chunks = data.chunks_mut(chunk).zip(digests.chunks(self.digests_of(chunk).len())).enumerate();
        parallel::for_each(chunks, |(index, (data, digests))| {
            let at = zone.start + (index * chunk) as u64;
            let own = checksums.renew(&self.ciphers, at, data, digests);
            verdict.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(own);
            Ok(())
        })?;
        let mut verdict = verdict.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        verdict.unknown.sort_unstable();
        if verdict.known == 0 && verdict.unknown.len() > 1 {
            return Err(cannot_recover("the checksums in the keyslot area are not those of the zone"));
        }
        Ok(verdict)
    }
}

/// Gives memory the length of a zone.
fn resize(data: &mut Vec<u8>, zone: &Range<u64>) -> Result<()> {
    let len = zone.end - zone.start;
    if len > MAX_ZONE {
        let text = format!("A zone of {len} bytes is longer than {MAX_ZONE} bytes, the most that are kept in memory.");
        return Err(Error::new(ErrorKind::Failed, text));
    }
    data.try_reserve_exact((len as usize).saturating_sub(data.len())).context("cannot keep a zone in memory")?;
    data.resize(len as usize, 0);
    Ok(())
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoFreeArea, "The keyslot area has no space for the re-encryption.")
}

fn cannot_recover(reason: &str) -> Error {
    let text = format!("The zone that was being re-encrypted cannot be recovered: {reason}.");
    Error::new(ErrorKind::ZoneLost, text)
}

fn cannot_commit(error: EditError) -> Error {
    Error::with_source(ErrorKind::Failed, "cannot write the progress of the re-encryption", error)
}

fn cannot_read() -> &'static str {
    "cannot read the data"
}

fn cannot_write() -> &'static str {
    "cannot write the data"
}

fn cannot_read_area() -> &'static str {
    "cannot read the keyslot area of the re-encryption"
}

fn cannot_write_area() -> &'static str {
    "cannot write the keyslot area of the re-encryption"
}
