//! The thread of a control socket: reads commands as lines, and replies with lines.
//!
//! It polls and never blocks on a client. Commands that may block run on a thread of their own: suspending waits for
//! requests in flight. [`Controlled`] is what they are for: one volume, or a server of many. The length of a line, the
//! number of clients and the output of each are bounded. A new client replaces the one that has been silent longest if
//! there are too many.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use serde::Serialize;
use serde_json::{Map, Value};

use super::claim::Claim;
use super::line::{self, LINE_MAX, Lines};
use super::listener::Listener;
use super::openmetrics;
use super::served::{self, ServedVolume};
use crate::error::{Error, Reply, Result, ResultExt, Told};
use crate::program::Program;
use crate::socket;

/// Maximum number of clients: more than may wait for their commands, so that another command finds a place.
const CLIENTS_MAX: usize = 96;

/// Object of the commands of a socket.
pub trait Controlled: Send + Sync + 'static {
    /// Returns the number of commands that may change it at the same time, this one included.
    fn max_changes(&self, command: &str) -> usize;

    /// Replies to a command that does not block. `None`: the command may block.
    fn query(&self, command: &str, request: &Value) -> Option<Reply>;

    /// Executes a command that may block. `pipe` came with the request.
    fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply;

    /// Whether the client of a command that succeeded waits for the end of the process.
    fn is_closing(&self, command: &str, request: &Value) -> bool;

    /// Returns the metrics for a scraper.
    fn metrics(&self) -> String;
}

impl Controlled for ServedVolume {
    fn max_changes(&self, _command: &str) -> usize {
        1
    }

    fn query(&self, command: &str, _request: &Value) -> Option<Reply> {
        match command {
            "status" => Some(fields(&self.status())),
            "stats" => Some(fields(&self.sample())),
            // Also while another command waits for the store.
            "abort" => {
                self.abort();
                Some(Ok(Map::new()))
            }
            _ => None,
        }
    }

    fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        Self::change(self, command, request, pipe)
    }

    fn is_closing(&self, command: &str, request: &Value) -> bool {
        command == "close" && !served::is_deferred(request)
    }

    fn metrics(&self) -> String {
        Self::metrics(self)
    }
}

/// Control of a running volume. Releases the name when dropped, also without [`Control::finish`].
pub struct Control {
    claim: Option<Claim>,
    log: PathBuf,
    thread: ControlThread,
}

/// The thread that serves commands and scrapers. It ends when this is dropped.
pub struct ControlThread {
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
    pub fn start(
        program: Arc<dyn Program>,
        mut claim: Claim,
        volume: ServedVolume,
        metrics: Option<Listener>,
    ) -> Result<Self> {
        claim.publish(&volume.with_metrics(metrics.as_ref().map(|metrics| metrics.address.clone())))?;
        let path = claim.files().socket();
        let commands = socket::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let commands = vec![Listener::new(commands.into())];
        let thread = ControlThread::start(program, commands, metrics, Arc::new(volume))?;
        Ok(Self { log: claim.files().log(), claim: Some(claim), thread })
    }

    /// Returns the path of the log of a background process.
    pub fn log(&self) -> PathBuf {
        self.log.clone()
    }

    /// Releases the name, then sends the outcome to the clients that asked to close.
    pub fn finish(mut self, outcome: Result<(), Told>) {
        if let (Err(_), Some(claim)) = (&outcome, &mut self.claim) {
            claim.keep_log();
        }
        let closers = self.stop();
        let reply = served::line(outcome.map(|()| Map::new()));
        for closer in closers {
            // It fails if the client is gone.
            let _ = rustix::io::write(&closer, &reply);
        }
    }

