//! Re-encryption of a LUKS2 volume: the state that the header keeps of it.
//!
//! While a volume is re-encrypted its header has a mandatory requirement, a keyslot of type `reencrypt`, and backup
//! segments that describe the volume before and after. The segments in use tell the progress. Each state is legal for
//! cryptsetup, so that either program can go on. Nothing here reads or writes data.

mod digest;
mod edit;
mod pieces;
mod segments;
mod unlock;

pub use super::reencryption_keyslot::{Direction, Protection, ReencryptionKeyslot, ReencryptionMode, Resilience};
pub use edit::{NewSide, ReencryptedKeyslot, ReencryptionStart};
pub use pieces::{Piece, PieceState, Pieces};
pub use unlock::ReencryptionKeys;

use super::Luks2;
use super::metadata::{KeyslotKind, Metadata, Segment as StoredSegment, SegmentKind};
use super::segment;
use crate::error::UnlockError;
use crate::printable::Excerpt;
use inlock_cipher::{CipherSpec, DataUnitSize, SECTOR_SIZE, Sector, Segment};
use pieces::Order;
use std::ops::Range;

/// The requirement of version 1. Those of later versions have the version behind a hyphen.
const REQUIREMENT: &str = "online-reencrypt";

/// Flags of backup segments.
const PREVIOUS: &str = "backup-previous";
const FINAL: &str = "backup-final";
const MOVED: &str = "backup-moved-segment";
/// A re-encryption that has begun.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reencryption {
    /// Number of its keyslot.
    pub number: u32,
    /// Its fields.
    pub keyslot: ReencryptionKeyslot,
    /// The area of the keyslot, in bytes.
    pub area: Range<u64>,
    /// The volume before.
    pub old: Side,
    /// The volume after.
    pub new: Side,
    /// Place of the first bytes of the old data, if they were moved out of the way.
    pub moved: Option<Range<u64>>,
    /// The progress.
    pub pieces: Pieces,
    recorded: Recorded,
}

/// The volume before or after a re-encryption: one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// Its start on the data device, in bytes.
    pub offset: u64,
    /// Its length in bytes; `None`: to the end of the device.
    pub size: Option<u64>,
    /// IV number of its first sector.
    pub iv_tweak: u64,
    /// The cipher; `None`: plaintext.
    pub cipher: Option<CipherSpec>,
    /// Size of a data unit.
    pub unit: DataUnitSize,
    /// Number of the digest of its key.
    pub digest: Option<u32>,
}

/// A segment of the metadata.
#[derive(Clone, Debug)]
struct Stored {
    number: u32,
    segment: StoredSegment,
}

/// The backup segments as the header has them.
#[derive(Clone, Debug)]
struct Recorded {
    previous: Stored,
    last: Stored,
    moved: Option<Stored>,
}

fn refused<T>(reason: &'static str) -> Result<T, UnlockError> {
    Err(UnlockError::Reencryption { reason })
}

impl Side {
    fn new(stored: &Stored, digest: Option<u32>) -> Result<Self, UnlockError> {
        let Stored { number, segment } = stored;
        if matches!(&segment.kind, SegmentKind::Crypt(crypt) if crypt.integrity.is_some()) {
            return refused("a volume with integrity protection cannot be re-encrypted");
        }
        let mapped = segment::mapped(*number, segment)?;
        if mapped.cipher.is_some() != digest.is_some() {
            return refused("a segment and its digest do not go together");
        }
        let (offset, size, iv_tweak) = (segment.offset, segment.size, mapped.iv_offset.0);
        Ok(Self { offset, size, iv_tweak, cipher: mapped.cipher, unit: mapped.unit, digest })
    }

    /// Returns the engine's segment of the bytes from `start` of the volume on, which are at `offset` on the device.
    fn segment(&self, start: u64, end: Option<u64>, offset: u64) -> Segment {
        let sectors = |bytes: u64| bytes / SECTOR_SIZE;
        let mut segment = Segment::whole(self.cipher, self.unit);
        segment.start = Sector(sectors(start));
        segment.sectors = end.map(|end| sectors(end - start));
        segment.data_offset = Sector(sectors(offset));
        segment.iv_offset = Sector(self.iv_number(start));
        segment
    }

    /// Returns the IV number of the sector at a byte of the volume.
    pub fn iv_number(&self, at: u64) -> u64 {
        self.iv_tweak.wrapping_add(at / SECTOR_SIZE)
    }
}

impl Reencryption {
    /// Returns the whole volume, of `len` bytes, as it was, and as it will be.
    pub fn sides(&self, len: u64) -> [Segment; 2] {
        [self.old.segment(0, Some(len), self.old.offset), self.new.segment(0, Some(len), self.new.offset)]
    }

