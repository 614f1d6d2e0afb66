//! The end of a worker whose clients are at rest: it cancels their receives, and leaves their sockets behind.
//!
//! A receive that has bytes is not cancelled, and a client that is not at rest keeps the worker. So every byte of a
//! client is either read and answered here, or still in its socket.

use super::{Connection, Message, NbdFrontend};
use crate::nbd::handshake::Negotiated;
use crate::nbd::session::CountGuard;
use inlock_engine::ring::Wait;
use inlock_engine::worker::{Context, Flow};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time for receives to be cancelled. The kernel needs none; if it refuses, the worker goes on.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// When a worker ends because its clients are at rest.
pub(super) struct Rest {
    after: Duration,
    /// When clients were last served.
    since: Instant,
    /// When receives were cancelled, if they were.
    cancelled: Option<Instant>,
    clients: Vec<Resting>,
}

impl NbdFrontend {
    /// Has the worker stop when its clients have been at rest for so long.
    pub(in super::super) fn with_rest(self, after: Duration) -> Self {
        let rest = Rest { after, since: self.now, cancelled: None, clients: Vec::new() };
        Self { rest: Some(rest), ..self }
    }

    /// Takes the clients of a worker that has stopped because they are at rest.
    pub(in super::super) fn take_resting(&mut self) -> Vec<Resting> {
        self.rest.take().map(|rest| rest.clients).unwrap_or_default()
    }

    /// Ends the turn of a worker that stops when its clients are at rest.
    pub(super) fn end_turn_at_rest(&mut self, cx: &mut Context<'_>, wait: Wait) -> (Flow, Wait) {
        let (now, was_used) = (self.now, std::mem::take(&mut self.was_used));
        let Some(Rest { after, since, cancelled, .. }) = &mut self.rest else { return (Flow::Continue, wait) };
        let after = *after;
        if was_used && cancelled.is_none() {
            *since = now;
            // The last client has left; before the first one comes there are none either.
            let is_empty = !self.connections.is_empty() && self.connections.iter().all(Option::is_none);
            return if is_empty { (Flow::Stop, wait) } else { (Flow::Continue, at_most(wait, after)) };
        }
        let (since, cancelled) = (*since, *cancelled);
        if !self.is_at_rest() || cancelled.is_some_and(|at| now - at > CANCEL_LIMIT) {
            return (Flow::Continue, at_most(wait, self.stay(after)));
        }
        let is_receiving = |connection: &&Connection| connection.session.is_receiving();
        if !self.connections.iter().flatten().any(|connection| is_receiving(&connection)) && now - since >= after {
            return (self.leave(cx), wait);
        }
        if cancelled.is_some() {
            return (Flow::Continue, at_most(wait, CANCEL_LIMIT));
        }
        if now - since < after {
            return (Flow::Continue, at_most(wait, after - (now - since)));
        }
        let receiving = self.connections.iter().flatten().filter(is_receiving);
        receiving.for_each(|connection| cx.ring.cancel_receive(connection.file));
        self.rest.iter_mut().for_each(|rest| rest.cancelled = Some(now));
        (Flow::Continue, at_most(wait, CANCEL_LIMIT))
    }

    /// Whether nothing is in flight, queued, or read in part.
    fn is_at_rest(&self) -> bool {
        let queues = [&self.input_queue, &self.turn_queue, &self.send_queue];
        self.drain_until.is_none()
            && queues.iter().all(|queue| queue.is_empty())
            && self
                .connections
                .iter()
                .flatten()
                .all(|connection| !connection.is_dropped && connection.session.is_at_rest())
    }

    /// Goes on if receives were cancelled.
    pub(super) fn stay_if_leaving(&mut self) {
        if let Some(Rest { after, cancelled: Some(_), .. }) = self.rest {
            self.stay(after);
        }
    }

    /// Goes on, and receives again from clients whose receive was cancelled. Returns the time until the next attempt to
    /// rest.
    fn stay(&mut self, after: Duration) -> Duration {
        let now = self.now;
        let Some(rest) = &mut self.rest else { return after };
        rest.since = now;
        if rest.cancelled.take().is_some() {
            (0..self.connections.len() as u32).for_each(|index| self.schedule_input(index));
        }
        after
    }

    /// Receives again after a receive was cancelled, if the worker goes on after all.
    pub(super) fn receive_again(&mut self, index: u32) {
        if self.rest.as_ref().is_none_or(|rest| rest.cancelled.is_none()) {
            self.schedule_input(index);
        }
    }

    /// Takes the sockets out of the ring.
    fn leave(&mut self, cx: &mut Context<'_>) -> Flow {
        let Some(rest) = &mut self.rest else { return Flow::Continue };
        for Connection { file, session, live, .. } in self.connections.drain(..).flatten() {
            // No operation uses it, so this cannot fail.
            let Some(socket) = cx.ring.take_socket(file) else { continue };
            rest.clients.push(Resting { socket, negotiated: session.negotiated_result(), live });
        }
        Flow::Stop
    }
}

fn at_most(wait: Wait, limit: Duration) -> Wait {
    match wait {
        Wait::No => Wait::No,
        Wait::Until(other) => Wait::Until(other.min(limit)),
        Wait::Forever => Wait::Until(limit),
    }
}

/// A client at rest.
pub(in crate::nbd) struct Resting {
    pub(in crate::nbd) socket: OwnedFd,
    pub(in crate::nbd) negotiated: Negotiated,
    /// Among the connections of the export.
    pub(in crate::nbd) live: CountGuard,
}

impl Resting {
    /// Returns the client of a message that has one.
    pub(in crate::nbd) fn of(message: Message) -> Option<Self> {
        match message {
            Message::Adopt { socket, negotiated, live } => Some(Self { socket, negotiated, live }),
            Message::Accept(..) | Message::Drain => None,
        }
    }

    pub(in crate::nbd) fn into_message(self) -> Message {
        let Self { socket, negotiated, live } = self;
        Message::Adopt { socket, negotiated, live }
    }

    /// Returns whether the client has sent something, or `None` if it sends nothing more.
    pub(in crate::nbd) fn has_input(&self) -> Option<bool> {
        match rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok(_) => Some(true),
            Err(Errno::AGAIN | Errno::INTR) => Some(false),
            Err(_) => None,
        }
    }
}
