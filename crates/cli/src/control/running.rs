//! What a control command does to a running volume.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use inlock_cipher::scrub_stack;
use inlock_engine::{ControlError, Device};
use inlock_volume::Table;
use inlock_volume::table::CryptOptions;
use serde_json::{Map, Value, json};

use super::facts::Status;
use super::figures::{Buckets, Counters, LastError, Sample, Spread, phases};
use super::key_check::KeyCheck;
use super::name::Files;
use super::{Facts, metrics, pipe};
use crate::exit::{self, Problem};
use crate::source;

/// The longest table that is taken, in bytes: what a pipe holds.
const TABLE_MAX: usize = 65536;

/// A reply, but for its `ok`.
pub(crate) type Reply = anyhow::Result<Map<String, Value>>;

/// What a way of handing a volume out has to say about control commands.
pub(crate) trait HandedOut: Send + Sync {
    /// Refuses to close, as while it is mounted; otherwise begins to, and the process ends soon after.
    fn close(&self, request: &Value) -> anyhow::Result<()>;

    /// Refuses to allow discards where those who use the volume were told, once, that there are none.
    fn check_discards(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Makes the new length known to whoever uses the volume.
    fn resized(&self, _len: u64) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A volume that this process serves.
pub(crate) struct Running {
    facts: Mutex<Facts>,
    device: Arc<Device>,
    opened: Instant,
    key_present: AtomicBool,
    handed_out: Box<dyn HandedOut>,
    files: Files,
}

impl Running {
    /// `files`: those of the volume's name.
    pub(crate) fn new(facts: Facts, device: Arc<Device>, files: Files, handed_out: impl HandedOut + 'static) -> Self {
        Self {
            key_present: AtomicBool::new(facts.has_key()),
            facts: Mutex::new(facts),
            device,
            opened: Instant::now(),
            handed_out: Box::new(handed_out),
            files,
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of it, with the address where scrapers find its figures.
    pub(crate) fn with_metrics(&self, address: Option<String>) -> Facts {
        let mut facts = self.facts();
        facts.metrics = address;
        facts.clone()
    }

    /// How it is. Waits for nothing.
    pub(crate) fn status(&self) -> Status {
        let figures = self.device.stats().snapshot();
        Status {
            facts: self.facts().clone(),
            sectors: self.device.len() / 512,
            suspended: self.device.is_suspended(),
            key_present: self.key_present.load(Ordering::Acquire),
            writes_lost: self.device.has_lost_writes(),
            last_store_error: LastError::of(&figures),
            counters: Counters::of(&figures),
            latency_ns: phases(&figures)
                .map(|(name, histogram)| (name.to_owned(), Spread::from(&Buckets::of(histogram))))
                .into(),
        }
    }

    /// What it has done, in the detail that differences need.
    pub(crate) fn sample(&self) -> Sample {
        let figures = self.device.stats().snapshot();
        Sample {
            at_ns: u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX),
            suspended: self.device.is_suspended(),
            counters: Counters::of(&figures),
            histograms_ns: phases(&figures).map(|(name, histogram)| (name.to_owned(), Buckets::of(histogram))).into(),
        }
    }

    /// What it has done, for a scraper.
    pub(crate) fn metrics(&self) -> String {
        metrics::text(&self.status(), &self.device.stats().snapshot())
    }

    /// Carries out what may take a while, one at a time. `handed` came with the request. It answers whatever happens:
    /// somebody waits, and the process does not end before.
    pub(crate) fn change(&self, command: &str, request: &Value, handed: Option<OwnedFd>) -> Reply {
        let change = || self.carry_out(command, request, handed);
        catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| {
            let hint = Some("what it has changed is unknown; its log says more".to_owned());
            Err(Problem::Told(format!("The command '{command}' failed inside the process."), hint, exit::Status::Wrong)
                .into())
        })
    }

    fn carry_out(&self, command: &str, request: &Value, handed: Option<OwnedFd>) -> Reply {
        match command {
            "close" => self.handed_out.close(request)?,
            "suspend" => self.suspend()?,
            "resume" => self.resume(handed)?,
            "reload" => self.reload(handed)?,
            "refresh" => self.refresh(request)?,
            "resize" => self.resize()?,
            _ => return Err(Problem::usage(format!("The process does not know the command '{command}'."))),
        }
        Ok(Map::new())
    }

    /// Lets requests wait, and wipes the key.
    fn suspend(&self) -> anyhow::Result<()> {
        let name = self.facts().name.clone();
        if self.device.is_suspended() {
            return Err(Problem::refused(
                format!("Volume {name} is already suspended."),
                "`inlock resume` lets it go on",
            ));
        }
        // Where the flush fails the device is suspended all the same, and the key shall go.
        let suspended = self.device.suspend();
        if self.key_present.load(Ordering::Acquire) && self.device.is_suspended() {
            let wiped = self.device.wipe_key();
            let gone = matches!(wiped, Ok(()) | Err(ControlError::InUse));
            self.key_present.store(!gone, Ordering::Release);
            wiped?;
        }
        Ok(suspended?)
    }

    /// Puts the table that was handed over in place of what there is. It brings its keys; what was suspended stays so.
    fn reload(&self, handed: Option<OwnedFd>) -> anyhow::Result<()> {
        let Some(pipe) = handed else { return Err(Problem::usage("The table is missing.")) };
        let text = pipe::read_text(&pipe, TABLE_MAX).context("cannot take the table")?;
        let table = Table::parse(std::str::from_utf8(&text).context("the table is not text")?)?;
        let before = self.device.len();
        let old = self.facts().clone();
        let mut facts = old.clone();
        let target = source::reload(&table, &self.device, &mut facts)?;
        // Who opens the name after this process has died is to find what was served, and to bring its keys.
        self.files.publish(&facts)?;
        if let Err(error) = self.device.reload(target) {
            self.files.publish(&old)?;
            return Err(error.into());
        }
        self.key_present.store(facts.has_key(), Ordering::Release);
        *self.facts() = facts;
        let len = self.device.len();
        if len > before { self.handed_out.resized(len) } else { Ok(()) }
    }

    /// Gives the volume the flags that its header or its table says, and those of the request.
    fn refresh(&self, request: &Value) -> anyhow::Result<()> {
        let names = request["flags"].as_array().map(Vec::as_slice).unwrap_or_default();
        let asked = CryptOptions::named(names.iter().map(|name| name.as_str().unwrap_or_default()));
        let mut flags = asked.ok_or_else(|| Problem::usage("The process does not know these flags."))?;
        let mut facts = self.facts().clone();
        flags.add(&facts.own_flags);
        if flags.allow_discards && !facts.allow_discards {
            self.handed_out.check_discards()?;
        }
        facts.set_flags(&flags);
        self.files.publish(&facts)?;
        self.device.allow_discards(flags.allow_discards);
        *self.facts() = facts;
        Ok(())
    }

    /// Looks how long the device below is now.
    fn resize(&self) -> anyhow::Result<()> {
        if self.device.is_suspended() {
            // The kernel may wait for requests that wait for the key, and the key would wait for this command.
            let name = &self.facts().name;
            return Err(Problem::refused(
                format!("Volume {name} is suspended: its length stays."),
                "`inlock resume` lets it go on",
            ));
        }
        let len = self.device.grow()?;
        // Also where it has not grown: whoever uses it may not have been told the last time.
        self.handed_out.resized(len)
    }

    /// Takes the key, if it was wiped, and lets requests go on.
    fn resume(&self, handed: Option<OwnedFd>) -> anyhow::Result<()> {
        let facts = self.facts().clone();
        if !self.device.is_suspended() {
            return Err(Problem::refused(format!("Volume {} is not suspended.", facts.name), "nothing was changed"));
        }
        if facts.has_key() && !self.key_present.load(Ordering::Acquire) {
            let Some(pipe) = handed else {
                return Err(Problem::usage(format!("Volume {} needs its key.", facts.name)));
            };
            let taken = self.take_key(&pipe, facts.check.as_ref(), &facts.name);
            scrub_stack::<{ 64 << 10 }>();
            taken?;
            self.key_present.store(true, Ordering::Release);
        }
        Ok(self.device.resume()?)
    }

    #[inline(never)]
    fn take_key(&self, pipe: &OwnedFd, check: Option<&KeyCheck>, name: &str) -> anyhow::Result<()> {
        let key = pipe::read_key(pipe).context("cannot take the key")?;
        if !check.is_some_and(|check| check.accepts(&key)) {
            return Err(Problem::OtherKey { name: name.to_owned() }.into());
        }
        Ok(self.device.set_key(&key)?)
    }
}

/// Whether a request to close is to wait until nobody uses the volume.
pub(crate) fn is_deferred(request: &Value) -> bool {
    request["deferred"] == true
}

/// A reply as a line.
pub(crate) fn line(reply: &Reply) -> Vec<u8> {
    let object = match reply {
        Ok(fields) => {
            let mut fields = fields.clone();
            fields.insert("ok".to_owned(), true.into());
            Value::Object(fields)
        }
        Err(error) => {
            let status = exit::status_of(error) as u8;
            json!({"ok": false, "error": exit::message_of(error), "hint": exit::hint_of(error), "exit": status})
        }
    };
    let mut line = object.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// An error as another process shall tell it.
pub(crate) fn told(error: &anyhow::Error) -> anyhow::Error {
    Problem::Told(exit::message_of(error), exit::hint_of(error), exit::status_of(error)).into()
}

#[cfg(test)]
mod tests {
    use super::super::Name;
    use super::*;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;

    struct Panics;

    impl HandedOut for Panics {
        fn close(&self, _request: &Value) -> anyhow::Result<()> {
            panic!("as it should not");
        }
    }

    #[test]
    fn a_command_that_panics_is_answered() {
        let facts = serde_json::from_value(json!({
            "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx", "segments": [],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "nbd", "ring": "plain", "threads": 1
        }));
        let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
        let files = Files::within("/nowhere".into(), &Name::new("data").unwrap());
        let running = Running::new(facts.unwrap(), Arc::new(device), files, Panics);
        let error = running.change("close", &json!({}), None).unwrap_err();
        assert!(error.to_string().contains("'close' failed"), "{error}");
        running.change("resize", &json!({}), None).unwrap();
    }
}
