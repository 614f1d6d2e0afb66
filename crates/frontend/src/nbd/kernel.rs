//! The kernel's NBD driver as client: `/dev/nbdN` on an export of a server in this process.
//!
//! [`NbdDevice::attach`] speaks the handshake over the server's unix socket and hands the connections to the kernel
//! through netlink. When this process dies the device waits a while for another one, which hands it new connections.
//! Source: `include/uapi/linux/nbd-netlink.h` and `drivers/block/nbd.c`'s documentation of its attributes.

use super::handshake::{OptionReply, option_bytes, parse_export};
use super::netlink::{self, Attributes, Socket};
use super::protocol::{INIT_MAGIC, OPTION_MAGIC, handshake_flag, option, option_reply};
use crate::connect;
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

/// Time in seconds for which requests wait for a new connection after the server died.
const DEAD_CONN_SECS: u64 = 60 * 60;

/// Maximum time of the server for each reply of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Failure to attach or detach a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelNbdError {
    /// The kernel has no NBD driver.
    #[error("this kernel has no NBD driver (modprobe nbd)")]
    NoDriver,
    /// The user may not use it.
    #[error("NBD devices are not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// The handshake with the server failed.
    #[error("cannot connect to the server: {0}")]
    Server(#[source] io::Error),
    /// The driver refused a command.
    #[error("the NBD driver cannot {what}: {source}")]
    Driver {
        /// The command.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Options of a device.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions<'a> {
    /// Name of the export.
    pub export: &'a str,
    /// Length of a logical block in bytes: a data unit, 512 to 4096.
    pub block: usize,
    /// Number of connections, each a queue of the device.
    pub connections: usize,
    /// Identifier of the volume, by which [`NbdDevice::find`] knows the device.
    pub identifier: &'a str,
}

impl Default for NbdOptions<'_> {
    /// Returns the default export, blocks of 512 bytes, one connection, and no identifier.
    fn default() -> Self {
        Self { export: "", block: 512, connections: 1, identifier: "" }
    }
}

/// A device. It stays attached when this is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDevice {
    index: u32,
    node: PathBuf,
    identifier: String,
}

/// Returns whether this kernel has the driver.
pub fn is_available() -> bool {
    Path::new("/sys/module/nbd").exists()
}

/// Returns the number of the device with this node.
pub fn number_of(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/nbd")?.parse().ok()
}

impl NbdDevice {
    /// Connects a free device to the server that listens at `socket`. Blocks.
    ///
    /// # Errors
    /// The handshake with the server fails, there is no driver, or the driver refuses.
    pub fn attach(socket: &Path, options: &NbdOptions<'_>) -> Result<Self, KernelNbdError> {
        Self::connect(socket, options, None)
    }

    /// Connects the device with this number, whose server died, to the server that listens at `socket`. Blocks.
    ///
    /// # Errors
    /// As [`NbdDevice::attach`].
    pub fn reattach(number: u32, socket: &Path, options: &NbdOptions<'_>) -> Result<Self, KernelNbdError> {
        Self::connect(socket, options, Some(number))
    }

    fn connect(socket: &Path, options: &NbdOptions<'_>, number: Option<u32>) -> Result<Self, KernelNbdError> {
        let mut driver = open()?;
        let mut connections = Vec::new();
        let (mut len, mut flags) = (0, 0);
        for _ in 0..options.connections.max(1) {
            let stream;
            (stream, (len, flags)) = handshake(socket, options.export).map_err(KernelNbdError::Server)?;
            connections.push(OwnedFd::from(stream));
        }
        let mut sockets = Attributes::default();
        for connection in &connections {
            let item = Attributes::default().with(SOCK_FD, &connection.as_raw_fd().cast_unsigned().to_ne_bytes());
            sockets = sockets.with_nested(SOCK_ITEM, &item);
        }
        let mut request = Attributes::default();
        if let Some(number) = number {
            request = request.with(INDEX, &number.to_ne_bytes());
        }
        request = request
            .with(SIZE_BYTES, &len.to_ne_bytes())
            .with(BLOCK_SIZE_BYTES, &(options.block as u64).clamp(512, 4096).to_ne_bytes())
            .with(SERVER_FLAGS, &u64::from(flags).to_ne_bytes())
            .with(DEAD_CONN_TIMEOUT, &DEAD_CONN_SECS.to_ne_bytes())
            .with(BACKEND_IDENTIFIER, &terminated(options.identifier))
            .with_nested(SOCKETS, &sockets);
        let command = if number.is_some() { RECONFIGURE } else { CONNECT };
        let answer = driver.request(command, VERSION, &request).map_err(failed("connect a device"))?;
        let index = number.or_else(|| netlink::number(&answer, INDEX));
        let index = index.ok_or_else(|| failed("connect a device")(io::ErrorKind::InvalidData.into()))?;
        Ok(Self { index, node: PathBuf::from(format!("/dev/nbd{index}")), identifier: options.identifier.to_owned() })
    }

