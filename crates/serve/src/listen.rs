//! Addresses to listen on.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use inlock_open::path_text;

use crate::error::{Error, Result, ResultExt};

/// Address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
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
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut found = (host, port).to_socket_addrs().with_context(|| format!("cannot find the address of '{host}'"))?;
    found.next().ok_or_else(|| Error::other(format!("'{host}' has no address")))
}

impl FromStr for Listen {
    type Err = String;

    /// Parses `unix:PATH` or `tcp:HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // sockaddr_un has room for 108 bytes with the terminating zero.
            let path = path_text::path_of(path);
            return match path.as_os_str().len() {
                0 => Err("the path of the unix socket is missing".to_owned()),
                1..=107 => Ok(Self::Unix(path)),
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
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_unix_or_tcp() {
        assert_eq!("unix:/tmp/s".parse(), Ok(Listen::Unix("/tmp/s".into())));
        assert_eq!("tcp:localhost:0".parse(), Ok(Listen::Tcp { host: "localhost".into(), port: 0 }));
        assert_eq!("tcp:[::1]:10809".parse(), Ok(Listen::Tcp { host: "::1".into(), port: 10809 }));
        let long = format!("unix:{}", "x".repeat(108));
        for text in ["unix:", "tcp:host", "tcp::1", "tcp:h:x", "tcp:h:65536", "/tmp/s", "", long.as_str()] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
