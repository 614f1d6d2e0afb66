//! The volumes of a server: opened when first used, closed when idle, changed when the file is loaded again.

mod close_all;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use inlock_engine::Access;
use inlock_frontend::nbd::exports::{Catalog, ExportServer, Lease, Unavailable};
use inlock_frontend::nbd::park::Parking;
use inlock_frontend::nbd::server::ServerOptions;
use inlock_frontend::nbd::tls::{TlsOptions, TlsServer};

use close_all::close_all;

use super::backoff::Backoff;
use super::config::{self, Config, Opening, VolumeConfig, VolumeConfigs};
use super::key_command;
use crate::control::engine::EngineInfo;
use crate::control::info::RuntimeInfo;
use crate::error::{CliError, Status, message_of};
use crate::host::context;
use crate::tls;
use crate::ui::log::log_about;
use inlock_open::engine::EngineOptions;
use inlock_open::open::{has_zones, open};
use inlock_open::source::KeySource;
use inlock_open::unlocked::LockedStores;

/// Clients that may wait for a volume to open; further ones are refused, so that a volume whose key does not come
/// cannot use up the threads of the server.
const MAX_WAITING: usize = 16;
/// Clients that may wait for a volume while [`MANY_WAITING`] wait for all: no other volume can take these places.
const OWN_WAITING: usize = 4;
const MANY_WAITING: usize = 256;
/// Threads that close idle volumes.
const IDLE_CLOSERS: usize = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All volumes of a server.
pub(crate) struct Volumes {
    file: PathBuf,
    state: Mutex<State>,
    /// TLS for all clients, as the file had it first.
    tls: Option<(TlsOptions, Arc<TlsServer>)>,
    /// Held while volumes are added, and while the file is loaded again.
    changing: Mutex<()>,
    /// Clients at rest.
    parking: Parking,
    closings: Arc<Closings>,
    /// Clients that wait for volumes to open.
    waiting: AtomicUsize,
    /// Number of closings after which memory was last given back to the system.
    released_after: AtomicU64,
    /// Threads that close idle volumes.
    idle_closers: Arc<AtomicUsize>,
}

/// Closings of all volumes since the server started.
#[derive(Default)]
struct Closings {
    /// Number of those that have ended.
    number: AtomicU64,
    /// One of them has failed: writes may be lost.
    has_failed: AtomicBool,
}

struct State {
    default: Option<String>,
    /// In seconds, of volumes without one.
    idle_timeout: u64,
    entries: BTreeMap<String, Arc<Entry>>,
}

/// A volume. Its lock is held for moments only, never while it opens or closes.
struct Entry {
    name: String,
    waiting: AtomicUsize,
    state: Mutex<EntryState>,
    /// The stage has changed.
    changed: Condvar,
    closings: Arc<Closings>,
}

pub(super) struct EntryState {
    /// Configuration of the next opening; one that has begun with another compares when it ends.
    pub(super) config: VolumeConfig,
    pub(super) stage: Stage,
    /// It was added by a command, and the file does not have it.
    pub(super) is_added: bool,
    /// It was removed, or the server stops.
    pub(super) is_removed: bool,
    /// Failure of the last closing, on any thread: writes may be lost. Commands that find the volume closed report it;
    /// one that is opened again forgets it.
    close_failure: Option<String>,
    /// Some closing has failed since the server started.
    pub(super) has_closing_failed: bool,
    /// Failures to open it. A command or a new configuration forgets them.
    backoff: Backoff,
}

pub(super) enum Stage {
    Closed,
    Opening,
    Open(Box<Running>),
    Closing,
}

/// An open volume.
pub(super) struct Running {
    pub(super) stores: LockedStores,
    pub(super) server: Arc<ExportServer>,
    pub(super) info: Box<RuntimeInfo>,
    pub(super) opened: Instant,
    idle_since: Option<Instant>,
    /// It was reported that a worker cannot start.
    is_start_failure_reported: bool,
}

