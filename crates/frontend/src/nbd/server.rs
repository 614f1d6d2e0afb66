//! The server: listens for clients, deals them to workers, and stops after the requests that were read are answered.

use super::descriptors::{self, ForClients};
use super::memory::OWN_BUFFERS;
use super::mux::{Message, NbdFrontend, with_discards};
use super::relay::Relays;
use super::session::CountGuard;

pub use super::mux::Limits;
use super::protocol::{Export, transmission_flag};
use crate::connect;
use inlock_engine::OffloadError;
use inlock_engine::ring::{BusyPoll, Ring};
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Mailbox, Worker};
use inlock_engine::{BufferPool, Device, Offload, OffloadOptions, RequestError};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that wait to be accepted; more block in `connect`.
const BACKLOG: i32 = 4096;

/// Delay after a connection that could not be accepted.
const ACCEPT_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Address at which clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A socket in the file system; only its owner may connect.
    Unix(PathBuf),
    /// A TCP address; port 0 stands for any free port.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Options of a server: change those of [`ServerOptions::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Name of the export.
    pub export_name: String,
    /// Description of the export for people.
    pub description: String,
    /// Number of worker threads.
    pub threads: usize,
    /// Requests whose cipher work goes to a pool of threads.
    pub offload: OffloadOptions,
    /// I/O engine of the workers.
    pub io: IoMode,
    /// Whether a worker polls for the next short request before it sleeps ([`Ring::with_busy_poll`]). The default is
    /// [`BusyPoll::Adaptive`].
    pub busy_poll: BusyPoll,
    /// Maximum number of clients at a time. A further one takes the place of the one that has been in its handshake for
    /// longest, or is disconnected. Fewer if the process may not open as many descriptors.
    pub max_connections: usize,
    /// Time limits of clients.
    pub limits: Limits,
    /// Time without requests after which a worker of one of many volumes ends; the next request starts it again. Only
    /// for [`ExportServer`](super::exports::ExportServer).
    pub park_after: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            export_name: String::new(),
            description: String::new(),
            threads: cpus.min(4),
            offload: OffloadOptions::default(),
            io: IoMode::Auto,
            busy_poll: BusyPoll::Adaptive,
            max_connections: 1024,
            limits: Limits::default(),
            park_after: Duration::from_secs(2),
        }
    }
}

/// Failure to start or stop a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process listens at the address.
    #[error("{0} is in use by another server")]
    InUse(Listen),
    /// The path exists and is no socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The server cannot listen at the address.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: Listen,
        /// The cause.
        source: io::Error,
    },
    /// A worker failed.
    #[error("cannot run a worker: {0}")]
    Worker(#[source] io::Error),
    /// The cipher pool cannot be started.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// The final flush failed: what was written may not be on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] RequestError),
}

pub(super) enum Socket {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Socket {
    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(listener, _) => listener.accept()?.0.into(),
            Self::Tcp(listener) => listener.accept()?.0.into(),
        })
    }

    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A running server. If this is dropped, the server stops without the final flush.
pub struct Server {
    listen: Listen,
    acceptor: Acceptor,
    greeters: Option<Greeters>,
    workers: Workers,
    device: Arc<Device>,
    drain: Duration,
}

/// Threads that carry out the handshakes of clients, and encrypt for them.
pub(super) struct Greeters {
    threads: Arc<Relays>,
    /// When it is closed, clients in their handshake are disconnected.
    hangs_up: Option<OwnedFd>,
}

impl Greeters {
    pub(super) fn new(threads: Arc<Relays>, hangs_up: OwnedFd) -> Self {
        Self { threads, hangs_up: Some(hangs_up) }
    }

    /// Disconnects clients in their handshake, and limits the time for last replies to the others.
    fn stop(&mut self, until: Instant) {
        self.threads.limit(until);
        self.hangs_up = None;
    }
}

/// Worker threads. They end when this is dropped.
#[derive(Default)]
pub(super) struct Workers {
    threads: Vec<JoinHandle<io::Result<()>>>,
    pub(super) mailboxes: Vec<Arc<Mailbox<Message>>>,
    pub(super) ring_name: &'static str,
}

