//! Steps of the driver that no server can bring about at will: points in time, and what each connection has.

use super::*;
use crate::options::StoreOptions;
use crate::uri::NbdUri;
use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
use inlock_frontend::nbd::handshake::ReplyStyle;
use inlock_frontend::nbd::link::Link;
use rustix::event::EventfdFlags;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

const SECOND: Duration = Duration::from_secs(1);

/// A driver without connections, and the ends of its server.
struct Scene {
    driver: Driver,
    peers: Vec<UnixStream>,
    now: Instant,
}

/// Passes what it is given to start to a channel.
struct Captured(Sender<Pending>);

impl AsyncStore for Captured {
    fn start(&self, pending: Pending) {
        self.0.send(pending).unwrap();
    }
    fn abort(&self) {}
}

/// Returns a request of a length of 4096 at an offset of the kind, and where its result comes.
fn job(kind: Kind, offset: u64, deadline: Instant) -> (Job, Receiver<Result<(), Errno>>) {
    let ((sender, started), (end, ended)) = (channel(), channel());
    std::thread::spawn(move || {
        let store = Captured(sender);
        let _ = end.send(match kind {
            Kind::Read => asynchronous::read_at(&store, &mut [0; 4096], offset).map(drop),
            Kind::Write { durable } => asynchronous::write_at(&store, &[1; 4096], offset, durable).map(drop),
            _ => asynchronous::sync(&store),
        });
    });
    (Job::of(started.recv().unwrap(), deadline).unwrap(), ended)
}

impl Scene {
    fn new(change: impl FnOnce(&mut StoreOptions)) -> Self {
        let mut options = StoreOptions::default();
        (options.connect_timeout, options.reconnect_delay) = (10 * SECOND, 60 * SECOND);
        change(&mut options);
        // No program listens there.
        let uri = NbdUri::parse("nbd+unix:///?socket=/nowhere/s").unwrap();
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let shared = Arc::new(Shared::new(uri, options, None, waker));
        // HAS_FLAGS, SEND_FLUSH.
        let facts = ExportFacts { size: 1 << 20, flags: 1 | 4, min_block: 1, max_payload: 1 << 20 };
        Self { driver: Driver::new(shared, facts, Vec::new()), peers: Vec::new(), now: Instant::now() }
    }

    /// Returns a connection over which these jobs were sent.
    fn line(&mut self, jobs: Vec<Job>) -> Line {
        let mut line = Line::new(self.dialed(), self.peers.len() as u64);
        jobs.into_iter().for_each(|job| line.queue(job));
        line.send().unwrap();
        line
    }

    fn dialed(&mut self) -> Dialed {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (link, facts) = (Link::new(std::os::fd::OwnedFd::from(ours), None), self.driver.facts);
        self.peers.push(theirs);
        Dialed { link, style: ReplyStyle::Simple, has_extents: false, facts, server: Vec::new() }
    }

    /// Gives up a connection with these jobs, as of now.
    fn give_up(&mut self, jobs: Vec<Job>) {
        let line = self.line(jobs);
        self.driver.given_up.push(line);
        self.driver.phase = Phase::Down { since: self.now, retry_at: self.now + SECOND, is_dialing: false };
    }

    fn waiting(&self) -> Vec<Kind> {
        self.driver.waiting.iter().map(|job| job.kind).collect()
    }
}

/// Runs something that ends at once unless it is broken.
fn in_time(what: impl FnOnce() + Send + 'static) {
    let (end, ended) = channel();
    std::thread::spawn(move || {
        what();
        let _ = end.send(());
    });
    assert!(ended.recv_timeout(120 * SECOND).is_ok(), "it does not end");
}

const WRITE: Kind = Kind::Write { durable: false };

