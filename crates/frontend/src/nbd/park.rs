//! Workers of volumes whose clients are at rest: they end, and start again with the next request.
//!
//! A `Slot` has a worker, or the sockets of the clients that its worker left behind. These are at rest: nothing of
//! their input was read that was not answered, so that a socket and what was negotiated is all there is of a session.
//! One thread watches the sockets of all slots. What a client sends meanwhile stays in its socket. A worker that cannot
//! start is tried again, and its clients wait. See docs/decisions/many-volumes.md.

use super::memory::OWN_BUFFERS;
use super::mux::{Message, NbdFrontend, Resting};
use super::protocol::Export;
use super::relay::time_until;
use super::server::{ServerError, ServerOptions};
use super::throttle::Throttle;
use inlock_engine::ring::Ring;
use inlock_engine::worker::{Mailbox, Worker};
use inlock_engine::{BufferPool, Device, Offload};
use rustix::event::{EventfdFlags, epoll};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Workers that share the memory of one server: an export has the buffers of one of them.
const SHARE: usize = 64;
/// Events that the thread takes from the kernel at a time.
const EVENTS: usize = 64;
/// Key of the event that ends the wait of the thread.
const WAKEUP: u64 = u64::MAX;
/// Pause after a worker that could not start: threads, descriptors or memory of the system may be used up for a while.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parts that the workers of a volume are made from.
pub(super) struct Team {
    pub(super) device: Arc<Device>,
    pub(super) options: ServerOptions,
    pub(super) pool: Option<Arc<Offload>>,
    pub(super) lot: Arc<Lot>,
    pub(super) export: Arc<Export>,
    pub(super) live: Arc<AtomicUsize>,
    /// One for each worker.
    pub(super) throttles: Vec<Arc<Throttle>>,
    /// I/O backend of the workers, once one has started.
    pub(super) ring_name: OnceLock<&'static str>,
}

impl Team {
    /// Returns the frontend of worker `number`.
    fn frontend(&self, number: usize) -> NbdFrontend {
        NbdFrontend::new(Arc::clone(&self.export), Arc::clone(&self.live), self.options.limits)
            .with_throttle(Arc::clone(&self.throttles[number]))
            .with_rest(self.options.park_after)
    }
}

/// The thread that watches clients at rest. It ends when this is dropped.
pub struct Parking {
    lot: Arc<Lot>,
    thread: Option<JoinHandle<()>>,
}

/// Sockets of clients at rest, and the slots that they belong to.
pub(super) struct Lot {
    epoll: OwnedFd,
    /// Ends the wait of the thread.
    wakeup: OwnedFd,
    is_stopping: AtomicBool,
    slots: Mutex<(u64, HashMap<u64, Weak<Slot>>)>,
    /// Slots whose worker could not start, and when it is started again.
    retries: Mutex<BTreeMap<u64, Instant>>,
}

impl Parking {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no more descriptors, or threads.
    pub fn start() -> io::Result<Self> {
        // What ended workers had must not stay with the process.
        inlock_engine::allocator::keep_little_memory();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wakeup, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN)?;
        let (is_stopping, slots, retries) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let lot = Arc::new(Lot { epoll, wakeup, is_stopping, slots, retries });
        let of_thread = Arc::clone(&lot);
        let thread = std::thread::Builder::new().name("inlock-park".into()).spawn(move || of_thread.run())?;
        Ok(Self { lot, thread: Some(thread) })
    }

    pub(super) fn lot(&self) -> &Arc<Lot> {
        &self.lot
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        self.lot.is_stopping.store(true, Ordering::Release);
        self.lot.wake_thread();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Lot {
    fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_stopping.load(Ordering::Acquire) {
            events.clear();
            let now = Instant::now();
            let timeout = lock(&self.retries).values().min().map(|at| time_until(*at, now));
            if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()).is_err() {
                continue;
            }
            // The clients of a slot may have an event each.
            let mut keys: Vec<_> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
            if keys.contains(&WAKEUP) {
                // Until it is read, each wait ends at once.
                let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
            }
            self.take_retries(&mut keys);
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let slot = lock(&self.slots).1.get(&key).and_then(Weak::upgrade);
                if let Some(slot) = slot {
                    slot.look();
                }
            }
        }
    }

    fn wake_thread(&self) {
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    /// Watches the clients of a slot until [`Lot::unwatch`]. Clients that cannot be watched are disconnected.
    fn watch(&self, key: u64, clients: &mut Vec<Resting>) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let data = || epoll::EventData::new_u64(key);
        clients.retain(|client| epoll::add(&self.epoll, &client.socket, data(), flags).is_ok());
    }

    /// Watches a client no longer. Closing its socket is not enough: a ring that it was in may still have it.
    fn unwatch(&self, client: &Resting) {
        let _ = epoll::delete(&self.epoll, &client.socket);
    }

    /// Has the thread look at a slot after a pause.
    fn retry(&self, key: u64) {
        lock(&self.retries).insert(key, Instant::now() + RETRY_INTERVAL);
        self.wake_thread();
    }

    /// Adds the slots whose pause is over to `keys`.
    fn take_retries(&self, keys: &mut Vec<u64>) {
        let now = Instant::now();
        lock(&self.retries).retain(|key, at| {
            let is_due = *at <= now;
            keys.extend(is_due.then_some(*key));
            !is_due
        });
    }
}

