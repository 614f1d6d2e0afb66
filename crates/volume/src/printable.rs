//! Texts from a header for people to read. Whoever wrote the header must not steer the reader's terminal.

use std::fmt::{self, Write};

/// A text with everything escaped that a terminal may take for a command, as `\u009b`: control characters (C0, DEL,
/// C1), and those that change the direction of writing. Printing texts from headers and about them goes through this.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a> {
    text: &'a str,
    /// Ends of lines and tabs are the text's own layout.
    keeps_layout: bool,
}

impl<'a> Printable<'a> {
    /// A text without lines, such as a name.
    pub fn new(text: &'a str) -> Self {
        Self { text, keeps_layout: false }
    }

    /// A text whose ends of lines and tabs are kept. The escapes are those of JSON strings, so that JSON, which has
    /// none of these characters elsewhere, stays the same value.
    pub fn with_layout(text: &'a str) -> Self {
        Self { text, keeps_layout: true }
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.text.chars() {
            match c {
                '\n' | '\t' if self.keeps_layout => f.write_char(c)?,
                c if c.is_control() || changes_direction(c) => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Unicode's explicit marks, embeddings, overrides and isolates, and its separators of lines.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_letters_and_loses_its_commands() {
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
