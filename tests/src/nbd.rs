//! An NBD client for tests: well-behaved by its methods, and free to send any bytes.
//!
//! It is written from the protocol specification and shares no code with the server, so a misreading would have to
//! occur twice to hide a bug. Every wait has a timeout, `patience`, which only tells a hang from a reply.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Magic numbers of the wire.
pub mod magic {
    /// First in the greeting.
    pub const SERVER: u64 = 0x4e42_444d_4147_4943;
    /// Second in the greeting, and before each option.
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    /// Before each reply to an option.
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// Before each compact request.
    pub const REQUEST: u32 = 0x2560_9513;
    /// Before each extended request.
    pub const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
    /// Before each simple reply.
    pub const SIMPLE_REPLY: u32 = 0x6744_6698;
    /// Before each chunk of a structured reply.
    pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
    /// Before each chunk of an extended reply.
    pub const EXTENDED_REPLY: u32 = 0x6e8a_278c;
}

/// Option codes.
pub mod option {
    /// Enter transmission with the old option.
    pub const EXPORT_NAME: u32 = 1;
    /// Close the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Agree on structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Agree on extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of option replies; those from `ERR_UNSUP` on are errors.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit of all errors.
    pub const ERROR: u32 = 1 << 31;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// Not allowed.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// Malformed.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// Data too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// Extended headers are negotiated.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Read ahead.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod flag {
    /// Force unit access.
    pub const FUA: u16 = 1;
    /// Do not make holes.
    pub const NO_HOLE: u16 = 2;
    /// Do not fragment.
    pub const DF: u16 = 4;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 8;
    /// Fail if zeroing is slow.
    pub const FAST_ZERO: u16 = 16;
    /// The length is that of a payload (extended headers).
    pub const PAYLOAD_LEN: u16 = 32;
}

/// Error numbers of the protocol.
pub mod errno {
    /// Read-only.
    pub const PERM: u32 = 1;
    /// Input or output.
    pub const IO: u32 = 5;
    /// Malformed or out of range.
    pub const INVAL: u32 = 22;
    /// A write past the end.
    pub const NOSPC: u32 = 28;
    /// Too long.
    pub const OVERFLOW: u32 = 75;
    /// Not supported.
    pub const NOTSUP: u32 = 95;
}

/// Headers of requests and replies after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended requests and replies.
    Extended,
}

/// A reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The option that it replies to.
    pub option: u32,
    /// One of [`option_reply`].
    pub kind: u32,
    /// Data of the reply.
    pub data: Vec<u8>,
}

/// A complete reply to a request, its chunks joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// 0, or one of [`errno`].
    pub error: u32,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Lengths and flags of the extents of a block status reply.
    pub extents: Vec<(u64, u64)>,
}

/// A message of the server in transmission: the header of a simple reply, or a chunk of another reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The data of a read that succeeded follows.
    Simple {
        /// Cookie of the request.
        cookie: u64,
        /// 0, or one of [`errno`].
        error: u32,
    },
    /// A chunk of a structured or extended reply.
    Chunk {
        /// Cookie of the request.
        cookie: u64,
        /// The offset that an extended reply repeats.
        offset: Option<u64>,
        /// Whether it is the last chunk of the reply.
        is_last: bool,
        /// Its content.
        content: Content,
    },
}

/// Content of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    None,
    /// Bytes of a read, from this offset.
    Data(u64, Vec<u8>),
    /// A number of zeroes of a read, from this offset.
    Hole(u64, usize),
    /// Lengths and flags of extents, in the metadata context of this number.
    Extents(u32, Vec<(u64, u64)>),
    /// One of [`errno`].
    Error(u32),
}

/// A connection in any state.
#[derive(Debug)]
pub struct Connection {
    /// The socket, for tests that need more than the methods.
    pub stream: UnixStream,
    /// Headers of requests and replies.
    pub mode: Mode,
    /// The export's size, once known.
    pub size: u64,
    /// The export's transmission flags, once known.
    pub flags: u16,
    next_cookie: u64,
    /// Replies without their last chunk, by cookie: chunks of several replies may be mixed.
    unfinished: BTreeMap<u64, (Reply, Pieces)>,
}

/// Cookie of the first request of a connection. Its value shows lost halves and swapped bytes.
pub const FIRST_COOKIE: u64 = 0x1122_3344_0000_0000;

/// Data of the chunks of a read, by offset.
type Pieces = BTreeMap<u64, Vec<u8>>;

/// Returns an option with its header.
pub fn option_bytes(code: u32, data: &[u8]) -> Vec<u8> {
    let mut out = magic::OPTION.to_be_bytes().to_vec();
    out.extend(code.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// Returns the data of INFO and GO: a name, then the requested information types.
pub fn go_data(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name);
    out.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|w| out.extend(w.to_be_bytes()));
    out
}

