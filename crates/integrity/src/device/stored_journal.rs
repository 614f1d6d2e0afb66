//! The journal of a volume that is open read-only. Nothing is replayed: its blocks are read from the journal.

use super::core::Core;
use super::replay::{find_start, for_each_entry, for_each_section, read_section};
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
    /// Reads the sections that a replay would copy to their places. `None`: there are none.
    pub(super) fn load(core: &Core, codec: JournalCodec) -> Result<Option<Self>, Errno> {
        let Some(found) = find_start(core, &codec)? else { return Ok(None) };
        let mut entries = HashMap::new();
        for_each_section(core, &codec, &found, |section, image| {
            for_each_entry(core, &codec, section, image, |block, entry| {
                entries.insert(block, (section, entry));
                Ok(())
            })
        })?;
        Ok((!entries.is_empty()).then(|| Self { codec, entries, last: Mutex::new(None) }))
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
