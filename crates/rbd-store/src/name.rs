//! Names of images, in QEMU's syntax.

use std::fmt;

/// Begin of every name.
const SCHEME: &str = "rbd:";

/// Value of `conf` for no configuration file.
pub(crate) const NO_CONF: &str = "none";

/// Longest name in bytes.
const MAX_LEN: usize = 4096;

/// Name of an image: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAP][:id=USER][:conf=FILE][:OPTION=VALUE]`.
///
/// A backslash takes the meaning from the character behind it, as in QEMU.
#[derive(Clone, PartialEq, Eq)]
pub struct RbdName {
    text: String,
    pub(crate) pool: String,
    pub(crate) namespace: String,
    pub(crate) image: String,
    pub(crate) snapshot: Option<String>,
    /// Client of the cluster, without `client.`.
    pub(crate) id: Option<String>,
    pub(crate) conf: Option<String>,
    /// Options of Ceph, in the order of the name.
    pub(crate) options: Vec<(String, String)>,
}

/// Reason why a text is no name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Another kind of name.
    #[error("the name of an image begins with rbd:")]
    Scheme,
    /// Too long.
    #[error("the name is longer than {MAX_LEN} bytes")]
    TooLong,
    /// No pool or image.
    #[error("the name has no {0}")]
    Missing(&'static str),
    /// An option without a value.
    #[error("an option behind the image is written OPTION=VALUE")]
    Option,
    /// An option twice.
    #[error("an option is given twice")]
    Twice,
    /// A key, which names would show to everybody.
    #[error("a key does not belong into a name, which others can read: write keyfile=FILE or keyring=FILE")]
    Key,
    /// Zero or a control character.
    #[error("the name has control characters")]
    Control,
    /// A backslash at the end.
    #[error("the name ends with a backslash")]
    Backslash,
    /// More parts than pool, namespace and image.
    #[error("the name has more parts than POOL/NAMESPACE/IMAGE")]
    Parts,
}

/// Character of a name, and whether a backslash stands before it.
type Char = (char, bool);

fn unescape(text: &str) -> Result<Vec<Char>, NameError> {
    let mut chars = text.chars();
    let mut found = Vec::with_capacity(text.len());
    while let Some(c) = chars.next() {
        match c {
            '\\' => found.push((chars.next().ok_or(NameError::Backslash)?, true)),
            _ => found.push((c, false)),
        }
    }
    Ok(found)
}

fn escape(part: &str, into: &mut String) {
    for c in part.chars() {
        if matches!(c, '\\' | '/' | '@' | ':' | '=') {
            into.push('\\');
        }
        into.push(c);
    }
}

/// Splits at a separator that no backslash stands before.
fn split_once(text: &[Char], separator: char) -> Option<(&[Char], &[Char])> {
    let at = text.iter().position(|c| *c == (separator, false))?;
    Some((&text[..at], &text[at + 1..]))
}

fn plain(text: &[Char]) -> String {
    text.iter().map(|(c, _)| *c).collect()
}

fn present(text: &[Char], part: &'static str) -> Result<String, NameError> {
    if text.is_empty() { Err(NameError::Missing(part)) } else { Ok(plain(text)) }
}

