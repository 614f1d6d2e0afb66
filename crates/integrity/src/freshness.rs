//! A record of a volume's newest state, to be kept outside the image: a copy that is older does not match it.
//!
//! Each commit of the journal changes its newest section, so the digest of that section recognizes the last durable
//! state. [`tag_root`] recognizes the tags of all blocks of a volume that was closed, and so their data.

use crate::device::{Core, StoredSections};
use crate::digest::{Digest, section_digest};
use crate::error::{IntegrityError, ReplayError};
use crate::journal_codec::JournalCodec;
use crate::layout::Layout;
use crate::load::load;
use crate::options::{Mode, OpenOptions};
use crate::stores::Stores;
use crate::superblock::{Superblock, array};
use crate::tags::TagHash;
use inlock_engine::store::read_all;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Bytes in a leaf of the tree of [`tag_root`].
const LEAF: usize = 4096;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// A section of the journal as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredSection {
    /// Number of the section.
    pub number: u32,
    /// Digest of its first sector.
    pub digest: Digest,
    /// Whether it has no entry.
    pub is_empty: bool,
}

/// Reads a section of the journal without replaying it. `None`: the journal is shorter. Writes nothing.
///
/// # Errors
///
/// As [`load`], or if a store fails.
pub fn stored_section(
    stores: &Stores,
    options: &OpenOptions,
    number: u32,
) -> Result<Option<StoredSection>, IntegrityError> {
    let (codec, layout, _) = codec(stores, options)?;
    if number >= layout.journal.sections {
        return Ok(None);
    }
    let mut image = vec![0; layout.journal.section_len()];
    read_all(stores.metadata(), &mut image, layout.section_at(number))
        .map_err(IntegrityError::io("read the journal"))?;
    let digest = section_digest(&image);
    codec.open(number, &mut image);
    // Entries are filled in their order.
    let is_empty = codec.sector(&image, 0).is_none();
    Ok(Some(StoredSection { number, digest, is_empty }))
}

/// Returns the root of a hash tree over the journal and the tags of all blocks, as they are stored in their places.
/// Reads both. The journal is part of it because the next open replays what is in it, also after a close.
///
/// # Errors
///
/// As [`load`], or if a store fails.
pub fn tag_root(stores: &Stores, options: &OpenOptions) -> Result<Digest, IntegrityError> {
    let (_, layout) = load(stores, options)?;
    root_of(stores, &layout)
}

/// Whether opening the volume will replace sections of its journal by empty ones. Reads the journal; writes nothing.
///
/// # Errors
///
/// As [`load`], or if a store fails.
pub fn empties_journal(stores: &Stores, options: &OpenOptions) -> Result<bool, IntegrityError> {
    let (codec, layout, superblock) = codec(stores, options)?;
    let core = Core::new(stores.clone(), layout);
    let sections = StoredSections::new(&core, &codec, &superblock).salvaging(options.salvage_journal);
    sections.will_be_emptied(options.mode == Mode::Journal).map_err(ReplayError::during("read the journal"))
}

/// Returns the codec of a volume's journal.
fn codec(stores: &Stores, options: &OpenOptions) -> Result<(JournalCodec, Layout, Superblock), IntegrityError> {
    let (superblock, layout) = load(stores, options)?;
    let (cipher, mac) = (options.journal_cipher.clone(), options.journal_mac.clone());
    Ok((JournalCodec::new(layout.journal, cipher, mac, superblock.hash_salt()), layout, superblock))
}

fn root_of(stores: &Stores, layout: &Layout) -> Result<Digest, IntegrityError> {
    let mut tree = Tree::default();
    let mut buffer = vec![0; CHUNK];
    let mut add = |mut at: u64, end: u64, action| -> Result<(), IntegrityError> {
        while at < end {
            let len = (end - at).min(CHUNK as u64) as usize;
            read_all(stores.metadata(), &mut buffer[..len], at).map_err(IntegrityError::io(action))?;
            buffer[..len].chunks(LEAF).for_each(|leaf| tree.add(leaf));
            at += len as u64;
        }
        Ok(())
    };
    add(layout.journal_at(), layout.journal_at() + layout.journal.sectors() * 512, "read the journal")?;
    let mut block = 0;
    while block < layout.blocks() {
        let (at, run) = layout.tag_position(block);
        let run = run.min(layout.blocks() - block);
        add(at, at + run * layout.journal.tag_size as u64, "read the tags")?;
        block += run;
    }
    Ok(tree.root())
}

