//! The store as the engine uses it, and its threads.
//!
//! Threads of the engine start operations. `inlock-rbd` waits for librbd's event descriptor, takes completions, and
//! fails operations whose time is over. `inlock-rbd-query` makes the calls of librbd that block: extents, and the
//! image's length after another client has changed it.

use crate::error::OpenError;
use crate::ffi::{Operations, is};
use crate::name::RbdName;
use crate::open::Opening;
use crate::options::{ImageFacts, StoreOptions};
use inlock_engine::store::StoreOperation;
use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
use inlock_engine::store::gathered;
use inlock_engine::{BackingStore, BlockStatus, Errno, Geometry, StoreProfile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno as Number;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which operations and the image's length are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the cluster is asked for the image's lock.
const LOCK_INTERVAL: Duration = Duration::from_secs(5);
/// Time beyond that of librados, which fails operations by itself.
const GRACE: Duration = Duration::from_secs(2);
/// Longest time that counts: a year.
const MAX_TIME: Duration = Duration::from_secs(365 * 86_400);
/// Longest time for closing an image that every operation fails on.
const GONE_CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for extents, which a worker may ask for. Without an answer the range counts as allocated.
const EXTENTS_TIMEOUT: Duration = Duration::from_secs(1);
/// Queries of extents that wait.
const MAX_QUERIES: usize = 8;
/// Longest range of one query of extents, in bytes. librbd asks for each object in it.
const MAX_QUERY: u64 = 256 << 20;
/// Longest range of one discard, in bytes; longer ones are made piece by piece.
const MAX_DISCARD: u64 = 1 << 30;
/// Longest read or write of a caller that blocks, in bytes.
const MAX_CALL: usize = 1 << 20;

const REFUSED: &str = "the cluster no longer accepts this client, since another one has taken the image's lock";
const UNLOCKED: &str = "another client has the image's lock";
const IMAGE_REMOVED: &str = "the image or its pool has been removed";
const POOL_REMOVED: &str = "the pool of the image has been removed";
const LATE: &str = "an operation did not end in time; every operation fails from now on";
const ABORTED: &str = "requests are failed, as asked for";

/// A range to look for extents in, and where the answer goes.
struct Query {
    offset: u64,
    len: u64,
    reply: Sender<Result<BlockStatus, Errno>>,
}

/// State that the store shares with its threads.
struct Shared {
    operations: Operations,
    name: RbdName,
    notify: Option<fn(&str, &str)>,
    limit: Duration,
    is_locked: bool,
    size: AtomicU64,
    /// Every operation fails from now on.
    is_gone: AtomicBool,
    is_closing: AtomicBool,
    /// Whether queries of extents are answered in time.
    has_extents: AtomicBool,
}

/// An image of Ceph RBD.
///
/// Clones of its `Arc` share the client of the cluster. Dropping the last one closes the image, and frees its lock.
pub struct RbdStore {
    /// `None` while it is dropped.
    shared: Option<Arc<Shared>>,
    queries: Option<SyncSender<Query>>,
    /// Disconnected when the threads have ended, and the image is closed.
    ended: Mutex<Receiver<()>>,
    name: RbdName,
    facts: ImageFacts,
    read_only: bool,
    close_limit: Duration,
}

impl RbdStore {
    /// Connects to the cluster, opens the image, and locks it unless `read_only`. Blocks, at most as long as the
    /// options allow.
    ///
    /// # Errors
    ///
    /// Ceph's libraries are missing, the cluster cannot be reached or refuses, or has no such image; another client has
    /// locked the image.
    pub fn open(name: &RbdName, options: &StoreOptions, read_only: bool) -> Result<Self, OpenError> {
        let mut options = options.clone();
        for time in [&mut options.connect_timeout, &mut options.store_timeout] {
            // Points in time are computed from it.
            *time = (*time).min(MAX_TIME);
        }
        let read_only = read_only || name.snapshot.is_some();
        let (sender, receiver) = channel();
        let (opened_name, opened_options) = (name.clone(), options.clone());
        let given_up = Arc::new(AtomicBool::new(false));
        let is_given_up = Arc::clone(&given_up);
        // librbd waits for a storage daemon that is down as long as for any operation.
        std::thread::Builder::new()
            .name("inlock-dial".to_owned())
            .spawn(move || {
                let opening =
                    Opening { name: &opened_name, options: &opened_options, read_only, is_given_up: &is_given_up };
                // If the caller no longer waits, the image is closed here.
                sender.send(opening.run())
            })
            .map_err(|source| OpenError::System { what: "start a thread", source })?;
        let (image, facts) = match receiver.recv_timeout(options.connect_timeout + Duration::from_millis(500)) {
            Ok(opened) => opened?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                given_up.store(true, Ordering::Release);
                return Err(OpenError::TimedOut(options.connect_timeout.as_secs()));
            }
        };
        let system = |what| move |source: Number| OpenError::System { what, source: source.into() };
        let events = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let events = events.map_err(system("make an event descriptor"))?;
        let operations = Operations::new(image, events)
            .map_err(|source| OpenError::Ceph { what: "watch the image's completions", source })?;
        let shared = Arc::new(Shared {
            operations,
            name: name.clone(),
            notify: options.notify,
            limit: options.store_timeout + GRACE,
            is_locked: facts.is_locked,
            size: AtomicU64::new(facts.size),
            is_gone: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            has_extents: AtomicBool::new(true),
        });
        let (running, ended) = channel();
        let (queries, asked) = sync_channel(MAX_QUERIES);
        let store = Self {
            shared: Some(Arc::clone(&shared)),
            queries: Some(queries),
            ended: Mutex::new(ended),
            name: name.clone(),
            facts,
            read_only,
            close_limit: options.connect_timeout,
        };
        spawn("inlock-rbd", Arc::clone(&shared), running.clone(), |shared| shared.run())?;
        spawn("inlock-rbd-query", shared, running, move |shared| shared.answer(&asked))?;
        Ok(store)
    }

    /// Returns the facts of the image when it was opened.
    pub fn facts(&self) -> &ImageFacts {
        &self.facts
    }

    /// Returns the name of the image.
    pub fn name(&self) -> &RbdName {
        &self.name
    }

    fn shared(&self) -> &Arc<Shared> {
        self.shared.as_ref().expect("it is there until the store is dropped")
    }
}

