//! An open volume of a server of many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use crate::control::engine::EngineInfo;
use crate::control::info::RuntimeInfo;
use crate::control::served::{ControlHooks, ServedVolume};
use crate::{Error, Program, Result};
use inlock_engine::Access;
use inlock_frontend::nbd::exports::ExportServer;
use inlock_frontend::nbd::park::Parking;
use inlock_frontend::nbd::server::ServerOptions;
use inlock_open::Context;
use inlock_open::engine::EngineOptions;
use inlock_open::open::{has_zones, open};
use inlock_open::source::KeySource;
use inlock_open::unlocked::LockedStores;

use super::config::{Opening, VolumeConfig};
use super::key_command;
use crate::trusted_config::Trust;

/// Parts that all volumes of a server share.
pub(super) struct Shared {
    pub program: Arc<dyn Program>,
    pub trust: Trust,
    /// Number of closings that have ended since the server started.
    pub closings: AtomicU64,
    /// One of them has failed: writes may be lost.
    pub has_closing_failed: AtomicBool,
}

impl Shared {
    pub(super) fn new(program: Arc<dyn Program>, trust: Trust) -> Self {
        Self { program, trust, closings: AtomicU64::new(0), has_closing_failed: AtomicBool::new(false) }
    }
}

/// An open volume.
pub(super) struct Running {
    stores: LockedStores,
    pub context: Context,
    pub server: Arc<ExportServer>,
    pub volume: Arc<ServedVolume>,
    pub idle_since: Option<Instant>,
    /// It was reported that a worker cannot start.
    is_start_failure_reported: bool,
}

/// The server closes its volumes itself, and clients of NBD ask for the length and for discards when they connect.
struct OfServer;

impl ControlHooks for OfServer {
    fn close(&self, _deferred: bool) -> Result<()> {
        Err(Error::Request("The server closes the volume.".to_owned()))
    }
}

impl Running {
    pub(super) fn open(
        context: Context,
        name: &str,
        config: &VolumeConfig,
        parking: &Parking,
        shared: &Shared,
    ) -> Result<Self> {
        let Opening { key_command, key_timeout, .. } = &config.opening;
        let read_only = config.opening.config.read_only;
        let mut source = config.opening.source(context.host())?;
        if !read_only && has_zones(&context, &source.options) {
            return Err(Error::Zoned { image: source.options.image });
        }
        if !key_command.is_empty() {
            let key = key_command::run(key_command, name, *key_timeout, shared.trust)?;
            source.options.key.source = KeySource::Bytes(Arc::new(key.into()));
        }
        let engine_args = source.engine;
        let engine = engine_args.map(EngineOptions::start).transpose()?;
        let mut unlocked = open(&context, &source.options, !read_only, None)?;
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
        let info = RuntimeInfo {
            via: "nbd".to_owned(),
            engine: EngineInfo::of(engine_args),
            ring: server.ring_name().to_owned(),
            threads: options.threads,
            ..RuntimeInfo::new(&name, info, &stores.device)
        };
        let volume = Arc::new(ServedVolume::new(context.clone(), info, stores.running(), None, OfServer));
        Ok(Self { stores, context, server, volume, idle_since: None, is_start_failure_reported: false })
    }

    /// Whether its requests wait.
    pub(super) fn is_suspended(&self) -> bool {
        self.stores.device.is_suspended()
    }

    /// Notes since when there are no clients.
    pub(super) fn note_clients(&mut self, now: Instant) {
        if self.server.clients() > 0 {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
    }

    /// Returns what is to be reported: that a worker cannot start, or that it runs again.
    pub(super) fn start_failure_report(&mut self) -> Option<String> {
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
    pub(super) fn close(self) -> Result<()> {
        let Self { stores, server, volume, .. } = self;
        let closed = stores.check_writes(server.stop().map_err(Error::from));
        // The device goes before the locks.
        drop(volume);
        closed
    }
}