impl Volumes {
    /// Reads the file.
    pub(crate) fn load(file: &Path) -> anyhow::Result<Self> {
        let file = std::path::absolute(file)?;
        let Config { default, idle_timeout, tls, volumes } =
            config::read(context().host(), &file, &VolumeConfigs::new())?;
        let tls = match tls {
            None => None,
            Some(options) => {
                let server = Arc::new(tls::load(&options)?);
                Some((options, server))
            }
        };
        let closings = Arc::default();
        let entry = |(name, config): (String, _)| (name.clone(), Entry::new(name, config, false, &closings));
        let entries = volumes.into_iter().map(entry);
        let state = State { default, idle_timeout, entries: entries.collect() };
        let parking = Parking::start()?;
        Ok(Self {
            file,
            state: Mutex::new(state),
            tls,
            changing: Mutex::default(),
            parking,
            closings,
            waiting: AtomicUsize::new(0),
            released_after: AtomicU64::new(0),
            idle_closers: Arc::default(),
        })
    }

    /// Returns the options of TLS.
    pub(crate) fn tls_options(&self) -> Option<&TlsOptions> {
        self.tls.as_ref().map(|(options, _)| options)
    }

    /// Returns TLS for clients.
    pub(crate) fn tls(&self) -> Option<&Arc<TlsServer>> {
        self.tls.as_ref().map(|(_, server)| server)
    }