/// One late request of a lost connection is enough: its caller waits for no other.
#[test]
fn drained_connection_with_one_late_request_gives_all_of_them_back() {
    for (late, is_mute) in [(None, false), (Some(0), true), (Some(1), true)] {
        let mut scene = Scene::new(|_| ());
        let now = scene.now + SECOND;
        let deadline = |n| if Some(n) == late { now } else { now + SECOND };
        let jobs = [(WRITE, 0), (WRITE, 1)].map(|(kind, n)| job(kind, n * 4096, deadline(n)).0);
        scene.give_up(jobs.into());
        scene.driver.drain(now);
        assert_eq!((scene.driver.given_up.len(), scene.driver.given_up[0].is_mute()), (1, is_mute), "{late:?}");
        assert_eq!(scene.waiting(), if is_mute { vec![WRITE; 2] } else { Vec::new() }, "{late:?}");
    }
}

/// A server that has only requests that change nothing is waited for no longer; one that has changes is.
#[test]
fn drained_connection_is_done_when_it_has_no_changes() {
    for (kinds, is_done) in [(&[Kind::Read][..], true), (&[Kind::Read, WRITE], false), (&[Kind::Flush], true)] {
        let mut scene = Scene::new(|_| ());
        let deadline = scene.now + 60 * SECOND;
        let jobs = kinds.iter().map(|kind| job(*kind, 0, deadline).0).collect();
        scene.give_up(jobs);
        scene.driver.drain(scene.now);
        assert_eq!(scene.driver.given_up.is_empty(), is_done, "{kinds:?}");
        assert_eq!(scene.waiting(), if is_done { kinds } else { &[] }, "{kinds:?}");
        // The end of the connection is the end of its changes.
        scene.peers.clear();
        scene.driver.drain(scene.now);
        assert!(scene.driver.given_up.is_empty() && scene.driver.waiting.iter().all(|job| !job.is_doubtful));
        assert_eq!(scene.waiting(), kinds, "{kinds:?}");
    }
}

/// Garbage on a lost connection: what the server has stays there, and its requests can be late.
#[test]
fn drained_connection_that_violates_the_protocol_gives_its_requests_back_and_is_kept() {
    let mut scene = Scene::new(|_| ());
    let (write, result) = job(WRITE, 0, scene.now + 60 * SECOND);
    scene.give_up(vec![write]);
    scene.peers[0].write_all(&[0xa5; 64]).unwrap();
    scene.driver.drain(scene.now);
    assert_eq!((scene.driver.given_up.len(), scene.waiting()), (1, vec![WRITE]));
    assert!(scene.driver.waiting[0].is_doubtful);
    // Its time is over: it may still be carried out.
    scene.driver.drain(scene.now + 10 * SECOND);
    assert_eq!((result.recv().unwrap(), scene.driver.durability.is_lost), (Err(Errno::IO), true));
}

/// When a server keeps a connection for too long, its changes fail, and the rest waits for another one.
#[test]
fn requests_that_change_nothing_outlive_the_time_of_a_drain() {
    let mut scene = Scene::new(|_| ());
    let deadline = scene.now + 60 * SECOND;
    let ((read, read_result), (write, write_result)) = (job(Kind::Read, 0, deadline), job(WRITE, 0, deadline));
    scene.give_up(vec![read, write]);
    // Of both limits, the shorter one.
    let over = scene.now + 10 * SECOND;
    scene.driver.drain(over - Duration::from_nanos(1));
    assert_eq!((scene.driver.given_up.len(), scene.waiting().len()), (1, 0));
    scene.driver.drain(over);
    assert!(scene.driver.given_up.is_empty() && scene.driver.durability.is_lost);
    assert_eq!((scene.waiting(), write_result.recv().unwrap()), (vec![Kind::Read], Err(Errno::IO)));
    assert!(read_result.try_recv().is_err(), "it has no result");
}

