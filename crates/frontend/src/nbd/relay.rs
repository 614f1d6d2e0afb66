//! Passes the plaintext of a client over TLS between its connection and its worker.
//!
//! A thread for each client, the one that carried out the handshake, encrypts and decrypts. The worker has one end of a
//! pair of sockets, and serves it as it serves any client: a client that takes no replies fills the pair, and then the
//! worker notices. Both directions are bounded, and neither waits for the other. The ends of both directions are passed
//! on, so that a client that only stops sending gets its last replies. See docs/decisions/nbd-server.md.

use super::link::{self, Link};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of requests that are decrypted and not yet passed on.
const INBOUND: usize = 64 << 10;
/// Bytes of replies that are received at a time. They are encrypted at once.
const OUTBOUND: usize = 128 << 10;

/// Threads that pass bytes on for the clients of a volume.
#[derive(Default)]
pub(super) struct Relays {
    state: Mutex<RelaysState>,
    ended: Condvar,
}

#[derive(Default)]
struct RelaysState {
    running: usize,
    /// When the last replies have to be sent, if the server stops.
    until: Option<Instant>,
}

/// One of the threads, as long as it lives.
pub(super) struct RelayGuard(Arc<Relays>);

impl Relays {
    /// Adds a thread.
    pub(super) fn enter(self: &Arc<Self>) -> RelayGuard {
        self.lock().running += 1;
        RelayGuard(Arc::clone(self))
    }

    /// Limits the time for last replies: the workers stop.
    pub(super) fn limit(&self, until: Instant) {
        self.lock().until = Some(until);
    }

    /// Returns what `use_workers` does, or `None` if the workers stop. It does not run any longer when
    /// [`Relays::limit`] has returned.
    pub(super) fn unless_stopping<T>(&self, use_workers: impl FnOnce() -> Option<T>) -> Option<T> {
        let state = self.lock();
        if state.until.is_none() { use_workers() } else { None }
    }

    /// Blocks until all threads have ended. They do when their worker has, within the limit.
    pub(super) fn wait(&self) {
        let mut state = self.lock();
        while state.running > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RelaysState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RelayGuard {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.ended.notify_all();
    }
}

/// Bytes that are to be passed on.
struct Pending {
    bytes: Box<[u8]>,
    rest: Range<usize>,
}

impl Pending {
    fn new(len: usize) -> Self {
        Self { bytes: vec![0; len].into(), rest: 0..0 }
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn unsent(&self) -> [IoSlice<'_>; 1] {
        [IoSlice::new(&self.bytes[self.rest.clone()])]
    }

    fn room(&mut self) -> [IoSliceMut<'_>; 1] {
        [IoSliceMut::new(&mut self.bytes)]
    }
}

/// A client over TLS, and its worker.
pub(super) struct Relay {
    link: Link,
    worker: OwnedFd,
    requests: Pending,
    replies: Pending,
    /// Whether requests may still come, and be passed on.
    has_requests: bool,
    /// Whether replies may still come.
    has_replies: bool,
    /// When the last replies have to be sent: the worker has disconnected the client.
    until: Option<Instant>,
    guard: RelayGuard,
    drain: Duration,
}

impl Relay {
    /// Makes a relay for a client whose handshake is done, and returns the worker's socket. `drain`: the time for the
    /// last replies after the worker has disconnected the client.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(super) fn new(link: Link, guard: RelayGuard, drain: Duration) -> Result<(Self, OwnedFd), Errno> {
        let (worker, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (requests, replies) = (Pending::new(INBOUND), Pending::new(OUTBOUND));
        let relay =
            Self { link, worker, requests, replies, has_requests: true, has_replies: true, until: None, guard, drain };
        Ok((relay, theirs))
    }

    /// Passes bytes on until the worker has disconnected the client and the last replies are sent, or the client is
    /// gone. Then both connections are closed. Blocks.
    pub(super) fn run(mut self) {
        // The worker sees the end of a client that is gone, or violates TLS.
        let _ = self.pass();
    }

    fn pass(&mut self) -> Result<(), Errno> {
        loop {
            let mut is_progress = self.pass_requests()?;
            is_progress |= self.pass_replies()?;
            if !self.has_replies && self.replies.is_empty() {
                self.link.announce_end()?;
                if !self.link.has_unsent() {
                    return Ok(());
                }
            }
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Err(Errno::TIMEDOUT);
            }
            if !is_progress {
                self.wait()?;
            }
        }
    }

    /// Passes on what the client has sent. Returns whether there may be more.
    fn pass_requests(&mut self) -> Result<bool, Errno> {
        if !self.has_requests {
            return Ok(false);
        }
        let mut is_progress = false;
        if self.requests.is_empty() {
            match self.link.receive(&mut self.requests.room(), true)? {
                None => return Ok(false),
                Some(0) => {
                    self.has_requests = false;
                    let _ = rustix::net::shutdown(&self.worker, Shutdown::Write);
                    return Ok(true);
                }
                Some(len) => self.requests.rest = 0..len,
            }
            is_progress = true;
        }
        match link::send(&self.worker, &self.requests.unsent()) {
            Ok(None) => {}
            Ok(Some(sent)) => {
                self.requests.rest.start += sent;
                is_progress = true;
            }
            // The worker reads no more. What it has replied is still sent.
            Err(_) => {
                self.requests.rest = 0..0;
                self.has_requests = false;
                is_progress = true;
            }
        }
        Ok(is_progress)
    }