    fn stop(&mut self) -> Vec<OwnedFd> {
        let closers = self.thread.stop();
        self.claim = None;
        closers
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ControlThread {
    /// Starts to serve commands and scrapers.
    pub fn start(
        program: Arc<dyn Program>,
        commands: Vec<Listener>,
        metrics: Option<Listener>,
        controlled: Arc<dyn Controlled>,
    ) -> Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (queue, received) = mpsc::channel();
        let events = Events { queue, wake: Arc::new(wake) };
        let server = Server {
            program,
            controlled,
            events: events.clone(),
            clients: BTreeMap::new(),
            next: 0,
            messages: 0,
            changes: 0,
            stopping: false,
            closers: Vec::new(),
        };
        let commands = commands.into_iter().map(|listener| (listener, Protocol::Lines));
        let metrics = metrics.map(|listener| (listener, Protocol::Http));
        let listeners: Vec<_> = commands.chain(metrics).collect();
        let run = move || server.run(&listeners, &woken, &received);
        let thread = std::thread::Builder::new().name("inlock-control".into()).spawn(run)?;
        Ok(Self { events, thread: Some(thread) })
    }

    /// Ends the thread when no command runs. Returns the sockets of the clients that wait for the end of the process.
    fn stop(&mut self) -> Vec<OwnedFd> {
        self.events.post(Event::Stop);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Server {
    program: Arc<dyn Program>,
    controlled: Arc<dyn Controlled>,
    events: Events,
    clients: BTreeMap<u64, Client>,
    /// Number of the next client.
    next: u64,
    /// Number of messages so far, to find the client that has been silent longest.
    messages: u64,
    /// Number of commands that run on threads of their own.
    changes: usize,
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
    fn run(mut self, listeners: &[(Listener, Protocol)], woken: &UnixStream, events: &Receiver<Event>) -> Vec<OwnedFd> {
        loop {
            let ready = self.wait(listeners, woken);
            let mut drain = [0; 64];
            while rustix::io::read(woken, &mut drain).is_ok_and(|read| read == drain.len()) {}
            while let Ok(event) = events.try_recv() {
                match event {
                    Event::Stop => self.stopping = true,
                    Event::Done { client, closing, reply } => self.done(client, closing, reply),
                }
            }
            // A client that asked to close is known when its command has finished, possibly after the volume is closed.
            if self.stopping && self.changes == 0 {
                return self.closers;
            }
            for (number, flags) in ready.clients {
                self.attend(number, flags);
            }
            for ((listener, protocol), _) in listeners.iter().zip(&ready.listeners).filter(|(_, ready)| **ready) {
                self.accept(&listener.socket, *protocol);
            }
        }
    }

    fn wait(&self, listeners: &[(Listener, Protocol)], woken: &UnixStream) -> Ready {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(listeners.iter().map(|(listener, _)| PollFd::new(&listener.socket, PollFlags::IN)));
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
        if let Some(answer) = openmetrics::answer(client.input.bytes(), || self.controlled.metrics()) {
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
            let Some(line) = client.input.next_line() else {
                if client.input.is_too_long() {
                    client.last = true;
                    let error = Error::Request(format!("A line has at most {LINE_MAX} bytes."));
                    client.output = served::line(Err(self.program.tell(error)));
                }
                return;
            };
            let pipe = client.pipe.take();
            if let Some(reply) = self.command(number, &line, pipe)
                && let Some(client) = self.clients.get_mut(&number)
            {
                client.output = served::line(reply.map_err(|error| self.program.tell(error)));
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
            Err(message) => return Some(Err(Error::Request(message))),
        };
        if let Some(reply) = self.controlled.query(&command, &request) {
            return Some(reply);
        }
        let most = self.controlled.max_changes(&command);
        if self.changes >= most || self.stopping {
            return Some(Err(match (self.stopping, most) {
                (true, _) => Error::Closing,
                (false, 1) => Error::InProgress,
                (false, _) => Error::TooManyCommands,
            }));
        }
        let (controlled, events) = (Arc::clone(&self.controlled), self.events.clone());
        let change = move || {
            let reply = controlled.change(&command, &request, pipe);
            let closing = reply.is_ok() && controlled.is_closing(&command, &request);
            events.post(Event::Done { client: number, closing, reply });
        };
        match std::thread::Builder::new().name("inlock-change".into()).spawn(change) {
            Err(error) => Some(Err(error.into())),
            Ok(_) => {
                self.changes += 1;
                if let Some(client) = self.clients.get_mut(&number) {
                    client.waiting = true;
                }
                None
            }
        }
    }

    fn done(&mut self, number: u64, closing: bool, reply: Reply) {
        self.changes -= 1;
        if closing {
            self.closers.extend(self.clients.remove(&number).map(|client| client.socket));
            return;
        }
        if let Some(client) = self.clients.get_mut(&number) {
            client.waiting = false;
            client.output = served::line(reply.map_err(|error| self.program.tell(error)));
            if !client.send() {
                self.clients.remove(&number);
            }
        }
        self.advance(number);
    }
}

/// Returns the fields of a reply.
pub fn fields(shown: &impl Serialize) -> Reply {
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

#[cfg(test)]
mod tests;
