//! Many exports at one address: the name that a client asks for chooses the volume.
//!
//! A thread of its own carries out the handshake of each client, since it may have to open a volume, which takes as
//! long as its key derivation. It reads no byte behind the handshake. The connection then goes to the workers of the
//! volume, where the request path is that of a server with one export. See docs/decisions/0055-many-volumes.md.

use super::handshake::{Handshake, MAX_OPTION_LEN, Negotiated, Step, list_entry, name_of, reply};
use super::mux::{Limits, Message, NbdFrontend};
use super::protocol::{Export, OPTION_MAGIC, option, option_reply};
use super::server::{Acceptor, Listen, ServerError, ServerOptions, Workers, bind, describe};
use super::session::CountGuard;
use super::throttle::{ExportLimits, Throttle};
use inlock_engine::worker::Mailbox;
use inlock_engine::{Device, Offload};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Handshakes at a time; further clients are disconnected.
const MAX_HANDSHAKES: usize = 256;
/// Workers that share the memory of one server: an export has the buffers of one of them.
const SHARE: usize = 64;

/// The exports of a server.
pub trait Catalog: Send + Sync + 'static {
    /// Returns the names for clients that list exports.
    fn names(&self) -> Vec<String>;

    /// Opens the export with this name, or returns it if it is open. The empty name is the client's default. Blocks.
    ///
    /// # Errors
    /// There is no such export, or it cannot be used now.
    fn open(&self, name: &str) -> Result<Lease, Unavailable>;
}

/// The reason why a client gets no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// No export has the name.
    Unknown,
    /// It cannot be opened, or has too many clients.
    Refused,
}

/// The workers of one volume, without an address of their own.
pub struct ExportServer {
    device: Arc<Device>,
    options: ServerOptions,
    mailboxes: Vec<Arc<Mailbox<Message>>>,
    workers: Mutex<Workers>,
    next: AtomicUsize,
    live: Arc<AtomicUsize>,
    throttle: Arc<Throttle>,
}

impl ExportServer {
    /// Starts the workers of a volume.
    ///
    /// # Errors
    /// A thread or a ring cannot be made.
    pub fn start(device: Arc<Device>, options: &ServerOptions, limits: ExportLimits) -> Result<Self, ServerError> {
        let pool: Option<Arc<Offload>> = Offload::start(&device, &options.offload)?;
        let export = Arc::new(describe(&device, options));
        let live = Arc::new(AtomicUsize::new(0));
        let throttle = Arc::new(Throttle::new(limits, Instant::now()));
        let mut workers = Workers::default();
        for number in 0..options.threads.max(1) {
            let frontend = NbdFrontend::new(Arc::clone(&export), Arc::clone(&live), options.limits);
            let frontend = frontend.with_throttle(Arc::clone(&throttle));
            workers.add(number, (&device, SHARE), frontend, &pool, options)?;
        }
        let mailboxes = workers.mailboxes.clone();
        let (workers, options) = (Mutex::new(workers), options.clone());
        Ok(Self { device, options, mailboxes, workers, next: AtomicUsize::new(0), live, throttle })
    }

    /// Returns the right to connect a client. `None`: the export has its maximum number of clients.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        let count = CountGuard::new(&self.live);
        (self.clients() <= self.options.max_connections).then(|| Lease { server: Arc::clone(self), count })
    }

    /// Returns the number of its clients.
    pub fn clients(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns whether all workers run.
    pub fn is_healthy(&self) -> bool {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).is_healthy()
    }

    /// Changes the limits, from the next request on.
    pub fn set_limits(&self, limits: ExportLimits) {
        self.throttle.set(limits, Instant::now());
    }

    /// Answers the requests that were read, disconnects the clients, and puts everything that was written on stable
    /// storage, as [`Server::stop`](super::server::Server::stop) does. Blocks.
    ///
    /// # Errors
    /// A worker has failed, or the final flush fails.
    pub fn stop(&self) -> Result<(), ServerError> {
        self.device.end();
        let outcome = self.workers.lock().unwrap_or_else(PoisonError::into_inner).finish();
        super::server::final_flush(&self.device)?;
        outcome
    }
}

/// The right to connect one client to an export. While it lives, the export has a client.
pub struct Lease {
    server: Arc<ExportServer>,
    count: CountGuard,
}

