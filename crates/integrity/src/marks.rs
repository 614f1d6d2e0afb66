//! Marks of blocks that were never written: tags that only the owner of the key can make.
//!
//! A mark is the tag of a text that is shorter than any block, at the block's sector. It takes the place of the
//! block's tag until the first write, and the block then reads as zeroes. Nothing else in the format changes: for other
//! programs the block does not match its tag.

use crate::error::IntegrityError;
use crate::tags::{SALT_LEN, TagHash, Tagger};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Text whose tag is a mark.
const NEVER_WRITTEN: &[u8] = b"inlock: never written";

/// Makes and recognises the marks of a volume.
#[derive(Debug)]
pub struct Marks(Tagger);

impl Marks {
    /// Least bytes of tags that can be marks.
    pub const MIN_LEN: usize = 16;

    /// Returns the marks of a volume whose tags are computed with `hash`. `salt` is
    /// [`crate::Superblock::hash_salt`].
    ///
    /// # Errors
    ///
    /// Fails if the hash has no key, or a tag is shorter than [`Marks::MIN_LEN`]: anyone could make marks.
    pub fn of_hash(hash: Arc<TagHash>, salt: Option<[u8; SALT_LEN]>, tag_size: usize) -> Result<Self, IntegrityError> {
        let option = |reason| Err(IntegrityError::option("integrity-lazy", reason));
        if !hash.algorithm().is_keyed() {
            return option("the tags have no key, so anyone could mark a block as never written");
        }
        if tag_size.min(hash.len()) < Self::MIN_LEN {
            return option("the tags have less than 16 bytes, so a mark could be guessed");
        }
        Ok(Self(Tagger::new(hash, salt, tag_size)))
    }

    /// Returns the marks of a volume whose tags are an AEAD's tuples of `tag_size` bytes under a volume key.
    ///
    /// # Errors
    ///
    /// Fails as [`Marks::of_hash`], or without a key.
    pub fn of_volume_key(key: &[u8], tag_size: usize) -> Result<Self, IntegrityError> {
        let hash = TagHash::derive(key, b"inlock never-written blocks");
        let hash = hash.ok_or(IntegrityError::option("integrity-lazy", "there is no volume key"))?;
        Self::of_hash(Arc::new(hash), None, tag_size)
    }

    /// Returns the bytes of a mark, which are those of a tag.
    pub(crate) fn tag_size(&self) -> usize {
        self.0.tag_size()
    }

    /// Writes the mark of the block at logical `sector`.
    pub(crate) fn mark(&self, sector: u64, tag: &mut [u8]) {
        self.0.tag(sector, NEVER_WRITTEN, tag);
    }

    /// Whether `tag` says that the block at logical `sector` was never written.
    pub(crate) fn is_mark(&self, sector: u64, tag: &[u8]) -> bool {
        let mut expected = [0; crate::tags::MAX_TAG_LEN];
        let expected = &mut expected[..self.tag_size()];
        self.mark(sector, expected);
        expected.ct_eq(tag).into()
    }
}