    /// Returns the number of volumes.
    pub(crate) fn count(&self) -> usize {
        lock(&self.state).entries.len()
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.state).entries.values().cloned().collect()
    }

    /// Returns the configurations of the volumes that `choice` chooses.
    fn configs(&self, choice: impl Fn(&EntryState) -> bool) -> VolumeConfigs {
        let config = |entry: &Arc<Entry>| {
            let state = lock(&entry.state);
            choice(&state).then(|| (entry.name.clone(), state.config.clone()))
        };
        self.entries().iter().filter_map(config).collect()
    }

    /// Loads the file again. An invalid file changes nothing. Volumes that a command added stay, unless the file has
    /// them now. Blocks until removed volumes are closed; one that is opening is closed when that ends.
    pub(crate) fn reload(&self) -> anyhow::Result<String> {
        let _changing = lock(&self.changing);
        let added = self.configs(|state| state.is_added && !state.is_removed);
        let Config { default, idle_timeout, tls, volumes } = config::read(context().host(), &self.file, &added)?;
        self.reload_tls(tls.as_ref())?;
        let (mut new, mut changed) = (0, 0);
        let (mut removed, mut to_close) = (Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        state.entries.retain(|name, entry| {
            let stays = volumes.contains_key(name) || added.contains_key(name) || lock(&entry.state).is_removed;
            if !stays {
                removed.push(Arc::clone(entry));
            }
            stays
        });
        for (name, config) in volumes {
            match state.entries.get(&name).map(|entry| (entry, entry.configure(&config))) {
                None | Some((_, Change::Removed)) => {
                    new += 1;
                    state.entries.insert(name.clone(), Entry::new(name, config, false, &self.closings));
                }
                Some((_, Change::None)) => {}
                Some((_, Change::Applied)) => changed += 1,
                Some((entry, Change::ToClose)) => {
                    changed += 1;
                    to_close.push(Arc::clone(entry));
                }
            }
        }
        (state.default, state.idle_timeout) = (default, idle_timeout);
        drop(state);
        removed.iter().for_each(|entry| lock(&entry.state).is_removed = true);
        let count = removed.len();
        to_close.extend(removed);
        let is_flushed = close_all(&to_close, IfOpening::Leave);
        let outcome = format!("{new} volumes added, {count} removed, {changed} changed");
        if !is_flushed {
            let message = format!("{outcome}. The last writes to a volume that was closed may be lost.");
            let hint = Some("the log of the server names the volume and the cause".to_owned());
            return Err(CliError::Remote(message, hint, Status::Wrong).into());
        }
        Ok(outcome)
    }

    /// Adds a volume with these keys of a table. An error changes nothing.
    pub(crate) fn add(&self, name: &str, keys: &str) -> anyhow::Result<()> {
        let _changing = lock(&self.changing);
        let others = self.configs(|_| true);
        if others.contains_key(name) {
            let hint = Some("choose another name, or remove the volume first".to_owned());
            return Err(CliError::Remote(format!("Volume {name} already exists."), hint, Status::Busy).into());
        }
        let idle_timeout = lock(&self.state).idle_timeout;
        let config = config::parse_volume(context().host(), name, keys, idle_timeout, &others).map_err(|error| {
            CliError::refused(format!("Volume {name} is not added: {error}."), "correct the key; nothing has changed")
        })?;
        let entry = Entry::new(name.to_owned(), config, true, &self.closings);
        lock(&self.state).entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Closes a volume for good, and forgets it. Refuses if it has clients, unless `force`. Blocks.
    pub(crate) fn remove(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let entry = self.known(name)?;
        entry.retire(force)?;
        let closed = entry.close(IfOpening::Wait);
        let mut state = lock(&self.state);
        // Loading the file may have replaced it.
        if state.entries.get(name).is_some_and(|found| Arc::ptr_eq(found, &entry)) {
            state.entries.remove(name);
        }
        drop(state);
        closed.with_context(|| format!("Volume {name} is removed, but its last writes may be lost"))
    }

    /// Reads the certificates again, for new clients.
    fn reload_tls(&self, options: Option<&TlsOptions>) -> anyhow::Result<()> {
        match (options, &self.tls) {
            (None, None) => Ok(()),
            (Some(options), Some((first, server))) if options.mode == first.mode => {
                server.reload(options).map_err(tls::cannot_use)
            }
            _ => {
                Err(CliError::refused("TLS of a running server cannot change.", "stop the server, and start it again"))
            }
        }
    }

    /// Closes volumes that have been idle for long enough, or whose workers have failed, on threads of their own: a
    /// store that does not answer delays neither the other volumes nor the caller. To be called about once a second.
    pub(crate) fn close_idle(&self) {
        let now = Instant::now();
        let mut due = Vec::new();
        for entry in self.entries() {
            let mut state = lock(&entry.state);
            let Stage::Open(running) = &mut state.stage else { continue };
            running.note_clients(now);
            let report = running.start_failure_report();
            if state.is_due(now) {
                due.push(Arc::clone(&entry));
            }
            drop(state);
            if let Some(report) = report {
                entry.log(report);
            }
        }
        self.close_due(due);
        if self.has_freed_memory() {
            inlock_engine::allocator::release_freed_pages();
        }
    }

    /// Starts threads that close these volumes. Those for which there is no thread are closed in a later call.
    fn close_due(&self, due: Vec<Arc<Entry>>) {
        let count = due.len();
        let due = Arc::new(Mutex::new(due));
        for _ in 0..count {
            if self.idle_closers.fetch_add(1, Ordering::AcqRel) >= IDLE_CLOSERS {
                self.idle_closers.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            let (due, closers) = (Arc::clone(&due), Arc::clone(&self.idle_closers));
            let closer = move || {
                let next = || lock(&due).pop();
                while let Some(entry) = next() {
                    entry.close_if_due();
                }
                closers.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().name("inlock-close".to_owned()).spawn(closer).is_err() {
                self.idle_closers.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    }

    /// Returns whether volumes were closed since the last call: their memory is to be given back to the system.
    fn has_freed_memory(&self) -> bool {
        let closings = self.closings.number.load(Ordering::Acquire);
        self.released_after.swap(closings, Ordering::AcqRel) != closings
    }

    /// Closes all volumes for good, and returns whether all writes since the start of the server are on stable storage,
    /// also those to volumes that were removed or opened again. Blocks.
    pub(crate) fn has_stopped_without_loss(&self) -> bool {
        let entries: Vec<_> = std::mem::take(&mut lock(&self.state).entries).into_values().collect();
        entries.iter().for_each(|entry| lock(&entry.state).is_removed = true);
        close_all(&entries, IfOpening::Wait) && !self.closings.has_failed.load(Ordering::Acquire)
    }

    /// Closes a volume; the next client opens it again. Refuses if it has clients, unless `force`.
    pub(crate) fn close(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let entry = self.known(name)?;
        let mut state = lock(&entry.state);
        entry.check_unused(&state, force)?;
        state.backoff = Backoff::default();
        if matches!(state.stage, Stage::Open(_)) {
            // Under the same lock, so that no client comes in between.
            return entry.end(state);
        }
        drop(state);
        entry.close(IfOpening::Wait)
    }

    /// Shows each volume to `look`.
    pub(super) fn each(&self, mut look: impl FnMut(&str, &EntryState)) {
        self.entries().iter().for_each(|entry| look(&entry.name, &lock(&entry.state)));
    }

    /// Returns what `look` makes of a volume.
    pub(super) fn look<T>(&self, name: &str, look: impl FnOnce(&EntryState) -> T) -> anyhow::Result<T> {
        Ok(look(&lock(&self.known(name)?.state)))
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let state = lock(&self.state);
        let name = if name.is_empty() { state.default.as_deref()? } else { name };
        state.entries.get(name).cloned()
    }

    /// Returns the volume that a command names.
    fn known(&self, name: &str) -> anyhow::Result<Arc<Entry>> {
        let entry = self.entry(name).filter(|_| !name.is_empty());
        entry.ok_or_else(|| unknown(name))
    }
}

/// Returns the error of a command that names no volume of the server.
fn unknown(name: &str) -> anyhow::Error {
    let hint = Some("run `inlock control SOCKET list`".to_owned());
    CliError::Remote(format!("Volume {name} does not exist."), hint, Status::Device).into()
}

/// Treatment of a volume that is opening when it is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfOpening {
    /// Blocks until it is open, and closes it.
    Wait,
    /// Leaves it to the thread that opens it, which finds it removed or changed.
    Leave,
}

/// Effect of a new configuration on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// It holds now, for connected clients too.
    Applied,
    /// The volume has to be closed for it.
    ToClose,
    /// The volume is being removed; another one takes its place.
    Removed,
}

impl EntryState {
    /// Returns whether the volume is open and to be closed: it has been idle for long enough, or its workers have
    /// failed.
    fn is_due(&self, now: Instant) -> bool {
        let Stage::Open(running) = &self.stage else { return false };
        let idle = running.idle_since.filter(|_| running.server.clients() == 0);
        let idle = idle.map(|since| now.saturating_duration_since(since));
        let is_idle_for_long = self.config.idle_timeout.zip(idle).is_some_and(|(timeout, idle)| idle >= timeout);
        !running.server.is_healthy() || is_idle_for_long
    }
}

impl Entry {
    fn new(name: String, config: VolumeConfig, is_added: bool, closings: &Arc<Closings>) -> Arc<Self> {
        let state = EntryState {
            config,
            stage: Stage::Closed,
            is_added,
            is_removed: false,
            close_failure: None,
            has_closing_failed: false,
            backoff: Backoff::default(),
        };
        Arc::new(Self {
            name,
            waiting: AtomicUsize::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            closings: Arc::clone(closings),
        })
    }

    /// Prints a message about the volume. Does not block.
    fn log(&self, text: impl std::fmt::Display) {
        log_about(format_args!("volume {}", self.name), text);
    }

    /// Blocks until the stage changes.
    fn wait<'a>(&self, state: MutexGuard<'a, EntryState>) -> MutexGuard<'a, EntryState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the right to connect a client. Opens the volume first if it is closed. Blocks.
    fn lease(&self, parking: &Parking) -> Result<Lease, Unavailable> {
        let mut state = lock(&self.state);
        loop {
            if state.is_removed {
                return Err(Unavailable::Unknown);
            }
            let EntryState { stage, backoff, .. } = &mut *state;
            match stage {
                Stage::Open(running) => {
                    running.idle_since = None;
                    return running.server.lease().ok_or(Unavailable::Refused);
                }
                Stage::Closed if backoff.is_waiting(Instant::now()) => return Err(Unavailable::Refused),
                Stage::Closed => state = self.open(state, parking)?,
                Stage::Opening | Stage::Closing => state = self.wait(state),
            }
        }
    }

    /// Opens the volume, unless it is removed or gets other options meanwhile.
    fn open<'a>(
        &'a self,
        mut state: MutexGuard<'a, EntryState>,
        parking: &Parking,
    ) -> Result<MutexGuard<'a, EntryState>, Unavailable> {
        state.stage = Stage::Opening;
        let config = state.config.clone();
        drop(state);
        let opened = caught(|| Running::open(&self.name, &config, parking));
        let mut state = lock(&self.state);
        let is_wanted = !state.is_removed && state.config.is_opened_like(&config);
        let is_open = opened.is_ok();
        match opened {
            Ok(running) => {
                running.server.set_limits(state.config.limits);
                state.stage = Stage::Open(Box::new(running));
                (state.close_failure, state.backoff) = (None, Backoff::default());
                if !is_wanted {
                    // A failure was reported.
                    let _ = self.end(state);
                    state = lock(&self.state);
                }
            }
            Err(error) => {
                state.stage = Stage::Closed;
                let wait = if is_wanted { state.backoff.fail(Instant::now()).as_secs() } else { 0 };
                self.log(format_args!("{} (tried again after {wait} s)", message_of(&error)));
            }
        }
        self.changed.notify_all();
        if is_open || !is_wanted { Ok(state) } else { Err(Unavailable::Refused) }
    }

    /// Takes over a configuration of the file.
    fn configure(&self, config: &VolumeConfig) -> Change {
        let mut state = lock(&self.state);
        if state.is_removed {
            return Change::Removed;
        }
        state.is_added = false;
        state.backoff = Backoff::default();
        if state.config == *config {
            return Change::None;
        }
        let is_applicable = config.is_opened_like(&state.config);
        state.config = config.clone();
        match &state.stage {
            _ if !is_applicable => return Change::ToClose,
            Stage::Open(running) => running.server.set_limits(config.limits),
            Stage::Closed | Stage::Opening | Stage::Closing => {}
        }
        Change::Applied
    }

    /// Takes no more clients. Refuses if there are some, unless `force`.
    fn retire(&self, force: bool) -> anyhow::Result<()> {
        let mut state = lock(&self.state);
        if state.is_removed {
            return Err(unknown(&self.name));
        }
        self.check_unused(&state, force)?;
        state.is_removed = true;
        Ok(())
    }

    /// Refuses if the volume has clients, unless `force`.
    fn check_unused(&self, state: &EntryState, force: bool) -> anyhow::Result<()> {
        let clients = match &state.stage {
            Stage::Open(running) => running.server.clients(),
            Stage::Opening => self.waiting.load(Ordering::Acquire).max(1),
            Stage::Closed | Stage::Closing => 0,
        };
        if clients > 0 && !force {
            let message = format!("Volume {} is in use by {clients} clients.", self.name);
            let hint = Some("disconnect them first, or use --force".to_owned());
            return Err(CliError::Remote(message, hint, Status::Busy).into());
        }
        Ok(())
    }

    /// Closes the volume if it is idle still. Blocks.
    fn close_if_due(&self) {
        let state = lock(&self.state);
        if state.is_due(Instant::now()) {
            // A failure was reported, and is that of the next command.
            let _ = self.end(state);
        }
    }

    /// Closes the volume, or waits until another thread has. Blocks.
    ///
    /// # Errors
    /// Writes may be lost: this closing has failed, or that of the other thread, or the last one if the volume is
    /// closed. This was reported.
    fn close(&self, opening: IfOpening) -> anyhow::Result<()> {
        let mut state = lock(&self.state);
        loop {
            match (&state.stage, opening) {
                (Stage::Closed, _) => {
                    let failed = |text: &String| CliError::Remote(text.clone(), None, Status::Wrong).into();
                    return state.close_failure.as_ref().map_or(Ok(()), |text| Err(failed(text)));
                }
                (Stage::Opening, IfOpening::Leave) => return Ok(()),
                (Stage::Open(_), _) => return self.end(state),
                (Stage::Opening | Stage::Closing, _) => state = self.wait(state),
            }
        }
    }

    /// Closes the volume if it is open. Blocks, without the lock.
    fn end(&self, mut state: MutexGuard<'_, EntryState>) -> anyhow::Result<()> {
        let running = match std::mem::replace(&mut state.stage, Stage::Closing) {
            Stage::Open(running) => running,
            other => {
                state.stage = other;
                return Ok(());
            }
        };
        drop(state);
        let closed = caught(|| running.close());
        if let Err(error) = &closed {
            self.log(message_of(error));
        }
        self.closings.has_failed.fetch_or(closed.is_err(), Ordering::AcqRel);
        self.closings.number.fetch_add(1, Ordering::AcqRel);
        let mut state = lock(&self.state);
        state.stage = Stage::Closed;
        state.close_failure = closed.as_ref().err().map(message_of);
        state.has_closing_failed |= closed.is_err();
        drop(state);
        self.changed.notify_all();
        closed
    }
}

