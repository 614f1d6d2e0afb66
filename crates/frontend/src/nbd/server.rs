//! Listens for clients and spreads them over workers; stops them in good order.

use super::descriptors;
use super::memory::OWN_BUFFERS;
use super::mux::{Message, NbdFrontend, with_discards};

pub use super::mux::Limits;
use super::protocol::{Export, transmission_flag};
use inlock_engine::OffloadError;
use inlock_engine::ring::Ring;
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Mailbox, Worker};
use inlock_engine::{BufferPool, Device, Offload, OffloadOptions, RequestError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Clients that have connected and are not yet accepted; the rest wait in `connect`.
const BACKLOG: i32 = 4096;

/// How long no client is accepted after one could not be.
const ACCEPT_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A socket in the file system; only its owner may connect.
    Unix(PathBuf),
    /// A TCP address; port 0 takes any free one.
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

/// How a volume is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// The export's name.
    pub export_name: String,
    /// For people.
    pub description: String,
    /// Worker threads.
    pub threads: usize,
    /// Whether a pool does the cipher work of some requests.
    pub offload: OffloadOptions,
    /// How workers talk to the kernel.
    pub io: IoMode,
    /// Clients at a time; more are hung up on. Fewer where the process may not open as many descriptors.
    pub max_connections: usize,
    /// How long clients may keep others waiting.
    pub limits: Limits,
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
            max_connections: 1024,
            limits: Limits::default(),
        }
    }
}

/// A server that could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process listens there.
    #[error("{0} is in use by another server")]
    InUse(Listen),
    /// Something that is not a socket stands at the path.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Where.
        listen: Listen,
        /// Why not.
        source: io::Error,
    },
    /// A worker cannot run.
    #[error("cannot run a worker: {0}")]
    Worker(#[source] io::Error),
    /// The cipher pool cannot be made.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// What was written could not be put on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] RequestError),
}

enum Socket {
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
            // A socket that is already gone is what was wanted.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A running server.
pub struct Server {
    listen: Listen,
    stopping: Arc<AtomicBool>,
    wake_acceptor: OwnedFd,
    acceptor: Option<JoinHandle<()>>,
    workers: Workers,
    device: Arc<Device>,
}

/// Worker threads. They end when this is dropped.
#[derive(Default)]
struct Workers {
    threads: Vec<JoinHandle<io::Result<()>>>,
    mailboxes: Vec<Arc<Mailbox<Message>>>,
    ring_name: &'static str,
}

impl Workers {
    /// Starts one, and waits until it runs.
    fn add(
        &mut self,
        number: usize,
        device: &Arc<Device>,
        frontend: NbdFrontend,
        pool: &Option<Arc<Offload>>,
        options: &ServerOptions,
    ) -> Result<(), ServerError> {
        let (ready, started) = mpsc::channel();
        let (device, offload) = (Arc::clone(device), pool.clone());
        let (io, threads, clients) = (options.io, options.threads, options.max_connections);
        let run = move || {
            // The ring belongs to the thread that uses it, so it is made there.
            let ring = match Ring::new(io) {
                Ok(ring) => ring,
                Err(error) => return ready.send(Err(error)).map_err(io::Error::other),
            };
            let name = ring.name();
            let pool = BufferPool::for_worker(device.unit_len(), threads).with_others(OWN_BUFFERS * clients);
            let mut worker = Worker::new(device, ring, pool, frontend).with_offload(offload);
            ready.send(Ok((worker.mailbox(), name))).map_err(io::Error::other)?;
            worker.run()
        };
        let thread = std::thread::Builder::new().name(format!("inlock-worker-{number}")).spawn(run);
        self.threads.push(thread.map_err(ServerError::Worker)?);
        let started = started.recv().map_err(|e| ServerError::Worker(io::Error::other(e)))?;
        let (mailbox, name) = started.map_err(ServerError::Worker)?;
        self.mailboxes.push(mailbox);
        self.ring_name = name;
        Ok(())
    }

