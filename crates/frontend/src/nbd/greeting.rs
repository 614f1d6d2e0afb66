//! The handshake of one client on a thread of its own: it may have to open a volume, which takes as long as its key
//! derivation, or to go over to TLS.
//!
//! The thread reads no byte behind an option before it has carried the option out. So what a client, or an attacker in
//! its place, sends behind STARTTLS is part of the handshake of TLS, and never an option or a request.

use super::exports::{Catalog, Lease};
use super::handshake::{Exports, Handshake, Negotiated, Security, Step, Unavailable};
use super::link::Link;
use super::mux;
use super::places::{Place, Places, Stage};
use super::protocol::Export;
use super::relay::{Relay, time_until};
use super::tls::{TlsMode, TlsServer};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exports that may fail to open during a handshake; after that none is opened for it. Each failure may have cost a key
/// derivation.
const MAX_FAILURES: usize = 2;

/// The handshake of one client.
pub(super) struct Greeting {
    link: Link,
    deadline: Instant,
    /// Its other end is closed when the server stops.
    stop: Arc<OwnedFd>,
    tls: Option<Arc<TlsServer>>,
    place: Place,
    /// The export that the client named last.
    lease: Option<(String, Lease)>,
    /// Exports that could not be opened for it.
    failures: usize,
}

impl Greeting {
    /// Takes a place of `places`.
    pub(super) fn new(
        socket: OwnedFd,
        limit: Duration,
        stop: Arc<OwnedFd>,
        tls: Option<Arc<TlsServer>>,
        places: &Arc<Places>,
    ) -> Self {
        // The worker sees another socket if this one goes over to TLS.
        mux::configure(&socket);
        let socket = Arc::new(socket);
        let (link, place) = (Link::new(Arc::clone(&socket), None), places.enter(socket));
        Self { link, deadline: Instant::now() + limit, stop, tls, place, lease: None, failures: 0 }
    }

    /// Carries out the handshake, and gives the client to a worker. With TLS, returns what has to run afterwards.
    /// A client that violates the protocol, or takes too long, is disconnected without a reply.
    pub(super) fn run(mut self, catalog: &dyn Catalog) -> Option<Relay> {
        let (lease, negotiated) = self.negotiate(catalog)?;
        self.place.leave()?;
        drop(self.place);
        let socket = match self.link.into_plain() {
            Ok(socket) => {
                lease.connect(socket, negotiated);
                return None;
            }
            Err(link) => link,
        };
        let (guard, drain) = lease.relay();
        let (relay, socket) = Relay::new(socket, guard, drain).ok()?;
        lease.connect(socket, negotiated);
        Some(relay)
    }

    /// Returns `None` if the client is to be disconnected.
    fn negotiate(&mut self, catalog: &dyn Catalog) -> Option<(Lease, Negotiated)> {
        let (mut input, mut out) = (Vec::new(), Vec::new());
        let mut handshake = Handshake::new(&mut out).with_security(match &self.tls {
            None => Security::None,
            Some(tls) if tls.mode() == TlsMode::Required => Security::Required,
            Some(_) => Security::Offered,
        });
        self.send(&mut out)?;
        loop {
            let wanted = handshake.wanted(&input);
            self.receive(&mut input, wanted)?;
            let exports = &mut Opening { catalog, greeting: self };
            let (used, step) = handshake.advance(exports, &input, &mut out).ok()?;
            input.drain(..used);
            if !out.is_empty() {
                self.send(&mut out)?;
                if !handshake.needs_tls() {
                    self.place.advance(Stage::Negotiating)?;
                }
            }
            match step {
                Step::Continue => {}
                Step::Close => return None,
                Step::StartTls => {
                    self.start_tls()?;
                    handshake.restart();
                }
                Step::Start(negotiated) => return Some((self.lease.take()?.1, negotiated)),
            }
        }
    }

    /// Goes over to TLS: nothing that was negotiated before counts.
    fn start_tls(&mut self) -> Option<()> {
        self.lease = None;
        self.link.start_tls(self.tls.as_ref()?.accept()?);
        while !self.link.continue_handshake().ok()? {
            self.wait(PollFlags::IN)?;
        }
        Some(())
    }

    /// Blocks until the socket is ready.
    fn wait(&self, for_what: PollFlags) -> Option<()> {
        let now = Instant::now();
        if now >= self.deadline {
            return None;
        }
        let unsent = if self.link.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        let socket = PollFd::new(self.link.socket(), for_what | unsent);
        let mut fds = [socket, PollFd::new(&*self.stop, PollFlags::empty())];
        match rustix::event::poll(&mut fds, Some(&time_until(self.deadline, now))) {
            Ok(0) => None,
            Ok(_) if !fds[1].revents().is_empty() => None,
            Ok(_) | Err(Errno::INTR) => Some(()),
            Err(_) => None,
        }
    }

    /// Receives until `input` has `len` bytes.
    fn receive(&mut self, input: &mut Vec<u8>, len: usize) -> Option<()> {
        if Instant::now() >= self.deadline {
            return None;
        }
        let mut done = input.len();
        input.resize(len.max(done), 0);
        while done < len {
            match self.link.receive(&mut [IoSliceMut::new(&mut input[done..])], true) {
                Ok(Some(0)) | Err(_) => return None,
                Ok(Some(more)) => done += more,
                Ok(None) => self.wait(PollFlags::IN)?,
            }
        }
        Some(())
    }

    /// Sends all of `out`, and empties it.
    fn send(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let mut rest = &out[..];
        while !rest.is_empty() || self.link.has_unsent() {
            match rest.is_empty() {
                true => self.link.flush().ok()?,
                false => rest = &rest[self.link.send(&[IoSlice::new(rest)]).ok()?.unwrap_or(0)..],
            }
            if !rest.is_empty() || self.link.has_unsent() {
                self.wait(PollFlags::OUT)?;
            }
        }
        out.clear();
        Some(())
    }
}

/// The exports of a catalog, opened for a client that names them.
struct Opening<'a> {
    catalog: &'a dyn Catalog,
    greeting: &'a mut Greeting,
}

impl Exports for Opening<'_> {
    fn names(&self) -> Vec<String> {
        self.catalog.names()
    }

    fn find(&mut self, name: &[u8]) -> Result<Cow<'_, Export>, Unavailable> {
        let name = std::str::from_utf8(name).map_err(|_| Unavailable::Unknown)?;
        let greeting = &mut *self.greeting;
        if greeting.lease.as_ref().is_none_or(|(known, _)| known != name) {
            greeting.lease = None;
            if greeting.failures >= MAX_FAILURES {
                return Err(Unavailable::Refused);
            }
            let began = Instant::now();
            greeting.place.leave().ok_or(Unavailable::Refused)?;
            let opened = self.catalog.open(name);
            // The client is not to blame for the time that opening takes.
            greeting.deadline += began.elapsed();
            greeting.failures += usize::from(matches!(opened, Err(Unavailable::Refused)));
            greeting.lease = Some((name.to_owned(), opened?));
        }
        let export = greeting.lease.as_ref().and_then(|(_, lease)| lease.export());
        export.map(Cow::Owned).ok_or(Unavailable::Refused)
    }
}
