//! A volume that this process serves, and what control commands do to it.

use crate::host::context;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use inlock_cipher::scrub_stack;
use inlock_engine::{ControlError, Device, TargetError};
use inlock_integrity::{IntegrityDevice, NewBlocks};
use inlock_verity::VerityStore;
use inlock_volume::Printable;
use inlock_volume::table::CryptOptions;
use inlock_volume::table::{AnyTable, IntegrityTable};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::info::{RuntimeInfo, VolumeStatus};
use super::integrity::{IntegrityCounters, IntegrityStatus};
use super::metrics::Sample;
use super::openmetrics;
use super::verity::VerityStatus;
use crate::error::{CliError, Status, hint_of, message_of, status_of};
use crate::system::pipe;
use crate::ui::print::warn;
use inlock_open::integrity::{RunningIntegrity, SealedStore, cannot_use};
use inlock_open::key_check::KeyCheck;
use inlock_open::reload::reload;

/// Maximum length of a table, in bytes: the capacity of a pipe.
const TABLE_MAX: usize = 65536;

/// Hint for a volume that accepts no other table.
const OPEN_AGAIN: &str = "close it, and open it with the new table";

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
    integrity: Option<RunningIntegrity>,
    verity: Option<Arc<VerityStore>>,
}

impl ServedVolume {
    /// `files`: those of the volume's name.
    pub(crate) fn new(
        info: RuntimeInfo,
        device: Arc<Device>,
        files: Files,
        hooks: impl ControlHooks + 'static,
    ) -> Self {
        Self {
            key_present: AtomicBool::new(info.has_key()),
            info: Mutex::new(info),
            device,
            opened: Instant::now(),
            hooks: Box::new(hooks),
            files,
            integrity: None,
            verity: None,
        }
    }

    /// Adds the dm-integrity volume under the device.
    pub(crate) fn with_integrity(self, integrity: Option<RunningIntegrity>) -> Self {
        Self { integrity, ..self }
    }

