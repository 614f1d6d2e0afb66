//! The thread behind a control socket: takes lines, answers with lines, and lets nobody hold up anybody.
//!
//! It polls and never blocks on a client. What may take a while (suspending waits for requests under way) runs on a thread of its
//! own, one such command at a time. A client's line, the number of clients and what is owed to each are bounded; where all
//! places are taken, the client that has been silent longest makes room.

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

use super::line::{self, LINE_MAX, Lines};
use super::running::{self, Reply, Running};
use super::{Claim, metrics, socket};
use crate::exit::Problem;

/// Clients at a time.
const CLIENTS_MAX: usize = 32;

/// A running volume's control. Dropped without [`Control::finish`], it gives the name back all the same.
pub(crate) struct Control {
    claim: Option<Claim>,
    log: PathBuf,
    events: Events,
    thread: Option<JoinHandle<Vec<OwnedFd>>>,
}

enum Event {
    /// A command has ended.
    Done { client: u64, closing: bool, reply: Reply },
    /// The process ends.
    Stop,
}

/// Where threads report to.
#[derive(Clone)]
struct Events {
    queue: Sender<Event>,
    wake: Arc<UnixStream>,
}

impl Events {
    fn post(&self, event: Event) {
        // Nobody listens any more where this fails.
        let _ = self.queue.send(event);
        let _ = rustix::io::write(&*self.wake, &[0]);
    }
}

impl Control {
    /// Publishes what is known of the volume, takes commands, and answers scrapers.
    pub(crate) fn start(
        mut claim: Claim,
        running: Running,
        metrics: Option<metrics::Listener>,
    ) -> anyhow::Result<Self> {
        claim.publish(&running.with_metrics(metrics.as_ref().map(|metrics| metrics.address.clone())))?;
        let running = Arc::new(running);
        let path = claim.files().socket();
        let listener = socket::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (queue, received) = mpsc::channel();
        let events = Events { queue, wake: Arc::new(wake) };
        let server = Server {
            running,
            events: events.clone(),
            clients: BTreeMap::new(),
            next: 0,
            turn: 0,
            changing: false,
            stopping: false,
            closers: Vec::new(),
        };
        let run = move || server.run(&listener.into(), metrics.as_ref(), &woken, &received);
        let thread = std::thread::Builder::new().name("inlock-control".into()).spawn(run)?;
        Ok(Self { log: claim.files().log(), claim: Some(claim), events, thread: Some(thread) })
    }

    /// Where a process in the background writes what it says.
    pub(crate) fn log(&self) -> PathBuf {
        self.log.clone()
    }

