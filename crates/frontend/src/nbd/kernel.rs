//! The kernel's NBD driver as client: `/dev/nbdN` on an export of a server in this process.
//!
//! [`NbdDevice::attach`] speaks the handshake over the server's unix socket and hands the connections to the kernel through
//! netlink. When this process dies the device waits a while for another one, which hands it new connections.
//! Source: `include/uapi/linux/nbd-netlink.h` and `drivers/block/nbd.c`'s documentation of its attributes.

use super::netlink::{self, Attributes, Socket};
use rustix::io::Errno;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

/// Commands.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// Attributes.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;

/// How long requests wait for a process to come back, in seconds.
const WAITS_SECS: u64 = 60 * 60;

/// How long a server may take in the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// The handshake's magic numbers, options and replies: doc/proto.md.
const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
/// Fixed newstyle, and no padding.
const CLIENT_FLAGS: u32 = 3;

/// A device that cannot be attached or detached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelNbdError {
    /// There is no NBD driver here.
    #[error("this kernel has no NBD driver (modprobe nbd)")]
    NoDriver,
    /// Only root may.
    #[error("NBD devices are not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// The server does not answer as it should.
    #[error("cannot connect to the server: {0}")]
    Server(#[source] io::Error),
    /// The driver refuses.
    #[error("the NBD driver cannot {what}: {source}")]
    Driver {
        /// What it was to do.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions<'a> {
    /// The export's name.
    pub export: &'a str,
    /// Logical block: a data unit, 512 to 4096.
    pub block: usize,
    /// Connections, each a queue of the device.
    pub connections: usize,
    /// What tells this volume from others, for whoever looks at the device.
    pub identifier: &'a str,
}

/// A device. It stays when this is dropped: [`NbdDevice::detach`] takes it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDevice {
    index: u32,
    node: PathBuf,
    identifier: String,
}

/// Whether this kernel has the driver.
pub fn is_available() -> bool {
    Path::new("/sys/module/nbd").exists()
}

/// The number of the device with this node.
pub fn number_of(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/nbd")?.parse().ok()
}

impl NbdDevice {
    /// Connects a free device to the server that listens at `socket`.
    pub fn attach(socket: &Path, options: &NbdOptions<'_>) -> Result<Self, KernelNbdError> {
        Self::connect(socket, options, None)
    }

    /// Connects the device with this number, whose server died, to the one that listens at `socket`.
    pub fn reattach(number: u32, socket: &Path, options: &NbdOptions<'_>) -> Result<Self, KernelNbdError> {
        Self::connect(socket, options, Some(number))
    }

    fn connect(socket: &Path, options: &NbdOptions<'_>, number: Option<u32>) -> Result<Self, KernelNbdError> {
        let mut driver = open()?;
        let mut connections = Vec::new();
        let mut export = Export::default();
        for _ in 0..options.connections.max(1) {
            let (stream, found) = handshake(socket, options.export).map_err(KernelNbdError::Server)?;
            connections.push(OwnedFd::from(stream));
            export = found;
        }
        let mut sockets = Attributes::default();
        for connection in &connections {
            let item = Attributes::default().with(SOCK_FD, &connection.as_raw_fd().cast_unsigned().to_ne_bytes());
            sockets = sockets.with_nested(SOCK_ITEM, &item);
        }
        let mut asked = Attributes::default();
        if let Some(number) = number {
            asked = asked.with(INDEX, &number.to_ne_bytes());
        }
        asked = asked
            .with(SIZE_BYTES, &export.len.to_ne_bytes())
            .with(BLOCK_SIZE_BYTES, &(options.block as u64).clamp(512, 4096).to_ne_bytes())
            .with(SERVER_FLAGS, &u64::from(export.flags).to_ne_bytes())
            .with(DEAD_CONN_TIMEOUT, &WAITS_SECS.to_ne_bytes())
            .with(BACKEND_IDENTIFIER, &terminated(options.identifier))
            .with_nested(SOCKETS, &sockets);
        let command = if number.is_some() { RECONFIGURE } else { CONNECT };
        let answer = driver.request(command, VERSION, &asked).map_err(failed("connect a device"))?;
        let index = number.or_else(|| netlink::number(&answer, INDEX));
        let index = index.ok_or_else(|| failed("connect a device")(io::ErrorKind::InvalidData.into()))?;
        Ok(Self { index, node: PathBuf::from(format!("/dev/nbd{index}")), identifier: options.identifier.to_owned() })
    }