/// A hash tree that is built from left to right. Only the roots of its complete subtrees are kept.
#[derive(Default)]
struct Tree {
    /// Height and root of subtrees, the highest first.
    subtrees: Vec<(u32, Digest)>,
    leaves: u64,
}

impl Tree {
    fn add(&mut self, leaf: &[u8]) {
        let mut subtree = (0, hash(0, &[leaf]));
        while let Some((height, left)) = self.subtrees.pop_if(|(height, _)| *height == subtree.0) {
            subtree = (height + 1, hash(1, &[&left, &subtree.1]));
        }
        self.subtrees.push(subtree);
        self.leaves += 1;
    }

    fn root(self) -> Digest {
        let joined =
            self.subtrees.into_iter().rev().map(|(_, root)| root).reduce(|right, left| hash(1, &[&left, &right]));
        hash(2, &[&self.leaves.to_le_bytes(), &joined.unwrap_or_default()])
    }
}

/// Hashes a leaf, a node or a root; `kind` keeps them apart.
fn hash(kind: u8, parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new_with_prefix([kind]);
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// Key of records, derived from the volume key.
pub struct FreshnessKey(TagHash);

impl FreshnessKey {
    /// Derives the key.
    ///
    /// # Errors
    ///
    /// Fails if there is no volume key.
    pub fn derive(volume_key: &[u8]) -> Result<Self, IntegrityError> {
        let mac = TagHash::derive(volume_key, b"inlock freshness record");
        Ok(Self(mac.ok_or(IntegrityError::option("freshness", "there is no volume key"))?))
    }

    fn mac(&self, bytes: &[u8]) -> Digest {
        let mut mac = [0; 32];
        mac.copy_from_slice(&self.0.digest(&[bytes])[..32]);
        mac
    }
}

/// State of a volume when its record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedState {
    /// It was closed; nothing was written since.
    Closed,
    /// It is open for writing.
    Open,
    /// It is being opened: its journal may be replayed, and emptied.
    Opening,
}

/// The newest known state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshnessRecord {
    /// Number of the record; the highest one is valid.
    pub number: u64,
    /// State of the volume.
    pub state: RecordedState,
    /// Identifies the volume.
    pub volume: Digest,
    /// Digest of its header.
    pub header: Digest,
    /// The newest section of the journal, and its digest. `None`: the volume was used without the journal.
    pub section: Option<(u32, Digest)>,
    /// The [`tag_root`] of a closed volume, or of one when it was last closed.
    pub tags: Option<Digest>,
}

const MAGIC: &[u8; 8] = b"INLKFRSH";
const VERSION: u8 = 1;
const MAC_AT: usize = 152;

impl FreshnessRecord {
    /// Bytes of an encoded record.
    pub const LEN: usize = MAC_AT + 32;