    /// Adds the dm-verity device under the device.
    pub(crate) fn with_verity(self, verity: Option<Arc<VerityStore>>) -> Self {
        Self { verity, ..self }
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
            integrity: self.integrity.as_ref().map(IntegrityStatus::of),
            verity: self.verity.as_deref().map(VerityStatus::of),
            ..VolumeStatus::new(self.info().clone(), &self.device, &snapshot)
        }
    }

    /// Returns the metrics with whole histograms, from which differences are computed.
    pub(crate) fn sample(&self) -> Sample {
        Sample {
            integrity: self.integrity.as_ref().map(|integrity| IntegrityCounters::of(&integrity.device)),
            ..Sample::new(&self.device, self.opened)
        }
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
            "resize" => self.resize(request)?,
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
        if self.verity.is_some() && self.info().kind == "TABLE" {
            // Its keys are not those of one device.
            return Err(CliError::refused(
                format!("Volume {name} has a table with a hash tree and cannot be suspended."),
                "close it; its table opens it again",
            ));
        }
        // Even if the flush fails, the device is suspended, and the key must be wiped.
        let suspended = self.device.suspend();
        if self.key_present.load(Ordering::Acquire) && self.device.is_suspended() {
            let wiped = match self.sealed() {
                Some(sealed) => {
                    sealed.wipe_key();
                    Ok(())
                }
                None => self.device.wipe_key(),
            };
            let gone = matches!(wiped, Ok(()) | Err(ControlError::InUse));
            self.key_present.store(!gone, Ordering::Release);
            wiped?;
        }
        Ok(suspended?)
    }

    /// Replaces the table. It brings its own keys; a suspended volume stays suspended.
    fn reload(&self, pipe: Option<OwnedFd>) -> anyhow::Result<()> {
        if self.verity.is_some() {
            let message = format!("Volume {} has a hash tree and accepts no other table.", self.info().name);
            return Err(CliError::refused(message, OPEN_AGAIN));
        }
        let Some(pipe) = pipe else { return Err(CliError::usage("The table is missing.")) };
        let text = pipe::read_text(&pipe, TABLE_MAX).context("cannot receive the table")?;
        let table = match AnyTable::parse(std::str::from_utf8(&text).context("the table is not text")?)? {
            AnyTable::Lines(_) if self.integrity.is_some() => {
                let message =
                    format!("Volume {} has integrity protection and accepts no other table.", self.info().name);
                return Err(CliError::refused(message, OPEN_AGAIN));
            }
            AnyTable::Lines(table) => table,
            AnyTable::Integrity(table) => return self.restore_key(*table),
            AnyTable::Verity(_) => {
                return Err(CliError::refused("A table with a hash tree cannot replace another one.", OPEN_AGAIN));
            }
        };
        let before = self.device.len();
        let old = self.info().clone();
        let mut info = old.clone();
        let mapping = info.set_table(reload(context(), &table, &self.device, &old.segments, &old.devices)?);
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

    /// Takes the key and the flags of a volume with integrity protection from its table, the only one that it accepts.
    fn restore_key(&self, table: IntegrityTable) -> anyhow::Result<()> {
        let Some((line, sealed)) = table.sealed.as_ref().zip(self.sealed()) else {
            return Err(CliError::refused("The table is not that of the volume.", OPEN_AGAIN));
        };
        sealed.line.check_unchanged(context(), &table, sealed.store.device())?;
        if line.segment != sealed.segment {
            let message = "The table changes the cipher, the data units or the IVs of the volume.";
            return Err(CliError::refused(message, OPEN_AGAIN));
        }
        if !self.info().check.as_ref().is_some_and(|check| check.is_made_with(&line.key)) {
            return Err(inlock_open::Error::other_key().into());
        }
        if line.options.allow_discards && !self.info().allow_discards {
            let message = "The table allows discards, which a volume with integrity protection has not.";
            return Err(CliError::refused(message, "remove allow_discards from the line of crypt"));
        }
        let mut info = self.info().clone();
        info.set_flags(&line.options);
        self.files.publish(&info)?;
        sealed.set_key(&line.key)?;
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
    fn resize(&self, request: &Value) -> anyhow::Result<()> {
        let name = self.info().name.clone();
        if self.device.is_suspended() {
            // The kernel may wait for suspended requests, and resuming them would wait for this command.
            return Err(CliError::refused(
                format!("Volume {name} is suspended and cannot be resized."),
                "run `inlock resume` to resume I/O",
            ));
        }
        if self.sealed().is_some() {
            return Err(CliError::refused(
                "Resize of LUKS2 device with integrity protection is not supported.",
                "copy the data to a new volume: inlock export, luksFormat, import",
            ));
        }
        if self.verity.is_some() {
            return Err(CliError::refused(
                format!("Volume {name} has a hash tree, which fixes its length."),
                "create a hash tree for the new length with `inlock verity format`",
            ));
        }
        if let Some(integrity) = &self.integrity {
            if self.info().kind == "TABLE" {
                return Err(CliError::refused(format!("Volume {name} has the length of its table."), OPEN_AGAIN));
            }
            return self.resize_integrity(&integrity.device, request);
        }
        let len = match request["sectors"].as_u64() {
            None => self.device.grow()?,
            Some(_) if self.device.zone_limits().is_some() => {
                let message = format!("Volume {name} has zones, and cannot end within them.");
                return Err(CliError::refused(message, "leave --size and --device-size out"));
            }
            Some(sectors) => {
                let len = sectors.checked_mul(512).ok_or_else(|| CliError::usage("The size exceeds 2^64 bytes."))?;
                self.device.set_len(len).map_err(cannot_resize)?
            }
        };
        // Even if it has not grown: an earlier announcement may have failed.
        self.hooks.resized(len)
    }

    /// Gives a volume of dm-integrity a length in sectors, or grows it to the current length of its devices.
    fn resize_integrity(&self, device: &IntegrityDevice, request: &Value) -> anyhow::Result<()> {
        let new_blocks = if request["wipe"] == true { NewBlocks::Wipe } else { NewBlocks::Recalculate };
        let failed = |error| cannot_use(&self.info().device)(error);
        let sectors = device.planned_len(request["sectors"].as_u64(), new_blocks).map_err(failed)?;
        let len = sectors * 512;
        if len < self.device.len() {
            // Before the volume: no request may run beyond its new end.
            self.device.set_len(len)?;
        }
        device.resize(Some(sectors), new_blocks).map_err(failed)?;
        self.hooks.resized(self.device.set_len(len)?)
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
        match self.sealed() {
            Some(sealed) => Ok(sealed.set_key(&key)?),
            None => Ok(self.device.set_key(&key)?),
        }
    }

    /// Returns the store of a volume of dm-integrity that has the key, if there is one.
    fn sealed(&self) -> Option<&SealedStore> {
        self.integrity.as_ref()?.sealed.as_ref()
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

fn cannot_resize(error: ControlError) -> anyhow::Error {
    let message = "The volume cannot be resized.".to_owned();
    let hint = match error {
        ControlError::Target(TargetError::BeyondStore { .. }) => "enlarge the image first, or give a smaller --size",
        ControlError::Target(TargetError::UnitLength { .. }) => "give a --size of whole encryption sectors",
        error => return anyhow::Error::from(error).context(message),
    };
    anyhow::Error::from(error).context(CliError::Refused { message, hint })
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
        let volume = ServedVolume::new(info.unwrap(), Arc::new(device), files, PanickingHooks);
        let error = volume.change("close", &json!({}), None).unwrap_err();
        assert!(error.to_string().contains("'close' failed"), "{error}");
        volume.change("resize", &json!({}), None).unwrap();
    }
}
