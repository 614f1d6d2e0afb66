//! Display of texts from a header, whose author must not control the reader's terminal.

use crate::byte_text::byte_of;
use std::fmt::{self, Write};

/// A text with everything escaped that a terminal may interpret, as `\u009b`: control characters (C0, DEL, C1), and
/// those that change the direction of writing; and bytes that are not UTF-8, as `\udce9`. All texts from headers are
/// printed through this.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a> {
    text: &'a str,
    /// Whether line breaks and tabs are kept.
    keeps_layout: bool,
}

impl<'a> Printable<'a> {
    /// Wraps a text without lines, such as a name.
    pub fn new(text: &'a str) -> Self {
        Self { text, keeps_layout: false }
    }

    /// Wraps a text whose line breaks and tabs are kept. The escapes are those of JSON strings, so JSON, which has none
    /// of these characters elsewhere, keeps its value.
    pub fn with_layout(text: &'a str) -> Self {
        Self { text, keeps_layout: true }
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.text.chars() {
            match c {
                '\n' | '\t' if self.keeps_layout => f.write_char(c)?,
                c if byte_of(c).is_some() => write!(f, "\\udc{:02x}", byte_of(c).unwrap_or_default())?,
                c if c.is_control() || changes_direction(c) => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether the character is one of Unicode's explicit marks, embeddings, overrides and isolates, or separates lines.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A short, printable excerpt of a text from a header: at most 48 characters, escaped as by [`Printable`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Excerpt(Box<str>);

impl Excerpt {
    const MAX_CHARS: usize = 48;

    /// Cuts and escapes `text`.
    pub fn new(text: &str) -> Self {
        let end = text.char_indices().nth(Self::MAX_CHARS).map_or(text.len(), |(end, _)| end);
        let mut short = Printable::new(&text[..end]).to_string();
        if end < text.len() {
            short.push_str("...");
        }
        Self(short.into())
    }

    /// Returns the excerpt.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Displays bytes as `0a 1b `, each followed by a space.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x} "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_has_no_terminal_controls() {
        let text = "ü漢 \\ \"q\" e\u{301}";
        assert_eq!(Printable::new(text).to_string(), text);
        for code in (0..0x20).chain(0x7f..0xa0).chain([0x202e, 0x2066]) {
            let c = char::from_u32(code).unwrap();
            let text = format!("a{c}b");
            assert_eq!(Printable::new(&text).to_string(), format!("a\\u{code:04x}b"));
            let laid_out = Printable::with_layout(&text).to_string();
            assert_eq!(laid_out == text, c == '\n' || c == '\t', "{code:x}");
        }
    }
}