    /// Returns the device at `node` if it has this identifier.
    pub fn find(node: &Path, identifier: &str) -> Option<Self> {
        Self::find_in(Path::new("/sys/block"), node, identifier)
    }

    fn find_in(sysfs: &Path, node: &Path, identifier: &str) -> Option<Self> {
        let index = number_of(node)?;
        let backend = fs::read_to_string(sysfs.join(format!("nbd{index}/backend"))).ok()?;
        let found = || Self { index, node: node.to_owned(), identifier: identifier.to_owned() };
        (backend.trim_end() == identifier).then(found)
    }

    /// Returns the device that has this identifier, without its node.
    pub fn with_identifier(identifier: &str) -> Option<Self> {
        Self::with_identifier_in(Path::new("/sys/block"), identifier)
    }

    fn with_identifier_in(sysfs: &Path, identifier: &str) -> Option<Self> {
        let devices = fs::read_dir(sysfs).into_iter().flatten().flatten();
        devices
            .into_iter()
            .find_map(|entry| Self::find_in(sysfs, &Path::new("/dev").join(entry.file_name()), identifier))
    }

    /// Returns the number of the device.
    pub fn number(&self) -> u32 {
        self.index
    }

    /// Returns the path of the block device, `/dev/nbdN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Returns whether the device is connected.
    pub fn is_attached(&self) -> bool {
        Path::new(&format!("/sys/block/nbd{}/pid", self.index)).exists()
    }

    /// Sets the length of the device, which may be in use, to that of the export.
    ///
    /// # Errors
    /// There is no driver, or it refuses.
    pub fn update_len(&self, len: u64) -> Result<(), KernelNbdError> {
        let request = Attributes::default()
            .with(INDEX, &self.index.to_ne_bytes())
            .with(SIZE_BYTES, &len.to_ne_bytes())
            // Required, and refused if the device belongs to another volume now.
            .with(BACKEND_IDENTIFIER, &terminated(&self.identifier));
        open()?.request(RECONFIGURE, VERSION, &request).map(drop).map_err(failed("change the device's length"))
    }

