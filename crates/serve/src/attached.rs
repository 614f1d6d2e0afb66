//! Attaching an opened volume under a name: as a block device or a file, with control, until it is detached.
//!
//! It is never detached while it is in use: a request to shut down then waits for its users, as `close --deferred`
//! does. A name whose process died is taken over: a device that awaits recovery gets its process back, and its users
//! see no error.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inlock_engine::Device;
use inlock_open::engine::EngineOptions;
use inlock_open::info::VolumeInfo;
use inlock_open::unlocked::LockedStores;

use crate::attach::attachment::{AttachOptions, Attachment, new_cookie};
use crate::attach::choose::{self, choose};
use crate::attach::link::Link;
use crate::attach::stale;
use crate::control::claim::{Claim, Purpose};
use crate::control::engine::EngineInfo;
use crate::control::info::RuntimeInfo;
use crate::control::listener::Listener;
use crate::control::name::Name;
use crate::control::served::{ControlHooks, ServedVolume};
use crate::control::server::Control;
use crate::error::{Error, Result, Told};
use crate::method::AttachMethod;
use crate::program::Program;

/// Interval of checks whether the device is still attached, or no longer in use.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// A name that is taken for a volume, and the method to attach it.
pub struct Attaching {
    program: Arc<dyn Program>,
    claim: Claim,
    method: AttachMethod,
    /// Number of a device that awaits recovery.
    recover: Option<u32>,
}

/// How an opened volume is served.
pub struct Serving {
    /// Number of workers or threads.
    pub threads: usize,
    /// Cipher engine of the volume.
    pub engine: Option<EngineOptions>,
    /// Listener for scrapers of its metrics.
    pub metrics: Option<Listener>,
}

impl Attaching {
    /// Takes the name, and chooses the method: that of a device that awaits recovery, or `asked`, or the best one here.
    /// `zoned`: the volume has sequential zones, and is writable.
    ///
    /// # Errors
    /// The name is in use, what its former process left cannot be removed, or the method does not work here.
    pub fn begin(
        program: Arc<dyn Program>,
        name: &Name,
        asked: Option<AttachMethod>,
        zoned: impl FnOnce() -> bool,
    ) -> Result<Self> {
        let claim = Claim::take(program.context(), name, Purpose::Attach)?;
        let recover = claim.stale().and_then(|info| stale::awaiting_recovery(info.stale_device()));
        let method = choose(recover.map(|(method, _)| method).or(asked), zoned())?;
        Ok(Self { program, claim, method, recover: recover.map(|(_, number)| number) })
    }

    /// Returns the method.
    pub fn method(&self) -> AttachMethod {
        self.method
    }

    /// Attaches the volume, and starts to serve control commands. `on_detached` is called by another thread when a
    /// command has detached it; [`AttachedVolume::wait`] then returns.
    ///
    /// # Errors
    /// The driver fails, or a device that awaits recovery is that of another volume. Nothing is attached then.
    pub fn attach(
        self,
        volume: VolumeInfo,
        stores: &LockedStores,
        serving: Serving,
        on_detached: impl Fn() + Send + Sync + 'static,
    ) -> Result<AttachedVolume> {
        let Self { program, mut claim, method, recover } = self;
        let device = &stores.device;
        let files = claim.files().clone();
        let options = AttachOptions {
            name: files.name().as_str(),
            file: &files.volume(),
            socket: &files.nbd_socket(),
            completion_log: &files.completion_log(),
            threads: serving.threads,
            recover,
            cookie: claim.stale().and_then(|info| info.device_cookie).map_or_else(new_cookie, Ok)?,
        };
        let info = RuntimeInfo {
            via: method.name().to_owned(),
            ring: if method.has_workers() { "io_uring" } else { "sync" }.to_owned(),
            threads: options.threads,
            engine: EngineInfo::of(serving.engine),
            device_cookie: Some(options.cookie).filter(|_| method.has_workers()),
            ..RuntimeInfo::new(files.name(), volume, device)
        };
        announce(&mut claim, &info)?;
        let attachment = choose::attach(method, device, &options)?;
        // From here on every failure detaches it, or keeps its state file as long as it is attached.
        let open = Arc::new(Open::new(attachment, method, device, on_detached));
        let last = Arc::clone(&open);
        claim.keep_if(move || last.state().detach(last.is_deferred()).is_err());
        let node = open.state().attachment.node().to_owned();
        let info = RuntimeInfo { node: Some(node.clone()), ..info };
        let link = Link::make(program.context(), files.name().as_str(), &node);
        let volume =
            ServedVolume::new(program.context().clone(), info, stores.running(), Some(files), Arc::clone(&open));
        let control = Control::start(program, claim, volume, serving.metrics)?;
        Ok(AttachedVolume { link, open, control, node })
    }
}

/// Publishes what is going to be attached, by which it is found if this process is killed before it is done. A device
/// to recover is in the state file already, and must be that of the same volume.
fn announce(claim: &mut Claim, info: &RuntimeInfo) -> Result<()> {
    match claim.stale() {
        Some(stale) => stale.check_same_volume(info),
        // Without a node it is not recovered, so it needs no fingerprint of the key.
        None => claim.publish(&RuntimeInfo { check: None, ..info.clone() }),
    }
}

