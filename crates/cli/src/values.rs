//! Values of options: byte ranges, addresses to listen on, and those of the library.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
pub(crate) use inlock_open::any_cipher::integrity_in_header;
use inlock_open::config::values::{self, Choice};
pub(crate) use inlock_open::config::values::{ciphers, count, number, sectors, size, uuid};
use inlock_open::path_text;
pub(crate) use inlock_open::range::Range;

/// Address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A host name or address, and a port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port. 0: the system chooses one.
        port: u16,
    },
}

/// Resolves the first address of a host.
pub(crate) fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let mut found = (host, port).to_socket_addrs().with_context(|| format!("cannot find the address of '{host}'"))?;
    found.next().with_context(|| format!("'{host}' has no address"))
}

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

/// Parses an argument as [`listen`] does; the path may have any bytes.
pub(crate) fn listen_argument() -> impl TypedValueParser<Value = Listen> {
    OsStringValueParser::new().try_map(|text| listen(&path_text::text_of(text.as_ref())))
}

/// Parses `unix:PATH` or `tcp:HOST:PORT`.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        // sockaddr_un has room for 108 bytes with the terminating zero.
        let path = path_text::path_of(path);
        return match path.as_os_str().len() {
            0 => Err("the path of the unix socket is missing".to_owned()),
            1..=107 => Ok(Listen::Unix(path)),
            _ => Err("the path of a unix socket has at most 107 bytes".to_owned()),
        };
    }
    let Some(address) = text.strip_prefix("tcp:") else {
        return Err("the address is neither unix:PATH nor tcp:HOST:PORT".to_owned());
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| "the port is missing: tcp:HOST:PORT".to_owned())?;
    let port = port.parse().map_err(|_| format!("'{port}' is not a port"))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err("the host is missing: tcp:HOST:PORT".to_owned());
    }
    Ok(Listen::Tcp { host: host.to_owned(), port })
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

    #[test]
    fn address_is_unix_or_tcp() {
        assert_eq!(listen("unix:/tmp/s"), Ok(Listen::Unix("/tmp/s".into())));
        assert_eq!(listen("tcp:localhost:0"), Ok(Listen::Tcp { host: "localhost".into(), port: 0 }));
        assert_eq!(listen("tcp:[::1]:10809"), Ok(Listen::Tcp { host: "::1".into(), port: 10809 }));
        let long = format!("unix:{}", "x".repeat(108));
        for text in ["unix:", "tcp:host", "tcp::1", "tcp:h:x", "tcp:h:65536", "/tmp/s", "", long.as_str()] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
