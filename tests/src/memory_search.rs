//! Searching memory for secrets. In this crate, which is optimized in debug builds too: a search reads every byte.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// Byte strings of equal length to search for.
pub struct Needles<'n> {
    len: usize,
    /// Whether a needle begins with these two bytes.
    begins: Vec<bool>,
    numbers: HashMap<&'n [u8], usize>,
}

impl<'n> Needles<'n> {
    /// Returns the needles, numbered in this order.
    ///
    /// # Panics
    /// If they differ in length, or are shorter than two bytes.
    pub fn new(needles: impl IntoIterator<Item = &'n [u8]>) -> Self {
        let (mut begins, mut numbers, mut len) = (vec![false; 1 << 16], HashMap::new(), 0);
        for (number, needle) in needles.into_iter().enumerate() {
            assert!(needle.len() >= 2 && (number == 0 || needle.len() == len), "needles of one length");
            len = needle.len();
            begins[first_two(needle)] = true;
            numbers.insert(needle, number);
        }
        Self { len, begins, numbers }
    }

    /// Returns the length of each.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of the needle at each place of `memory` where there is one.
    pub fn find(&self, memory: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        for place in 0..(memory.len() + 1).saturating_sub(self.len.max(2)) {
            if self.begins[first_two(&memory[place..])] {
                found.extend(self.numbers.get(&memory[place..place + self.len]));
            }
        }
        found
    }
}

/// A secret whose bytes are inverted, so that a search of this process finds only what others have left.
pub struct Inverted(Vec<u8>);

impl Inverted {
    /// Inverts `secret`, in place, and keeps it so.
    pub fn new(mut secret: Vec<u8>) -> Self {
        secret.iter_mut().for_each(|byte| *byte = !*byte);
        Self(secret)
    }

    /// Whether the secret is somewhere in the memory of this process.
    ///
    /// # Errors
    /// If the memory cannot be read.
    pub fn is_in_own_memory(&self) -> io::Result<bool> {
        let mut piece = vec![0; 1 << 16];
        let is_found = self.is_found_with(&mut piece);
        // A copy of what was found is not found again.
        piece.fill(0);
        std::hint::black_box(&piece);
        is_found
    }

    fn is_found_with(&self, piece: &mut [u8]) -> io::Result<bool> {
        let memory = File::open("/proc/self/mem")?;
        for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
            let Some((mut at, end)) = writable_range(&line?) else { continue };
            // Pieces overlap by a needle. The kernel's own pages cannot be read.
            while let Ok(read) = memory.read_at(piece, at) {
                let read = read.min(end.saturating_sub(at) as usize);
                if piece[..read].windows(self.0.len()).any(|bytes| bytes.iter().zip(&self.0).all(|(a, b)| *a == !*b)) {
                    return Ok(true);
                }
                if read < piece.len() {
                    break;
                }
                at += (read - self.0.len()) as u64;
            }
        }
        Ok(false)
    }
}

/// Addresses of a line of `/proc/PID/maps` that can be written to.
fn writable_range(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_writable = words.next()?.starts_with("rw");
    let number = |text| u64::from_str_radix(text, 16).ok();
    is_writable.then_some((number(start)?, number(end)?))
}

fn first_two(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

#[cfg(test)]
mod tests {
    use super::Needles;

    #[test]
    fn every_place_is_found() {
        let needles: [&[u8]; 3] = [b"abcd", b"abce", b"aaaa"];
        let needles = Needles::new(needles);
        assert_eq!(needles.find(b"abcdxabceaaaaa"), [0, 1, 2, 2]);
        assert_eq!(needles.find(b"xxabcd"), [0]);
        for none in [&b""[..], b"a", b"abc", b"abcbcde"] {
            assert!(needles.find(none).is_empty());
        }
        assert!(Needles::new([]).find(b"abcd").is_empty());
    }
}
