//! Names of running volumes.

/// A name that device-mapper uses without escaping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Checks a name: 1 to 127 bytes, of the characters that need no escaping in `/dev`.
    pub fn new(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte);
        match text {
            "" => Err("it is empty".to_owned()),
            "." | ".." | "control" => Err("it is reserved".to_owned()),
            _ if text.len() > 127 => Err("a name has at most 127 bytes".to_owned()),
            _ if !text.bytes().all(plain) => Err("a name has letters, digits and #+-.:=@_ only".to_owned()),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_device_mapper_escapes_is_refused() {
        let longest = "x".repeat(127);
        for name in ["a", "data-1_2.3", "#+-.:=@_", "-r", ".hidden", longest.as_str()] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
        let longer = "x".repeat(128);
        for name in ["", ".", "..", "control", "a/b", "/", "a b", "a\n", "a\0", "ä", "~x", longer.as_str()] {
            assert!(Name::new(name).is_err(), "{name:?}");
        }
    }
}
