//! A volume that this process serves, and what control commands do to it.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use inlock_cipher::scrub_stack;
use inlock_engine::{ControlError, Device};
use inlock_integrity::NewBlocks;
use inlock_volume::table::{AnyTable, CryptOptions};
use inlock_volume::{Printable, Table, VolumeKey};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::info::{Described, NextVolume, RuntimeInfo, VolumeStatus};
use super::metrics::Sample;
use super::openmetrics::{self, Text};
use crate::error::{Error, Reply, Result, ResultExt, Told};
use crate::pipe;
use inlock_open::Context;
use inlock_open::key_check::KeyCheck;
use inlock_open::layer::{Layer, NewTable, Resized, RunningVolume};
use inlock_open::reencryption::online::{Finished, OnlineOptions, check_key};
use inlock_open::reload::reload;

/// Maximum length of a table, in bytes: the capacity of a pipe.
const TABLE_MAX: usize = 65536;
/// Maximum length in bytes of the changes to a LUKS2 header, in base64: both copies and all keyslots.
const HEADER_MAX: usize = 32 << 20;

/// Effects of control commands on how a volume is served or attached.
pub trait ControlHooks: Send + Sync {
    /// Starts to close, and the process exits soon after. Fails if the volume is in use; with `deferred` it closes as
    /// soon as it no longer is.
    fn close(&self, deferred: bool) -> Result<()>;

    /// Stops waiting until the volume is no longer in use, for a request to close that was deferred.
    fn cancel_deferred(&self) -> Result<()> {
        Err(Error::NotDeferred)
    }

    /// Whether the volume closes as soon as it is no longer in use.
    fn is_close_deferred(&self) -> bool {
        false
    }

    /// Refuses to allow discards if clients have learned that there are none.
    fn check_discards(&self) -> Result<()> {
        Ok(())
    }

    /// Announces the new length to the users of the volume.
    fn resized(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}

/// A volume that this process serves.
pub struct ServedVolume {
    info: Arc<Mutex<RuntimeInfo>>,
    device: Arc<Device>,
    opened: Instant,
    key_present: AtomicBool,
    hooks: Box<dyn ControlHooks>,
    files: Option<Files>,
    layer: Arc<dyn Layer>,
    context: Context,
}

impl ServedVolume {
    /// `context`: that in which it was opened. `files`: those of its name in the run directory.
    pub fn new(
        context: Context,
        info: RuntimeInfo,
        (device, layer): (Arc<Device>, Arc<dyn Layer>),
        files: Option<Files>,
        hooks: impl ControlHooks + 'static,
    ) -> Self {
        Self {
            key_present: AtomicBool::new(info.has_key()),
            info: Arc::new(Mutex::new(info)),
            device,
            layer,
            opened: Instant::now(),
            hooks: Box::new(hooks),
            files,
            context,
        }
    }

    fn info(&self) -> MutexGuard<'_, RuntimeInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the address for scrapers, and returns a copy of the information.
    pub fn with_metrics(&self, address: Option<String>) -> RuntimeInfo {
        let mut info = self.info();
        info.metrics = address;
        info.clone()
    }

    /// Returns the description without what is for the state file alone.
    fn told(&self) -> RuntimeInfo {
        RuntimeInfo { next: None, ..self.info().clone() }
    }

    /// Returns the status. Does not block.
    pub fn status(&self) -> VolumeStatus {
        let snapshot = self.device.stats().snapshot();
        VolumeStatus {
            key_present: self.info().has_key() && self.key_present.load(Ordering::Acquire),
            close_deferred: self.hooks.is_close_deferred(),
            ..VolumeStatus::of(self.told(), &self.device, &*self.layer, &snapshot)
        }
    }

    /// Describes the volume without its counters and latencies. Does not block.
    pub fn describe(&self) -> Described {
        let store_errors = self.device.stats().snapshot().store_errors;
        Described { info: self.told(), suspended: self.device.is_suspended(), closing: false, store_errors }
    }