impl RbdName {
    /// Returns whether a text begins like the name of an image.
    pub fn is_name(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Parses a name.
    ///
    /// # Errors
    ///
    /// [`NameError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let rest = text.strip_prefix(SCHEME).ok_or(NameError::Scheme)?;
        if text.len() > MAX_LEN {
            return Err(NameError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        let chars = unescape(rest)?;
        let (path, mut options) = match split_once(&chars, ':') {
            Some((path, options)) => (path, Some(options)),
            None => (chars.as_slice(), None),
        };
        // The snapshot may have a slash, so it is cut off first.
        let (path, snapshot) = match split_once(path, '@') {
            Some((path, snapshot)) => (path, Some(present(snapshot, "snapshot behind @")?)),
            None => (path, None),
        };
        let (pool, path) = split_once(path, '/').ok_or(NameError::Missing("image: POOL/IMAGE"))?;
        let (namespace, image) = match split_once(path, '/') {
            Some((namespace, image)) => (present(namespace, "namespace")?, image),
            None => (String::new(), path),
        };
        if image.contains(&('/', false)) {
            return Err(NameError::Parts);
        }
        let mut name = Self {
            text: text.to_owned(),
            pool: present(pool, "pool")?,
            namespace,
            image: present(image, "image")?,
            snapshot,
            id: None,
            conf: None,
            options: Vec::new(),
        };
        while let Some(some) = options {
            let (option, rest) = match split_once(some, ':') {
                Some((option, rest)) => (option, Some(rest)),
                None => (some, None),
            };
            name.add_option(option)?;
            options = rest;
        }
        if let Some(conf) = name.conf.as_deref().filter(|conf| *conf != NO_CONF) {
            // The process may leave its directory.
            let path = std::path::absolute(conf).ok().and_then(|path| path.to_str().map(ToOwned::to_owned));
            name.conf = path.or(name.conf);
        }
        name.text = name.to_text();
        Ok(name)
    }

    fn to_text(&self) -> String {
        let mut text = String::from(SCHEME);
        escape(&self.pool, &mut text);
        for part in [&self.namespace, &self.image].into_iter().filter(|part| !part.is_empty()) {
            text.push('/');
            escape(part, &mut text);
        }
        if let Some(snapshot) = &self.snapshot {
            text.push('@');
            escape(snapshot, &mut text);
        }
        let id = self.id.as_ref().map(|id| ("id", id));
        let conf = self.conf.as_ref().map(|conf| ("conf", conf));
        let others = self.options.iter().map(|(option, value)| (option.as_str(), value));
        for (option, value) in id.into_iter().chain(conf).chain(others) {
            text.push(':');
            escape(option, &mut text);
            text.push('=');
            escape(value, &mut text);
        }
        text
    }

    fn add_option(&mut self, option: &[Char]) -> Result<(), NameError> {
        let (key, value) = split_once(option, '=').ok_or(NameError::Option)?;
        let (key, value) = (plain(key), plain(value));
        if key.is_empty() || value.is_empty() {
            return Err(NameError::Option);
        }
        let place = match key.as_str() {
            "id" => &mut self.id,
            "conf" => &mut self.conf,
            "key" => return Err(NameError::Key),
            _ if self.options.iter().any(|(other, _)| *other == key) => return Err(NameError::Twice),
            _ => {
                self.options.push((key, value));
                return Ok(());
            }
        };
        if place.replace(value).is_some() { Err(NameError::Twice) } else { Ok(()) }
    }

    /// Returns the part of a text, a name or not, without options, which may include a key.
    pub fn without_options(text: &str) -> &str {
        let options = |(at, _): &(usize, char)| *at >= SCHEME.len() && !text[..*at].ends_with('\\');
        let at = text.char_indices().filter(|(_, c)| *c == ':').find(options);
        at.map_or(text, |(at, _)| &text[..at])
    }

    /// Returns the name with all of its options.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the image without options, as Ceph's own commands write it.
    pub(crate) fn image_spec(&self) -> String {
        let Self { pool, namespace, image, .. } = self;
        let path = if namespace.is_empty() { format!("{pool}/{image}") } else { format!("{pool}/{namespace}/{image}") };
        match &self.snapshot {
            Some(snapshot) => format!("{path}@{snapshot}"),
            None => path,
        }
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.image_spec())
    }
}

impl fmt::Debug for RbdName {
    /// Without options, one of which may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RbdName({})", self.image_spec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_the_parts_of_qemu() {
        let name = RbdName::parse(r"rbd:p\/q/n\@s/i\:m@s/n\@p:id=a\=b:conf=/etc/c\:d:mon_host=1.2.3.4\:6789").unwrap();
        assert_eq!((name.pool.as_str(), name.namespace.as_str(), name.image.as_str()), ("p/q", "n@s", "i:m"));
        assert_eq!(name.snapshot.as_deref(), Some("s/n@p"));
        assert_eq!((name.id.as_deref(), name.conf.as_deref()), (Some("a=b"), Some("/etc/c:d")));
        assert_eq!(name.options, [("mon_host".to_owned(), "1.2.3.4:6789".to_owned())]);
        let short = RbdName::parse("rbd:rbd/image").unwrap();
        assert_eq!((short.namespace.as_str(), short.snapshot, short.id), ("", None, None));
        assert_eq!(short.text, "rbd:rbd/image");
    }

