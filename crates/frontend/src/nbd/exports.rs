//! Exports whose clients come from handshakes on other threads: the name that a client asks for chooses the volume.
//!
//! The connection goes to the workers of the volume, where the request path is that of a server with one export. See
//! docs/decisions/0055-many-volumes.md.

use super::handshake::Negotiated;
use super::mux::{Message, NbdFrontend};
use super::protocol::Export;
use super::relay::{RelayGuard, Relays};
use super::server::{ServerError, ServerOptions, Workers, describe};
use super::session::CountGuard;
use super::throttle::{ExportLimits, SharedLimits, Throttle, ThrottleStats};
use inlock_engine::worker::Mailbox;
use inlock_engine::{Device, Offload};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// Gives clients to the workers of a volume.
pub(super) struct Dispatcher {
    device: Arc<Device>,
    options: ServerOptions,
    mailboxes: Vec<Arc<Mailbox<Message>>>,
    next: AtomicUsize,
    live: Arc<AtomicUsize>,
    relays: Arc<Relays>,
}

impl Dispatcher {
    /// Gives clients to `workers`. `live` counts them.
    pub(super) fn new(
        device: Arc<Device>,
        options: ServerOptions,
        workers: &Workers,
        live: Arc<AtomicUsize>,
        relays: Arc<Relays>,
    ) -> Arc<Self> {
        let mailboxes = workers.mailboxes.clone();
        Arc::new(Self { device, options, mailboxes, next: AtomicUsize::new(0), live, relays })
    }

    /// Returns the right to connect a client. `None`: the export has its maximum number of clients.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let count = CountGuard::new(&self.live);
        let is_in_limit = self.live.load(Ordering::Relaxed) <= self.options.max_connections;
        is_in_limit.then(|| Lease { dispatcher: Arc::clone(self), count })
    }
}

/// The workers of one volume, without an address of their own.
pub struct ExportServer {
    dispatcher: Arc<Dispatcher>,
    workers: Mutex<Workers>,
    limits: Arc<SharedLimits>,
    throttles: Vec<Arc<Throttle>>,
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
        let threads = options.threads.max(1);
        let limits = SharedLimits::new(limits, threads, Instant::now());
        let throttles: Vec<_> = (0..threads).map(|_| Throttle::new(&limits, Instant::now())).collect();
        let mut workers = Workers::default();
        for (number, throttle) in throttles.iter().enumerate() {
            let frontend = NbdFrontend::new(Arc::clone(&export), Arc::clone(&live), options.limits);
            let frontend = frontend.with_throttle(Arc::clone(throttle));
            workers.add(number, (&device, SHARE), frontend, &pool, options)?;
        }
        let dispatcher = Dispatcher::new(device, options.clone(), &workers, live, Arc::default());
        Ok(Self { dispatcher, workers: Mutex::new(workers), limits, throttles })
    }

    /// Returns the right to connect a client. `None`: the export has its maximum number of clients.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        self.dispatcher.lease()
    }

    /// Returns the number of its clients.
    pub fn clients(&self) -> usize {
        self.dispatcher.live.load(Ordering::Relaxed)
    }

    /// Returns whether all workers run.
    pub fn is_healthy(&self) -> bool {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).is_healthy()
    }

    /// Returns the I/O backend of the workers.
    pub fn ring_name(&self) -> &'static str {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).ring_name
    }

    /// Changes the limits, from the next request on. A client that waits for a limit notices within half a second.
    pub fn set_limits(&self, limits: ExportLimits) {
        self.limits.set(limits, Instant::now());
    }

    /// Returns the effect of the limits so far.
    pub fn throttle_stats(&self) -> ThrottleStats {
        let now = Instant::now();
        self.throttles.iter().map(|throttle| throttle.stats(now)).fold(ThrottleStats::default(), |sum, one| {
            let (in_flight, throttled) = (sum.in_flight + one.in_flight, sum.throttled + one.throttled);
            ThrottleStats { in_flight, throttled }
        })
    }

    /// Answers the requests that were read, disconnects the clients, and puts everything that was written on stable
    /// storage, as [`Server::stop`](super::server::Server::stop) does. Blocks.
    ///
    /// # Errors
    /// A worker has failed, or the final flush fails.
    pub fn stop(&self) -> Result<(), ServerError> {
        let Dispatcher { device, options, relays, .. } = &*self.dispatcher;
        device.end();
        relays.limit(Instant::now() + options.limits.drain);
        let outcome = self.workers.lock().unwrap_or_else(PoisonError::into_inner).finish();
        relays.wait();
        super::server::final_flush(device)?;
        outcome
    }
}

/// The right to connect one client to an export. While it lives, the export has a client.
pub struct Lease {
    dispatcher: Arc<Dispatcher>,
    count: CountGuard,
}

impl Lease {
    /// Returns what clients are told now: the device may have grown.
    pub(super) fn export(&self) -> Export {
        describe(&self.dispatcher.device, &self.dispatcher.options)
    }

    /// Returns a place among the threads that pass bytes on for clients of the volume, and the time that they have for
    /// last replies.
    pub(super) fn relay(&self) -> (RelayGuard, Duration) {
        (self.dispatcher.relays.enter(), self.dispatcher.options.limits.drain)
    }

    /// Gives a client to a worker.
    pub(super) fn connect(self, socket: OwnedFd, negotiated: Negotiated) {
        let Self { dispatcher, count } = self;
        let number = dispatcher.next.fetch_add(1, Ordering::Relaxed);
        if let Some(mailbox) = dispatcher.mailboxes.get(number % dispatcher.mailboxes.len().max(1)) {
            // A worker that has stopped would never close the socket.
            dispatcher.relays.unless_stopping(|| mailbox.post(Message::Adopt { socket, negotiated, live: count }));
        }
    }
}
