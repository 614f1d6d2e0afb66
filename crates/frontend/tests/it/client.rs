//! A small NBD client on a raw socket, written from the protocol document; it shares no code with the server.
//!
//! It checks what it receives: magic numbers, cookies of requests that are under way, and that the chunks of a read cover
//! it once. Every wait ends after `PATIENCE`, so that a hang of the server is a failure and not a hang of the test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than anything a healthy server takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;
pub(crate) const FAST_ZERO: u16 = 16;
pub(crate) const PAYLOAD_LEN: u16 = 32;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const EOVERFLOW: u32 = 75;
pub(crate) const ENOTSUP: u32 = 95;

/// How requests and replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Simple,
    Structured,
    Extended,
}

pub(crate) const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

/// What a request came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0: success.
    pub(crate) error: u32,
    /// What was read.
    pub(crate) data: Vec<u8>,
    /// Length and flags of each extent of `base:allocation`.
    pub(crate) extents: Vec<(u64, u64)>,
    /// How many chunks carried data.
    pub(crate) pieces: usize,
}

struct Asked {
    kind: u16,
    offset: u64,
    len: u64,
    answer: Answer,
    covered: u64,
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    style: Style,
    next_cookie: u64,
    asked: BTreeMap<u64, Asked>,
    answered: BTreeMap<u64, Answer>,
    /// Cookies in the order of their answers.
    pub(crate) order: Vec<u64>,
    pub(crate) size: u64,
    pub(crate) flags: u16,
}

/// A connected socket that gives up after [`PATIENCE`].
pub(crate) fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream
}

pub(crate) fn take(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).expect("the server goes on sending");
    bytes
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// An option as bytes.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// One reply to an option: its type and data.
pub(crate) fn option_reply(stream: &mut UnixStream, number: u32) -> (u32, Vec<u8>) {
    let head = take(stream, 20);
    assert_eq!(be64(&head), 0x0003_e889_0455_65a9, "magic of an option reply");
    assert_eq!(be32(&head[8..]), number, "the option that is answered");
    let data = take(stream, be32(&head[16..]) as usize);
    (be32(&head[12..]), data)
}

/// The greeting, answered with these client flags.
pub(crate) fn greet(path: &Path, flags: u32) -> UnixStream {
    let mut stream = connect(path);
    let greeting = take(&mut stream, 18);
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(greeting[16..], [0, 3], "fixed newstyle, no zeroes");
    stream.write_all(&flags.to_be_bytes()).expect("the server reads");
    stream
}

/// Data of INFO and GO.
pub(crate) fn info(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|k| k.to_be_bytes()));
    data
}

/// Data of the options about metadata contexts.
pub(crate) fn queries(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(*query);
    }
    data
}

impl Client {
    pub(crate) fn open(path: &Path, style: Style) -> Self {
        let mut stream = greet(path, 3);
        let mut ask = |number: u32, data: &[u8]| {
            stream.write_all(&option(number, data)).expect("the server reads");
            let mut replies = vec![option_reply(&mut stream, number)];
            while !matches!(replies.last(), Some((1 | 0x8000_0000.., _))) {
                replies.push(option_reply(&mut stream, number));
            }
            assert_eq!(replies.last().map(|r| r.0), Some(1), "option {number} is accepted");
            replies
        };
        match style {
            Style::Simple => {}
            Style::Structured => drop(ask(8, b"")),
            Style::Extended => drop(ask(11, b"")),
        }
        if style != Style::Simple {
            let replies = ask(10, &queries(b"", &[b"base:allocation"]));
            assert_eq!(replies[0].0, 4);
        }
        let facts = ask(7, &info(b"", &[])).into_iter().find(|(kind, data)| *kind == 3 && data[..2] == [0, 0]);
        let facts = facts.expect("the facts of the export").1;
        let flags = u16::from_be_bytes([facts[10], facts[11]]);
        Self {
            stream,
            style,
            next_cookie: 0x1122_3344_0000_0000,
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
            order: Vec::new(),
            size: be64(&facts[2..]),
            flags,
        }
    }

