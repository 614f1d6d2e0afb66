//! One connection in the transmission phase: requests in flight, what is sent, and replies as they arrive.
//!
//! Sockets are never waited for here. A server's reply names a request in flight, keeps within the request's range and
//! fills all of it once, or the connection is broken.

use super::dial::Dialed;
use super::job::{Job, Kind};
use inlock_engine::Errno;
use inlock_frontend::nbd::client::{
    BadReply, Content, MAX_REQUEST_HEADER, MAX_SMALL_PAYLOAD, ReplyHead, request_header,
};
use inlock_frontend::nbd::handshake::ReplyStyle;
use inlock_frontend::nbd::link::{self, Link};
use inlock_frontend::nbd::protocol::command;
use inlock_frontend::nbd::transmission::Command;
use rustix::net::Shutdown;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// Requests in flight on a connection.
pub(crate) const SLOTS: usize = 64;
/// Requests sent with one call.
const BATCH: usize = 16;
/// Length of the input buffer: the longest head, and more of them.
const INPUT_LEN: usize = 2 * (MAX_SMALL_PAYLOAD + 64);
/// Bytes received behind the data of a read with the same call: the next head.
const READ_AHEAD: usize = 64;
/// Bytes received before other connections and new requests are looked at.
const BUDGET: usize = if cfg!(test) { 1024 } else { 4 << 20 };
/// Pieces in which a server may send the data of a read.
const MAX_PIECES: usize = 1024;

/// Reason why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the server closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Socket(Errno),
    #[error("the server violates the protocol: {0}")]
    Protocol(#[from] BadReply),
    #[error("what arrived is no TLS of this connection")]
    Tls,
}

impl Broken {
    /// Returns whether replies no longer count, though the server may still carry out what it has received.
    fn is_violation(self) -> bool {
        matches!(self, Self::Protocol(_) | Self::Tls)
    }
}

/// A request that has its reply.
pub(crate) struct Ended {
    pub(crate) job: Job,
    /// The first extent of a query.
    pub(crate) result: Result<Option<(u64, u64)>, Errno>,
}

struct Slot {
    job: Job,
    cookie: u64,
    is_sent: bool,
    seen: Coverage,
    error: Option<Errno>,
    extent: Option<(u64, u64)>,
}

/// Kind of the bytes that arrive next.
enum Receiving {
    Head,
    /// Data of a read: its position in the buffer, and how much of it is missing.
    Data {
        slot: usize,
        at: usize,
        rest: usize,
        is_last: bool,
    },
}

/// A connection.
pub(crate) struct Line {
    link: Link,
    style: ReplyStyle,
    slots: Vec<Option<Slot>>,
    in_flight: usize,
    next_cookie: u64,
    /// Slots to be sent, in order, and how much of the first one is.
    outgoing: VecDeque<usize>,
    sent: usize,
    input: Box<[u8]>,
    filled: Range<usize>,
    receiving: Receiving,
    /// The server has violated the protocol, or has been told that nothing follows: its replies count no longer.
    is_mute: bool,
}

impl Line {
    /// Takes a connection. `number`: that of the connection, which no other one of the store has.
    pub(crate) fn new(dialed: Dialed, number: u64) -> Self {
        Self {
            link: dialed.link,
            style: dialed.style,
            slots: std::iter::repeat_with(|| None).take(SLOTS).collect(),
            in_flight: 0,
            // A reply that belongs to another connection names no request of this one.
            next_cookie: number << 40 | 1,
            outgoing: VecDeque::with_capacity(SLOTS),
            sent: 0,
            input: vec![0; INPUT_LEN].into(),
            filled: 0..0,
            receiving: Receiving::Head,
            is_mute: false,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket().as_fd()
    }

    /// Returns the number of requests without a reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether something waits to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.link.has_unsent()
    }