impl Workers {
    /// Starts a worker, with the memory of one of `share`. Blocks until it runs.
    pub(super) fn add(
        &mut self,
        number: usize,
        (device, share): (&Arc<Device>, usize),
        frontend: NbdFrontend,
        pool: &Option<Arc<Offload>>,
        options: &ServerOptions,
    ) -> Result<(), ServerError> {
        let (ready, started) = mpsc::channel();
        let (device, offload) = (Arc::clone(device), pool.clone());
        let (io, busy_poll) = (options.io, options.busy_poll);
        let clients = options.max_connections;
        let run = move || {
            // The ring belongs to the thread that uses it, so it is made there.
            let ring = match Ring::new(io) {
                Ok(ring) => ring.with_busy_poll(busy_poll),
                Err(error) => return ready.send(Err(error)).map_err(io::Error::other),
            };
            let name = ring.name();
            let pool = BufferPool::for_worker(device.unit_len(), share).with_others(OWN_BUFFERS * clients);
            let mut worker = Worker::new(device, ring, pool, frontend).with_offload(offload);
            ready.send(Ok((worker.mailbox(), name))).map_err(io::Error::other)?;
            worker.run()
        };
        let thread = std::thread::Builder::new().name(format!("inlock-w{number}")).spawn(run);
        self.threads.push(thread.map_err(ServerError::Worker)?);
        let started = started.recv().map_err(|e| ServerError::Worker(io::Error::other(e)))?;
        let (mailbox, name) = started.map_err(ServerError::Worker)?;
        self.mailboxes.push(mailbox);
        self.ring_name = name;
        Ok(())
    }

    /// Returns whether no worker has ended.
    pub(super) fn is_healthy(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Has all workers finish, and returns the last failure. Blocks.
    pub(super) fn finish(&mut self) -> Result<(), ServerError> {
        for mailbox in &self.mailboxes {
            mailbox.post(Message::Drain);
        }
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = Err(ServerError::Worker(error)),
                Err(_) => outcome = Err(ServerError::Worker(io::Error::other("a worker panicked"))),
            }
        }
        outcome
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // `Server::stop` has reported failures before.
        let _ = self.finish();
    }
}

impl Server {
    /// Starts the workers and listens. Clients may connect when this returns.
    ///
    /// # Errors
    /// The address is in use or cannot be listened at, or a thread cannot be started. Nothing is left behind then.
    pub fn start(device: Arc<Device>, listen: &Listen, options: &ServerOptions) -> Result<Self, ServerError> {
        let max_connections = options.max_connections.min(descriptors::max_clients());
        let options = ServerOptions { max_connections, ..options.clone() };
        Self::start_by(device, listen, &options, |socket, _, workers, live| {
            let mailboxes = workers.mailboxes.clone();
            let mut in_turn = (0..mailboxes.len()).cycle();
            let acceptor = Acceptor::start(socket, move |client| {
                // Worker by worker, so that each has its part of those that are in their handshake.
                if let Some(number) = in_turn.next() {
                    mailboxes[number].post(Message::Accept(client, CountGuard::new(&live)));
                }
            })?;
            Ok((acceptor, None))
        })
    }

    /// Starts the workers, and has `accept` take clients for them. Its last argument counts clients.
    pub(super) fn start_by(
        device: Arc<Device>,
        listen: &Listen,
        options: &ServerOptions,
        accept: impl FnOnce(
            Socket,
            Arc<Device>,
            &Workers,
            Arc<AtomicUsize>,
        ) -> Result<(Acceptor, Option<Greeters>), ServerError>,
    ) -> Result<Self, ServerError> {
        let pool = Offload::start(&device, &options.offload)?;
        let (socket, listen) = bind(listen)?;
        let export = Arc::new(describe(&device, options));
        let live = Arc::new(AtomicUsize::new(0));
        let mut workers = Workers::default();
        for number in 0..options.threads.max(1) {
            let frontend = NbdFrontend::new(Arc::clone(&export), Arc::clone(&live), options.limits)
                .with_max_clients(options.max_connections);
            workers.add(number, (&device, options.threads), frontend, &pool, options)?;
        }
        let (acceptor, greeters) = accept(socket, Arc::clone(&device), &workers, live)?;
        Ok(Self { listen, acceptor, greeters, workers, device, drain: options.limits.drain })
    }

