//! Workers of volumes whose clients are at rest: they end, and start again with the next request.
//!
//! A [`Seat`] has a worker, or the sockets of the clients that its worker left behind. These are at rest: nothing of
//! their input was read that was not answered, so that a socket and what was negotiated is all there is of a session.
//! One thread watches the sockets of all seats. What a client sends meanwhile stays in its socket. See
//! docs/decisions/0064-idle-volumes.md.

use super::exports::{SHARE, Team};
use super::handshake::Negotiated;
use super::memory::OWN_BUFFERS;
use super::mux::{Message, NbdFrontend};
use super::server::ServerError;
use super::session::CountGuard;
use inlock_engine::BufferPool;
use inlock_engine::ring::Ring;
use inlock_engine::worker::{Mailbox, Worker};
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;

/// Events that the thread takes from the kernel at a time.
const EVENTS: usize = 64;
/// Key of the event that ends the thread.
const STOP: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client at rest.
pub(super) struct Resting {
    pub(super) socket: OwnedFd,
    pub(super) negotiated: Negotiated,
    /// Among the connections of the export.
    pub(super) live: CountGuard,
}

impl Resting {
    fn into_message(self) -> Message {
        let Self { socket, negotiated, live } = self;
        Message::Adopt { socket, negotiated, live }
    }

    /// Returns whether the client has sent something, or `None` if it sends nothing more.
    fn has_input(&self) -> Option<bool> {
        match rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok(_) => Some(true),
            Err(Errno::AGAIN | Errno::INTR) => Some(false),
            Err(_) => None,
        }
    }
}

/// The thread that watches clients at rest. It ends when this is dropped.
pub struct Parking {
    lot: Arc<Lot>,
    thread: Option<JoinHandle<()>>,
}

/// Sockets of clients at rest, and the seats that they belong to.
pub(super) struct Lot {
    epoll: OwnedFd,
    stop: OwnedFd,
    is_stopping: AtomicBool,
    seats: Mutex<(u64, HashMap<u64, Weak<Seat>>)>,
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
        let lot = Arc::new(Lot { epoll, stop, is_stopping: AtomicBool::new(false), seats: Mutex::default() });
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
            // The clients of a seat may have an event each.
            let mut keys: Vec<_> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let seat = lock(&self.seats).1.get(&key).and_then(Weak::upgrade);
                if let Some(seat) = seat {
                    seat.look();
                }
            }
        }
    }

    /// Watches the clients of a seat until [`Lot::unwatch`]. Clients that cannot be watched are disconnected.
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
pub(super) struct Seat {
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

impl Seat {
    /// Makes a seat with a worker.
    pub(super) fn start(team: &Arc<Team>, number: usize) -> Result<Arc<Self>, ServerError> {
        let state = Mutex::new(State::Parked(Vec::new()));
        let seat = {
            let mut seats = lock(&team.lot.seats);
            let key = seats.0;
            seats.0 += 1;
            let seat = Arc::new(Self { team: Arc::clone(team), number, key, state });
            seats.1.insert(key, Arc::downgrade(&seat));
            seat
        };
        // The worker must not end before the state says that it runs.
        let mut state = lock(&seat.state);
        *state = seat.start_worker()?;
        drop(state);
        Ok(seat)
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

    /// Starts the worker of a parked seat, with its clients.
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
        let seat = Arc::clone(self);
        let run = move || seat.run(&ready);
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

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.team.lot.seats).1.remove(&self.key);
    }
}
