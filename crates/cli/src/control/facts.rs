//! What is known of a running volume: facts that stand in its file, and the status that its process gives.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use inlock_engine::Device;
use inlock_volume::Segment;
use inlock_volume::table::CryptOptions;
use serde::{Deserialize, Serialize};

use super::Name;
use super::figures::{Counters, LastError, Spread, Time};
use super::key_check::{KeyCheck, Stamp};
use crate::exit::{self, Problem};
use crate::source::About;
use crate::zones::ZonedFacts;

/// What is served, from where, by whom. Never a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub name: String,
    pub pid: u32,
    /// Seconds since 1970.
    pub started: u64,
    /// `LUKS1`, `LUKS2`, `PLAIN`, `TABLE`, `RAW`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where the data are.
    pub device: PathBuf,
    /// Where the header is, if elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How a plain volume hashes a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    pub segments: Vec<SegmentFacts>,
    /// Its zones, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zoned: Option<ZonedFacts>,
    /// What the devices are, under whatever name; in the process only.
    #[serde(skip)]
    pub devices: Vec<String>,
    /// Knows the key again; in the process only.
    #[serde(skip)]
    pub check: Option<KeyCheck>,
    /// Knows the key again when the process has died; in the file only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
    pub read_only: bool,
    pub allow_discards: bool,
    /// What the header, or the table, says by itself; in the process only.
    #[serde(skip)]
    pub own_flags: CryptOptions,
    /// What is said about dm-crypt's threads.
    #[serde(default)]
    pub table_flags: Vec<String>,
    /// Where the cipher runs: a policy of `--offload`.
    pub offload: String,
    /// `nbd`, `fuse`, `loop`, `ublk`.
    pub via: String,
    /// Where clients find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Where scrapers find its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// The device or file that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// By which a block device is known when its process has died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
    /// `io_uring` or `plain`.
    pub ring: String,
    pub threads: usize,
}

/// One stretch of the volume; numbers of sectors are of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentFacts {
    pub start: u64,
    /// Without: to the end.
    pub sectors: Option<u64>,
    /// `crypt`, `linear`, `zero`, `error`.
    pub target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// Of the volume key.
    pub key_bits: usize,
    pub sector_size: usize,
    pub large_iv: bool,
    pub offset: u64,
    pub iv_offset: u64,
    /// Where a table's line lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
}

impl SegmentFacts {
    /// The facts of a segment whose key has `key_len` bytes.
    pub(crate) fn of(segment: &Segment, key_len: usize) -> Self {
        let target = if segment.cipher.is_some() { "crypt" } else { "linear" };
        Self {
            start: segment.start.0,
            sectors: segment.sectors,
            target: target.to_owned(),
            cipher: segment.cipher.map(|cipher| cipher.to_string()),
            key_bits: key_len * 8,
            sector_size: segment.unit.bytes(),
            large_iv: segment.large_iv,
            offset: segment.data_offset.0,
            iv_offset: segment.iv_offset.0,
            device: None,
        }
    }
}

/// Facts, and how it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    pub facts: Facts,
    /// Length of the volume in sectors of 512 bytes.
    pub sectors: u64,
    pub suspended: bool,
    /// Whether the key is in the process's memory; a raw volume has none.
    pub key_present: bool,
    /// A flush has failed: of what was written before, some may be lost, and no flush succeeds any more.
    #[serde(default)]
    pub writes_lost: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_store_error: Option<LastError>,
    pub counters: Counters,
    /// Of `total`, `queue`, `store` and `cipher`.
    pub latency_ns: BTreeMap<String, Spread>,
}

