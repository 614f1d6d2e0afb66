//! Strict reading of LUKS2's JSON text, and typed access to its fields.
//!
//! An attacker may choose the JSON area, up to 4 MiB. Depth and number of values are bounded during parsing, so the
//! tree takes at most some 20 MiB. A duplicate key in an object is refused, since parsers could disagree on its value.

use crate::byte_text::text_of_bytes;
use crate::printable::Excerpt;
use crate::violation::{HeaderFault, HeaderPath, Violation};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

/// Maximum nesting of arrays and objects; LUKS2 itself needs 5.
pub(super) const MAX_DEPTH: usize = 32;
/// Maximum number of values in a text; LUKS2 itself, with all its objects, needs some 2000.
pub(super) const MAX_VALUES: usize = 1 << 16;

/// Returns the JSON text in an area: an object, a zero byte, and zeroes to the end. Bytes in its strings may be other
/// than UTF-8.
pub(super) fn text_of_area(area: &[u8]) -> Result<Cow<'_, str>, Violation> {
    let end = area.iter().position(|&byte| byte == 0).ok_or(Violation::JsonFrame)?;
    let (text, tail) = area.split_at(end);
    if tail.iter().any(|&byte| byte != 0) {
        return Err(Violation::JsonTail);
    }
    if !(text.starts_with(b"{") && text.ends_with(b"}")) {
        return Err(Violation::JsonFrame);
    }
    Ok(text_of_bytes(text))
}

/// Parses the text of an object.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, Violation> {
    let state = RefCell::new(State { values: 0, violation: None });
    let mut reader = serde_json::Deserializer::from_str(text);
    let value =
        Strict { depth: 0, state: &state }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Violation::JsonFrame),
        Err(error) => Err(state
            .into_inner()
            .violation
            .unwrap_or(Violation::JsonSyntax { line: error.line() as u64, column: error.column() as u64 })),
    }
}

struct State {
    values: usize,
    violation: Option<Violation>,
}

struct Strict<'s> {
    depth: usize,
    state: &'s RefCell<State>,
}

impl<'s> Strict<'s> {
    /// Returns the parser of a value inside this one.
    fn inner(&self) -> Strict<'s> {
        Strict { depth: self.depth + 1, state: self.state }
    }

    fn refuse<T, E: Error>(&self, violation: Violation) -> Result<T, E> {
        self.state.borrow_mut().violation = Some(violation);
        Err(E::custom("refused"))
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.state.borrow_mut().values += 1;
        if self.state.borrow().values > MAX_VALUES {
            return self.refuse(Violation::JsonValues(MAX_VALUES));
        }
        if self.depth > MAX_DEPTH {
            return self.refuse(Violation::JsonDepth(MAX_DEPTH));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self.inner())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return self.refuse(Violation::JsonDuplicateKey(Excerpt::new(&key)));
            }
            let value = access.next_value_seed(self.inner())?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Parses a number in the form that LUKS2 uses for 64 bits: a string of decimal digits only.
pub(super) fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parses the number that is the name of an object: decimal, without leading zeroes.
pub(super) fn object_number(name: &str) -> Option<u32> {
    let number = u32::try_from(decimal(name)?).ok()?;
    (name.len() == 1 || !name.starts_with('0')).then_some(number)
}