    /// Writes the metrics of the volume among those of others.
    pub fn write_metrics(&self, text: &mut Text) {
        text.volume(&self.status(), &self.device.stats().snapshot(), false);
    }

    /// Returns the metrics with whole histograms, from which differences are computed.
    pub fn sample(&self) -> Sample {
        Sample::new(&self.device, &*self.layer, self.opened)
    }

    /// Returns the metrics for a scraper.
    pub fn metrics(&self) -> String {
        openmetrics::text([(&self.status(), &self.device.stats().snapshot())])
    }

    /// Executes a command that may block, one at a time. `pipe` came with the request.
    pub fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        guarded(command, || self.execute(command, request, pipe))
    }

    fn execute(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        match command {
            "close" => self.hooks.close(is_deferred(request))?,
            "suspend" => self.suspend()?,
            "resume" => self.resume(pipe)?,
            "reload" => self.reload(pipe)?,
            "refresh" => self.refresh(request)?,
            "resize" => return self.resize(request),
            "reencrypt" => self.reencrypt(request, pipe)?,
            "cancel_deferred" => self.hooks.cancel_deferred()?,
            _ => return Err(Error::Request(format!("The process does not know the command '{command}'."))),
        }
        Ok(Map::new())
    }

    /// Fails the requests that wait for an NBD server, and all later ones. Does not block.
    pub fn abort(&self) {
        self.context.abort();
    }

    /// Suspends I/O and wipes the key.
    fn suspend(&self) -> Result<()> {
        let name = self.info().name.clone();
        if self.device.is_suspended() {
            return Err(Error::Suspended { name });
        }
        self.layer.check_suspend(RunningVolume { name: &name, device: &self.device })?;
        // Even if the flush fails, the device is suspended, and the key must be wiped.
        let suspended = self.device.suspend();
        // One that was decrypted meanwhile has none.
        let has_key = self.info().has_key() && self.key_present.load(Ordering::Acquire);
        if has_key && self.device.is_suspended() {
            let wiped = self.layer.wipe_key(&self.device);
            let gone = matches!(wiped, Ok(()) | Err(ControlError::InUse));
            self.key_present.store(!gone, Ordering::Release);
            wiped?;
        }
        Ok(suspended?)
    }

    /// Replaces the table. It brings its own keys; a suspended volume stays suspended.
    fn reload(&self, pipe: Option<OwnedFd>) -> Result<()> {
        let Some(pipe) = pipe else { return Err(Error::Request("The table is missing.".to_owned())) };
        let text = pipe::read_text(&pipe, TABLE_MAX).context("cannot receive the table")?;
        let table = AnyTable::parse(std::str::from_utf8(&text).context("the table is not text")?)?;
        let name = self.info().name.clone();
        let volume = RunningVolume { name: &name, device: &self.device };
        match self.layer.accept_table(&self.context, volume, table)? {
            NewTable::Lines(table) => self.reload_lines(&table),
            NewTable::Key(key, flags) => self.restore_key(&key, &flags),
        }
    }

    /// Replaces the state file.
    fn publish(&self, info: &RuntimeInfo) -> Result<()> {
        self.files.as_ref().map_or(Ok(()), |files| files.publish(info))
    }

    fn reload_lines(&self, table: &Table) -> Result<()> {
        let before = self.device.len();
        let old = self.info().clone();
        let mut info = old.clone();
        let mapping = info.set_table(reload(&self.context, table, &self.device, &old.segments, &old.devices)?);
        // If this process dies, its successor must find this table, and have its keys.
        self.publish(&info)?;
        if let Err(error) = self.device.reload(mapping) {
            self.publish(&old)?;
            return Err(match error {
                ControlError::Shorter { .. } | ControlError::LargerUnit { .. } => Error::Table { source: error },
                error => error.into(),
            });
        }
        self.key_present.store(info.has_key(), Ordering::Release);
        *self.info() = info;
        let len = self.device.len();
        if len > before { self.hooks.resized(len) } else { Ok(()) }
    }

