//! The volumes of a server: opened when first used, closed when idle, changed when the file is loaded again.

mod close_all;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::{Error, Program, Reply, Result};
use inlock_cipher::scrub_stack;
use inlock_frontend::nbd::exports::{Catalog, Lease, Unavailable};
use inlock_frontend::nbd::park::Parking;
use inlock_frontend::nbd::tls::{TlsOptions, TlsServer};
use inlock_open::Context;
use inlock_open::host::Host;
use serde_json::Value;

use close_all::close_all;

use super::backoff::Backoff;
use super::config::{self, Config, VolumeConfigs};
use super::entry::{Change, Entry, EntryState, IfOpening, Stage, lock};
use super::running::Shared;
use crate::tls;
use crate::trusted_config::Trust;

/// Clients that may wait for a volume to open; further ones are refused, so that a volume whose key does not come
/// cannot use up the threads of the server.
const MAX_WAITING: usize = 16;
/// Clients that may wait for a volume while [`MANY_WAITING`] wait for all: no other volume can take these places.
const OWN_WAITING: usize = 4;
const MANY_WAITING: usize = 256;
/// Stack that may have parts of keys in a table after the configuration was read, in bytes.
const CONFIG_STACK: usize = 64 << 10;
/// Threads that close idle volumes.
const IDLE_CLOSERS: usize = 32;

/// Returns the URI of a volume with a name.
type UriOf = dyn Fn(&str) -> String + Send + Sync;

/// All volumes of a server.
pub struct Volumes {
    file: PathBuf,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// TLS for all clients, as the file had it first.
    tls: Option<(TlsOptions, Arc<TlsServer>)>,
    /// Held while volumes are added, and while the file is loaded again.
    changing: Mutex<()>,
    /// Clients at rest.
    parking: Parking,
    /// Clients that wait for volumes to open.
    waiting: AtomicUsize,
    /// Number of closings after which memory was last given back to the system.
    released_after: AtomicU64,
    /// URIs of the volumes, once clients can connect.
    uri: OnceLock<Box<UriOf>>,
    /// Threads that close idle volumes.
    idle_closers: Arc<AtomicUsize>,
}

struct State {
    default: Option<String>,
    /// In seconds, of volumes without one.
    idle_timeout: u64,
    entries: BTreeMap<String, Arc<Entry>>,
    /// Removed volumes that are not closed yet, and whose names other volumes have.
    replaced: Vec<Arc<Entry>>,
    /// The server stops: no volume is added.
    is_stopping: bool,
}

impl Volumes {
    /// Reads the file.
    pub fn load(program: Arc<dyn Program>, file: &Path, trust: Trust) -> Result<Self> {
        let file = std::path::absolute(file)?;
        let Config { default, idle_timeout, tls, volumes } =
            config::read(program.context().host(), &file, trust, &VolumeConfigs::new())?;
        scrub_stack::<CONFIG_STACK>();
        let tls = match tls {
            None => None,
            Some(options) => {
                let server = Arc::new(tls::load(program.context(), &options)?);
                Some((options, server))
            }
        };
        let shared = Arc::new(Shared::new(program, trust));
        let entry = |(name, config): (String, _)| (name.clone(), Entry::new(name, config, false, &shared));
        let entries = volumes.into_iter().map(entry);
        let state =
            State { default, idle_timeout, entries: entries.collect(), replaced: Vec::new(), is_stopping: false };
        let parking = Parking::start()?;
        Ok(Self {
            file,
            shared,
            state: Mutex::new(state),
            tls,
            changing: Mutex::default(),
            parking,
            waiting: AtomicUsize::new(0),
            released_after: AtomicU64::new(0),
            uri: OnceLock::new(),
            idle_closers: Arc::default(),
        })
    }

    /// Returns the options of TLS.
    pub fn tls_options(&self) -> Option<&TlsOptions> {
        self.tls.as_ref().map(|(options, _)| options)
    }

    /// Returns TLS for clients.
    pub fn tls(&self) -> Option<&Arc<TlsServer>> {
        self.tls.as_ref().map(|(_, server)| server)
    }

