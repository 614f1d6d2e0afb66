//! The volumes of a server: opened when first used, closed when idle, changed when the file is loaded again.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use inlock_engine::Access;
use inlock_frontend::nbd::exports::{Catalog, ExportServer, Lease, Unavailable};
use inlock_frontend::nbd::park::Parking;
use inlock_frontend::nbd::server::ServerOptions;
use inlock_frontend::nbd::tls::{TlsOptions, TlsServer};
use serde_json::{Map, Value, json};

use super::config::{self, Config, Opening, VolumeConfig};
use super::key_command;
use crate::error::{CliError, message_of};
use crate::system::pipe;
use crate::tls;
use crate::ui::print::print_stderr;
use crate::volume::engine::EngineArgs;
use crate::volume::open::{KeySource, has_zones, open};
use crate::volume::source::KeyFile;
use crate::volume::unlocked::LockedStores;

/// Clients that may wait for a volume to open; further ones are refused, so that a volume whose key does not come
/// cannot use up the handshakes of the server.
const MAX_WAITING: usize = 16;
/// Volumes that are closed at the same time.
const CLOSING_AT_ONCE: usize = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All volumes of a server.
pub(crate) struct Volumes {
    file: PathBuf,
    state: Mutex<State>,
    /// TLS for all clients, as the file had it first.
    tls: Option<(TlsOptions, Arc<TlsServer>)>,
    /// Held while the file is loaded again.
    reloading: Mutex<()>,
    /// Clients at rest.
    parking: Parking,
}

struct State {
    default: Option<String>,
    entries: BTreeMap<String, Arc<Entry>>,
}

struct Entry {
    name: String,
    waiting: AtomicUsize,
    /// Whether clients see it in the list of exports, which must not wait for a volume that opens.
    listed: AtomicBool,
    slot: Mutex<Slot>,
}

struct Slot {
    config: VolumeConfig,
    running: Option<Running>,
    /// It was removed from the file, or the server stops.
    is_removed: bool,
}

/// An open volume.
struct Running {
    stores: LockedStores,
    server: Arc<ExportServer>,
    idle_since: Option<Instant>,
}

impl Volumes {
    /// Reads the file.
    pub(crate) fn load(file: &Path) -> anyhow::Result<Self> {
        let file = std::path::absolute(file)?;
        let Config { default, tls, volumes } = config::read(&file)?;
        let tls = match tls {
            None => None,
            Some(options) => {
                let server = Arc::new(tls::load(&options)?);
                Some((options, server))
            }
        };
        let entries = volumes.into_iter().map(Entry::new).collect();
        Ok(Self {
            file,
            state: Mutex::new(State { default, entries }),
            tls,
            reloading: Mutex::default(),
            parking: Parking::start()?,
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

    /// Loads the file again. An invalid file changes nothing. Blocks until removed volumes are closed.
    pub(crate) fn reload(&self) -> anyhow::Result<String> {
        let _reloading = lock(&self.reloading);
        let Config { default, tls, volumes } = config::read(&self.file)?;
        self.reload_tls(tls.as_ref())?;
        let (mut added, mut changed, mut to_close) = (0, 0, Vec::new());
        let mut state = lock(&self.state);
        let names: Vec<_> = state.entries.keys().filter(|name| !volumes.contains_key(*name)).cloned().collect();
        let removed: Vec<_> = names.iter().filter_map(|name| state.entries.remove(name)).collect();
        for (name, config) in volumes {
            match state.entries.get(&name) {
                None => {
                    added += 1;
                    let (name, entry) = Entry::new((name, config));
                    state.entries.insert(name, entry);
                }
                Some(entry) => to_close.push((Arc::clone(entry), config)),
            }
        }
        state.default = default;
        drop(state);
        // Behind the lock of the state: a volume that opens holds its slot for long.
        let count = removed.len();
        close_all(&removed, true);
        let mut restarted = Vec::new();
        for (entry, config) in to_close {
            let mut slot = lock(&entry.slot);
            if slot.config == config {
                continue;
            }
            changed += 1;
            entry.listed.store(config.listed, Ordering::Relaxed);
            if slot.config.opening != config.opening || slot.config.max_clients != config.max_clients {
                restarted.push(Arc::clone(&entry));
            } else if let Some(running) = &slot.running {
                running.server.set_limits(config.limits);
            }
            slot.config = config;
        }
        close_all(&restarted, false);
        Ok(format!("{added} volumes added, {count} removed, {changed} changed"))
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

    /// Closes volumes that have been idle for long enough, or whose workers have failed.
    pub(crate) fn close_idle(&self) {
        let entries: Vec<_> = lock(&self.state).entries.values().cloned().collect();
        let now = Instant::now();
        for entry in entries {
            // A volume that is being opened is not idle.
            let Ok(mut slot) = entry.slot.try_lock() else { continue };
            let timeout = slot.config.idle_timeout;
            let Some(running) = &mut slot.running else { continue };
            if running.server.clients() > 0 {
                running.idle_since = None;
            }
            let since = match running.server.clients() {
                0 => *running.idle_since.get_or_insert(now),
                _ => now,
            };
            if !running.server.is_healthy() || timeout.is_some_and(|timeout| now - since >= timeout) {
                slot.close(&entry.name);
            }
        }
    }

    /// Closes all volumes for good, and returns whether all writes are on stable storage. Blocks.
    pub(crate) fn has_stopped_without_loss(&self) -> bool {
        let entries: Vec<_> = std::mem::take(&mut lock(&self.state).entries).into_values().collect();
        close_all(&entries, true)
    }

    /// Closes an idle or busy volume; the next client opens it again.
    pub(crate) fn close(&self, name: &str) -> anyhow::Result<()> {
        let entry = self.entry(name).ok_or_else(|| CliError::Inactive { name: name.to_owned() })?;
        close_all(&[entry], false);
        Ok(())
    }

    /// Describes all volumes.
    pub(crate) fn list(&self) -> Value {
        let entries: Vec<_> = lock(&self.state).entries.values().cloned().collect();
        Value::Array(entries.iter().map(|entry| entry.describe()).collect())
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let state = lock(&self.state);
        let name = if name.is_empty() { state.default.as_deref()? } else { name };
        state.entries.get(name).cloned()
    }
}

/// Closes volumes, several at a time: each may take as long as its clients have to receive their last replies.
fn close_all(entries: &[Arc<Entry>], for_good: bool) -> bool {
    let close = |entry: &Arc<Entry>| {
        let mut slot = lock(&entry.slot);
        slot.is_removed |= for_good;
        slot.close(&entry.name)
    };
    let mut is_flushed = true;
    for some in entries.chunks(CLOSING_AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|entry| scope.spawn(move || close(entry))).collect();
            for thread in threads {
                is_flushed &= thread.join().unwrap_or(false);
            }
        });
    }
    is_flushed
}

impl Entry {
    fn new((name, config): (String, VolumeConfig)) -> (String, Arc<Self>) {
        let listed = AtomicBool::new(config.listed);
        let slot = Mutex::new(Slot { config, running: None, is_removed: false });
        (name.clone(), Arc::new(Self { name, waiting: AtomicUsize::new(0), listed, slot }))
    }

