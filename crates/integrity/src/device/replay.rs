//! Replay of the journal when a device is opened.
//!
//! A power cut leaves sectors of a section that was being written with the commit id of an earlier lap: there the
//! replay ends, as that section was never acknowledged. Everything else that does not fit is damage, and then nothing
//! is written.

use super::core::Core;
use crate::error::{JournalDamage, ReplayError};
use crate::format::MAX_DEFAULT_JOURNAL_SECTORS;
use crate::journal_codec::{JournalCodec, SEQUENCES, next_sequence, previous_sequence};
use crate::superblock::Superblock;
use inlock_engine::Errno;
use inlock_engine::store::read_all;

/// Whether the data of the block at a sector match its tag. Overwrites the data.
pub(crate) type EntryCheck<'a> = &'a dyn Fn(u64, &mut [u8], &[u8]) -> bool;

/// The sections of a journal as they are stored.
pub(crate) struct StoredSections<'a> {
    pub(super) core: &'a Core,
    pub(super) codec: &'a JournalCodec,
    /// `None`: there is no key or hash to check entries with.
    pub(super) check: Option<EntryCheck<'a>>,
    /// Whether what is damaged is left out.
    pub(super) salvages: bool,
    /// Whether all tags are computed again: an entry that lies behind the end of a volume that was longer has none to
    /// be recognized by.
    pub(super) recalculates: bool,
    /// Whether a power cut may have left a bitmap in the journal's place.
    pub(super) may_be_bitmap: bool,
}

/// The oldest section, and the lap in which it was written.
pub(super) struct Found {
    start: u32,
    sequence: u8,
}

/// Whether each entry of a section is compared with its tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    Unchecked,
    Checked,
}

impl<'a> StoredSections<'a> {
    /// Describes the journal of a volume with this superblock.
    pub(crate) fn new(core: &'a Core, codec: &'a JournalCodec, superblock: &Superblock) -> Self {
        // The state between the change from a bitmap to a journal and the first step of the recalculation.
        let may_be_bitmap = superblock.is_recalculating() && superblock.recalc_sector == 0;
        Self { core, codec, check: None, salvages: false, recalculates: false, may_be_bitmap }
    }

    /// Leaves out what is damaged, if `salvages`.
    pub(crate) fn salvaging(self, salvages: bool) -> Self {
        Self { salvages, ..self }
    }

    /// Replays the journal. Returns the section and the lap of the next write.
    ///
    /// With `keep` a whole journal is left as it is: to replay it again does no harm until other modes write.
    pub(super) fn replay(&self, keep: bool) -> Result<(u32, u8), ReplayError> {
        let (core, sections) = (self.core, self.core.layout.journal.sections);
        let Some(found) = self.find_start()? else {
            crate::format::clear_journal(&core.stores, &core.layout, self.codec, 0)?;
            return Ok((0, 1));
        };
        let mut entries = Entries::Checked;
        if !self.salvages {
            // Before anything is written.
            self.for_each_section(&found, |section, image| {
                self.for_each_entry(section, image, entries, |_, _| Ok(()))
            })?;
            entries = Entries::Unchecked;
        }
        let mut used = false;
        let whole = self.for_each_section(&found, |section, image| {
            used |= self.replay_section(section, image, entries)?;
            Ok(())
        })?;
        if used {
            core.write_back()?;
        }
        // What is left out must not be found again.
        let is_damaged = self.salvages && core.mismatches.get() > 0;
        if whole == sections && (keep || !used) && !is_damaged {
            return Ok((found.start, next_sequence(found.sequence)));
        }
        self.empty(&found)?;
        Ok((found.start, next_sequence(next_sequence(found.sequence))))
    }

    /// Whether a replay of the journal would copy this section. Writes nothing.
    pub(crate) fn will_replay(&self, number: u32) -> Result<bool, ReplayError> {
        let Some(found) = self.find_start()? else { return Ok(false) };
        let mut is_replayed = false;
        self.for_each_section(&found, |section, _| {
            is_replayed |= section == number;
            Ok(())
        })?;
        Ok(is_replayed)
    }

