//! A table as text: the form of `dmsetup table`.

use super::options::{Arguments, Tags};
use super::{Table, TableLine, Target};
use inlock_cipher::VolumeKey;
use std::fmt::{self, Write};
use zeroize::Zeroizing;

/// Whether keys are printed. Otherwise as many zeroes are, as by `dmsetup table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowKeys {
    /// Zeroes.
    No,
    /// The key.
    Yes,
}

impl Table {
    /// Returns the lines as `dmsetup table` prints them and `dmsetup create` accepts them. Wiped when dropped.
    pub fn to_text(&self, keys: ShowKeys) -> Zeroizing<String> {
        // Long enough from the start: growing would leave a copy of a key behind.
        let mut text = Zeroizing::new(String::with_capacity(self.text_len()));
        for line in &self.lines {
            // Writing to a string cannot fail.
            let _ = line.write(&mut *text, keys);
            text.push('\n');
        }
        text
    }

    /// Returns a length that the text does not exceed.
    pub(super) fn text_len(&self) -> usize {
        self.lines.iter().map(|line| 512 + 2 * line.len_hint()).sum()
    }
}

/// Displays the line with zeroes for the key.
impl fmt::Display for TableLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, ShowKeys::No)
    }
}

impl TableLine {
    fn len_hint(&self) -> usize {
        let crypt = if let Target::Crypt(crypt) = &self.target { crypt.key.len() + crypt.cipher_name.len() } else { 0 };
        crypt + self.device().map_or(0, str::len)
    }

    pub(super) fn write(&self, f: &mut dyn Write, keys: ShowKeys) -> fmt::Result {
        write!(f, "{} {} {}", self.start, self.sectors, self.target.target_type().name())?;
        let crypt = match &self.target {
            Target::Zero | Target::Error => return Ok(()),
            Target::Linear { device, offset } => {
                f.write_char(' ')?;
                write_word(f, device)?;
                return write!(f, " {offset}");
            }
            Target::Crypt(crypt) => crypt,
        };
        f.write_char(' ')?;
        write_word(f, &crypt.cipher_name)?;
        f.write_char(' ')?;
        write_key(f, &crypt.key, keys)?;
        write!(f, " {} ", crypt.iv_offset.0)?;
        write_word(f, &crypt.device)?;
        let (options, unit, large_iv) = (crypt.options, crypt.unit, crypt.large_iv);
        let arguments = Arguments { options, unit, large_iv, tags: Tags::default() };
        write!(f, " {}{arguments}", crypt.offset.0)
    }
}

/// Writes a key in hexadecimal, or `-` for none.
pub(super) fn write_key(f: &mut dyn Write, key: &VolumeKey, keys: ShowKeys) -> fmt::Result {
    for byte in key.as_bytes() {
        match keys {
            ShowKeys::Yes => write!(f, "{byte:02x}")?,
            ShowKeys::No => f.write_str("00")?,
        }
    }
    f.write_str(if key.is_empty() { "-" } else { "" })
}

/// Writes a word with a backslash before characters that would end or change it.
pub(super) fn write_word(f: &mut dyn Write, word: &str) -> fmt::Result {
    for letter in word.chars() {
        if letter.is_ascii_whitespace() || letter == '\\' {
            f.write_char('\\')?;
        }
        f.write_char(letter)?;
    }
    Ok(())
}
