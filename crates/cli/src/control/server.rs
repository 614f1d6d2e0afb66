//! The thread of a control socket: reads commands as lines, and replies with lines.
//!
//! It polls and never blocks on a client. Commands that may block run on a thread of their own, one at a time:
//! suspending waits for requests in flight. The length of a line, the number of clients and the output of each are
//! bounded. A new client replaces the one that has been silent longest if there are too many.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use serde::Serialize;
use serde_json::{Map, Value};

use super::claim::Claim;
use super::line::{self, LINE_MAX, Lines};
use super::openmetrics;
use super::served::{self, Reply, ServedVolume};
use crate::error::{CliError, Status};
use crate::system::socket;

/// Refusals of a command while another one changes the volume.
pub(crate) const IN_PROGRESS: &str = "Another operation on the volume is in progress.";
pub(crate) const CLOSING: &str = "The volume is being closed.";

/// Maximum number of clients.
const CLIENTS_MAX: usize = 32;

/// Control of a running volume. Releases the name when dropped, also without [`Control::finish`].
pub(crate) struct Control {
    claim: Option<Claim>,
    log: PathBuf,
    events: Events,
    thread: Option<JoinHandle<Vec<OwnedFd>>>,
}

enum Event {
    /// A command has finished.
    Done { client: u64, closing: bool, reply: Reply },
    /// The process exits.
    Stop,
}

/// Queue of events from other threads.
#[derive(Clone)]
struct Events {
    queue: Sender<Event>,
    wake: Arc<UnixStream>,
}

impl Events {
    fn post(&self, event: Event) {
        // It fails if the server has stopped.
        let _ = self.queue.send(event);
        let _ = rustix::io::write(&*self.wake, &[0]);
    }
}

impl Control {
    /// Publishes the state file, and starts to serve commands and scrapers.
    pub(crate) fn start(
        mut claim: Claim,
        volume: ServedVolume,
        metrics: Option<openmetrics::Listener>,
    ) -> anyhow::Result<Self> {
        claim.publish(&volume.with_metrics(metrics.as_ref().map(|metrics| metrics.address.clone())))?;
        let volume = Arc::new(volume);
        let path = claim.files().socket();
        let listener = socket::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (queue, received) = mpsc::channel();
        let events = Events { queue, wake: Arc::new(wake) };
        let server = Server {
            volume,
            events: events.clone(),
            clients: BTreeMap::new(),
            next: 0,
            messages: 0,
            changing: false,
            stopping: false,
            closers: Vec::new(),
        };
        let run = move || server.run(&listener.into(), metrics.as_ref(), &woken, &received);
        let thread = std::thread::Builder::new().name("inlock-control".into()).spawn(run)?;
        Ok(Self { log: claim.files().log(), claim: Some(claim), events, thread: Some(thread) })
    }

    /// Returns the path of the log of a background process.
    pub(crate) fn log(&self) -> PathBuf {
        self.log.clone()
    }

    /// Releases the name, then sends the outcome to the clients that asked to close.
    pub(crate) fn finish(mut self, outcome: &anyhow::Result<()>) {
        if let (Err(_), Some(claim)) = (outcome, &mut self.claim) {
            claim.keep_log();
        }
        let closers = self.stop();
        let reply = served::line(&match outcome {
            Ok(()) => Ok(Map::new()),
            Err(error) => Err(served::remote(error)),
        });
        for closer in closers {
            // It fails if the client is gone.
            let _ = rustix::io::write(&closer, &reply);
        }
    }