    /// Gives the name back, then tells whoever asked to close how the volume has ended.
    pub(crate) fn finish(mut self, outcome: &anyhow::Result<()>) {
        if let (Err(_), Some(claim)) = (outcome, &mut self.claim) {
            claim.keep_log();
        }
        let closers = self.stop();
        let reply = running::line(&match outcome {
            Ok(()) => Ok(Map::new()),
            Err(error) => Err(running::told(error)),
        });
        for closer in closers {
            // Who is not there any more does not want to know.
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
    running: Arc<Running>,
    events: Events,
    clients: BTreeMap<u64, Client>,
    /// The number of the next client.
    next: u64,
    /// Counts what clients say, to know who has been silent longest.
    turn: u64,
    /// Whether a command that takes a while is under way.
    changing: bool,
    /// Whether the process ends, as soon as nothing is under way.
    stopping: bool,
    /// Who waits for the end.
    closers: Vec<OwnedFd>,
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Lines,
    Http,
}

struct Client {
    socket: OwnedFd,
    speech: Speech,
    input: Lines,
    /// What came with the line that is being received.
    handed: Option<OwnedFd>,
    output: Vec<u8>,
    /// A command of this client is under way.
    waiting: bool,
    /// Hang up when everything is sent.
    last: bool,
    spoke: u64,
}

impl Client {
    fn wants(&self) -> PollFlags {
        match (self.output.is_empty(), self.waiting) {
            (false, _) => PollFlags::OUT,
            (true, false) => PollFlags::IN,
            (true, true) => PollFlags::empty(),
        }
    }

    /// Receives what is there. `false`: hang up.
    fn receive(&mut self) -> bool {
        let mut room = [0; 1024];
        match socket::receive(&self.socket, &mut room) {
            Ok((0, _)) => false,
            Ok((len, handed)) => {
                self.input.push(&room[..len]);
                self.handed = handed.or(self.handed.take());
                true
            }
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Sends what can be sent. `false`: hang up.
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
    /// Until it is told to stop; gives whoever waits for the end.
    fn run(
        mut self,
        listener: &OwnedFd,
        metrics: Option<&metrics::Listener>,
        woken: &UnixStream,
        events: &Receiver<Event>,
    ) -> Vec<OwnedFd> {
        let mut listeners = vec![(listener, Speech::Lines)];
        listeners.extend(metrics.map(|metrics| (&metrics.socket, Speech::Http)));
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
            // Who asked to close is known when the command has ended, which may be after the volume has.
            if self.stopping && !self.changing {
                return self.closers;
            }
            for (number, flags) in ready.clients {
                self.attend(number, flags);
            }
            for (listener, speech) in
                listeners.iter().zip(&ready.listeners).filter(|(_, ready)| **ready).map(|(l, _)| *l)
            {
                self.accept(listener, speech);
            }
        }
    }

    fn wait(&self, listeners: &[(&OwnedFd, Speech)], woken: &UnixStream) -> Ready {
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

    fn accept(&mut self, listener: &OwnedFd, speech: Speech) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener, flags) {
            Ok(socket) if speech == Speech::Http || is_trusted(socket.as_fd()) => socket,
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
            speech,
            input: Lines::default(),
            handed: None,
            output: Vec::new(),
            waiting: false,
            last: false,
            spoke: self.turn,
        };
        self.clients.insert(self.next, client);
        self.next += 1;
        self.turn += 1;
    }

    fn attend(&mut self, number: u64, flags: PollFlags) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let mut stays = true;
        if flags.contains(PollFlags::OUT) {
            stays = client.send();
        } else if flags.contains(PollFlags::IN) {
            client.spoke = self.turn;
            self.turn += 1;
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

    /// Answers a scraper when its request is complete.
    fn scrape(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number).filter(|client| !client.last) else { return };
        if let Some(answer) = metrics::answer(client.input.bytes(), || self.running.metrics()) {
            client.last = true;
            client.output = answer;
            if !client.send() {
                self.clients.remove(&number);
            }
        }
    }

    /// Takes the client's lines as long as each is answered at once.
    fn advance(&mut self, number: u64) {
        if self.clients.get(&number).is_some_and(|client| client.speech == Speech::Http) {
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
                        running::line(&Err(Problem::usage(format!("A line has at most {LINE_MAX} bytes."))));
                }
                return;
            };
            let handed = client.handed.take();
            if let Some(reply) = self.command(number, &line, handed)
                && let Some(client) = self.clients.get_mut(&number)
            {
                client.output = running::line(&reply);
                if !client.send() {
                    self.clients.remove(&number);
                }
            }
        }
    }

    /// Answers a line, or begins what takes a while.
    fn command(&mut self, number: u64, line: &[u8], handed: Option<OwnedFd>) -> Option<Reply> {
        let (command, request) = match line::request(line) {
            Ok(asked) => asked,
            Err(message) => return Some(Err(Problem::usage(message))),
        };
        match &*command {
            "status" => return Some(fields(&self.running.status())),
            "stats" => return Some(fields(&self.running.sample())),
            _ => {}
        }
        if self.changing || self.stopping {
            let (what, hint) = match self.stopping {
                true => ("The volume is being closed.", None),
                false => ("Another change of the volume is under way.", Some("try again when it is done".to_owned())),
            };
            return Some(Err(Problem::Told(what.to_owned(), hint, crate::exit::Status::Busy).into()));
        }
        let (running, events) = (Arc::clone(&self.running), self.events.clone());
        let change = move || {
            let reply = running.change(&command, &request, handed);
            let closing = command == "close" && !running::is_deferred(&request) && reply.is_ok();
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
            client.output = running::line(&reply);
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

/// Whether root or this process's own user is at the other end.
fn is_trusted(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}
