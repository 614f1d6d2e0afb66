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
use inlock_cipher::{CipherError, CipherSpec, DataUnitSize, SECTOR_SIZE, Sector, Segment};
use pieces::Order;
use std::ops::Range;

/// Beginning of the names of all requirements of re-encryption.
const REQUIREMENT: &str = "online-reencrypt";
/// The requirement of all re-encryptions but those of version 3.
const VERSION_2: &str = "online-reencrypt-v2";
/// The requirement of decryption with a shift, which takes the header out of the device.
const VERSION_3: &str = "online-reencrypt-v3";

/// Flags of backup segments.
const PREVIOUS: &str = "backup-previous";
const FINAL: &str = "backup-final";
const MOVED: &str = "backup-moved-segment";
/// Flag of the segment that is being written.
const HOT: &str = "in-reencryption";

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
    /// Version of the requirement.
    version: u32,
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

/// The backup segments as the header has them.
#[derive(Clone, Debug)]
struct Recorded {
    previous: StoredSegment,
    last: StoredSegment,
    moved: Option<StoredSegment>,
}

fn refused<T>(reason: &'static str) -> Result<T, UnlockError> {
    Err(UnlockError::Reencryption { reason })
}

impl Side {
    fn new(stored: &StoredSegment, digest: Option<u32>) -> Result<Self, UnlockError> {
        let (cipher, unit, iv_tweak) = match &stored.kind {
            SegmentKind::Linear => (None, DataUnitSize::SECTOR, 0),
            SegmentKind::Crypt(crypt) if crypt.integrity.is_some() => {
                return refused("a volume with integrity protection cannot be re-encrypted");
            }
            SegmentKind::Crypt(crypt) => {
                let Ok(unit) = DataUnitSize::new(crypt.sector_size) else { return refused("sector size") };
                let cipher = segment::cipher("LUKS2 segment", &crypt.cipher)?;
                if !cipher.can_use_unit(unit) {
                    return Err(CipherError::Unit { spec: cipher, unit }.into());
                }
                if !crypt.iv_tweak.is_multiple_of(unit.sectors()) {
                    return refused("iv_tweak is not a multiple of the sector size");
                }
                (Some(cipher), unit, crypt.iv_tweak)
            }
            SegmentKind::Other(name) => {
                return Err(UnlockError::UnsupportedType { place: "LUKS2 segment", name: Excerpt::new(name) });
            }
        };
        if cipher.is_some() != digest.is_some() {
            return refused("a segment and its digest do not go together");
        }
        let (offset, size) = (stored.offset, stored.size);
        if offset.checked_add(size.unwrap_or(0)).is_none() {
            return refused("a segment ends beyond the largest device");
        }
        Ok(Self { offset, size, iv_tweak, cipher, unit, digest })
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

    /// Returns the length that zones and the volume are multiples of: the larger data unit.
    pub fn alignment(&self) -> u64 {
        let units = self.old.unit.bytes().max(self.new.unit.bytes()) as u64;
        match &self.keyslot.resilience.protection {
            Protection::Checksum { block, .. } => units.max((*block).into()),
            _ => units,
        }
    }

    /// Returns how a zone is protected: the moved first segment of a decryption is written in place, and the old place
    /// of all other zones of a re-encryption with a shift stays as it is.
    pub fn protection_of(&self, zone: &Range<u64>) -> Option<&Protection> {
        let in_place = self.old_place(zone.start) == self.new_place(zone.start);
        match self.keyslot.resilience.shift {
            Some(_) if !in_place => None,
            _ => Some(&self.keyslot.resilience.protection),
        }
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
    /// Returns the state of a re-encryption, `None` if none has begun. The keys have not confirmed it yet
    /// ([`Luks2::unlock_reencryption`]).
    ///
    /// # Errors
    ///
    /// Fails if the header has another requirement, or a state that no re-encryption has.
    pub fn reencryption(&self) -> Result<Option<Reencryption>, UnlockError> {
        if self.metadata.config.requirements.is_empty() { Ok(None) } else { Reencryption::of(&self.metadata).map(Some) }
    }
}

impl Reencryption {
    /// Reads the state from metadata with a requirement.
    fn of(metadata: &Metadata) -> Result<Self, UnlockError> {
        let begun = Self::begun(metadata)?;
        let pieces = segments::pieces(metadata, &begun)?;
        if !pieces.is_in_order(begun.order()) {
            return refused("its segments do not follow each other as zones do");
        }
        Ok(Self { pieces, ..begun })
    }

    /// Reads everything but the progress.
    fn begun(metadata: &Metadata) -> Result<Self, UnlockError> {
        let requirements = &metadata.config.requirements;
        let version = match requirements.first().map(String::as_str) {
            Some(VERSION_2) => 2,
            Some(VERSION_3) => 3,
            Some(REQUIREMENT) => return refused("it has version 1 and no digest; cryptsetup repair adds one"),
            other => return Err(UnlockError::Requirement(Excerpt::new(other.unwrap_or_default()))),
        };
        if let Some(other) = requirements.get(1) {
            return Err(UnlockError::Requirement(Excerpt::new(other)));
        }
        let (number, keyslot, area) = keyslot_of(metadata)?;
        if (keyslot.version() == 3) != (version == 3) {
            return refused("the requirement is not that of the keyslot");
        }
        let recorded = Recorded::of(metadata)?;
        let digest = |flag| digest_of(metadata, flag);
        let (old, new) =
            (Side::new(&recorded.previous, digest(PREVIOUS)?)?, Side::new(&recorded.last, digest(FINAL)?)?);
        check_sides(&keyslot, &old, &new)?;
        let moved = recorded.check_moved(&keyslot, &old, digest(MOVED)?)?;
        let pieces = Pieces::whole(PieceState::Old, old.size);
        Ok(Self { number, keyslot, area, old, new, moved, pieces, version, recorded })
    }
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

/// Returns the number of the segment with a flag.
fn number_of(metadata: &Metadata, flag: &str) -> Result<Option<u32>, UnlockError> {
    let mut found = metadata.segments.iter().filter(|(_, segment)| segment.flags.iter().any(|own| own == flag));
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => refused("two segments have the same flag"),
        (one, _) => Ok(one.map(|(number, _)| *number)),
    }
}

/// Returns the only digest of a segment with a flag.
fn digest_of(metadata: &Metadata, flag: &str) -> Result<Option<u32>, UnlockError> {
    let Some(number) = number_of(metadata, flag)? else { return Ok(None) };
    let mut bound = metadata.digests.iter().filter(|(_, digest)| digest.segments.contains(&number));
    match (bound.next(), bound.next()) {
        (Some(_), Some(_)) => refused("a backup segment is bound to two digests"),
        (one, _) => Ok(one.map(|(number, _)| *number)),
    }
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

impl Recorded {
    fn of(metadata: &Metadata) -> Result<Self, UnlockError> {
        let segment = |flag| -> Result<Option<StoredSegment>, UnlockError> {
            Ok(number_of(metadata, flag)?.map(|number| metadata.segments[&number].clone()))
        };
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

    /// Returns the place of the moved segment, which only a re-encryption with a shift has.
    fn check_moved(
        &self,
        keyslot: &ReencryptionKeyslot,
        old: &Side,
        digest: Option<u32>,
    ) -> Result<Option<Range<u64>>, UnlockError> {
        let Some(moved) = &self.moved else {
            return if keyslot.resilience.shift.is_some() { refused("the moved segment is missing") } else { Ok(None) };
        };
        let side = Side::new(moved, digest)?;
        let is_like_old =
            (side.cipher, side.unit, side.iv_tweak, side.digest) == (old.cipher, old.unit, old.iv_tweak, old.digest);
        match (side.size, keyslot.resilience.shift) {
            (Some(size), Some(shift)) if is_like_old && size <= shift => Ok(Some(side.offset..side.offset + size)),
            _ => refused("the moved segment is not one of the old data"),
        }
    }
}
