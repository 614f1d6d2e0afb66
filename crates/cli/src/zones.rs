//! Zoned sources: finding out that a file or a block device has zones, opening it as what it is, and telling what would fit.
//!
//! What fits is the volume crate's arithmetic ([`inlock_volume::zones`]); this is where it meets devices and users.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::zoned_device::ZonedDevice;
use inlock_engine::zoned::{Zone, ZoneKind, ZonedStore};
use inlock_engine::{self as engine, BackingStore};
use inlock_volume::{Segment, ZoneFault, Zones};
use inlock_zoned_file::ZonedFile;
use serde::{Deserialize, Serialize};

use crate::commands::zoned::cannot_use;
use crate::device::Device;
use crate::exit::Problem;

/// How many zones are asked for at a time.
const AT_ONCE: usize = 4096;

/// Whether a source has zones that are written in order.
pub(crate) fn is_zoned(device: &Device) -> bool {
    if device.is_block() { ZonedDevice::is_zoned(&device.file) } else { ZonedFile::is_zoned(&device.path) }
}

/// What a source has of zones; `None`: none.
pub(crate) fn look(device: &Device) -> anyhow::Result<Option<Zones>> {
    if !is_zoned(device) {
        return Ok(None);
    }
    let conventional = |zones: &[Zone]| zones.iter().take_while(|zone| zone.kind == ZoneKind::Conventional).count();
    let (len, limits, count) = if device.is_block() {
        let store = ZonedDevice::new(device.share()?, true, IoMode::Sync);
        let store = store.with_context(|| format!("cannot use {}", device.path.display()))?;
        let limits = store.limits();
        let mut zones = vec![Zone::UNKNOWN; AT_ONCE.min(limits.zones as usize)];
        let mut count = 0;
        loop {
            let from = count as u64 * limits.zone_len;
            let found = store.report(from, &mut zones).map_err(std::io::Error::from)?;
            let more = conventional(&zones[..found]);
            count += more;
            if more == 0 || more < found || count >= limits.zones as usize {
                break;
            }
        }
        (store.geometry().len, limits, count)
    } else {
        let (limits, zones) = ZonedFile::look(&device.path).map_err(cannot_use(&device.path))?;
        let len = zones.last().map_or(0, |zone| zone.start + zone.len);
        (len, limits, conventional(&zones))
    };
    let conventional = (count as u64).saturating_mul(limits.zone_len).min(len);
    Ok(Some(Zones { len, zone_len: limits.zone_len, conventional, write_granularity: limits.write_granularity }))
}

/// The store of a zoned source.
pub(crate) fn store(device: &Device, read_only: bool, mode: IoMode) -> anyhow::Result<Arc<dyn BackingStore>> {
    if !device.is_block() {
        return Ok(Arc::new(ZonedFile::open(&device.path, read_only).map_err(cannot_use(&device.path))?));
    }
    let file = if read_only { device.share()? } else { device.reopen_direct(true)? };
    let store = ZonedDevice::new(file, read_only, mode);
    Ok(Arc::new(store.with_context(|| format!("cannot use {}", device.path.display()))?))
}

/// Refuses segments that do not fit the zones of the device that they are on. `hint` says what to do about it.
pub(crate) fn check(device: &Device, segments: &[Segment], hint: &'static str) -> anyhow::Result<()> {
    let Some(zones) = &device.zones else { return Ok(()) };
    segments.iter().try_for_each(|segment| zones.check_segment(segment)).map_err(unfit(&device.path, hint))
}

/// What it means that a volume does not fit the zones of a device.
pub(crate) fn unfit(path: &Path, hint: &'static str) -> impl FnOnce(ZoneFault) -> anyhow::Error {
    let message = format!("Device {} cannot be used", path.display());
    move |fault| anyhow::Error::from(fault).context(Problem::Refused { message, hint })
}

/// The zones of a volume that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZonedFacts {
    pub zones: u32,
    /// In bytes; the last zone may be shorter.
    pub zone_size: u64,
    pub conventional: u32,
    /// 0: all.
    pub max_open: u32,
    /// 0: all.
    pub max_active: u32,
    pub write_granularity: u32,
}

impl ZonedFacts {
    /// What is true of the zones of a device that has some.
    pub(crate) fn of(device: &engine::Device) -> Option<Self> {
        let limits = device.zone_limits()?;
        let zones = report(device, 0, device.len()).unwrap_or_default();
        let conventional = zones.iter().filter(|zone| zone.kind == ZoneKind::Conventional).count();
        Some(Self {
            zones: limits.zones,
            zone_size: limits.zone_len,
            conventional: u32::try_from(conventional).unwrap_or(u32::MAX),
            max_open: limits.max_open,
            max_active: limits.max_active,
            write_granularity: limits.write_granularity,
        })
    }
}

/// As `status` has it.
impl std::fmt::Display for ZonedFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = |number: u32| if number == 0 { "all".to_owned() } else { format!("at most {number}") };
        let (open, active) = (most(self.max_open), most(self.max_active));
        write!(f, "{} of {} [bytes], {} conventional, ", self.zones, self.zone_size, self.conventional)?;
        write!(f, "{open} open, {active} active, written by {} [bytes]", self.write_granularity)
    }
}

/// The zones that the bytes from `start` to `end` lie in; none where the device has none.
pub(crate) fn report(device: &engine::Device, start: u64, end: u64) -> anyhow::Result<Vec<Zone>> {
    let mut all: Vec<Zone> = Vec::new();
    let Some(limits) = device.zone_limits() else { return Ok(all) };
    let mut at = start / limits.zone_len * limits.zone_len;
    let mut room = vec![Zone::UNKNOWN; AT_ONCE.min(limits.zones as usize).max(1)];
    while at < end {
        let found = device.report_zones(at, &mut room)?;
        let zones = room[..found].iter().take_while(|zone| zone.start < end);
        all.extend(zones);
        match all.last().map(|zone| zone.start + zone.len).filter(|next| *next > at && found > 0) {
            Some(next) => at = next,
            None => anyhow::bail!("the device reports no zone at byte {at}"),
        }
    }
    Ok(all)
}

/// The one of `zones`, which follow each other, that holds byte `at`.
pub(crate) fn at(zones: &[Zone], at: u64) -> Option<&Zone> {
    zones.get(zones.partition_point(|zone| zone.start + zone.len <= at)).filter(|zone| zone.start <= at)
}

/// How far a zone may hold data.
pub(crate) fn written_to(zone: &Zone) -> u64 {
    let end = zone.start.saturating_add(zone.capacity);
    zone.write_pointer.map_or(end, |pointer| pointer.clamp(zone.start, end))
}