impl Facts {
    /// What is known of an opened volume before it is handed out; how, the caller fills in.
    pub(crate) fn new(name: &Name, about: About, device: &Device) -> Self {
        let access = device.access();
        Self {
            name: name.to_string(),
            pid: std::process::id(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            kind: about.kind,
            device: about.device,
            header: about.header,
            uuid: about.uuid,
            hash: about.hash,
            segments: about.segments,
            zoned: ZonedFacts::of(device),
            devices: about.devices,
            check: about.check,
            stamp: None,
            read_only: access.read_only,
            allow_discards: access.allow_discards,
            own_flags: about.own_flags,
            table_flags: thread_flags(&about.flags),
            offload: "none".to_owned(),
            via: String::new(),
            address: None,
            metrics: None,
            node: None,
            mark: None,
            ring: String::new(),
            threads: 0,
        }
    }

    /// Takes note of flags.
    pub(crate) fn set_flags(&mut self, flags: &CryptOptions) {
        self.allow_discards = flags.allow_discards;
        self.table_flags = thread_flags(flags);
    }

    /// Whether anything is encrypted.
    pub(crate) fn has_key(&self) -> bool {
        self.segments.iter().any(|segment| segment.cipher.is_some())
    }

    /// A device that waits for its process goes on with what it was made of, or those who use it would see, and destroy,
    /// another volume.
    pub(crate) fn check_is_same_volume(&self, new: &Self) -> anyhow::Result<()> {
        let what = |facts: &Self| (facts.kind.clone(), facts.device.clone(), facts.uuid.clone(), facts.hash.clone());
        let how = |facts: &Self| (facts.segments.clone(), facts.read_only);
        let same_key = match (&self.stamp, &new.check) {
            (Some(stamp), Some(check)) => stamp.accepts(check),
            (None, _) => !new.has_key(),
            (Some(_), None) => false,
        };
        if what(self) == what(new) && how(self) == how(new) {
            if same_key {
                return Ok(());
            }
            let message = format!("This key is not the one with which {} was opened.", self.name);
            let hint = "the passphrase is wrong, or the header was replaced; the device goes on waiting".to_owned();
            return Err(Problem::Told(message, Some(hint), exit::Status::Permission).into());
        }
        let (name, device) = (&self.name, self.device.display());
        let message = format!("The device of {name} waits for the {} volume {device}, as it was opened.", self.kind);
        let hint = format!("open it with the same options, or end what uses the device and `inlock close {name}`");
        Err(Problem::Told(message, Some(hint), exit::Status::Busy).into())
    }

    /// Node, else address.
    pub(crate) fn place(&self) -> String {
        match (&self.node, &self.address) {
            (Some(node), _) => node.display().to_string(),
            (None, Some(address)) => address.clone(),
            (None, None) => String::new(),
        }
    }
}

/// cryptsetup's block, line for line, then what is Inlock's own.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &self.facts;
        writeln!(f, "{} is active.", facts.name)?;
        writeln!(f, "  type:    {}", facts.kind)?;
        let crypt = facts.segments.iter().find(|segment| segment.cipher.is_some());
        if let Some(SegmentFacts { cipher: Some(cipher), key_bits, .. }) = crypt {
            writeln!(f, "  cipher:  {cipher}")?;
            writeln!(f, "  keysize: {key_bits} [bits]")?;
            let place = if self.key_present { "process memory" } else { "none (wiped)" };
            writeln!(f, "  key location: {place}")?;
        }
        writeln!(f, "  device:  {}", facts.device.display())?;
        if let Some(header) = &facts.header {
            writeln!(f, "  header:  {}", header.display())?;
        }
        if let Some(first) = crypt.or(facts.segments.first()) {
            writeln!(f, "  sector size:  {} [bytes]", first.sector_size)?;
            writeln!(f, "  offset:  {}", sectors(first.offset))?;
        }
        writeln!(f, "  size:    {}", sectors(self.sectors))?;
        if let Some(zoned) = &facts.zoned {
            writeln!(f, "  zones:   {zoned}")?;
        }
        if let Some(skipped) = crypt.map(|segment| segment.iv_offset).filter(|sectors| *sectors > 0) {
            writeln!(f, "  skipped: {skipped} [512-byte units]")?;
        }
        let mode = if facts.read_only { "readonly" } else { "read/write" };
        writeln!(f, "  mode:    {mode}{}", if self.suspended { " (suspended)" } else { "" })?;
        let mut flags = facts.table_flags.clone();
        if facts.allow_discards {
            flags.insert(0, "discards".to_owned());
        }
        if !flags.is_empty() {
            writeln!(f, "  flags:   {}", flags.join(" "))?;
        }
        self.write_own(f)
    }
}

