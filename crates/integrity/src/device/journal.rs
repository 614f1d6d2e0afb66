//! The journal of an open device: entries of many requests in one section, one sync for all that wait, and the copies
//! to their places.

use super::core::Core;
use super::journal_writer::Orders;
use crate::digest::{Digest, section_digest};
use crate::journal_codec::{JournalCodec, blocks_mut, next_sequence};
use inlock_engine::{Buffer, Errno};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of memory for sections at most, unless two sections are longer.
const MAX_RESIDENT: usize = 16 << 20;
/// Sections that callers fill by themselves at most, in addition.
const OWN_SECTIONS: usize = 8;
/// Blocks that are copied to their places in one write at most, and parts of memory in one write.
const MAX_PARTS: usize = 256;
/// Bytes of sections that are written in one write at most, unless one section is longer.
const MAX_RUN: usize = 4 << 20;

/// Memory of a section. Its start, as that of each block of 4096 bytes in it, is aligned for direct I/O.
///
/// From [`JournalCodec::stamp`] until [`JournalCodec::restore`] each sector of data ends with its commit id. The bytes
/// that it displaces are in the entry, where [`JournalCodec::get`] finds them at any time. The writer shares the memory
/// while it writes it, and nobody changes it then.
type Image = Arc<Buffer>;

/// A section of the journal that the caller fills, so that long writes need no copy.
pub(crate) struct OwnSection {
    image: Image,
}

impl OwnSection {
    /// Returns the place of its blocks.
    pub(crate) fn blocks_mut(&mut self) -> &mut [u8] {
        blocks_mut(bytes_mut(&mut self.image))
    }
}

/// Returns the bytes of an image for changes.
fn bytes_mut(image: &mut Image) -> &mut [u8] {
    Arc::get_mut(image).expect("only the writer shares it, and nobody changes it then").data_mut()
}

pub(super) struct Journal {
    codec: JournalCodec,
    state: Mutex<State>,
    /// Held by the thread that writes sections or copies them to their places.
    writer: Mutex<Memory>,
    /// Largest number of sections in use.
    capacity: usize,
    /// Largest number of sections in use if commits are recorded: one less than there are, so that no commit overwrites
    /// the section that was recorded last.
    recorded_capacity: usize,
    recorder: OnceLock<Recorder>,
    pub(super) orders: Orders,
}

/// Records the newest section and its digest.
pub(super) type Recorder = Box<dyn Fn(u32, Digest) -> Result<(), Errno> + Send + Sync>;

struct State {
    /// Section that is being filled; it has no place yet.
    open: Image,
    open_id: SectionId,
    used: usize,
    /// Memory of further sections.
    spare: Vec<Image>,
    next_id: SectionId,
    /// Sections in use, in the order of the journal.
    sealed: VecDeque<Section>,
    /// Their memory.
    images: HashMap<SectionId, Image>,
    /// How many of them, at the end, are not durable.
    pending: usize,
    /// Number of the last commit of all sections that has begun.
    begun: u64,
    /// Newest entry of each block.
    index: HashMap<u64, (SectionId, usize)>,
    next: u32,
    sequence: u8,
}

/// Number of a section in memory. One that a caller has filled may be before an open one of a smaller number.
type SectionId = u64;

#[derive(Clone, Copy)]
struct Section {
    id: SectionId,
    number: u32,
    sequence: u8,
}

