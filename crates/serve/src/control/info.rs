//! Information about a running volume: its state file, and the status that its process returns.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use inlock_engine::stats::Snapshot;
use inlock_engine::{CryptMapping, Device};
use inlock_volume::Printable;
use inlock_volume::table::CryptOptions;
use serde::{Deserialize, Serialize};

use super::engine::{EngineCounters, EngineInfo};
use super::integrity::IntegrityStatus;
use super::metrics::{Buckets, Counters, LastError, Percentiles, Time, phases};
use super::verity::VerityStatus;
use crate::attach::stale::StaleDevice;
use crate::error::{Error, Result};
use inlock_open::info::{SegmentInfo, VolumeInfo, thread_flags};
use inlock_open::key_check::{KeyCheck, KeyFingerprint};
use inlock_open::layer::Layer;
use inlock_open::path_text;
use inlock_open::reencryption::online::{OnlineState, OnlineStatus};
use inlock_open::reload::Reloaded;
use inlock_open::zones::ZonedInfo;

/// A running volume as its state file describes it. Contains no key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RuntimeInfo {
    /// Name of the volume.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since 1970.
    pub started: u64,
    /// `LUKS1`, `LUKS2`, `PLAIN`, `TABLE`, `INTEGRITY`, `RAW`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The data device.
    #[serde(with = "inlock_open::path_text")]
    pub device: PathBuf,
    /// A detached header.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "inlock_open::path_text::optional")]
    pub header: Option<PathBuf>,
    /// UUID of its header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Passphrase hash of a plain volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Targets of its table.
    pub segments: Vec<SegmentInfo>,
    /// Its zones, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zoned: Option<ZonedInfo>,
    /// Identities of the devices. In the process only.
    #[serde(skip)]
    pub devices: Vec<String>,
    /// Recognizes the key. In the process only.
    #[serde(skip)]
    pub check: Option<KeyCheck>,
    /// Recognizes the key when the process has died. In the state file only.
    #[serde(default, alias = "stamp", skip_serializing_if = "Option::is_none")]
    pub key_fingerprint: Option<KeyFingerprint>,
    /// The volume after its re-encryption, if one has begun. In the state file only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextVolume>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether discards reach the underlying device.
    pub allow_discards: bool,
    /// Whether holes of the devices read as zeroes (`--holes zero`).
    #[serde(default)]
    pub zero_holes: bool,
    /// Flags of the header or the table alone. In the process only.
    #[serde(skip)]
    pub own_flags: CryptOptions,
    /// Flags of dm-crypt's threads.
    #[serde(default)]
    pub table_flags: Vec<String>,
    /// Policy of `--offload`.
    pub offload: String,
    /// Its cipher engine.
    #[serde(default)]
    pub engine: EngineInfo,
    /// `nbd`, `fuse`, `loop`, `ublk`.
    pub via: String,
    /// Address for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Address for scrapers of its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Path of the device or file that it is attached as.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "inlock_open::path_text::optional")]
    pub node: Option<PathBuf>,
    /// Identifies a block device when its process has died.
    #[serde(default, alias = "mark", skip_serializing_if = "Option::is_none")]
    pub device_cookie: Option<u32>,
    /// I/O backend of the workers: `io_uring` or another word of the engine.
    pub ring: String,
    /// Number of workers or threads.
    pub threads: usize,
}

/// A volume after the re-encryption that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextVolume {
    /// Its targets.
    pub segments: Vec<SegmentInfo>,
    /// Recognizes its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_fingerprint: Option<KeyFingerprint>,
}

