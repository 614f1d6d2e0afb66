//! The store's thread: hands jobs to connections, keeps time, connects again, and keeps account of what is durable.
//!
//! A write counts as lost when it was acknowledged, no flush that began later has succeeded, and the connection is
//! gone: the server may have been another process since. Then no flush succeeds any longer, unless the replay log has
//! the write.

use crate::dial::Dialed;
use crate::error::OpenError;
use crate::job::{Job, Kind, Owner};
use crate::line::{Broken, Ended, Line, SLOTS};
use crate::options::ExportFacts;
use crate::replay::ReplayLog;
use crate::shared::Shared;
use inlock_engine::Errno;
use inlock_frontend::nbd::protocol::transmission_flag;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wait before the second attempt to connect; it doubles up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// A connection of this age is no part of a series of failures.
const STABLE: Duration = Duration::from_secs(5);
/// Longest range of one TRIM in bytes: a multiple of every block size that fits a compact header.
const MAX_TRIM: u64 = 1 << 30;
/// Queries of extents in flight: a server that leaves them unanswered has slots for other requests.
const MAX_QUERIES: usize = 8;

/// State of the connections.
enum Phase {
    Up,
    /// Writes are made again; so many of the log's were begun.
    Replaying {
        next: usize,
    },
    Down {
        since: Instant,
        retry_at: Instant,
        is_dialing: bool,
    },
    /// No request succeeds any longer.
    Ended,
}

/// Account of what is durable.
#[derive(Default)]
struct Durability {
    /// Number of acknowledged writes that only a flush makes durable.
    acknowledged: u64,
    /// How many of them a flush has made durable.
    flushed: u64,
    /// Whether some were lost: no flush succeeds.
    is_lost: bool,
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    facts: ExportFacts,
    lines: Vec<Line>,
    /// Number of connections so far.
    connections: u64,
    /// Connections that were given up while the server had changes of theirs. None is made again before the server
    /// has replied to the old ones or closed the connection.
    given_up: Vec<Line>,
    /// Jobs that are not with a connection, in order.
    waiting: VecDeque<Job>,
    phase: Phase,
    durability: Durability,
    log: Option<ReplayLog>,
    /// Bytes of writes in flight.
    writing: u64,
    /// Whether a flush of the store's own is in flight.
    is_flushing: bool,
    /// No job expires before this.
    next_deadline: Option<Instant>,
    backoff: Duration,
    connected_at: Instant,
    next_number: u64,
    ended: Vec<Ended>,
}