    /// Whether [`StoredSections::replay`] would replace sections by empty ones. Writes nothing.
    pub(crate) fn will_be_emptied(&self, keep: bool) -> Result<bool, ReplayError> {
        let Some(found) = self.find_start()? else { return Ok(true) };
        let mut used = false;
        let whole = self.for_each_section(&found, |_, image| {
            used |= self.has_entries(image);
            Ok(())
        })?;
        Ok(self.salvages || whole != self.core.layout.journal.sections || (used && !keep))
    }

    fn has_entries(&self, image: &[u8]) -> bool {
        (0..self.core.layout.journal.entries).any(|entry| self.codec.sector(image, entry).is_some())
    }

    /// Calls `each` for the sections to replay, in the order in which they were written: all from the oldest one to the
    /// one whose write was cut off, which was never acknowledged. Returns their number.
    pub(super) fn for_each_section(
        &self,
        found: &Found,
        mut each: impl FnMut(u32, &[u8]) -> Result<(), ReplayError>,
    ) -> Result<u32, ReplayError> {
        let sections = self.core.layout.journal.sections;
        let (mut section, mut sequence, mut whole) = (found.start, found.sequence, 0);
        for _ in 0..sections {
            let image = self.read_section(section)?;
            if self.codec.sequences(section, &image).all(|found| found == Some(sequence)) {
                each(section, &image)?;
                whole += 1;
            } else if !self.salvages || self.codec.sequences(section, &image).all(|found| found.is_some()) {
                return Ok(whole);
            }
            section += 1;
            if section == sections {
                (section, sequence) = (0, next_sequence(sequence));
            }
        }
        Ok(whole)
    }

    /// Calls `each` for the entries of a section: block, number of the entry.
    pub(super) fn for_each_entry(
        &self,
        section: u32,
        image: &[u8],
        entries: Entries,
        mut each: impl FnMut(u64, usize) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let layout = &self.core.layout;
        if !self.codec.has_valid_mac(section, image) {
            return self.leave_out(JournalDamage::Mac { section });
        }
        let mut data = vec![0; layout.block_len()];
        for entry in 0..layout.journal.entries {
            let Some(sector) = self.codec.sector(image, entry) else { continue };
            let is_behind = sector >= layout.provided_data_sectors;
            let check = self.check.filter(|_| entries == Entries::Checked);
            if !sector.is_multiple_of(layout.sectors_per_block())
                || is_behind && !layout.journal.has_mac && self.check.is_none() && !self.recalculates
            {
                self.leave_out(JournalDamage::Position { section, entry })?;
            } else if check.is_some_and(|check| {
                let tag = self.codec.get(image, entry, &mut data);
                !check(sector, &mut data, tag)
            }) {
                self.leave_out(JournalDamage::Tag { section, entry })?;
            } else if !is_behind {
                // The volume may have been longer.
                each(sector / layout.sectors_per_block(), entry)?;
            }
        }
        Ok(())
    }

    /// Counts what is damaged, if it is to be left out.
    fn leave_out(&self, damage: JournalDamage) -> Result<(), ReplayError> {
        self.core.mismatches.count();
        if self.salvages { Ok(()) } else { Err(ReplayError::Damaged(damage)) }
    }

    fn read_section(&self, section: u32) -> Result<Vec<u8>, Errno> {
        read_section(self.core, self.codec, section)
    }