/// Memory of the writer, kept for the next one.
struct Memory {
    /// Sections to write or to copy.
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
    fn new(core: &Core, codec: &JournalCodec, sections: usize) -> Self {
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
pub(super) enum Part {
    /// Also the open one, which is padded with unused entries.
    All,
    /// Sections that are full, or were flushed.
    Sealed,
}

impl Journal {
    /// Starts a journal whose next section is `next`, written in lap `sequence`.
    pub(super) fn new(core: &Core, codec: JournalCodec, next: u32, sequence: u8) -> Self {
        let layout = &core.layout.journal;
        let resident = (MAX_RESIDENT / (layout.section_len() + Buffer::OVERHEAD)).max(2);
        let capacity = (layout.sections as usize).min(resident);
        // Pages of zeroes take no memory before they are used, unless memory is locked.
        let image = || Arc::new(Buffer::new(layout.section_len()));
        let mut open = image();
        codec.clear(bytes_mut(&mut open));
        let state = State {
            open,
            open_id: 0,
            used: 0,
            // One more than can be in use with the open one, so that one can always be opened.
            spare: (0..capacity + OWN_SECTIONS).map(|_| image()).collect(),
            next_id: 1,
            sealed: VecDeque::with_capacity(capacity + 1),
            images: HashMap::with_capacity(2 * (capacity + 1)),
            pending: 0,
            begun: 0,
            // With twice the room a table that had removals need not grow.
            index: HashMap::with_capacity(2 * layout.entries * (capacity + 1)),
            next,
            sequence,
        };
        Self {
            writer: Mutex::new(Memory::new(core, &codec, capacity + 1)),
            codec,
            state: Mutex::new(state),
            capacity,
            recorded_capacity: capacity.min(layout.sections as usize - 1),
            recorder: OnceLock::new(),
            orders: Orders::default(),
        }
    }

    /// Returns the section before the next one to write, if nothing was written yet.
    pub(super) fn newest_section(&self, core: &Core) -> u32 {
        let sections = core.layout.journal.sections;
        (self.state().next + sections - 1) % sections
    }

    /// Calls `recorder` after each commit. Fails if there is one already, or if the journal has a single section.
    pub(super) fn record(&self, recorder: Recorder) -> Result<(), Errno> {
        if self.recorded_capacity == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.recorder.set(recorder).map_err(|_| Errno::INVAL)
    }

    fn capacity(&self) -> usize {
        if self.recorder.get().is_some() { self.recorded_capacity } else { self.capacity }
    }

    /// Copies the newest data and tag of a block, if it is in the journal.
    pub(super) fn has_read(&self, block: u64, data: &mut [u8], tag: &mut [u8]) -> bool {
        let state = self.state();
        let Some(&(id, entry)) = state.index.get(&block) else { return false };
        let image = state.image(id);
        tag.copy_from_slice(self.codec.get(image, entry, data));
        true
    }

    /// Whether a block of the range is in the journal.
    pub(super) fn has_any(&self, mut blocks: std::ops::Range<u64>) -> bool {
        let state = self.state();
        if blocks.end.saturating_sub(blocks.start) > state.index.len() as u64 {
            return state.index.keys().any(|block| blocks.contains(block));
        }
        blocks.any(|block| state.index.contains_key(&block))
    }

    /// Puts blocks into the journal. They are durable after [`Journal::commit`].
    pub(super) fn write(&self, core: &Core, first: u64, data: &[u8], tags: &[u8]) -> Result<(), Errno> {
        let (block_len, tag_size) = (core.layout.block_len(), core.layout.journal.tag_size);
        for (n, (data, tag)) in data.chunks_exact(block_len).zip(tags.chunks_exact(tag_size)).enumerate() {
            let block = first + n as u64;
            let mut state = self.state();
            if state.used == core.layout.journal.entries {
                state = self.wait_for_room(core, state)?;
                // Others may have sealed it meanwhile.
                if state.used == core.layout.journal.entries {
                    self.seal(core, &mut state);
                }
            }
            let (id, entry) = (state.open_id, state.used);
            let open = bytes_mut(&mut state.open);
            self.codec.put(open, entry, block * core.layout.sectors_per_block(), data, tag);
            state.used += 1;
            state.index.insert(block, (id, entry));
        }
        self.checkpoint_if_half_full(core)
    }

    /// Returns a section for the caller to fill, if `len` bytes of blocks fill one and others have left one.
    pub(super) fn take_section(&self, core: &Core, len: usize) -> Option<OwnSection> {
        let layout = &core.layout.journal;
        if len < layout.entries * core.layout.block_len() {
            return None;
        }
        let mut state = self.state();
        // The last one is for the section that all share.
        if state.spare.len() > 1 { state.spare.pop().map(|image| OwnSection { image }) } else { None }
    }

    /// Puts a section into the journal whose blocks, from `first`, the caller has filled in.
    pub(super) fn add(&self, core: &Core, first: u64, mut section: OwnSection, tags: &[u8]) -> Result<(), Errno> {
        let layout = &core.layout.journal;
        let bytes = bytes_mut(&mut section.image);
        // Each entry is used, so that nothing of an earlier section is left.
        for (entry, tag) in tags.chunks_exact(layout.tag_size).enumerate() {
            self.codec.describe(bytes, entry, (first + entry as u64) * core.layout.sectors_per_block(), tag);
        }
        let blocks = first..first + layout.entries as u64;
        let mut state = self.wait_for_room(core, self.state())?;
        let open = state.open_id;
        let is_open = |block| state.index.get(&block).is_some_and(|(id, _)| *id == open);
        if state.used > 0 && blocks.clone().any(is_open) {
            // The open section will be behind this one in the journal, and would replace its blocks in a replay.
            drop(state);
            let result = self.write(core, first, section.blocks_mut(), tags);
            self.state().spare.push(section.image);
            return result;
        }
        let id = state.take_id();
        state.index.extend(blocks.zip(0..).map(|(block, entry)| (block, (id, entry))));
        self.append(core, &mut state, id, section.image);
        drop(state);
        self.checkpoint_if_half_full(core)
    }

    /// Waits until one more section can be in use.
    fn wait_for_room<'a>(
        &'a self,
        core: &Core,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        while state.sealed.len() >= self.capacity() {
            drop(state);
            self.make_room(core)?;
            state = self.state();
        }
        Ok(state)
    }

    /// Asks the thread to empty the journal if half of it is in use, or empties it without one.
    fn checkpoint_if_half_full(&self, core: &Core) -> Result<(), Errno> {
        if !self.is_half_full(&self.state()) {
            return Ok(());
        }
        self.orders.request();
        if self.orders.is_followed() { Ok(()) } else { self.follow_order(core) }
    }

    fn is_half_full(&self, state: &State) -> bool {
        state.sealed.len() * 2 > self.capacity()
    }

    /// Makes every write before this call durable. One thread writes and syncs for all that wait meanwhile.
    pub(super) fn commit(&self, core: &Core) -> Result<(), Errno> {
        let begun = self.state().begun;
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        core.check()?;
        // One that began later may have ended meanwhile.
        if writer.completed > begun { Ok(()) } else { self.commit_all(core, Part::All, &mut writer) }
    }

    /// Makes sections durable, copies them to their places, and frees them.
    pub(super) fn checkpoint(&self, core: &Core, part: Part) -> Result<(), Errno> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.checkpoint_with(core, part, &mut writer)
    }