    /// Returns the address at which the server listens, with the port that was chosen.
    pub fn listen(&self) -> &Listen {
        &self.listen
    }

    /// Returns whether all workers run. A worker ends early on an error that concerns all its clients; [`Server::stop`]
    /// returns that error.
    pub fn is_healthy(&self) -> bool {
        self.workers.is_healthy()
    }

    /// Returns the name of the workers' ring backend.
    pub fn ring_name(&self) -> &'static str {
        self.workers.ring_name
    }

    /// Accepts no more clients, answers the requests that were read, and puts everything that was written on stable
    /// storage. Blocks, for [`Limits::drain`] at most until clients have taken their replies.
    ///
    /// A request was read if its header was, and for a write its whole payload. Input behind it gets no reply, and is
    /// not carried out, except for pieces of a long write that have arrived. Requests that wait because the device is
    /// suspended fail.
    ///
    /// # Errors
    /// A worker has failed, or the final flush fails.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.acceptor.stop();
        // Requests of a suspended device would wait for ever. The suspension has flushed what was written.
        self.device.end();
        if let Some(greeters) = &mut self.greeters {
            greeters.stop(Instant::now() + self.drain);
        }
        let outcome = self.workers.finish();
        if let Some(greeters) = &self.greeters {
            greeters.threads.wait();
        }
        final_flush(&self.device)?;
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A client that is accepted later would find no worker.
        self.acceptor.stop();
        self.device.end();
        if let Some(greeters) = &mut self.greeters {
            greeters.stop(Instant::now());
        }
    }
}

/// Puts everything that was written on stable storage. A suspension has done so before.
pub(super) fn final_flush(device: &Arc<Device>) -> Result<(), ServerError> {
    if device.access().read_only || device.is_suspended() {
        return Ok(());
    }
    let device = inlock_engine::BlockingDevice::with_calls(Arc::clone(device), 1);
    device.flush().map_err(ServerError::Flush)
}

/// Returns what clients are told about a device.
pub(super) fn describe(device: &Device, options: &ServerOptions) -> Export {
    use transmission_flag::*;
    let access = device.access();
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_DF | CAN_MULTI_CONN | SEND_CACHE;
    flags |= if access.read_only { READ_ONLY } else { SEND_WRITE_ZEROES | SEND_FAST_ZERO };
    flags = with_discards(flags, access);
    Export {
        name: options.export_name.clone(),
        description: options.description.clone(),
        size: device.len(),
        flags,
        preferred_block: (device.mapping().unit_len() as u32).max(4096),
    }
}

/// Listens at an address, and returns it with the port that was chosen.
pub(super) fn bind(listen: &Listen) -> Result<(Socket, Listen), ServerError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::InUse(listen.clone()),
        _ => ServerError::Listen { listen: listen.clone(), source },
    };
    match listen {
        Listen::Unix(path) => {
            remove_stale(path, listen)?;
            let socket = connect::listen(path, BACKLOG).map_err(failed)?;
            Ok((Socket::Unix(socket, path.clone()), listen.clone()))
        }
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((Socket::Tcp(listener), Listen::Tcp(address)))
        }
    }
}

/// Removes the socket of a server that has died.
fn remove_stale(path: &Path, listen: &Listen) -> Result<(), ServerError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ServerError::NotASocket(path.to_owned()));
    }
    if connect::is_listening(path) {
        return Err(ServerError::InUse(listen.clone()));
    }
    std::fs::remove_file(path).map_err(|source| ServerError::Listen { listen: listen.clone(), source })
}