    /// Finds the oldest section: it follows the last one that was written in the newest lap. `None`: the journal was
    /// never written, or a bitmap was in its place.
    pub(super) fn find_start(&self) -> Result<Option<Found>, ReplayError> {
        let sections = self.core.layout.journal.sections;
        let (mut last, mut foreign) = ([None; SEQUENCES as usize], Foreign::default());
        for section in 0..sections {
            let mut image = read_raw(self.core, section)?;
            let raw = image.clone();
            self.codec.open(section, &mut image);
            for (sector, sequence) in self.codec.sequences(section, &image).enumerate() {
                match sequence {
                    Some(sequence) => {
                        last[usize::from(sequence)] = Some(section);
                        foreign.has_entries |= self.codec.sectors_at(&image, sector).any(|sector| sector.is_some());
                    }
                    None => foreign.add(section, sector, &raw[sector * 512..(sector + 1) * 512]),
                }
            }
            let is_known = last.iter().any(Option::is_some);
            if let Some(damage) = foreign.damage(is_known, self.may_be_bitmap).filter(|_| !self.salvages) {
                return Err(ReplayError::Damaged(damage));
            }
            let read = u64::from(section) * self.core.layout.journal.section_sectors as u64;
            if !is_known && !self.salvages && read > MAX_DEFAULT_JOURNAL_SECTORS {
                // It takes no space yet, and would be written here.
                return Err(ReplayError::Damaged(JournalDamage::NeverWritten));
            }
        }
        let is_known = last.iter().any(Option::is_some);
        match foreign.damage(is_known, self.may_be_bitmap) {
            Some(damage) => self.leave_out(damage)?,
            None if foreign.first.is_some() => return Ok(None),
            None => {}
        }
        let is_used = |sequence: &u8| last[usize::from(*sequence)].is_some();
        let newest = if is_used(&(SEQUENCES - 1)) {
            (0..SEQUENCES).find(|sequence| !is_used(sequence)).map(previous_sequence)
        } else {
            (0..SEQUENCES).rev().find(is_used)
        };
        let Some((newest, last)) = newest.and_then(|newest| Some((newest, last[usize::from(newest)]?))) else {
            return self.leave_out(JournalDamage::Laps).map(|()| None);
        };
        Ok(Some(match last + 1 {
            start if start == sections => Found { start: 0, sequence: newest },
            start => Found { start, sequence: previous_sequence(newest) },
        }))
    }

    /// Writes the blocks of a section to their places. Returns whether it has any.
    fn replay_section(&self, section: u32, image: &[u8], entries: Entries) -> Result<bool, ReplayError> {
        let mut data = vec![0; self.core.layout.block_len()];
        self.for_each_entry(section, image, entries, |block, entry| {
            let tag = self.codec.get(image, entry, &mut data);
            Ok(self.core.write(block, &data, tag)?)
        })?;
        Ok(self.has_entries(image))
    }

    /// Writes sections without entries over the journal, in the order of normal use. After a power cut between them,
    /// what is left to replay is always the newest part.
    fn empty(&self, found: &Found) -> Result<(), Errno> {
        let (core, sections) = (self.core, self.core.layout.journal.sections);
        let first_lap = next_sequence(found.sequence);
        let laps = [(found.start..sections, first_lap), (0..found.start, next_sequence(first_lap))];
        for (range, sequence) in laps {
            for section in range {
                let mut image = self.codec.empty_section();
                self.codec.seal(section, sequence, &mut image);
                core.write_metadata(&image, core.layout.section_at(section))?;
            }
            core.sync(false)?;
        }
        Ok(())
    }
}

/// Sectors with none of the commit ids of their places.
struct Foreign {
    first: Option<(u32, usize)>,
    are_zeroes: bool,
    are_ones: bool,
    /// Whether other sectors have entries.
    has_entries: bool,
}

impl Default for Foreign {
    fn default() -> Self {
        Self { first: None, are_zeroes: true, are_ones: true, has_entries: false }
    }
}

impl Foreign {
    /// Adds a sector as it is stored.
    fn add(&mut self, section: u32, sector: usize, raw: &[u8]) {
        self.first.get_or_insert((section, sector));
        self.are_zeroes &= raw.iter().all(|byte| *byte == 0);
        self.are_ones &= raw.iter().all(|byte| *byte == 0xff);
    }

    /// Returns the damage, unless there are no such sectors, or the journal was never written, or a power cut has left
    /// a bitmap in its place: one with every bit set, which is made durable before its flag, or any before the journal
    /// is written.
    fn damage(&self, is_any_known: bool, may_be_bitmap: bool) -> Option<JournalDamage> {
        let (section, sector) = self.first?;
        let is_full_bitmap = self.are_ones && (section, sector) == (0, 0);
        let is_blank = !is_any_known && self.are_zeroes || !self.has_entries && (is_full_bitmap || may_be_bitmap);
        (!is_blank).then_some(JournalDamage::CommitId { section, sector })
    }
}

/// Reads and decrypts a section.
pub(super) fn read_section(core: &Core, codec: &JournalCodec, section: u32) -> Result<Vec<u8>, Errno> {
    let mut image = read_raw(core, section)?;
    codec.open(section, &mut image);
    Ok(image)
}

fn read_raw(core: &Core, section: u32) -> Result<Vec<u8>, Errno> {
    let mut image = vec![0; core.layout.journal.section_len()];
    read_all(core.stores.metadata(), &mut image, core.layout.section_at(section))?;
    Ok(image)
}
