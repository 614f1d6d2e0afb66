//! Writes of a journal: sections, and then their blocks to their places.

use super::super::core::Core;
use super::{Image, Journal, Section, State, bytes_mut};
use crate::digest::section_digest;
use crate::journal_codec::JournalCodec;
use inlock_engine::store::gather;
use inlock_engine::{Buffer, Errno};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::sync::{Arc, PoisonError};

/// Blocks that are copied to their places in one write at most, and parts of memory in one write.
const MAX_PARTS: usize = 256;
/// Bytes of sections that are written in one write at most, unless one section is longer.
const MAX_RUN: usize = 4 << 20;

/// Memory of the writer, kept for the next one.
pub(super) struct Memory {
    /// Sections to write or to copy. Empty before and after, unless the device has failed.
    sections: Vec<(Section, Image)>,
    /// Blocks to copy, each with its section and its entry there.
    newest: Vec<(u64, u32, u32)>,
    /// Encrypted sections of one write.
    encrypted: Buffer,
    /// Blocks of one copy, if they are shorter than pages: a drive may split what begins within one.
    gathered: Buffer,
    /// Tags of one copy.
    tags: Vec<u8>,
    /// Number of the last commit of all sections that has ended.
    completed: u64,
}

impl Memory {
    /// Reserves memory, so that nothing is allocated however large a write becomes; pages are used as needed.
    pub(super) fn new(core: &Core, codec: &JournalCodec, sections: usize) -> Self {
        let layout = &core.layout;
        let run = if codec.has_cipher() { sections_of_run(core).min(sections) } else { 0 };
        Self {
            sections: Vec::with_capacity(sections),
            newest: Vec::with_capacity(sections * layout.journal.entries),
            encrypted: Buffer::new(run * layout.journal.section_len()),
            gathered: Buffer::new(if is_page(layout.block_len()) { 0 } else { MAX_PARTS * layout.block_len() }),
            tags: Vec::with_capacity(MAX_PARTS * layout.journal.tag_size),
            completed: 0,
        }
    }
}

fn is_page(block_len: usize) -> bool {
    block_len.is_multiple_of(Buffer::ALIGNMENT)
}

/// Returns the number of sections that are written in one write at most.
fn sections_of_run(core: &Core) -> usize {
    (MAX_RUN / core.layout.journal.section_len()).clamp(1, MAX_PARTS)
}

/// Sections to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Part {
    /// Also the open one, which is padded with unused entries.
    All,
    /// Sections that are full, or were flushed.
    Sealed,
}

impl Journal {
    /// Makes every write before this call durable. One thread writes and syncs for all that wait meanwhile.
    pub(in crate::device) fn commit(&self, core: &Core) -> Result<(), Errno> {
        let begun = self.state().begun;
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        core.check()?;
        // One that began later may have ended meanwhile.
        if writer.completed > begun { Ok(()) } else { self.commit_all(core, Part::All, &mut writer) }
    }

