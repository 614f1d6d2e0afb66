//! Zoned devices and files: detecting zones, opening the store, and checking that a volume fits the zones.
//!
//! `inlock_volume` has the rules; this file applies them to devices and explains violations to users.

use crate::error::{Error, ErrorKind, Result, ResultExt as _, ZoneHint, cannot_unlock};
use std::path::Path;
use std::sync::Arc;

use inlock_engine::store::file::IoMode;
use inlock_engine::store::zoned_device::ZonedDevice;
use inlock_engine::zoned::{Zone, ZoneKind, ZoneLimits, ZonedStore};
use inlock_engine::{self as engine, BackingStore};
use inlock_volume::{Segment, Volume, ZoneFault, Zones};
use inlock_zoned_file::{ZonedFile, ZonedFileError, ZonedLayout};
use serde::{Deserialize, Serialize};

use crate::device::{Device, OpenMode};
use crate::host::Context;
use crate::lock::{self, Mode};

/// Number of zones in a report.
const REPORT_ZONES: usize = 4096;

impl Device {
    /// Looks for zones. The length of a zoned device becomes that of its zones, without the rest of a zoned file.
    pub fn with_zones(mut self) -> Result<Self> {
        self.zones = look(&self)?;
        self.len = self.zones.map_or(self.len, |zones| zones.len);
        Ok(self)
    }
}

/// Whether a device has zones that are written in order.
pub fn is_zoned(device: &Device) -> bool {
    match device.file() {
        None => false,
        Some(file) if device.is_block() => ZonedDevice::is_zoned(file),
        Some(_) => ZonedFile::is_zoned(&device.path),
    }
}

/// Returns the zones of a device, `None` if it has none.
fn look(device: &Device) -> Result<Option<Zones>> {
    if !is_zoned(device) {
        return Ok(None);
    }
    let conventional = |zones: &[Zone]| zones.iter().take_while(|zone| zone.kind == ZoneKind::Conventional).count();
    let (len, limits, count) = if device.is_block() {
        let store = ZonedDevice::new_read_only(device.share()?, IoMode::Sync);
        let store = store.with_context(|| format!("cannot read the zones of {}", device.path.display()))?;
        let limits = store.limits();
        let mut zones = vec![Zone::UNKNOWN; REPORT_ZONES.min(limits.zones as usize)];
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

/// Returns limits and zones of a zoned device or file, `None` for another one.
pub fn limits_and_zones(device: &Device) -> Result<Option<(ZoneLimits, Vec<Zone>)>> {
    if !is_zoned(device) {
        return Ok(None);
    }
    if !device.is_block() {
        return Ok(Some(ZonedFile::look(&device.path).map_err(cannot_use(&device.path))?));
    }
    let path = || device.path.display().to_string();
    let zoned = ZonedDevice::new_read_only(device.share()?, IoMode::Sync).with_context(path)?;
    let limits = zoned.limits();
    let mut zones = vec![Zone::UNKNOWN; limits.zones as usize];
    let found = zoned.report(0, &mut zones).map_err(std::io::Error::from).with_context(path)?;
    zones.truncate(found);
    Ok(Some((limits, zones)))
}

/// Creates a zoned file. With length 0 it has that of the file at `path`, which has no data.
pub fn create_file(context: &Context, path: &Path, mut layout: ZonedLayout) -> Result<()> {
    if layout.len == 0 {
        layout.len = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("cannot examine {}", path.display())),
        };
    }
    if layout.len == 0 {
        let text = format!("{} is empty; specify --size.", path.display());
        return Err(Error::new(ErrorKind::ZonedFileEmpty, text));
    }
    // Refuses a file that another process serves. A missing file is created.
    let _lock = match Device::open(context, path, OpenMode::Create) {
        Ok(device) => Some(lock::whole_device(&device, Mode::Exclusive)?),
        Err(_) => None,
    };
    ZonedFile::create(path, &layout).map_err(cannot_use(path))
}

