//! Replay of the journal when a device is opened.

use super::core::Core;
use crate::journal_codec::{JournalCodec, SEQUENCES, next_sequence, previous_sequence};
use crate::layout::Layout;
use crate::stores::Stores;
use crate::tags::Tagger;
use inlock_engine::Errno;
use inlock_engine::store::read_all;

/// The oldest section, and the lap in which it was written.
pub(super) struct Found {
    start: u32,
    sequence: u8,
}

/// Replays the journal. Returns the section and the lap of the next write.
///
/// With `keep` a whole journal is left as it is: to replay it again does no harm until other modes write.
pub(super) fn replay(
    core: &Core,
    codec: &JournalCodec,
    tagger: Option<&Tagger>,
    keep: bool,
) -> Result<(u32, u8), Errno> {
    let sections = core.layout.journal.sections;
    let Some(found) = find_start(core, codec)? else {
        // A commit id is none of the four: the journal was never written, or holds a bitmap.
        crate::format::clear_journal(&core.stores, &core.layout, codec, 0)?;
        return Ok((0, 1));
    };
    let mut used = false;
    let whole = for_each_section(core, codec, &found, |section, image| {
        used |= replay_section(core, codec, tagger, section, image)?;
        Ok(())
    })?;
    if used {
        core.write_back()?;
    }
    if whole == sections && (keep || !used) {
        return Ok((found.start, next_sequence(found.sequence)));
    }
    empty(core, codec, &found)?;
    Ok((found.start, next_sequence(next_sequence(found.sequence))))
}

/// Whether a replay of the journal would copy this section. Writes nothing.
pub(crate) fn will_replay(stores: &Stores, layout: &Layout, codec: &JournalCodec, number: u32) -> Result<bool, Errno> {
    let core = Core::new(stores.clone(), *layout);
    let Some(found) = find_start(&core, codec)? else { return Ok(false) };
    let mut is_replayed = false;
    for_each_section(&core, codec, &found, |section, _| {
        is_replayed |= section == number;
        Ok(())
    })?;
    Ok(is_replayed)
}

/// Whether [`replay`] would replace sections by empty ones. Writes nothing.
pub(crate) fn will_empty_journal(
    stores: &Stores,
    layout: &Layout,
    codec: &JournalCodec,
    keep: bool,
) -> Result<bool, Errno> {
    let core = Core::new(stores.clone(), *layout);
    let Some(found) = find_start(&core, codec)? else { return Ok(true) };
    let mut used = false;
    let whole = for_each_section(&core, codec, &found, |_, image| {
        used |= has_entries(codec, layout, image);
        Ok(())
    })?;
    Ok(whole != layout.journal.sections || (used && !keep))
}

fn has_entries(codec: &JournalCodec, layout: &Layout, image: &[u8]) -> bool {
    (0..layout.journal.entries).any(|entry| codec.sector(image, entry).is_some())
}

/// Calls `each` for the sections to replay, in the order in which they were written: all from the oldest one to the one
/// whose write was cut off, which was never acknowledged. Returns their number.
pub(super) fn for_each_section(
    core: &Core,
    codec: &JournalCodec,
    found: &Found,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), Errno>,
) -> Result<u32, Errno> {
    let sections = core.layout.journal.sections;
    let (mut section, mut sequence) = (found.start, found.sequence);
    for whole in 0..sections {
        let image = read_section(core, codec, section)?;
        if !codec.sequences(section, &image).all(|found| found == Some(sequence)) {
            return Ok(whole);
        }
        each(section, &image)?;
        section += 1;
        if section == sections {
            (section, sequence) = (0, next_sequence(sequence));
        }
    }
    Ok(sections)
}

/// Calls `each` for the entries of a section: block, number of the entry. Fails if the section's MAC is not valid.
pub(super) fn for_each_entry(
    core: &Core,
    codec: &JournalCodec,
    section: u32,
    image: &[u8],
    mut each: impl FnMut(u64, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let layout = &core.layout;
    if !codec.has_valid_mac(section, image) {
        core.mismatches.count();
        return Err(Errno::ILSEQ);
    }
    for entry in 0..layout.journal.entries {
        let Some(sector) = codec.sector(image, entry) else { continue };
        if sector >= layout.provided_data_sectors || !sector.is_multiple_of(layout.sectors_per_block()) {
            core.mismatches.count();
            continue;
        }
        each(sector / layout.sectors_per_block(), entry)?;
    }
    Ok(())
}

pub(super) fn read_section(core: &Core, codec: &JournalCodec, section: u32) -> Result<Vec<u8>, Errno> {
    let mut image = vec![0; core.layout.journal.section_len()];
    read_all(core.stores.metadata(), &mut image, core.layout.section_at(section))?;
    codec.open(section, &mut image);
    Ok(image)
}

/// Finds the oldest section: it follows the last one that was written in the newest lap.
pub(super) fn find_start(core: &Core, codec: &JournalCodec) -> Result<Option<Found>, Errno> {
    let sections = core.layout.journal.sections;
    let mut last = [None; SEQUENCES as usize];
    for section in 0..sections {
        let image = read_section(core, codec, section)?;
        for sequence in codec.sequences(section, &image) {
            let Some(sequence) = sequence else { return Ok(None) };
            last[usize::from(sequence)] = Some(section);
        }
    }
    let is_used = |sequence: &u8| last[usize::from(*sequence)].is_some();
    let newest = if is_used(&(SEQUENCES - 1)) {
        (0..SEQUENCES).find(|sequence| !is_used(sequence)).map(previous_sequence)
    } else {
        (0..SEQUENCES).rev().find(is_used)
    };
    let Some((newest, last)) = newest.and_then(|newest| Some((newest, last[usize::from(newest)]?))) else {
        return Ok(None);
    };
    Ok(Some(match last + 1 {
        start if start == sections => Found { start: 0, sequence: newest },
        start => Found { start, sequence: previous_sequence(newest) },
    }))
}

/// Writes the blocks of a section to their places. Returns whether it has any.
fn replay_section(
    core: &Core,
    codec: &JournalCodec,
    tagger: Option<&Tagger>,
    section: u32,
    image: &[u8],
) -> Result<bool, Errno> {
    let layout = &core.layout;
    let mut data = vec![0; layout.block_len()];
    for_each_entry(core, codec, section, image, |block, entry| {
        let tag = codec.get(image, entry, &mut data);
        let sector = block * layout.sectors_per_block();
        if tagger.is_some_and(|tagger| !tagger.is_tag_of(sector, &data, tag)) {
            // It is written nevertheless: the block is then refused, instead of an older one returned.
            core.mismatches.note(sector);
        }
        core.write(block, &data, tag)
    })?;
    Ok(has_entries(codec, layout, image))
}

/// Writes sections without entries over the journal, in the order of normal use. After a power cut between them, what
/// is left to replay is always the newest part.
fn empty(core: &Core, codec: &JournalCodec, found: &Found) -> Result<(), Errno> {
    let sections = core.layout.journal.sections;
    let first_lap = next_sequence(found.sequence);
    let laps = [(found.start..sections, first_lap), (0..found.start, next_sequence(first_lap))];
    for (range, sequence) in laps {
        for section in range {
            let mut image = codec.empty_section();
            codec.seal(section, sequence, &mut image);
            core.write_metadata(&image, core.layout.section_at(section))?;
        }
        core.sync(false)?;
    }
    Ok(())
}
