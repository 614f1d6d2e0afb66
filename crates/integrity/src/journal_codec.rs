//! The bytes of a journal's sections: entries, data, commit ids, MACs. No I/O.
//!
//! A section has eight metadata sectors with entries, and a block of data for each entry. Each sector ends with its
//! commit id, which tells the lap around the journal in which it was written; the bytes that it displaces from a sector
//! of data are in the entry. Entry n is in metadata sector n % 8, at slot n / 8.

use crate::journal_cipher::JournalCipher;
use crate::layout::{JournalLayout, SECTION_METADATA_SECTORS};
use crate::tags::{SALT_LEN, TagHash};
use inlock_engine::Errno;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Number of commit ids.
pub(crate) const SEQUENCES: u8 = 4;
/// Upper half of the sector of an entry that is not in use.
const UNUSED: u32 = !0;
const MAC_AT: usize = 496;
/// Entries of a section with a MAC: those of one sector and a tag of one byte have 24 bytes.
const MAX_ENTRIES: usize = MAC_AT / 24 * SECTION_METADATA_SECTORS;
const ID_AT: usize = 504;

/// Encodes and decodes the sections of one journal.
pub(crate) struct JournalCodec {
    layout: JournalLayout,
    ids: [u64; SEQUENCES as usize],
    cipher: Option<Arc<JournalCipher>>,
    mac: Option<Arc<TagHash>>,
    salt: Option<[u8; SALT_LEN]>,
}

/// Returns the lap after `sequence`.
pub(crate) fn next_sequence(sequence: u8) -> u8 {
    (sequence + 1) % SEQUENCES
}

/// Returns the place of the blocks of a section, one for each entry.
pub(crate) fn blocks_mut(image: &mut [u8]) -> &mut [u8] {
    &mut image[SECTION_METADATA_SECTORS * 512..]
}

/// Returns the lap before `sequence`.
pub(crate) fn previous_sequence(sequence: u8) -> u8 {
    (sequence + SEQUENCES - 1) % SEQUENCES
}

/// Changes ids that a cipher has made equal, as the kernel does.
fn make_distinct(ids: &mut [u64; SEQUENCES as usize]) {
    for n in 1..ids.len() {
        while ids[..n].contains(&ids[n]) {
            ids[n] = ids[n].wrapping_add(1);
        }
    }
}