    /// Returns whether encrypted bytes of requests that count as sent wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.is_mute && self.link.has_unsent()
    }

    /// Returns the jobs in flight.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.slots.iter().flatten().map(|slot| &slot.job)
    }

    /// Takes the jobs in flight. Those whose change the server may still carry out are marked.
    pub(crate) fn take_jobs(&mut self) -> impl Iterator<Item = Job> {
        self.outgoing.clear();
        self.in_flight = 0;
        self.slots.iter_mut().filter_map(Option::take).map(|mut slot| {
            slot.job.is_doubtful = slot.is_sent && slot.job.is_change();
            slot.job
        })
    }

    /// Returns whether the server has the whole of a request that changes the export.
    pub(crate) fn has_changes(&self) -> bool {
        self.slots.iter().flatten().any(|slot| slot.is_sent && slot.job.is_change())
    }

    /// Tells the server that nothing follows, and listens only for the end of the connection from now on.
    pub(crate) fn shut_down(&mut self) {
        self.is_mute = true;
        let _ = rustix::net::shutdown(self.link.socket(), Shutdown::Write);
    }

    /// Receives on a connection that is given up. Returns whether the server has closed it.
    pub(crate) fn drain(&mut self, ended: &mut Vec<Ended>) -> bool {
        if !self.is_mute {
            match self.link.flush().map_err(broken).and_then(|()| self.receive(ended)) {
                Ok(()) => return false,
                Err(broken) if broken.is_violation() => self.shut_down(),
                Err(_) => return true,
            }
        }
        self.filled = 0..0;
        // Nothing is sent from now on, so replies need not be decrypted.
        let mut input = [IoSliceMut::new(&mut self.input)];
        !matches!(link::receive(self.link.socket(), &mut input), Ok(None | Some(1..)))
    }

    /// Returns whether replies still count.
    pub(crate) fn is_mute(&self) -> bool {
        self.is_mute
    }

    /// Queues a job to be sent. There is a free slot for it.
    pub(crate) fn queue(&mut self, job: Job) {
        let Some(index) = self.slots.iter().position(Option::is_none) else { return };
        // The slot is in the cookie, and no cookie comes twice.
        let cookie = self.next_cookie << 8 | index as u64;
        self.next_cookie += 1;
        let seen = Coverage::default();
        self.slots[index] = Some(Slot { job, cookie, is_sent: false, seen, error: None, extent: None });
        self.outgoing.push_back(index);
        self.in_flight += 1;
    }

    /// Sends what the socket takes now.
    pub(crate) fn send(&mut self) -> Result<(), Broken> {
        self.link.flush().map_err(broken)?;
        while !self.outgoing.is_empty() {
            let Some(sent) = self.send_batch()? else { return Ok(()) };
            self.note_sent(sent);
        }
        Ok(())
    }

    /// Sends several requests with one call. `None`: the socket takes nothing now.
    fn send_batch(&mut self) -> Result<Option<usize>, Broken> {
        let mut heads = [([0; MAX_REQUEST_HEADER], 0); BATCH];
        let batch = || self.outgoing.iter().take(BATCH).filter_map(|index| self.slots[*index].as_ref());
        for (head, slot) in heads.iter_mut().zip(batch()) {
            *head = request_header(&slot.job.command(slot.cookie, self.style), self.style);
        }
        let mut parts = [IoSlice::new(&[]); 2 * BATCH];
        let (mut count, mut skip) = (0, self.sent);
        for ((head, head_len), slot) in heads.iter().zip(batch()) {
            for part in [&head[..*head_len], slot.job.payload()] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    parts[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
            }
        }
        self.link.send(&parts[..count]).map_err(broken)
    }

    fn note_sent(&mut self, mut sent: usize) {
        while let Some(slot) = self.outgoing.front().and_then(|index| self.slots[*index].as_mut()) {
            let head_len = if self.style == ReplyStyle::Extended { 32 } else { 28 };
            let rest = head_len + slot.job.payload().len() - self.sent;
            if sent < rest {
                self.sent += sent;
                return;
            }
            slot.is_sent = true;
            sent -= rest;
            self.sent = 0;
            self.outgoing.pop_front();
        }
    }

    /// Tells the server that no request follows, as far as the socket takes it.
    pub(crate) fn say_goodbye(&mut self) {
        if self.sent > 0 {
            // It would be the rest of a write.
            return;
        }
        let command = Command::new(command::DISC, 0, 0, (0, 0));
        let (head, len) = request_header(&command, self.style);
        let _ = self.link.send(&[IoSlice::new(&head[..len])]);
    }

    /// Receives what has arrived, and adds the requests that have ended.
    pub(crate) fn receive(&mut self, ended: &mut Vec<Ended>) -> Result<(), Broken> {
        let received = self.receive_replies(ended);
        self.is_mute |= received.is_err_and(Broken::is_violation);
        received
    }

    fn receive_replies(&mut self, ended: &mut Vec<Ended>) -> Result<(), Broken> {
        let mut budget = BUDGET;
        loop {
            // Only the socket may have more when this returns: no poll reports what is here already.
            let received = match self.receiving {
                Receiving::Head => match ReplyHead::parse(&self.input[self.filled.clone()], self.style)? {
                    Some((head, used)) => {
                        self.filled.start += used;
                        self.on_head(head, ended)?;
                        continue;
                    }
                    None => self.fill_input(budget > 0)?,
                },
                Receiving::Data { rest: 0, slot, is_last, .. } => {
                    self.receiving = Receiving::Head;
                    if is_last {
                        self.finish(slot, ended)?;
                    }
                    continue;
                }
                Receiving::Data { slot, at, rest, is_last } => {
                    let Some(received) = self.receive_data(slot, at, rest, budget > 0)? else { return Ok(()) };
                    let moved = received.min(rest);
                    self.receiving = Receiving::Data { slot, at: at + moved, rest: rest - moved, is_last };
                    Some(received)
                }
            };
            match received {
                Some(received) => budget = budget.saturating_sub(received),
                None => return Ok(()),
            }
        }
    }

    /// Receives heads. `None`: nothing has arrived.
    fn fill_input(&mut self, from_socket: bool) -> Result<Option<usize>, Broken> {
        self.input.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let mut parts = [IoSliceMut::new(&mut self.input[self.filled.end..])];
        let received = receive_into(&mut self.link, &mut parts, from_socket)?;
        self.filled.end += received.unwrap_or(0);
        Ok(received)
    }

    /// Moves bytes of a read into its buffer, from the input or from the socket; the call may receive the next head as
    /// well. Returns the number of bytes, or `None` if nothing has arrived.
    fn receive_data(
        &mut self,
        slot: usize,
        at: usize,
        rest: usize,
        from_socket: bool,
    ) -> Result<Option<usize>, Broken> {
        let Some(slot) = self.slots[slot].as_mut() else { return Err(BadReply::Range.into()) };
        let Some(into) = slot.job.buffer().get_mut(at..at + rest) else { return Err(BadReply::Range.into()) };
        if !self.filled.is_empty() {
            let here = &self.input[self.filled.clone()];
            let len = here.len().min(rest);
            into[..len].copy_from_slice(&here[..len]);
            self.filled.start += len;
            return Ok(Some(len));
        }
        let mut parts = [IoSliceMut::new(into), IoSliceMut::new(&mut self.input[..READ_AHEAD])];
        let received = receive_into(&mut self.link, &mut parts, from_socket)?;
        self.filled = 0..received.map_or(0, |received| received.saturating_sub(rest));
        Ok(received)
    }

    fn on_head(&mut self, head: ReplyHead, ended: &mut Vec<Ended>) -> Result<(), Broken> {
        let index = (head.cookie & 0xff) as usize;
        let slot = self.slots.get_mut(index).and_then(Option::as_mut);
        let slot = slot.filter(|slot| slot.cookie == head.cookie && slot.is_sent);
        let slot = slot.ok_or(BadReply::Cookie(head.cookie))?;
        let Job { kind, offset, len, .. } = slot.job;
        if head.request_offset.is_some_and(|repeated| repeated != offset) {
            return Err(BadReply::Unfit.into());
        }
        match (head.content, kind) {
            (Content::Success, Kind::Read) if self.style == ReplyStyle::Simple => {
                slot.seen.add(0, len)?;
                self.receiving = Receiving::Data { slot: index, at: 0, rest: len as usize, is_last: true };
                return Ok(());
            }
            (Content::Success, Kind::Read | Kind::Extents) => return Err(BadReply::Unfit.into()),
            (Content::Success | Content::None, _) => {}
            (Content::Data { offset: from, len: count } | Content::Hole { offset: from, len: count }, Kind::Read) => {
                let end = from.checked_add(count).filter(|end| from >= offset && *end <= offset + len && count > 0);
                let (at, end) = (from.wrapping_sub(offset), end.ok_or(BadReply::Range)? - offset);
                slot.seen.add(at, end)?;
                if let Content::Data { .. } = head.content {
                    let (at, rest) = (at as usize, count as usize);
                    self.receiving = Receiving::Data { slot: index, at, rest, is_last: head.is_last };
                    return Ok(());
                }
                slot.job.buffer()[at as usize..end as usize].fill(0);
            }
            (Content::Extent { len, flags }, Kind::Extents) if len > 0 && slot.extent.is_none() => {
                slot.extent = Some((len, flags));
            }
            (Content::Error(error), _) => slot.error = Some(errno(error)),
            _ => return Err(BadReply::Unfit.into()),
        }
        if head.is_last { self.finish(index, ended) } else { Ok(()) }
    }

    fn finish(&mut self, index: usize, ended: &mut Vec<Ended>) -> Result<(), Broken> {
        let Some(Slot { job, seen, error, extent, .. }) = self.slots[index].take() else { return Ok(()) };
        self.in_flight -= 1;
        let is_complete = match job.kind {
            Kind::Read => seen.is_whole(job.len),
            Kind::Extents => extent.is_some(),
            _ => true,
        };
        if error.is_none() && !is_complete {
            // It is sent again over another connection.
            let (cookie, seen) = (0, Coverage::default());
            self.slots[index] = Some(Slot { job, cookie, is_sent: true, seen, error: None, extent: None });
            self.in_flight += 1;
            return Err(BadReply::Short.into());
        }
        ended.push(Ended { job, result: error.map_or(Ok(extent), Err) });
        Ok(())
    }
}