/// Starts a thread, which drops `running` when it has dropped everything else.
fn spawn(
    name: &str,
    shared: Arc<Shared>,
    running: Sender<()>,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> Result<(), OpenError> {
    let body = move || {
        {
            let _guard = FailAll(&shared);
            run(&shared);
        }
        drop(shared);
        drop(running);
    };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(|source| OpenError::System { what: "start a thread", source })
}

/// Fails all operations if a thread panics; otherwise it ends only when the store is closed.
struct FailAll<'a>(&'a Shared);

impl Drop for FailAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_gone.store(true, Ordering::Release);
            self.0.operations.abandon(Instant::now());
        }
    }
}

impl Shared {
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Makes every later operation fail.
    fn lose(&self, event: &str) {
        if !self.is_gone.swap(true, Ordering::AcqRel)
            && let Some(notify) = self.notify
        {
            notify(self.name.as_str(), event);
        }
    }

    fn wake(&self) {
        // The counter would only overflow after 2^64 - 1 unread wakes, and is readable then.
        let _ = rustix::io::write(self.operations.events(), &1u64.to_ne_bytes());
    }

    /// Takes completions until the store is closed and nothing is in flight. An operation that was given up counts
    /// until librbd completes it: the image stays open and locked until then, and is closed afterwards.
    fn run(&self) {
        loop {
            let timeout = Timespec { tv_sec: INTERVAL.as_secs() as i64, tv_nsec: 0 };
            // A failed wait is one without an event.
            let _ = rustix::event::poll(&mut [PollFd::new(self.operations.events(), PollFlags::IN)], Some(&timeout));
            let _ = rustix::io::read(self.operations.events(), &mut [0u8; 8]);
            while self.operations.poll(|pending, end, returned| self.complete(pending, end, returned)) {}
            let now = Instant::now();
            if self.is_gone() {
                self.operations.abandon(now);
            } else if now.checked_sub(self.limit).is_some_and(|limit| self.operations.abandon(limit) > 0) {
                // A write that is carried out later could overwrite a newer one.
                self.lose(LATE);
            }
            if self.is_closing.load(Ordering::Acquire) && self.operations.is_empty() {
                return;
            }
        }
    }