/// Requests to shut down, such as signals.
pub trait Shutdown {
    /// Waits, for `limit` at most. Returns whether the volume is to be detached.
    ///
    /// # Errors
    /// It cannot wait; the volume is detached.
    fn wait(&self, limit: Duration) -> Result<bool>;

    /// Takes the reason why the volume is not detached yet. It will be when it is no longer in use.
    fn postponed(&self, held: Error);
}

/// An attached volume. Detached when dropped, unless it is in use.
pub struct AttachedVolume {
    // Dropped in this order.
    link: Option<Link>,
    control: Control,
    open: Arc<Open>,
    node: PathBuf,
}

impl AttachedVolume {
    /// Returns the path of the device or file.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Returns the path of the log of a background process.
    pub fn log(&self) -> PathBuf {
        self.control.log()
    }

    /// Blocks until it is detached, by this or another process.
    ///
    /// # Errors
    /// A worker has failed, and the device awaits recovery; or detaching has failed.
    pub fn wait(&self, shutdown: &impl Shutdown) -> Result<()> {
        self.open.wait(shutdown)
    }

    /// Removes the link to the device, which another volume may get from now on.
    pub fn remove_link(&mut self) {
        self.link = None;
    }

    /// Releases the name when the volume is detached and closed, and sends the outcome to the clients that wait for it.
    pub fn finish(mut self, outcome: Result<(), Told>) {
        self.remove_link();
        self.control.finish(outcome);
    }
}

struct Open {
    /// Whether the device was created with discard support.
    discards: bool,
    method: AttachMethod,
    /// Detach as soon as it is no longer in use. Changes under the lock of `state`, and is read without it, since
    /// detaching may take long.
    deferred: AtomicBool,
    state: Mutex<State>,
    on_detached: Box<dyn Fn() + Send + Sync>,
}

struct State {
    attachment: Box<dyn Attachment>,
    /// Outcome of detaching.
    outcome: Option<Result<()>>,
    is_detached: bool,
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.is_detached {
            // Another error is reported already.
            let _ = self.attachment.detach(false);
        }
    }
}

impl Open {
    fn new(
        attachment: Box<dyn Attachment>,
        method: AttachMethod,
        device: &Device,
        on_detached: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            discards: device.access().allow_discards,
            method,
            deferred: AtomicBool::new(false),
            state: Mutex::new(State { attachment, outcome: None, is_detached: false }),
            on_detached: Box::new(on_detached),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_deferred(&self) -> bool {
        self.deferred.load(Ordering::Acquire)
    }

    fn wait(&self, shutdown: &impl Shutdown) -> Result<()> {
        loop {
            let mut state = self.state();
            if state.outcome.is_none() && (self.is_deferred() || !state.attachment.is_attached()) {
                let held = state.detach(self.is_deferred());
                // Another process can recover it. If it is just in use, the loop continues.
                if held.is_err() && state.attachment.needs_recovery() {
                    return Err(Error::WorkerFailed { node: state.attachment.node().to_owned() });
                }
            }
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            drop(state);
            if shutdown.wait(POLL_INTERVAL)? {
                self.shut_down(shutdown);
            }
        }
    }

    fn shut_down(&self, shutdown: &impl Shutdown) {
        let mut state = self.state();
        if state.outcome.is_none()
            && let Err(held) = state.detach(self.is_deferred())
        {
            shutdown.postponed(held);
            self.deferred.store(true, Ordering::Release);
        }
    }
}

impl State {
    /// Detaches it. Fails only if it is in use; any other outcome is stored for [`Open::wait`].
    fn detach(&mut self, deferred: bool) -> Result<()> {
        if self.is_detached {
            return Ok(());
        }
        match self.attachment.detach(deferred) {
            Err(held @ Error::Held { .. }) => Err(held),
            outcome => {
                self.outcome = Some(outcome);
                self.is_detached = true;
                Ok(())
            }
        }
    }
}

impl ControlHooks for Arc<Open> {
    fn close(&self, deferred: bool) -> Result<()> {
        let mut state = self.state();
        if state.outcome.is_some() {
            return Ok(());
        }
        if deferred {
            self.deferred.store(true, Ordering::Release);
        }
        match state.detach(self.is_deferred()) {
            Ok(()) => {
                (self.on_detached)();
                Ok(())
            }
            Err(_) if deferred => Ok(()),
            held => held,
        }
    }

    fn cancel_deferred(&self) -> Result<()> {
        let state = self.state();
        if self.method == AttachMethod::Loop && self.is_deferred() {
            return Err(Error::DetachesItself { node: state.attachment.node().to_owned() });
        }
        self.deferred.store(false, Ordering::Release);
        Ok(())
    }

    fn is_close_deferred(&self) -> bool {
        self.is_deferred()
    }

    fn check_discards(&self) -> Result<()> {
        if !self.method.has_discards() {
            return Err(Error::MethodWithoutDiscards { method: self.method });
        }
        if !self.discards {
            return Err(Error::DeviceWithoutDiscards { node: self.state().attachment.node().to_owned() });
        }
        Ok(())
    }

    fn resized(&self, len: u64) -> Result<()> {
        self.state().attachment.update_len(len)
    }
}

#[cfg(test)]
mod tests;
