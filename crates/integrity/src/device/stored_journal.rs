//! The journal of a volume that is open read-only. Nothing is replayed: its blocks are read from the journal.

use super::core::Core;
use super::replay::{Entries, StoredSections, read_section};
use crate::error::ReplayError;
use crate::journal_codec::JournalCodec;
use inlock_engine::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The newest entry of each block in the journal. It takes some 40 bytes of memory for each of these blocks.
pub(super) struct StoredJournal {
    codec: JournalCodec,
    /// Section and entry of a block.
    entries: HashMap<u64, (u32, usize)>,
    /// The section that was read last.
    last: Mutex<Option<(u32, Arc<Vec<u8>>)>>,
}

impl StoredJournal {
    /// Returns section and entry of each block that a replay would copy to its place.
    pub(super) fn load(sections: &StoredSections<'_>) -> Result<HashMap<u64, (u32, usize)>, ReplayError> {
        let mut newest = HashMap::new();
        let Some(found) = sections.find_start()? else { return Ok(newest) };
        sections.for_each_section(&found, |section, image| {
            sections.for_each_entry(section, image, Entries::Checked, |block, entry| {
                newest.insert(block, (section, entry));
                Ok(())
            })
        })?;
        Ok(newest)
    }

    /// Returns the journal with these entries. `None`: there are none.
    pub(super) fn new(codec: JournalCodec, entries: HashMap<u64, (u32, usize)>) -> Option<Self> {
        (!entries.is_empty()).then(|| Self { codec, entries, last: Mutex::new(None) })
    }

    /// Reads data and tag of a block, if it is in the journal.
    pub(super) fn has_read(&self, core: &Core, block: u64, data: &mut [u8], tag: &mut [u8]) -> Result<bool, Errno> {
        let Some(&(section, entry)) = self.entries.get(&block) else { return Ok(false) };
        let image = self.section(core, section)?;
        tag.copy_from_slice(self.codec.get(&image, entry, data));
        Ok(true)
    }

    fn section(&self, core: &Core, number: u32) -> Result<Arc<Vec<u8>>, Errno> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, image)) = last.as_ref().filter(|(last, _)| *last == number) {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(read_section(core, &self.codec, number)?);
        *last = Some((number, Arc::clone(&image)));
        Ok(image)
    }
}