    /// Ends an operation that librbd has completed up to byte `done` of the image.
    fn complete(&self, mut pending: Pending, done: u64, returned: i64) {
        let number = i32::try_from(returned.saturating_neg()).unwrap_or(0);
        let is_change = !matches!(pending.operation(), StoreOperation::Read { .. });
        let is = |other: Number| number == other.raw_os_error();
        match () {
            () if is(Number::SHUTDOWN) => self.lose(REFUSED),
            () if is(Number::NOENT) && is_change => self.lose(IMAGE_REMOVED),
            // Of an image that is open for writing.
            () if is(Number::ROFS) && is_change => self.lose(UNLOCKED),
            () => {}
        }
        if self.is_gone() {
            return pending.complete(Err(Errno::IO));
        }
        if returned < 0 {
            return pending.complete(Err(error_of(number)));
        }
        let size = self.size.load(Ordering::Acquire);
        let asked = pending.operation().transfer_len();
        match pending.operation_mut() {
            StoreOperation::Read { offset, buffer, range } => {
                let Ok(read) = usize::try_from(returned) else { return pending.complete(Err(Errno::IO)) };
                if read >= asked {
                    return pending.complete(Ok(read));
                }
                // Within the image, the rest has never been written.
                let within = usize::try_from(size.saturating_sub(*offset)).unwrap_or(usize::MAX).min(asked);
                let end = within.max(read);
                buffer.data_mut()[range.clone()][read..end].fill(0);
                pending.complete(Ok(end));
            }
            StoreOperation::Discard { offset, len } => {
                let left = offset.saturating_add(*len).saturating_sub(done);
                if left > 0 {
                    self.operations.start(pending, done, left.min(MAX_DISCARD));
                } else {
                    pending.complete(Ok(0));
                }
            }
            _ => pending.complete(Ok(asked)),
        }
    }

    /// Answers queries, and notices a changed length, a removed image or a lost lock.
    fn answer(&self, queries: &Receiver<Query>) {
        let mut lock_checked = Instant::now();
        loop {
            match queries.recv_timeout(INTERVAL) {
                // The store may not wait for it any longer.
                Ok(query) => drop(query.reply.send(self.block_status(query.offset, query.len))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // It has come back from librbd, so it answers again.
            self.has_extents.store(true, Ordering::Relaxed);
            if self.is_gone() {
                continue;
            }
            let checks_lock = self.is_locked && lock_checked.elapsed() >= LOCK_INTERVAL;
            if checks_lock {
                lock_checked = Instant::now();
            }
            match self.look_at_image(checks_lock) {
                Ok(Some(size)) => self.set_size(size),
                // A cluster that does not answer.
                Ok(None) => {}
                Err(event) => {
                    self.lose(event);
                    self.wake();
                }
            }
        }
    }

    /// Returns the length, or why the image cannot be used any longer. Blocks.
    fn look_at_image(&self, checks_lock: bool) -> Result<Option<u64>, &'static str> {
        let image = self.operations.image();
        if image.io.has_pool() == Ok(false) {
            return Err(POOL_REMOVED);
        }
        // librbd has a lock again after a moment, if a storage daemon has forgotten this client.
        let is_locked = if checks_lock { image.has_lock() } else { Ok(true) };
        let looked = match is_locked {
            Ok(true) => image.size().map(Some),
            Ok(false) => image.watchers().map(|_| None),
            Err(error) => Err(error),
        };
        match looked {
            Err(error) if is(error, Number::NOENT) => Err(IMAGE_REMOVED),
            Err(error) if is(error, Number::SHUTDOWN) => Err(REFUSED),
            looked => Ok(looked.unwrap_or(None)),
        }
    }

    fn set_size(&self, size: u64) {
        let before = self.size.swap(size, Ordering::AcqRel);
        if size != before
            && let Some(notify) = self.notify
        {
            notify(self.name.as_str(), &format!("the image was resized from {before} to {size} bytes"));
        }
    }

    /// Returns the range of data, or the hole, at `offset`. Blocks.
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let mut found: Option<(u64, u64)> = None;
        self.operations.image().for_each_extent(offset, len, &mut |start, more| match found {
            None => {
                found = Some((start, start.saturating_add(more)));
                start <= offset
            }
            Some((first, end)) if start <= end => {
                found = Some((first, end.max(start.saturating_add(more))));
                true
            }
            Some(_) => false,
        })?;
        Ok(match found {
            Some((start, end)) if start <= offset => {
                BlockStatus::allocated(offset, end.saturating_sub(offset).clamp(1, len))
            }
            Some((start, _)) => BlockStatus::hole(offset, (start - offset).min(len)),
            None => BlockStatus::hole(offset, len),
        })
    }
}

