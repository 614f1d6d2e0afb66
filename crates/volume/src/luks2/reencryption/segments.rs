//! Segments in use of a volume that is re-encrypted: reading the progress from them, and writing it.

use super::{
    FINAL, MOVED, PREVIOUS, Piece, PieceState, Pieces, Reencryption, ReencryptionMode, Side, Stored, digests_of,
    refused,
};
use crate::error::UnlockError;
use crate::luks2::edit::section;
use crate::luks2::metadata::Metadata;
use crate::luks2::segment::IN_REENCRYPTION;
use inlock_cipher::Segment;
use serde_json::{Map, Value, json};

/// A segment in use: a part of one side in its place.
struct Part<'a> {
    side: &'a Side,
    state: PieceState,
    start: u64,
    end: Option<u64>,
    offset: u64,
}

impl Part<'_> {
    fn object(&self) -> Value {
        let size = self.end.map_or("dynamic".to_owned(), |end| (end - self.start).to_string());
        let mut object = Map::new();
        let kind = if self.side.cipher.is_some() { "crypt" } else { "linear" };
        object.insert("type".into(), kind.into());
        object.insert("offset".into(), self.offset.to_string().into());
        object.insert("size".into(), size.into());
        if self.state == PieceState::Hot {
            object.insert("flags".into(), json!([IN_REENCRYPTION]));
        }
        object.into()
    }
}

impl Reencryption {
    /// Returns the segments in use with these parts.
    fn parts(&self, pieces: &Pieces) -> Vec<Part<'_>> {
        let moved = self.moved_len().unwrap_or(0);
        let mut parts = Vec::new();
        for piece in pieces.as_slice() {
            let Piece { start, end, state } = *piece;
            if state != PieceState::Old {
                parts.push(Part { side: &self.new, state, start, end, offset: self.new_place(start) });
                continue;
            }
            // The moved segment has a place of its own.
            let is_cut = start < moved && end.is_none_or(|end| end > moved);
            let cuts = if is_cut { vec![(start, Some(moved)), (moved, end)] } else { vec![(start, end)] };
            let part = |(start, end)| Part { side: &self.old, state, start, end, offset: self.old_place(start) };
            parts.extend(cuts.into_iter().map(part));
        }
        parts
    }

    /// Returns the engine's segments, each with whether it is new, of a volume whose zones are all written.
    pub fn segments(&self) -> Vec<(Segment, PieceState)> {
        let parts = self.parts(&self.pieces);
        parts.iter().map(|part| (part.side.segment(part.start, part.end, part.offset), part.state)).collect()
    }
}

/// Reads the progress from the segments in use.
pub(super) fn pieces(metadata: &Metadata, reencryption: &Reencryption) -> Result<Pieces, UnlockError> {
    let mut found = Vec::new();
    let mut start = Some(0u64);
    for (&number, segment) in metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()) {
        let Some(at) = start else { return refused("a segment follows one that has no end") };
        let bound = digests_of(metadata, number);
        let side = Side::new(&Stored { number, segment: segment.clone() }, bound.first().copied())?;
        let is = |other: &Side, offset: u64| {
            side.offset == offset
                && (side.cipher, side.unit) == (other.cipher, other.unit)
                && (side.cipher.is_none() || side.iv_tweak == other.iv_number(at))
        };
        let of = |other: &Side| match other.digest {
            Some(digest) => bound == [digest],
            None => bound.is_empty(),
        };
        let (old, new) = (&reencryption.old, &reencryption.new);
        let is_new = is(new, reencryption.new_place(at));
        let state = if segment.has_flag(IN_REENCRYPTION) {
            let all = bound.iter().all(|digest| [old.digest, new.digest].contains(&Some(*digest)));
            // The zone of a decryption is one of plaintext.
            let mut needed = [old.digest, new.digest].into_iter().flatten();
            let is_bound = new.digest.is_none() || needed.all(|digest| bound.contains(&digest));
            if !is_new || !all || !is_bound || side.size.is_none() {
                return refused("the zone that was being written is not one");
            }
            PieceState::Hot
        } else if is_new && of(new) {
            PieceState::New
        } else if is(old, reencryption.old_place(at)) && of(old) {
            PieceState::Old
        } else {
            return refused("a segment is neither of the old nor of the new volume");
        };
        let end = match side.size {
            None => None,
            Some(size) => {
                Some(at.checked_add(size).ok_or(UnlockError::Reencryption { reason: "its segments are too long" })?)
            }
        };
        found.push(Piece { start: at, end, state });
        start = end;
    }
    let Some(last) = found.last() else { return refused("it has no segment in use") };
    // A zone that is being written has an end, also at that of the device.
    let is_open = last.end.is_none() || last.state == PieceState::Hot && reencryption.old.size.is_none();
    if let (Some(end), Some(size)) = (last.end, reencryption.old.size)
        && end > size
    {
        return refused("its segments are longer than the volume");
    }
    Ok(Pieces::new(found, is_open))
}

