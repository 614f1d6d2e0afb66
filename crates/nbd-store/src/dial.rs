//! Connecting to a server: socket and handshake, within a time limit.

use super::error::OpenError;
use super::options::{ExportFacts, StoreOptions};
use super::tls::Tls;
use super::uri::{Address, NbdUri, encode};
use inlock_frontend::connect;
use inlock_frontend::nbd::client::{
    BadReply, OptionReply, context_data, go_data, option_bytes, parse_block_size, parse_export,
};
use inlock_frontend::nbd::handshake::ReplyStyle;
use inlock_frontend::nbd::link::Link;
use inlock_frontend::nbd::protocol::{
    BASE_ALLOCATION, INIT_MAGIC, MAX_PAYLOAD, OPTION_MAGIC, handshake_flag, info, option, option_reply,
    transmission_flag,
};
use rustix::net::sockopt;
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Greeting of servers that speak only the oldest dialect, behind the first magic.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Block sizes of a server that states none.
const DEFAULT_BLOCKS: [u32; 3] = [1, 4096, MAX_PAYLOAD];

/// Most replies to one option.
const MAX_REPLIES: usize = 64;

/// Longest time for each connection after the first.
const MAX_FURTHER: Duration = Duration::from_secs(1);

/// Most bytes of a server's text in a message.
const MAX_TEXT: usize = 200;

/// A connection in the transmission phase.
pub(crate) struct Dialed {
    pub(crate) link: Link,
    pub(crate) style: ReplyStyle,
    /// Whether extents can be asked for.
    pub(crate) has_extents: bool,
    pub(crate) facts: ExportFacts,
    /// Names that the server has in common, under all addresses that lead to it.
    pub(crate) server: Vec<String>,
}

/// Connects to a server as often as it allows and `options` want.
pub(crate) fn dial(uri: &NbdUri, options: &StoreOptions, tls: Option<&Tls>) -> Result<Vec<Dialed>, OpenError> {
    let limit = Limit { deadline: Instant::now() + options.connect_timeout, length: options.connect_timeout };
    let first = connect(uri, limit, tls)?;
    let several = first.facts.has_flag(transmission_flag::CAN_MULTI_CONN);
    let mut all = vec![first];
    while several && all.len() < options.connections.min(16) {
        let further = Limit { deadline: limit.deadline.min(Instant::now() + MAX_FURTHER), ..limit };
        match connect(uri, further, tls) {
            Ok(next) if next.facts == all[0].facts => all.push(next),
            Ok(_) => return Err(OpenError::Changed("two connections to the server find different exports")),
            // A server may limit its connections.
            Err(_) => break,
        }
    }
    Ok(all)
}

/// Time limit of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) deadline: Instant,
    pub(crate) length: Duration,
}

impl Limit {
    /// Returns the time that is left.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn connect(uri: &NbdUri, limit: Limit, tls: Option<&Tls>) -> Result<Dialed, OpenError> {
    let address = uri.address.to_string();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            OpenError::TimedOut { address: address.clone(), seconds: limit.length.as_secs() }
        }
        _ => OpenError::Unreachable { address: address.clone(), source },
    };
    negotiate(connect_socket(&uri.address, limit).map_err(failed)?, limit, uri, tls)
}

/// Opens the export over a new connection.
pub(crate) fn negotiate(socket: Socket, limit: Limit, uri: &NbdUri, tls: Option<&Tls>) -> Result<Dialed, OpenError> {
    let server = server_names(&uri.address, &socket);
    let mut dialog = Dialog { wire: Wire { socket, limit }, tls: None, address: uri.address.to_string() };
    let (style, has_extents, facts) = dialog.handshake(&uri.export, tls)?;
    let socket = match dialog.wire.socket {
        Socket::Unix(socket) => OwnedFd::from(socket),
        Socket::Tcp(socket) => OwnedFd::from(socket),
    };
    Ok(Dialed { link: Link::new(socket, dialog.tls.map(Into::into)), style, has_extents, facts, server })
}