/// An object of the tree, with its path for errors.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    header: &'static str,
    path: HeaderPath,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(header: &'static str, map: &'a Map<String, Value>) -> Self {
        Self { header, path: HeaderPath::ROOT, map }
    }

    /// Returns a fault at this path.
    pub(super) fn fault(&self, violation: Violation) -> HeaderFault {
        violation.at(self.header, self.path.clone())
    }

    pub(super) fn wrong(&self, field: &'static str, wanted: &'static str) -> HeaderFault {
        self.fault(Violation::WrongType { field, wanted })
    }

    pub(super) fn has_field(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    fn get(&self, field: &'static str) -> Result<&'a Value, HeaderFault> {
        self.map.get(field).ok_or_else(|| self.fault(Violation::Missing(field)))
    }

    /// Returns a top-level section.
    pub(super) fn section(&self, name: &'static str) -> Result<Self, HeaderFault> {
        let map = self.get(name)?.as_object().ok_or_else(|| self.wrong(name, "an object"))?;
        Ok(Self { header: self.header, path: HeaderPath::section(name), map })
    }

    /// Returns the objects of a section by number: at most `max`, with numbers below it.
    pub(super) fn objects(&self, section: &'static str, max: u32) -> Result<Vec<(u32, Self)>, HeaderFault> {
        let all = self.section(section)?;
        if all.map.len() > max as usize {
            return Err(all.fault(Violation::TooMany { count: all.map.len() as u64, max: max.into() }));
        }
        let mut objects = Vec::with_capacity(all.map.len());
        for (name, value) in all.map {
            let number = object_number(name).filter(|&number| number < max);
            let number = number.ok_or_else(|| all.fault(Violation::ObjectName(Excerpt::new(name))))?;
            let path = HeaderPath::object(section, number);
            let violation = Violation::WrongType { field: "value", wanted: "an object" };
            let map = value.as_object().ok_or_else(|| violation.at(self.header, path.clone()))?;
            objects.push((number, Self { header: self.header, path, map }));
        }
        objects.sort_by_key(|(number, _)| *number);
        Ok(objects)
    }

    /// Returns an object inside this one.
    pub(super) fn part(&self, field: &'static str) -> Result<Self, HeaderFault> {
        let map = self.get(field)?.as_object().ok_or_else(|| self.wrong(field, "an object"))?;
        Ok(Self { header: self.header, path: self.path.part(field), map })
    }

    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, HeaderFault> {
        self.get(field)?.as_str().ok_or_else(|| self.wrong(field, "a string"))
    }

    /// Returns a JSON number.
    pub(super) fn number(&self, field: &'static str, min: u32, max: u32) -> Result<u32, HeaderFault> {
        let value = self.get(field)?.as_u64().ok_or_else(|| self.wrong(field, "a whole number"))?;
        let (min, max) = (u64::from(min), u64::from(max));
        if !(min..=max).contains(&value) {
            return Err(self.fault(Violation::OutOfRange { field, value, min, max }));
        }
        Ok(value as u32)
    }

    /// Returns a JSON number without a fraction; one that does not fit is as large as fits.
    pub(super) fn integer(&self, field: &'static str) -> Result<i64, HeaderFault> {
        let value = self.get(field)?;
        let large = || value.as_u64().map(|_| i64::MAX);
        value.as_i64().or_else(large).ok_or_else(|| self.wrong(field, "a whole number"))
    }

    /// Returns a 64-bit number in a string.
    pub(super) fn decimal(&self, field: &'static str) -> Result<u64, HeaderFault> {
        decimal(self.text(field)?).ok_or_else(|| self.wrong(field, "a string of decimal digits for 64 bits"))
    }

    /// Returns 1 to `max` bytes in base64.
    pub(super) fn bytes(&self, field: &'static str, max: usize) -> Result<Vec<u8>, HeaderFault> {
        let text = self.text(field)?;
        let (value, max64) = (text.len() as u64 / 4 * 3, max as u64);
        if value > max64 + 3 {
            return Err(self.fault(Violation::OutOfRange { field, value, min: 1, max: max64 }));
        }
        let bytes = STANDARD.decode(text).map_err(|_| self.wrong(field, "base64"))?;
        if bytes.is_empty() || bytes.len() > max {
            return Err(self.fault(Violation::OutOfRange { field, value: bytes.len() as u64, min: 1, max: max64 }));
        }
        Ok(bytes)
    }

    /// Returns an array of strings.
    pub(super) fn texts(&self, field: &'static str) -> Result<Vec<&'a str>, HeaderFault> {
        let wrong = || self.wrong(field, "an array of strings");
        let array = self.get(field)?.as_array().ok_or_else(wrong)?;
        array.iter().map(|value| value.as_str().ok_or_else(wrong)).collect()
    }

    /// Returns an array of strings, which may be missing.
    pub(super) fn texts_if_any(&self, field: &'static str) -> Result<Vec<String>, HeaderFault> {
        let texts = if self.has_field(field) { self.texts(field)? } else { Vec::new() };
        Ok(texts.into_iter().map(str::to_owned).collect())
    }

    /// Returns the numbers of objects of `section`, all of which must exist.
    pub(super) fn references(
        &self,
        section: &'static str,
        exists: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, HeaderFault> {
        let dangling = |name: &str| self.fault(Violation::Dangling { section, object: Excerpt::new(name) });
        let mut numbers = Vec::new();
        for name in self.texts(section)? {
            let number = object_number(name).filter(|&number| exists(number)).ok_or_else(|| dangling(name))?;
            // A duplicate reference is ignored.
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_a_number() {
        assert_eq!(decimal("0"), Some(0));
        assert_eq!(decimal("18446744073709551615"), Some(u64::MAX));
        for bad in ["", " 1", "1 ", "+1", "-1", "0x10", "1e3", "1.0", "18446744073709551616", "１", "1\0"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
        assert_eq!(object_number("31"), Some(31));
        for bad in ["", "00", "01", "-0", "4294967296", "a"] {
            assert_eq!(object_number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn json_tree_is_bounded_and_has_no_duplicate_keys() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(parse(&nested(MAX_DEPTH + 1)), Err(Violation::JsonDepth(MAX_DEPTH)));
        assert_eq!(parse(&nested(200_000)), Err(Violation::JsonDepth(MAX_DEPTH)));
        let long = |count: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(count));
        assert!(parse(&long(MAX_VALUES - 3)).is_ok());
        assert_eq!(parse(&long(MAX_VALUES - 2)), Err(Violation::JsonValues(MAX_VALUES)));
        let double = parse(r#"{"a":{"b":1,"c":2,"b":3}}"#);
        assert_eq!(double, Err(Violation::JsonDuplicateKey(Excerpt::new("b"))));
        assert!(matches!(parse(r#"{"a":1} {"#), Err(Violation::JsonSyntax { line: 1, .. })));
    }

    #[test]
    fn text_ends_with_its_area_or_in_zeroes() {
        assert_eq!(text_of_area(b"{}\0\0"), Ok("{}".into()));
        assert_eq!(text_of_area(b"{}"), Err(Violation::JsonFrame));
        assert_eq!(text_of_area(b"\0\0\0"), Err(Violation::JsonFrame));
        assert_eq!(text_of_area(b" {}\0"), Err(Violation::JsonFrame));
        assert_eq!(text_of_area(b"{}\0x\0"), Err(Violation::JsonTail));
        assert_eq!(text_of_area(b"{\n\"\xff\"}\0"), Ok("{\n\"\u{10ffff}\"}".into()));
        assert!(parse(&text_of_area(b"{\"a\xff\": \"\xe9\"}\0").unwrap()).is_ok());
        assert!(matches!(parse(&text_of_area(b"{\xff}\0").unwrap()), Err(Violation::JsonSyntax { .. })));
    }
}