/// Opens the store of a zoned device.
pub fn store(device: &Device, read_only: bool, mode: IoMode) -> Result<Arc<dyn BackingStore>> {
    if !device.is_block() {
        let open = if read_only { ZonedFile::open_read_only } else { ZonedFile::open };
        return Ok(Arc::new(open(&device.path).map_err(cannot_use(&device.path))?));
    }
    let store = match read_only {
        true => ZonedDevice::new_read_only(device.share()?, mode),
        false => ZonedDevice::new(device.reopen_direct(true)?, mode),
    };
    Ok(Arc::new(store.with_context(|| format!("cannot use {}", device.path.display()))?))
}

/// Refuses segments that do not fit the zones of their device.
pub fn check(device: &Device, segments: &[Segment], hint: ZoneHint) -> Result<()> {
    let Some(zones) = &device.zones else { return Ok(()) };
    segments.iter().try_for_each(|segment| zones.check_segment(segment)).map_err(unfit(&device.path, hint))
}

/// Refuses a LUKS volume that does not fit the zones of its device, before a passphrase is asked for. `rewritable`:
/// includes its header, which is on the same device.
pub(crate) fn check_volume(volume: &Volume, data: &Device, rewritable: bool) -> Result<()> {
    let Some(zones) = &data.zones else { return Ok(()) };
    if rewritable {
        zones.check_header(volume.data_offset()).map_err(unfit(&data.path, ZoneHint::Header))?;
    }
    let segments = volume.segments().map_err(cannot_unlock(&data.path))?;
    check(data, &segments, ZoneHint::Format)
}

/// Explains that a volume does not fit the zones of a device.
pub fn unfit(path: &Path, hint: ZoneHint) -> impl FnOnce(ZoneFault) -> Error {
    let path = path.to_owned();
    move |fault| Error::unusable(ErrorKind::ZoneMisfit(hint), &path, fault)
}

/// Zones of a running volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZonedInfo {
    /// Number of zones.
    pub zones: u32,
    /// In bytes; the last zone may be shorter.
    pub zone_size: u64,
    /// Number of conventional zones.
    pub conventional: u32,
    /// 0: no limit.
    pub max_open: u32,
    /// 0: no limit.
    pub max_active: u32,
    /// Least bytes of a write.
    pub write_granularity: u32,
}

impl ZonedInfo {
    /// Returns the zones of a device, `None` if it has none.
    pub fn of(device: &engine::Device) -> Option<Self> {
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

/// In the words of `status`.
impl std::fmt::Display for ZonedInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limit = |number: u32| if number == 0 { "unlimited".to_owned() } else { number.to_string() };
        let (open, active) = (limit(self.max_open), limit(self.max_active));
        write!(f, "{} of {} [bytes], {} conventional, ", self.zones, self.zone_size, self.conventional)?;
        write!(f, "max open {open}, max active {active}, write granularity {} [bytes]", self.write_granularity)
    }
}

/// Reports the zones with the bytes from `start` to `end`; none if the device has no zones.
pub fn report(device: &engine::Device, start: u64, end: u64) -> Result<Vec<Zone>> {
    let mut all: Vec<Zone> = Vec::new();
    let Some(limits) = device.zone_limits() else { return Ok(all) };
    let mut at = start / limits.zone_len * limits.zone_len;
    let mut room = vec![Zone::UNKNOWN; REPORT_ZONES.min(limits.zones as usize).max(1)];
    while at < end {
        let found = device.report_zones(at, &mut room)?;
        let zones = room[..found].iter().take_while(|zone| zone.start < end);
        all.extend(zones);
        match all.last().map(|zone| zone.start + zone.len).filter(|next| *next > at && found > 0) {
            Some(next) => at = next,
            None => return Err(Error::new(ErrorKind::Failed, format!("the device reports no zone at byte {at}"))),
        }
    }
    Ok(all)
}

/// Returns the zone with byte `at`. `zones` are contiguous.
pub fn at(zones: &[Zone], at: u64) -> Option<&Zone> {
    zones.get(zones.partition_point(|zone| zone.start + zone.len <= at)).filter(|zone| zone.start <= at)
}

/// Returns the end of the data in a zone.
pub fn written_to(zone: &Zone) -> u64 {
    let end = zone.start.saturating_add(zone.capacity);
    zone.write_pointer.map_or(end, |pointer| pointer.clamp(zone.start, end))
}

