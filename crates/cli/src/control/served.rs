//! A volume that this process serves, and what control commands do to it.

use crate::host::context;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use inlock_cipher::scrub_stack;
use inlock_engine::{ControlError, Device};
use inlock_integrity::NewBlocks;
use inlock_volume::table::{AnyTable, CryptOptions};
use inlock_volume::{Printable, Table, VolumeKey};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::info::{RuntimeInfo, VolumeStatus};
use super::metrics::Sample;
use super::openmetrics;
use crate::error::{CliError, Status, hint_of, message_of, status_of};
use crate::system::pipe;
use crate::ui::print::warn;
use inlock_open::key_check::KeyCheck;
use inlock_open::layer::{Layer, NewTable, Resized, RunningVolume};
use inlock_open::reload::reload;

/// Maximum length of a table, in bytes: the capacity of a pipe.
const TABLE_MAX: usize = 65536;

/// Fields of a reply, without `ok`.
pub(crate) type Reply = anyhow::Result<Map<String, Value>>;

/// Effects of control commands on how a volume is served or attached.
pub(crate) trait ControlHooks: Send + Sync {
    /// Starts to close, and the process exits soon after. Fails if the volume is in use.
    fn close(&self, request: &Value) -> anyhow::Result<()>;

    /// Stops waiting until the volume is no longer in use, for a request to close that was deferred.
    fn cancel_deferred(&self) -> anyhow::Result<()> {
        Err(CliError::refused("This volume is not closed later.", "run `inlock close NAME` to close it"))
    }

    /// Whether the volume closes as soon as it is no longer in use.
    fn is_close_deferred(&self) -> bool {
        false
    }