    /// The device at `node`, attached earlier, as long as it still belongs to `identifier`.
    pub fn find(node: &Path, identifier: &str) -> Option<Self> {
        let index = number_of(node)?;
        let backend = fs::read_to_string(format!("/sys/block/nbd{index}/backend")).ok()?;
        let found = || Self { index, node: node.to_owned(), identifier: identifier.to_owned() };
        (backend.trim_end() == identifier).then(found)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.index
    }

    /// `/dev/nbdN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Whether it is still connected.
    pub fn is_attached(&self) -> bool {
        Path::new(&format!("/sys/block/nbd{}/pid", self.index)).exists()
    }

    /// Tells the driver how long the export is now, while it is in use. The driver asks no server; what its answers say is
    /// up to whoever changed the length there before.
    pub fn update_len(&self, len: u64) -> Result<(), KernelNbdError> {
        let asked = Attributes::default()
            .with(INDEX, &self.index.to_ne_bytes())
            .with(SIZE_BYTES, &len.to_ne_bytes())
            // Without it the driver refuses; with it, it refuses where the device has become another volume's.
            .with(BACKEND_IDENTIFIER, &terminated(&self.identifier));
        open()?.request(RECONFIGURE, VERSION, &asked).map(drop).map_err(failed("change the device's length"))
    }

    /// Takes it away. Whoever still uses it gets errors: ask before.
    pub fn detach(&self) -> Result<(), KernelNbdError> {
        let asked = Attributes::default().with(INDEX, &self.index.to_ne_bytes());
        match open()?.request(DISCONNECT, VERSION, &asked) {
            Ok(_) => Ok(()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) && !self.is_attached() => Ok(()),
            Err(error) => Err(failed("disconnect the device")(error)),
        }
    }
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn open() -> Result<Socket, KernelNbdError> {
    Socket::open(FAMILY).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => KernelNbdError::NoDriver,
        _ => failed("be reached")(error),
    })
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> KernelNbdError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => KernelNbdError::NotPermitted(source),
        _ => KernelNbdError::Driver { what, source },
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Export {
    len: u64,
    flags: u16,
}

/// A connection that has been brought to the transmission phase, where the kernel takes over.
fn handshake(socket: &Path, name: &str) -> io::Result<(UnixStream, Export)> {
    let broken = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let greeting: [u8; 18] = receive(&mut stream)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    if number(&greeting[..8]) != MAGIC || number(&greeting[8..16]) != OPTION_MAGIC {
        return Err(broken("it is no NBD server"));
    }
    let mut asked = CLIENT_FLAGS.to_be_bytes().to_vec();
    asked.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    asked.extend_from_slice(&OPTION_GO.to_be_bytes());
    asked.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes());
    asked.extend_from_slice(&(name.len() as u32).to_be_bytes());
    asked.extend_from_slice(name.as_bytes());
    // No information is asked for beyond what always comes.
    asked.extend_from_slice(&[0, 0]);
    stream.write_all(&asked)?;
    let mut export = None;
    loop {
        let head: [u8; 20] = receive(&mut stream)?;
        let len = number(&head[16..]) as usize;
        if number(&head[..8]) != REPLY_MAGIC || len > 64 << 10 {
            return Err(broken("the server's reply is broken"));
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        match (number(&head[12..16]) as u32, body.as_slice()) {
            (REPLY_ACK, _) => break,
            // Of the pieces of information, that of the export: its length and its flags.
            (REPLY_INFO, [0, 0, facts @ ..]) if facts.len() == 10 => {
                export = Some(Export { len: number(&facts[..8]), flags: number(&facts[8..]) as u16 });
            }
            (REPLY_INFO, _) => {}
            _ => return Err(broken("the server refuses the export")),
        }
    }
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok((stream, export.ok_or_else(|| broken("the server does not say how long the export is"))?))
}

fn receive<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
