//! The digest of a re-encryption: it confirms the keyslot, the segments before and after, and both volume keys.
//!
//! Without it, an attacker who writes the header could let a volume be decrypted. It does not cover the progress. The
//! sequence of bytes is that of cryptsetup since 2.4.3; the specification does not have it.

use super::{Protection, Reencryption};
use crate::error::UnlockError;
use crate::luks2::metadata::{Segment, SegmentKind};
use inlock_cipher::VolumeKey;
use zeroize::Zeroizing;

/// Longest text in the sequence, in bytes.
const MAX_TEXT: usize = 64;

/// Bytes of the digest, in locked memory once they are whole.
struct Sequence(Zeroizing<Vec<u8>>);

impl Sequence {
    fn text(&mut self, text: &str) -> Result<(), UnlockError> {
        if text.len() > MAX_TEXT {
            return Err(UnlockError::Reencryption { reason: "a name is too long for the digest" });
        }
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn segment(&mut self, segment: &Segment) -> Result<(), UnlockError> {
        match &segment.kind {
            SegmentKind::Linear => self.text("linear")?,
            SegmentKind::Crypt(_) => self.text("crypt")?,
            SegmentKind::Other(_) => return Err(UnlockError::Reencryption { reason: "a segment has another type" }),
        }
        self.number(segment.offset);
        match segment.size {
            None => self.text("dynamic")?,
            Some(size) => self.number(size),
        }
        if let SegmentKind::Crypt(crypt) = &segment.kind {
            self.number(crypt.iv_tweak);
            self.text(&crypt.cipher)?;
            self.0.extend_from_slice(&crypt.sector_size.to_be_bytes());
        }
        Ok(())
    }
}

/// Returns what the digest is computed of.
pub(super) fn sequence(
    reencryption: &Reencryption,
    old: Option<&VolumeKey>,
    new: Option<&VolumeKey>,
) -> Result<VolumeKey, UnlockError> {
    let parts = &reencryption.recorded;
    // The memory does not grow: a copy that is left would not be wiped.
    let room = 1024 + [old, new].iter().flatten().map(|key| key.len()).sum::<usize>();
    let mut bytes = Sequence(Zeroizing::new(Vec::with_capacity(room)));
    bytes.text(reencryption.keyslot.version())?;
    let has_other_key = reencryption.old.digest != reencryption.new.digest;
    let keys = [
        old.filter(|_| reencryption.old.digest.is_some()),
        new.filter(|_| reencryption.new.digest.is_some() && has_other_key),
    ];
    keys.into_iter().flatten().for_each(|key| bytes.0.extend_from_slice(key.as_bytes()));
    bytes.text(reencryption.keyslot.mode.name())?;
    bytes.text(reencryption.keyslot.direction.name())?;
    let resilience = &reencryption.keyslot.resilience;
    bytes.text(resilience.name())?;
    bytes.number(reencryption.area.start);
    bytes.number(reencryption.area.end - reencryption.area.start);
    if let Protection::Checksum { hash, block } = &resilience.protection {
        bytes.text(hash)?;
        bytes.0.extend_from_slice(&block.to_be_bytes());
    }
    if let Some(shift) = resilience.shift {
        bytes.number(shift);
    }
    [Some(&parts.previous), Some(&parts.last), parts.moved.as_ref()]
        .into_iter()
        .flatten()
        .try_for_each(|stored| bytes.segment(&stored.segment))?;
    Ok(VolumeKey::new(&bytes.0))
}