    /// Refuses to allow discards if clients have learned that there are none.
    fn check_discards(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Announces the new length to the users of the volume.
    fn resized(&self, _len: u64) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A volume that this process serves.
pub(crate) struct ServedVolume {
    info: Mutex<RuntimeInfo>,
    device: Arc<Device>,
    opened: Instant,
    key_present: AtomicBool,
    hooks: Box<dyn ControlHooks>,
    files: Files,
    layer: Arc<dyn Layer>,
}

impl ServedVolume {
    /// `files`: those of the volume's name.
    pub(crate) fn new(
        info: RuntimeInfo,
        (device, layer): (Arc<Device>, Arc<dyn Layer>),
        files: Files,
        hooks: impl ControlHooks + 'static,
    ) -> Self {
        Self {
            key_present: AtomicBool::new(info.has_key()),
            info: Mutex::new(info),
            device,
            layer,
            opened: Instant::now(),
            hooks: Box::new(hooks),
            files,
        }
    }

    fn info(&self) -> MutexGuard<'_, RuntimeInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the address for scrapers, and returns a copy of the information.
    pub(crate) fn with_metrics(&self, address: Option<String>) -> RuntimeInfo {
        let mut info = self.info();
        info.metrics = address;
        info.clone()
    }

    /// Returns the status. Does not block.
    pub(crate) fn status(&self) -> VolumeStatus {
        let snapshot = self.device.stats().snapshot();
        VolumeStatus {
            key_present: self.key_present.load(Ordering::Acquire),
            close_deferred: self.hooks.is_close_deferred(),
            ..VolumeStatus::of(self.info().clone(), &self.device, &*self.layer, &snapshot)
        }
    }

    /// Returns the metrics with whole histograms, from which differences are computed.
    pub(crate) fn sample(&self) -> Sample {
        Sample::new(&self.device, &*self.layer, self.opened)
    }

    /// Returns the metrics for a scraper.
    pub(crate) fn metrics(&self) -> String {
        openmetrics::text([(&self.status(), &self.device.stats().snapshot())])
    }

    /// Executes a command that may block, one at a time. `pipe` came with the request.
    pub(crate) fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        guarded(command, || self.execute(command, request, pipe))
    }

    fn execute(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        match command {
            "close" => self.hooks.close(request)?,
            "suspend" => self.suspend()?,
            "resume" => self.resume(pipe)?,
            "reload" => self.reload(pipe)?,
            "refresh" => self.refresh(request)?,
            "resize" => return self.resize(request),
            "cancel_deferred" => self.hooks.cancel_deferred()?,
            _ => return Err(CliError::usage(format!("The process does not know the command '{command}'."))),
        }
        Ok(Map::new())
    }

    /// Fails the requests that wait for an NBD server, and all later ones. Does not block.
    pub(crate) fn abort(&self) {
        context().abort();
    }

    /// Suspends I/O and wipes the key.
    fn suspend(&self) -> anyhow::Result<()> {
        let name = self.info().name.clone();
        if self.device.is_suspended() {
            return Err(CliError::refused(
                format!("Volume {name} is already suspended."),
                "run `inlock resume` to resume I/O",
            ));
        }
        self.layer.check_suspend(RunningVolume { name: &name, device: &self.device })?;
        // Even if the flush fails, the device is suspended, and the key must be wiped.
        let suspended = self.device.suspend();
        if self.key_present.load(Ordering::Acquire) && self.device.is_suspended() {
            let wiped = self.layer.wipe_key(&self.device);
            let gone = matches!(wiped, Ok(()) | Err(ControlError::InUse));
            self.key_present.store(!gone, Ordering::Release);
            wiped?;
        }
        Ok(suspended?)
    }

    /// Replaces the table. It brings its own keys; a suspended volume stays suspended.
    fn reload(&self, pipe: Option<OwnedFd>) -> anyhow::Result<()> {
        let Some(pipe) = pipe else { return Err(CliError::usage("The table is missing.")) };
        let text = pipe::read_text(&pipe, TABLE_MAX).context("cannot receive the table")?;
        let table = AnyTable::parse(std::str::from_utf8(&text).context("the table is not text")?)?;
        let name = self.info().name.clone();
        let volume = RunningVolume { name: &name, device: &self.device };
        match self.layer.accept_table(context(), volume, table)? {
            NewTable::Lines(table) => self.reload_lines(&table),
            NewTable::Key(key, flags) => self.restore_key(&key, &flags),
        }
    }

    fn reload_lines(&self, table: &Table) -> anyhow::Result<()> {
        let before = self.device.len();
        let old = self.info().clone();
        let mut info = old.clone();
        let mapping = info.set_table(reload(context(), table, &self.device, &old.segments, &old.devices)?);
        // If this process dies, its successor must find this table, and have its keys.
        self.files.publish(&info)?;
        if let Err(error) = self.device.reload(mapping) {
            self.files.publish(&old)?;
            return Err(cannot_reload(error));
        }
        self.key_present.store(info.has_key(), Ordering::Release);
        *self.info() = info;
        let len = self.device.len();
        if len > before { self.hooks.resized(len) } else { Ok(()) }
    }

    /// Takes the key and the flags of a volume from its table, the only one that it accepts.
    fn restore_key(&self, key: &VolumeKey, flags: &CryptOptions) -> anyhow::Result<()> {
        if !self.info().check.as_ref().is_some_and(|check| check.is_made_with(key)) {
            return Err(inlock_open::Error::other_key().into());
        }
        let mut info = self.info().clone();
        info.set_flags(flags);
        self.files.publish(&info)?;
        self.layer.set_key(&self.device, key)?;
        *self.info() = info;
        self.key_present.store(true, Ordering::Release);
        Ok(())
    }

    /// Sets the flags of the volume to those of its header or table, and those of the request. With `persistent` the
    /// client stores those of the request in the header afterwards, where they replace the others.
    fn refresh(&self, request: &Value) -> anyhow::Result<()> {
        let names = request["flags"].as_array().map(Vec::as_slice).unwrap_or_default();
        let asked = CryptOptions::named(names.iter().map(|name| name.as_str().unwrap_or_default()));
        let mut flags = asked.ok_or_else(|| CliError::usage("The process does not know these flags."))?;
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
        self.files.publish(&info)?;
        self.device.allow_discards(flags.allow_discards);
        *self.info() = info;
        Ok(())
    }

    /// Gives the volume a length in sectors, or grows it to the current length of the underlying device.
    fn resize(&self, request: &Value) -> Reply {
        let name = self.info().name.clone();
        if self.device.is_suspended() {
            // The kernel may wait for suspended requests, and resuming them would wait for this command.
            return Err(CliError::refused(
                format!("Volume {name} is suspended and cannot be resized."),
                "run `inlock resume` to resume I/O",
            ));
        }
        let new_blocks = if request["wipe"] == true { NewBlocks::Wipe } else { NewBlocks::Recalculate };
        let volume = RunningVolume { name: &name, device: &self.device };
        let Resized { len, wanted } = self.layer.resize(volume, request["sectors"].as_u64(), new_blocks)?;
        // Even if it has not grown: an earlier announcement may have failed.
        self.hooks.resized(len)?;
        Ok(Map::from_iter([("sectors".to_owned(), (len / 512).into()), ("wanted".to_owned(), (wanted / 512).into())]))
    }

    /// Restores the key, if it was wiped, and resumes I/O.
    fn resume(&self, pipe: Option<OwnedFd>) -> anyhow::Result<()> {
        let info = self.info().clone();
        if !self.device.is_suspended() {
            return Err(CliError::refused(
                format!("Volume {} is not suspended.", info.name),
                "run `inlock status NAME` to see its state",
            ));
        }
        if info.has_key() && !self.key_present.load(Ordering::Acquire) {
            let Some(pipe) = pipe else {
                return Err(CliError::usage(format!("Volume {} needs its key.", info.name)));
            };
            let taken = self.take_key(&pipe, info.check.as_ref());
            scrub_stack::<{ 64 << 10 }>();
            taken?;
            self.key_present.store(true, Ordering::Release);
            if self.device.engine_stats().is_some_and(|engine| engine.keys == 0) {
                warn(format_args!("{}: the cipher engine refuses the key; software is used instead", info.name));
            }
        }
        Ok(self.device.resume()?)
    }

    #[inline(never)]
    fn take_key(&self, pipe: &OwnedFd, check: Option<&KeyCheck>) -> anyhow::Result<()> {
        let key = pipe::read_key(pipe).context("cannot receive the key")?;
        if !check.is_some_and(|check| check.is_made_with(&key)) {
            return Err(inlock_open::Error::other_key().into());
        }
        Ok(self.layer.set_key(&self.device, &key)?)
    }
}

/// Executes a command. Replies even after a panic, since the client waits and the process does not exit before.
pub(crate) fn guarded(command: &str, change: impl FnOnce() -> Reply) -> Reply {
    catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| {
        let hint = Some("see its log; the state of the volume is unknown".to_owned());
        Err(CliError::Remote(format!("The command '{command}' failed inside the process."), hint, Status::Wrong).into())
    })
}