    /// Takes the key and the flags of a volume from its table, the only one that it accepts.
    fn restore_key(&self, key: &VolumeKey, flags: &CryptOptions) -> Result<()> {
        if !self.info().check.as_ref().is_some_and(|check| check.is_made_with(key)) {
            return Err(inlock_open::Error::other_key().into());
        }
        let mut info = self.info().clone();
        info.set_flags(flags);
        self.publish(&info)?;
        self.layer.set_key(&self.device, key)?;
        *self.info() = info;
        self.key_present.store(true, Ordering::Release);
        Ok(())
    }

    /// Sets the flags of the volume to those of its header or table, and those of the request. With `persistent` the
    /// client stores those of the request in the header afterwards, where they replace the others.
    fn refresh(&self, request: &Value) -> Result<()> {
        let names = request["flags"].as_array().map(Vec::as_slice).unwrap_or_default();
        let asked = CryptOptions::named(names.iter().map(|name| name.as_str().unwrap_or_default()));
        let mut flags = asked.ok_or_else(|| Error::Request("The process does not know these flags.".to_owned()))?;
        let mut info = self.info().clone();
        if request["persistent"] == true {
            info.own_flags = flags;
        } else {
            flags.add(&info.own_flags);
        }
        if flags.allow_discards && !info.allow_discards {
            self.hooks.check_discards()?;
        }
        info.set_flags(&flags);
        self.publish(&info)?;
        self.device.allow_discards(flags.allow_discards);
        *self.info() = info;
        Ok(())
    }

    /// Gives the volume a length in sectors, or grows it to the current length of the underlying device.
    fn resize(&self, request: &Value) -> Reply {
        let name = self.info().name.clone();
        if self.device.is_suspended() {
            // The kernel may wait for suspended requests, and resuming them would wait for this command.
            return Err(Error::SuspendedResize { name });
        }
        let new_blocks = if request["wipe"] == true { NewBlocks::Wipe } else { NewBlocks::Recalculate };
        let volume = RunningVolume { name: &name, device: &self.device };
        let Resized { len, wanted } = self.layer.resize(volume, request["sectors"].as_u64(), new_blocks)?;
        // Even if it has not grown: an earlier announcement may have failed.
        self.hooks.resized(len)?;
        Ok(Map::from_iter([("sectors".to_owned(), (len / 512).into()), ("wanted".to_owned(), (wanted / 512).into())]))
    }

