//! The journal of an open device: entries of many requests in one section, or sections that callers fill by themselves.

mod checkpoint;

pub(super) use checkpoint::Part;

use super::core::Core;
use super::journal_writer::Orders;
use crate::digest::Digest;
use crate::journal_codec::{JournalCodec, blocks_mut, next_sequence};
use checkpoint::Memory;
use inlock_engine::{Buffer, Errno};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of memory for sections at most, unless two sections are longer.
const MAX_RESIDENT: usize = 16 << 20;
/// Sections that callers fill by themselves at most, in addition.
const OWN_SECTIONS: usize = 8;

/// Memory of a section. Its start, as that of each block of 4096 bytes in it, is aligned for direct I/O.
///
/// From [`JournalCodec::stamp`] until [`JournalCodec::restore`] each sector of data ends with its commit id. The bytes
/// that it displaces are in the entry, where [`JournalCodec::get`] finds them at any time. The writer shares the memory
/// while it writes it, when no thread changes it.
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
    Arc::get_mut(image).expect("the writer alone shares it, and changes it before").data_mut()
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
            // Enough for those in use and those of callers, and one to open.
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

    /// Empties the journal if half of it is in use, and no thread does it.
    fn checkpoint_if_half_full(&self, core: &Core) -> Result<(), Errno> {
        // The thread was asked when the section was added that made it so.
        if !self.is_half_full(&self.state()) || self.orders.is_followed() { Ok(()) } else { self.follow_order(core) }
    }

    fn is_half_full(&self, state: &State) -> bool {
        state.sealed.len() * 2 > self.capacity()
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

#[cfg(test)]
mod tests {
    use super::super::IntegrityDevice;
    use super::OWN_SECTIONS;
    use crate::format::{FormatOptions, format};
    use crate::options::{Mode, OpenOptions};
    use crate::stores::Stores;
    use crate::tags::TagHash;
    use inlock_engine::store::memory::MemoryStore;
    use std::sync::Arc;

    /// Callers take all sections but one, which is there for those who write blocks: no memory is allocated for them.
    #[test]
    fn callers_leave_one_section_to_open() {
        let store = Arc::new(MemoryStore::new(vec![0; 192 << 10]));
        let options = FormatOptions {
            tag_size: Some(240),
            journal_sectors: Some(64),
            interleave_sectors: 64,
            ..FormatOptions::default()
        };
        format(&Stores::interleaved(store.clone()), &options).unwrap();
        let device = IntegrityDevice::open(Stores::interleaved(store), OpenOptions::new(Mode::Journal)).unwrap();
        let (journal, layout) = (device.journal.as_ref().unwrap(), device.layout().journal);
        let len = layout.entries * 512;
        assert!(device.take_section(len - 1).is_none());
        let taken: Vec<_> = std::iter::from_fn(|| device.take_section(len)).collect();
        assert_eq!(taken.len(), layout.sections as usize + OWN_SECTIONS - 1);
        assert_eq!(journal.state().spare.len(), 1);
    }

    /// All sections are sealed, the thread has not freed one yet, and there is one more entry: a flush must free
    /// sections before the journal takes it.
    #[test]
    fn flush_with_every_section_sealed_overwrites_none_of_them() {
        let hash = Arc::new(TagHash::new("crc32c".parse().unwrap(), &[]).unwrap());
        let options = FormatOptions {
            tag_size: Some(240),
            internal_hash: Some(Arc::clone(&hash)),
            journal_sectors: Some(64),
            interleave_sectors: 64,
            ..FormatOptions::default()
        };
        let store = Arc::new(MemoryStore::new(vec![0; 192 << 10]));
        format(&Stores::interleaved(store.clone()), &options).unwrap();
        let open = |bytes: Vec<u8>| {
            let options = OpenOptions { internal_hash: Some(Arc::clone(&hash)), ..OpenOptions::new(Mode::Journal) };
            IntegrityDevice::open(Stores::interleaved(Arc::new(MemoryStore::new(bytes))), options).unwrap()
        };
        let options = OpenOptions { internal_hash: Some(Arc::clone(&hash)), ..OpenOptions::new(Mode::Journal) };
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), options).unwrap();
        let layout = device.layout().journal;
        let journal = device.journal.as_ref().unwrap();
        // A thread that does not run.
        journal.orders.pretend_followed();
        let blocks = (layout.sections as usize * layout.entries + 1) as u64;
        for block in 0..blocks {
            device.write(block, &[block as u8 + 1; 512], &[]).unwrap();
        }
        assert_eq!(journal.state().sealed.len(), layout.sections as usize);
        assert_eq!(journal.state().used, 1);
        device.flush().unwrap();
        let after_power_cut = open(store.contents());
        for block in 0..blocks {
            let mut data = [0; 512];
            after_power_cut.read(block, &mut data, &mut []).unwrap();
            assert_eq!(data, [block as u8 + 1; 512], "block {block}");
        }
    }
}