    /// Returns the place on the data device of a byte of the old data.
    pub fn old_place(&self, at: u64) -> u64 {
        match &self.moved {
            Some(moved) if at < moved.end - moved.start => moved.start + at,
            _ => self.old.offset.saturating_add(at),
        }
    }

    /// Returns the place on the data device of a byte of the new data.
    pub fn new_place(&self, at: u64) -> u64 {
        self.new.offset.saturating_add(at)
    }

    /// Returns the number of bytes that the moved segment has.
    pub fn moved_len(&self) -> Option<u64> {
        self.moved.as_ref().map(|moved| moved.end - moved.start)
    }

    /// Returns the length of the volume on a data device of `device_len` bytes.
    pub fn len(&self, device_len: u64) -> u64 {
        let end = self.pieces.as_slice().last().and_then(|piece| piece.end).filter(|_| self.pieces.hot().is_none());
        let rest = device_len.saturating_sub(self.old.offset.max(self.new.offset));
        end.or(self.old.size).unwrap_or(rest)
    }

    /// Returns the next zone of at most `limit` bytes, of a volume of `len` bytes. `None`: all data are new.
    pub fn next_zone(&self, limit: u64, len: u64) -> Option<Range<u64>> {
        self.pieces.next_zone(self.order(), limit, len)
    }

    fn order(&self) -> Order {
        Order { direction: self.keyslot.direction, moved: self.moved_len() }
    }
}

impl Luks2 {
    /// Whether the header says that the volume is re-encrypted.
    pub fn is_in_reencryption(&self) -> bool {
        self.metadata.config.requirements.iter().any(|name| name.starts_with("online-reencrypt"))
    }

    /// Returns the state of a re-encryption, `None` if none has begun. The keys have not confirmed it yet
    /// ([`Luks2::unlock_reencryption`]).
    ///
    /// # Errors
    ///
    /// Fails if the header has another requirement, or a state that no re-encryption has.
    pub fn reencryption(&self) -> Result<Option<Reencryption>, UnlockError> {
        let Metadata { config, keyslots, segments, .. } = &self.metadata;
        if !config.requirements.is_empty() {
            return Reencryption::of(&self.metadata).map(Some);
        }
        let is_left = keyslots.values().any(|slot| matches!(slot.kind, KeyslotKind::Reencryption(_)));
        if is_left || segments.values().any(StoredSegment::is_backup) {
            return refused("the header has parts of it, but not its requirement");
        }
        Ok(None)
    }
}

impl Luks2 {
    /// Whether the header has a re-encryption that no digest confirms, as cryptsetup before 2.4.3 begins them
    /// ([`Luks2::add_reencryption_digest`]).
    pub fn has_unconfirmed_reencryption(&self) -> bool {
        let is_reencryption = matches!(&self.metadata.config.requirements[..], [one] if version(one).is_some());
        is_reencryption && keyslot_of(&self.metadata).is_ok_and(|(number, ..)| self.digest_of(number).is_none())
    }
}

impl Reencryption {
    /// Reads the state from metadata with a requirement.
    fn of(metadata: &Metadata) -> Result<Self, UnlockError> {
        Self::begun(metadata)?.with_progress(metadata)
    }

    fn with_progress(self, metadata: &Metadata) -> Result<Self, UnlockError> {
        let pieces = segments::pieces(metadata, &self)?;
        if !pieces.is_in_order(self.order()) {
            return refused("its segments do not follow each other as zones do");
        }
        Ok(Self { pieces, ..self })
    }

    /// Reads everything but the progress.
    fn begun(metadata: &Metadata) -> Result<Self, UnlockError> {
        let requirements = &metadata.config.requirements;
        if let Some(other) = requirements.iter().find(|name| version(name).is_none()).or(requirements.get(1)) {
            return Err(UnlockError::Requirement(Excerpt::new(other)));
        }
        if requirements.iter().any(|name| version(name) == Some(1)) {
            return refused("it has version 1 and no digest; `repair` adds one");
        }
        let begun = Self::described(metadata)?;
        if requirements != &[requirement(&begun.keyslot)] {
            return refused("the requirement is not that of the keyslot");
        }
        Ok(begun)
    }

    /// Reads everything but the requirement and the progress.
    fn described(metadata: &Metadata) -> Result<Self, UnlockError> {
        let (number, keyslot, area) = keyslot_of(metadata)?;
        let recorded = Recorded::of(metadata)?;
        let side = |stored: &Stored| Side::new(stored, digest_of(metadata, stored.number)?);
        let (old, new) = (side(&recorded.previous)?, side(&recorded.last)?);
        check_sides(&keyslot, &old, &new)?;
        let moved = recorded.moved.as_ref().map(side).transpose()?;
        let moved = check_moved(moved, &keyslot, &old)?;
        let pieces = Pieces::whole(PieceState::Old, old.size);
        Ok(Self { number, keyslot, area, old, new, moved, pieces, recorded })
    }
}