/// The first loss after a stable connection is made good at once, and the times between attempts double up to a second.
#[test]
fn attempts_to_connect_come_at_once_after_a_stable_connection_and_slow_down() {
    for (age, is_stable) in [(6, true), (0, false)] {
        let mut scene = Scene::new(|_| ());
        scene.driver.backoff = MAX_BACKOFF;
        scene.driver.connected_at = scene.now.checked_sub(age * SECOND).unwrap();
        scene.driver.lose(Broken::Closed);
        let Phase::Down { since, retry_at, is_dialing: false } = scene.driver.phase else { panic!("not down") };
        let (backoff, wait) = if is_stable { (MIN_BACKOFF, Duration::ZERO) } else { (MAX_BACKOFF, MAX_BACKOFF) };
        assert_eq!((scene.driver.backoff, retry_at - since), (backoff, wait), "{age} s");
    }
    let mut scene = Scene::new(|_| ());
    scene.driver.lose(Broken::Closed);
    let mut now = Instant::now();
    let mut waits = Vec::new();
    for _ in 0..7 {
        scene.driver.check_time(now);
        let Phase::Down { retry_at, is_dialing, .. } = &mut scene.driver.phase else { panic!("not down") };
        waits.push((*retry_at - now).as_millis());
        assert!(std::mem::take(is_dialing), "an attempt");
        now = *retry_at;
    }
    assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
    // Not before its time, nor while there is an attempt, nor while a server has changes of a lost connection.
    let early = now - Duration::from_nanos(1);
    let is_dialing = |scene: &Scene| matches!(scene.driver.phase, Phase::Down { is_dialing: true, .. });
    scene.driver.check_time(early);
    assert!(!is_dialing(&scene));
    let line = scene.line(vec![job(WRITE, 0, now + 60 * SECOND).0]);
    scene.driver.given_up.push(line);
    scene.driver.check_time(now);
    assert!(!is_dialing(&scene));
}

/// Requests fail at their deadline and not before, and those that are not late keep theirs.
#[test]
fn late_requests_fail_and_the_next_deadline_is_that_of_the_others() {
    let mut scene = Scene::new(|_| ());
    let (first, second) = (scene.now + SECOND, scene.now + 2 * SECOND);
    let ((late, late_result), (other, other_result)) = (job(Kind::Read, 0, first), job(Kind::Read, 0, second));
    scene.driver.waiting.extend([late, other]);
    scene.driver.next_deadline = Some(first);
    scene.driver.check_time(first - Duration::from_nanos(1));
    assert_eq!(scene.waiting().len(), 2);
    scene.driver.check_time(first);
    assert_eq!((late_result.recv().unwrap(), scene.waiting().len()), (Err(Errno::IO), 1));
    assert_eq!(scene.driver.next_deadline, Some(second));
    assert!(other_result.try_recv().is_err());
    // A request that a connection has is late, too, and loses the connection.
    let mut scene = Scene::new(|_| ());
    let line = scene.line(vec![job(Kind::Read, 0, first).0]);
    scene.driver.lines.push(line);
    scene.driver.next_deadline = Some(first);
    scene.driver.check_time(first);
    assert!(matches!(scene.driver.phase, Phase::Down { .. }) && scene.driver.lines.is_empty());
    assert_eq!(scene.driver.next_deadline, None);
}

/// A log that is dropped in the middle of a replay leaves nothing to go on with.
#[test]
fn replay_whose_log_is_given_up_ends_with_what_is_in_flight() {
    let mut scene = Scene::new(|options| options.replay = Some(StoreOptions::MIN_REPLAY));
    let log = scene.driver.log.as_mut().unwrap();
    (1..=3).for_each(|number| log.add(number, number * 4096, &[1; 4096]));
    let line = scene.line(Vec::new());
    scene.driver.lines.push(line);
    scene.driver.phase = Phase::Replaying { next: 0 };
    scene.driver.assign();
    assert!(matches!(scene.driver.phase, Phase::Replaying { next: 3 }));
    scene.driver.give_up_durability("a test");
    assert!(matches!(scene.driver.phase, Phase::Replaying { next: 0 }));
    scene.driver.assign();
    assert!(matches!(scene.driver.phase, Phase::Replaying { .. }), "three writes are in flight");
    assert_eq!(scene.driver.in_flight(), 3);
}