    fn lease(&self, parking: &Parking) -> Result<Lease, Unavailable> {
        let mut slot = lock(&self.slot);
        if slot.is_removed {
            return Err(Unavailable::Unknown);
        }
        if slot.running.is_none() {
            match Running::open(&self.name, &slot.config, parking) {
                Ok(running) => slot.running = Some(running),
                Err(error) => {
                    print_stderr(format_args!("inlock: volume {}: {}", self.name, message_of(&error)));
                    return Err(Unavailable::Refused);
                }
            }
        }
        let running = slot.running.as_mut().ok_or(Unavailable::Refused)?;
        running.idle_since = None;
        running.server.lease().ok_or(Unavailable::Refused)
    }

    fn describe(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_owned(), json!(self.name));
        // A volume that is being opened keeps its slot.
        let Ok(slot) = self.slot.try_lock() else {
            fields.insert("state".to_owned(), json!("opening"));
            return Value::Object(fields);
        };
        let state = if slot.running.is_some() { "open" } else { "closed" };
        let clients = slot.running.as_ref().map_or(0, |running| running.server.clients());
        fields.insert("state".to_owned(), json!(state));
        fields.insert("clients".to_owned(), json!(clients));
        fields.insert("max_operations".to_owned(), json!(slot.config.limits.operations));
        fields.insert("max_bytes".to_owned(), json!(slot.config.limits.bytes));
        Value::Object(fields)
    }
}

impl Slot {
    /// Closes the volume: answers what was read, disconnects its clients, flushes, and wipes its keys. Returns whether
    /// all writes are on stable storage.
    fn close(&mut self, name: &str) -> bool {
        let Some(Running { stores, server, .. }) = self.running.take() else { return true };
        let closed = stores.check_writes(server.stop().map_err(Into::into));
        if let Err(error) = &closed {
            print_stderr(format_args!("inlock: volume {name}: {}", message_of(error)));
        }
        closed.is_ok()
    }
}

impl Running {
    fn open(name: &str, config: &VolumeConfig, parking: &Parking) -> anyhow::Result<Self> {
        let Opening { key_command, key_timeout, read_only, .. } = &config.opening;
        let mut source = config.opening.source()?;
        if !read_only && has_zones(&source.source) {
            return Err(CliError::refused(
                format!("{} is zoned; NBD clients can only read it.", source.source.image.display()),
                "set read-only = true",
            ));
        }
        let key = match key_command.is_empty() {
            true => None,
            false => Some(pipe::filled(&key_command::run(key_command, name, *key_timeout)?)?),
        };
        if let Some(key) = &key {
            source.source.key.file = Some(KeyFile::Path(format!("/proc/self/fd/{}", key.as_raw_fd()).into()));
        }
        let engine = source.engine.map(EngineArgs::start).transpose()?;
        let mut unlocked = open(&source.source, !read_only, KeySource::User { stdin_taken: true })?;
        drop(key);
        unlocked.use_engine(engine);
        let access = Access { read_only: *read_only, allow_discards: unlocked.info.flags.allow_discards };
        let stores = unlocked.into_device(source.io, access)?;
        let mut options = ServerOptions::default();
        options.export_name = name.to_owned();
        options.description = "served by Inlock".to_owned();
        options.threads = source.threads;
        options.io = source.io;
        options.max_connections = config.max_clients;
        let server = Arc::new(ExportServer::start(Arc::clone(&stores.device), &options, config.limits, parking)?);
        Ok(Self { stores, server, idle_since: None })
    }
}

impl Catalog for Volumes {
    fn names(&self) -> Vec<String> {
        let entries: Vec<_> = lock(&self.state).entries.values().cloned().collect();
        let is_listed = |entry: &Entry| entry.listed.load(Ordering::Relaxed);
        entries.iter().filter(|entry| is_listed(entry)).map(|entry| entry.name.clone()).collect()
    }

    fn open(&self, name: &str) -> Result<Lease, Unavailable> {
        let entry = self.entry(name).ok_or(Unavailable::Unknown)?;
        if entry.waiting.fetch_add(1, Ordering::AcqRel) >= MAX_WAITING {
            entry.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(Unavailable::Refused);
        }
        let lease = entry.lease(&self.parking);
        entry.waiting.fetch_sub(1, Ordering::AcqRel);
        lease
    }
}