impl Lease {
    /// Returns what clients are told now: the device may have grown.
    fn export(&self, name: &str) -> Export {
        Export { name: name.to_owned(), ..describe(&self.server.device, &self.server.options) }
    }

    fn connect(self, socket: OwnedFd, negotiated: Negotiated) {
        let Self { server, count } = self;
        let number = server.next.fetch_add(1, Ordering::Relaxed);
        if let Some(mailbox) = server.mailboxes.get(number % server.mailboxes.len().max(1)) {
            mailbox.post(Message::Adopt { socket, negotiated, live: count });
        }
    }
}

/// Accepts clients for a catalog. Stops when dropped.
pub struct ExportListener {
    listen: Listen,
    _acceptor: Acceptor,
}

impl ExportListener {
    /// Listens. Clients may connect when this returns.
    ///
    /// # Errors
    /// The address is in use or cannot be listened at.
    pub fn start(listen: &Listen, catalog: Arc<dyn Catalog>, limits: Limits) -> Result<Self, ServerError> {
        let (socket, listen) = bind(listen)?;
        let handshakes = Arc::new(AtomicUsize::new(0));
        let acceptor = Acceptor::start(socket, move |client| {
            if handshakes.load(Ordering::Relaxed) >= MAX_HANDSHAKES {
                return;
            }
            let (count, catalog) = (CountGuard::new(&handshakes), Arc::clone(&catalog));
            let run = move || {
                // A client that violates the protocol, or takes too long, is disconnected.
                let _ = Greeting::new(client, limits.handshake).run(&*catalog);
                drop(count);
            };
            // Without a thread the client is disconnected.
            let _ = std::thread::Builder::new().name("inlock-greet".into()).spawn(run);
        })?;
        Ok(Self { listen, _acceptor: acceptor })
    }

    /// Returns the address at which the server listens, with the port that was chosen.
    pub fn listen(&self) -> &Listen {
        &self.listen
    }
}

/// The handshake of one client.
struct Greeting {
    socket: OwnedFd,
    deadline: Instant,
    /// The export that the client named last.
    lease: Option<(String, Lease)>,
    /// The export for which it negotiated metadata contexts.
    contexts_of: Option<String>,
}

impl Greeting {
    fn new(socket: OwnedFd, limit: Duration) -> Self {
        Self { socket, deadline: Instant::now() + limit, lease: None, contexts_of: None }
    }

    /// Returns `None` if the client is to be disconnected without a reply.
    fn run(mut self, catalog: &dyn Catalog) -> Option<()> {
        let nobody = nobody();
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out);
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
            match step {
                Step::Continue => {}
                Step::Close => return None,
                Step::Start(mut negotiated) => {
                    let (name, lease) = self.lease?;
                    // Contexts are those of one export.
                    negotiated.allocation &= self.contexts_of.is_some_and(|of| of == name);
                    lease.connect(self.socket, negotiated);
                    return Some(());
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
                let began = Instant::now();
                let opened = catalog.open(name);
                // The client is not to blame for the time that opening takes.
                self.deadline += began.elapsed();
                self.lease = Some((name.to_owned(), opened?));
            }
            Ok(name.to_owned())
        });
        match (found, &self.lease) {
            (Ok(name), Some((_, lease))) => {
                let step = handshake.advance(&lease.export(&name), item, out).ok()?.1;
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

    /// Blocks until the socket is ready.
    fn wait(&self, for_what: PollFlags) -> Option<()> {
        let left = self.deadline.checked_duration_since(Instant::now())?;
        let timeout = Timespec { tv_sec: left.as_secs().try_into().ok()?, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, for_what)], Some(&timeout)) {
            Ok(0) => None,
            Ok(_) | Err(Errno::INTR) => Some(()),
            Err(_) => None,
        }
    }

    /// Receives exactly `len` bytes.
    fn receive(&self, len: usize) -> Option<Vec<u8>> {
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            self.wait(PollFlags::IN)?;
            match rustix::net::recv(&self.socket, &mut bytes[done..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return None,
                Ok((more, _)) => done += more,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }

    /// Sends all of `out`, and empties it.
    fn send(&self, out: &mut Vec<u8>) -> Option<()> {
        let mut rest = &out[..];
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        while !rest.is_empty() {
            self.wait(PollFlags::OUT)?;
            match rustix::net::send(&self.socket, rest, flags) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return None,
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