/// Next step of a job that is about to be sent.
enum Prepared {
    Send(Job),
    /// It waits, and so does everything behind it.
    Hold(Job),
    /// Something of the store's own was sent before it.
    Again(Job),
    Ended,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, facts: ExportFacts, dialed: Vec<Dialed>) -> Self {
        let connections = dialed.len() as u64;
        Self {
            facts,
            lines: (0..).zip(dialed).map(|(number, dialed)| Line::new(dialed, number)).collect(),
            connections,
            given_up: Vec::new(),
            waiting: VecDeque::new(),
            phase: Phase::Up,
            durability: Durability::default(),
            // Without flushes nothing would ever leave it.
            log: shared.options.replay.filter(|_| facts.has_flag(transmission_flag::SEND_FLUSH)).map(ReplayLog::new),
            writing: 0,
            is_flushing: false,
            next_deadline: None,
            backoff: MIN_BACKOFF,
            connected_at: Instant::now(),
            next_number: 1,
            ended: Vec::with_capacity(SLOTS),
            shared,
        }
    }

    /// Runs until the store is closed.
    pub(crate) fn run(mut self) {
        while self.take_messages() {
            self.check_time(Instant::now());
            self.assign();
            let broken = self.lines.iter_mut().find_map(|line| line.send().err());
            if let Some(broken) = broken {
                self.lose(broken);
                continue;
            }
            self.wait_and_receive();
            self.settle();
        }
        self.lines.iter_mut().for_each(Line::say_goodbye);
    }

    /// Takes new jobs and messages. Returns whether to go on.
    fn take_messages(&mut self) -> bool {
        let mut inbox = self.shared.inbox();
        if let Some(first) = inbox.jobs.front() {
            self.next_deadline = Some(self.next_deadline.map_or(first.deadline, |next| next.min(first.deadline)));
            self.waiting.append(&mut inbox.jobs);
        }
        let (dialed, aborted, closed) = (inbox.dialed.take(), inbox.aborted, inbox.closed);
        drop(inbox);
        if aborted && !matches!(self.phase, Phase::Ended) {
            self.end();
        }
        if let Some(dialed) = dialed {
            self.connected(dialed);
        }
        if matches!(self.phase, Phase::Ended) {
            self.fail_waiting();
        }
        !closed
    }

    /// Fails everything, now and later.
    fn end(&mut self) {
        self.phase = Phase::Ended;
        // Dropped jobs have failed.
        self.lines.clear();
        self.given_up.clear();
        self.fail_waiting();
    }

    fn fail_waiting(&mut self) {
        self.waiting.drain(..).for_each(|job| job.complete(Err(Errno::IO)));
    }

    /// Fails the jobs whose time is over, and connects again.
    fn check_time(&mut self, now: Instant) {
        self.drain(now);
        if self.next_deadline.is_some_and(|next| next <= now) {
            let is_late = |job: &Job| job.deadline <= now;
            let stalled = |job: &Job| is_late(job) && job.kind != Kind::Extents;
            if self.lines.iter().flat_map(Line::jobs).any(stalled) {
                // The request may still be carried out, but not over a connection that is used afterwards.
                self.lose(Broken::Socket(Errno::TIMEDOUT));
            }
            let (late, rest) = std::mem::take(&mut self.waiting).into_iter().partition(is_late);
            self.waiting = rest;
            let late: VecDeque<Job> = late;
            late.into_iter().for_each(|job| job.complete(Err(Errno::IO)));
            // No caller waits for a late query of extents. It ends with its reply.
            let lines = self.lines.iter().chain(&self.given_up);
            let jobs = self.waiting.iter().chain(lines.flat_map(Line::jobs));
            self.next_deadline = jobs.map(|job| job.deadline).filter(|deadline| *deadline > now).min();
        }
        if let Phase::Down { since, retry_at, is_dialing } = &mut self.phase {
            if !*is_dialing && *retry_at <= now && self.given_up.is_empty() {
                *is_dialing = true;
                *retry_at = now + self.backoff;
                self.backoff = (2 * self.backoff).min(MAX_BACKOFF);
                self.shared.connect();
            }
            if now.saturating_duration_since(*since) >= self.shared.options.reconnect_delay {
                self.fail_waiting();
            }
        }
    }

    /// Handles the end of an attempt to connect.
    fn connected(&mut self, dialed: Result<Vec<Dialed>, OpenError>) {
        let Phase::Down { is_dialing, .. } = &mut self.phase else { return };
        *is_dialing = false;
        let dialed = match dialed {
            Ok(dialed) => dialed,
            Err(OpenError::Changed(reason)) => return self.refuse(reason),
            // Another attempt follows.
            Err(_) => return,
        };
        if let Some(reason) = dialed.iter().find_map(|dialed| self.facts.difference(&dialed.facts)) {
            return self.refuse(reason);
        }
        self.shared.notify("connected again");
        self.connected_at = Instant::now();
        self.shared.set_extents(dialed.iter().all(|dialed| dialed.has_extents));
        self.lines = (self.connections..).zip(dialed).map(|(number, dialed)| Line::new(dialed, number)).collect();
        self.connections += self.lines.len() as u64;
        let has_writes = self.log.as_ref().is_some_and(|log| log.len() > 0);
        self.phase = if has_writes { Phase::Replaying { next: 0 } } else { Phase::Up };
    }

    /// Gives up a server that has another export than before.
    fn refuse(&mut self, reason: &str) {
        self.shared.notify(&format!("{reason}: every request fails from now on"));
        self.durability.is_lost = true;
        self.end();
    }

    /// Gives up the connections. What they had in flight waits for new ones.
    fn lose(&mut self, broken: Broken) {
        let now = Instant::now();
        self.shared.notify(&format!("{broken}; connecting again"));
        let unflushed = self.durability.acknowledged > self.durability.flushed;
        if unflushed && self.log.is_none() && !self.durability.is_lost {
            self.durability.is_lost = true;
            self.shared.notify("writes since the last flush may be lost: every flush fails from now on");
        }
        for mut line in std::mem::take(&mut self.lines) {
            if !line.has_changes() {
                self.make_again(line.take_jobs());
                continue;
            }
            if line.is_mute() || line.jobs().any(|job| job.deadline <= now) {
                self.mute(&mut line);
            }
            self.given_up.push(line);
        }
        (self.writing, self.is_flushing) = (0, false);
        if self.connected_at.elapsed() >= STABLE {
            self.backoff = MIN_BACKOFF;
        }
        let retry_at = now + if self.backoff == MIN_BACKOFF { Duration::ZERO } else { self.backoff };
        self.phase = Phase::Down { since: now, retry_at, is_dialing: false };
    }

    /// Lets jobs of lost connections wait for new ones, in the order of their first sending. Those of the store's own
    /// begin again by themselves.
    fn make_again(&mut self, lost: impl Iterator<Item = Job>) {
        let lost = lost.filter(|job| matches!(job.owner, Owner::Engine(_)) && job.kind != Kind::Extents);
        self.waiting.extend(lost);
        self.waiting.make_contiguous().sort_by_key(|job| if job.number == 0 { u64::MAX } else { job.number });
    }

    /// Listens on a connection that is given up only for its end. Its jobs wait, and can be late.
    fn mute(&mut self, line: &mut Line) {
        line.shut_down();
        self.make_again(line.take_jobs());
    }

    /// Receives on the connections that were given up, until the server is done with the changes of each. One that
    /// keeps them for too long may carry them out after later ones: they fail, and no flush promises anything.
    fn drain(&mut self, now: Instant) {
        let Phase::Down { since, .. } = self.phase else { return };
        let is_over = now >= since + self.drain_time();
        for mut line in std::mem::take(&mut self.given_up) {
            let mut ended = Vec::new();
            let mut is_done = line.drain(&mut ended);
            // They are made again all the same: what they did has no part in the account of what is durable.
            self.make_again(ended.into_iter().map(|ended| ended.job));
            is_done |= !line.is_mute() && !line.has_changes();
            if is_done {
                let jobs: Vec<Job> = line.take_jobs().collect();
                self.make_again(jobs.into_iter());
                continue;
            }
            if is_over || line.is_mute() || line.jobs().any(|job| job.deadline <= now) {
                self.mute(&mut line);
            }
            self.given_up.push(line);
        }
        if self.given_up.is_empty() {
            // The server is done with them.
            self.waiting.iter_mut().for_each(|job| job.is_doubtful = false);
        } else if is_over {
            self.given_up.clear();
            // Dropped jobs have failed.
            self.waiting.retain(|job| !job.is_doubtful);
            self.give_up_durability("the server keeps a lost connection open, and may still carry out its writes");
        }
    }

    /// Returns the longest time for which the server may keep a connection that was given up.
    fn drain_time(&self) -> Duration {
        self.shared.options.connect_timeout.min(self.shared.options.reconnect_delay)
    }

    /// Hands jobs to the connections as long as there is room.
    fn assign(&mut self) {
        if !matches!(self.phase, Phase::Up) {
            // A worker waits for each of them.
            self.waiting.retain(|job| job.kind != Kind::Extents);
        }
        match self.phase {
            Phase::Up => {}
            Phase::Replaying { next } => return self.assign_replay(next),
            Phase::Down { .. } | Phase::Ended => return,
        }
        while self.free_line().is_some()
            && let Some(job) = self.waiting.pop_front()
        {
            match self.prepare(job) {
                Prepared::Send(job) => self.queue(job),
                Prepared::Ended => {}
                Prepared::Hold(job) => return self.waiting.push_front(job),
                Prepared::Again(job) => self.waiting.push_front(job),
            }
        }
    }

    /// Makes the writes of the log again, in their order where they overlap.
    fn assign_replay(&mut self, mut next: usize) {
        let deadline = Instant::now() + self.shared.options.store_timeout;
        while self.free_line().is_some()
            && let Some(entry) = self.log.as_ref().and_then(|log| log.get(next)).map(Arc::clone)
        {
            let (offset, len) = (entry.offset, entry.data.len() as u64);
            if self.is_being_written(offset, len) {
                break;
            }
            self.queue(Job::new(Kind::Write { durable: false }, Owner::Replay(entry), offset, len, deadline));
            next += 1;
        }
        let is_done = next >= self.log.as_ref().map_or(0, ReplayLog::len) && self.in_flight() == 0;
        self.phase = if is_done { Phase::Up } else { Phase::Replaying { next } };
        if is_done {
            if !self.durability.is_lost {
                self.shared.notify("writes since the last flush were made again");
            }
            self.assign();
        }
    }

    fn in_flight(&self) -> usize {
        self.lines.iter().map(Line::in_flight).sum()
    }

    /// Returns whether a write in flight shares bytes with the range.
    fn is_being_written(&self, offset: u64, len: u64) -> bool {
        self.lines.iter().flat_map(Line::jobs).any(|job| job.is_write() && job.is_overlapping(offset, len))
    }

    /// Returns the connection with the fewest requests, if it has room for one.
    fn free_line(&mut self) -> Option<&mut Line> {
        self.lines.iter_mut().min_by_key(|line| line.in_flight()).filter(|line| line.in_flight() < SLOTS)
    }

    fn queue(&mut self, mut job: Job) {
        if job.number == 0 {
            job.number = self.next_number;
            self.next_number += 1;
        }
        if job.is_write() {
            self.writing += job.len;
        }
        self.next_deadline = Some(self.next_deadline.map_or(job.deadline, |next| next.min(job.deadline)));
        if let Some(line) = self.free_line() {
            line.queue(job);
        }
    }

    /// Returns whether the server may be asked for extents now.
    fn can_query(&self) -> bool {
        let queries = self.lines.iter().flat_map(Line::jobs).filter(|job| job.kind == Kind::Extents).count();
        self.shared.has_extents() && queries < MAX_QUERIES
    }

    /// Checks a job against the export, and fits it into one request.
    fn prepare(&mut self, mut job: Job) -> Prepared {
        let (size, block) = (self.facts.size, u64::from(self.facts.min_block));
        let ended = |job: Job, result| {
            job.complete(result);
            Prepared::Ended
        };
        match job.kind {
            Kind::Flush if self.durability.is_lost => return ended(job, Err(Errno::IO)),
            Kind::Flush if !self.facts.has_flag(transmission_flag::SEND_FLUSH) => return ended(job, Ok(())),
            Kind::Flush => {
                job.covered = self.durability.acknowledged;
                return Prepared::Send(job);
            }
            // A dropped query has no answer, at once.
            Kind::Extents if !self.can_query() => return Prepared::Ended,
            Kind::Extents => return Prepared::Send(job),
            Kind::Write { .. } | Kind::Discard if self.facts.is_read_only() => return ended(job, Err(Errno::ROFS)),
            Kind::Write { durable: true } if !self.facts.has_flag(transmission_flag::SEND_FUA) => {
                return ended(job, Err(Errno::OPNOTSUPP));
            }
            Kind::Write { .. } if job.offset >= size => return ended(job, Err(Errno::NOSPC)),
            Kind::Discard if !self.facts.has_flag(transmission_flag::SEND_TRIM) => {
                return ended(job, Err(Errno::OPNOTSUPP));
            }
            Kind::Discard => {
                // Whole blocks: the rest stays as it is.
                let start = job.offset.checked_next_multiple_of(block).unwrap_or(size);
                let end = job.end.min(size) / block * block;
                (job.offset, job.len) = (start, end.saturating_sub(start).min(MAX_TRIM));
                return if job.len == 0 { ended(job, Ok(())) } else { Prepared::Send(job) };
            }
            Kind::Read | Kind::Write { .. } => {}
        }
        job.len = job.len.min(size.saturating_sub(job.offset)).min(self.facts.max_payload.into());
        let is_whole = job.offset.is_multiple_of(block) && job.len.is_multiple_of(block);
        match job.kind {
            _ if job.len == 0 => ended(job, Ok(())),
            _ if !is_whole => ended(job, Err(Errno::INVAL)),
            Kind::Write { .. } => self.prepare_write(job),
            _ => Prepared::Send(job),
        }
    }

    /// Holds a write back as long as the replay log has no room for it, or it overlaps with one in flight, whose order
    /// the log would not know.
    fn prepare_write(&mut self, mut job: Job) -> Prepared {
        let Some(log) = &self.log else { return Prepared::Send(job) };
        let is_durable = job.kind == Kind::Write { durable: true };
        if is_durable && log.has_overlap(job.offset, job.len) && !self.durability.is_lost {
            // A replay would put the older write over one that is promised.
            self.flush_log();
            return Prepared::Hold(job);
        }
        if log.bytes() > log.limit / 2 && !self.is_flushing && !self.durability.is_lost {
            // Before it is full, and reads wait too.
            self.flush_log();
            return Prepared::Again(job);
        }
        let held = log.bytes() + self.writing;
        if held == 0 {
            job.len = job.len.min(log.limit / u64::from(self.facts.min_block) * u64::from(self.facts.min_block));
            return Prepared::Send(job);
        }
        if held + job.len <= log.limit {
            let is_free = !self.is_being_written(job.offset, job.len);
            return if is_free { Prepared::Send(job) } else { Prepared::Hold(job) };
        }
        if self.durability.is_lost {
            // Nothing is promised any longer.
            return Prepared::Send(job);
        }
        self.flush_log();
        Prepared::Hold(job)
    }

    /// Begins a flush of the store's own that empties the log, unless one is in flight.
    fn flush_log(&mut self) {
        let has_writes = self.log.as_ref().is_some_and(|log| log.len() > 0);
        if has_writes && !self.is_flushing {
            self.is_flushing = true;
            let deadline = Instant::now() + self.shared.options.store_timeout;
            let mut flush = Job::new(Kind::Flush, Owner::Store, 0, 0, deadline);
            flush.covered = self.durability.acknowledged;
            self.queue(flush);
        }
    }

    /// Waits for sockets, messages and time, and receives replies.
    fn wait_and_receive(&mut self) {
        let now = Instant::now();
        let reconnect = match self.phase {
            Phase::Down { since, .. } if !self.given_up.is_empty() => Some(since + self.drain_time()),
            Phase::Down { retry_at, is_dialing: false, .. } => Some(retry_at),
            _ => None,
        };
        let failing = match self.phase {
            Phase::Down { since, .. } if !self.waiting.is_empty() => Some(since + self.shared.options.reconnect_delay),
            _ => None,
        };
        let next = [self.next_deadline, reconnect, failing].into_iter().flatten().min();
        let timeout = next.map(|next| next.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut polled = Vec::with_capacity(1 + self.lines.len() + self.given_up.len());
        polled.push(PollFd::new(self.shared.waker(), PollFlags::IN));
        for line in &self.lines {
            let send = if line.has_outgoing() { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::from_borrowed_fd(line.socket(), PollFlags::IN | send));
        }
        // `drain` receives from them.
        polled.extend(self.given_up.iter().map(|line| {
            let send = if line.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(line.socket(), PollFlags::IN | send)
        }));
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let is_readable = |polled: &PollFd<'_>| polled.revents().intersects(!PollFlags::OUT);
        let readable: u64 = polled.iter().enumerate().map(|(i, polled)| u64::from(is_readable(polled)) << i).sum();
        drop(polled);
        if readable & 1 != 0 {
            self.shared.clear_waker();
        }
        let mut broken = None;
        for (index, line) in self.lines.iter_mut().enumerate() {
            if readable >> (index + 1) & 1 != 0 {
                broken = line.receive(&mut self.ended).err().or(broken);
            }
        }
        if let Some(broken) = broken {
            // What has a reply has it.
            self.settle();
            if !matches!(self.phase, Phase::Down { .. }) {
                self.lose(broken);
            }
        }
    }

    /// Ends the jobs that have their replies.
    fn settle(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        let mut is_closing = false;
        for Ended { job, result } in ended.drain(..) {
            if job.is_write() {
                self.writing = self.writing.saturating_sub(job.len);
            }
            if result == Err(Errno::SHUTDOWN) {
                // The server is about to end: as if the connection had been lost already.
                is_closing = true;
                self.make_again(std::iter::once(job));
                continue;
            }
            match (job.kind, result) {
                (Kind::Write { durable }, Ok(_)) => self.written(job, durable),
                (Kind::Write { .. }, Err(_)) if matches!(job.owner, Owner::Replay(_)) => self.replay_failed(),
                (Kind::Flush, result) => self.flushed(job, result.map(drop)),
                (Kind::Discard, Ok(_)) if job.offset + job.len < job.end => {
                    let mut rest = job;
                    rest.offset += rest.len;
                    self.waiting.push_front(rest);
                }
                (Kind::Extents, Ok(Some(extent))) => {
                    if let Owner::Query(caller) = job.owner {
                        // The caller may have given up.
                        let _ = caller.send(extent);
                    }
                }
                (_, result) => job.complete(result.map(drop)),
            }
        }
        self.ended = ended;
        if is_closing && !matches!(self.phase, Phase::Down { .. }) {
            self.lose(Broken::Closed);
        }
    }

    /// Counts an acknowledged write, and keeps it for a replay.
    fn written(&mut self, job: Job, durable: bool) {
        if matches!(job.owner, Owner::Replay(_)) {
            return;
        }
        match &mut self.log {
            // The server has it, and no write in the log is older and shares bytes with it.
            _ if durable => {}
            Some(log) if !self.durability.is_lost => {
                self.durability.acknowledged += 1;
                log.add(self.durability.acknowledged, job.offset, job.payload());
            }
            _ => self.durability.acknowledged += 1,
        }
        job.complete(Ok(()));
    }

    fn flushed(&mut self, job: Job, result: Result<(), Errno>) {
        if matches!(job.owner, Owner::Store) {
            self.is_flushing = false;
        }
        match result {
            Ok(()) => {
                self.durability.flushed = self.durability.flushed.max(job.covered);
                let flushed = self.durability.flushed;
                self.log.iter_mut().for_each(|log| log.trim(flushed));
            }
            Err(_) => self.give_up_durability("a flush failed"),
        }
        // Between its sending and now the connection, and with it a write, may not have been lost: it has a reply.
        job.complete(result);
    }

    fn replay_failed(&mut self) {
        self.give_up_durability("a write since the last flush could not be made again");
    }

    fn give_up_durability(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.durability.is_lost, true) {
            self.shared.notify(&format!("{reason}: every flush fails from now on"));
        }
        self.log.iter_mut().for_each(ReplayLog::clear);
        if let Phase::Replaying { next } = &mut self.phase {
            *next = 0;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Also after a panic: no later job waits for this thread.
        let mut inbox = self.shared.inbox();
        inbox.closed = true;
        inbox.jobs.clear();
    }
}

#[cfg(test)]
mod tests;
