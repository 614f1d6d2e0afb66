//! Workers of volumes whose clients are at rest: they end, and start again with the next request.
//!
//! A `Slot` has a worker, or the sockets of the clients that its worker left behind. These are at rest: nothing of
//! their input was read that was not answered, so that a socket and what was negotiated is all there is of a session.
//! One thread watches the sockets of all slots. What a client sends meanwhile stays in its socket. See
//! docs/decisions/0064-idle-volumes.md.

use super::memory::OWN_BUFFERS;
use super::mux::{Message, NbdFrontend, Resting};
use super::protocol::Export;
use super::server::{ServerError, ServerOptions};
use super::throttle::Throttle;
use inlock_engine::ring::Ring;
use inlock_engine::worker::{Mailbox, Worker};
use inlock_engine::{BufferPool, Device, Offload};
use rustix::event::{EventfdFlags, epoll};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;

/// Workers that share the memory of one server: an export has the buffers of one of them.
const SHARE: usize = 64;
/// Events that the thread takes from the kernel at a time.
const EVENTS: usize = 64;
/// Key of the event that ends the thread.
const STOP: u64 = u64::MAX;

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
    stop: OwnedFd,
    is_stopping: AtomicBool,
    slots: Mutex<(u64, HashMap<u64, Weak<Slot>>)>,
}

impl Parking {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no more descriptors, or threads.
    pub fn start() -> io::Result<Self> {
        // What ended workers had must not stay with the process.
        inlock_engine::allocator::map_large_allocations();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let lot = Arc::new(Lot { epoll, stop, is_stopping: AtomicBool::new(false), slots: Mutex::default() });
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
        // Ends the thread's wait.
        let _ = rustix::io::write(&self.lot.stop, &1_u64.to_ne_bytes());
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
            if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None).is_err() {
                continue;
            }
            // The clients of a slot may have an event each.
            let mut keys: Vec<_> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
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
}

/// The place of a worker.
pub(super) struct Slot {
    team: Arc<Team>,
    number: usize,
    key: u64,
    state: Mutex<State>,
}

enum State {
    Running {
        mailbox: Arc<Mailbox<Message>>,
        thread: JoinHandle<io::Result<()>>,
    },
    /// The worker has ended; no request is in flight.
    Parked(Vec<Resting>),
    /// The worker could not start again. Its clients are disconnected.
    Failed(Option<ServerError>),
    Stopped,
}

impl Slot {
    /// Makes a slot with a worker.
    pub(super) fn start(team: &Arc<Team>, number: usize) -> Result<Arc<Self>, ServerError> {
        let state = Mutex::new(State::Parked(Vec::new()));
        let slot = {
            let mut slots = lock(&team.lot.slots);
            let key = slots.0;
            slots.0 += 1;
            let slot = Arc::new(Self { team: Arc::clone(team), number, key, state });
            slots.1.insert(key, Arc::downgrade(&slot));
            slot
        };
        // The worker must not end before the state says that it runs.
        let mut state = lock(&slot.state);
        *state = slot.start_worker()?;
        drop(state);
        Ok(slot)
    }

    /// Gives a client to the worker. A stopped one disconnects it.
    pub(super) fn post(self: &Arc<Self>, message: Message) {
        let mut state = lock(&self.state);
        self.wake(&mut state);
        if let State::Running { mailbox, .. } = &*state {
            mailbox.post(message);
        }
    }

    /// Returns whether it has a worker.
    pub(super) fn is_running(&self) -> bool {
        matches!(&*lock(&self.state), State::Running { .. })
    }

    /// Returns whether the worker runs, or can run.
    pub(super) fn is_healthy(&self) -> bool {
        match &*lock(&self.state) {
            State::Running { thread, .. } => !thread.is_finished(),
            State::Parked(_) | State::Stopped => true,
            State::Failed(_) => false,
        }
    }

