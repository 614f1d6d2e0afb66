//! Exports whose clients come from handshakes on other threads: the name that a client asks for chooses the volume.
//!
//! The connection goes to the workers of the volume, where the request path is that of a server with one export. See
//! docs/decisions/many-volumes.md.

use super::handshake::Negotiated;
pub use super::handshake::Unavailable;
use super::mux::Message;
use super::park::{Parking, Slot, Team};
use super::protocol::Export;
use super::relay::{RelayGuard, Relays};
use super::server::{ServerError, ServerOptions, Workers, describe};
use super::session::CountGuard;
use super::throttle::{ExportLimits, SharedLimits, Throttle, ThrottleStats};
use inlock_engine::worker::Mailbox;
use inlock_engine::{Device, Offload};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

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

/// Gives clients to the workers of a volume.
pub(super) struct Dispatcher {
    device: Arc<Device>,
    options: ServerOptions,
    workers: Recipients,
    next: AtomicUsize,
    live: Arc<AtomicUsize>,
    relays: Arc<Relays>,
}

/// Receivers of clients, in turn.
enum Recipients {
    Workers(Vec<Arc<Mailbox<Message>>>),
    Slots(Vec<Arc<Slot>>),
}

impl Recipients {
    fn post(&self, number: usize, message: Message) {
        match self {
            Self::Workers(mailboxes) => {
                if let Some(mailbox) = mailboxes.get(number % mailboxes.len().max(1)) {
                    mailbox.post(message);
                }
            }
            Self::Slots(slots) => {
                if let Some(slot) = slots.get(number % slots.len().max(1)) {
                    slot.post(message);
                }
            }
        }
    }
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
        let workers = Recipients::Workers(workers.mailboxes.clone());
        Arc::new(Self { device, options, workers, next: AtomicUsize::new(0), live, relays })
    }

    /// Returns the right to connect a client. `None`: the export has its maximum number of clients.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let count = CountGuard::new(&self.live);
        let is_in_limit = self.live.load(Ordering::Relaxed) <= self.options.max_connections;
        let (relays, drain) = (Arc::clone(&self.relays), self.options.limits.drain);
        is_in_limit.then(|| Lease { dispatcher: Arc::downgrade(self), relays, drain, count })
    }
}

/// The workers of one volume, without an address of their own. They end while its clients are at rest.
pub struct ExportServer {
    dispatcher: Arc<Dispatcher>,
    slots: Vec<Arc<Slot>>,
    limits: Arc<SharedLimits>,
    team: Arc<Team>,
}

impl ExportServer {
    /// Starts the workers of a volume. `parking` watches its clients while they are at rest.
    ///
    /// # Errors
    /// A thread or a ring cannot be made.
    pub fn start(
        device: Arc<Device>,
        options: &ServerOptions,
        limits: ExportLimits,
        parking: &Parking,
    ) -> Result<Self, ServerError> {
        let live = Arc::new(AtomicUsize::new(0));
        let threads = options.threads.max(1);
        let limits = SharedLimits::new(limits, threads, Instant::now());
        let team = Arc::new(Team {
            pool: Offload::start(&device, &options.offload)?,
            export: Arc::new(describe(&device, options)),
            device: Arc::clone(&device),
            options: options.clone(),
            lot: Arc::clone(parking.lot()),
            live: Arc::clone(&live),
            throttles: (0..threads).map(|_| Throttle::new(&limits)).collect(),
            ring_name: OnceLock::new(),
        });
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        for number in 0..threads {
            match Slot::start(&team, number) {
                Ok(slot) => slots.push(slot),
                Err(error) => {
                    // The others have the device.
                    let ends: Vec<_> = slots.iter().map(|slot| slot.stop()).collect();
                    let _: Vec<_> = ends.into_iter().map(|end| end()).collect();
                    return Err(error);
                }
            }
        }
        let workers = Recipients::Slots(slots.clone());
        let options = options.clone();
        let dispatcher =
            Dispatcher { device, options, workers, next: AtomicUsize::new(0), live, relays: Arc::default() };
        Ok(Self { dispatcher: Arc::new(dispatcher), slots, limits, team })
    }