/// A running volume and its current state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Description that the state file has, too.
    #[serde(flatten)]
    pub info: RuntimeInfo,
    /// Length of the volume in sectors of 512 bytes.
    pub sectors: u64,
    /// Whether requests wait.
    pub suspended: bool,
    /// Whether the key is in the process's memory. A raw volume has none.
    pub key_present: bool,
    /// A flush has failed: earlier writes may be lost, and no later flush succeeds.
    #[serde(default)]
    pub writes_lost: bool,
    /// Whether it closes as soon as it is no longer in use (`close --deferred`).
    #[serde(default)]
    pub close_deferred: bool,
    /// Last error of the underlying device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_store_error: Option<LastError>,
    /// Counters since it was opened.
    pub counters: Counters,
    /// Counters of a cipher engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_counters: Option<EngineCounters>,
    /// State of a dm-integrity volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<IntegrityStatus>,
    /// State of a dm-verity device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verity: Option<VerityStatus>,
    /// Re-encryption of an open volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reencryption: Option<OnlineStatus>,
    /// By phase: `total`, `queue`, `store`, `cipher`.
    pub latency_ns: BTreeMap<String, Percentiles>,
}

/// A running volume as lists show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// Description that the state file has, too.
    #[serde(flatten)]
    pub info: RuntimeInfo,
    /// Whether requests wait.
    pub suspended: bool,
    /// Whether a server of many volumes closes it.
    #[serde(default)]
    pub closing: bool,
    /// Requests that failed with an error of the underlying device.
    pub store_errors: u64,
}

impl RuntimeInfo {
    /// Describes an opened volume. The caller adds how it is served or attached.
    pub fn new(name: &impl fmt::Display, volume: VolumeInfo, device: &Device) -> Self {
        let access = device.access();
        Self {
            name: name.to_string(),
            pid: std::process::id(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            kind: volume.kind,
            device: volume.device,
            header: volume.header,
            uuid: volume.uuid,
            hash: volume.hash,
            segments: volume.segments,
            zoned: ZonedInfo::of(device),
            devices: volume.devices,
            check: volume.check,
            key_fingerprint: None,
            next: None,
            read_only: access.read_only,
            allow_discards: access.allow_discards,
            zero_holes: device.mapping().has_zero_holes(),
            own_flags: volume.own_flags,
            table_flags: thread_flags(&volume.flags),
            offload: "none".to_owned(),
            engine: EngineInfo::default(),
            via: String::new(),
            address: None,
            metrics: None,
            node: None,
            device_cookie: None,
            ring: String::new(),
            threads: 0,
        }
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: &CryptOptions) {
        self.allow_discards = flags.allow_discards;
        self.table_flags = thread_flags(flags);
    }

    /// Takes over another table.
    pub fn set_table(&mut self, table: Reloaded) -> CryptMapping {
        self.kind = "TABLE".to_owned();
        (self.header, self.uuid, self.hash) = (None, None, None);
        self.segments = table.segments;
        self.check = table.check;
        self.own_flags = table.flags;
        self.table_flags = thread_flags(&table.flags);
        table.mapping
    }

    /// Returns the device or file that its process leaves behind when it dies.
    pub fn stale_device(&self) -> StaleDevice<'_> {
        StaleDevice {
            name: &self.name,
            method: &self.via,
            node: self.node.as_deref(),
            cookie: self.device_cookie,
            mounted_over: None,
        }
    }

    /// Whether its process publishes later where clients find it.
    pub fn is_attaching(&self) -> bool {
        self.node.is_none() && self.address.is_none()
    }

    /// Whether a segment is encrypted.
    pub fn has_key(&self) -> bool {
        self.segments.iter().any(|segment| segment.cipher.is_some())
    }