/// Receives into `parts`. `None`: nothing has arrived.
fn receive_into(link: &mut Link, parts: &mut [IoSliceMut<'_>], from_socket: bool) -> Result<Option<usize>, Broken> {
    match link.receive(parts, from_socket).map_err(broken)? {
        Some(0) => Err(Broken::Closed),
        received => Ok(received),
    }
}

fn broken(error: rustix::io::Errno) -> Broken {
    match error {
        rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE => Broken::Closed,
        rustix::io::Errno::PROTO => Broken::Tls,
        error => Broken::Socket(Errno::from_raw_os_error(error.raw_os_error())),
    }
}

/// Returns the error for a number of the protocol. One that is unknown, or would make the engine try again, is `EIO`.
fn errno(number: u32) -> Errno {
    match number {
        1 => Errno::PERM,
        12 => Errno::NOMEM,
        22 => Errno::INVAL,
        28 => Errno::NOSPC,
        75 => Errno::OVERFLOW,
        95 => Errno::OPNOTSUPP,
        108 => Errno::SHUTDOWN,
        _ => Errno::IO,
    }
}

/// Ranges of a read that have come, apart and in order.
#[derive(Default)]
struct Coverage(Vec<(u64, u64)>);

impl Coverage {
    /// Adds the range from `start` to `end`. Fails if a part of it has come before, or the pieces are too many.
    fn add(&mut self, start: u64, end: u64) -> Result<(), BadReply> {
        let at = self.0.partition_point(|(other, _)| *other < start);
        let before = at.checked_sub(1).map(|before| self.0[before].1);
        let after = self.0.get(at).map(|(after, _)| *after);
        if before.is_some_and(|before| before > start) || after.is_some_and(|after| after < end) {
            return Err(BadReply::Range);
        }
        match (before == Some(start), after == Some(end)) {
            (true, true) => self.0[at - 1].1 = self.0.remove(at).1,
            (true, false) => self.0[at - 1].1 = end,
            (false, true) => self.0[at].0 = start,
            (false, false) if self.0.len() < MAX_PIECES => self.0.insert(at, (start, end)),
            (false, false) => return Err(BadReply::Range),
        }
        Ok(())
    }

    fn is_whole(&self, len: u64) -> bool {
        len == 0 || self.0 == [(0, len)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Owner;
    use super::super::options::ExportFacts;
    use super::*;
    use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
    use rustix::event::{PollFd, PollFlags, Timespec};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    #[test]
    fn pieces_in_any_order_make_a_whole_and_never_overlap() {
        let mut seen = Coverage::default();
        for (start, end) in [(4, 6), (0, 2), (8, 10), (6, 8), (2, 4)] {
            assert!(!seen.is_whole(10));
            seen.add(start, end).unwrap();
        }
        assert!(seen.is_whole(10) && seen.0.len() == 1);
        for (start, end) in [(0, 1), (9, 11), (0, 10), (3, 5)] {
            assert_eq!(seen.add(start, end), Err(BadReply::Range), "{start}..{end}");
        }
        let mut many = Coverage::default();
        (0..MAX_PIECES as u64).for_each(|piece| many.add(2 * piece, 2 * piece + 1).unwrap());
        assert_eq!(many.add(1 << 40, (1 << 40) + 1), Err(BadReply::Range));
    }

    /// Passes what it is given to start to a channel.
    struct Captured(std::sync::mpsc::Sender<Pending>);

    impl AsyncStore for Captured {
        fn start(&self, pending: Pending) {
            self.0.send(pending).unwrap();
        }
        fn abort(&self) {}
    }

    /// Returns a connection with structured replies, and the server's end.
    fn connection() -> (Line, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let facts = ExportFacts { size: 1 << 20, flags: 1, min_block: 1, max_payload: 1 << 20 };
        let link = Link::new(std::os::fd::OwnedFd::from(ours), None);
        let style = ReplyStyle::Structured;
        (Line::new(Dialed { link, style, has_extents: false, facts, server: Vec::new() }, 0), theirs)
    }

    fn deadline() -> std::time::Instant {
        std::time::Instant::now() + std::time::Duration::from_secs(60)
    }

    /// Returns a read at offset 0, and the thread that waits for its bytes.
    fn read(len: usize) -> (Job, JoinHandle<Result<Vec<u8>, Errno>>) {
        let (sender, started) = std::sync::mpsc::channel();
        let caller = std::thread::spawn(move || {
            let mut data = vec![0; len];
            asynchronous::read_at(&Captured(sender), &mut data, 0).map(|_| data)
        });
        (Job::of(started.recv().unwrap(), deadline()).unwrap(), caller)
    }

    /// Sends a request, and returns its cookie.
    fn ask(line: &mut Line, job: Job, theirs: &mut UnixStream) -> Vec<u8> {
        line.queue(job);
        line.send().unwrap();
        let mut request = [0; 28];
        theirs.read_exact(&mut request).unwrap();
        request[8..16].to_vec()
    }

    fn chunk(cookie: &[u8], is_last: bool, kind: u8, payload: &[u8]) -> Vec<u8> {
        let start = [&[0x66, 0x8e, 0x33, 0xef, 0, is_last.into(), 0, kind][..], cookie].concat();
        [&start, &(payload.len() as u32).to_be_bytes()[..], payload].concat()
    }

    fn data(cookie: &[u8], offset: u64, bytes: &[u8]) -> Vec<u8> {
        chunk(cookie, false, 1, &[&offset.to_be_bytes()[..], bytes].concat())
    }

    /// Receives what the socket reports, until a request has ended.
    fn receive(line: &mut Line) -> Vec<Ended> {
        let mut ended = Vec::new();
        while ended.is_empty() {
            let mut polled = [PollFd::from_borrowed_fd(line.socket(), PollFlags::IN)];
            let ready = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            assert!(ready > 0, "the reply is in the input, and the socket has nothing");
            line.receive(&mut ended).unwrap();
        }
        ended
    }

    fn complete(ended: Vec<Ended>) {
        ended.into_iter().for_each(|ended| ended.job.complete(ended.result.map(drop)));
    }

    /// A call may end with a full budget and heads in the input, which no poll would report.
    #[test]
    fn everything_in_the_input_is_handled_before_receive_returns() {
        const LEN: usize = 4096;
        let ((mut line, mut theirs), (job, caller)) = (connection(), read(LEN));
        let cookie = ask(&mut line, job, &mut theirs);
        theirs.write_all(&[data(&cookie, 0, &[7; LEN]), chunk(&cookie, true, 0, &[])].concat()).unwrap();
        complete(receive(&mut line));
        assert!(caller.join().unwrap() == Ok(vec![7; LEN]));
    }

    /// Other connections have their turn though one has much to say.
    #[test]
    fn one_call_receives_no_more_than_the_budget_and_one_buffer() {
        const LEN: usize = 4 * INPUT_LEN;
        let ((mut line, mut theirs), (job, caller)) = (connection(), read(LEN));
        let cookie = ask(&mut line, job, &mut theirs);
        theirs.write_all(&[data(&cookie, 0, &[7; LEN]), chunk(&cookie, true, 0, &[])].concat()).unwrap();
        let mut ended = Vec::new();
        line.receive(&mut ended).unwrap();
        assert!(ended.is_empty(), "all of it was received at once");
        complete(receive(&mut line));
        assert!(caller.join().unwrap() == Ok(vec![7; LEN]));
    }

    #[test]
    fn hole_of_a_read_is_zero_to_its_end() {
        let ((mut line, mut theirs), (mut job, caller)) = (connection(), read(4096));
        job.buffer().fill(9);
        let cookie = ask(&mut line, job, &mut theirs);
        let hole = [&100_u64.to_be_bytes()[..], &2900_u32.to_be_bytes()].concat();
        let chunks = [data(&cookie, 0, &[7; 100]), chunk(&cookie, false, 2, &hole), data(&cookie, 3000, &[7; 1096])];
        theirs.write_all(&[&chunks.concat()[..], &chunk(&cookie, true, 0, &[])].concat()).unwrap();
        complete(receive(&mut line));
        assert!(caller.join().unwrap() == Ok([vec![7; 100], vec![0; 2900], vec![7; 1096]].concat()));
    }

    #[test]
    fn head_that_comes_in_parts_behind_another_is_whole_again() {
        let (mut line, mut theirs) = connection();
        let flush = || Job::new(Kind::Flush, Owner::Store, 0, 0, deadline());
        let replies = [(); 2].map(|()| chunk(&ask(&mut line, flush(), &mut theirs), true, 0, &[])).concat();
        for cut in 21..40 {
            let (mut line, mut theirs) = connection();
            (0..2).for_each(|_| drop(ask(&mut line, flush(), &mut theirs)));
            theirs.write_all(&replies[..cut]).unwrap();
            assert_eq!(receive(&mut line).len(), 1);
            theirs.write_all(&replies[cut..]).unwrap();
            assert_eq!((receive(&mut line).len(), line.in_flight()), (1, 0), "cut at {cut}");
        }
    }

    #[test]
    fn extent_without_a_length_is_a_violation() {
        for (len, is_valid) in [(0_u32, false), (1, true)] {
            let (mut line, mut theirs) = connection();
            let query = Job::new(Kind::Extents, Owner::Query(std::sync::mpsc::channel().0), 0, 4096, deadline());
            let cookie = ask(&mut line, query, &mut theirs);
            let extent = [[0, 0, 0, 1], len.to_be_bytes(), [0, 0, 0, 3]].concat();
            theirs.write_all(&chunk(&cookie, true, 5, &extent)).unwrap();
            let mut ended = Vec::new();
            let received = line.receive(&mut ended);
            assert_eq!(received, if is_valid { Ok(()) } else { Err(Broken::Protocol(BadReply::Unfit)) });
            assert_eq!(ended.len(), usize::from(is_valid));
        }
    }

    #[test]
    fn connection_without_its_requests_has_none_in_flight() {
        let (mut line, mut theirs) = connection();
        let flush = || Job::new(Kind::Flush, Owner::Store, 0, 0, deadline());
        ask(&mut line, flush(), &mut theirs);
        line.queue(flush());
        assert_eq!((line.in_flight(), line.has_outgoing()), (2, true));
        assert_eq!(line.take_jobs().count(), 2);
        assert_eq!((line.in_flight(), line.has_outgoing()), (0, false));
    }

    #[test]
    fn no_error_of_a_server_makes_the_engine_try_again() {
        for number in 0..=u32::from(u16::MAX) {
            assert!(![Errno::INTR, Errno::AGAIN].contains(&errno(number)), "{number}");
        }
    }

    #[test]
    fn errors_of_the_protocol_are_those_of_linux() {
        use Errno as E;
        let known = [E::PERM, E::IO, E::NOMEM, E::INVAL, E::NOSPC, E::OVERFLOW, E::OPNOTSUPP, E::SHUTDOWN];
        let numbers = [1, 5, 12, 22, 28, 75, 95, 108];
        assert_eq!(numbers.map(errno), known);
    }
}
