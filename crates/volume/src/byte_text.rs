//! Bytes that should be text in UTF-8, and need not be: labels and metadata of other programs, paths.
//!
//! A byte that is no part of UTF-8 is kept as one of the 128 last characters of Unicode's private use. Nothing is lost:
//! [`bytes_of_text`] returns the same bytes. On output such a character is the escape by which Python names the
//! byte (PEP 383), `\\udce9` for 0xe9 ([`Printable`](crate::Printable)).

use std::borrow::Cow;

/// The character of byte 0 of a half of 256, of which the upper 128 are used.
const FIRST: u32 = 0x10_ff00;

/// Returns the byte for which a character stands.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    u8::try_from(u32::from(c).checked_sub(FIRST)?).ok().filter(|byte| !byte.is_ascii())
}

/// Whether a text has bytes that are not UTF-8.
pub(crate) fn has_bytes(text: &str) -> bool {
    text.chars().any(|c| byte_of(c).is_some())
}

/// Returns bytes as text, without a loss.
pub fn text_of_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !has_bytes(text)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    let push = |text: &mut String, bytes: &[u8]| {
        text.extend(bytes.iter().filter_map(|byte| char::from_u32(FIRST + u32::from(*byte))));
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_of(c) {
                None => text.push(c),
                // The character itself would read as a byte.
                Some(_) => push(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push(&mut text, chunk.invalid());
    }
    Cow::Owned(text)
}

/// Returns the bytes of a text of [`text_of_bytes`].
pub fn bytes_of_text(text: &str) -> Cow<'_, [u8]> {
    if !has_bytes(text) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_text_and_the_same_bytes_again() {
        let all: Vec<u8> = (0..=255).collect();
        let private = "\u{10ff00}\u{10ff7f}\u{10ff80}\u{10ffe9}\u{10ffff}";
        let cases: [&[u8]; 6] =
            [b"", b"plain \xc3\xa9", b"caf\xe9", &all, private.as_bytes(), b"\xf4\x8f\xbf cut \xe2\x82"];
        for bytes in cases {
            let text = text_of_bytes(bytes);
            assert_eq!(*bytes_of_text(&text), *bytes, "{text:?}");
            assert_eq!(has_bytes(&text), std::str::from_utf8(bytes).is_err() || bytes == private.as_bytes());
        }
        assert!(matches!(text_of_bytes("é".as_bytes()), Cow::Borrowed("é")));
        assert_eq!(crate::Printable::new(&text_of_bytes(b"caf\xe9")).to_string(), "caf\\udce9");
    }
}