    /// Refuses another volume for a device that awaits recovery: its users would read and destroy that one.
    pub fn check_same_volume(&self, new: &Self) -> Result<()> {
        let source = |info: &Self| (info.kind.clone(), info.device.clone(), info.uuid.clone(), info.hash.clone());
        let access = |info: &Self| (info.read_only, info.zero_holes);
        // The segments of one in re-encryption are where its boundary was: the digest of its header confirms them.
        let is_between = new.check.as_ref().is_some_and(KeyCheck::is_of_sides);
        let has_its_key = |fingerprint: &Option<KeyFingerprint>| match (fingerprint, &new.check) {
            (Some(fingerprint), Some(check)) => fingerprint.is_of(check),
            (None, _) => !new.has_key(),
            (Some(_), None) => false,
        };
        let next = self.next.iter().map(|next| (&next.segments, &next.key_fingerprint));
        let known = std::iter::once((&self.segments, &self.key_fingerprint)).chain(next);
        let is_known = |(segments, _): &(&Vec<SegmentInfo>, _)| is_between || **segments == new.segments;
        let mut fitting = known.filter(is_known).map(|(_, fingerprint)| has_its_key(fingerprint)).peekable();
        if source(self) == source(new) && access(self) == access(new) && fitting.peek().is_some() {
            return match fitting.any(|has_its_key| has_its_key) {
                true => Ok(()),
                false => Err(Error::RecoveredKey { name: self.name.clone() }),
            };
        }
        let (name, kind) = (self.name.clone(), self.kind.clone());
        Err(Error::RecoveredVolume { name, kind, device: path_text::text_of(&self.device).into_owned() })
    }

    /// Returns the path of the device or file, or else the address.
    pub fn endpoint(&self) -> String {
        match (&self.node, &self.address) {
            (Some(node), _) => path_text::text_of(node).into_owned(),
            (None, Some(address)) => address.clone(),
            (None, None) => String::new(),
        }
    }
}

/// cryptsetup's lines, then Inlock's own.
impl fmt::Display for VolumeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        writeln!(f, "{} is active.", info.name)?;
        writeln!(f, "  type:    {}", info.kind)?;
        let crypt = info.segments.iter().find(|segment| segment.cipher.is_some());
        if let Some(SegmentInfo { cipher: Some(cipher), key_bits, .. }) = crypt {
            writeln!(f, "  cipher:  {cipher}")?;
            writeln!(f, "  keysize: {key_bits} [bits]")?;
            let place = if self.key_present { "process memory" } else { "none (wiped)" };
            writeln!(f, "  key location: {place}")?;
        }
        if let Some(integrity) = &self.integrity {
            match crypt {
                None => integrity.write_hash(f)?,
                Some(_) => integrity.write_type(f)?,
            }
        }
        if let Some(verity) = &self.verity {
            verity.write_parameters(f)?;
        }
        writeln!(f, "  device:  {}", path_text::shown(&info.device))?;
        if let Some(header) = &info.header {
            let what = match (&self.verity, &self.integrity) {
                (Some(_), _) => "hash device",
                (None, Some(_)) if crypt.is_none() => "metadata device",
                _ => "header",
            };
            writeln!(f, "  {what}:  {}", path_text::shown(header))?;
        }
        if let Some(integrity) = &self.integrity {
            integrity.write_layout(f, crypt.is_none())?;
        }
        if let Some(first) = crypt.or(info.segments.first()) {
            writeln!(f, "  sector size:  {} [bytes]", first.sector_size)?;
            writeln!(f, "  offset:  {}", sectors(first.offset))?;
        }
        writeln!(f, "  size:    {}", sectors(self.sectors))?;
        if let Some(zoned) = &info.zoned {
            writeln!(f, "  zones:   {zoned}")?;
        }
        if let Some(skipped) = crypt.map(|segment| segment.iv_offset).filter(|sectors| *sectors > 0) {
            writeln!(f, "  skipped: {skipped} [512-byte units]")?;
        }
        let mode = if info.read_only { "readonly" } else { "read/write" };
        let recovery = self.integrity.as_ref().is_some_and(|integrity| integrity.is_in_recovery());
        let recovery = if recovery { " recovery" } else { "" };
        writeln!(f, "  mode:    {mode}{recovery}{}", if self.suspended { " (suspended)" } else { "" })?;
        let mut flags = info.table_flags.clone();
        flags.extend(self.verity.iter().flat_map(VerityStatus::flags).map(str::to_owned));
        if info.allow_discards {
            flags.insert(0, "discards".to_owned());
        }
        if !flags.is_empty() {
            writeln!(f, "  flags:   {}", flags.join(" "))?;
        }
        self.write_own(f)
    }
}

