//! The on-disk format of dm-integrity, and a device over it.
//!
//! A volume stores a *tag* for each block of data. With an [internal hash](Tagger) the tag is computed here, and a
//! block that does not match its tag is not returned (`EILSEQ`). Without one the tags are the caller's, as those of an
//! AEAD. Tags lie between the data (*interleaved*) or on a *metadata device* of their own.
//!
//! [`format()`] makes a volume; [`Superblock`] and [`Layout`] describe one, and refuse sizes that are not possible
//! before anything is written. [`IntegrityDevice`] reads and writes it with a journal, with a bitmap or directly;
//! [`IntegrityStore`] is such a device as a store of the engine, with internal tags or over the plaintext of an
//! [AEAD](inlock_cipher::Aead). The format is that of Linux 6.12, for superblocks of versions 1 to 6.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod device;
mod digest;
mod error;
mod format;
mod freshness;
mod journal_cipher;
mod journal_codec;
mod layout;
mod load;
mod marks;
mod options;
mod resize;
mod scratch;
mod store;
mod stores;
mod superblock;
mod tags;
mod verify;

pub use device::{IntegrityDevice, JournalWriter, MetricsSnapshot, Mismatch, NewBlocks, ReadError};
pub use digest::{Digest, digest};
pub use error::{IntegrityError, InvalidField, JournalDamage};
pub use format::{FormatOptions, format};
pub use freshness::{
    Freshness, FreshnessKey, FreshnessRecord, RecordedState, StoredSection, empties_journal, stored_section, tag_root,
};
pub use journal_cipher::JournalCipher;
pub use layout::{JournalLayout, Layout};
pub use load::load;
pub use marks::Marks;
pub use options::{MAX_JOURNAL_SECTORS, Mode, OpenOptions};
pub use resize::resize;
pub use store::{Fill, Filled, IntegrityStore, Sealing};
pub use stores::{DeviceSizes, Stores};
pub use superblock::{Flags, SUPERBLOCK_LEN, Superblock};
pub use tags::{DISCARD_FILLER, MAX_TAG_LEN, SALT_LEN, TagAlgorithm, TagHash, Tagger};
