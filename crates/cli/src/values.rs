//! Values of options: counts, sizes, byte ranges.
//!
//! Sizes read as cryptsetup reads them: `S` is 512 bytes, `K M G T` and `KiB MiB GiB TiB` count in 1024, `KB MB GB TB`
//! in 1000.

use clap::builder::{OsStringValueParser, TypedValueParser};
pub(crate) use inlock_open::any_cipher::{AnyCipher, integrity_in_header};
pub(crate) use inlock_open::range::Range;
use inlock_serve::listen::Listen;

use inlock_open::path_text;

/// Cipher specifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ciphers(pub Vec<AnyCipher>);

/// Parses cipher specifications between commas, which some contain: `xchacha12,aes-adiantum-plain64,aes-xts-plain64`.
pub(crate) fn ciphers(text: &str) -> Result<Ciphers, String> {
    let mut ciphers = Vec::new();
    let mut first_error = None;
    let mut word = String::new();
    for part in text.split(',') {
        word += part;
        match word.parse::<AnyCipher>() {
            Ok(cipher) => {
                ciphers.push(cipher);
                word.clear();
                first_error = None;
            }
            Err(error) => {
                first_error.get_or_insert(error);
                word.push(',');
            }
        }
    }
    match first_error {
        Some(error) => Err(error.to_string()),
        None => Ok(Ciphers(ciphers)),
    }
}

/// Parses a UUID, which in a header is any text.
pub(crate) fn uuid(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Parses a decimal or `0x` hexadecimal number.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| "not a number".to_owned())
}

/// Parses the length of a log: at least some lines, so that every file has the newest one.
pub(crate) fn log_limit(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size < 4096 { Err("less than 4096 bytes".to_owned()) } else { Ok(size) })
}

/// Parses a size in bytes with an optional unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "not a size".to_owned())?;
    let mut unit = unit.chars();
    let Some(letter) = unit.next() else { return Ok(number) };
    let base: u64 = match unit.as_str() {
        "" | "iB" => 1024,
        "B" => 1000,
        _ => return Err(format!("unknown unit in '{text}'")),
    };
    let factor = match letter.to_ascii_uppercase() {
        'S' if base == 1024 && unit.as_str().is_empty() => 512,
        'K' => base,
        'M' => base.pow(2),
        'G' => base.pow(3),
        'T' => base.pow(4),
        _ => return Err(format!("unknown unit in '{text}'")),
    };
    number.checked_mul(factor).ok_or_else(|| "the size exceeds 64 bits".to_owned())
}

/// Parses a number of sectors of 512 bytes, or a size with a unit, and returns sectors.
pub(crate) fn sectors(text: &str) -> Result<u64, String> {
    if let Ok(sectors) = count(text) {
        return Ok(sectors);
    }
    let bytes = size(text)?;
    if bytes.is_multiple_of(512) { Ok(bytes / 512) } else { Err("not a multiple of 512 bytes".to_owned()) }
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
    fn size_counts_in_1024_unless_unit_ends_in_b() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("3S", 1536),
            ("2s", 1024),
            ("1K", 1024),
            ("1k", 1024),
            ("1KiB", 1024),
            ("1KB", 1000),
            ("2M", 2 << 20),
            ("2MB", 2_000_000),
            ("3GiB", 3 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "K", "-1", "+1", "1 K", "1KBB", "1Ki", "1kib", "1X", "1SB", "99999999999999999999", "20000000T"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn count_is_decimal_or_hexadecimal() {
        assert_eq!(count("4096"), Ok(4096));
        assert_eq!(count("0x1F"), Ok(31));
        for text in ["", "-1", "+1", "0x", "0x+1", "1K", "4 "] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sectors_are_counted_or_converted_from_size() {
        for (text, sectors_of_it) in [("7", 7), ("0x10", 16), ("7S", 7), ("1K", 2), ("1MiB", 2048), ("512KB", 1000)] {
            assert_eq!(sectors(text), Ok(sectors_of_it), "{text}");
        }
        for text in ["", "1KB", "K", "-1", "20000000T"] {
            assert!(sectors(text).is_err(), "{text}");
        }
    }

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
