//! Status and metrics of the volumes of a server. A closed volume costs no more than its state.

use std::collections::BTreeMap;
use std::fmt;

use inlock_frontend::nbd::throttle::ThrottleStats;
use inlock_open::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entry::{EntryState, Stage};
use super::running::Running;
use super::volumes::Volumes;
use crate::control::info::{Described, VolumeStatus};
use crate::control::metrics::Sample;
use crate::control::openmetrics::{Text, seconds};
use crate::{Error, Result};

/// States of a volume.
const STATES: [&str; 4] = ["closed", "opening", "open", "closing"];

/// A volume as commands list it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Name of the volume.
    pub name: String,
    /// `closed`, `opening`, `open` or `closing`.
    pub state: String,
    /// Clients that are connected.
    pub clients: usize,
    /// Clients that may be.
    pub max_clients: usize,
    /// Limit of requests a second.
    pub max_operations: Option<u64>,
    /// Limit of bytes a second.
    pub max_bytes: Option<u64>,
    /// Limit of bytes in flight.
    pub max_in_flight: Option<u64>,
    /// It was added by a command, and the file does not have it.
    pub added: bool,
    /// Bytes of requests in flight.
    pub in_flight_bytes: u64,
    /// Time for which requests waited for a limit.
    pub throttled_ns: u64,
    /// A closing of the volume has failed since the server started.
    #[serde(default)]
    pub closing_failed: bool,
}

impl Stage {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Closed => STATES[0],
            Self::Opening(_) => STATES[1],
            Self::Open(_) => STATES[2],
            Self::Closing(_) => STATES[3],
        }
    }

    /// Describes the volume while it is open or is being closed.
    fn describe(&self) -> Option<Described> {
        match self {
            Self::Open(running) => Some(running.volume.describe()),
            Self::Closing(closing) => Some(closing.described.clone()),
            Self::Closed | Self::Opening(_) => None,
        }
    }

    /// Returns the context of its devices, if it has some.
    pub(super) fn context(&self) -> Option<&Context> {
        match self {
            Self::Opening(context) => Some(context),
            Self::Open(running) => Some(&running.context),
            Self::Closing(closing) => Some(&closing.context),
            Self::Closed => None,
        }
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match self {
            Self::Open(running) => Some(running),
            Self::Closed | Self::Opening(_) | Self::Closing(_) => None,
        }
    }
}

impl EntryState {
    /// Returns the state. A volume that is being removed is closing, also while it still opens.
    pub(super) fn name(&self) -> &'static str {
        if self.is_removed { STATES[3] } else { self.stage.name() }
    }
}

impl Listed {
    fn new(name: &str, state: &EntryState) -> Self {
        let running = state.stage.running();
        let throttle = running.map_or_else(ThrottleStats::default, |running| running.server.throttle_stats());
        let limits = &state.config.limits;
        Self {
            name: name.to_owned(),
            state: state.name().to_owned(),
            clients: running.map_or(0, |running| running.server.clients()),
            max_clients: state.config.max_clients,
            max_operations: limits.operations,
            max_bytes: limits.bytes,
            max_in_flight: limits.in_flight,
            added: state.is_added,
            in_flight_bytes: throttle.in_flight,
            throttled_ns: u64::try_from(throttle.throttled.as_nanos()).unwrap_or(u64::MAX),
            closing_failed: state.has_closing_failed,
        }
    }
}

/// Status of one volume: how it is listed, and if it is open what `inlock status` shows.
#[derive(Clone, Debug)]
pub struct ListedStatus {
    listed: Listed,
    open: Option<VolumeStatus>,
}

impl ListedStatus {
    /// Returns the fields of a reply. Both parts have the name.
    fn fields(&self) -> serde_json::Result<Value> {
        let mut fields = serde_json::to_value(&self.listed)?;
        if let (Value::Object(fields), Value::Object(open)) = (&mut fields, serde_json::to_value(&self.open)?) {
            fields.extend(open);
        }
        Ok(fields)
    }

    /// Parses the fields of a reply.
    pub fn parse(fields: &Value) -> serde_json::Result<Self> {
        let listed = Listed::deserialize(fields)?;
        let open = (listed.state == STATES[2]).then(|| VolumeStatus::deserialize(fields)).transpose()?;
        Ok(Self { listed, open })
    }
}

