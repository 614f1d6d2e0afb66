//! A volume of a server: closed, opening, open or closing.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::control::info::Described;
use crate::{Error, Reply, Result};
use inlock_frontend::nbd::exports::{Lease, Unavailable};
use inlock_frontend::nbd::park::Parking;
use inlock_open::Context;
use inlock_open::error::message_of;
use serde_json::Value;

use super::backoff::Backoff;
use super::config::VolumeConfig;
use super::running::{Running, Shared};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume. Its lock is held for moments only, never while it opens, closes or changes.
pub(super) struct Entry {
    pub name: String,
    /// Clients that wait until it is open.
    pub waiting: AtomicUsize,
    pub state: Mutex<EntryState>,
    /// The stage has changed, or a command has ended.
    changed: Condvar,
    shared: Arc<Shared>,
}

pub(super) struct EntryState {
    /// Configuration of the next opening; one that has begun with another compares when it ends.
    pub config: VolumeConfig,
    pub stage: Stage,
    /// A command changes it; it is not closed meanwhile.
    pub is_changing: bool,
    /// It was added by a command, and the file does not have it.
    pub is_added: bool,
    /// It was removed, or the server stops.
    pub is_removed: bool,
    /// Failure of the last closing, on any thread: writes may be lost. Commands that find the volume closed report it;
    /// one that is opened again forgets it.
    pub close_failure: Option<String>,
    /// Some closing has failed since the server started.
    pub has_closing_failed: bool,
    /// Failures to open it. A command or a new configuration forgets them.
    pub backoff: Backoff,
}

pub(super) enum Stage {
    Closed,
    /// Its devices can be given up by the context.
    Opening(Context),
    Open(Box<Running>),
    /// Until its writes are durable.
    Closing(Box<Closing>),
}

/// An open volume that is being closed.
pub(super) struct Closing {
    /// Gives its devices up.
    pub context: Context,
    pub described: Described,
}

/// Treatment of a volume that is opening when it is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfOpening {
    /// Blocks until it is open, and closes it.
    Wait,
    /// Leaves it to the thread that opens it, which finds it removed or changed.
    Leave,
}

/// Effect of a new configuration on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
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
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let Stage::Open(running) = &self.stage else { return false };
        if self.is_changing {
            return false;
        }
        // A suspended volume waits for its key, and not for clients.
        let is_unused = running.server.clients() == 0 && !running.is_suspended();
        let idle = running.idle_since.filter(|_| is_unused);
        let idle = idle.map(|since| now.saturating_duration_since(since));
        let is_idle_for_long = self.config.idle_timeout.zip(idle).is_some_and(|(timeout, idle)| idle >= timeout);
        !running.server.is_healthy() || is_idle_for_long
    }
}

