//! Values of options, as the command line and files have them: numbers, sizes, ciphers, words of a list.
//!
//! Sizes read as cryptsetup reads them: `S` is 512 bytes, `K M G T` and `KiB MiB GiB TiB` count in 1024, `KB MB GB TB`
//! in 1000.

use std::num::IntErrorKind;
use std::path::PathBuf;

use inlock_engine::store::file::IoMode;

use crate::any_cipher::AnyCipher;

/// A value that is one of a few words.
pub trait Choice: Copy + Send + Sync + 'static {
    /// The words, and what they mean.
    const CHOICES: &'static [(&'static str, Self)];
}

impl Choice for IoMode {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uring", Self::Uring), ("sync", Self::Sync)];
}

/// `engine`: what encrypts long requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The ciphers of this program.
    Software,
    /// Those of the kernel.
    AfAlg,
}

impl Choice for Engine {
    const CHOICES: &'static [(&'static str, Self)] = &[("software", Self::Software), ("afalg", Self::AfAlg)];
}

/// `holes`: content of holes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// What they decrypt to.
    Noise,
    /// Zeroes.
    Zero,
}

impl Choice for Holes {
    const CHOICES: &'static [(&'static str, Self)] = &[("noise", Self::Noise), ("zero", Self::Zero)];
}

/// Parses one of a few words.
pub fn choice<T: Choice>(text: &str) -> Result<T, String> {
    let chosen = T::CHOICES.iter().find(|(word, _)| *word == text);
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = T::CHOICES.iter().map(|(word, _)| *word).collect();
        format!("one of {}", words.join(", "))
    })
}

/// Cipher specifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ciphers(pub Vec<AnyCipher>);

/// Parses cipher specifications between commas, which some contain: `xchacha12,aes-adiantum-plain64,aes-xts-plain64`.
pub fn ciphers(text: &str) -> Result<Ciphers, String> {
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
pub fn uuid(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Parses the name of a file.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("empty".to_owned()) } else { Ok(text.into()) }
}

/// Parses a decimal number of a type with 16 or 32 bits.
pub fn number<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let number: i64 = text.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large".to_owned(),
        _ => "not a number".to_owned(),
    })?;
    let most = (1_i64 << (8 * size_of::<T>())) - 1;
    T::try_from(number).map_err(|_| format!("not a number from 0 to {most}"))
}

/// Parses a decimal or `0x` hexadecimal number.
pub fn count(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| "not a number".to_owned())
}

/// Parses a size in bytes with an optional unit.
pub fn size(text: &str) -> Result<u64, String> {
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
pub fn sectors(text: &str) -> Result<u64, String> {
    if let Ok(sectors) = count(text) {
        return Ok(sectors);
    }
    let bytes = size(text)?;
    if bytes.is_multiple_of(512) { Ok(bytes / 512) } else { Err("not a multiple of 512 bytes".to_owned()) }
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
    fn number_is_within_its_type() {
        assert_eq!((number("65535"), number("4294967295")), (Ok(u16::MAX), Ok(u32::MAX)));
        for text in ["-1", "65536", "9223372036854775807"] {
            assert_eq!(number::<u16>(text), Err("not a number from 0 to 65535".to_owned()), "{text}");
        }
        assert_eq!(number::<u32>("4294967296"), Err("not a number from 0 to 4294967295".to_owned()));
        assert_eq!(number::<u32>("9223372036854775808"), Err("the number is too large".to_owned()));
        for text in ["", "x", "0x1", "1K"] {
            assert_eq!(number::<u32>(text), Err("not a number".to_owned()), "{text}");
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
    fn choice_is_one_of_its_words() {
        assert_eq!(choice("zero"), Ok(Holes::Zero));
        assert_eq!(choice::<Engine>("x"), Err("one of software, afalg".to_owned()));
    }
}
