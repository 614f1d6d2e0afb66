//! A client with many requests at a time, on the connection that all tests share ([`inlock_tests::nbd`]).
//!
//! It expects an answer to each request and panics on anything else: a cookie that no request has, a read that is not
//! covered once, a reply in the wrong style. Every wait ends after [`TIMEOUT`], so that a server that hangs fails the
//! test.

pub(crate) use inlock_tests::nbd::command::*;
pub(crate) use inlock_tests::nbd::flag::*;
pub(crate) use inlock_tests::nbd::{Connection, FIRST_COOKIE, Mode, errno, go_data, meta_data, option, option_reply};
use inlock_tests::nbd::{Content, Message, OptionReply, option_bytes};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// Longer than anything that a healthy server does.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// Outcome of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0: success.
    pub(crate) error: u32,
    /// Data of a read.
    pub(crate) data: Vec<u8>,
    /// Length and flags of each extent of `base:allocation`.
    pub(crate) extents: Vec<(u64, u64)>,
    /// Number of chunks that carried data.
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
    pub(crate) connection: Connection,
    asked: BTreeMap<u64, Asked>,
    answered: BTreeMap<u64, Answer>,
    /// Cookies in the order of their answers.
    pub(crate) order: Vec<u64>,
}

/// A connection that has done nothing yet.
pub(crate) fn connect(path: &Path) -> Connection {
    Connection::dial(path, TIMEOUT).expect("the server listens")
}

/// A connection whose greeting is answered with these client flags.
pub(crate) fn greet(path: &Path, flags: u32) -> Connection {
    let mut connection = connect(path);
    assert_eq!(connection.greeting().expect("a greeting"), 3, "fixed newstyle, no zeroes");
    connection.send(&flags.to_be_bytes()).expect("the server reads");
    connection
}

/// Sends an option and returns all its replies.
pub(crate) fn ask(connection: &mut Connection, number: u32, data: &[u8]) -> Vec<OptionReply> {
    connection.send(&option_bytes(number, data)).expect("the server reads");
    replies(connection, number)
}

/// Returns the replies to an option that was sent.
pub(crate) fn replies(connection: &mut Connection, number: u32) -> Vec<OptionReply> {
    let replies = connection.option_replies().expect("the server replies");
    assert!(replies.iter().all(|reply| reply.option == number), "{replies:?} to option {number}");
    replies
}

impl Client {
    pub(crate) fn open(path: &Path, mode: Mode) -> Self {
        let mut connection = greet(path, 3);
        connection.negotiate(mode).expect("the mode is accepted");
        if mode != Mode::Simple {
            let replies = ask(&mut connection, option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"]));
            let kinds: Vec<u32> = replies.iter().map(|reply| reply.kind).collect();
            assert_eq!(kinds, [option_reply::META_CONTEXT, option_reply::ACK]);
        }
        connection.go(b"").expect("the export is there");
        Self::in_transmission(connection)
    }

    /// A client on a connection in the transmission phase.
    pub(crate) fn in_transmission(connection: Connection) -> Self {
        Self { connection, asked: BTreeMap::new(), answered: BTreeMap::new(), order: Vec::new() }
    }

    /// The length of the export.
    pub(crate) fn size(&self) -> u64 {
        self.connection.size
    }

    /// The transmission flags of the export.
    pub(crate) fn flags(&self) -> u16 {
        self.connection.flags
    }

    /// A request's header as bytes, and its cookie. The answer is expected from now on.
    pub(crate) fn header(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> (Vec<u8>, u64) {
        let has_len_flag = self.connection.mode == Mode::Extended && kind == WRITE;
        let flags = if has_len_flag { flags | PAYLOAD_LEN } else { flags };
        let (cookie, bytes) = self.connection.header(flags, kind, offset, len);
        if kind != DISC {
            let data = if kind == READ && len <= 64 << 20 { vec![0; len as usize] } else { Vec::new() };
            let answer = Answer { data, ..Answer::default() };
            self.asked.insert(cookie, Asked { kind, offset, len, answer, covered: 0 });
        }
        (bytes, cookie)
    }

    pub(crate) fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> u64 {
        let (bytes, cookie) = self.header(kind, flags, offset, len);
        self.send_bytes(&bytes);
        cookie
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.connection.stream.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn send_write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let cookie = self.send(WRITE, flags, offset, data.len() as u64);
        self.send_bytes(data);
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
        assert_eq!(answer.error, 0, "{:?}: {len} bytes at {offset}", self.connection.mode);
        answer.data
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send_write(flags, offset, data);
        self.wait(cookie).error
    }

    /// Number of requests without an answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// Receives a simple reply or one chunk.
    pub(crate) fn receive(&mut self) {
        match self.connection.message().expect("the server follows the protocol") {
            Message::Simple { cookie, error } => self.simple_reply(cookie, error),
            Message::Chunk { cookie, offset, is_last, content } => {
                let asked = self.asked.get_mut(&cookie).expect("a chunk belongs to a request in flight");
                assert!(offset.is_none_or(|offset| offset == asked.offset), "an extended reply repeats the offset");
                asked.take_in(content);
                if is_last {
                    self.over(cookie);
                }
            }
        }
    }

    fn simple_reply(&mut self, cookie: u64, error: u32) {
        let asked = self.asked.get_mut(&cookie).expect("a reply belongs to a request in flight");
        assert!(self.connection.mode == Mode::Simple || asked.kind != READ, "a simple reply to a read");
        asked.answer.error = error;
        if asked.kind == READ && error == 0 {
            asked.answer.data = self.connection.receive(asked.len as usize).expect("the data of a simple reply");
            asked.covered = asked.len;
        }
        self.over(cookie);
    }

    fn over(&mut self, cookie: u64) {
        let asked = self.asked.remove(&cookie).expect("checked by the caller");
        if asked.kind == READ && asked.answer.error == 0 {
            assert_eq!(asked.covered, asked.len, "a read is covered once");
        }
        self.order.push(cookie);
        self.answered.insert(cookie, asked.answer);
    }

    /// Disconnects, and expects the server to close the connection without another reply.
    pub(crate) fn disconnect(mut self) {
        assert_eq!(self.in_flight(), 0);
        self.send(DISC, 0, 0, 0);
        let mut rest = Vec::new();
        self.connection.stream.read_to_end(&mut rest).expect("the server disconnects");
        assert_eq!(rest, []);
    }
}

impl Asked {
    fn take_in(&mut self, content: Content) {
        match content {
            Content::None => {}
            Content::Data(offset, data) => {
                assert_eq!(self.kind, READ);
                let start = (offset - self.offset) as usize;
                self.answer.data[start..start + data.len()].copy_from_slice(&data);
                self.covered += data.len() as u64;
                self.answer.pieces += 1;
            }
            Content::Extents(context, extents) => {
                assert_eq!(context, 1, "the context's number");
                self.answer.extents = extents;
            }
            Content::Error(error) => self.answer.error = error,
            Content::Hole(..) => panic!("the server sends no holes"),
        }
    }
}