impl VolumeStatus {
    /// Returns the status of a volume that has its key.
    pub fn of(info: RuntimeInfo, device: &Device, layer: &dyn Layer, snapshot: &Snapshot) -> Self {
        Self {
            key_present: info.has_key(),
            info,
            sectors: device.len() / 512,
            suspended: device.is_suspended(),
            writes_lost: device.has_lost_writes(),
            close_deferred: false,
            last_store_error: LastError::of(snapshot),
            counters: Counters::of(snapshot),
            engine_counters: device.engine_stats().map(EngineCounters::of),
            integrity: IntegrityStatus::of(layer),
            verity: layer.verity().map(|store| VerityStatus::of(store)),
            reencryption: layer.reencryption().and_then(|online| online.status(device)),
            latency_ns: phases(snapshot)
                .map(|(name, histogram)| (name.to_owned(), Percentiles::from(&Buckets::of(histogram))))
                .into(),
        }
    }

    /// Writes the lines that cryptsetup does not have.
    fn write_own(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (info, counters) = (&self.info, &self.counters);
        writeln!(f, "  served:  {}", Printable::new(format!("{} {}", info.via, info.endpoint()).trim_end()))?;
        writeln!(f, "  process: {}, {} threads, {}", info.pid, info.threads, info.ring)?;
        info.metrics.iter().try_for_each(|metrics| writeln!(f, "  metrics: {metrics}"))?;
        if info.zero_holes {
            writeln!(f, "  holes:   zero")?;
        }
        write_reencryption(f, self.reencryption.as_ref())?;
        if info.has_key() {
            let asked = |flag: &str| if info.table_flags.iter().any(|set| set == flag) { "inline" } else { "queued" };
            let (reads, writes) = (asked("no_read_workqueue"), asked("no_write_workqueue"));
            writeln!(f, "  offload: {} (dm-crypt: reads {reads}, writes {writes})", info.offload)?;
            writeln!(
                f,
                "  cipher work: {} requests inline, {} offloaded, {} calls of {:.1} units",
                counters.inline,
                counters.offloaded,
                counters.cipher_calls,
                counters.units_per_call()
            )?;
            writeln!(f, "  engine:  {}", info.engine)?;
            if let Some(engine) = &self.engine_counters {
                writeln!(f, "  engine work: {engine}")?;
            }
        }
        writeln!(
            f,
            "  requests: {} reads ({} bytes), {} writes ({} bytes), {} write-zeroes, {} flushes, {} discards, {} failed, \
             {} refused",
            counters.reads,
            counters.bytes_read,
            counters.writes,
            counters.bytes_written,
            counters.write_zeroes,
            counters.flushes,
            counters.discards,
            counters.errors,
            counters.refused
        )?;
        if let Some(integrity) = &self.integrity {
            integrity.write_counters(f)?;
        }
        if let Some(verity) = &self.verity {
            verity.write_counters(f)?;
        }
        if let Some(last) = &self.last_store_error {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            writeln!(
                f,
                "  I/O errors: {}, last {} s ago: {}: {}",
                counters.store_errors,
                now.saturating_sub(last.at),
                last.operation.replace('_', "-"),
                io::Error::from_raw_os_error(last.errno)
            )?;
        }
        if self.writes_lost {
            writeln!(f, "  data loss: a flush failed; reopen the volume")?;
        }
        for name in ["total", "queue", "store", "cipher"] {
            if let Some(percentiles) = self.latency_ns.get(name).filter(|percentiles| percentiles.count > 0) {
                let times = [percentiles.p50, percentiles.p90, percentiles.p99, percentiles.p99_9, percentiles.p99_99]
                    .map(Time);
                let [p50, p90, p99, p99_9, p99_99] = times;
                writeln!(f, "  {name:7} p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p99_9}, p99.99 {p99_99}")?;
            }
        }
        Ok(())
    }
}

fn sectors(number: u64) -> String {
    format!("{number} [512-byte units] ({} [bytes])", number.saturating_mul(512))
}