/// A thread that accepts clients. It ends when this is dropped.
pub(super) struct Acceptor {
    stopping: Arc<AtomicBool>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts the thread, which gives each client to `take`; a client that `take` drops is disconnected, and so is one
    /// that gets a descriptor of those that are not for clients.
    pub(super) fn start(socket: Socket, mut take: impl FnMut(OwnedFd) + Send + 'static) -> Result<Self, ServerError> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (woken, wake) = rustix::pipe::pipe().map_err(|e| ServerError::Worker(e.into()))?;
        let is_stopping = Arc::clone(&stopping);
        let for_clients = ForClients::now();
        let take = move |client| {
            if for_clients.include(&client) {
                take(client);
            }
        };
        let accept = move || accept_clients(&socket, &woken, &is_stopping, take);
        let thread = std::thread::Builder::new().name("inlock-accept".into()).spawn(accept);
        Ok(Self { stopping, wake, thread: Some(thread.map_err(ServerError::Worker)?) })
    }

    /// Accepts no more clients. Blocks until the thread has ended.
    fn stop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Ends the thread's wait.
        let _ = rustix::io::write(&self.wake, &[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_clients(socket: &Socket, wake: &OwnedFd, stopping: &AtomicBool, mut take: impl FnMut(OwnedFd)) {
    while !stopping.load(Ordering::Acquire) {
        let listener = socket.as_fd();
        let mut ready = [PollFd::new(&listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        if rustix::event::poll(&mut ready, None).is_err() || !ready[0].revents().contains(PollFlags::IN) {
            continue;
        }
        match socket.accept() {
            Ok(client) => take(client),
            Err(error) => {
                let _ = rustix::event::poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&retry_after(&error)));
            }
        }
    }
}

/// Returns the time to wait after a client could not be accepted.
fn retry_after(error: &io::Error) -> Timespec {
    match error.kind() {
        // The client disconnected before it was accepted.
        io::ErrorKind::ConnectionAborted => Timespec::default(),
        // Out of descriptors or memory: the client waits until there may be some again.
        _ => ACCEPT_AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// The numbers are those of the section "Transmission flags" of the protocol.
    #[test]
    fn transmission_flags_follow_access() {
        let all = 1 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8 | 1 << 10;
        let (read_only, writable, trim) = (all | 1 << 1, all | 1 << 6 | 1 << 11, 1 << 5);
        for (is_read_only, allow_discards, flags) in [
            (false, false, writable),
            (false, true, writable | trim),
            (true, false, read_only),
            (true, true, read_only),
        ] {
            let access = Access { read_only: is_read_only, allow_discards };
            let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 8192])), access);
            let export = describe(&device, &ServerOptions::default());
            assert_eq!(export.flags, flags, "{access:?}");
            assert_eq!((export.size, export.preferred_block), (8192, 4096));
            assert_eq!(with_discards(flags, access), flags, "nothing has changed");
            let opposite = Access { allow_discards: !allow_discards, ..access };
            let expected = if is_read_only { flags } else { flags ^ trim };
            assert_eq!(with_discards(flags, opposite), expected, "{opposite:?}");
        }
    }