    #[test]
    fn text_of_a_name_is_parsed_to_the_same_name() {
        for text in
            [r"rbd:p\/q\/n\@s/i\:m@s\/n\@p:id=a\=b:conf=/etc/c\:d:mon\=host=x", "rbd:a/b", "rbd:a/b/c@d:conf=none"]
        {
            let name = RbdName::parse(text).unwrap();
            assert_eq!(RbdName::parse(name.as_str()).unwrap(), name, "{text}");
        }
        let relative = RbdName::parse("rbd:a/b:conf=c").unwrap();
        assert!(relative.conf.unwrap().starts_with('/') && relative.text.contains(r":conf=\/"), "{}", relative.text);
    }

    #[test]
    fn bad_name_is_refused_with_its_reason() {
        let of_len = |len| format!("rbd:p/{}", "x".repeat(len - "rbd:p/".len()));
        assert!(RbdName::parse(&of_len(MAX_LEN)).is_ok());
        let long = of_len(MAX_LEN + 1);
        for (text, error) in [
            ("nbd:p/i", NameError::Scheme),
            ("rbd:", NameError::Missing("image: POOL/IMAGE")),
            ("rbd:pool", NameError::Missing("image: POOL/IMAGE")),
            (r"rbd:pool\/image", NameError::Missing("image: POOL/IMAGE")),
            ("rbd:/image", NameError::Missing("pool")),
            ("rbd:pool/", NameError::Missing("image")),
            ("rbd:pool//i", NameError::Missing("namespace")),
            ("rbd:p/n/i/j", NameError::Parts),
            ("rbd:p/i@", NameError::Missing("snapshot behind @")),
            ("rbd:p/i:", NameError::Option),
            ("rbd:p/i:id", NameError::Option),
            ("rbd:p/i:id=", NameError::Option),
            ("rbd:p/i:=x", NameError::Option),
            (r"rbd:p/i:id\=x", NameError::Option),
            ("rbd:p/i:id=x:id=y", NameError::Twice),
            ("rbd:p/i:a=x:a=y", NameError::Twice),
            ("rbd:p/i\n", NameError::Control),
            ("rbd:p/i\0", NameError::Control),
            ("rbd:p/i:keyfile=f:key=secret", NameError::Key),
            (r"rbd:p/i\", NameError::Backslash),
            (&long, NameError::TooLong),
        ] {
            assert_eq!(RbdName::parse(text).unwrap_err(), error, "{text:?}");
        }
    }

    #[test]
    fn options_are_not_printed_for_debugging() {
        let name = RbdName::parse("rbd:p/i:keyfile=secret").unwrap();
        assert_eq!(format!("{name:?} {name}"), "RbdName(p/i) p/i");
        for (text, shown) in [
            ("rbd:p/i:key=s", "rbd:p/i"),
            (r"rbd:p\:x/i:key=s", r"rbd:p\:x/i"),
            ("rbd:key=s", "rbd:key=s"),
            ("rbd:", "rbd:"),
            ("rbd::key=s", "rbd:"),
        ] {
            assert_eq!(RbdName::without_options(text), shown);
        }
    }
}
