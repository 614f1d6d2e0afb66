//! Reading a configuration with serde: values are parsed from the words of the command line. A number may be a number
//! of the format, too.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::de::value::Error as ValueError;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

use super::values::{self, Choice, Ciphers};
use crate::table::TableText;

/// Returns the names of the keys of `T`, which is a struct.
pub(super) fn names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // It fails: there are no values.
    let _ = T::deserialize(Fields(&mut names));
    names
}

/// A deserializer that keeps the names of the fields that it is asked for.
struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("no values"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A word, or a number, which is the word that it is written as.
struct Word;

impl Visitor<'_> for Word {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

fn word<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    value.deserialize_any(Word).map_err(|_| D::Error::custom("expected a string or a number"))
}

fn parsed<'de, D: Deserializer<'de>, T>(
    value: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let word = word(value)?;
    parse(&word).map(Some).map_err(|why| D::Error::custom(format!("invalid value '{word}': {why}")))
}

pub(super) fn flag<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    bool::deserialize(value).map_err(|_| D::Error::custom("expected true or false"))
}

pub(super) fn text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    word(value).map(Some)
}

pub(super) fn table<'de, D: Deserializer<'de>>(value: D) -> Result<Option<TableText>, D::Error> {
    word(value).map(|word| Some(OsString::from(word).into()))
}

pub(super) fn path<'de, D: Deserializer<'de>>(value: D) -> Result<Option<PathBuf>, D::Error> {
    parsed(value, values::path)
}

pub(super) fn number<'de, D: Deserializer<'de>, T: TryFrom<i64>>(value: D) -> Result<Option<T>, D::Error> {
    parsed(value, values::number)
}

pub(super) fn count<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    parsed(value, values::count)
}

pub(super) fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    parsed(value, values::size)
}

pub(super) fn sectors<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    parsed(value, values::sectors)
}

pub(super) fn ciphers<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Ciphers>, D::Error> {
    parsed(value, values::ciphers)
}

pub(super) fn uuid<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    parsed(value, values::uuid)
}

pub(super) fn choice<'de, D: Deserializer<'de>, T: Choice>(value: D) -> Result<Option<T>, D::Error> {
    parsed(value, values::choice)
}
