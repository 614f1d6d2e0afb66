//! Memory for direct I/O, and its contents: each block encodes its position and the round of its write.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Unit of positions.
pub(super) const BLOCK: u64 = 4096;

/// Page-aligned bytes.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK as usize];
        let start = bytes.as_ptr().align_offset(BLOCK as usize);
        Self { bytes, start, len }
    }

    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(super) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// Fills `into`, which is for byte `place` of a device: every eight bytes encode their position and the seed.
pub(super) fn stamp(into: &mut [u8], place: u64, seed: u64) {
    for (n, word) in into.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&stamped(place + 8 * n as u64, seed).to_le_bytes());
    }
}

/// Whether the bytes at `place` are those of [`stamp`].
pub(super) fn is_stamped(bytes: &[u8], place: u64, seed: u64) -> bool {
    let mut words = bytes.chunks_exact(8).enumerate();
    words.all(|(n, word)| word == stamped(place + 8 * n as u64, seed).to_le_bytes())
}

/// Returns the seed, below 2^16, with which [`stamp`] filled the bytes at `place`. `None`: it did not.
pub(super) fn seed_of(bytes: &[u8], place: u64) -> Option<u64> {
    let word = bytes.first_chunk().copied().map(u64::from_le_bytes)?;
    let seed = (word.wrapping_mul(inverse(FACTOR)) ^ place) >> 48;
    is_stamped(bytes, place, seed).then_some(seed)
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn stamped(place: u64, seed: u64) -> u64 {
    (place ^ seed << 48).wrapping_mul(FACTOR)
}

/// Returns the inverse of an odd number modulo 2^64. Each of Newton's steps doubles the number of correct bits, of
/// which there are three at the start.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Opens a device for direct I/O.
pub(super) fn open(path: &Path, write: bool) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)
}

/// Writes everything in one write; a short write counts as EIO.
pub(super) fn write(device: &File, bytes: &[u8], place: u64) -> Result<(), Errno> {
    whole(device.write_at(bytes, place), bytes.len())
}

/// Reads all of `bytes`; a short read counts as EIO.
pub(super) fn read(device: &File, bytes: &mut [u8], place: u64) -> Result<(), Errno> {
    whole(device.read_at(bytes, place), bytes.len())
}

fn whole(done: std::io::Result<usize>, len: usize) -> Result<(), Errno> {
    match done {
        Ok(n) if n == len => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_encodes_seed_and_position() {
        let mut bytes = [0; 512];
        for (place, seed) in [(0, 0), (4096, 1), (1 << 40, 65535), ((1 << 48) - 512, 7)] {
            stamp(&mut bytes, place, seed);
            assert_eq!(seed_of(&bytes, place), Some(seed));
            assert_eq!(seed_of(&bytes, place ^ 512), None);
            bytes[511] ^= 1;
            assert_eq!(seed_of(&bytes, place), None);
        }
        assert_eq!(seed_of(&[], 0), None);
    }
}