/// Segments in the making, with the digests that refer to them.
#[derive(Default)]
pub(super) struct Segments {
    objects: Map<String, Value>,
    bindings: Vec<(u32, String)>,
}

impl Segments {
    /// Adds the next segment, bound to these digests.
    pub(super) fn add(&mut self, object: Value, digests: &[Option<u32>]) {
        let number = self.objects.len().to_string();
        self.bindings.extend(digests.iter().flatten().map(|digest| (*digest, number.clone())));
        self.objects.insert(number, object);
    }

    /// Replaces all segments, and all references of digests to segments.
    pub(super) fn write_to(self, map: &mut Map<String, Value>) {
        map.insert("segments".into(), self.objects.into());
        for (number, digest) in section(map, "digests").iter_mut() {
            let own = self.bindings.iter().filter(|(digest, _)| digest.to_string() == *number);
            digest["segments"] = own.map(|(_, name)| name.as_str()).collect();
        }
    }
}

/// Replaces the segments in use, and what refers to segments, in a tree of metadata. The backup segments stay.
pub(super) fn replace(map: &mut Map<String, Value>, reencryption: &Reencryption, pieces: &Pieces) {
    let parts = reencryption.parts(pieces);
    let backups = [PREVIOUS, FINAL, MOVED].map(|flag| (flag, object_with_flag(map, flag).cloned()));
    let mut all = Segments::default();
    let (old, new) = (reencryption.old.digest, reencryption.new.digest);
    for part in &parts {
        let mut object = part.object();
        let source = if part.state == PieceState::Old { &backups[0].1 } else { &backups[1].1 };
        if let (Some(object), Some(source)) = (object.as_object_mut(), source)
            && part.side.cipher.is_some()
        {
            object.insert("iv_tweak".into(), part.side.iv_number(part.start).to_string().into());
            for name in ["encryption", "sector_size"] {
                object.insert(name.into(), source[name].clone());
            }
        }
        let is_both = part.state == PieceState::Hot && reencryption.keyslot.mode == ReencryptionMode::Reencrypt;
        match part.state {
            PieceState::Old => all.add(object, &[old]),
            _ if is_both && old != new => all.add(object, &[old, new]),
            _ => all.add(object, &[new]),
        }
    }
    for (flag, object) in backups {
        let Some(object) = object else { continue };
        all.add(object, &[if flag == FINAL { new } else { old }]);
    }
    all.write_to(map);
}

/// Returns the object of the segment with a flag.
fn object_with_flag<'a>(map: &'a Map<String, Value>, flag: &str) -> Option<&'a Value> {
    let has = |object: &&Value| object["flags"].as_array().is_some_and(|flags| flags.iter().any(|own| own == flag));
    map["segments"].as_object()?.values().find(has)
}

/// Returns the object of the only segment after the re-encryption.
pub(super) fn last_object(map: &Map<String, Value>) -> Option<Value> {
    let mut object = object_with_flag(map, FINAL)?.as_object()?.clone();
    object.shift_remove("flags");
    Some(object.into())
}
