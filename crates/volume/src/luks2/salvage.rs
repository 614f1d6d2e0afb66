//! Headers without a magic or a valid copy. Programs that wipe signatures overwrite the magics of both copies only. A
//! GPT overwrites the end of the first binary header and what follows it, up to the second binary header; some programs
//! clear the first one. The rest of the header is still there.

use super::binary_header::{BLOCK_LEN, BinaryHeader, Copy, SECOND_OFFSETS, checksum_matches};
use super::json::text_of_area;
use super::{HEADER, Luks2, load, validate};
use crate::header_device::HeaderDevice;
use crate::luks_uuid;
use crate::pbkdf::Hash;
use crate::repair_step::Repair;

/// Searches the places of both copies for a header that cannot be loaded. Returns it with the repair that it needs.
pub(super) fn find(device: &dyn HeaderDevice) -> Option<(Luks2, Repair)> {
    let places = || std::iter::once((Copy::Primary, 0)).chain(SECOND_OFFSETS.map(|offset| (Copy::Secondary, offset)));
    if let Some(luks2) = places().find_map(|(copy, offset)| without_magic(device, copy, offset)) {
        return Some((luks2, Repair::RestoreMagic));
    }
    if let Some(luks2) = with_first_block(device) {
        return Some((luks2, Repair::RebuildCopies));
    }
    let Ok(uuid) = luks_uuid::new(None) else { return None };
    let header = BinaryHeader {
        hdr_size: 0,
        seqid: 1,
        label: String::new(),
        subsystem: String::new(),
        csum_alg: Hash::Sha256,
        uuid,
    };
    for hdr_size in SECOND_OFFSETS {
        let header = BinaryHeader { hdr_size, ..header.clone() };
        let copies = [(Copy::Secondary, hdr_size), (Copy::Primary, 0)];
        if let Some(luks2) = copies.iter().find_map(|(copy, offset)| luks2_of(device, header.clone(), *copy, *offset)) {
            return Some((luks2, Repair::RebuildHeader { uuid: header.uuid }));
        }
    }
    None
}

/// Returns the metadata of either copy, if the binary header of the first one is valid except for magic and checksum.
fn with_first_block(device: &dyn HeaderDevice) -> Option<Luks2> {
    let (_, header) = block_at(device, Copy::Primary, 0)?;
    if header.uuid.is_empty() {
        return None;
    }
    let copies = [(Copy::Secondary, header.hdr_size), (Copy::Primary, 0)];
    copies.iter().find_map(|(copy, offset)| luks2_of(device, header.clone(), *copy, *offset))
}

/// Reads a binary header, as if it had its magic.
fn block_at(device: &dyn HeaderDevice, copy: Copy, offset: u64) -> Option<([u8; BLOCK_LEN], BinaryHeader)> {
    let mut block = [0; BLOCK_LEN];
    device.read_exact_at(&mut block, offset).ok()?;
    block[..copy.magic().len()].copy_from_slice(&copy.magic());
    let header = BinaryHeader::decode(&block, copy, offset).ok()?;
    Some((block, header))
}

/// Returns the copy at `offset`, if only its magic is lost, as its checksum proves.
fn without_magic(device: &dyn HeaderDevice, copy: Copy, offset: u64) -> Option<Luks2> {
    let (block, header) = block_at(device, copy, offset)?;
    let area = area_of(device, &header, offset)?;
    if !checksum_matches(&block, &area, header.csum_alg) {
        return None;
    }
    luks2_of(device, header, copy, offset)
}

fn area_of(device: &dyn HeaderDevice, header: &BinaryHeader, offset: u64) -> Option<Vec<u8>> {
    let mut first = [0];
    device.read_exact_at(&mut first, offset + BLOCK_LEN as u64).ok()?;
    let mut area = vec![0; if first == *b"{" { header.json_len() } else { 0 }];
    device.read_exact_at(&mut area, offset + BLOCK_LEN as u64).ok()?;
    Some(area)
}

/// Returns the header with the metadata behind the block at `offset`, if these comply with all rules.
fn luks2_of(device: &dyn HeaderDevice, header: BinaryHeader, copy: Copy, offset: u64) -> Option<Luks2> {
    let area = area_of(device, &header, offset)?;
    let text = text_of_area(&area).ok()?;
    let (map, metadata) = validate::read(HEADER, &header, &text).ok()?;
    let warnings = load::damage_of_keyslots(&metadata).collect();
    Some(Luks2 { json: text.into_owned(), header, map, metadata, warnings, trusted: copy, has_volatile_copy: false })
}
