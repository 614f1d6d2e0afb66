//! The journal of an open device: entries of many requests in one section, one sync for all that wait, and the copies
//! to their places.

use super::core::Core;
use super::journal_writer::Orders;
use crate::digest::{Digest, section_digest};
use crate::journal_codec::{JournalCodec, next_sequence};
use crate::scratch::bytes_of;
use inlock_engine::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of sections that are kept in memory at most, unless two sections are longer.
const MAX_RESIDENT: usize = 16 << 20;
/// Blocks that are copied to their places in one write at most.
const MAX_COPY: usize = 256;
/// Bytes of sections that are written in one write at most, unless one section is longer.
const MAX_RUN: usize = 4 << 20;

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
    open: Arc<Vec<u8>>,
    /// Memory of further sections. With `open` and `sealed` there is one section more than can be in use.
    spare: Vec<Arc<Vec<u8>>>,
    used: usize,
    /// Number of the open section, counted from the open of the device.
    ordinal: u64,
    /// Sections in use, the last one before `ordinal`.
    sealed: VecDeque<Section>,
    /// Sections before this one are durable.
    committed: u64,
    /// Newest entry of each block.
    index: HashMap<u64, (u64, usize)>,
    next: u32,
    sequence: u8,
}

#[derive(Clone)]
struct Section {
    number: u32,
    sequence: u8,
    image: Arc<Vec<u8>>,
}

/// Memory of the writer, kept for the next one.
struct Memory {
    /// Sections to write or to copy.
    sections: Vec<Section>,
    /// Blocks to copy, each with its section and its entry there.
    newest: Vec<(u64, u32, u32)>,
    /// Sections of one write, or blocks of one copy with their tags.
    bytes: Vec<u8>,
    tags: Vec<u8>,
}

impl Memory {
    /// Reserves memory, so that nothing is allocated however large a write becomes; pages are used as needed.
    fn new(core: &Core, sections: usize) -> Self {
        let layout = &core.layout;
        let run = MAX_RUN.max(layout.journal.section_len()).min(sections * layout.journal.section_len());
        Self {
            sections: Vec::with_capacity(sections),
            newest: Vec::with_capacity(sections * layout.journal.entries),
            bytes: Vec::with_capacity(run.max(MAX_COPY * layout.block_len())),
            tags: Vec::with_capacity(MAX_COPY * layout.journal.tag_size),
        }
    }
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
        let resident = (MAX_RESIDENT / layout.section_len()).max(2);
        let capacity = (layout.sections as usize).min(resident);
        let state = State {
            open: Arc::new(codec.empty_section()),
            // Pages of zeroes take no memory before they are used.
            spare: (0..capacity).map(|_| Arc::new(vec![0; layout.section_len()])).collect(),
            used: 0,
            ordinal: 0,
            sealed: VecDeque::with_capacity(capacity + 1),
            committed: 0,
            // With twice the room a table that had removals need not grow.
            index: HashMap::with_capacity(2 * layout.entries * (capacity + 1)),
            next,
            sequence,
        };
        Self {
            codec,
            state: Mutex::new(state),
            writer: Mutex::new(Memory::new(core, capacity + 1)),
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
        let Some(&(ordinal, entry)) = state.index.get(&block) else { return false };
        let image = state.image(ordinal);
        tag.copy_from_slice(self.codec.get(image, entry, data));
        true
    }

    /// Whether a block of the range is in the journal.
    pub(super) fn has_any(&self, blocks: std::ops::Range<u64>) -> bool {
        let state = self.state();
        !state.index.is_empty() && blocks.clone().any(|block| state.index.contains_key(&block))
    }

    /// Puts blocks into the journal. They are durable after [`Journal::commit`].
    pub(super) fn write(&self, core: &Core, first: u64, data: &[u8], tags: &[u8]) -> Result<(), Errno> {
        let (block_len, tag_size) = (core.layout.block_len(), core.layout.journal.tag_size);
        for (n, (data, tag)) in data.chunks_exact(block_len).zip(tags.chunks_exact(tag_size)).enumerate() {
            let block = first + n as u64;
            let mut state = loop {
                let mut state = self.state();
                if state.used < core.layout.journal.entries {
                    break state;
                }
                if state.sealed.len() < self.capacity() {
                    self.seal(core, &mut state);
                    if self.is_half_full(&state) {
                        // The thread begins while this one goes on.
                        self.orders.request();
                    }
                    break state;
                }
                drop(state);
                self.make_room(core)?;
            };
            let (ordinal, entry) = (state.ordinal, state.used);
            // The open section is not shared: nothing is copied.
            let open = Arc::make_mut(&mut state.open);
            self.codec.put(open, entry, block * core.layout.sectors_per_block(), data, tag);
            state.used += 1;
            state.index.insert(block, (ordinal, entry));
        }
        if !self.is_half_full(&self.state()) {
            return Ok(());
        }
        self.orders.request();
        if self.orders.is_followed() { Ok(()) } else { self.checkpoint(core, Part::Sealed) }
    }

    fn is_half_full(&self, state: &State) -> bool {
        state.sealed.len() * 2 > self.capacity()
    }

