//! Searching memory for secrets. In this crate, which is optimized in debug builds too: a search reads every byte.

use std::collections::HashMap;

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