    #[test]
    fn default_is_a_worker_for_each_cpu_and_at_most_four() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let expected = [1, 2, 3, 4].into_iter().rfind(|threads| *threads <= cpus);
        assert_eq!(Some(ServerOptions::default().threads), expected);
    }

    #[test]
    fn only_a_client_that_has_left_is_followed_by_the_next_at_once() {
        assert_eq!(retry_after(&io::ErrorKind::ConnectionAborted.into()), Timespec::default());
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            assert_eq!(retry_after(&errno.into()), ACCEPT_AGAIN);
        }
    }

    #[test]
    fn address_in_use_is_named() {
        let any = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let (_socket, listen) = bind(&any).unwrap();
        let Listen::Tcp(address) = listen else { panic!("{listen}") };
        assert_eq!(listen.to_string(), format!("tcp:127.0.0.1:{}", address.port()));
        let error = bind(&listen).map(drop).unwrap_err();
        assert_eq!(error.to_string(), format!("{listen} is in use by another server"));
        assert_eq!(Listen::Unix("/a/socket".into()).to_string(), "unix:/a/socket");
    }

    fn server(socket: &Path, max_connections: usize) -> (Server, Arc<Device>) {
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default()));
        let options = ServerOptions { threads: 1, io: IoMode::Sync, max_connections, ..ServerOptions::default() };
        (Server::start(Arc::clone(&device), &Listen::Unix(socket.to_owned()), &options).unwrap(), device)
    }

    #[test]
    fn worker_threads_end_with_a_server_that_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let (server, device) = server(&socket, 4);
        assert_eq!((server.is_healthy(), server.ring_name()), (true, "sync"));
        drop(server);
        assert_eq!(Arc::strong_count(&device), 1, "a thread still has the device");
        assert!(!socket.exists(), "a thread still accepts clients");
    }

    #[test]
    fn client_beyond_the_limit_takes_the_place_of_the_oldest_in_its_handshake() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let (_server, _device) = server(&socket, 3);
        let connect = || UnixStream::connect(&socket).unwrap();
        let greet = |client: &mut UnixStream| client.read_exact(&mut [0; 18]).unwrap();
        let is_disconnected = |client: &mut UnixStream| client.read(&mut [0]).unwrap() == 0;
        let mut in_transmission = connect();
        greet(&mut in_transmission);
        // Flags, and the option EXPORT_NAME with no name.
        let option = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1], &[0; 4]].concat();
        in_transmission.write_all(&option).unwrap();
        in_transmission.read_exact(&mut [0; 10]).unwrap();
        let mut idle: Vec<_> = (0..5)
            .map(|_| {
                let mut client = connect();
                greet(&mut client);
                client
            })
            .collect();
        assert!(idle[..3].iter_mut().all(is_disconnected));
        let mut last = idle.split_off(3);
        for client in &mut last {
            client.set_nonblocking(true).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            client.set_nonblocking(false).unwrap();
            client.write_all(&option).unwrap();
            client.read_exact(&mut [0; 10]).unwrap();
        }
        // None is in its handshake now.
        assert!(is_disconnected(&mut connect()));
        in_transmission.set_nonblocking(true).unwrap();
        assert_eq!(in_transmission.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Its suspension would last for ever.
    #[test]
    fn request_to_a_suspended_device_does_not_keep_a_server_that_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let (server, device) = server(&socket, 4);
        let mut client = UnixStream::connect(&socket).unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        // Flags, and the option EXPORT_NAME with no name.
        client.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1], &[0; 4]].concat()).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
        device.suspend().unwrap();
        let request = |kind: u8| {
            let cookie_and_offset = [kind; 16];
            [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind][..], &cookie_and_offset, &[0, 0, 2, 0]].concat()
        };
        // The reply to a request that is refused shows that the read before it waits.
        client.write_all(&[request(0), request(99)].concat()).unwrap();
        let mut reply = [0; 16];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply[8..], [99; 8]);
        drop(server);
        client.read_exact(&mut reply).unwrap();
        assert!(reply[4..8] != [0; 4] && reply[8..] == [0; 8], "{reply:?}");
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn greeters_that_stop_disconnect_their_clients_and_take_no_more() {
        let (stop, hangs_up) = rustix::pipe::pipe().unwrap();
        let threads = Arc::new(Relays::default());
        let mut greeters = Greeters::new(Arc::clone(&threads), hangs_up);
        let is_stopped = || {
            let mut polled = [PollFd::new(&stop, PollFlags::empty())];
            let is_told = rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0;
            [is_told, threads.unless_stopping(|| Some(())).is_none()]
        };
        assert_eq!(is_stopped(), [false; 2]);
        greeters.stop(Instant::now());
        assert_eq!(is_stopped(), [true; 2]);
    }

    #[test]
    fn socket_of_another_kind_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _other = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        let listen = Listen::Unix(socket.clone());
        assert!(matches!(remove_stale(&socket, &listen), Err(ServerError::InUse(_))));
        assert!(socket.exists());
    }
}
