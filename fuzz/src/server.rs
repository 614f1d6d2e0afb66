//! The NBD protocol as a client reads it: the replies of a server to the NBD store, in the handshake and afterwards.
//!
//! After the handshake a second parser, written from the protocol specification, says which requests have their reply.

use crate::nbd_store::dial::{Dialed, Limit, Socket, negotiate};
use crate::nbd_store::job::{Job, Kind, Owner};
use crate::nbd_store::line::Line;
use crate::nbd_store::options::ExportFacts;
use crate::nbd_store::uri::NbdUri;
use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
use inlock_frontend::nbd::handshake::ReplyStyle;
use inlock_frontend::nbd::link::Link;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A time that no input takes.
const TIME: Duration = Duration::from_secs(3600);
/// Longest payload of a request, in bytes.
const MAX_PAYLOAD: u32 = 32 << 20;

/// Feeds the bytes of a server to the store. The first byte chooses the phase, and the pieces in which they arrive.
pub fn nbd_server(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let piece = [1, 7, 64, 16 << 10][usize::from(choice & 3)];
    match choice >> 2 & 3 {
        0 => handshake(bytes),
        1 => replies(bytes, piece, ReplyStyle::Simple),
        2 => replies(bytes, piece, ReplyStyle::Structured),
        _ => replies(bytes, piece, ReplyStyle::Extended),
    }
}

/// Opens an export. The facts must be such that requests can be made of them, and those that the server has stated.
fn handshake(bytes: &[u8]) {
    let Ok((ours, theirs)) = UnixStream::pair() else { return };
    let Ok(uri) = NbdUri::parse("nbd+unix:///disk?socket=/s") else { return };
    send(&theirs, bytes);
    // The end comes behind the bytes: no call waits.
    let _ = theirs.shutdown(Shutdown::Write);
    let limit = Limit { deadline: Instant::now() + TIME, length: TIME };
    let Ok(Dialed { facts, .. }) = negotiate(Socket::Unix(ours), limit, &uri, None) else { return };
    let ExportFacts { size, min_block, max_payload, .. } = facts;
    assert!(i64::try_from(size).is_ok(), "a size of {size}");
    assert!(min_block.is_power_of_two() && min_block <= 64 << 10, "blocks of {min_block} bytes");
    let is_payload = (min_block..=MAX_PAYLOAD).contains(&max_payload) && max_payload.is_multiple_of(min_block);
    assert!(is_payload, "a payload of {max_payload} bytes with blocks of {min_block}");
    assert!(bytes.starts_with(b"NBDMAGICIHAVEOPT"), "a server without a greeting");
    assert!(bytes.windows(8).any(|field| field == size.to_be_bytes()), "a size that was not stated: {size}");
}

/// Sends what the socket takes at once.
fn send(mut socket: &UnixStream, bytes: &[u8]) {
    let _ = socket.set_nonblocking(true);
    // The rest is as if the server had not sent it.
    let _ = socket.write_all(bytes);
}

/// Reads that are in flight: offset and length.
const READS: [(u64, usize); 2] = [(4096, 64), (0, 16)];
/// A write in flight.
const WRITE: (u64, usize) = (8192, 16);
/// Offset and length of the query of extents in flight, which is the last request.
const QUERY: (u64, u64) = (0, 1 << 20);
/// Requests in flight: the reads, the write, a flush, the query.
const REQUESTS: usize = READS.len() + 3;
const FLUSH: usize = REQUESTS - 2;
const EXTENTS: usize = REQUESTS - 1;

/// Successes: bytes that were read, and the extent that was found. `None`: the request has not succeeded.
type Successes = [Option<Vec<u8>>; REQUESTS];

/// Has requests in flight on a connection, over which `bytes` come, and compares what they end with.
fn replies(bytes: &[u8], piece: usize, style: ReplyStyle) {
    let connection = Connection { bytes, piece, style, started: Mutex::default(), successes: Mutex::default() };
    connection.ask(0);
    let found = connection.successes.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(found, expected(bytes, style), "{style:?}");
}

/// A connection whose server's bytes are known.
struct Connection<'a> {
    bytes: &'a [u8],
    piece: usize,
    style: ReplyStyle,
    started: Mutex<Vec<Pending>>,
    successes: Mutex<Successes>,
}