/// Returns what identifies the server behind a connection: the inode of its socket and the path without symbolic links,
/// which a server that is started again keeps, or the address that was reached, which several names may have.
fn server_names(address: &Address, socket: &Socket) -> Vec<String> {
    match (address, socket) {
        (Address::Unix(path), _) => {
            let inode = std::fs::metadata(path).map(|found| {
                // A file system gives the number of a removed socket to the next one, but not its time of birth.
                let born = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                format!("unix-inode:{}:{}:{}", found.dev(), found.ino(), born.unwrap_or_default().as_nanos())
            });
            let real =
                std::fs::canonicalize(path).map(|path| format!("unix-path:{}", encode(path.as_os_str().as_bytes())));
            inode.into_iter().chain(real).collect()
        }
        (_, Socket::Tcp(socket)) => socket.peer_addr().map(tcp_name).into_iter().collect(),
        (_, Socket::Unix(_)) => Vec::new(),
    }
}

/// Returns the name of an address. Both addresses of this host's name `localhost` have the same: one server listens on
/// both.
fn tcp_name(address: SocketAddr) -> String {
    let host = match address.ip().to_canonical() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST) => "localhost".to_owned(),
        host => host.to_string(),
    };
    format!("tcp-peer:{host}:{}", address.port())
}