    /// A request's header as bytes, and its cookie. The answer is expected from now on.
    pub(crate) fn header(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> (Vec<u8>, u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let extended = self.style == Style::Extended;
        let flags = if extended && kind == WRITE { flags | PAYLOAD_LEN } else { flags };
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = [magic.to_be_bytes().as_slice(), &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if extended {
            bytes.extend(len.to_be_bytes());
        } else {
            bytes.extend((len as u32).to_be_bytes());
        }
        if kind != DISC {
            let data = if kind == READ && len <= 64 << 20 { vec![0; len as usize] } else { Vec::new() };
            let answer = Answer { data, ..Answer::default() };
            self.asked.insert(cookie, Asked { kind, offset, len, answer, covered: 0 });
        }
        (bytes, cookie)
    }

    pub(crate) fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> u64 {
        let (bytes, cookie) = self.header(kind, flags, offset, len);
        self.stream.write_all(&bytes).expect("the server reads");
        cookie
    }

    pub(crate) fn send_write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let cookie = self.send(WRITE, flags, offset, data.len() as u64);
        self.stream.write_all(data).expect("the server reads");
        cookie
    }

    /// The answer to a request; others that come first are kept.
    pub(crate) fn wait(&mut self, cookie: u64) -> Answer {
        loop {
            if let Some(answer) = self.answered.remove(&cookie) {
                return answer;
            }
            self.receive();
        }
    }

    pub(crate) fn call(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> Answer {
        let cookie = self.send(kind, flags, offset, len);
        self.wait(cookie)
    }

    pub(crate) fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let answer = self.call(READ, 0, offset, len);
        assert_eq!(answer.error, 0, "{:?}: {len} bytes at {offset}", self.style);
        answer.data
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send_write(flags, offset, data);
        self.wait(cookie).error
    }

    /// How many requests are not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.asked.len()
    }

    /// Receives a simple reply or one chunk.
    pub(crate) fn receive(&mut self) {
        match be32(&take(&mut self.stream, 4)) {
            0x6744_6698 => self.simple_reply(),
            0x668e_33ef if self.style == Style::Structured => self.chunk(),
            0x6e8a_278c if self.style == Style::Extended => self.chunk(),
            magic => panic!("{:?}: a reply begins with {magic:#x}", self.style),
        }
    }

    fn simple_reply(&mut self) {
        let head = take(&mut self.stream, 12);
        let cookie = be64(&head[4..]);
        let asked = self.asked.get_mut(&cookie).expect("a reply belongs to a request that is under way");
        assert!(self.style == Style::Simple || (self.style == Style::Structured && asked.kind != READ));
        asked.answer.error = be32(&head);
        if asked.kind == READ && asked.answer.error == 0 {
            self.stream.read_exact(&mut asked.answer.data).expect("the data of a simple reply");
            asked.covered = asked.len;
        }
        self.over(cookie);
    }

    fn chunk(&mut self) {
        let extended = self.style == Style::Extended;
        let head = take(&mut self.stream, if extended { 28 } else { 16 });
        let (flags, kind) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
        let cookie = be64(&head[4..]);
        let len = if extended { be64(&head[20..]) as usize } else { be32(&head[12..]) as usize };
        let asked = self.asked.get_mut(&cookie).expect("a chunk belongs to a request that is under way");
        if extended {
            assert_eq!(be64(&head[12..]), asked.offset, "an extended reply repeats the offset");
        }
        assert_eq!(flags & !1, 0, "known chunk flags");
        let payload = take(&mut self.stream, len);
        match kind {
            0 => assert_eq!((flags, len), (1, 0)),
            1 => {
                let start = (be64(&payload) - asked.offset) as usize;
                let data = &payload[8..];
                assert!(!data.is_empty() && asked.kind == READ);
                asked.answer.data[start..start + data.len()].copy_from_slice(data);
                asked.covered += data.len() as u64;
                asked.answer.pieces += 1;
            }
            5 | 6 => {
                assert_eq!(kind == 6, extended);
                assert_eq!(be32(&payload), 1, "the context's number");
                let (start, size) = if extended { (8, 16) } else { (4, 8) };
                let extents = payload[start..].chunks_exact(size).map(|e| match extended {
                    true => (be64(e), be64(&e[8..])),
                    false => (be32(e).into(), be32(&e[4..]).into()),
                });
                asked.answer.extents = extents.collect();
                if extended {
                    assert_eq!(be32(&payload[4..]) as usize, asked.answer.extents.len());
                }
            }
            0x8001 => {
                asked.answer.error = be32(&payload);
                assert_ne!(asked.answer.error, 0);
                assert_eq!(usize::from(u16::from_be_bytes([payload[4], payload[5]])), len - 6);
            }
            _ => panic!("chunk type {kind:#x}"),
        }
        if flags & 1 != 0 {
            self.over(cookie);
        }
    }

    fn over(&mut self, cookie: u64) {
        let asked = self.asked.remove(&cookie).expect("checked by the caller");
        if asked.kind == READ && asked.answer.error == 0 {
            assert_eq!(asked.covered, asked.len, "a read is covered once");
        }
        self.order.push(cookie);
        self.answered.insert(cookie, asked.answer);
    }

    /// Says goodbye and expects the server to hang up without another word.
    pub(crate) fn disconnect(mut self) {
        assert_eq!(self.under_way(), 0);
        self.send(DISC, 0, 0, 0);
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("the server hangs up");
        assert_eq!(rest, []);
    }
}