    fn stop(&mut self) -> Vec<OwnedFd> {
        self.events.post(Event::Stop);
        let closers = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        self.claim = None;
        closers
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Server {
    volume: Arc<ServedVolume>,
    events: Events,
    clients: BTreeMap<u64, Client>,
    /// Number of the next client.
    next: u64,
    /// Number of messages so far, to find the client that has been silent longest.
    messages: u64,
    /// A command runs on its own thread.
    changing: bool,
    /// The process exits as soon as no command runs.
    stopping: bool,
    /// Clients that wait for the volume to be closed.
    closers: Vec<OwnedFd>,
}

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Lines,
    Http,
}

struct Client {
    socket: OwnedFd,
    protocol: Protocol,
    input: Lines,
    /// Descriptor received with the current line.
    pipe: Option<OwnedFd>,
    output: Vec<u8>,
    /// A command of this client is running.
    waiting: bool,
    /// Disconnect when the output is sent.
    last: bool,
    spoke: u64,
}

impl Client {
    /// Returns the events to poll for.
    fn wants(&self) -> PollFlags {
        match (self.output.is_empty(), self.waiting) {
            (false, _) => PollFlags::OUT,
            (true, false) => PollFlags::IN,
            (true, true) => PollFlags::empty(),
        }
    }

    /// Receives what has arrived. `false`: disconnect.
    fn receive(&mut self) -> bool {
        let mut room = [0; 1024];
        match socket::receive(&self.socket, &mut room) {
            Ok((0, _)) => false,
            Ok((len, pipe)) => {
                self.input.push(&room[..len]);
                self.pipe = pipe.or(self.pipe.take());
                true
            }
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Sends without blocking. `false`: disconnect.
    fn send(&mut self) -> bool {
        match rustix::net::send(&self.socket, &self.output, rustix::net::SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.output.drain(..sent);
                !(self.last && self.output.is_empty())
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }
}

impl Server {
    /// Runs until it is stopped. Returns the sockets of the clients that wait for the volume to be closed.
    fn run(
        mut self,
        listener: &OwnedFd,
        metrics: Option<&openmetrics::Listener>,
        woken: &UnixStream,
        events: &Receiver<Event>,
    ) -> Vec<OwnedFd> {
        let mut listeners = vec![(listener, Protocol::Lines)];
        listeners.extend(metrics.map(|metrics| (&metrics.socket, Protocol::Http)));
        loop {
            let ready = self.wait(&listeners, woken);
            let mut drain = [0; 64];
            while rustix::io::read(woken, &mut drain).is_ok_and(|read| read == drain.len()) {}
            while let Ok(event) = events.try_recv() {
                match event {
                    Event::Stop => self.stopping = true,
                    Event::Done { client, closing, reply } => self.done(client, closing, reply),
                }
            }
            // A client that asked to close is known when its command has finished, possibly after the volume is closed.
            if self.stopping && !self.changing {
                return self.closers;
            }
            for (number, flags) in ready.clients {
                self.attend(number, flags);
            }
            for (listener, protocol) in
                listeners.iter().zip(&ready.listeners).filter(|(_, ready)| **ready).map(|(l, _)| *l)
            {
                self.accept(listener, protocol);
            }
        }
    }

    fn wait(&self, listeners: &[(&OwnedFd, Protocol)], woken: &UnixStream) -> Ready {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(listeners.iter().map(|(listener, _)| PollFd::new(*listener, PollFlags::IN)));
        fds.extend(self.clients.values().map(|client| PollFd::new(&client.socket, client.wants())));
        if poll(&mut fds, None).is_err() {
            return Ready::default();
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let (listeners, clients) = ready[1..].split_at(listeners.len());
        let clients = self.clients.keys().copied().zip(clients.iter().copied());
        Ready {
            listeners: listeners.iter().map(|flags| !flags.is_empty()).collect(),
            clients: clients.filter(|(_, flags)| !flags.is_empty()).collect(),
        }
    }

    fn accept(&mut self, listener: &OwnedFd, protocol: Protocol) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener, flags) {
            Ok(socket) if protocol == Protocol::Http || is_trusted(socket.as_fd()) => socket,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // Out of descriptors; the client waits in its connect.
            Err(_) => return std::thread::sleep(Duration::from_millis(10)),
        };
        if self.clients.len() >= CLIENTS_MAX {
            let silent =
                self.clients.iter().filter(|(_, client)| !client.waiting).min_by_key(|(_, client)| client.spoke);
            match silent.map(|(number, _)| *number) {
                Some(number) => drop(self.clients.remove(&number)),
                None => return,
            }
        }
        let client = Client {
            socket,
            protocol,
            input: Lines::default(),
            pipe: None,
            output: Vec::new(),
            waiting: false,
            last: false,
            spoke: self.messages,
        };
        self.clients.insert(self.next, client);
        self.next += 1;
        self.messages += 1;
    }

    fn attend(&mut self, number: u64, flags: PollFlags) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let mut stays = true;
        if flags.contains(PollFlags::OUT) {
            stays = client.send();
        } else if flags.contains(PollFlags::IN) {
            client.spoke = self.messages;
            self.messages += 1;
            stays = client.receive();
        } else if flags.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            stays = false;
        }
        if stays {
            self.advance(number);
        } else {
            self.clients.remove(&number);
        }
    }