/// Returns what `run` does, or an error after a panic: others wait for the stage that follows.
fn caught<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(anyhow::anyhow!("a defect of the server")))
}

impl Running {
    fn open(name: &str, config: &VolumeConfig, parking: &Parking) -> anyhow::Result<Self> {
        let Opening { key_command, key_timeout, .. } = &config.opening;
        let read_only = config.opening.config.read_only;
        let mut source = config.opening.source(context().host())?;
        if !read_only && has_zones(context(), &source.options) {
            return Err(CliError::refused(
                format!("{} is zoned; NBD clients can only read it.", source.options.image.display()),
                "set read-only = true",
            ));
        }
        if !key_command.is_empty() {
            let key = key_command::run(key_command, name, *key_timeout)?;
            source.options.key.source = KeySource::Bytes(Arc::new(key.into()));
        }
        let engine_args = source.engine;
        let engine = engine_args.map(EngineOptions::start).transpose()?;
        let mut unlocked = open(context(), &source.options, !read_only, None)?;
        unlocked.use_engine(engine);
        let access = Access { read_only, allow_discards: unlocked.info.flags.allow_discards };
        let info = unlocked.info.clone();
        let stores = unlocked.into_device(source.io, access)?;
        let mut options = ServerOptions::default();
        options.export_name = name.to_owned();
        options.description = "served by Inlock".to_owned();
        options.threads = source.threads.map_or(1, usize::from);
        options.io = source.io;
        options.max_connections = config.max_clients;
        let server = Arc::new(ExportServer::start(Arc::clone(&stores.device), &options, config.limits, parking)?);
        let info = Box::new(RuntimeInfo {
            via: "nbd".to_owned(),
            engine: EngineInfo::of(engine_args),
            ring: server.ring_name().to_owned(),
            threads: options.threads,
            ..RuntimeInfo::new(&name, info, &stores.device)
        });
        Ok(Self { stores, server, info, opened: Instant::now(), idle_since: None, is_start_failure_reported: false })
    }