    /// Passes on what the worker has sent. Returns whether there may be more.
    fn pass_replies(&mut self) -> Result<bool, Errno> {
        self.link.flush()?;
        if self.link.has_unsent() {
            return Ok(false);
        }
        let mut is_progress = false;
        if self.replies.is_empty() && self.has_replies {
            match link::receive(&self.worker, &mut self.replies.room()) {
                Ok(None) => return Ok(false),
                Ok(Some(len @ 1..)) => self.replies.rest = 0..len,
                Ok(Some(0)) | Err(_) => {
                    (self.has_requests, self.has_replies) = (false, false);
                    self.limit();
                }
            }
            is_progress = true;
        }
        if !self.replies.is_empty()
            && let Some(sent) = self.link.send(&self.replies.unsent())?
        {
            self.replies.rest.start += sent;
            is_progress = true;
        }
        Ok(is_progress)
    }

    /// Limits the time for the last replies: the worker has disconnected the client.
    fn limit(&mut self) {
        if self.until.is_none() {
            let own = Instant::now() + self.drain;
            self.until = Some(self.guard.0.lock().until.map_or(own, |until| until.min(own)));
        }
    }

    /// Returns what to wait for: of the client, of the worker, and of which of the two. A socket for which there is
    /// nothing to wait is left out: its end would be reported again and again. The worker's end is waited for once,
    /// also while its replies wait for the client.
    fn awaited(&self) -> (PollFlags, PollFlags, Range<usize>) {
        let has_unsent = self.link.has_unsent();
        let of = |wanted: bool, flags| if wanted { flags } else { PollFlags::empty() };
        let client = of(self.has_requests && self.requests.is_empty(), PollFlags::IN) | of(has_unsent, PollFlags::OUT);
        let worker = of(self.has_replies && self.replies.is_empty() && !has_unsent, PollFlags::IN)
            | of(self.has_requests && !self.requests.is_empty(), PollFlags::OUT);
        let sockets = match (client.is_empty(), worker.is_empty() && self.until.is_some()) {
            (false, true) => 0..1,
            (true, false) => 1..2,
            _ => 0..2,
        };
        (client, worker, sockets)
    }

    /// Blocks until something can be passed on.
    fn wait(&mut self) -> Result<(), Errno> {
        let (client, worker, sockets) = self.awaited();
        let timeout = self.until.map(|until| time_until(until, Instant::now()));
        let mut fds = [PollFd::new(self.link.socket(), client), PollFd::new(&self.worker, worker)];
        match rustix::event::poll(&mut fds[sockets], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if fds[1].revents().contains(PollFlags::HUP) {
            self.limit();
        }
        Ok(())
    }
}

/// Returns the time from `now` to `until`, if that is later.
pub(super) fn time_until(until: Instant, now: Instant) -> Timespec {
    let left = until.saturating_duration_since(now);
    Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn relay_waits_for_what_can_be_passed_on_and_for_the_end_of_the_worker() {
        const NONE: PollFlags = PollFlags::empty();
        const IN: PollFlags = PollFlags::IN;
        const OUT: PollFlags = PollFlags::OUT;
        let (client, _theirs) = UnixStream::pair().unwrap();
        let guard = Arc::new(Relays::default()).enter();
        let (mut relay, _worker) = Relay::new(Link::new(OwnedFd::from(client), None), guard, Duration::ZERO).unwrap();
        // Requests and replies: whether some may come, whether some are here; whether the worker has left.
        for (requests, replies, has_left, expected) in [
            ([true, false], [true, false], false, (IN, IN, 0..2)),
            ([true, true], [true, false], false, (NONE, IN | OUT, 1..2)),
            ([true, true], [true, true], false, (NONE, OUT, 1..2)),
            ([true, false], [true, true], false, (IN, NONE, 0..2)),
            ([true, false], [true, true], true, (IN, NONE, 0..1)),
            ([true, false], [true, false], true, (IN, IN, 0..2)),
            ([false, false], [true, false], false, (NONE, IN, 1..2)),
            ([false, false], [true, true], false, (NONE, NONE, 1..2)),
            ([false, true], [false, true], true, (NONE, NONE, 0..2)),
        ] {
            (relay.has_requests, relay.requests.rest) = (requests[0], 0..usize::from(requests[1]));
            (relay.has_replies, relay.replies.rest) = (replies[0], 0..usize::from(replies[1]));
            relay.until = has_left.then(Instant::now);
            assert_eq!(relay.awaited(), expected, "{requests:?} {replies:?} {has_left}");
        }
    }
}