    /// Has the worker finish what it has read, and disconnects the clients. Returns what waits for its end.
    pub(super) fn stop(&self) -> impl FnOnce() -> Result<(), ServerError> {
        let state = std::mem::replace(&mut *lock(&self.state), State::Stopped);
        let mut running = None;
        let mut outcome = Ok(());
        match state {
            State::Running { mailbox, thread } => {
                mailbox.post(Message::Drain);
                running = Some(thread);
            }
            // Of what a client at rest has sent nothing was read.
            State::Parked(clients) => clients.iter().for_each(|client| self.team.lot.unwatch(client)),
            State::Failed(error) => outcome = error.map_or(Ok(()), Err),
            State::Stopped => {}
        }
        move || match running.map(JoinHandle::join) {
            None => outcome,
            Some(Ok(result)) => result.map_err(ServerError::Worker),
            Some(Err(_)) => Err(ServerError::Worker(io::Error::other("a worker panicked"))),
        }
    }

    /// Starts the worker if a client has sent something, and disconnects clients that have left.
    fn look(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let State::Parked(clients) = &mut *state else { return };
        let mut is_needed = false;
        clients.retain(|client| match client.has_input() {
            Some(has_input) => {
                is_needed |= has_input;
                true
            }
            None => {
                self.team.lot.unwatch(client);
                false
            }
        });
        if is_needed {
            self.wake(&mut state);
        }
    }

    /// Starts the worker of a parked slot, with its clients.
    fn wake(self: &Arc<Self>, state: &mut State) {
        let State::Parked(clients) = state else { return };
        let clients = std::mem::take(clients);
        clients.iter().for_each(|client| self.team.lot.unwatch(client));
        *state = self.start_worker().unwrap_or_else(|error| State::Failed(Some(error)));
        if let State::Running { mailbox, .. } = state {
            clients.into_iter().for_each(|client| mailbox.post(client.into_message()));
        }
    }

    /// Blocks until the worker runs.
    fn start_worker(self: &Arc<Self>) -> Result<State, ServerError> {
        let (ready, started) = mpsc::channel();
        let slot = Arc::clone(self);
        let run = move || slot.run(&ready);
        let thread = std::thread::Builder::new().name(format!("inlock-w{}", self.number)).spawn(run);
        let thread = thread.map_err(ServerError::Worker)?;
        let started = started.recv().map_err(|error| ServerError::Worker(io::Error::other(error)))?;
        Ok(State::Running { mailbox: started.map_err(ServerError::Worker)?, thread })
    }

    /// Runs the worker on this thread, until it stops or its clients are at rest.
    fn run(self: Arc<Self>, ready: &mpsc::Sender<io::Result<Arc<Mailbox<Message>>>>) -> io::Result<()> {
        let Team { device, options, pool: offload, lot, .. } = &*self.team;
        // The ring belongs to the thread that uses it.
        let ring = match Ring::new(options.io) {
            Ok(ring) => ring.with_busy_poll(options.busy_poll),
            Err(error) => return ready.send(Err(error)).map_err(io::Error::other),
        };
        let pool = BufferPool::on_demand(device.unit_len(), SHARE).with_others(OWN_BUFFERS * options.max_connections);
        // All rings of a process are of one kind.
        let _ = self.team.ring_name.set(ring.name());
        let frontend: NbdFrontend = self.team.frontend(self.number);
        let mut worker = Worker::new(Arc::clone(device), ring, pool, frontend).with_offload(offload.clone());
        let mailbox = worker.mailbox();
        ready.send(Ok(Arc::clone(&mailbox))).map_err(io::Error::other)?;
        worker.run()?;
        let mut clients = worker.front_mut().take_resting();
        // Memory, ring and keys are given back before another worker can start here.
        drop(worker);
        let mut state = lock(&self.state);
        if let State::Running { .. } = *state {
            // Clients that came too late for the worker.
            while let Some(Message::Adopt { socket, negotiated, live }) = mailbox.next() {
                clients.push(Resting { socket, negotiated, live });
            }
            lot.watch(self.key, &mut clients);
            *state = State::Parked(clients);
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.team.lot.slots).1.remove(&self.key);
    }
}
