//! Which blocks are verified, and what their tags say. The only place that decides it.
//!
//! The superblock is signed only if it has a MAC, and the bitmap never is. With a key, neither may decide whether a
//! block is verified, or how strongly: [`check_superblock`] refuses what would, unless an option allows it by name.

use crate::error::{IntegrityError, check};
use crate::marks::Marks;
use crate::options::{Mode, OpenOptions};
use crate::superblock::{Flags, Superblock};
use crate::tags::{DISCARD_FILLER, TagHash, Tagger};

/// Verdict on a block and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The tag is that of the data.
    Verified,
    /// The tag is still to be computed from the data, or the mode checks none.
    Unverified,
    /// The block was discarded: its data are as good as any.
    Discarded,
    /// The block reads as zeroes: it was never written, or it was discarded and others could have changed it.
    Zeroes,
    /// The tag is that of other data.
    Mismatch,
}

/// Whether the tag of a block is still to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    No,
    /// As was asked for, of the present data.
    Everything,
    /// After a power cut, in a region of the bitmap: a mark is as good as it was.
    Region,
}

/// Verifies the blocks of a volume whose tags are computed here.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) tagger: Tagger,
    /// Marks among the tags, if these have a key.
    pub(crate) marks: Option<Marks>,
    mode: Mode,
    allow_discards: bool,
}

impl Verifier {
    /// Returns how blocks of `block_len` bytes are verified. `None`: the tags are the caller's.
    pub(crate) fn new(options: &OpenOptions, superblock: &Superblock, block_len: usize) -> Option<Self> {
        let hash = options.internal_hash.clone()?;
        let (salt, tag_size) = (superblock.hash_salt(), usize::from(superblock.tag_size));
        let marks = Marks::of_hash(hash.clone(), salt, tag_size, block_len).ok();
        let tagger = Tagger::new(hash, salt, tag_size);
        Some(Self { tagger, marks, mode: options.mode, allow_discards: options.allow_discards })
    }

    /// Judges a block at logical `sector` that was read from a store. `pending` is called if the tag does not match.
    pub(crate) fn judge(&self, sector: u64, data: &[u8], tag: &[u8], pending: impl FnOnce() -> Pending) -> Verdict {
        if self.mode == Mode::Recovery {
            return Verdict::Unverified;
        }
        if self.tagger.is_tag_of(sector, data, tag) {
            return Verdict::Verified;
        }
        if self.allow_discards && tag.iter().all(|byte| *byte == DISCARD_FILLER) {
            // The filler has no key: its author may have written the data, too.
            return if self.tagger.hash().algorithm().is_keyed() { Verdict::Zeroes } else { Verdict::Discarded };
        }
        if self.is_pending(sector, tag, pending()) {
            Verdict::Unverified
        } else if self.is_mark(sector, tag) {
            Verdict::Zeroes
        } else {
            Verdict::Mismatch
        }
    }

    /// Whether a recalculation is to replace `tag`.
    pub(crate) fn is_pending(&self, sector: u64, tag: &[u8], pending: Pending) -> bool {
        match pending {
            Pending::No => false,
            Pending::Everything => true,
            Pending::Region => !self.is_mark(sector, tag),
        }
    }

    /// Whether `tag` says that the block at logical `sector` was never written.
    fn is_mark(&self, sector: u64, tag: &[u8]) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.is_mark(sector, tag))
    }
}

/// Refuses a superblock that turns verification off or makes it weaker than the options say. [`Mode::Recovery`]
/// verifies nothing anyway.
pub(crate) fn check_superblock(options: &OpenOptions, superblock: &Superblock) -> Result<(), IntegrityError> {
    if options.mode == Mode::Recovery {
        return Ok(());
    }
    let flags = superblock.flags;
    let is_dirty = flags.has(Flags::DIRTY_BITMAP);
    let Some(hash) = options.internal_hash.as_deref() else {
        // Its journal would be left out, so that older blocks are read.
        let reason = "there is a bitmap, but tags of the caller cannot be computed again";
        return Ok(check(!is_dirty, "flags", flags.bits().into(), reason)?);
    };
    if !hash.algorithm().is_keyed() {
        return Ok(());
    }
    if options.tag_size.is_none() && usize::from(superblock.tag_size) < hash.len() {
        let reason = "the superblock has shorter tags than the hash, which are easier to forge; give their length";
        return Err(IntegrityError::option("tag-size", reason));
    }
    if options.legacy_recalculate {
        return Ok(());
    }
    if is_dirty {
        let reason = "it was not closed in bitmap mode, and tags with a key are not computed again from present \
                      data, which others could have changed, without this option";
        return Err(IntegrityError::option("integrity-legacy-recalculate", reason));
    }
    let recalculates = options.recalculate || superblock.is_recalculating();
    if recalculates && !is_signed(superblock, options.journal_mac.as_deref()) {
        let reason = "tags with a key are computed again only if the superblock has a MAC with a key";
        return Err(IntegrityError::option("integrity-recalculate", reason));
    }
    Ok(())
}

/// Whether only the owner of a key can have made the superblock, if its MAC matches.
fn is_signed(superblock: &Superblock, journal_mac: Option<&TagHash>) -> bool {
    superblock.flags.has(Flags::JOURNAL_MAC)
        && superblock.flags.has(Flags::FIXED_HMAC)
        && journal_mac.is_some_and(|mac| mac.algorithm().is_keyed())
}