/// Returns the version of a requirement of a re-encryption.
fn version(name: &str) -> Option<u32> {
    match name.strip_prefix(REQUIREMENT)? {
        "" => Some(1),
        "-v2" => Some(2),
        "-v3" => Some(3),
        _ => None,
    }
}

/// Returns the name of the requirement of a re-encryption.
fn requirement(keyslot: &ReencryptionKeyslot) -> String {
    format!("{REQUIREMENT}-{}", keyslot.version())
}

fn keyslot_of(metadata: &Metadata) -> Result<(u32, ReencryptionKeyslot, Range<u64>), UnlockError> {
    let mut found = metadata.keyslots.iter().filter_map(|(number, slot)| match &slot.kind {
        KeyslotKind::Reencryption(keyslot) => {
            Some((*number, keyslot.clone(), slot.area_offset..slot.area_offset + slot.area_len))
        }
        _ => None,
    });
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => refused("it has no keyslot"),
        (Some(_), Some(_)) => refused("it has two keyslots"),
    }
}

/// Returns the segment with a flag.
fn with_flag(metadata: &Metadata, flag: &str) -> Result<Option<Stored>, UnlockError> {
    let mut found = metadata.segments.iter().filter(|(_, segment)| segment.has_flag(flag));
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => refused("two segments have the same flag"),
        (one, _) => Ok(one.map(|(&number, segment)| Stored { number, segment: segment.clone() })),
    }
}

/// Returns the only digest of a segment.
fn digest_of(metadata: &Metadata, segment: u32) -> Result<Option<u32>, UnlockError> {
    match digests_of(metadata, segment)[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => refused("a backup segment is bound to two digests"),
    }
}

/// Returns the digests of a segment.
fn digests_of(metadata: &Metadata, segment: u32) -> Vec<u32> {
    let bound = metadata.digests.iter().filter(|(_, digest)| digest.segments.contains(&segment));
    bound.map(|(&number, _)| number).collect()
}

fn check_sides(keyslot: &ReencryptionKeyslot, old: &Side, new: &Side) -> Result<(), UnlockError> {
    let is_right = match keyslot.mode {
        ReencryptionMode::Reencrypt => old.cipher.is_some() && new.cipher.is_some(),
        ReencryptionMode::Encrypt => old.cipher.is_none() && new.cipher.is_some(),
        ReencryptionMode::Decrypt => old.cipher.is_some() && new.cipher.is_none(),
    };
    if !is_right {
        return refused("its segments are not those of its mode");
    }
    let (from, to) = match keyslot.mode {
        ReencryptionMode::Encrypt => (old.offset, new.offset),
        _ => (new.offset, old.offset),
    };
    match keyslot.resilience.shift {
        None if old.offset != new.offset => refused("the data move without a shift"),
        Some(shift) if from.checked_add(shift) != Some(to) => refused("the data do not move by the shift"),
        Some(_) if keyslot.mode == ReencryptionMode::Reencrypt => refused("a new cipher does not move the data"),
        _ => Ok(()),
    }
}

/// Returns the place of the moved segment, which only a re-encryption with a shift has.
fn check_moved(
    moved: Option<Side>,
    keyslot: &ReencryptionKeyslot,
    old: &Side,
) -> Result<Option<Range<u64>>, UnlockError> {
    let Some(moved) = moved else {
        return if keyslot.resilience.shift.is_some() { refused("the moved segment is missing") } else { Ok(None) };
    };
    match (moved.size, keyslot.resilience.shift) {
        (Some(size), Some(shift)) if size <= shift => {
            let place = moved.offset..moved.offset + size;
            let like_old = Side { offset: old.offset, size: old.size, ..moved };
            if like_old == *old { Ok(Some(place)) } else { refused("the moved segment is not one of the old data") }
        }
        _ => refused("the moved segment is not as long as the shift, or shorter"),
    }
}

impl Recorded {
    fn of(metadata: &Metadata) -> Result<Self, UnlockError> {
        let segment = |flag| with_flag(metadata, flag);
        let (Some(previous), Some(last)) = (segment(PREVIOUS)?, segment(FINAL)?) else {
            return refused("a backup segment is missing");
        };
        let is_active = |segment: &StoredSegment| !segment.is_backup();
        let mut all = metadata.segments.values().map(is_active).skip_while(|active| *active);
        if all.any(|active| active) {
            return refused("a segment follows the backup segments");
        }
        Ok(Self { previous, last, moved: segment(MOVED)? })
    }
}