/// Returns the error for a client. The engine would repeat an interrupted operation without end.
fn error_of(number: i32) -> Errno {
    match Errno::from_raw_os_error(number) {
        Errno::DQUOT => Errno::NOSPC,
        Errno::INTR | Errno::AGAIN => Errno::IO,
        error => error,
    }
}

impl AsyncStore for RbdStore {
    fn start(&self, pending: Pending) {
        let shared = self.shared();
        if shared.is_gone() {
            // Dropped, it has failed.
            return;
        }
        let size = shared.size.load(Ordering::Acquire);
        let (offset, len) = match pending.operation() {
            StoreOperation::Read { offset, range, .. } | StoreOperation::Write { offset, range, .. } => {
                (*offset, range.len() as u64)
            }
            StoreOperation::Discard { offset, len } => (*offset, *len),
            _ => (0, 0),
        };
        let is_read = matches!(pending.operation(), StoreOperation::Read { .. });
        match offset.checked_add(len) {
            // As at the end of a file.
            _ if is_read && offset >= size => return pending.complete(Ok(0)),
            // librbd would cut it.
            Some(end) if end > size && !is_read => return pending.complete(Err(Errno::NOSPC)),
            None => return pending.complete(Err(Errno::INVAL)),
            Some(_) => {}
        }
        shared.operations.start(pending, offset, len.min(MAX_DISCARD));
        if shared.is_gone() {
            // Meanwhile, and the thread that fails what waits may have ended.
            shared.operations.abandon(Instant::now());
        }
    }

    fn abort(&self) {
        let shared = self.shared();
        shared.lose(ABORTED);
        shared.wake();
    }
}

impl BackingStore for RbdStore {
    fn geometry(&self) -> Geometry {
        let geometry = if self.read_only { Geometry::new_read_only } else { Geometry::new };
        geometry(self.shared().size.load(Ordering::Acquire))
    }

    fn revalidate_len(&self) -> Result<u64, Errno> {
        let shared = self.shared();
        let size = shared.operations.image().size()?;
        shared.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        Some(self)
    }

    /// A hole is an object that does not exist, or the part behind the end of one. Every client of librbd reads zeroes
    /// there, with encryption too. Elsewhere in an object it depends on the length of librbd's read.
    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        // No range of a striped image is made of whole objects in the order of the image.
        let hole_len = if self.facts.stripe_count == 1 { self.facts.object_size } else { u64::MAX };
        profile.hole_len = NonZeroU64::new(hole_len);
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = data.len().min(MAX_CALL);
        asynchronous::read_at(self, &mut data[..len], offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        asynchronous::write_at(self, &data[..data.len().min(MAX_CALL)], offset, false)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        self.write_at(&gathered(parts, MAX_CALL), offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        asynchronous::sync(self)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        asynchronous::discard(self, offset, len)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let unknown = Ok(BlockStatus::allocated(offset, len));
        if self.facts.stripe_count != 1 {
            // librbd may go from object to object, and not in the order of the image.
            return unknown;
        }
        let shared = self.shared();
        let asked = len.min(MAX_QUERY).min(shared.size.load(Ordering::Acquire).saturating_sub(offset));
        let Some(queries) = self.queries.as_ref().filter(|_| asked > 0 && shared.has_extents.load(Ordering::Relaxed))
        else {
            return unknown;
        };
        let (reply, answer) = channel();
        match queries.try_send(Query { offset, len: asked, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return unknown,
        }
        match answer.recv_timeout(EXTENTS_TIMEOUT) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => unknown,
            Err(RecvTimeoutError::Timeout) => {
                // The image is not asked again until the thread answers.
                shared.has_extents.store(false, Ordering::Relaxed);
                unknown
            }
        }
    }
}

impl Drop for RbdStore {
    fn drop(&mut self) {
        let mut limit = self.close_limit;
        if let Some(shared) = self.shared.take() {
            shared.is_closing.store(true, Ordering::Release);
            shared.wake();
            if shared.is_gone() {
                limit = limit.min(GONE_CLOSE_LIMIT);
            }
        }
        self.queries = None;
        // A cluster that does not answer keeps the threads, which end with its answer or with the process.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(limit);
    }
}

impl std::fmt::Debug for RbdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RbdStore({}, {} bytes)", self.name, self.facts.size)
    }
}