/// Explains an error of a zoned file.
pub fn cannot_use(path: &Path) -> impl FnOnce(ZonedFileError) -> Error {
    let path = path.to_owned();
    move |error| {
        let kind = match &error {
            ZonedFileError::Busy(_) => return Error::in_use(ErrorKind::ZonedFileInUse, &path),
            ZonedFileError::Exists(sidecar) => {
                let text = format!("Sidecar {} already exists.", sidecar.display());
                return Error::new(ErrorKind::SidecarExists, text).about(sidecar);
            }
            ZonedFileError::HoldsData(_) => ErrorKind::ZonedFileHoldsData,
            ZonedFileError::NoSidecar { .. } | ZonedFileError::Foreign(_) => ErrorKind::SidecarMissing,
            ZonedFileError::Damaged(_) => ErrorKind::ZonedFileDamaged,
            _ => ErrorKind::Failed,
        };
        Error::with_source(kind, format!("cannot use {}", path.display()), error).about(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenMode;
    use crate::host::{Context, Silent};
    use crate::settings::Settings;
    use inlock_zoned_file::ZonedLayout;

    const ZONE: u64 = 1 << 20;

    #[test]
    fn zoned_file_in_use_is_refused_with_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        ZonedFile::create(&path, &ZonedLayout::new(4 * ZONE, ZONE)).unwrap();
        let context = Context::new(Silent, Settings::default());
        let device = Device::open(&context, &path, OpenMode::Read).unwrap();
        let open = || store(&device, false, IoMode::Sync);
        let held = open().unwrap();
        let refused = open().map(drop).unwrap_err();
        assert_eq!((refused.kind(), refused.path()), (ErrorKind::ZonedFileInUse, Some(&*path)));
        drop(held);
        open().unwrap();
    }

    #[test]
    fn sidecar_that_is_missing_foreign_or_damaged_has_a_kind() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["disk", "other"].map(|name| dir.path().join(name));
        let sidecar = |path: &Path| path.with_extension("zones");
        for path in [&path, &other] {
            ZonedFile::create(path, &ZonedLayout::new(4 * ZONE, ZONE)).unwrap();
        }
        let context = Context::new(Silent, Settings::default());
        let device = Device::open(&context, &path, OpenMode::Read).unwrap();
        let kinds = || {
            let looked = limits_and_zones(&device).map(drop);
            [looked, store(&device, false, IoMode::Sync).map(drop)].map(|found| found.map_err(|error| error.kind()))
        };
        assert_eq!(kinds(), [Ok(()); 2]);
        std::fs::copy(sidecar(&other), sidecar(&path)).unwrap();
        assert_eq!(kinds(), [Err(ErrorKind::SidecarMissing); 2], "that of another file");
        std::fs::write(sidecar(&path), [1; 4096]).unwrap();
        assert_eq!(kinds(), [Err(ErrorKind::ZonedFileDamaged); 2]);
        std::fs::remove_file(sidecar(&path)).unwrap();
        assert_eq!(kinds(), [Err(ErrorKind::SidecarMissing); 2]);
    }

    #[test]
    fn zone_with_a_byte_is_found() {
        let zone = |number: u64, capacity, write_pointer| {
            let mut zone = Zone::UNKNOWN;
            (zone.start, zone.len) = (number * ZONE, ZONE);
            (zone.capacity, zone.write_pointer) = (capacity, write_pointer);
            zone
        };
        let zones = [zone(1, ZONE, None), zone(2, ZONE / 2, Some(2 * ZONE + 512))];
        for (byte, start) in [
            (0, None),
            (ZONE - 1, None),
            (ZONE, Some(ZONE)),
            (2 * ZONE - 1, Some(ZONE)),
            (2 * ZONE, Some(2 * ZONE)),
            (3 * ZONE - 1, Some(2 * ZONE)),
            (3 * ZONE, None),
        ] {
            assert_eq!(at(&zones, byte).map(|zone| zone.start), start, "{byte}");
        }
        assert_eq!(zones.each_ref().map(written_to), [2 * ZONE, 2 * ZONE + 512]);
        assert_eq!(written_to(&zone(2, ZONE / 2, Some(3 * ZONE))), 2 * ZONE + ZONE / 2, "a full zone");
    }
}