/// A connection that is lost because one of its requests is late is not listened to for the others.
#[test]
fn lost_connection_with_one_late_request_gives_all_of_them_back() {
    for (late, is_mute) in [(None, false), (Some(0), true), (Some(1), true)] {
        let mut scene = Scene::new(|_| ());
        let deadline = |n| if Some(n) == late { scene.now } else { scene.now + 600 * SECOND };
        let jobs = [0, 1].map(|n| job(WRITE, n * 4096, deadline(n)).0);
        let line = scene.line(jobs.into());
        scene.driver.lines.push(line);
        scene.driver.lose(Broken::Socket(Errno::TIMEDOUT));
        assert_eq!((scene.driver.given_up[0].is_mute(), scene.waiting().len()), (is_mute, if is_mute { 2 } else { 0 }));
    }
}

/// The thread wakes up for the first deadline of all.
#[test]
fn next_deadline_is_the_first_one() {
    let mut scene = Scene::new(|_| ());
    let line = scene.line(Vec::new());
    scene.driver.lines.push(line);
    let (early, late) = (scene.now + SECOND, scene.now + 2 * SECOND);
    for (deadline, expected) in [(late, late), (early, early), (late, early)] {
        scene.driver.queue(job(Kind::Read, 0, deadline).0);
        assert_eq!(scene.driver.next_deadline, Some(expected));
    }
    let mut scene = Scene::new(|_| ());
    for (deadline, expected) in [(late, late), (early, early), (late, early)] {
        scene.driver.shared.push(job(Kind::Read, 0, deadline).0);
        assert!(scene.driver.take_messages());
        assert_eq!(scene.driver.next_deadline, Some(expected));
    }
}

