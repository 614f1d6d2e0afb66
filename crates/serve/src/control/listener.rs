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