/// Returns the data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn meta_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name);
    out.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        out.extend((query.len() as u32).to_be_bytes());
        out.extend(*query);
    }
    out
}

/// Returns the header of a request in a mode.
pub fn request_bytes(mode: Mode, flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    let start = if mode == Mode::Extended { magic::EXTENDED_REQUEST } else { magic::REQUEST };
    let mut out = start.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    if mode == Mode::Extended {
        out.extend(len.to_be_bytes());
    } else {
        out.extend((len as u32).to_be_bytes());
    }
    out
}

impl Connection {
    /// Connects, and sends nothing.
    pub fn dial(socket: &Path, patience: Duration) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("cannot connect")?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            stream,
            mode: Mode::Simple,
            size: 0,
            flags: 0,
            next_cookie: FIRST_COOKIE,
            unfinished: BTreeMap::new(),
        })
    }

    /// Connects, receives the greeting and replies with the usual client flags.
    pub fn haggle(socket: &Path, patience: Duration) -> Result<Self> {
        let mut connection = Self::dial(socket, patience)?;
        let flags = connection.greeting()?;
        ensure!(flags & 1 == 1, "the server does not offer fixed newstyle: {flags:#x}");
        connection.send(&3u32.to_be_bytes())?;
        Ok(connection)
    }

    /// Connects, and enters transmission of the default export in a mode, without metadata contexts.
    pub fn open(socket: &Path, patience: Duration, mode: Mode) -> Result<Self> {
        let mut connection = Self::haggle(socket, patience)?;
        connection.negotiate(mode)?;
        connection.go(b"")?;
        Ok(connection)
    }

    /// Requests structured replies or extended headers.
    pub fn negotiate(&mut self, mode: Mode) -> Result<()> {
        let code = match mode {
            Mode::Simple => return Ok(()),
            Mode::Structured => option::STRUCTURED_REPLY,
            Mode::Extended => option::EXTENDED_HEADERS,
        };
        let reply = self.ask(code, &[])?;
        ensure!(reply.kind == option_reply::ACK, "{mode:?} refused: {reply:?}");
        self.mode = mode;
        Ok(())
    }

    /// Receives the greeting and returns the handshake flags.
    pub fn greeting(&mut self) -> Result<u16> {
        let bytes = self.receive(18)?;
        ensure!(be64(&bytes[..8]) == magic::SERVER && be64(&bytes[8..16]) == magic::OPTION, "greeting: {bytes:x?}");
        Ok(be16(&bytes[16..]))
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("cannot send")
    }

    /// Sends bytes unchanged, each wait with the timeout. Returns early, without an error, as soon as `stop` returns
    /// true.
    pub fn send_until(&mut self, mut bytes: &[u8], stop: impl Fn() -> bool) -> Result<()> {
        while !bytes.is_empty() && !stop() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(())
    }

    /// Sets the timeout.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        Ok(self.stream.set_write_timeout(Some(patience))?)
    }

    /// Receives and drops what has arrived, and returns the number of bytes; 0: the server has closed the connection.
    pub fn discard(&mut self) -> std::io::Result<usize> {
        let mut bytes = [0; 1 << 16];
        self.stream.read(&mut bytes)
    }

    /// Receives exactly `len` bytes.
    pub fn receive(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).context("cannot receive")?;
        Ok(bytes)
    }

    /// Receives and drops all data until the server closes the connection. Fails if it does not.
    pub fn expect_closed(&mut self) -> Result<u64> {
        let mut buffer = vec![0; 1 << 16];
        let mut dropped = 0;
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(dropped),
                Ok(n) => dropped += n as u64,
                Err(e) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&e.kind()) => {
                    return Ok(dropped);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("the server keeps the connection open"),
            }
        }
    }

    /// Shuts down the sending side; replies can still be received.
    pub fn finish_sending(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(std::net::Shutdown::Write)?)
    }

    /// Returns a second handle of the connection, for another thread.
    pub fn split(&self) -> Result<Self> {
        let stream = self.stream.try_clone()?;
        Ok(Self {
            stream,
            mode: self.mode,
            size: self.size,
            flags: self.flags,
            next_cookie: self.next_cookie,
            unfinished: BTreeMap::new(),
        })
    }

    /// Sends an option and receives one reply.
    pub fn ask(&mut self, code: u32, data: &[u8]) -> Result<OptionReply> {
        self.send(&option_bytes(code, data))?;
        let reply = self.option_reply()?;
        ensure!(reply.option == code, "a reply to option {} came for option {code}", reply.option);
        Ok(reply)
    }

    /// Receives one reply to an option.
    pub fn option_reply(&mut self) -> Result<OptionReply> {
        let head = self.receive(20)?;
        ensure!(be64(&head[..8]) == magic::OPTION_REPLY, "option reply: {head:x?}");
        let len = be32(&head[16..]);
        ensure!(len <= 1 << 20, "an option reply of {len} bytes");
        Ok(OptionReply { option: be32(&head[8..12]), kind: be32(&head[12..16]), data: self.receive(len as usize)? })
    }

    /// Receives replies up to the one that ends the option, and returns all of them.
    pub fn option_replies(&mut self) -> Result<Vec<OptionReply>> {
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply()?;
            let last = reply.kind == option_reply::ACK || reply.kind & option_reply::ERROR != 0;
            replies.push(reply);
            if last {
                return Ok(replies);
            }
        }
    }

    /// Enters transmission with GO.
    pub fn go(&mut self, name: &[u8]) -> Result<()> {
        self.send(&option_bytes(option::GO, &go_data(name, &[3])))?;
        for reply in self.option_replies()? {
            match reply.kind {
                option_reply::ACK => return Ok(()),
                option_reply::INFO if reply.data.len() == 12 && be16(&reply.data) == 0 => {
                    self.size = be64(&reply.data[2..10]);
                    self.flags = be16(&reply.data[10..]);
                }
                option_reply::INFO => {}
                _ => bail!("GO refused: {reply:?}"),
            }
        }
        bail!("GO got no answer")
    }

    /// Sends the header of a request and returns its cookie.
    pub fn request(&mut self, flags: u16, command: u16, offset: u64, len: u64) -> Result<u64> {
        let (cookie, header) = self.header(flags, command, offset, len);
        self.send(&header)?;
        Ok(cookie)
    }

    /// Sends a request and receives its reply, which must be the next one.
    pub fn call(&mut self, flags: u16, command: u16, offset: u64, len: u64, payload: &[u8]) -> Result<Reply> {
        let cookie = self.request(flags, command, offset, len)?;
        self.send(payload)?;
        let reply = self.reply(if command == command::READ { len as usize } else { 0 })?;
        ensure!(reply.cookie == cookie, "the reply to {cookie} has the cookie {}", reply.cookie);
        Ok(reply)
    }

    /// Reads a range. Fails if the server replies with an error.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let reply = self.call(0, command::READ, offset, len as u64, &[])?;
        ensure!(reply.error == 0, "read {len} at {offset}: error {}", reply.error);
        ensure!(reply.data.len() == len, "read {len} at {offset} gave {} bytes", reply.data.len());
        Ok(reply.data)
    }

    /// Writes a range. Fails if the server replies with an error.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let reply = self.call(0, command::WRITE, offset, data.len() as u64, data)?;
        ensure!(reply.error == 0, "write {} at {offset}: error {}", data.len(), reply.error);
        Ok(())
    }

    /// Flushes. Fails if the server replies with an error.
    pub fn flush(&mut self) -> Result<()> {
        let reply = self.call(0, command::FLUSH, 0, 0, &[])?;
        ensure!(reply.error == 0, "flush: error {}", reply.error);
        Ok(())
    }

    /// Sends DISC, and waits until the server has closed the connection.
    pub fn disconnect(mut self) -> Result<()> {
        self.request(0, command::DISC, 0, 0)?;
        self.expect_closed().map(drop)
    }

    /// Returns a new cookie and the header of a request with it, for the caller to send.
    pub fn header(&mut self, flags: u16, command: u16, offset: u64, len: u64) -> (u64, Vec<u8>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        (cookie, request_bytes(self.mode, flags, command, cookie, offset, len))
    }

    /// Receives until a reply is complete. `read_len` is the length of the data in a reply to a read. Chunks of a
    /// structured reply to a read are joined in the order of their offsets.
    pub fn reply(&mut self, read_len: usize) -> Result<Reply> {
        loop {
            let (cookie, is_last, content) = match self.message()? {
                Message::Simple { cookie, error } => {
                    let data = if error == 0 { self.receive(read_len)? } else { Vec::new() };
                    return Ok(Reply { cookie, error, data, ..Reply::default() });
                }
                Message::Chunk { cookie, is_last, content, .. } => (cookie, is_last, content),
            };
            let (mut reply, mut pieces) = self.unfinished.remove(&cookie).unwrap_or_default();
            reply.cookie = cookie;
            let piece = match content {
                Content::None => None,
                Content::Data(offset, data) => pieces.insert(offset, data),
                Content::Hole(offset, len) => pieces.insert(offset, vec![0; len]),
                Content::Extents(_, extents) => {
                    reply.extents.extend(extents);
                    None
                }
                Content::Error(error) => {
                    reply.error = error;
                    None
                }
            };
            ensure!(piece.is_none(), "two pieces at one offset");
            if !is_last {
                self.unfinished.insert(cookie, (reply, pieces));
                continue;
            }
            if reply.error == 0 {
                reply.data = joined(pieces, read_len)?;
            }
            return Ok(reply);
        }
    }

    /// Receives the header of a simple reply, or one chunk, and checks it against the protocol.
    pub fn message(&mut self) -> Result<Message> {
        let magic = be32(&self.receive(4)?);
        if magic == magic::SIMPLE_REPLY {
            ensure!(self.mode != Mode::Extended, "a simple reply with extended headers");
            let head = self.receive(12)?;
            return Ok(Message::Simple { cookie: be64(&head[4..]), error: be32(&head) });
        }
        let extended = self.mode == Mode::Extended;
        let wanted = if extended { magic::EXTENDED_REPLY } else { magic::STRUCTURED_REPLY };
        ensure!(self.mode != Mode::Simple && magic == wanted, "a reply with magic {magic:#x} in mode {:?}", self.mode);
        let head = self.receive(if extended { 28 } else { 16 })?;
        let (flags, kind, cookie) = (be16(&head), be16(&head[2..]), be64(&head[4..]));
        let len = if extended { be64(&head[20..]) } else { u64::from(be32(&head[12..])) };
        ensure!(len <= 40 << 20, "a chunk of {len} bytes");
        ensure!(flags & !1 == 0, "unknown chunk flags {flags:#x}");
        let data = self.receive(len as usize)?;
        let is_last = flags == 1;
        let offset = extended.then(|| be64(&head[12..]));
        let content = chunk_content(kind, data, extended)?;
        ensure!(content != Content::None || is_last, "an empty chunk that is not the last");
        Ok(Message::Chunk { cookie, offset, is_last, content })
    }
}