/// Writes how far a re-encryption is that has not finished.
fn write_reencryption(f: &mut fmt::Formatter<'_>, online: Option<&OnlineStatus>) -> fmt::Result {
    let Some(online) = online.filter(|online| online.state != OnlineState::Finished) else { return Ok(()) };
    let OnlineStatus { state, done_bytes, total_bytes, .. } = online;
    writeln!(f, "  reencryption:  in-progress, {state}, {done_bytes} of {total_bytes} bytes")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_open::layer::Mapped;
    use inlock_volume::{DataUnitSize, Segment, VolumeKey};
    use std::num::NonZero;
    use std::sync::Arc;

    fn key(byte: u8) -> KeyCheck {
        let spec = "aes-xts-plain64".parse().unwrap();
        let segment = Segment::whole(Some(spec), DataUnitSize::SECTOR);
        KeyCheck::new(&[segment], &VolumeKey::new(&[byte, 1].repeat(32))).unwrap()
    }

    /// Describes a volume as a process has left it, and as another process with the same key opens it.
    fn info() -> RuntimeInfo {
        let info: RuntimeInfo = serde_json::from_value(serde_json::json!({
            "name": "data", "pid": 1, "started": 0, "type": "LUKS2", "device": "/dev/sdx", "uuid": "u",
            "segments": [{
                "start": 0, "sectors": null, "target": "crypt", "cipher": "aes-xts-plain64", "key_bits": 512,
                "sector_size": 4096, "large_iv": false, "offset": 32768, "iv_offset": 0
            }],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "ublk", "ring": "io_uring", "threads": 4
        }))
        .unwrap();
        RuntimeInfo { check: Some(key(0)), key_fingerprint: Some(key(0).fingerprint().unwrap()), ..info }
    }

    #[test]
    fn recovery_with_other_key_is_refused() {
        let left: RuntimeInfo = serde_json::from_slice(&serde_json::to_vec(&info()).unwrap()).unwrap();
        left.check_same_volume(&RuntimeInfo { key_fingerprint: None, ..info() }).unwrap();
        for check in [Some(key(2)), None] {
            let error = left.check_same_volume(&RuntimeInfo { check, key_fingerprint: None, ..info() }).unwrap_err();
            assert!(matches!(error, Error::RecoveredKey { .. }), "{error}");
        }
        let unknown = RuntimeInfo { key_fingerprint: None, ..left };
        unknown.check_same_volume(&info()).unwrap_err();
        let raw = |info: RuntimeInfo| RuntimeInfo { segments: Vec::new(), check: None, key_fingerprint: None, ..info };
        raw(info()).check_same_volume(&raw(info())).unwrap();
    }

    #[test]
    fn device_of_a_volume_in_re_encryption_is_recovered_at_any_time() {
        let segment = Segment::whole(Some("aes-xts-plain64".parse().unwrap()), DataUnitSize::SECTOR);
        let volume_key = |byte| VolumeKey::new(&[byte, 1].repeat(32));
        let (old, new) = (volume_key(0), volume_key(2));
        let sides = |keys: [&VolumeKey; 2]| KeyCheck::of_sides(keys.map(|key| (&segment, Some(key)))).unwrap();
        let of_file = |info: &RuntimeInfo| -> RuntimeInfo {
            serde_json::from_slice(&serde_json::to_vec(&info).unwrap()).unwrap()
        };
        let other_segments = |info: RuntimeInfo| {
            let mut segments = info.segments.clone();
            segments[0].key_bits = 256;
            RuntimeInfo { segments, ..info }
        };
        let next = |byte| {
            let key_fingerprint = Some(key(byte).fingerprint().unwrap());
            Some(NextVolume { segments: other_segments(info()).segments, key_fingerprint })
        };
        let opened = |check| RuntimeInfo { check: Some(check), key_fingerprint: None, ..info() };
        let (between, after) = (other_segments(opened(sides([&old, &new]))), other_segments(opened(key(2))));
        // Left by a process with the old key, which has begun or not.
        let (before, begun) = (of_file(&info()), of_file(&RuntimeInfo { next: next(2), ..info() }));
        for left in [&before, &begun] {
            left.check_same_volume(&opened(key(0))).unwrap();
            left.check_same_volume(&between).unwrap();
            let other = other_segments(opened(sides([&volume_key(4), &volume_key(6)])));
            assert!(matches!(left.check_same_volume(&other), Err(Error::RecoveredKey { .. })));
            let elsewhere = RuntimeInfo { uuid: Some("other".to_owned()), ..between.clone() };
            assert!(matches!(left.check_same_volume(&elsewhere), Err(Error::RecoveredVolume { .. })));
        }
        begun.check_same_volume(&after).unwrap();
        assert!(matches!(before.check_same_volume(&after), Err(Error::RecoveredVolume { .. })));
        // The keys and the segments belong together.
        assert!(matches!(begun.check_same_volume(&other_segments(opened(key(0)))), Err(Error::RecoveredKey { .. })));
        assert!(matches!(begun.check_same_volume(&opened(key(2))), Err(Error::RecoveredKey { .. })));
        // Left by a process that has opened it in re-encryption.
        let key_fingerprint = Some(sides([&old, &new]).fingerprint().unwrap());
        let left = of_file(&RuntimeInfo { key_fingerprint, next: next(2), ..between.clone() });
        left.check_same_volume(&RuntimeInfo { segments: Vec::new(), ..between }).unwrap();
        left.check_same_volume(&after).unwrap();
        assert!(matches!(left.check_same_volume(&opened(sides([&old, &old]))), Err(Error::RecoveredKey { .. })));
    }

    #[test]
    fn status_says_that_holes_are_zero() {
        let spec = "aes-xts-plain64".parse().unwrap();
        let segment = Segment::whole(Some(spec), DataUnitSize::SECTOR);
        for zero_holes in [false, true] {
            let store = Arc::new(MemoryStore::new(vec![0; 4 << 20]).with_exact_holes(NonZero::new(1 << 20).unwrap()));
            let device =
                Device::new(&[segment], &VolumeKey::new(&[[3; 32], [4; 32]].concat()), store, Access::default());
            let device = if zero_holes { device.unwrap().with_zero_holes().unwrap() } else { device.unwrap() };
            let volume = VolumeInfo {
                kind: "PLAIN".to_owned(),
                device: "/dev/sdx".into(),
                header: None,
                header_identity: None,
                uuid: None,
                hash: None,
                segments: vec![SegmentInfo::of(&segment, 64)],
                check: None,
                own_flags: CryptOptions::default(),
                flags: CryptOptions::default(),
                devices: Vec::new(),
            };
            let status = VolumeStatus::of(
                RuntimeInfo::new(&"data", volume, &device),
                &device,
                &Mapped,
                &device.stats().snapshot(),
            );
            assert_eq!(status.to_string().contains("\n  holes:   zero\n"), zero_holes, "{status}");
            let json = serde_json::to_value(&status).unwrap();
            assert_eq!(json["zero_holes"], zero_holes, "{json}");
            assert_eq!(VolumeStatus::deserialize(json).unwrap().info.zero_holes, zero_holes);
        }
    }

    /// Returns the status of a volume that has all that a status may have.
    pub(crate) fn full_status() -> VolumeStatus {
        let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
        let info = RuntimeInfo { metrics: Some("unix:/socket".to_owned()), ..info() };
        let status = VolumeStatus::of(info, &device, &Mapped, &device.stats().snapshot());
        let integrity = serde_json::json!({
            "integrity": "hmac-sha256", "tag_size": 32, "sector_size": 4096, "interleave_sectors": 32768,
            "mode": "recovery", "journal_size": 8192, "client_bytes": 4096, "stored_bytes": 8192, "mismatches": 3,
            "journal_sections_used": 0, "commits": 9
        });
        let verity = serde_json::json!({
            "hash_type": 1, "hash": "sha256", "data_block_size": 4096, "hash_block_size": 4096, "data_blocks": 8,
            "salt": "", "verified_blocks": 7, "verified_hash_blocks": 6, "corrupted": 5, "ignore_corruption": true
        });
        let reencryption = serde_json::json!({ "state": "running", "done_bytes": 5, "total_bytes": 10 });
        VolumeStatus {
            engine_counters: Some(EngineCounters { keys: 1, accepted: 2, ..EngineCounters::default() }),
            integrity: Some(serde_json::from_value(integrity).unwrap()),
            verity: Some(serde_json::from_value(verity).unwrap()),
            reencryption: Some(serde_json::from_value(reencryption).unwrap()),
            ..status
        }
    }

    #[test]
    fn status_has_the_lines_of_all_that_the_volume_has() {
        let mut status = full_status();
        status.info.set_flags(&CryptOptions::named(["allow_discards", "same_cpu_crypt"]).unwrap());
        let text = status.to_string();
        for line in [
            "  status:      corrupted",
            "  integrity: hmac-sha256",
            "  crash protection: recovery",
            "  mode:    read/write recovery",
            "  flags:   discards same_cpu_crypt ignore_corruption",
            "  metrics: unix:/socket",
            "  reencryption:  in-progress, running, 5 of 10 bytes",
            "  tags:    3 mismatches",
            "  verified: 7 data blocks, 6 hash blocks; 5 corrupted",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let plain = VolumeStatus { integrity: None, verity: None, reencryption: None, ..status };
        let plain = VolumeStatus { info: RuntimeInfo { metrics: None, ..info() }, ..plain };
        let text = plain.to_string();
        assert!(text.contains("\n  mode:    read/write\n"), "{text}");
        for word in ["flags:", "metrics:", "reencryption:", "status:", "tags:", "recovery"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn volume_has_a_key_if_a_segment_has_and_is_attaching_without_an_endpoint() {
        let mut two = info();
        two.segments.push(SegmentInfo { cipher: None, ..two.segments[0].clone() });
        assert!(two.has_key() && info().has_key());
        two.segments.remove(0);
        assert!(!two.has_key());
        let at = |node: Option<&str>, address: Option<&str>| RuntimeInfo {
            node: node.map(PathBuf::from),
            address: address.map(str::to_owned),
            ..info()
        };
        let attaching = [at(None, None), at(Some("/dev/a"), None), at(None, Some("unix:/s"))];
        assert_eq!(attaching.map(|info| info.is_attaching()), [true, false, false]);
    }

    #[test]
    fn table_replaces_what_the_header_said() {
        let mut info = RuntimeInfo { header: Some("/h".into()), hash: Some("sha256".into()), ..info() };
        let flags = CryptOptions::named(["allow_discards", "high_priority"]).unwrap();
        let check = Some(key(9));
        let segments = vec![SegmentInfo { offset: 7, ..info.segments[0].clone() }];
        info.set_table(Reloaded { mapping: CryptMapping::raw(4096), segments, check, flags });
        assert_eq!((info.kind.as_str(), info.header, info.uuid, info.hash), ("TABLE", None, None, None));
        assert_eq!((info.segments[0].offset, info.own_flags), (7, flags));
        assert_eq!(info.table_flags, ["high_priority"]);
        assert!(info.check == Some(key(9)));
    }

    #[test]
    fn recovery_with_other_volume_is_refused() {
        let left = info();
        left.check_same_volume(&RuntimeInfo { pid: 2, started: 9, threads: 1, via: String::new(), ..info() }).unwrap();
        let others: [fn(&mut RuntimeInfo); 7] = [
            |info| info.kind = "PLAIN".into(),
            |info| info.device = "/dev/sdy".into(),
            |info| info.uuid = Some("v".into()),
            |info| info.hash = Some("sha256".into()),
            |info| info.segments[0].offset = 0,
            |info| info.read_only = true,
            |info| info.zero_holes = true,
        ];
        for (number, change) in others.into_iter().enumerate() {
            let mut other = info();
            change(&mut other);
            let error = left.check_same_volume(&other).expect_err(&number.to_string());
            assert!(matches!(error, Error::RecoveredVolume { .. }), "{error}");
        }
    }
}