    /// Makes every write before this call durable. One thread writes and syncs for all that wait meanwhile.
    pub(super) fn commit(&self, core: &Core) -> Result<(), Errno> {
        let state = self.state();
        let target = state.ordinal + u64::from(state.used > 0);
        drop(state);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        core.check()?;
        if self.state().committed >= target { Ok(()) } else { self.commit_all(core, Part::All, &mut writer) }
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
        let count = state.sealed.len().min((state.committed + state.sealed.len() as u64 - state.ordinal) as usize);
        drop(state);
        self.free(core, count, writer)
    }

    /// Writes sections that are not durable. The caller holds `writer`.
    fn commit_all(&self, core: &Core, part: Part, memory: &mut Memory) -> Result<(), Errno> {
        let mut state = self.state();
        if part == Part::All && state.used > 0 && state.sealed.len() < self.capacity() {
            self.seal(core, &mut state);
        }
        let pending = (state.ordinal - state.committed) as usize;
        let skip = state.sealed.len() - pending;
        memory.sections.clear();
        memory.sections.extend(state.sealed.iter().skip(skip).cloned());
        let (through, is_full) = (state.ordinal, part == Part::All && state.used > 0);
        drop(state);
        if !memory.sections.is_empty() {
            let Memory { sections, bytes, .. } = &mut *memory;
            self.write_sections(core, sections, bytes)?;
            core.metrics.count_commit();
            self.state().committed = through;
        }
        if is_full {
            // No section was free for the open one: free some, then write it.
            let count = self.state().sealed.len();
            self.free(core, count, memory)?;
            return self.commit_all(core, part, memory);
        }
        Ok(())
    }

    /// Writes and syncs sections, and records the last one.
    fn write_sections(&self, core: &Core, sections: &[Section], bytes: &mut Vec<u8>) -> Result<(), Errno> {
        let mut newest = None;
        let longest = (MAX_RUN / core.layout.journal.section_len()).max(1);
        // Sections that follow each other on the store are written at once.
        for run in sections.chunk_by(|a, b| a.number + 1 == b.number).flat_map(|run| run.chunks(longest)) {
            bytes.clear();
            for Section { number, sequence, image } in run {
                let start = bytes.len();
                bytes.extend_from_slice(image);
                if self.recorder.get().is_some() {
                    self.codec.mark(&mut bytes[start..])?;
                }
                self.codec.seal(*number, *sequence, &mut bytes[start..]);
                if self.recorder.get().is_some() {
                    newest = Some((*number, section_digest(&bytes[start..])));
                }
            }
            core.write_metadata(bytes, core.layout.section_at(run[0].number))?;
        }
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
        let state = self.state();
        memory.sections.clear();
        memory.sections.extend(state.sealed.iter().take(count).cloned());
        let count = memory.sections.len();
        let end = state.ordinal - state.sealed.len() as u64 + count as u64;
        drop(state);
        core.note(self.copy(core, memory))?;
        core.write_back()?;
        // A section that is still shared could not be used again without a copy.
        memory.sections.clear();
        let mut state = self.state();
        let State { sealed, spare, .. } = &mut *state;
        spare.extend(sealed.drain(..count).map(|section| section.image));
        state.index.retain(|_, (ordinal, _)| *ordinal >= end);
        core.metrics.set_sections_used(state.sealed.len());
        Ok(())
    }

    /// Gives the open section its place in the journal, and opens another one.
    fn seal(&self, core: &Core, state: &mut State) {
        let empty = match state.spare.pop() {
            Some(mut image) => {
                self.codec.clear(Arc::<Vec<u8>>::make_mut(&mut image));
                image
            }
            None => Arc::new(self.codec.empty_section()),
        };
        let image = std::mem::replace(&mut state.open, empty);
        state.sealed.push_back(Section { number: state.next, sequence: state.sequence, image });
        state.next += 1;
        if state.next == core.layout.journal.sections {
            (state.next, state.sequence) = (0, next_sequence(state.sequence));
        }
        state.ordinal += 1;
        state.used = 0;
        core.metrics.set_sections_used(state.sealed.len());
    }

    /// Writes the newest entry of each block of the sections in `memory` to its place.
    fn copy(&self, core: &Core, memory: &mut Memory) -> Result<(), Errno> {
        let layout = &core.layout;
        let Memory { sections, newest, bytes, tags } = memory;
        newest.clear();
        for (number, section) in (0..).zip(&*sections) {
            for entry in 0..layout.journal.entries {
                if let Some(sector) = self.codec.sector(&section.image, entry) {
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
        for run in newest.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(MAX_COPY)) {
            let data = bytes_of(bytes, run.len() * layout.block_len());
            tags.clear();
            for (to, (_, number, entry)) in data.chunks_exact_mut(layout.block_len()).zip(run) {
                let image = &sections[*number as usize].image;
                tags.extend_from_slice(self.codec.get(image, *entry as usize, to));
            }
            let _locks = core.stripes.write(run[0].0, run.len() as u64);
            core.write(run[0].0, data, tags)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn image(&self, ordinal: u64) -> &[u8] {
        if ordinal == self.ordinal {
            return &self.open;
        }
        let first = self.ordinal - self.sealed.len() as u64;
        &self.sealed[(ordinal - first) as usize].image
    }
}