    /// Goes on with a re-encryption that the client has begun in the header, or changes one that runs.
    fn reencrypt(&self, request: &Value, pipe: Option<OwnedFd>) -> Result<()> {
        let Some(online) = self.layer.reencryption() else {
            return Err(Error::Request("Only an open LUKS2 volume can be re-encrypted.".to_owned()));
        };
        match request["action"].as_str().unwrap_or_default() {
            "pause" => online.pause()?,
            "resume" if pipe.is_none() => online.resume()?,
            "rate" => online.set_rate(request["rate"].as_u64())?,
            // Before the header says that a re-encryption has begun, which this process could not go on with.
            "check" => {
                let Some(pipe) = pipe else { return Err(Error::KeyMissing { name: self.info().name.clone() }) };
                let key = pipe::read_key(&pipe).context("cannot receive the key")?;
                check_key(self.info().check.clone().as_ref(), &key)?;
            }
            "begin" => {
                self.check_writable()?;
                let Some(pipe) = pipe else { return Err(Error::Request("The header is missing.".to_owned())) };
                let text = pipe::read_long(&pipe, HEADER_MAX).context("cannot receive the header")?;
                online.begin(&serde_json::from_slice(&text)?)?;
            }
            "start" | "resume" => {
                let name = self.info().name.clone();
                self.check_writable()?;
                let Some(pipe) = pipe else { return Err(Error::KeyMissing { name }) };
                let joined = pipe::read_key(&pipe).context("cannot receive the keys")?;
                let change = |change: fn(&mut RuntimeInfo, Finished)| {
                    let (info, files) = (Arc::clone(&self.info), self.files.clone());
                    Box::new(move |new: Finished| {
                        let mut info = info.lock().unwrap_or_else(PoisonError::into_inner);
                        change(&mut info, new);
                        // A status does not wait for the disk. The next change publishes it if this fails.
                        let changed = info.clone();
                        drop(info);
                        let _ = files.map(|files| files.publish(&changed));
                    })
                };
                // A device that awaits recovery is found to be of this volume at any time.
                let begun = change(|info, new| {
                    let key_fingerprint = new.check.and_then(|check| check.fingerprint().ok());
                    info.next = Some(NextVolume { segments: new.segments, key_fingerprint });
                });
                let finished =
                    change(|info, new| (info.segments, info.check, info.next) = (new.segments, new.check, None));
                let options = OnlineOptions {
                    longest_zone: request["zone"].as_u64(),
                    rate: request["rate"].as_u64(),
                    keeps_holes: request["keep_holes"] == true,
                    is_paused: request["paused"] == true,
                    begun,
                    finished,
                };
                let check = self.info().check.clone();
                online.go_on(&self.device, (&joined, check.as_ref()), options)?;
            }
            other => return Err(Error::Request(format!("The process does not know the action '{other}'."))),
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        match self.device.access().read_only {
            true => Err(Error::Request(format!("Volume {} is read-only.", self.info().name))),
            false => Ok(()),
        }
    }

    /// Restores the key, if it was wiped, and resumes I/O.
    fn resume(&self, pipe: Option<OwnedFd>) -> Result<()> {
        let info = self.info().clone();
        if !self.device.is_suspended() {
            return Err(Error::NotSuspended { name: info.name });
        }
        if info.has_key() && !self.key_present.load(Ordering::Acquire) {
            let Some(pipe) = pipe else { return Err(Error::KeyMissing { name: info.name }) };
            let taken = self.take_key(&pipe, info.check.as_ref());
            scrub_stack::<{ 64 << 10 }>();
            taken?;
            self.key_present.store(true, Ordering::Release);
            if self.device.engine_stats().is_some_and(|engine| engine.keys == 0) {
                let name = &info.name;
                let text = format_args!("{name}: the cipher engine refuses the key; software is used instead");
                self.context.warn(text);
            }
        }
        Ok(self.device.resume()?)
    }

    #[inline(never)]
    fn take_key(&self, pipe: &OwnedFd, check: Option<&KeyCheck>) -> Result<()> {
        let key = pipe::read_key(pipe).context("cannot receive the key")?;
        if !check.is_some_and(|check| check.is_made_with(&key)) {
            return Err(inlock_open::Error::other_key().into());
        }
        Ok(self.layer.set_key(&self.device, &key)?)
    }
}

/// Executes a command. Replies even after a panic, since the client waits and the process does not exit before.
pub fn guarded(command: &str, change: impl FnOnce() -> Reply) -> Reply {
    catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| Err(Error::Panicked { command: command.to_owned() }))
}

/// Whether a request to close waits until the volume is no longer in use.
pub fn is_deferred(request: &Value) -> bool {
    request["deferred"] == true
}

/// Encodes a reply as a line.
pub(crate) fn line(reply: Result<Map<String, Value>, Told>) -> Vec<u8> {
    let object = match reply {
        Ok(mut fields) => {
            fields.insert("ok".to_owned(), true.into());
            Value::Object(fields)
        }
        Err(Told { message, hint, exit, code }) => {
            let mut object = json!({"ok": false, "error": message, "hint": hint, "exit": exit});
            if let Some(code) = code {
                object["code"] = code.into();
            }
            object
        }
    };
    let mut line = Printable::json(&object.to_string()).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