    /// Returns the right to connect a client. `None`: the export has its maximum number of clients.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        self.dispatcher.lease()
    }

    /// Returns the number of its clients.
    pub fn clients(&self) -> usize {
        self.dispatcher.live.load(Ordering::Relaxed)
    }

    /// Returns the number of workers that run: those of clients that are not at rest.
    pub fn running_workers(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_running()).count()
    }

    /// Returns whether all workers run, or can run.
    pub fn is_healthy(&self) -> bool {
        self.slots.iter().all(|slot| slot.is_healthy())
    }

    /// Returns why clients wait for a worker that cannot start, if they do. It is tried again by itself.
    pub fn start_failure(&self) -> Option<String> {
        self.slots.iter().find_map(|slot| slot.start_failure())
    }

    /// Returns the I/O backend of the workers.
    pub fn ring_name(&self) -> &'static str {
        self.team.ring_name.get().copied().unwrap_or_default()
    }

    /// Changes the limits, from the next request on. A client that waits for a limit notices within half a second.
    pub fn set_limits(&self, limits: ExportLimits) {
        self.limits.set(limits, Instant::now());
    }

    /// Returns the effect of the limits so far.
    pub fn throttle_stats(&self) -> ThrottleStats {
        let now = Instant::now();
        self.team.throttles.iter().map(|throttle| throttle.stats(now)).fold(ThrottleStats::default(), |sum, one| {
            let (in_flight, throttled) = (sum.in_flight + one.in_flight, sum.throttled + one.throttled);
            ThrottleStats { in_flight, throttled }
        })
    }

    /// Answers the requests that were read, disconnects the clients, and puts everything that was written on stable
    /// storage, as [`Server::stop`](super::server::Server::stop) does. Blocks. After that only this value has the
    /// device, no thread and no client in its handshake.
    ///
    /// # Errors
    /// A worker has failed, or the final flush fails.
    pub fn stop(&self) -> Result<(), ServerError> {
        let Dispatcher { device, options, relays, .. } = &*self.dispatcher;
        device.end();
        relays.limit(Instant::now() + options.limits.drain);
        let outcome = self.finish();
        relays.wait();
        super::server::final_flush(device)?;
        outcome
    }

    /// Has all workers finish, and returns the last failure.
    fn finish(&self) -> Result<(), ServerError> {
        // All at once: each may take as long as its clients have for their last replies.
        let ends: Vec<_> = self.slots.iter().map(|slot| slot.stop()).collect();
        let mut outcome = Ok(());
        for end in ends {
            outcome = end().and(outcome);
        }
        outcome
    }
}

impl Drop for ExportServer {
    fn drop(&mut self) {
        // A client that comes later would find no worker.
        self.dispatcher.relays.limit(Instant::now());
        // `stop` has reported failures before.
        let _ = self.finish();
    }
}

/// The right to connect one client to an export. While it lives, the export has a client, but it does not keep the
/// device: a client may take its time for the handshake.
pub struct Lease {
    dispatcher: Weak<Dispatcher>,
    relays: Arc<Relays>,
    drain: Duration,
    count: CountGuard,
}

impl Lease {
    /// Returns what clients are told now: the device may have grown. `None`: the workers have stopped.
    pub(super) fn export(&self) -> Option<Export> {
        self.with_dispatcher(|dispatcher| describe(&dispatcher.device, &dispatcher.options))
    }

    fn with_dispatcher<T>(&self, run: impl FnOnce(&Dispatcher) -> T) -> Option<T> {
        self.relays.unless_stopping(|| self.dispatcher.upgrade().map(|dispatcher| run(&dispatcher)))
    }

    /// Returns a place among the threads that pass bytes on for clients of the volume, and the time that they have for
    /// last replies.
    pub(super) fn relay(&self) -> (RelayGuard, Duration) {
        (self.relays.enter(), self.drain)
    }

    /// Gives a client to a worker. If the workers have stopped, the client is disconnected.
    pub(super) fn connect(self, socket: OwnedFd, negotiated: Negotiated) {
        let Self { dispatcher, relays, count, .. } = self;
        let message = Message::Adopt { socket, negotiated, live: count };
        relays.unless_stopping(|| {
            let dispatcher = dispatcher.upgrade()?;
            let number = dispatcher.next.fetch_add(1, Ordering::Relaxed);
            dispatcher.workers.post(number, message);
            Some(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::Access;
    use inlock_engine::store::file::IoMode;
    use inlock_engine::store::memory::MemoryStore;

    #[test]
    fn export_that_is_dropped_takes_no_clients() {
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default()));
        let options = ServerOptions { threads: 1, io: IoMode::Sync, ..ServerOptions::default() };
        let parking = Parking::start().unwrap();
        let server = ExportServer::start(device, &options, ExportLimits::default(), &parking).unwrap();
        let relays = Arc::clone(&server.dispatcher.relays);
        assert_eq!(relays.unless_stopping(|| Some(())), Some(()));
        drop(server);
        assert_eq!(relays.unless_stopping(|| Some(())), None);
    }
}