    /// Lets every worker finish what it has, and says how the last one that failed has ended.
    fn finish(&mut self) -> Result<(), ServerError> {
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
        // Whoever wants to know how they ended has asked before.
        let _ = self.finish();
    }
}

impl Server {
    /// Listens, and starts the workers. Clients may connect as soon as this returns. When it fails nothing is left
    /// behind.
    pub fn start(device: Arc<Device>, listen: &Listen, options: &ServerOptions) -> Result<Self, ServerError> {
        let pool = Offload::start(&device, &options.offload)?;
        let (socket, listen) = bind(listen)?;
        let export = Arc::new(describe(&device, options));
        let live = Arc::new(AtomicUsize::new(0));
        let stopping = Arc::new(AtomicBool::new(false));
        let (wake_read, wake_acceptor) = rustix::pipe::pipe().map_err(|e| ServerError::Worker(e.into()))?;
        let mut workers = Workers::default();
        for number in 0..options.threads.max(1) {
            let frontend = NbdFrontend::new(Arc::clone(&export), Arc::clone(&live), options.limits);
            workers.add(number, &device, frontend, &pool, options)?;
        }
        let accept = {
            let (stopping, mailboxes) = (Arc::clone(&stopping), workers.mailboxes.clone());
            let limit = options.max_connections.min(descriptors::left_for_clients());
            move || accept_clients(&socket, &wake_read, &stopping, &mailboxes, &live, limit)
        };
        let acceptor = std::thread::Builder::new().name("inlock-accept".into()).spawn(accept);
        let acceptor = Some(acceptor.map_err(ServerError::Worker)?);
        Ok(Self { listen, stopping, wake_acceptor, acceptor, workers, device })
    }

    /// Where it listens, with the port that was taken.
    pub fn listen(&self) -> &Listen {
        &self.listen
    }

    /// Whether every worker still runs. One that does not has met an error that it could not answer a client with;
    /// [`Server::stop`] says which.
    pub fn is_healthy(&self) -> bool {
        !self.workers.threads.iter().any(JoinHandle::is_finished)
    }

    /// `io_uring` or `plain`.
    pub fn ring_name(&self) -> &'static str {
        self.workers.ring_name
    }

    /// Stops accepting, finishes and answers what was taken on, and puts everything that was written on stable storage.
    ///
    /// Taken on is a request whose header was read, and for a write its whole payload. What still lies in a socket or
    /// in the input behind it is not looked at any more and gets no answer: the client cannot tell whether it was
    /// carried out, and it was not, but for pieces of a long write that had arrived. Clients have [`Limits::drain`] to
    /// take their answers; who takes longer is hung up on. Requests that wait because the device is suspended are
    /// answered with an error.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.stop_accepting();
        // What waits in a suspended device would wait for ever; what it had written was flushed when it was suspended.
        self.device.end();
        let outcome = self.workers.finish();
        if !self.device.access().read_only && !self.device.is_suspended() {
            let device = inlock_engine::BlockingDevice::with_calls(Arc::clone(&self.device), 1);
            device.flush().map_err(ServerError::Flush)?;
        }
        outcome
    }

    fn stop_accepting(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // The acceptor only waits for this pipe to become readable.
        let _ = rustix::io::write(&self.wake_acceptor, &[0]);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Clients that are accepted from here on would find no worker.
        self.stop_accepting();
        self.device.end();
    }
}

fn describe(device: &Device, options: &ServerOptions) -> Export {
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

fn bind(listen: &Listen) -> Result<(Socket, Listen), ServerError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::InUse(listen.clone()),
        _ => ServerError::Listen { listen: listen.clone(), source },
    };
    match listen {
        Listen::Unix(path) => {
            remove_stale(path, listen)?;
            let socket = listen_on_path(path).map_err(failed)?;
            Ok((socket, listen.clone()))
        }
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((Socket::Tcp(listener), Listen::Tcp(address)))
        }
    }
}

/// Whoever may connect reads the plaintext, so the socket is its owner's alone before anybody can connect.
fn listen_on_path(path: &Path) -> io::Result<Socket> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &address)?;
    let socket = Socket::Unix(socket.into(), path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(socket.as_fd(), BACKLOG)?;
    Ok(socket)
}

/// Removes a socket that a dead server left behind.
fn remove_stale(path: &Path, listen: &Listen) -> Result<(), ServerError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ServerError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServerError::Listen { listen: listen.clone(), source })
        }
        _ => Err(ServerError::InUse(listen.clone())),
    }
}

fn accept_clients(
    socket: &Socket,
    wake: &OwnedFd,
    stopping: &AtomicBool,
    mailboxes: &[Arc<Mailbox<Message>>],
    live: &AtomicUsize,
    limit: usize,
) {
    let mut next = 0;
    while !stopping.load(Ordering::Acquire) {
        let listener = socket.as_fd();
        let mut ready = [PollFd::new(&listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        if rustix::event::poll(&mut ready, None).is_err() || !ready[0].revents().contains(PollFlags::IN) {
            continue;
        }
        match socket.accept() {
            Ok(_) if live.load(Ordering::Relaxed) >= limit => {}
            Ok(client) => {
                live.fetch_add(1, Ordering::Relaxed);
                mailboxes[next % mailboxes.len()].post(Message::Accept(client));
                next += 1;
            }
            // The client was gone before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors or memory: the client waits, and there may be some again.
            Err(_) => drop(rustix::event::poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&ACCEPT_AGAIN))),
        }
    }
}
