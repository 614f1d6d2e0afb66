//! Display of texts from headers, paths and other programs, whose author must not control the reader's terminal.

use crate::byte_text::byte_of;
use std::fmt;

/// A text with everything escaped that a terminal may interpret, as `\u009b`: control characters (C0, DEL, C1), and
/// those that change the direction of writing; and bytes that are not UTF-8, as `\udce9`. Everything that the command
/// prints passes through this.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a> {
    text: &'a str,
    kept: Kept,
}

/// Characters that are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// No control character.
    Nothing,
    /// Line breaks and tabs.
    Layout,
    /// Also bytes that are not UTF-8, each one character, as `text_of_bytes` makes them.
    LayoutAndBytes,
}

impl<'a> Printable<'a> {
    /// Wraps a text without lines, such as a name.
    pub fn new(text: &'a str) -> Self {
        Self { text, kept: Kept::Nothing }
    }

    /// Wraps a text whose line breaks and tabs are kept. The escapes are those of JSON strings, so JSON, which has none
    /// of these characters elsewhere, keeps its value.
    pub fn with_layout(text: &'a str) -> Self {
        Self { text, kept: Kept::Layout }
    }

    /// Wraps JSON that this program reads again: as [`with_layout`](Self::with_layout), but bytes that are not UTF-8
    /// stay characters, which all parsers take.
    pub fn json(text: &'a str) -> Self {
        Self { text, kept: Kept::LayoutAndBytes }
    }

    fn is_kept(self, c: char) -> bool {
        match c {
            '\n' | '\t' => self.kept != Kept::Nothing,
            c if byte_of(c).is_some() => self.kept == Kept::LayoutAndBytes,
            c => !c.is_control() && !changes_direction(c),
        }
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without a copy, since the text may have a key.
        let mut rest = self.text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !self.is_kept(*c)) {
            f.write_str(&rest[..at])?;
            match byte_of(c) {
                Some(byte) => write!(f, "\\udc{byte:02x}")?,
                None => write!(f, "\\u{:04x}", u32::from(c))?,
            }
            rest = &rest[at + c.len_utf8()..];
        }
        f.write_str(rest)
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
    fn json_keeps_bytes_as_characters_that_its_parser_takes() {
        let text = crate::text_of_bytes(b"a\xe9 \xc2\x9b \xe2\x80\xae");
        let json = format!("{{\"path\": \"{text}\"}}\n");
        let shown = Printable::json(&json).to_string();
        assert_eq!(shown, "{\"path\": \"a\u{10ffe9} \\u009b \\u202e\"}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["path"], *text);
        assert!(Printable::with_layout(&json).to_string().contains("a\\udce9 \\u009b"));
    }

    #[test]
    fn printable_text_has_no_terminal_controls() {
        let text = "ü漢 \\ \"q\" e\u{301}";
        assert_eq!(Printable::new(text).to_string(), text);
        for code in
            (0..0x20).chain(0x7f..0xa0).chain(0x200e..0x2010).chain(0x2028..0x202f).chain(0x2066..0x206a).chain([0x61c])
        {
            let c = char::from_u32(code).unwrap();
            let text = format!("a{c}b");
            assert_eq!(Printable::new(&text).to_string(), format!("a\\u{code:04x}b"));
            let laid_out = Printable::with_layout(&text).to_string();
            assert_eq!(laid_out == text, c == '\n' || c == '\t', "{code:x}");
        }
    }
}