/// A caller blocks until its operation ends. So the start of each operation makes the next call, and the last one
/// receives for all.
impl AsyncStore for Connection<'_> {
    fn start(&self, pending: Pending) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.push(pending);
        let number = started.len();
        if number < EXTENTS {
            drop(started);
            return self.ask(number);
        }
        let all = std::mem::take(&mut *started);
        drop(started);
        let (sender, receiver) = channel();
        self.receive(all, sender);
        self.succeed(EXTENTS, receiver.try_recv().ok().map(|(len, flags)| extent(len, flags)));
    }

    fn abort(&self) {}
}

impl Connection<'_> {
    /// Makes the request with this number. Blocks until it ends.
    fn ask(&self, number: usize) {
        let success = match READS.get(number) {
            Some((offset, len)) => {
                let mut data = vec![0; *len];
                asynchronous::read_at(self, &mut data, *offset).ok().map(|read| data[..read].to_vec())
            }
            None if number == FLUSH => asynchronous::sync(self).ok().map(|()| Vec::new()),
            None => asynchronous::write_at(self, &[5; WRITE.1], WRITE.0, false).ok().map(|_| Vec::new()),
        };
        self.succeed(number, success);
    }

    fn succeed(&self, number: usize, success: Option<Vec<u8>>) {
        self.successes.lock().unwrap_or_else(PoisonError::into_inner)[number] = success;
    }

    /// Ends the jobs that get their replies. The others are dropped, and so have failed.
    fn receive(&self, started: Vec<Pending>, query: Sender<(u64, u64)>) {
        let Ok((ours, theirs)) = UnixStream::pair() else { return };
        let deadline = Instant::now() + TIME;
        let facts = ExportFacts { size: 1 << 30, flags: 1, min_block: 1, max_payload: MAX_PAYLOAD };
        let link = Link::new(std::os::fd::OwnedFd::from(ours), None);
        let mut line = Line::new(Dialed { link, style: self.style, has_extents: true, facts, server: Vec::new() }, 0);
        started.into_iter().filter_map(|pending| Job::of(pending, deadline)).for_each(|job| line.queue(job));
        line.queue(Job::new(Kind::Extents, Owner::Query(query), QUERY.0, QUERY.1, deadline));
        assert_eq!(line.send(), Ok(()), "requests of a few hundred bytes");
        let mut ended = Vec::new();
        for piece in self.bytes.chunks(self.piece) {
            send(&theirs, piece);
            if line.receive(&mut ended).is_err() {
                break;
            }
            assert_eq!(line.in_flight() + ended.len(), REQUESTS, "a request is lost");
        }
        for ended in ended {
            match (ended.result, ended.job.owner) {
                (Ok(Some(extent)), Owner::Query(sender)) => drop(sender.send(extent)),
                (result, owner) => Job { owner, ..ended.job }.complete(result.map(drop)),
            }
        }
    }
}

fn extent(len: u64, flags: u64) -> Vec<u8> {
    [len.to_be_bytes(), flags.to_be_bytes()].concat()
}

/// A request as the second parser knows it.
#[derive(Default)]
struct Request {
    offset: u64,
    /// Bytes that are read.
    data: Vec<u8>,
    has_come: Vec<bool>,
    extent: Option<Vec<u8>>,
    has_failed: bool,
    has_ended: bool,
}

/// Returns the successes of requests by the protocol: of everything that comes before the first violation.
fn expected(bytes: &[u8], style: ReplyStyle) -> Successes {
    let mut requests: [Request; REQUESTS] = Default::default();
    for (request, (offset, len)) in requests.iter_mut().zip(READS) {
        (request.offset, request.data, request.has_come) = (offset, vec![0; len], vec![false; len]);
    }
    requests[READS.len()].offset = WRITE.0;
    let mut input = Input(bytes);
    while let Some(number) = reply(&mut input, style, &mut requests) {
        // Behind a reply that does not fit, nothing counts.
        if requests[number].has_ended && success(number, &requests[number]).is_err() {
            requests[number].has_failed = true;
            break;
        }
    }
    let success = |number: usize| success(number, &requests[number]).ok().flatten();
    std::array::from_fn(|number| Some(number).filter(|number| requests[*number].has_ended).and_then(success))
}