    /// Makes sections durable, copies them to their places, and frees them.
    pub(in crate::device) fn checkpoint(&self, core: &Core, part: Part) -> Result<(), Errno> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.checkpoint_with(core, part, &mut writer)
    }

    /// Empties the journal of its sealed sections, unless another thread has made room for one meanwhile.
    pub(super) fn make_room(&self, core: &Core) -> Result<(), Errno> {
        self.checkpoint_if(core, |state| state.sealed.len() >= self.capacity())
    }

    /// Empties the journal of its sealed sections, unless another thread has done so meanwhile.
    pub(in crate::device) fn follow_order(&self, core: &Core) -> Result<(), Errno> {
        self.checkpoint_if(core, |state| self.is_half_full(state))
    }

    fn checkpoint_if(&self, core: &Core, is_due: impl FnOnce(&State) -> bool) -> Result<(), Errno> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = is_due(&self.state());
        if is_due { self.checkpoint_with(core, Part::Sealed, &mut writer) } else { core.check() }
    }

    fn checkpoint_with(&self, core: &Core, part: Part, writer: &mut Memory) -> Result<(), Errno> {
        core.check()?;
        self.commit_all(core, part, writer)?;
        let state = self.state();
        let count = state.sealed.len() - state.pending;
        drop(state);
        self.free(core, count, writer)
    }

    /// Writes sections that are not durable. The caller holds `writer`.
    fn commit_all(&self, core: &Core, part: Part, memory: &mut Memory) -> Result<(), Errno> {
        loop {
            let mut state = self.state();
            if part == Part::All {
                state.begun += 1;
                if state.used > 0 && state.sealed.len() < self.capacity() {
                    self.seal(core, &mut state);
                }
            }
            let (number, count, first) = (state.begun, state.pending, state.sealed.len() - state.pending);
            let is_full = part == Part::All && state.used > 0;
            drop(state);
            if count > 0 {
                self.write_sections(core, first, count, memory)?;
                core.metrics.count_commit();
                self.state().pending -= count;
            }
            if !is_full {
                if part == Part::All {
                    memory.completed = number;
                }
                return Ok(());
            }
            // No section was free for the open one: free some, then write it.
            let count = self.state().sealed.len();
            self.free(core, count, memory)?;
        }
    }

    /// Writes and syncs `count` sealed sections from the `first` one on, and records the last one. The caller holds
    /// `writer`.
    fn write_sections(&self, core: &Core, first: usize, count: usize, memory: &mut Memory) -> Result<(), Errno> {
        let Memory { sections, encrypted, .. } = memory;
        for at in first..first + count {
            // Others take the lock meanwhile; the writer alone removes sections.
            let mut state = self.state();
            let section = state.sealed[at];
            let image = state.image_mut(section.id);
            let bytes = bytes_mut(image);
            if self.recorder.get().is_some() {
                core.note(self.codec.mark(bytes))?;
            }
            self.codec.stamp(section.number, section.sequence, bytes);
            sections.push((section, Arc::clone(image)));
        }
        let section_len = core.layout.journal.section_len();
        let mut newest = None;
        // Sections that follow each other on the store are written at once.
        let runs = sections.chunk_by(|(a, _), (b, _)| a.number + 1 == b.number);
        let runs = runs.flat_map(|run| run.chunks(sections_of_run(core)));
        for run in runs {
            let mut parts: SmallVec<[IoSlice<'_>; MAX_PARTS]> = SmallVec::new();
            if self.codec.has_cipher() {
                let encrypted = &mut encrypted.data_mut()[..run.len() * section_len];
                for ((section, image), to) in run.iter().zip(encrypted.chunks_exact_mut(section_len)) {
                    to.copy_from_slice(image.data());
                    self.codec.encrypt(section.number, to);
                }
                parts.push(IoSlice::new(encrypted));
            } else {
                parts.extend(run.iter().map(|(_, image)| IoSlice::new(image.data())));
            }
            if let (true, Some((section, _)), Some(part)) = (self.recorder.get().is_some(), run.last(), parts.last()) {
                newest = Some((section.number, section_digest(&part[part.len() - section_len..])));
            }
            core.write_metadata_parts(&mut parts, core.layout.section_at(run[0].0.number))?;
        }
        sections.clear();
        core.sync(false)?;
        match (self.recorder.get(), newest) {
            // Before the flush is acknowledged: what was acknowledged cannot be taken back unnoticed.
            (Some(record), Some((number, digest))) => core.note(record(number, digest)),
            _ => Ok(()),
        }
    }

    /// Copies the first `count` sections, which are durable, to their places, and frees them. The caller holds
    /// `writer`.
    fn free(&self, core: &Core, count: usize, memory: &mut Memory) -> Result<(), Errno> {
        for at in 0..count {
            let mut state = self.state();
            let section = state.sealed[at];
            let image = state.image_mut(section.id);
            self.codec.restore(bytes_mut(image));
            memory.sections.push((section, Arc::clone(image)));
        }
        core.note(self.copy(core, memory))?;
        core.write_back()?;
        memory.sections.clear();
        for _ in 0..count {
            let mut state = self.state();
            let Some(section) = state.sealed.pop_front() else { break };
            let Some(image) = state.images.remove(&section.id) else { continue };
            for entry in 0..core.layout.journal.entries {
                let Some(sector) = self.codec.sector(image.data(), entry) else { continue };
                let block = sector / core.layout.sectors_per_block();
                if state.index.get(&block).is_some_and(|(id, _)| *id == section.id) {
                    state.index.remove(&block);
                }
            }
            state.spare.push(image);
        }
        core.metrics.set_sections_used(self.state().sealed.len());
        Ok(())
    }

    /// Writes the newest entry of each block of the sections in `memory` to its place.
    fn copy(&self, core: &Core, memory: &mut Memory) -> Result<(), Errno> {
        let layout = &core.layout;
        let Memory { sections, newest, gathered, tags, .. } = memory;
        newest.clear();
        for (number, (_, image)) in (0..).zip(&*sections) {
            for entry in 0..layout.journal.entries {
                if let Some(sector) = self.codec.sector(image.data(), entry) {
                    newest.push((sector / layout.sectors_per_block(), number, entry as u32));
                }
            }
        }
        newest.sort_unstable();
        newest.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        let image_of = |number: u32| sections[number as usize].1.data();
        let follows = |block: u64, next: u64| block + 1 == next && layout.data_position(block).1 > 1;
        for run in newest.chunk_by(|a, b| follows(a.0, b.0)).flat_map(|run| run.chunks(MAX_PARTS)) {
            // Entries of a section that follow each other are one part.
            let entries = run.chunk_by(|a, b| a.1 == b.1 && a.2 + 1 == b.2);
            let mut parts: SmallVec<[IoSlice<'_>; MAX_PARTS]> = entries
                .map(|run| IoSlice::new(self.codec.blocks(image_of(run[0].1), run[0].2 as usize, run.len())))
                .collect();
            if parts.len() > 1 && !is_page(layout.block_len()) {
                let len = gather(&parts, gathered.data_mut());
                parts.clear();
                parts.push(IoSlice::new(&gathered.data()[..len]));
            }
            tags.clear();
            run.iter().for_each(|run| tags.extend_from_slice(self.codec.tag(image_of(run.1), run.2 as usize)));
            let _locks = core.stripes.write(run[0].0, run.len() as u64);
            core.write_run(run[0].0, &mut parts, tags)?;
        }
        Ok(())
    }
}