    /// Notes since when there are no clients.
    fn note_clients(&mut self, now: Instant) {
        if self.server.clients() > 0 {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
    }

    /// Returns what is to be reported: that a worker cannot start, or that it runs again.
    fn start_failure_report(&mut self) -> Option<String> {
        let failure = self.server.start_failure();
        if failure.is_some() == self.is_start_failure_reported {
            return None;
        }
        self.is_start_failure_reported = failure.is_some();
        let failed = |cause| format!("{cause}; its clients wait");
        Some(failure.map_or("its clients are served again".to_owned(), failed))
    }

    /// Answers what was read, disconnects its clients, flushes, and wipes its keys.
    ///
    /// # Errors
    /// Writes may be lost.
    fn close(self) -> anyhow::Result<()> {
        let Self { stores, server, .. } = self;
        stores.check_writes(server.stop().map_err(anyhow::Error::from))
    }
}

impl Catalog for Volumes {
    fn names(&self) -> Vec<String> {
        let is_listed = |entry: &&Arc<Entry>| {
            let state = lock(&entry.state);
            state.config.listed && !state.is_removed
        };
        self.entries().iter().filter(is_listed).map(|entry| entry.name.clone()).collect()
    }

    fn open(&self, name: &str) -> Result<Lease, Unavailable> {
        let entry = self.entry(name).ok_or(Unavailable::Unknown)?;
        let is_crowded = self.waiting.fetch_add(1, Ordering::AcqRel) >= MANY_WAITING;
        let most = if is_crowded { OWN_WAITING } else { MAX_WAITING };
        let has_place = entry.waiting.fetch_add(1, Ordering::AcqRel) < most;
        let lease = if has_place { entry.lease(&self.parking) } else { Err(Unavailable::Refused) };
        entry.waiting.fetch_sub(1, Ordering::AcqRel);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        lease
    }
}

#[cfg(test)]
mod tests;