/// Returns what an ended request has succeeded with, unless it has failed. An error: its reply has less than it needs.
fn success(number: usize, request: &Request) -> Result<Option<Vec<u8>>, ()> {
    match number {
        _ if request.has_failed => Ok(None),
        EXTENTS => request.extent.clone().map(Some).ok_or(()),
        _ if request.has_come.iter().all(|has_come| *has_come) => Ok(Some(request.data.clone())),
        _ => Err(()),
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, len: u64) -> Option<u64> {
        Some(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// Reads a simple reply or a chunk, and returns the number of its request. `None`: the end, or a violation.
fn reply(input: &mut Input<'_>, style: ReplyStyle, requests: &mut [Request; REQUESTS]) -> Option<usize> {
    let magic = input.number(4)?;
    let is_extended = style == ReplyStyle::Extended;
    if magic == 0x6744_6698 && !is_extended {
        let (error, number) = (input.number(4)?, number_of(input.number(8)?)?);
        let request = requests.get_mut(number).filter(|request| !request.has_ended)?;
        let has_data = error == 0 && number < READS.len();
        if error == 0 && (number == EXTENTS || has_data && style != ReplyStyle::Simple) {
            return None;
        }
        if has_data {
            put(request, request.offset, input.take(request.data.len() as u64)?)?;
        }
        request.has_failed |= error != 0;
        request.has_ended = true;
        return Some(number);
    }
    if magic != if is_extended { 0x6e8a_278c } else { 0x668e_33ef } || style == ReplyStyle::Simple {
        return None;
    }
    let (flags, kind, number) = (input.number(2)?, input.number(2)?, number_of(input.number(8)?)?);
    let repeated = if is_extended { Some(input.number(8)?) } else { None };
    let len = input.number(if is_extended { 8 } else { 4 })?;
    let mut payload = Input(input.take(len)?);
    let request = requests.get_mut(number).filter(|request| !request.has_ended)?;
    let len = payload.0.len();
    if repeated.is_some_and(|repeated| repeated != request.offset) || kind != 1 && len > 4128 {
        return None;
    }
    match kind {
        0 if len == 0 && flags & 1 != 0 => {}
        1 if number < READS.len() && len > 8 => {
            let offset = payload.number(8)?;
            put(request, offset, payload.0)?;
        }
        2 if number < READS.len() && len == 12 => {
            let (offset, len) = (payload.number(8)?, payload.number(4)?);
            // None is longer than what is read.
            let zeroes = vec![0; usize::try_from(len).ok().filter(|len| (1..=64).contains(len))?];
            put(request, offset, &zeroes)?;
        }
        5 | 6 if number == EXTENTS && request.extent.is_none() && (kind == 6) == is_extended => {
            let field = if is_extended { 8 } else { 4 };
            let first = payload.take(field)?;
            let (len, flags) = (payload.number(field)?, payload.number(field)?);
            let is_whole = payload.0.len().is_multiple_of(2 * field as usize);
            request.extent = Some(extent(len, flags)).filter(|_| is_whole && len > 0 && !first.is_empty());
            request.extent.as_ref()?;
        }
        _ if kind & 1 << 15 != 0 && len >= 6 && payload.number(4)? != 0 => request.has_failed = true,
        _ => return None,
    }
    request.has_ended = flags & 1 != 0;
    Some(number)
}

/// Returns the number of the request with a cookie: the store counts them, and puts their place in the last byte.
fn number_of(cookie: u64) -> Option<usize> {
    let number = cookie & 0xff;
    (cookie >> 8 == number + 1 && number < REQUESTS as u64).then_some(number as usize)
}

/// Adds bytes of a read. `None`: they are not of its range, or have come before.
fn put(request: &mut Request, offset: u64, bytes: &[u8]) -> Option<()> {
    let start = usize::try_from(offset.checked_sub(request.offset)?).ok()?;
    let range = start..start.checked_add(bytes.len())?;
    let has_come = request.has_come.get_mut(range.clone())?;
    if has_come.iter().any(|has_come| *has_come) {
        return None;
    }
    has_come.fill(true);
    request.data[range].copy_from_slice(bytes);
    Some(())
}