impl fmt::Display for ListedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = &self.listed;
        match &self.open {
            Some(status) => write!(f, "{status}")?,
            None => writeln!(f, "{} is {}.", listed.name, listed.state)?,
        }
        writeln!(f, "  clients: {} of {}", listed.clients, listed.max_clients)?;
        let limit = |limit: Option<u64>| limit.map_or("any number of".to_owned(), |limit| limit.to_string());
        let (operations, bytes) = (limit(listed.max_operations), limit(listed.max_bytes));
        let in_flight = limit(listed.max_in_flight);
        writeln!(f, "  limits:  {operations} requests/s, {bytes} bytes/s, {in_flight} bytes in flight")?;
        if self.open.is_some() {
            let throttled = seconds(listed.throttled_ns);
            writeln!(f, "  in flight: {} bytes, throttled for {throttled} s", listed.in_flight_bytes)?;
        }
        if listed.added {
            writeln!(f, "  added by a command; the file does not have it")?;
        }
        if listed.closing_failed {
            writeln!(f, "  writes may be lost: an earlier closing has failed")?;
        }
        Ok(())
    }
}

impl Volumes {
    /// Describes all volumes.
    pub(super) fn list(&self) -> Vec<Listed> {
        let mut list = Vec::new();
        self.each(|name, state| list.push(Listed::new(name, state)));
        list
    }

    /// Returns the status of a volume, as fields of a reply.
    pub(super) fn status(&self, name: &str) -> Result<Value> {
        let mut status = self.look(name, |state| ListedStatus {
            listed: Listed::new(name, state),
            open: state.stage.running().map(|running| running.volume.status()),
        })?;
        if let Some(open) = &mut status.open {
            open.info.address = self.uri(name);
        }
        Ok(status.fields()?)
    }

    /// Returns the state of a volume, and whether it is closed and its last closing has failed.
    pub(super) fn state_of(&self, name: &str) -> Result<(&'static str, bool)> {
        self.look(name, |state| (state.name(), state.close_failure.is_some()))
    }

    /// Returns a sample of an open volume.
    pub(super) fn sample(&self, name: &str) -> Result<Sample> {
        let sample = self.look(name, |state| {
            let running = state.stage.running().ok_or(state.name());
            running.map(|running| running.volume.sample())
        })?;
        sample.map_err(|state| Error::NotOpen { name: name.to_owned(), state: state.to_owned() })
    }

    /// Describes the volumes that are open or are being closed.
    pub(super) fn open_volumes(&self) -> Vec<Described> {
        let mut list = Vec::new();
        self.each(|name, state| {
            let Some(mut described) = state.stage.describe() else { return };
            described.info.address = self.uri(name);
            described.closing = state.name() == STATES[3];
            list.push(described);
        });
        list
    }

    /// Returns samples of the open volumes.
    pub(super) fn samples(&self) -> BTreeMap<String, Sample> {
        let mut samples = BTreeMap::new();
        self.each(|name, state| {
            samples.extend(state.stage.running().map(|running| (name.to_owned(), running.volume.sample())));
        });
        samples
    }

    /// Returns the metrics for a scraper.
    pub(super) fn metrics(&self) -> String {
        let mut text = Text::default();
        self.each(|name, state| {
            text.begin(name);
            text.family("inlock_volume_state", "stateset", "", "State of the volume.");
            let now = state.name();
            for name in STATES {
                let value = if name == now { "1" } else { "0" };
                text.sample("inlock_volume_state", &[("inlock_volume_state", name)], value);
            }
            let Some(running) = state.stage.running() else { return };
            running.volume.write_metrics(&mut text);
            let clients = running.server.clients().to_string();
            text.gauge("inlock_clients", "", "Clients of the volume.", &clients);
            let throttle = running.server.throttle_stats();
            let help = "Bytes of requests in flight.";
            text.gauge("inlock_in_flight_bytes", "bytes", help, &throttle.in_flight.to_string());
            let throttled = seconds(u64::try_from(throttle.throttled.as_nanos()).unwrap_or(u64::MAX));
            let help = "Time for which requests of some client waited for a limit of the volume.";
            text.family("inlock_throttled_seconds", "counter", "seconds", help);
            text.sample("inlock_throttled_seconds_total", &[], &throttled);
        });
        text.finish()
    }
}