/// Whether a request to close waits until the volume is no longer in use.
pub(crate) fn is_deferred(request: &Value) -> bool {
    request["deferred"] == true
}

/// Encodes a reply as a line.
pub(crate) fn line(reply: &Reply) -> Vec<u8> {
    let object = match reply {
        Ok(fields) => {
            let mut fields = fields.clone();
            fields.insert("ok".to_owned(), true.into());
            Value::Object(fields)
        }
        Err(error) => {
            let status = status_of(error) as u8;
            json!({"ok": false, "error": message_of(error), "hint": hint_of(error), "exit": status})
        }
    };
    let mut line = Printable::json(&object.to_string()).to_string().into_bytes();
    line.push(b'\n');
    line
}

fn cannot_reload(error: ControlError) -> anyhow::Error {
    let hint = match error {
        ControlError::Shorter { .. } => "extend the table to the length of the device, or close the volume first",
        ControlError::LargerUnit { .. } => "close the volume and open it with this table",
        error => return error.into(),
    };
    anyhow::Error::from(error).context(CliError::Refused { message: "The table cannot be used.".to_owned(), hint })
}

/// Reduces an error to what another process prints.
pub(crate) fn remote(error: &anyhow::Error) -> anyhow::Error {
    CliError::Remote(message_of(error), hint_of(error), status_of(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::name::Name;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_open::layer::Mapped;

    struct PanickingHooks;

    impl ControlHooks for PanickingHooks {
        fn close(&self, _request: &Value) -> anyhow::Result<()> {
            panic!("a defect");
        }
    }

    #[test]
    fn panic_in_command_is_reported() {
        let info = serde_json::from_value(json!({
            "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx", "segments": [],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "nbd", "ring": "sync", "threads": 1
        }));
        let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
        let files = Files::within("/nowhere".into(), &Name::new("data").unwrap());
        let volume = (Arc::new(device), Arc::new(Mapped) as Arc<dyn Layer>);
        let volume = ServedVolume::new(info.unwrap(), volume, files, PanickingHooks);
        let error = volume.change("close", &json!({}), None).unwrap_err();
        assert!(error.to_string().contains("'close' failed"), "{error}");
        volume.change("resize", &json!({}), None).unwrap();
    }
}