    /// Encodes the record with a MAC.
    pub fn encode(&self, key: &FreshnessKey) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let state = match self.state {
            RecordedState::Closed => 0,
            RecordedState::Open => 1,
            RecordedState::Opening => 2,
        };
        put(0, MAGIC);
        put(8, &[VERSION, state, u8::from(self.section.is_some()), u8::from(self.tags.is_some())]);
        put(16, &self.number.to_le_bytes());
        put(24, &self.volume);
        put(56, &self.header);
        let (section, digest) = self.section.unwrap_or_default();
        put(12, &section.to_le_bytes());
        put(88, &digest);
        put(120, &self.tags.unwrap_or_default());
        let mac = key.mac(&bytes[..MAC_AT]);
        bytes[MAC_AT..].copy_from_slice(&mac);
        bytes
    }

    /// Whether `bytes` start as a record does, of any volume.
    pub fn is_present(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Decodes a record. `None`: it is damaged, or was made with another key.
    pub fn decode(bytes: &[u8; Self::LEN], key: &FreshnessKey) -> Option<Self> {
        let is_whole: bool = key.mac(&bytes[..MAC_AT]).ct_eq(&bytes[MAC_AT..]).into();
        if !is_whole || !Self::is_present(bytes) || bytes[8] != VERSION {
            return None;
        }
        let state = match bytes[9] {
            0 => RecordedState::Closed,
            1 => RecordedState::Open,
            2 => RecordedState::Opening,
            _ => return None,
        };
        let section = u32::from_le_bytes(array(bytes, 12));
        Some(Self {
            number: u64::from_le_bytes(array(bytes, 16)),
            state,
            volume: array(bytes, 24),
            header: array(bytes, 56),
            section: (bytes[10] == 1).then(|| (section, array(bytes, 88))),
            tags: (bytes[11] == 1).then(|| array(bytes, 120)),
        })
    }

    /// Compares the volume on `stores` with the record. Writes nothing; to be called before the volume is opened, which
    /// replays its journal. `header` is the digest of its present header.
    ///
    /// # Errors
    ///
    /// As [`load`], or if a store fails.
    pub fn compare(
        &self,
        stores: &Stores,
        options: &OpenOptions,
        header: &Digest,
    ) -> Result<Freshness, IntegrityError> {
        if self.header != *header {
            return Ok(Freshness::OtherHeader);
        }
        let is_closed = self.state == RecordedState::Closed;
        if let Some((number, digest)) = self.section {
            let stored = stored_section(stores, options, number)?;
            // While the journal is emptied, sections without entries replace those that were replayed.
            let is_emptied = |stored: StoredSection| self.state == RecordedState::Opening && stored.is_empty;
            if !stored.is_some_and(|stored| stored.digest == digest || is_emptied(stored)) {
                return Ok(Freshness::Older);
            }
            // A section before it that is no longer whole would end the replay, and take back what was acknowledged.
            if self.state == RecordedState::Open {
                let (codec, layout, superblock) = codec(stores, options)?;
                let core = Core::new(stores.clone(), layout);
                match StoredSections::new(&core, &codec, &superblock).will_replay(number) {
                    Ok(true) => {}
                    Ok(false) | Err(ReplayError::Damaged(_)) => return Ok(Freshness::Older),
                    Err(error) => return Err(ReplayError::during("read the journal")(error)),
                }
            }
        }
        match (self.tags, self.section) {
            (Some(root), _) if is_closed && tag_root(stores, options)? != root => Ok(Freshness::Older),
            (Some(_), _) if is_closed => Ok(Freshness::Newest),
            (_, None) => Ok(Freshness::Unknown),
            (Some(_), _) => Ok(Freshness::NewestWithoutTags),
            (None, _) => Ok(Freshness::Newest),
        }
    }
}

/// Result of [`FreshnessRecord::compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Everything that was recorded is there.
    Newest,
    /// The newest section of the journal is there. The tags are not compared, since the volume was not closed.
    NewestWithoutTags,
    /// The header is another one.
    OtherHeader,
    /// The volume is older, or another program has written to it.
    Older,
    /// The volume was used without the journal and not closed, so nothing tells its last state.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root of the tree by its definition: the left subtree is the largest complete one that is not the whole.
    fn naive(leaves: &[Vec<u8>]) -> Digest {
        fn node(leaves: &[Vec<u8>]) -> Digest {
            match leaves {
                [] => Digest::default(),
                [leaf] => hash(0, &[leaf]),
                _ => {
                    let left = leaves.len().next_power_of_two() / 2;
                    hash(1, &[&node(&leaves[..left]), &node(&leaves[left..])])
                }
            }
        }
        hash(2, &[&(leaves.len() as u64).to_le_bytes(), &node(leaves)])
    }

    #[test]
    fn root_is_that_of_the_whole_tree() {
        for count in 0..70u8 {
            let leaves: Vec<Vec<u8>> = (0..count).map(|n| vec![n; 1 + usize::from(n) % 5]).collect();
            let mut tree = Tree::default();
            leaves.iter().for_each(|leaf| tree.add(leaf));
            assert_eq!(tree.root(), naive(&leaves), "{count}");
        }
    }

    #[test]
    fn record_is_read_back_and_no_changed_byte_is_accepted() {
        let key = FreshnessKey::derive(&[7; 32]).unwrap();
        let record = FreshnessRecord {
            number: u64::MAX - 3,
            state: RecordedState::Opening,
            volume: [1; 32],
            header: [2; 32],
            section: Some((77, [3; 32])),
            tags: Some([4; 32]),
        };
        for record in [record, FreshnessRecord { section: None, tags: None, state: RecordedState::Open, ..record }] {
            let bytes = record.encode(&key);
            assert_eq!(FreshnessRecord::decode(&bytes, &key), Some(record));
            assert_eq!(FreshnessRecord::decode(&bytes, &FreshnessKey::derive(&[8; 32]).unwrap()), None);
            for at in 0..bytes.len() {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(FreshnessRecord::decode(&changed, &key), None, "byte {at}");
            }
        }
        assert!(FreshnessKey::derive(&[]).is_err());
    }
}