/// Parses the payload of a chunk.
fn chunk_content(kind: u16, data: Vec<u8>, extended: bool) -> Result<Content> {
    Ok(match kind {
        0 => {
            ensure!(data.is_empty(), "a NONE chunk of {} bytes", data.len());
            Content::None
        }
        1 => {
            ensure!(data.len() > 8, "a short data chunk");
            Content::Data(be64(&data), data[8..].to_vec())
        }
        2 => {
            ensure!(data.len() == 12, "a bad hole chunk");
            Content::Hole(be64(&data), be32(&data[8..]) as usize)
        }
        5 if !extended => {
            ensure!(data.len() >= 4 && data.len() % 8 == 4, "a bad status chunk");
            let extents = data[4..].chunks_exact(8).map(|e| (be32(e).into(), be32(&e[4..]).into())).collect();
            Content::Extents(be32(&data), extents)
        }
        6 if extended => {
            ensure!(data.len() >= 8 && data.len() % 16 == 8, "a bad status chunk");
            let extents: Vec<_> = data[8..].chunks_exact(16).map(|e| (be64(e), be64(&e[8..]))).collect();
            ensure!(be32(&data[4..]) as usize == extents.len(), "a status chunk with a wrong count");
            Content::Extents(be32(&data), extents)
        }
        0x8001 | 0x8002 => {
            ensure!(data.len() >= 6 && be32(&data) != 0, "a bad error chunk");
            let text = usize::from(be16(&data[4..]));
            let rest = if kind == 0x8001 { 0 } else { 8 };
            ensure!(text + rest == data.len() - 6, "an error chunk with a wrong message length");
            Content::Error(be32(&data))
        }
        other => bail!("a chunk of unknown type {other}"),
    })
}

/// Joins the pieces of a read in order. They must leave no gap and have the total length.
fn joined(pieces: Pieces, len: usize) -> Result<Vec<u8>> {
    let first = pieces.keys().next().copied().unwrap_or(0);
    let mut out = Vec::with_capacity(len);
    for (offset, piece) in pieces {
        ensure!(offset - first == out.len() as u64, "the pieces of a read do not join at {offset}");
        out.extend(piece);
    }
    ensure!(out.len() == len, "the pieces of a read of {len} bytes give {}", out.len());
    Ok(out)
}

/// Decodes the first two bytes, big-endian.
pub fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Decodes the first four bytes, big-endian.
pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Decodes the first eight bytes, big-endian.
pub fn be64(bytes: &[u8]) -> u64 {
    (u64::from(be32(bytes)) << 32) | u64::from(be32(&bytes[4..]))
}