/// The thread sleeps no longer than until the end of a drain, or of the wait for a lost server, and a message wakes it.
#[test]
fn wait_ends_with_the_first_limit_or_a_message() {
    for has_given_up in [true, false] {
        in_time(move || {
            let mut scene = Scene::new(|options| options.reconnect_delay = 10 * SECOND);
            if has_given_up {
                scene.give_up(vec![job(WRITE, 0, scene.now + 600 * SECOND).0]);
            } else {
                scene.driver.waiting.push_back(job(Kind::Read, 0, scene.now + 600 * SECOND).0);
            }
            let (since, retry_at) = (scene.now.checked_sub(20 * SECOND).unwrap(), scene.now + 600 * SECOND);
            scene.driver.phase = Phase::Down { since, retry_at, is_dialing: true };
            scene.driver.wait_and_receive();
        });
    }
    in_time(|| {
        let mut scene = Scene::new(|_| ());
        scene.driver.shared.push(job(Kind::Read, 0, scene.now + 600 * SECOND).0);
        scene.driver.wait_and_receive();
        let mut polled = [PollFd::new(scene.driver.shared.waker(), PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        assert_eq!(ready, Ok(0), "the next wait would end at once, and the next as well");
    });
}

/// Requests that come when the thread has ended, and those that it had not taken, fail.
#[test]
fn thread_that_ends_leaves_no_request_without_a_result() {
    in_time(|| {
        let scene = Scene::new(|_| ());
        let shared = Arc::clone(&scene.driver.shared);
        let (before, before_result) = job(Kind::Read, 0, scene.now + 600 * SECOND);
        let (after, after_result) = job(Kind::Read, 0, scene.now + 600 * SECOND);
        shared.push(before);
        drop(scene);
        shared.push(after);
        assert!(before_result.recv().unwrap().is_err() && after_result.recv().unwrap().is_err());
    });
}

/// No request of a connection has the cookie of one of an earlier connection.
#[test]
fn connections_have_numbers_of_their_own() {
    let mut scene = Scene::new(|_| ());
    let mut cookies = std::collections::BTreeSet::new();
    for count in [1, 2, 1] {
        scene.driver.phase = Phase::Down { since: scene.now, retry_at: scene.now, is_dialing: true };
        let dialed = (0..count).map(|_| scene.dialed()).collect();
        scene.driver.connected(Ok(dialed));
        for n in 0..count {
            let line = &mut scene.driver.lines[n];
            line.queue(job(Kind::Read, 0, scene.now + 600 * SECOND).0);
            line.send().unwrap();
            let mut request = [0; 28];
            let at = scene.peers.len() - count + n;
            scene.peers[at].read_exact(&mut request).unwrap();
            assert!(cookies.insert(request[8..16].to_vec()), "a cookie comes twice");
        }
    }
}

/// After an abort, or a server with another export, nothing begins again.
#[test]
fn ended_driver_stays_so() {
    for is_refused in [true, false] {
        let mut scene = Scene::new(|_| ());
        scene.give_up(vec![job(WRITE, 0, scene.now + 600 * SECOND).0]);
        let (waiting, result) = job(Kind::Read, 0, scene.now + 600 * SECOND);
        scene.driver.waiting.push_back(waiting);
        if is_refused {
            scene.driver.refuse("a test")
        } else {
            scene.driver.end()
        }
        assert_eq!((result.recv().unwrap(), scene.driver.given_up.len()), (Err(Errno::IO), 0));
        scene.driver.check_time(scene.now + 600 * SECOND);
        let dialed = vec![scene.dialed()];
        scene.driver.connected(Ok(dialed));
        assert!(matches!(scene.driver.phase, Phase::Ended) && scene.driver.lines.is_empty());
    }
}

/// A connection takes as many requests as it has places for, and no more.
#[test]
fn full_connection_is_given_no_request() {
    let mut scene = Scene::new(|_| ());
    let line = scene.line(Vec::new());
    scene.driver.lines.push(line);
    for _ in 0..SLOTS {
        assert!(scene.driver.free_line().is_some());
        scene.driver.queue(Job::new(Kind::Flush, Owner::Store, 0, 0, scene.now));
    }
    assert!(scene.driver.free_line().is_none());
}

/// Each event after which nothing is promised any longer is told, and no other is told with it.
#[test]
fn loss_of_durability_is_reported_once() {
    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let scene =
        || Scene::new(|options| options.notify = Some(|_, event| EVENTS.lock().unwrap().push(event.to_owned())));
    let events = || std::mem::take(&mut *EVENTS.lock().unwrap());
    let mut lost = scene();
    lost.driver.durability.acknowledged = 1;
    (0..2).for_each(|_| lost.driver.lose(Broken::Closed));
    let closed = "the server closed the connection; connecting again";
    let unflushed = "writes since the last flush may be lost: every flush fails from now on";
    assert_eq!(events(), [closed, unflushed, closed]);
    let mut failed = scene();
    (0..2).for_each(|_| failed.driver.flushed(Job::new(Kind::Flush, Owner::Store, 0, 0, failed.now), Err(Errno::IO)));
    assert_eq!(events(), ["a flush failed: every flush fails from now on"]);
    scene().driver.refuse("another export");
    assert_eq!(events(), ["another export: every request fails from now on"]);
}

/// A late query of extents ends with its reply, and is looked at no more.
#[test]
fn late_query_of_extents_neither_loses_its_connection_nor_wakes_the_thread() {
    let mut scene = Scene::new(|_| ());
    let deadline = scene.now + SECOND;
    let (sender, _receiver) = channel();
    let line = scene.line(vec![Job::new(Kind::Extents, Owner::Query(sender), 0, 4096, deadline)]);
    scene.driver.lines.push(line);
    scene.driver.next_deadline = Some(deadline);
    scene.driver.check_time(deadline);
    assert!(matches!(scene.driver.phase, Phase::Up));
    assert_eq!((scene.driver.in_flight(), scene.driver.next_deadline), (1, None));
}

#[test]
fn requests_wait_for_a_lost_server_until_the_delay_is_over() {
    let mut scene = Scene::new(|_| ());
    let (waiting, result) = job(Kind::Read, 0, scene.now + 600 * SECOND);
    scene.driver.waiting.push_back(waiting);
    scene.driver.phase = Phase::Down { since: scene.now, retry_at: scene.now, is_dialing: true };
    scene.driver.check_time(scene.now + 60 * SECOND - Duration::from_nanos(1));
    assert_eq!(scene.waiting(), [Kind::Read]);
    scene.driver.check_time(scene.now + 60 * SECOND);
    assert_eq!(scene.waiting(), []);
    assert_eq!(result.recv().unwrap(), Err(Errno::IO));
}

#[test]
fn extents_are_asked_for_if_all_new_connections_have_them() {
    for has_extents in [[true, true], [true, false], [false, true], [false, false]] {
        let mut scene = Scene::new(|_| ());
        let expected = has_extents == [true, true];
        scene.driver.shared.set_extents(!expected);
        scene.driver.phase = Phase::Down { since: scene.now, retry_at: scene.now, is_dialing: true };
        let dialed = has_extents.map(|has_extents| Dialed { has_extents, ..scene.dialed() });
        scene.driver.connected(Ok(dialed.into()));
        assert_eq!(scene.driver.shared.has_extents(), expected, "{has_extents:?}");
    }
}

/// Requests of the store's own begin again by themselves, and no caller waits for a query.
#[test]
fn only_requests_of_the_engine_are_made_again() {
    let mut scene = Scene::new(|_| ());
    let deadline = scene.now + SECOND;
    let entry = Arc::new(crate::replay::Entry { number: 1, offset: 0, data: [1; 4096].into() });
    let own = [
        Job::new(Kind::Flush, Owner::Store, 0, 0, deadline),
        Job::new(WRITE, Owner::Replay(entry), 0, 4096, deadline),
        Job::new(Kind::Extents, Owner::Query(channel().0), 0, 4096, deadline),
    ];
    scene.driver.make_again(own.into_iter().chain([job(Kind::Read, 0, deadline).0]));
    assert_eq!(scene.waiting(), [Kind::Read]);
}

#[test]
fn requests_of_several_connections_are_made_again_in_the_order_of_their_sending() {
    let mut scene = Scene::new(|_| ());
    for _ in 0..2 {
        let line = scene.line(Vec::new());
        scene.driver.lines.push(line);
    }
    let offsets = [0, 1, 2, 3].map(|n| n * 4096);
    offsets.iter().for_each(|offset| scene.driver.queue(job(Kind::Read, *offset, scene.now + 600 * SECOND).0));
    assert_eq!(scene.driver.lines.iter().map(Line::in_flight).collect::<Vec<_>>(), [2, 2]);
    scene.driver.lose(Broken::Closed);
    assert_eq!(scene.driver.waiting.iter().map(|job| job.offset).collect::<Vec<_>>(), offsets);
}

#[test]
fn requests_are_cut_to_the_export_and_to_the_longest_payload() {
    let mut scene = Scene::new(|_| ());
    let size = scene.driver.facts.size;
    for (offset, max_payload, len) in
        [(0, 1 << 20, 4096), (0, 1000, 1000), (size - 100, 1 << 20, 100), (size - 9, 5, 5)]
    {
        scene.driver.facts.max_payload = max_payload;
        for kind in [Kind::Read, WRITE] {
            let prepared = scene.driver.prepare(job(kind, offset, scene.now + SECOND).0);
            let Prepared::Send(job) = prepared else { panic!("it is not sent") };
            assert_eq!((job.offset, job.len), (offset, len), "{kind:?}");
        }
    }
}