impl Entry {
    pub(super) fn new(name: String, config: VolumeConfig, is_added: bool, shared: &Arc<Shared>) -> Arc<Self> {
        let state = EntryState {
            config,
            stage: Stage::Closed,
            is_changing: false,
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
            shared: Arc::clone(shared),
        })
    }

    /// Prints a message about the volume. Does not block.
    pub(super) fn log(&self, text: impl std::fmt::Display) {
        self.shared.program.log(&format_args!("volume {}", self.name), &text);
    }

    /// Blocks until the stage changes.
    fn wait<'a>(&self, state: MutexGuard<'a, EntryState>) -> MutexGuard<'a, EntryState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the right to connect a client. Opens the volume first if it is closed. Blocks.
    pub(super) fn lease(&self, parking: &Parking) -> Result<Lease, Unavailable> {
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
                Stage::Opening(_) | Stage::Closing(_) => state = self.wait(state),
            }
        }
    }

    /// Opens the volume, unless it is removed or gets other options meanwhile.
    fn open<'a>(
        &'a self,
        mut state: MutexGuard<'a, EntryState>,
        parking: &Parking,
    ) -> Result<MutexGuard<'a, EntryState>, Unavailable> {
        // Its devices alone are given up by `close --force`.
        let context = self.shared.program.context().separate();
        state.stage = Stage::Opening(context.clone());
        let config = state.config.clone();
        drop(state);
        let opened = caught(|| Running::open(context, &self.name, &config, parking, &self.shared));
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

    /// Executes a command that changes the open volume, one at a time. Blocks.
    pub(super) fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        let mut state = lock(&self.state);
        let Stage::Open(running) = &state.stage else {
            return Err(Error::NotOpen { name: self.name.clone(), state: state.name().to_owned() });
        };
        if state.is_removed {
            return Err(Error::NotOpen { name: self.name.clone(), state: state.name().to_owned() });
        }
        if state.is_changing {
            return Err(Error::InProgress);
        }
        let volume = Arc::clone(&running.volume);
        state.is_changing = true;
        drop(state);
        let reply = volume.change(command, request, pipe);
        // The next thread to close the volume has the last reference to its keys.
        drop(volume);
        lock(&self.state).is_changing = false;
        self.changed.notify_all();
        reply
    }

    /// Takes over a configuration of the file.
    pub(super) fn configure(&self, config: &VolumeConfig) -> Change {
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
            Stage::Closed | Stage::Opening(_) | Stage::Closing(_) => {}
        }
        Change::Applied
    }

    /// Takes no more clients. Refuses if there are some, unless `force`.
    pub(super) fn retire(&self, force: bool) -> Result<()> {
        let mut state = lock(&self.state);
        if state.is_removed {
            return Err(Error::NotOpen { name: self.name.clone(), state: state.name().to_owned() });
        }
        self.check_unused(&state, force)?;
        state.is_removed = true;
        Ok(())
    }

    /// Refuses if the volume has clients, unless `force`.
    pub(super) fn check_unused(&self, state: &EntryState, force: bool) -> Result<()> {
        let clients = match &state.stage {
            Stage::Open(running) => running.server.clients(),
            Stage::Opening(_) => self.waiting.load(Ordering::Acquire).max(1),
            Stage::Closed | Stage::Closing(_) => 0,
        };
        if clients > 0 && !force {
            return Err(Error::VolumeInUse { name: self.name.clone(), clients });
        }
        Ok(())
    }

    /// Closes the volume if it is idle still. Blocks.
    pub(super) fn close_if_due(&self) {
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
    pub(super) fn close(&self, opening: IfOpening) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            match (&state.stage, opening) {
                (Stage::Closed, _) => {
                    return state.close_failure.clone().map_or(Ok(()), |text| Err(Error::LastClosing(text)));
                }
                (Stage::Opening(_), IfOpening::Leave) => return Ok(()),
                (Stage::Open(_), _) if !state.is_changing => return self.end(state),
                // Also until a command has ended, and as long as another thread closes it.
                _ => state = self.wait(state),
            }
        }
    }

    /// Closes the volume, which is open and which no command changes. Blocks, without the lock.
    pub(super) fn end(&self, mut state: MutexGuard<'_, EntryState>) -> Result<()> {
        let Stage::Open(running) = &state.stage else { return Ok(()) };
        let Running { context, volume, .. } = &**running;
        let closing = Closing { context: context.clone(), described: volume.describe() };
        let closing = Stage::Closing(Box::new(closing));
        let Stage::Open(running) = std::mem::replace(&mut state.stage, closing) else { return Ok(()) };
        drop(state);
        let closed = caught(|| running.close());
        if let Err(error) = &closed {
            self.log(message_of(error));
        }
        self.shared.has_closing_failed.fetch_or(closed.is_err(), Ordering::AcqRel);
        self.shared.closings.fetch_add(1, Ordering::AcqRel);
        let mut state = lock(&self.state);
        state.stage = Stage::Closed;
        state.close_failure = closed.as_ref().err().map(|error| message_of(error));
        state.has_closing_failed |= closed.is_err();
        drop(state);
        self.changed.notify_all();
        closed
    }
}

/// Returns what `run` does, or an error after a panic: others wait for the stage that follows.
pub(super) fn caught<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(Error::other("a defect of the server")))
}