fn connect_socket(address: &Address, limit: Limit) -> io::Result<Socket> {
    match address {
        Address::Unix(path) => connect::unix(path, limit.left()?, || {}).map(Socket::Unix),
        Address::Tcp(host, port) => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, limit.left()?) {
                    Ok(socket) => {
                        socket.set_nodelay(true)?;
                        notice_death(&socket)?;
                        return Ok(Socket::Tcp(socket));
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

/// Lets the kernel end a connection whose peer's kernel no longer answers: a gateway may forget connections without a
/// word. A server that is slow is not concerned.
fn notice_death(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_tcp_user_timeout(socket, 30_000)?)
}

/// A socket, whose calls end in time.
struct Wire {
    socket: Socket,
    limit: Limit,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = Some(self.limit.left()?);
        match &mut self.socket {
            Socket::Unix(socket) => socket.set_read_timeout(left).and_then(|()| socket.read(into)),
            Socket::Tcp(socket) => socket.set_read_timeout(left).and_then(|()| socket.read(into)),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(self.limit.left()?);
        match &mut self.socket {
            Socket::Unix(socket) => socket.set_write_timeout(left).and_then(|()| socket.write(bytes)),
            Socket::Tcp(socket) => socket.set_write_timeout(left).and_then(|()| socket.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A handshake.
struct Dialog {
    wire: Wire,
    tls: Option<ClientConnection>,
    address: String,
}

impl Dialog {
    fn handshake(&mut self, export: &[u8], tls: Option<&Tls>) -> Result<(ReplyStyle, bool, ExportFacts), OpenError> {
        let greeting: [u8; 16] = self.receive()?;
        let magic = |at: usize| u64::from_be_bytes(greeting[at..at + 8].try_into().unwrap_or_default());
        match (magic(0), magic(8)) {
            (INIT_MAGIC, OPTION_MAGIC) => {}
            (INIT_MAGIC, OLDSTYLE_MAGIC) => return Err(OpenError::Dialect("the server speaks only oldstyle NBD")),
            _ => return Err(OpenError::Dialect("the server speaks no NBD")),
        }
        let offered = u16::from_be_bytes(self.receive()?);
        if offered & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(OpenError::Dialect("the server does not speak fixed newstyle NBD"));
        }
        let flags = offered & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        self.send(&u32::from(flags).to_be_bytes())?;
        if let Some(tls) = tls {
            self.start_tls(tls)?;
        }
        let style = self.negotiate_style()?;
        let has_extents = style != ReplyStyle::Simple && self.negotiate_extents(export)?;
        let wanted = go_data(export, &[info::BLOCK_SIZE]);
        self.send(&option_bytes(option::GO, &wanted))?;
        let facts = match self.replies_to_go(export)? {
            Some(facts) => facts,
            None => self.export_name(export, flags & handshake_flag::NO_ZEROES != 0)?,
        };
        Ok((style, has_extents, facts))
    }

    /// Goes over to TLS. Nothing but flags has been sent before, and nothing that came before counts later.
    fn start_tls(&mut self, tls: &Tls) -> Result<(), OpenError> {
        self.send(&option_bytes(option::STARTTLS, &[]))?;
        let (reply, data) = self.option_reply(option::STARTTLS)?;
        match reply.kind {
            option_reply::ACK if data.is_empty() => {}
            option_reply::ERR_UNSUP | option_reply::ERR_POLICY => return Err(OpenError::NoTls),
            kind if is_error(kind) => return Err(OpenError::Refused(quoted(&data))),
            _ => return Err(OpenError::Protocol(BadReply::Unfit)),
        }
        let failed = |error: &dyn std::fmt::Display| OpenError::TlsFailed {
            address: self.address.clone(),
            reason: error.to_string(),
        };
        let mut connection = tls.connect().map_err(|error| failed(&error))?;
        while connection.is_handshaking() {
            if let Err(error) = connection.complete_io(&mut self.wire) {
                self.check(error)?;
            }
        }
        self.tls = Some(connection);
        Ok(())
    }

    /// Asks for extended headers, then for structured replies.
    fn negotiate_style(&mut self) -> Result<ReplyStyle, OpenError> {
        let asked =
            [(option::EXTENDED_HEADERS, ReplyStyle::Extended), (option::STRUCTURED_REPLY, ReplyStyle::Structured)];
        for (number, style) in asked {
            self.send(&option_bytes(number, &[]))?;
            let (reply, _) = self.option_reply(number)?;
            match reply.kind {
                option_reply::ACK => return Ok(style),
                option_reply::ERR_TLS_REQD => return Err(OpenError::TlsRequired),
                kind if is_error(kind) => {}
                _ => return Err(OpenError::Protocol(BadReply::Unfit)),
            }
        }
        Ok(ReplyStyle::Simple)
    }

    /// Asks for `base:allocation`, and returns whether the server has it.
    fn negotiate_extents(&mut self, export: &[u8]) -> Result<bool, OpenError> {
        let number = option::SET_META_CONTEXT;
        self.send(&option_bytes(number, &context_data(export, BASE_ALLOCATION.as_bytes())))?;
        let mut found = false;
        for _ in 0..MAX_REPLIES {
            let (reply, data) = self.option_reply(number)?;
            match reply.kind {
                option_reply::ACK => return Ok(found),
                option_reply::META_CONTEXT => found |= data.get(4..) == Some(BASE_ALLOCATION.as_bytes()),
                option_reply::ERR_TLS_REQD => return Err(OpenError::TlsRequired),
                kind if is_error(kind) => return Ok(false),
                _ => return Err(OpenError::Protocol(BadReply::Unfit)),
            }
        }
        Err(OpenError::Protocol(BadReply::Unfit))
    }

    /// Receives the replies to GO. `None`: the server does not know it.
    fn replies_to_go(&mut self, export: &[u8]) -> Result<Option<ExportFacts>, OpenError> {
        let (mut export_info, mut block_info) = (None, None);
        for _ in 0..MAX_REPLIES {
            let (reply, data) = self.option_reply(option::GO)?;
            match reply.kind {
                option_reply::ACK => {
                    let (size, flags) = export_info.ok_or(OpenError::Protocol(BadReply::Unfit))?;
                    return facts(size, flags, block_info.unwrap_or(DEFAULT_BLOCKS)).map(Some);
                }
                option_reply::INFO => {
                    note(&mut export_info, parse_export(&data))?;
                    note(&mut block_info, parse_block_size(&data).map_err(OpenError::Protocol)?)?;
                }
                option_reply::ERR_UNSUP => return Ok(None),
                option_reply::ERR_UNKNOWN => {
                    return Err(OpenError::UnknownExport(String::from_utf8_lossy(export).into_owned()));
                }
                option_reply::ERR_TLS_REQD => return Err(OpenError::TlsRequired),
                kind if is_error(kind) => return Err(OpenError::Refused(quoted(&data))),
                _ => return Err(OpenError::Protocol(BadReply::Unfit)),
            }
        }
        Err(OpenError::Protocol(BadReply::Unfit))
    }

    /// Opens the export with the older option, whose only refusal is the end of the connection.
    fn export_name(&mut self, export: &[u8], no_zeroes: bool) -> Result<ExportFacts, OpenError> {
        self.send(&option_bytes(option::EXPORT_NAME, export))?;
        let size = match self.receive::<8>() {
            Err(OpenError::Closed { .. }) => {
                return Err(OpenError::UnknownExport(String::from_utf8_lossy(export).into_owned()));
            }
            size => u64::from_be_bytes(size?),
        };
        let flags = u16::from_be_bytes(self.receive()?);
        if !no_zeroes {
            self.receive::<124>()?;
        }
        facts(size, flags, DEFAULT_BLOCKS)
    }

    fn option_reply(&mut self, number: u32) -> Result<(OptionReply, Vec<u8>), OpenError> {
        let head = OptionReply::parse(&self.receive()?).filter(|reply| reply.option == number);
        let head = head.ok_or(OpenError::Protocol(BadReply::Unfit))?;
        let mut data = vec![0; head.len];
        self.fill(&mut data)?;
        Ok((head, data))
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N], OpenError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut into: &mut [u8]) -> Result<(), OpenError> {
        while !into.is_empty() {
            let received = match &mut self.tls {
                Some(tls) => rustls::Stream::new(tls, &mut self.wire).read(into),
                None => self.wire.read(into),
            };
            match received {
                Ok(0) => return Err(OpenError::Closed { address: self.address.clone() }),
                Ok(len) => into = &mut into[len..],
                Err(error) => self.check(error)?,
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), OpenError> {
        while !bytes.is_empty() {
            let sent = match &mut self.tls {
                Some(tls) => rustls::Stream::new(tls, &mut self.wire).write(bytes),
                None => self.wire.write(bytes),
            };
            match sent {
                Ok(len) => bytes = &bytes[len..],
                Err(error) => self.check(error)?,
            }
        }
        Ok(())
    }

    /// Returns the error of the handshake, unless a call is to be repeated.
    fn check(&self, error: io::Error) -> Result<(), OpenError> {
        let address = self.address.clone();
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Err(OpenError::TimedOut { address, seconds: self.wire.limit.length.as_secs() })
            }
            // What is no TLS, and certificates that are not trusted.
            io::ErrorKind::InvalidData => Err(OpenError::TlsFailed { address, reason: error.to_string() }),
            _ => Err(OpenError::Closed { address }),
        }
    }
}

fn is_error(kind: u32) -> bool {
    kind & (1 << 31) != 0
}

/// Keeps what a server states, unless it has stated something else before.
fn note<T: Copy + PartialEq>(known: &mut Option<T>, stated: Option<T>) -> Result<(), OpenError> {
    match stated {
        Some(stated) if *known.get_or_insert(stated) != stated => Err(OpenError::Protocol(BadReply::Unfit)),
        _ => Ok(()),
    }
}

/// Returns the facts of an export, with the payload that is used.
fn facts(size: u64, flags: u16, [min_block, preferred, max_block]: [u32; 3]) -> Result<ExportFacts, OpenError> {
    if size > i64::MAX as u64 {
        return Err(OpenError::Dialect("the server states a size of more than 2^63 bytes"));
    }
    if u64::from(max_block) < size.min(preferred.into()) {
        return Err(OpenError::Protocol(BadReply::BlockSize(min_block, preferred, max_block)));
    }
    let flags = if flags & transmission_flag::HAS_FLAGS == 0 { 0 } else { flags };
    let max_payload = max_block.min(MAX_PAYLOAD) / min_block * min_block;
    Ok(ExportFacts { size, flags, min_block, max_payload })
}

/// Returns the beginning of a server's text in a form that a terminal can show.
fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn tcp_connection_sends_at_once_and_notices_a_dead_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let length = Duration::from_secs(60);
        // A name may have addresses at which no program listens.
        for host in ["127.0.0.1", "localhost"] {
            let limit = Limit { deadline: Instant::now() + length, length };
            let socket = connect_socket(&Address::Tcp(host.to_owned(), port), limit).unwrap();
            let Socket::Tcp(socket) = socket else { panic!("another kind of socket") };
            assert!(socket.nodelay().unwrap() && sockopt::socket_keepalive(&socket).unwrap(), "{host}");
            let times = [sockopt::tcp_keepidle(&socket).unwrap(), sockopt::tcp_keepintvl(&socket).unwrap()];
            assert_eq!(times, [15, 5].map(Duration::from_secs));
            assert_eq!((sockopt::tcp_keepcnt(&socket), sockopt::tcp_user_timeout(&socket)), (Ok(3), Ok(30_000)));
        }
        drop(listener);
        let limit = Limit { deadline: Instant::now() + length, length };
        let refused = connect_socket(&Address::Tcp("127.0.0.1".to_owned(), port), limit).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