    /// Detaches the device. Programs that still use it get errors.
    ///
    /// # Errors
    /// There is no driver, or it refuses.
    pub fn detach(&self) -> Result<(), KernelNbdError> {
        let request = Attributes::default().with(INDEX, &self.index.to_ne_bytes());
        match open()?.request(DISCONNECT, VERSION, &request) {
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
    Socket::open(FAMILY).map_err(unreached)
}

/// Returns why the driver's netlink family cannot be used.
fn unreached(error: io::Error) -> KernelNbdError {
    match error.kind() {
        io::ErrorKind::NotFound => KernelNbdError::NoDriver,
        _ => failed("be reached")(error),
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> KernelNbdError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => KernelNbdError::NotPermitted(source),
        _ => KernelNbdError::Driver { what, source },
    }
}

/// Brings a connection to the transmission phase, where the kernel takes over. Returns it with length and transmission
/// flags of the export.
fn handshake(socket: &Path, name: &str) -> io::Result<(UnixStream, (u64, u16))> {
    let broken = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut stream = connect::unix(socket, HANDSHAKE_TIMEOUT, || {})?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let greeting: [u8; 18] = receive(&mut stream)?;
    if greeting[..16] != [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat() {
        return Err(broken("the server speaks no newstyle NBD"));
    }
    let flags = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    // The name, and no information beyond what always comes.
    let data = [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
    stream.write_all(&[flags.to_be_bytes().as_slice(), &option_bytes(option::GO, &data)].concat())?;
    let mut export = None;
    loop {
        let head = OptionReply::parse(&receive(&mut stream)?).ok_or_else(|| broken("the server's reply is broken"))?;
        let mut data = vec![0; head.len];
        stream.read_exact(&mut data)?;
        match head.kind {
            option_reply::ACK => break,
            option_reply::INFO => export = parse_export(&data).or(export),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::protocol::transmission_flag;
    use crate::nbd::server::{Listen, Server, ServerOptions};
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
    use inlock_engine::store::file::IoMode;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_engine::{Access, Device};
    use std::sync::Arc;

    #[test]
    fn number_of_a_node_is_that_in_its_name() {
        assert_eq!(number_of(Path::new("/dev/nbd0")), Some(0));
        assert_eq!(number_of(Path::new("/dev/nbd17")), Some(17));
        for other in ["/dev/nbd", "/dev/nbd0p1", "/dev/sda", "nbd0"] {
            assert_eq!(number_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn device_is_found_by_its_node_and_identifier() {
        let sysfs = tempfile::tempdir().unwrap();
        fs::create_dir(sysfs.path().join("nbd17")).unwrap();
        fs::write(sysfs.path().join("nbd17/backend"), "volume\n").unwrap();
        let find = |node, identifier| NbdDevice::find_in(sysfs.path(), Path::new(node), identifier);
        let found = find("/dev/nbd17", "volume").unwrap();
        assert_eq!((found.number(), found.node()), (17, Path::new("/dev/nbd17")));
        for (node, identifier) in [("/dev/nbd17", "another"), ("/dev/nbd1", "volume"), ("/dev/sda", "volume")] {
            assert_eq!(find(node, identifier), None, "{node}, {identifier}");
        }
        for (name, identifier) in [("nbd3", "volume-0"), ("nbd9", "volum"), ("loop5", "other"), ("nbd5", "other")] {
            fs::create_dir(sysfs.path().join(name)).unwrap();
            fs::write(sysfs.path().join(name).join("backend"), format!("{identifier}\n")).unwrap();
        }
        let with = |identifier| NbdDevice::with_identifier_in(sysfs.path(), identifier).map(|found| found.number());
        assert_eq!(["volume", "other", "missing", ""].map(with), [Some(17), Some(5), None, None]);
    }

    #[test]
    fn options_are_those_of_one_small_device_by_default() {
        let expected = NbdOptions { export: "", block: 512, connections: 1, identifier: "" };
        assert_eq!(NbdOptions::default(), expected);
    }

    #[test]
    fn device_that_does_not_exist_cannot_change() {
        let device = NbdDevice { index: 1 << 20, node: PathBuf::from("/dev/nbd1048576"), identifier: "none".into() };
        assert!(!device.is_attached());
        // The driver refuses, or there is none.
        assert!(device.update_len(4096).is_err());
        assert!(is_available() || device.detach().is_err());
    }

    #[test]
    fn missing_driver_is_told_from_missing_permission() {
        let of = |kind| unreached(io::Error::from(kind));
        assert!(matches!(of(io::ErrorKind::NotFound), KernelNbdError::NoDriver));
        assert!(matches!(of(io::ErrorKind::PermissionDenied), KernelNbdError::NotPermitted(_)));
        assert!(matches!(of(io::ErrorKind::TimedOut), KernelNbdError::Driver { what: "be reached", .. }));
    }

    #[test]
    fn attributes_end_in_a_zero_byte() {
        assert_eq!(terminated("name"), b"name\0");
        assert_eq!(terminated(""), b"\0");
    }

    #[test]
    fn client_flags_are_those_of_fixed_newstyle_without_zeroes() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            client.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
            receive::<4>(&mut client).unwrap()
        });
        handshake(&socket, "volume").unwrap_err();
        assert_eq!(server.join().unwrap(), [0, 0, 0, 3]);
    }

    #[test]
    fn server_that_ends_within_the_handshake_is_not_taken_for_one_without_newstyle() {
        let greeting = b"NBDMAGICIHAVEOPT\0\x03";
        for sent in [&greeting[..0], &greeting[..17], greeting] {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("socket");
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let server = std::thread::spawn(move || {
                let mut client = listener.accept().unwrap().0;
                client.write_all(sent).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
                // Until the client has left.
                let _ = client.read_to_end(&mut Vec::new());
            });
            let error = handshake(&socket, "volume").map(drop).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
            server.join().unwrap();
        }
    }

    #[test]
    fn handshake_with_server_returns_length_and_flags() {
        const LEN: u64 = 1 << 20;
        let store = Arc::new(MemoryStore::new(vec![0; LEN as usize]));
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        let access = Access { read_only: true, allow_discards: false };
        let device = Arc::new(Device::new(&[segment], &key, store, access).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let options =
            ServerOptions { export_name: "volume".into(), threads: 1, io: IoMode::Sync, ..ServerOptions::default() };
        let server = Server::start(device, &Listen::Unix(socket.clone()), &options).unwrap();
        let (mut stream, (len, flags)) = handshake(&socket, "volume").unwrap();
        assert_eq!(len, LEN);
        // The kernel waits as long as it takes.
        assert_eq!((stream.read_timeout().unwrap(), stream.write_timeout().unwrap()), (None, None));
        assert_ne!(flags & transmission_flag::READ_ONLY, 0);
        // In transmission: a flush is answered.
        stream.write_all(&[&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3], [0; 20].as_slice()].concat()).unwrap();
        assert_eq!(receive::<16>(&mut stream).unwrap(), [&[0x67, 0x44, 0x66, 0x98], [0; 12].as_slice()].concat()[..]);
        let refused = handshake(&socket, "another").map(drop).unwrap_err();
        assert_eq!(refused.to_string(), "the server refuses the export");
        assert!(server.is_healthy());
        server.stop().unwrap();
    }
}
