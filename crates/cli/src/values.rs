//! Values of options: byte ranges, and those of the library.

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
pub(crate) use inlock_open::any_cipher::integrity_in_header;
use inlock_open::config::values::{self, Choice};
pub(crate) use inlock_open::config::values::{ciphers, count, number, sectors, size, uuid};
use inlock_open::path_text;
pub(crate) use inlock_open::range::Range;
use inlock_serve::listen::Listen;

/// Parses the length of a log: at least some lines, so that every file has the newest one.
pub(crate) fn log_limit(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size < 4096 { Err("less than 4096 bytes".to_owned()) } else { Ok(size) })
}

/// Returns a parser of one of a few words.
pub(crate) fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::CHOICES.iter().map(|(word, _)| *word)).try_map(|word| values::choice(&word))
}

/// Parses `OFFSET:LENGTH`, `OFFSET:` or `OFFSET`, which are sizes.
pub(crate) fn range(text: &str) -> Result<Range, String> {
    let (offset, len) = text.split_once(':').unwrap_or((text, ""));
    let range = Range { offset: size(offset)?, len: if len.is_empty() { None } else { Some(size(len)?) } };
    if range.len.is_some_and(|len| range.offset.checked_add(len).is_none()) {
        return Err("the range exceeds 64 bits".to_owned());
    }
    Ok(range)
}

/// Parses an address to listen on; the path may have any bytes.
pub(crate) fn listen_argument() -> impl TypedValueParser<Value = Listen> {
    OsStringValueParser::new().try_map(|text| path_text::text_of(text.as_ref()).parse::<Listen>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_offset_and_length() {
        assert_eq!(range("1M:4K"), Ok(Range { offset: 1 << 20, len: Some(4096) }));
        assert_eq!(range("512:"), Ok(Range { offset: 512, len: None }));
        assert_eq!(range("512"), Ok(Range { offset: 512, len: None }));
        for text in ["", ":", ":5", "a:b", "1:2:3", "18446744073709551615:1"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