/// The place of a worker.
pub(super) struct Slot {
    lot: Arc<Lot>,
    number: usize,
    key: u64,
    /// `None`: it has stopped. Then nothing here has the device, although the thread that watches clients may still
    /// have the slot.
    state: Mutex<Option<Active>>,
}

struct Active {
    team: Arc<Team>,
    worker: WorkerState,
}

enum WorkerState {
    Running { mailbox: Arc<Mailbox<Message>>, thread: WorkerThread },
    Parked(Parked),
}

type WorkerThread = JoinHandle<io::Result<()>>;

/// A worker that has ended; no request is in flight.
#[derive(Default)]
struct Parked {
    clients: Vec<Resting>,
    /// The thread of the last worker. It ends without waiting for anything.
    thread: Option<WorkerThread>,
    /// Why the worker cannot start. Its clients wait until it is tried again, and are not watched.
    failure: Option<String>,
}

impl Slot {
    /// Makes a slot with a worker.
    pub(super) fn start(team: &Arc<Team>, number: usize) -> Result<Arc<Self>, ServerError> {
        let lot = Arc::clone(&team.lot);
        let slot = {
            let mut slots = lock(&lot.slots);
            let key = slots.0;
            slots.0 += 1;
            let slot = Arc::new(Self { lot: Arc::clone(&lot), number, key, state: Mutex::new(None) });
            slots.1.insert(key, Arc::downgrade(&slot));
            slot
        };
        // The worker must not end before the state says that it runs.
        let mut state = lock(&slot.state);
        *state = Some(Active { team: Arc::clone(team), worker: slot.start_worker(team)? });
        drop(state);
        Ok(slot)
    }

    /// Gives a client to the worker. A stopped one disconnects it.
    pub(super) fn post(self: &Arc<Self>, message: Message) {
        let mut state = lock(&self.state);
        let Some(active) = &mut *state else { return };
        match &mut active.worker {
            WorkerState::Running { mailbox, .. } => mailbox.post(message),
            WorkerState::Parked(parked) => {
                parked.clients.extend(Resting::of(message));
                if parked.failure.is_none() {
                    self.wake(active);
                }
            }
        }
    }

    /// Returns whether it has a worker.
    pub(super) fn is_running(&self) -> bool {
        matches!(&*lock(&self.state), Some(Active { worker: WorkerState::Running { .. }, .. }))
    }

    /// Returns whether the worker runs, or is to run with the next request.
    pub(super) fn is_healthy(&self) -> bool {
        match &*lock(&self.state) {
            Some(Active { worker: WorkerState::Running { thread, .. }, .. }) => !thread.is_finished(),
            Some(Active { worker: WorkerState::Parked(_), .. }) | None => true,
        }
    }

    /// Returns why clients wait for a worker that cannot start, if they do.
    pub(super) fn start_failure(&self) -> Option<String> {
        match &*lock(&self.state) {
            Some(Active { worker: WorkerState::Parked(Parked { failure, .. }), .. }) => failure.clone(),
            _ => None,
        }
    }

