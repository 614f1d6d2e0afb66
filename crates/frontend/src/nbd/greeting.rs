//! The handshake of one client on a thread of its own: it may have to open a volume, which takes as long as its key
//! derivation, or to go over to TLS.
//!
//! The thread reads no byte behind an option before it has carried the option out. So what a client, or an attacker in
//! its place, sends behind STARTTLS is part of the handshake of TLS, and never an option or a request.

use super::exports::{Catalog, Lease, Unavailable};
use super::handshake::{Handshake, MAX_OPTION_LEN, Negotiated, Security, Step, list_entry, name_of, reply};
use super::link::Link;
use super::mux;
use super::places::{Place, Places, Stage};
use super::protocol::{Export, OPTION_MAGIC, option, option_reply};
use super::relay::{Relay, time_until};
use super::tls::{TlsMode, TlsServer};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
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
    /// The export for which it negotiated metadata contexts.
    contexts_of: Option<String>,
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
        Self { link, deadline: Instant::now() + limit, stop, tls, place, lease: None, failures: 0, contexts_of: None }
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
        let nobody = nobody();
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out).with_security(match &self.tls {
            None => Security::None,
            Some(tls) if tls.mode() == TlsMode::Required => Security::Required,
            Some(_) => Security::Offered,
        });
        self.send(&mut out)?;
        let flags = self.receive(4)?;
        handshake.advance(&nobody, &flags, &mut out).ok()?;
        loop {
            let mut item = self.receive(16)?;
            let (magic, number, len) = header_of(&item)?;
            if magic != OPTION_MAGIC {
                return None;
            }
            if len > MAX_OPTION_LEN {
                handshake.advance(&nobody, &item, &mut out).ok()?;
                let mut rest = len;
                while rest > 0 {
                    let skipped = self.receive(rest.min(4096))?;
                    rest -= skipped.len();
                    handshake.advance(&nobody, &skipped, &mut out).ok()?;
                }
                self.send(&mut out)?;
                continue;
            }
            item.extend(self.receive(len)?);
            let step = self.option(catalog, &mut handshake, (number, &item), &mut out)?;
            self.send(&mut out)?;
            if !handshake.needs_tls() {
                self.place.advance(Stage::Negotiating)?;
            }
            match step {
                Step::Continue => {}
                Step::Close => return None,
                Step::StartTls => {
                    self.start_tls()?;
                    handshake.restart();
                }
                Step::Start(mut negotiated) => {
                    let (name, lease) = self.lease.take()?;
                    // Contexts are those of one export.
                    negotiated.allocation &= self.contexts_of.as_ref().is_some_and(|of| *of == name);
                    return Some((lease, negotiated));
                }
            }
        }
    }

    /// Carries out an option. `item`: its number, and its bytes with the header.
    fn option(
        &mut self,
        catalog: &dyn Catalog,
        handshake: &mut Handshake,
        (number, item): (u32, &[u8]),
        out: &mut Vec<u8>,
    ) -> Option<Step> {
        let data = &item[16..];
        if handshake.needs_tls() {
            // The reply does not depend on the export.
            return Some(handshake.advance(&nobody(), item, out).ok()?.1);
        }
        if number == option::LIST && data.is_empty() {
            for name in catalog.names() {
                list_entry(out, &name);
            }
            reply(out, number, option_reply::ACK, b"");
            return Some(Step::Continue);
        }
        // An option without a name, or a malformed one, needs no export: its reply is the same for all.
        let Some(name) = name_of(number, data) else {
            return Some(handshake.advance(&nobody(), item, out).ok()?.1);
        };
        let found = std::str::from_utf8(name).map_err(|_| Unavailable::Unknown).and_then(|name| {
            if self.lease.as_ref().is_none_or(|(known, _)| known != name) {
                self.lease = None;
                if self.failures >= MAX_FAILURES {
                    return Err(Unavailable::Refused);
                }
                let began = Instant::now();
                self.place.leave().ok_or(Unavailable::Refused)?;
                let opened = catalog.open(name);
                // The client is not to blame for the time that opening takes.
                self.deadline += began.elapsed();
                self.failures += usize::from(matches!(opened, Err(Unavailable::Refused)));
                self.lease = Some((name.to_owned(), opened?));
            }
            Ok(name.to_owned())
        });
        match (found, &self.lease) {
            (Ok(name), Some((_, lease))) => {
                let step = handshake.advance(&lease.export()?, item, out).ok()?.1;
                if number == option::SET_META_CONTEXT {
                    self.contexts_of = Some(name);
                }
                Some(step)
            }
            // It has no error reply.
            _ if number == option::EXPORT_NAME => None,
            (Err(Unavailable::Refused), _) => {
                reply(
                    out,
                    number,
                    option_reply::ERR_POLICY,
                    b"the export cannot be used now; the server has the cause",
                );
                Some(Step::Continue)
            }
            _ => {
                reply(out, number, option_reply::ERR_UNKNOWN, b"no such export");
                Some(Step::Continue)
            }
        }
    }

    /// Goes over to TLS: nothing that was negotiated before counts.
    fn start_tls(&mut self) -> Option<()> {
        (self.lease, self.contexts_of) = (None, None);
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

    /// Receives exactly `len` bytes.
    fn receive(&mut self, len: usize) -> Option<Vec<u8>> {
        if Instant::now() >= self.deadline {
            return None;
        }
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            match self.link.receive(&mut [IoSliceMut::new(&mut bytes[done..])], true) {
                Ok(Some(0)) | Err(_) => return None,
                Ok(Some(more)) => done += more,
                Ok(None) => self.wait(PollFlags::IN)?,
            }
        }
        Some(bytes)
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

/// Returns an export that no client can name, for the parts of a handshake that need none.
fn nobody() -> Export {
    Export { name: "\0".into(), description: String::new(), size: 0, flags: 0, preferred_block: 512 }
}

/// Returns magic, number and length of an option.
fn header_of(item: &[u8]) -> Option<(u64, u32, usize)> {
    let (magic, rest) = item.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let len = rest.first_chunk::<4>()?;
    Some((u64::from_be_bytes(*magic), u32::from_be_bytes(*number), u32::from_be_bytes(*len) as usize))
}