    fn host(&self) -> &dyn Host {
        self.shared.program.context().host()
    }

    /// Returns the number of volumes.
    pub fn count(&self) -> usize {
        lock(&self.state).entries.len()
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        let state = lock(&self.state);
        state.entries.values().chain(&state.replaced).cloned().collect()
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
    pub fn reload(&self) -> Result<String> {
        let changing = lock(&self.changing);
        let added = self.configs(|state| state.is_added && !state.is_removed);
        let Config { default, idle_timeout, tls, volumes } =
            config::read(self.host(), &self.file, self.shared.trust, &added)?;
        scrub_stack::<CONFIG_STACK>();
        self.reload_tls(tls.as_ref())?;
        let (mut new, mut changed) = (0, 0);
        let mut to_close = Vec::new();
        let mut state = lock(&self.state);
        if state.is_stopping {
            return Err(Error::Closing);
        }
        // They stay until they are closed, so that commands can give up their devices.
        let is_left_out = |name: &str| !volumes.contains_key(name) && !added.contains_key(name);
        let left_out = state.entries.iter().filter(|(name, _)| is_left_out(name)).map(|(_, entry)| Arc::clone(entry));
        let removed: Vec<_> =
            left_out.filter(|entry| !std::mem::replace(&mut lock(&entry.state).is_removed, true)).collect();
        for (name, config) in volumes {
            match state.entries.get(&name).map(|entry| (entry, entry.configure(&config))) {
                None | Some((_, Change::Removed)) => {
                    new += 1;
                    let replaced = state.entries.insert(name.clone(), Entry::new(name, config, false, &self.shared));
                    state.replaced.extend(replaced);
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
        drop((state, changing));
        let count = removed.len();
        to_close.extend(removed.iter().cloned());
        let is_flushed = close_all(&to_close, IfOpening::Leave);
        self.forget_closed();
        let outcome = format!("{new} volumes added, {count} removed, {changed} changed");
        if !is_flushed {
            return Err(Error::ClosedWithLoss { outcome });
        }
        Ok(outcome)
    }

    /// Adds a volume with these keys of a table. An error changes nothing.
    pub(crate) fn add(&self, name: &str, keys: &str) -> Result<()> {
        let _changing = lock(&self.changing);
        let others = self.configs(|_| true);
        if others.contains_key(name) {
            return Err(Error::VolumeExists { name: name.to_owned() });
        }
        let idle_timeout = lock(&self.state).idle_timeout;
        let config = config::parse_volume(self.host(), name, keys, idle_timeout, &others);
        scrub_stack::<CONFIG_STACK>();
        let config = config.map_err(|fault| Error::NotAdded { name: name.to_owned(), fault })?;
        let entry = Entry::new(name.to_owned(), config, true, &self.shared);
        let mut state = lock(&self.state);
        if state.is_stopping {
            return Err(Error::Closing);
        }
        state.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Closes a volume for good, and forgets it. Refuses if it has clients, unless `force`. Blocks.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<()> {
        let entry = self.known(name)?;
        entry.retire(force)?;
        let closed = entry.close(IfOpening::Wait);
        self.forget_closed();
        closed.map_err(|source| Error::RemovedWithLoss { name: name.to_owned(), source: Box::new(source) })
    }

    /// Forgets removed volumes that are closed.
    fn forget_closed(&self) {
        let is_over = |entry: &Arc<Entry>| {
            let state = lock(&entry.state);
            state.is_removed && matches!(state.stage, Stage::Closed)
        };
        let mut state = lock(&self.state);
        state.entries.retain(|_, entry| !is_over(entry));
        state.replaced.retain(|entry| !is_over(entry));
    }

    /// Reads the certificates again, for new clients.
    fn reload_tls(&self, options: Option<&TlsOptions>) -> Result<()> {
        match (options, &self.tls) {
            (None, None) => Ok(()),
            (Some(options), Some((first, server))) if options.mode == first.mode => {
                server.reload(options).map_err(tls::cannot_use)
            }
            _ => Err(Error::TlsStays),
        }
    }

    /// Closes volumes that have been idle for long enough, or whose workers have failed, on threads of their own: a
    /// store that does not answer delays neither the other volumes nor the caller. To be called about once a second.
    pub fn close_idle(&self) {
        let now = Instant::now();
        let (mut due, mut has_removed) = (Vec::new(), false);
        for entry in self.entries() {
            let mut state = lock(&entry.state);
            has_removed |= state.is_removed;
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
        if has_removed {
            self.forget_closed();
        }
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
        let closings = self.shared.closings.load(Ordering::Acquire);
        self.released_after.swap(closings, Ordering::AcqRel) != closings
    }

    /// Closes all volumes for good, and returns whether all writes since the start of the server are on stable storage,
    /// also those to volumes that were removed or opened again. Blocks.
    pub fn has_stopped_without_loss(&self) -> bool {
        lock(&self.state).is_stopping = true;
        let entries = self.entries();
        entries.iter().for_each(|entry| lock(&entry.state).is_removed = true);
        close_all(&entries, IfOpening::Wait) && !self.shared.has_closing_failed.load(Ordering::Acquire)
    }

    /// Closes a volume; the next client opens it again. Refuses if it has clients, unless `force`.
    pub(crate) fn close(&self, name: &str, force: bool) -> Result<()> {
        let entry = self.known(name)?;
        let mut state = lock(&entry.state);
        if state.is_changing {
            return Err(Error::InProgress);
        }
        entry.check_unused(&state, force)?;
        state.backoff = Backoff::default();
        if matches!(state.stage, Stage::Open(_)) {
            // Under the same lock, so that no client comes in between.
            return entry.end(state);
        }
        drop(state);
        entry.close(IfOpening::Wait)
    }

    /// Executes a command that changes an open volume, as a process does that serves it alone. Blocks.
    pub(super) fn change(&self, name: &str, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        self.known(name)?.change(command, request, pipe)
    }

    /// Fails what waits for the devices of a volume, and everything later, until it is closed. Does not block.
    pub(super) fn abort(&self, name: &str) -> Result<()> {
        self.look(name, |state| state.stage.context().map(Context::abort)).map(drop)
    }

    /// Sets how clients reach the volumes: from a name to a URI. Only the first call counts.
    pub fn set_uri(&self, uri: impl Fn(&str) -> String + Send + Sync + 'static) {
        let _ = self.uri.set(Box::new(uri));
    }

    /// Returns the URI of a volume.
    pub(super) fn uri(&self, name: &str) -> Option<String> {
        self.uri.get().map(|uri| uri(name))
    }

    /// Shows each volume to `look`.
    pub(super) fn each(&self, mut look: impl FnMut(&str, &EntryState)) {
        self.entries().iter().for_each(|entry| look(&entry.name, &lock(&entry.state)));
    }

    /// Returns what `look` makes of a volume.
    pub(super) fn look<T>(&self, name: &str, look: impl FnOnce(&EntryState) -> T) -> Result<T> {
        Ok(look(&lock(&self.known(name)?.state)))
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let state = lock(&self.state);
        let name = if name.is_empty() { state.default.as_deref()? } else { name };
        state.entries.get(name).cloned()
    }

    /// Returns a removed volume of this name that is not closed yet, if another one has the name and is closed.
    fn replaced(&self, name: &str) -> Option<Arc<Entry>> {
        let state = lock(&self.state);
        let has_stage = |entry: &Arc<Entry>| !matches!(lock(&entry.state).stage, Stage::Closed);
        if state.entries.get(name).is_some_and(has_stage) {
            return None;
        }
        state.replaced.iter().find(|entry| entry.name == name && has_stage(entry)).cloned()
    }

    /// Returns the volume that a command names.
    fn known(&self, name: &str) -> Result<Arc<Entry>> {
        if name.is_empty() {
            return Err(Error::Request("The command names no volume.".to_owned()));
        }
        let entry = self.replaced(name).or_else(|| self.entry(name));
        entry.ok_or_else(|| Error::UnknownVolume { name: name.to_owned() })
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
