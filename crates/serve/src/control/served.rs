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
use super::info::{Described, RuntimeInfo, VolumeStatus};
use super::metrics::Sample;
use super::openmetrics::{self, Text};
use crate::error::{Error, Reply, Result, ResultExt, Told};
use crate::pipe;
use inlock_open::Context;
use inlock_open::key_check::KeyCheck;
use inlock_open::layer::{Layer, NewTable, Resized, RunningVolume};
use inlock_open::reencryption::online::{Finished, OnlineOptions};
use inlock_open::reload::reload;

/// Maximum length of a table, in bytes: the capacity of a pipe.
const TABLE_MAX: usize = 65536;

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

    /// Returns the status. Does not block.
    pub fn status(&self) -> VolumeStatus {
        let snapshot = self.device.stats().snapshot();
        VolumeStatus {
            key_present: self.key_present.load(Ordering::Acquire),
            close_deferred: self.hooks.is_close_deferred(),
            ..VolumeStatus::of(self.info().clone(), &self.device, &*self.layer, &snapshot)
        }
    }

    /// Describes the volume without its counters and latencies. Does not block.
    pub fn describe(&self) -> Described {
        let store_errors = self.device.stats().snapshot().store_errors;
        Described { info: self.info().clone(), suspended: self.device.is_suspended(), closing: false, store_errors }
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
        if self.key_present.load(Ordering::Acquire) && self.device.is_suspended() {
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
            "start" | "resume" => {
                let name = self.info().name.clone();
                if self.device.access().read_only {
                    return Err(Error::Request(format!("Volume {name} is read-only.")));
                }
                let Some(pipe) = pipe else { return Err(Error::KeyMissing { name }) };
                let joined = pipe::read_key(&pipe).context("cannot receive the keys")?;
                let (info, files) = (Arc::clone(&self.info), self.files.clone());
                let finished = Box::new(move |new: Finished| {
                    let mut info = info.lock().unwrap_or_else(PoisonError::into_inner);
                    (info.segments, info.check) = (new.segments, new.check);
                    // The next change publishes it if this fails.
                    let _ = files.map(|files| files.publish(&info));
                });
                let options =
                    OnlineOptions { longest_zone: request["zone"].as_u64(), rate: request["rate"].as_u64(), finished };
                let check = self.info().check.clone();
                online.go_on(&self.device, (&joined, check.as_ref()), options)?;
            }
            other => return Err(Error::Request(format!("The process does not know the action '{other}'."))),
        }
        Ok(())
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
mod tests {
    use super::*;
    use crate::control::name::Name;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_open::layer::Mapped;

    struct PanickingHooks;

    impl ControlHooks for PanickingHooks {
        fn close(&self, _deferred: bool) -> Result<()> {
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
        let context = Context::new(inlock_open::host::Silent, inlock_open::Settings::default());
        let volume = ServedVolume::new(context, info.unwrap(), volume, Some(files), PanickingHooks);
        let error = volume.change("close", &json!({}), None).unwrap_err();
        assert!(error.to_string().contains("'close' failed"), "{error}");
        volume.change("resize", &json!({}), None).unwrap();
        volume.change("suspend", &json!({}), None).unwrap();
        assert!(volume.status().suspended && !volume.status().key_present, "there is no key to wipe");
        volume.change("resume", &json!({}), None).unwrap();
    }

    const KEY: [u8; 64] = [7; 64];
    const LEN: usize = 1 << 20;

    /// How the volume is attached.
    #[derive(Default)]
    struct Recorded {
        closes: Mutex<Vec<bool>>,
        lens: Mutex<Vec<u64>>,
        fails: AtomicBool,
    }

    impl Recorded {
        fn outcome(&self) -> Result<()> {
            if self.fails.load(Ordering::Acquire) { Err(Error::other("a test")) } else { Ok(()) }
        }
    }

    impl ControlHooks for Arc<Recorded> {
        fn close(&self, deferred: bool) -> Result<()> {
            self.closes.lock().unwrap().push(deferred);
            self.outcome()
        }

        fn check_discards(&self) -> Result<()> {
            self.outcome()
        }

        fn resized(&self, len: u64) -> Result<()> {
            self.lens.lock().unwrap().push(len);
            self.outcome()
        }
    }

    /// A volume that takes its key from a table.
    #[derive(Default)]
    struct Keyed {
        stays: AtomicBool,
        has_other_key: AtomicBool,
        takes_lines: AtomicBool,
    }

    impl Layer for Keyed {
        fn check_suspend(&self, volume: RunningVolume<'_>) -> inlock_open::Result<()> {
            match self.stays.load(Ordering::Acquire) {
                // Any error.
                true => Mapped.resize(volume, Some(1 << 40), NewBlocks::Wipe).map(drop),
                false => Ok(()),
            }
        }

        fn resize(
            &self,
            volume: RunningVolume<'_>,
            sectors: Option<u64>,
            blocks: NewBlocks,
        ) -> inlock_open::Result<Resized> {
            Mapped.resize(volume, sectors, blocks)
        }

        fn accept_table(
            &self,
            context: &Context,
            volume: RunningVolume<'_>,
            table: AnyTable,
        ) -> inlock_open::Result<NewTable> {
            if self.takes_lines.load(Ordering::Acquire) {
                return Mapped.accept_table(context, volume, table);
            }
            let key = if self.has_other_key.load(Ordering::Acquire) { [8; 64] } else { KEY };
            let flags = CryptOptions::named(["same_cpu_crypt"]).unwrap();
            Ok(NewTable::Key(VolumeKey::new(&key), flags))
        }
    }

    /// Messages of a context.
    #[derive(Clone, Default)]
    struct Messages(Arc<Mutex<Vec<String>>>);

    impl inlock_open::host::Host for Messages {
        fn tell(&self, _level: inlock_open::host::Level, text: &dyn std::fmt::Display) {
            self.0.lock().unwrap().push(text.to_string());
        }
    }

    struct Full;

    impl inlock_engine::CipherEngine for Full {
        fn open_key(&self, _: &inlock_engine::EngineKeySpec<'_>) -> Option<Box<dyn inlock_engine::EngineKey>> {
            None
        }
    }

    struct Fixture {
        volume: ServedVolume,
        messages: Messages,
        hooks: Arc<Recorded>,
        layer: Arc<Keyed>,
        device: Arc<Device>,
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self::with(true, false)
        }

        /// A volume whose key is known, or is not, with an engine that has no room for keys.
        fn with(has_check: bool, has_engine: bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let image = dir.path().join("image");
            std::fs::write(&image, "").unwrap();
            let found = std::fs::metadata(&image).unwrap();
            let spec = "aes-xts-plain64".parse().unwrap();
            let segment = inlock_volume::Segment::whole(Some(spec), inlock_volume::DataUnitSize::SECTOR);
            let key = VolumeKey::new(&KEY);
            let store = Arc::new(MemoryStore::new(vec![0; LEN]));
            let device = Device::new(&[segment], &key, store, Access::default()).unwrap();
            let device = match has_engine {
                true => device.with_engine(Arc::new(Full), 4096, &[&key]).unwrap(),
                false => device,
            };
            let device = Arc::new(device);
            let info = inlock_open::info::VolumeInfo {
                kind: "PLAIN".to_owned(),
                device: "/dev/sdx".into(),
                header: None,
                uuid: None,
                hash: None,
                segments: vec![inlock_open::info::SegmentInfo::of(&segment, 64)],
                check: has_check.then(|| KeyCheck::new(&[segment], &key).unwrap()),
                own_flags: CryptOptions::default(),
                flags: CryptOptions::default(),
                devices: vec![inlock_open::device::identity(&found)],
            };
            let info = RuntimeInfo::new(&"data", info, &device);
            let (hooks, layer) = (Arc::<Recorded>::default(), Arc::<Keyed>::default());
            let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
            let messages = Messages::default();
            let context = Context::new(messages.clone(), inlock_open::Settings::default());
            let parts = (Arc::clone(&device), Arc::clone(&layer) as Arc<dyn Layer>);
            let volume = ServedVolume::new(context, info, parts, Some(files), Arc::clone(&hooks));
            Self { volume, messages, hooks, layer, device, dir }
        }

        fn change(&self, command: &str, request: &Value) -> Reply {
            self.volume.change(command, request, None)
        }

        fn with_pipe(&self, command: &str, text: &[u8]) -> Reply {
            self.volume.change(command, &json!({}), Some(pipe::filled(text).unwrap()))
        }

        fn refresh(&self, flags: &[&str], persistent: bool) -> Reply {
            self.change("refresh", &json!({"flags": flags, "persistent": persistent}))
        }

        /// Returns whether discards are allowed, by the device and the information, and the other flags.
        fn flags(&self) -> (bool, bool, Vec<String>) {
            let info = self.volume.describe().info;
            (self.device.access().allow_discards, info.allow_discards, info.table_flags)
        }

        /// Returns whether it is suspended, and has its key.
        fn state(&self) -> (bool, bool) {
            let status = self.volume.status();
            (status.suspended, status.key_present)
        }
    }

    #[test]
    fn suspended_volume_has_no_key_until_it_gets_the_same_one() {
        let fixture = Fixture::new();
        let none = json!({});
        assert!(matches!(fixture.change("resume", &none), Err(Error::NotSuspended { .. })));
        fixture.layer.stays.store(true, Ordering::Release);
        fixture.change("suspend", &none).unwrap_err();
        assert_eq!(fixture.state(), (false, true));
        fixture.layer.stays.store(false, Ordering::Release);
        fixture.change("suspend", &none).unwrap();
        assert_eq!(fixture.state(), (true, false));
        assert!(matches!(fixture.change("suspend", &none), Err(Error::Suspended { .. })));
        assert!(matches!(fixture.change("resize", &none), Err(Error::SuspendedResize { .. })));
        assert!(matches!(fixture.change("resume", &none), Err(Error::KeyMissing { .. })));
        fixture.with_pipe("resume", &[8; 64]).unwrap_err();
        assert_eq!(fixture.state(), (true, false));
        fixture.with_pipe("resume", &KEY).unwrap();
        assert_eq!(fixture.state(), (false, true));
        // From a table.
        fixture.change("suspend", &none).unwrap();
        let table = format!("0 8 crypt aes-xts-plain64 {} 0 /dev/sdx 0", "aa".repeat(64));
        fixture.layer.has_other_key.store(true, Ordering::Release);
        fixture.with_pipe("reload", table.as_bytes()).unwrap_err();
        assert_eq!((fixture.state(), fixture.flags().2.len()), ((true, false), 0));
        fixture.layer.has_other_key.store(false, Ordering::Release);
        fixture.with_pipe("reload", table.as_bytes()).unwrap();
        assert_eq!((fixture.state(), fixture.flags().2), ((true, true), vec!["same_cpu_crypt".to_owned()]));
        fixture.change("resume", &none).unwrap();
        assert_eq!(fixture.state(), (false, true));
        assert!(fixture.messages.0.lock().unwrap().is_empty(), "no engine refuses the key");
        let mut byte = [0];
        inlock_engine::BlockingDevice::new(Arc::clone(&fixture.device)).read_at(&mut byte, 0).unwrap();
    }

    #[test]
    fn volume_whose_key_is_not_known_takes_none() {
        let fixture = Fixture::with(false, false);
        fixture.change("suspend", &json!({})).unwrap();
        fixture.with_pipe("resume", &KEY).unwrap_err();
        let table = format!("0 8 crypt aes-xts-plain64 {} 0 /dev/sdx 0", "aa".repeat(64));
        fixture.with_pipe("reload", table.as_bytes()).unwrap_err();
        assert_eq!(fixture.state(), (true, false));
    }

    #[test]
    fn engine_that_has_no_room_for_the_key_is_told_of() {
        let fixture = Fixture::with(true, true);
        fixture.change("suspend", &json!({})).unwrap();
        fixture.with_pipe("resume", &KEY).unwrap();
        let messages = fixture.messages.0.lock().unwrap().clone();
        assert!(messages.len() == 1 && messages[0].contains("the cipher engine refuses the key"), "{messages:?}");
    }

    #[test]
    fn table_that_is_refused_is_not_in_the_state_file() {
        let fixture = Fixture::new();
        fixture.layer.takes_lines.store(true, Ordering::Release);
        fixture.change("suspend", &json!({})).unwrap();
        let reload = |sectors: usize| {
            let image = fixture.dir.path().join("image");
            let key = "0123456789abcdef".repeat(8);
            let table = format!("0 {sectors} crypt aes-xts-plain64 {key} 0 {} 0", image.display());
            fixture.with_pipe("reload", table.as_bytes())
        };
        let kind = || {
            let state = std::fs::read_to_string(fixture.dir.path().join("data.json")).unwrap();
            serde_json::from_str::<Value>(&state).unwrap()["type"].clone()
        };
        let refused = reload(8).unwrap_err();
        assert!(matches!(refused, Error::Table { .. }), "{refused}");
        assert_eq!((kind(), fixture.state()), ("PLAIN".into(), (true, false)));
        reload(LEN / 512).unwrap();
        assert_eq!((kind(), fixture.state()), ("TABLE".into(), (true, true)));
        assert!(fixture.hooks.lens.lock().unwrap().is_empty(), "it has not grown");
        assert_eq!(fixture.volume.describe().info.kind, "TABLE");
    }

    #[test]
    fn length_is_announced_and_what_is_not_announced_is_told() {
        let fixture = Fixture::new();
        let reply = fixture.change("resize", &json!({"sectors": 8})).unwrap();
        assert_eq!((&reply["sectors"], &reply["wanted"]), (&json!(8), &json!(8)));
        fixture.hooks.fails.store(true, Ordering::Release);
        fixture.change("resize", &json!({})).unwrap_err();
        assert_eq!(*fixture.hooks.lens.lock().unwrap(), [4096, LEN as u64]);
    }

    #[test]
    fn flags_are_those_of_the_request_and_of_the_header() {
        let fixture = Fixture::new();
        let flags = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>();
        fixture.hooks.fails.store(true, Ordering::Release);
        fixture.refresh(&["allow_discards"], false).unwrap_err();
        assert_eq!(fixture.flags(), (false, false, Vec::new()));
        fixture.refresh(&["high_priority"], false).unwrap();
        assert_eq!(fixture.flags(), (false, false, flags(&["high_priority"])));
        fixture.hooks.fails.store(false, Ordering::Release);
        fixture.refresh(&["allow_discards"], false).unwrap();
        assert_eq!(fixture.flags(), (true, true, Vec::new()));
        let state = std::fs::read_to_string(fixture.dir.path().join("data.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&state).unwrap()["allow_discards"], true);
        // They are allowed already.
        fixture.hooks.fails.store(true, Ordering::Release);
        fixture.refresh(&["allow_discards", "same_cpu_crypt"], false).unwrap();
        assert_eq!(fixture.flags(), (true, true, flags(&["same_cpu_crypt"])));
        fixture.refresh(&["high_priority"], true).unwrap();
        assert_eq!(fixture.flags(), (false, false, flags(&["high_priority"])));
        fixture.refresh(&["same_cpu_crypt"], false).unwrap();
        assert_eq!(fixture.flags().2, flags(&["same_cpu_crypt", "high_priority"]));
        // What the next process could not know does not happen.
        std::fs::remove_dir_all(fixture.dir.path()).unwrap();
        fixture.refresh(&[], true).unwrap_err();
        assert_eq!(fixture.flags().2.len(), 2);
        assert!(matches!(fixture.refresh(&["none"], false), Err(Error::Request(_))));
    }

    #[test]
    fn close_is_that_of_the_method_and_unknown_commands_are_refused() {
        let fixture = Fixture::new();
        for deferred in [false, true] {
            fixture.change("close", &json!({"deferred": deferred})).unwrap();
        }
        assert_eq!(*fixture.hooks.closes.lock().unwrap(), [false, true]);
        assert!(matches!(fixture.change("cancel_deferred", &json!({})), Err(Error::NotDeferred)));
        for command in ["none", "reencrypt", "reload"] {
            assert!(matches!(fixture.change(command, &json!({})), Err(Error::Request(_))), "{command}");
        }
        let unknown = fixture.change("none", &json!({})).unwrap_err().to_string();
        let reencrypt = fixture.change("reencrypt", &json!({})).unwrap_err().to_string();
        assert!(unknown.contains("'none'") && reencrypt.contains("LUKS2"), "{unknown}; {reencrypt}");
    }

    #[test]
    fn metrics_address_is_a_part_of_the_information() {
        let fixture = Fixture::new();
        let info = fixture.volume.with_metrics(Some("unix:/socket".to_owned()));
        assert_eq!(info.metrics.as_deref(), Some("unix:/socket"));
        assert_eq!(fixture.volume.describe().info.metrics, info.metrics);
        let mut text = Text::default();
        fixture.volume.write_metrics(&mut text);
        assert!(text.finish().contains("inlock_volume_info{volume=\"data\""));
    }

    #[test]
    fn reply_is_a_line_with_the_code_of_an_error() {
        let told = |code| Told { message: "m".into(), hint: None, exit: 1, code };
        assert_eq!(line(Ok(Map::new())), b"{\"ok\":true}\n");
        let text = |told| String::from_utf8(line(Err(told))).unwrap();
        assert_eq!(text(told(None)), "{\"ok\":false,\"error\":\"m\",\"hint\":null,\"exit\":1}\n");
        assert!(text(told(Some("c".into()))).contains("\"code\":\"c\""));
    }
}