    /// Has the worker finish what it has read, and disconnects the clients. Returns what waits for its end; after that
    /// no thread of the slot has the device.
    pub(super) fn stop(&self) -> impl FnOnce() -> Result<(), ServerError> {
        let thread = match lock(&self.state).take().map(|active| active.worker) {
            None => None,
            Some(WorkerState::Running { mailbox, thread }) => {
                mailbox.post(Message::Drain);
                Some(thread)
            }
            // Of what a client at rest has sent nothing was read.
            Some(WorkerState::Parked(Parked { clients, thread, .. })) => {
                clients.iter().for_each(|client| self.lot.unwatch(client));
                thread
            }
        };
        move || match thread.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result.map_err(ServerError::Worker),
            Some(Err(_)) => Err(ServerError::Worker(io::Error::other("a worker panicked"))),
        }
    }

    /// Starts the worker if a client has sent something, and disconnects clients that have left.
    fn look(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let Some(active) = &mut *state else { return };
        let WorkerState::Parked(parked) = &mut active.worker else { return };
        let mut is_needed = false;
        parked.clients.retain(|client| match client.has_input() {
            Some(has_input) => {
                is_needed |= has_input;
                true
            }
            None => {
                self.lot.unwatch(client);
                false
            }
        });
        if is_needed {
            self.wake(active);
        } else if parked.failure.take().is_some() {
            self.lot.watch(self.key, &mut parked.clients);
        }
    }

    /// Starts the worker of a parked slot, with its clients. If it cannot start, the clients wait: what they have sent
    /// stays in their sockets, and the next attempt follows after a pause.
    fn wake(self: &Arc<Self>, active: &mut Active) {
        let WorkerState::Parked(parked) = &mut active.worker else { return };
        parked.clients.iter().for_each(|client| self.lot.unwatch(client));
        if let Some(thread) = parked.thread.take() {
            // It has given everything back but itself.
            let _ = thread.join();
        }
        match self.start_worker(&active.team) {
            Ok(running) => {
                if let WorkerState::Running { mailbox, .. } = &running {
                    parked.clients.drain(..).for_each(|client| mailbox.post(client.into_message()));
                }
                active.worker = running;
            }
            Err(error) => {
                parked.failure = Some(error.to_string());
                self.lot.retry(self.key);
            }
        }
    }

    /// Blocks until the worker runs.
    fn start_worker(self: &Arc<Self>, team: &Arc<Team>) -> Result<WorkerState, ServerError> {
        let (ready, started) = mpsc::channel();
        let (slot, team) = (Arc::clone(self), Arc::clone(team));
        let run = move || slot.run(&team, &ready);
        let thread = std::thread::Builder::new().name(format!("inlock-w{}", self.number)).spawn(run);
        let thread = thread.map_err(ServerError::Worker)?;
        match started.recv().map_err(io::Error::other).flatten() {
            Ok(mailbox) => Ok(WorkerState::Running { mailbox, thread }),
            Err(error) => {
                // It is about to end, and has the device until then.
                let _ = thread.join();
                Err(ServerError::Worker(error))
            }
        }
    }

    /// Runs the worker on this thread, until it stops or its clients are at rest.
    fn run(&self, team: &Team, ready: &mpsc::Sender<io::Result<Arc<Mailbox<Message>>>>) -> io::Result<()> {
        let Team { device, options, pool: offload, .. } = team;
        // The ring belongs to the thread that uses it.
        let ring = match Ring::new(options.io) {
            Ok(ring) => ring.with_busy_poll(options.busy_poll),
            Err(error) => return ready.send(Err(error)).map_err(io::Error::other),
        };
        let pool = BufferPool::on_demand(device.unit_len(), SHARE).with_others(OWN_BUFFERS * options.max_connections);
        // All rings of a process are of one kind.
        let _ = team.ring_name.set(ring.name());
        let frontend: NbdFrontend = team.frontend(self.number);
        let mut worker = Worker::new(Arc::clone(device), ring, pool, frontend).with_offload(offload.clone());
        let mailbox = worker.mailbox();
        ready.send(Ok(Arc::clone(&mailbox))).map_err(io::Error::other)?;
        worker.run()?;
        let mut clients = worker.front_mut().take_resting();
        // Memory, ring and keys are given back before another worker can start here.
        drop(worker);
        let mut state = lock(&self.state);
        if let Some(Active { worker, .. }) = &mut *state {
            // Clients that came too late for the worker.
            clients.extend(std::iter::from_fn(|| mailbox.next()).filter_map(Resting::of));
            self.lot.watch(self.key, &mut clients);
            let before = std::mem::replace(worker, WorkerState::Parked(Parked { clients, ..Parked::default() }));
            if let (WorkerState::Running { thread, .. }, WorkerState::Parked(parked)) = (before, worker) {
                parked.thread = Some(thread);
            }
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.lot.slots).1.remove(&self.key);
    }
}

#[cfg(test)]
mod tests;
