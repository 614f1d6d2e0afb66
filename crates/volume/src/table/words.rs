//! The words of one line, split like in the kernel, and positions of errors in it.

use super::MAX_SECTORS;
use super::error::{TableError, TableFault};
use crate::printable::Excerpt;
use zeroize::Zeroizing;

/// Where the devices of device-mapper are.
pub(super) const MAPPER: &str = "/dev/mapper/";

/// The words of a line, consumed in order. They may be keys, so they are wiped.
pub(super) struct Words {
    line: usize,
    words: Vec<Zeroizing<String>>,
    /// Number of consumed words.
    taken: usize,
    /// Name of the last consumed word.
    name: &'static str,
    /// Number of the word that no error may show.
    secret: Option<usize>,
}

impl Words {
    /// Splits at white space; a backslash takes the next character as it is.
    pub(super) fn new(line: usize, text: &str) -> Self {
        let mut words: Vec<Zeroizing<String>> = Vec::new();
        let mut open = false;
        let mut chars = text.chars();
        loop {
            let rest = chars.as_str();
            let Some(next) = chars.next() else { break };
            if next == '#' && words.is_empty() {
                break;
            }
            if next.is_ascii_whitespace() {
                open = false;
                continue;
            }
            if !open {
                // With the final capacity: growing would leave a copy of a key behind.
                words.push(Zeroizing::new(String::with_capacity(word_len(rest))));
                open = true;
            }
            let taken = if next == '\\' { chars.next() } else { Some(next) };
            if let (Some(word), Some(taken)) = (words.last_mut(), taken) {
                word.push(taken);
            }
        }
        Self { line, words, taken: 0, name: "start", secret: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the number of words left.
    pub(super) fn left(&self) -> usize {
        self.words.len() - self.taken
    }

    /// Returns a word by its number from 1.
    pub(super) fn peek(&self, word: usize) -> Option<&str> {
        self.words.get(word - 1).map(|word| word.as_str())
    }

    /// Consumes the next word; errors call it `name`.
    pub(super) fn next(&mut self, name: &'static str) -> Result<&str, TableError> {
        self.name = name;
        self.taken += 1;
        if self.taken > self.words.len() {
            return Err(self.fault(TableFault::Missing));
        }
        Ok(&self.words[self.taken - 1])
    }

    /// Like [`Words::next`], for a word that no error may show.
    pub(super) fn next_secret(&mut self, name: &'static str) -> Result<&str, TableError> {
        self.next(name)?;
        self.hide();
        Ok(&self.words[self.taken - 1])
    }

    /// Lets no error show the last consumed word.
    pub(super) fn hide(&mut self) {
        self.secret = Some(self.taken);
    }

    /// Consumes a whole number: digits only.
    pub(super) fn number(&mut self, name: &'static str) -> Result<u64, TableError> {
        let word = self.next(name)?;
        number(word).ok_or(TableFault::Number).map_err(|fault| self.fault(fault))
    }

    /// Consumes the offset of `sectors` sectors on a device.
    pub(super) fn offset(&mut self, name: &'static str, sectors: u64) -> Result<u64, TableError> {
        let offset = self.number(name)?;
        let end = offset.checked_add(sectors);
        if end.is_none_or(|end| end > MAX_SECTORS) { Err(self.fault(TableFault::PastEnd)) } else { Ok(offset) }
    }

    /// Fails unless all words are consumed.
    pub(super) fn end(&mut self) -> Result<(), TableError> {
        if self.left() == 0 {
            return Ok(());
        }
        self.next("end of the line")?;
        Err(self.fault(TableFault::TooMany))
    }

    /// Returns an error about the last consumed word.
    pub(super) fn fault(&self, fault: TableFault) -> TableError {
        self.fault_at(self.taken, self.name, fault)
    }

    /// Returns an error about another word, by its number from 1.
    pub(super) fn fault_at(&self, word: usize, name: &'static str, fault: TableFault) -> TableError {
        let text = self.words.get(word - 1).filter(|_| self.secret != Some(word));
        TableError::new(self.line, word, name, text.map(|text| Excerpt::new(text)), fault)
    }
}

/// Splits `NAME: LINE`.
pub(super) fn split_name(line: &str) -> (Option<&str>, &str) {
    let trimmed = line.trim_ascii_start();
    match trimmed.split_once([' ', '\t']) {
        Some((first, rest)) if first.len() > 1 && first.ends_with(':') && !first.starts_with('#') => {
            (Some(&first[..first.len() - 1]), rest)
        }
        _ => (None, line),
    }
}

/// Consumes start and length of the only line of a device, and returns the length.
pub(super) fn parse_range(words: &mut Words) -> Result<u64, TableError> {
    if words.number("start")? != 0 {
        return Err(words.fault(TableFault::Gap { expected: 0 }));
    }
    match words.number("length")? {
        0 => Err(words.fault(TableFault::ZeroLength)),
        sectors if sectors > MAX_SECTORS => Err(words.fault(TableFault::PastEnd)),
        sectors => Ok(sectors),
    }
}

/// Returns the number of bytes up to the end of the word at the start of `text`, with backslashes.
fn word_len(text: &str) -> usize {
    let mut escaped = false;
    let ends = |byte: u8| {
        let ends = byte.is_ascii_whitespace() && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    };
    text.bytes().position(ends).unwrap_or(text.len())
}

/// Parses a number of at most 64 bits: digits only.
pub(super) fn number(word: &str) -> Option<u64> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if digits { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_takes_the_memory_that_it_needs() {
        let text = r"one  two\ parts \\ end\";
        let words = Words::new(1, text).words;
        let found: Vec<(&str, usize)> = words.iter().map(|word| (word.as_str(), word.capacity())).collect();
        assert_eq!(found, [("one", 3), ("two parts", 10), ("\\", 2), ("end", 4)]);
        // With a capacity of the whole line each, the words would take half a terabyte.
        let many = "a ".repeat(1 << 19);
        assert_eq!(Words::new(1, &many).words.iter().map(|word| word.capacity()).sum::<usize>(), 1 << 19);
    }
}