impl Status {
    /// What cryptsetup does not say.
    fn write_own(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (facts, counters) = (&self.facts, &self.counters);
        writeln!(f, "  served:  {} {}", facts.via, facts.place())?;
        writeln!(f, "  process: {}, {} threads, {}", facts.pid, facts.threads, facts.ring)?;
        if let Some(metrics) = &facts.metrics {
            writeln!(f, "  metrics: {metrics}")?;
        }
        if facts.has_key() {
            let asked = |flag: &str| if facts.table_flags.iter().any(|set| set == flag) { "inline" } else { "queued" };
            let (reads, writes) = (asked("no_read_workqueue"), asked("no_write_workqueue"));
            writeln!(f, "  offload: {} (dm-crypt: reads {reads}, writes {writes})", facts.offload)?;
            writeln!(
                f,
                "  cipher work: {} requests inline, {} offloaded, {} calls of {:.1} units",
                counters.inline,
                counters.offloaded,
                counters.cipher_calls,
                counters.units_per_call()
            )?;
        }
        writeln!(
            f,
            "  requests: {} reads ({} bytes), {} writes ({} bytes), {} write-zeroes, {} flushes, {} discards, {} failed",
            counters.reads,
            counters.bytes_read,
            counters.writes,
            counters.bytes_written,
            counters.write_zeroes,
            counters.flushes,
            counters.discards,
            counters.errors
        )?;
        if let Some(last) = &self.last_store_error {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            writeln!(
                f,
                "  device errors: {}, the last one {} s ago: {}: {}",
                counters.store_errors,
                now.saturating_sub(last.at),
                last.operation.replace('_', "-"),
                io::Error::from_raw_os_error(last.errno)
            )?;
        }
        if self.writes_lost {
            writeln!(f, "  writes lost: a flush failed, and none succeeds until the volume is opened again")?;
        }
        for name in ["total", "queue", "store", "cipher"] {
            if let Some(spread) = self.latency_ns.get(name).filter(|spread| spread.count > 0) {
                let times = [spread.p50, spread.p90, spread.p99, spread.p99_9, spread.p99_99].map(Time);
                let [p50, p90, p99, p99_9, p99_99] = times;
                writeln!(f, "  {name:7} p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p99_9}, p99.99 {p99_99}")?;
            }
        }
        Ok(())
    }
}

/// The flags that steer dm-crypt's threads, in the words of its table.
pub(crate) fn thread_flags(options: &CryptOptions) -> Vec<String> {
    options.names().into_iter().filter(|name| *name != "allow_discards").map(str::to_owned).collect()
}

fn sectors(number: u64) -> String {
    format!("{number} [512-byte units] ({} [bytes])", number.saturating_mul(512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_volume::VolumeKey;

    fn key(byte: u8) -> KeyCheck {
        let spec = "aes-xts-plain64".parse().unwrap();
        let segment = Segment { cipher: Some(spec), ..crate::source::whole() };
        KeyCheck::new(&[segment], &VolumeKey::new(&[byte, 1].repeat(32))).unwrap()
    }

    /// As a process has left them, and as another one, which has the same key, has them.
    fn facts() -> Facts {
        let facts: Facts = serde_json::from_value(serde_json::json!({
            "name": "data", "pid": 1, "started": 0, "type": "LUKS2", "device": "/dev/sdx", "uuid": "u",
            "segments": [{
                "start": 0, "sectors": null, "target": "crypt", "cipher": "aes-xts-plain64", "key_bits": 512,
                "sector_size": 4096, "large_iv": false, "offset": 32768, "iv_offset": 0
            }],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "ublk", "ring": "io_uring", "threads": 4
        }))
        .unwrap();
        Facts { check: Some(key(0)), stamp: Some(key(0).stamp().unwrap()), ..facts }
    }

    #[test]
    fn a_device_that_waits_is_given_no_other_key() {
        let left: Facts = serde_json::from_slice(&serde_json::to_vec(&facts()).unwrap()).unwrap();
        left.check_is_same_volume(&Facts { stamp: None, ..facts() }).unwrap();
        for check in [Some(key(2)), None] {
            let error = left.check_is_same_volume(&Facts { check, stamp: None, ..facts() }).unwrap_err();
            assert_eq!(exit::status_of(&error), exit::Status::Permission);
        }
        let unknown = Facts { stamp: None, ..left };
        unknown.check_is_same_volume(&facts()).unwrap_err();
        let raw = |facts: Facts| Facts { segments: Vec::new(), check: None, stamp: None, ..facts };
        raw(facts()).check_is_same_volume(&raw(facts())).unwrap();
    }

    #[test]
    fn a_device_that_waits_is_given_no_other_volume() {
        let left = facts();
        left.check_is_same_volume(&Facts { pid: 2, started: 9, threads: 1, via: String::new(), ..facts() }).unwrap();
        let others: [fn(&mut Facts); 6] = [
            |facts| facts.kind = "PLAIN".into(),
            |facts| facts.device = "/dev/sdy".into(),
            |facts| facts.uuid = Some("v".into()),
            |facts| facts.hash = Some("sha256".into()),
            |facts| facts.segments[0].offset = 0,
            |facts| facts.read_only = true,
        ];
        for (number, change) in others.into_iter().enumerate() {
            let mut other = facts();
            change(&mut other);
            let error = left.check_is_same_volume(&other).expect_err(&number.to_string());
            assert_eq!(exit::status_of(&error), exit::Status::Busy);
        }
    }
}