impl JournalCodec {
    pub(crate) fn new(
        layout: JournalLayout,
        cipher: Option<Arc<JournalCipher>>,
        mac: Option<Arc<TagHash>>,
        salt: Option<[u8; SALT_LEN]>,
    ) -> Self {
        let mut ids = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0x3333_3333_3333_3333, 0x4444_4444_4444_4444];
        if let Some(cipher) = &cipher {
            cipher.encrypt_ids(&mut ids, layout.sectors() * 512);
        }
        make_distinct(&mut ids);
        Self { layout, ids, cipher, mac, salt }
    }

    /// Returns a section without entries.
    pub(crate) fn empty_section(&self) -> Vec<u8> {
        let mut image = vec![0; self.layout.section_len()];
        self.clear(&mut image);
        image
    }

    /// Makes a section one without entries. All other bytes stay.
    pub(crate) fn clear(&self, image: &mut [u8]) {
        for entry in 0..self.layout.entries {
            let at = self.entry_at(entry);
            image[at..at + 8].fill(0xff);
        }
    }

    /// Puts a block into entry `entry` of a section.
    pub(crate) fn put(&self, image: &mut [u8], entry: usize, sector: u64, block: &[u8], tag: &[u8]) {
        blocks_mut(image)[entry * block.len()..][..block.len()].copy_from_slice(block);
        self.describe(image, entry, sector, tag);
    }

    /// Fills in entry `entry` of a section for the block that is in its place.
    pub(crate) fn describe(&self, image: &mut [u8], entry: usize, sector: u64, tag: &[u8]) {
        let (at, data_at) = (self.entry_at(entry), self.data_at(entry));
        image[at..at + 8].copy_from_slice(&sector.to_le_bytes());
        for n in 0..self.layout.sectors_per_block {
            image.copy_within(data_at + n * 512 + ID_AT..data_at + (n + 1) * 512, at + 8 + n * 8);
        }
        let tag_at = at + 8 + 8 * self.layout.sectors_per_block;
        image[tag_at..tag_at + tag.len()].copy_from_slice(tag);
    }

    /// Returns the logical sector of an entry, or `None` if it is not in use.
    pub(crate) fn sector(&self, image: &[u8], entry: usize) -> Option<u64> {
        let at = self.entry_at(entry);
        let sector = u64::from_le_bytes(image[at..at + 8].try_into().expect("the slice has eight bytes"));
        // The values of an unused entry, and of one that was being filled.
        let upper = (sector >> 32) as u32;
        (upper < UNUSED - 1).then_some(sector)
    }

    /// Returns the logical sectors of the entries in a sector of a section.
    pub(crate) fn sectors_at<'a>(&'a self, image: &'a [u8], sector: usize) -> impl Iterator<Item = Option<u64>> + 'a {
        let is_metadata = sector < SECTION_METADATA_SECTORS;
        let entries = if is_metadata { sector..self.layout.entries } else { 0..0 };
        entries.step_by(SECTION_METADATA_SECTORS).map(|entry| self.sector(image, entry))
    }

    /// Puts the bytes back that the commit ids have displaced from the data, which [`JournalCodec::blocks`] returns
    /// then.
    pub(crate) fn restore(&self, image: &mut [u8]) {
        for entry in 0..self.layout.entries {
            if self.sector(image, entry).is_none() {
                continue;
            }
            let (at, data_at) = (self.entry_at(entry), self.data_at(entry));
            for n in 0..self.layout.sectors_per_block {
                image.copy_within(at + 8 + n * 8..at + 16 + n * 8, data_at + n * 512 + ID_AT);
            }
        }
    }

    /// Returns the blocks of `count` entries of a section without commit ids.
    pub(crate) fn blocks<'a>(&self, image: &'a [u8], entry: usize, count: usize) -> &'a [u8] {
        &image[self.data_at(entry)..self.data_at(entry + count)]
    }

    /// Returns the tag of an entry.
    pub(crate) fn tag<'a>(&self, image: &'a [u8], entry: usize) -> &'a [u8] {
        &image[self.entry_at(entry) + 8 + 8 * self.layout.sectors_per_block..][..self.layout.tag_size]
    }

    /// Copies the block and returns the tag of an entry.
    pub(crate) fn get<'a>(&self, image: &'a [u8], entry: usize, block: &mut [u8]) -> &'a [u8] {
        let (at, data_at) = (self.entry_at(entry), self.data_at(entry));
        for (n, to) in block.chunks_exact_mut(512).enumerate() {
            to[..ID_AT].copy_from_slice(&image[data_at + n * 512..][..ID_AT]);
            to[ID_AT..].copy_from_slice(&image[at + 8 + n * 8..][..8]);
        }
        self.tag(image, entry)
    }

    /// Puts random bytes between the entries and the commit id of the first sector, if there is room, so that no two
    /// sections with the same entries have the same digest. They are not read.
    pub(crate) fn mark(&self, image: &mut [u8]) -> Result<(), Errno> {
        let is_free = !self.layout.has_mac && self.layout.entries_per_sector * self.layout.entry_len <= MAC_AT;
        if is_free { getrandom::fill(&mut image[MAC_AT..ID_AT]).map_err(|_| Errno::IO) } else { Ok(()) }
    }

    /// Completes a section for writing: MAC, commit ids, encryption.
    pub(crate) fn seal(&self, section: u32, sequence: u8, image: &mut [u8]) {
        self.stamp(section, sequence, image);
        self.encrypt(section, image);
    }

    /// Puts MAC and commit ids into a section, whose entries can still be read.
    pub(crate) fn stamp(&self, section: u32, sequence: u8, image: &mut [u8]) {
        if let Some(mac) = self.section_mac(section, image) {
            for (sector, part) in mac.chunks_exact(8).enumerate() {
                image[sector * 512 + MAC_AT..][..8].copy_from_slice(part);
            }
        }
        for sector in 0..self.layout.section_sectors {
            let id = self.id(section, sector, sequence).to_le_bytes();
            image[sector * 512 + ID_AT..][..8].copy_from_slice(&id);
        }
    }

    /// Whether sections are encrypted.
    pub(crate) fn has_cipher(&self) -> bool {
        self.cipher.is_some()
    }

    /// Encrypts a section, if sections are encrypted.
    pub(crate) fn encrypt(&self, section: u32, image: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(section, self.at(section), image);
        }
    }

    /// Decrypts a section that was read.
    pub(crate) fn open(&self, section: u32, image: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(section, self.at(section), image);
        }
    }

    /// Whether the MAC of a decrypted section matches, if sections have one.
    pub(crate) fn has_valid_mac(&self, section: u32, image: &[u8]) -> bool {
        let Some(mac) = self.section_mac(section, image) else { return true };
        let mut stored = [0; 64];
        for (sector, part) in stored.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&image[sector * 512 + MAC_AT..][..8]);
        }
        mac.ct_eq(&stored).into()
    }

    /// Returns the laps of a decrypted section's sectors; `None` for a sector whose commit id is not one of the four.
    pub(crate) fn sequences<'a>(&'a self, section: u32, image: &'a [u8]) -> impl Iterator<Item = Option<u8>> + 'a {
        image.chunks_exact(512).enumerate().map(move |(sector, bytes)| {
            let id = u64::from_le_bytes(bytes[ID_AT..].try_into().expect("the slice has eight bytes"));
            (0..SEQUENCES).find(|sequence| self.id(section, sector, *sequence) == id)
        })
    }

    fn id(&self, section: u32, sector: usize, sequence: u8) -> u64 {
        self.ids[usize::from(sequence)] ^ (u64::from(section) << 32 ^ sector as u64)
    }

    fn section_mac(&self, section: u32, image: &[u8]) -> Option<[u8; 64]> {
        let mac = self.mac.as_ref().filter(|_| self.layout.has_mac)?;
        let (number, mut sectors) = (u64::from(section).to_le_bytes(), [0; MAX_ENTRIES * 8]);
        let sectors = &mut sectors[..self.layout.entries * 8];
        for (entry, sector) in sectors.chunks_exact_mut(8).enumerate() {
            sector.copy_from_slice(&image[self.entry_at(entry)..][..8]);
        }
        Some(match &self.salt {
            Some(salt) => mac.digest(&[salt, &number, sectors]),
            None => mac.digest(&[sectors]),
        })
    }

    /// Returns the byte of the journal at which a section starts.
    fn at(&self, section: u32) -> u64 {
        u64::from(section) * self.layout.section_len() as u64
    }

    fn entry_at(&self, entry: usize) -> usize {
        let (sector, slot) = (entry % SECTION_METADATA_SECTORS, entry / SECTION_METADATA_SECTORS);
        sector * 512 + slot * self.layout.entry_len
    }

    fn data_at(&self, entry: usize) -> usize {
        (SECTION_METADATA_SECTORS + entry * self.layout.sectors_per_block) * 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_become_different_ones() {
        for (mut ids, expected) in [
            ([5, 5, 6, 6], [5, 6, 7, 8]),
            ([u64::MAX, 3, u64::MAX, 0], [u64::MAX, 3, 0, 1]),
            ([1, 2, 3, 4], [1, 2, 3, 4]),
        ] {
            make_distinct(&mut ids);
            assert_eq!(ids, expected);
        }
    }
}
