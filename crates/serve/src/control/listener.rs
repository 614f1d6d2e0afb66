//! Listening sockets of the control thread: for commands, and for scrapers of metrics.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use inlock_frontend::connect::is_listening;

use crate::error::{Error, Result, ResultExt};
use crate::listen::{Listen, resolve};
use crate::socket;
use inlock_open::path_text;

/// A listening socket. Its path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Address as on the command line, with the actual port.
    pub address: String,
    path: Option<PathBuf>,
}

impl Listener {
    /// Takes a socket whose path another owner removes.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, address: String::new(), path: None }
    }

    /// Listens for scrapers, on loopback addresses only unless `insecure`.
    pub fn bind(at: &Listen, insecure: bool) -> Result<Self> {
        match at {
            Listen::Unix(path) => Self::bind_unix(path),
            Listen::Tcp { host, port } => {
                let address = resolve(host, *port)?;
                check_tcp(address, insecure)?;
                let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
                    std::io::ErrorKind::AddrInUse => Error::AddressInUse { address: address.to_string() },
                    _ => Error::Failed { what: format!("cannot listen on {address}"), source: error.into() },
                })?;
                listener.set_nonblocking(true)?;
                let address = format!("tcp:{}", listener.local_addr()?);
                Ok(Self { socket: listener.into(), address, path: None })
            }
        }
    }

    /// Listens at a path, which only its owner can use. A socket that no process listens on is replaced.
    pub fn bind_unix(path: &Path) -> Result<Self> {
        let path = &std::path::absolute(path)?;
        let shown = path.display();
        if let Ok(found) = std::fs::symlink_metadata(path)
            && (!found.file_type().is_socket() || is_listening(path))
        {
            return Err(Error::AddressInUse { address: shown.to_string() });
        }
        let listener = socket::listen(path).with_context(|| format!("cannot listen on {shown}"))?;
        Ok(Self {
            socket: listener.into(),
            address: format!("unix:{}", path_text::text_of(path)),
            path: Some(path.to_owned()),
        })
    }
}

/// Refuses an address that is not loopback. Metrics tell when and how much a volume is used, and nothing of its
/// contents: users of this machine may read them.
fn check_tcp(address: SocketAddr, insecure: bool) -> Result<()> {
    if address.ip().is_loopback() || insecure { Ok(()) } else { Err(Error::NotLoopback(address)) }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_in_use_or_of_another_kind_is_refused_and_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let refused = || matches!(Listener::bind_unix(&path), Err(Error::AddressInUse { .. }));
        let first = Listener::bind(&Listen::Unix(path.clone()), false).unwrap();
        assert_eq!(first.address, format!("unix:{}", path.display()));
        assert!(refused(), "another one listens");
        drop(first);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(Listener::bind_unix(&path).unwrap());
        std::fs::write(&path, "text").unwrap();
        assert!(refused(), "a file");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn tcp_address_is_loopback_free_and_never_waited_for() {
        let tcp = |host: &str, port| Listen::Tcp { host: host.to_owned(), port };
        let refused = Listener::bind(&tcp("0.0.0.0", 0), false).unwrap_err();
        assert!(matches!(refused, Error::NotLoopback(_)), "{refused}");
        drop(Listener::bind(&tcp("0.0.0.0", 0), true).unwrap());
        let first = Listener::bind(&tcp("127.0.0.1", 0), false).unwrap();
        assert!(rustix::fs::fcntl_getfl(&first.socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        let port = first.address.rsplit_once(':').unwrap().1.parse().unwrap();
        let refused = Listener::bind(&tcp("127.0.0.1", port), false).unwrap_err();
        assert!(matches!(refused, Error::AddressInUse { .. }), "{refused}");
        let unknown = Listener::bind(&tcp("192.0.2.1", 0), true).unwrap_err();
        assert!(matches!(unknown, Error::Failed { .. }), "{unknown}");
    }
}