    /// Replies to a scraper when its request is complete.
    fn scrape(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number).filter(|client| !client.last) else { return };
        if let Some(answer) = openmetrics::answer(client.input.bytes(), || self.volume.metrics()) {
            client.last = true;
            client.output = answer;
            if !client.send() {
                self.clients.remove(&number);
            }
        }
    }

    /// Executes the client's lines until one needs a thread.
    fn advance(&mut self, number: u64) {
        if self.clients.get(&number).is_some_and(|client| client.protocol == Protocol::Http) {
            return self.scrape(number);
        }
        loop {
            let Some(client) = self.clients.get_mut(&number) else { return };
            if client.waiting || !client.output.is_empty() {
                return;
            }
            let Some(line) = client.input.next() else {
                if client.input.is_too_long() {
                    client.last = true;
                    client.output =
                        served::line(&Err(CliError::usage(format!("A line has at most {LINE_MAX} bytes."))));
                }
                return;
            };
            let pipe = client.pipe.take();
            if let Some(reply) = self.command(number, &line, pipe)
                && let Some(client) = self.clients.get_mut(&number)
            {
                client.output = served::line(&reply);
                if !client.send() {
                    self.clients.remove(&number);
                }
            }
        }
    }

    /// Replies to a line, or starts a command that may block.
    fn command(&mut self, number: u64, line: &[u8], pipe: Option<OwnedFd>) -> Option<Reply> {
        let (command, request) = match line::request(line) {
            Ok(asked) => asked,
            Err(message) => return Some(Err(CliError::usage(message))),
        };
        match &*command {
            "status" => return Some(fields(&self.volume.status())),
            "stats" => return Some(fields(&self.volume.sample())),
            // Also while another command waits for the store.
            "abort" => {
                self.volume.abort();
                return Some(Ok(Map::new()));
            }
            _ => {}
        }
        if self.changing || self.stopping {
            let (what, hint) = match self.stopping {
                true => (CLOSING, None),
                false => (IN_PROGRESS, Some("try again when it is done".to_owned())),
            };
            return Some(Err(CliError::Remote(what.to_owned(), hint, Status::Busy).into()));
        }
        let (volume, events) = (Arc::clone(&self.volume), self.events.clone());
        let change = move || {
            let reply = volume.change(&command, &request, pipe);
            let closing = command == "close" && !served::is_deferred(&request) && reply.is_ok();
            events.post(Event::Done { client: number, closing, reply });
        };
        match std::thread::Builder::new().name("inlock-change".into()).spawn(change) {
            Err(error) => Some(Err(error.into())),
            Ok(_) => {
                self.changing = true;
                if let Some(client) = self.clients.get_mut(&number) {
                    client.waiting = true;
                }
                None
            }
        }
    }

    fn done(&mut self, number: u64, closing: bool, reply: Reply) {
        self.changing = false;
        if closing {
            self.closers.extend(self.clients.remove(&number).map(|client| client.socket));
            return;
        }
        if let Some(client) = self.clients.get_mut(&number) {
            client.waiting = false;
            client.output = served::line(&reply);
            if !client.send() {
                self.clients.remove(&number);
            }
        }
        self.advance(number);
    }
}

fn fields(shown: &impl Serialize) -> Reply {
    match serde_json::to_value(shown)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

#[derive(Default)]
struct Ready {
    listeners: Vec<bool>,
    clients: Vec<(u64, PollFlags)>,
}

/// Whether the client's process is root's or of this process's user.
fn is_trusted(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}