    /// Empties the journal of its sealed sections, unless another thread has made room for one meanwhile.
    fn make_room(&self, core: &Core) -> Result<(), Errno> {
        self.checkpoint_if(core, |state| state.sealed.len() >= self.capacity())
    }

    /// Empties the journal of its sealed sections, unless another thread has done so meanwhile.
    pub(super) fn follow_order(&self, core: &Core) -> Result<(), Errno> {
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
        sections.clear();
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
        memory.sections.clear();
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

    /// Puts the open section into the journal, and opens another one.
    fn seal(&self, core: &Core, state: &mut State) {
        let mut empty = state.spare.pop().unwrap_or_else(|| Arc::new(Buffer::new(core.layout.journal.section_len())));
        self.codec.clear(bytes_mut(&mut empty));
        let image = std::mem::replace(&mut state.open, empty);
        self.append(core, state, state.open_id, image);
        state.open_id = state.take_id();
        state.used = 0;
    }

    /// Gives a section its place in the journal.
    fn append(&self, core: &Core, state: &mut State, id: SectionId, image: Image) {
        state.sealed.push_back(Section { id, number: state.next, sequence: state.sequence });
        state.images.insert(id, image);
        state.pending += 1;
        state.next += 1;
        if state.next == core.layout.journal.sections {
            (state.next, state.sequence) = (0, next_sequence(state.sequence));
        }
        core.metrics.set_sections_used(state.sealed.len());
        if self.is_half_full(state) {
            // The thread begins while others go on.
            self.orders.request();
        }
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
                let mut at = 0;
                for part in &parts {
                    gathered.data_mut()[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                parts.clear();
                parts.push(IoSlice::new(&gathered.data()[..at]));
            }
            tags.clear();
            run.iter().for_each(|run| tags.extend_from_slice(self.codec.tag(image_of(run.1), run.2 as usize)));
            let _locks = core.stripes.write(run[0].0, run.len() as u64);
            core.write_run(run[0].0, &mut parts, tags)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_id(&mut self) -> SectionId {
        self.next_id += 1;
        self.next_id - 1
    }

    fn image(&self, id: SectionId) -> &[u8] {
        let sealed = || self.images.get(&id).expect("the index has sections in use").data();
        if id == self.open_id { self.open.data() } else { sealed() }
    }

    fn image_mut(&mut self, id: SectionId) -> &mut Image {
        self.images.get_mut(&id).expect("each section in use has memory")
    }
}
