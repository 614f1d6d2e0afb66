//! `zoned`: files with zones as a zoned drive has them, and what the zones of a file or drive are like.
//!
//! The report is in the form of `blkzone report`, so that scripts read both; as JSON it counts in bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::zoned_device::ZonedDevice;
use inlock_engine::zoned::{Zone, ZoneCondition, ZoneKind, ZoneLimits, ZonedStore as _};
use inlock_zoned_file::{ZonedFile, ZonedFileError, ZonedLayout};
use serde_json::{Value, json};

use crate::device::{Access, Device};
use crate::exit::{self, Problem};
use crate::lock::{self, Mode};
use crate::options::Options;

/// A checked `zoned`.
#[derive(Debug)]
pub(crate) enum ZonedArgs {
    /// Make a file.
    Create {
        path: PathBuf,
        /// Its length is 0 where that of the file is meant.
        layout: ZonedLayout,
    },
    /// Show zones.
    Report { path: PathBuf, json: bool },
}

impl ZonedArgs {
    /// From the options of `zoned ACTION PATH`.
    pub(crate) fn new(options: &Options, action: &str, path: PathBuf) -> anyhow::Result<Self> {
        let given = [
            (options.zone_size.is_some(), "zone-size"),
            (options.capacity.is_some(), "capacity"),
            (options.conventional.is_some(), "conventional"),
            (options.max_open.is_some(), "max-open"),
            (options.max_active.is_some(), "max-active"),
            (options.granularity.is_some(), "granularity"),
            (options.size.is_some(), "size"),
        ];
        match action {
            "create" if options.json => Err(Problem::usage("Option --json is not allowed with zoned create.")),
            "create" => Ok(Self::Create { path, layout: layout(options)? }),
            "report" => match given.iter().find(|(given, _)| *given) {
                Some((_, option)) => {
                    Err(Problem::usage(format!("Option --{option} is not allowed with zoned report.")))
                }
                None => Ok(Self::Report { path, json: options.json }),
            },
            other => Err(Problem::usage(format!("zoned: '{other}' is neither create nor report"))),
        }
    }
}

fn layout(options: &Options) -> anyhow::Result<ZonedLayout> {
    let zone_len = options.zone_size.ok_or_else(|| Problem::usage("zoned create: --zone-size is missing"))?;
    let granularity = options.granularity.unwrap_or(4096);
    let fits = |sectors: u64| sectors.checked_mul(512).filter(|len| *len > 0);
    let len = match options.size {
        None => 0,
        Some(sectors) => fits(sectors).ok_or_else(|| Problem::usage("The size is zero, or does not fit 64 bits."))?,
    };
    Ok(ZonedLayout {
        len,
        zone_len,
        capacity: options.capacity.unwrap_or(zone_len),
        conventional: options.conventional.unwrap_or(0),
        max_open: options.max_open.unwrap_or(0),
        max_active: options.max_active.unwrap_or(0),
        write_granularity: u32::try_from(granularity).unwrap_or(u32::MAX),
    })
}

/// Does it.
pub(crate) fn run(args: &ZonedArgs) -> anyhow::Result<()> {
    match args {
        ZonedArgs::Create { path, layout } => create(path, *layout),
        ZonedArgs::Report { path, json } => report(path, *json),
    }
}

fn create(path: &Path, mut layout: ZonedLayout) -> anyhow::Result<()> {
    if layout.len == 0 {
        layout.len = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
    }
    if layout.len == 0 {
        return Err(Problem::refused(
            format!("{} has no length, and none is given.", path.display()),
            "say how long all zones are together, as in --size 1G",
        ));
    }
    // One that another process serves is not for zones; one that is missing is made.
    let _lock = match Device::open(path, Access::Create) {
        Ok(device) => Some(lock::whole_device(&device, Mode::Exclusive)?),
        Err(_) => None,
    };
    ZonedFile::create(path, &layout).map_err(cannot_use(path))
}

/// What it means that a zoned file cannot be made or opened.
pub(crate) fn cannot_use(path: &Path) -> impl FnOnce(ZonedFileError) -> anyhow::Error {
    let path = path.to_owned();
    move |error| {
        let hint = match &error {
            ZonedFileError::Busy(_) => {
                return Problem::InUse { path, hint: "another process has the zoned file open" }.into();
            }
            ZonedFileError::Exists(sidecar) => {
                let by = "a sidecar is there already; remove it to begin anew".to_owned();
                return Problem::Held { node: sidecar.clone(), by }.into();
            }
            ZonedFileError::HoldsData(_) => "a zoned file begins empty: name a new file, or one made by truncate",
            ZonedFileError::NoSidecar { .. } => "a zoned file is moved and copied with its sidecar FILE.zones",
            ZonedFileError::Foreign(_) => "a zoned file is moved and copied with its sidecar FILE.zones",
            ZonedFileError::Damaged(_) => "restore FILE and FILE.zones from a backup, both from the same one",
            _ => return anyhow::Error::from(error).context(format!("cannot use {}", path.display())),
        };
        let message = format!("cannot use {}", path.display());
        anyhow::Error::from(error).context(Problem::Refused { message, hint })
    }
}

fn report(path: &Path, json: bool) -> anyhow::Result<()> {
    let device = Device::open(path, Access::Read)?;
    let (kind, (limits, zones)) = if device.is_block() {
        ("device", zones_of_device(&device)?)
    } else if ZonedFile::is_zoned(&device.path) {
        ("file", ZonedFile::look(&device.path).map_err(cannot_use(path))?)
    } else {
        return Err(not_zoned(path));
    };
    if json {
        let zones: Vec<Value> = zones.iter().map(zone_value).collect();
        let value = json!({
            "source": path, "kind": kind, "zone_length": limits.zone_len, "zone_count": limits.zones,
            "max_open": limits.max_open, "max_active": limits.max_active,
            "write_granularity": limits.write_granularity, "zones": zones,
        });
        return exit::print(format_args!("{value:#}\n"));
    }
    let mut text = String::new();
    for zone in &zones {
        writeln!(text, "{}", Line(zone))?;
    }
    exit::print(text)
}

fn zones_of_device(device: &Device) -> anyhow::Result<(ZoneLimits, Vec<Zone>)> {
    let path = || device.path.display().to_string();
    if !ZonedDevice::is_zoned(&device.file) {
        return Err(not_zoned(&device.path));
    }
    let zoned = ZonedDevice::new(device.share()?, true, IoMode::Sync).with_context(path)?;
    let limits = zoned.limits();
    let mut zones = vec![Zone::UNKNOWN; limits.zones as usize];
    let found = zoned.report(0, &mut zones).map_err(std::io::Error::from).with_context(path)?;
    zones.truncate(found);
    Ok((limits, zones))
}

fn not_zoned(path: &Path) -> anyhow::Error {
    Problem::refused(
        format!("{} is neither a zoned block device nor a zoned file.", path.display()),
        "`inlock zoned create` makes a file with zones",
    )
}

/// One zone, in words and bytes.
fn zone_value(zone: &Zone) -> Value {
    let kind = match zone.kind {
        ZoneKind::Conventional => "conventional",
        ZoneKind::SequentialRequired => "sequential-required",
        ZoneKind::SequentialPreferred => "sequential-preferred",
    };
    let condition = match zone.condition {
        ZoneCondition::NotWritePointer => "not-write-pointer",
        ZoneCondition::Empty => "empty",
        ZoneCondition::ImplicitOpen => "implicit-open",
        ZoneCondition::ExplicitOpen => "explicit-open",
        ZoneCondition::Closed => "closed",
        ZoneCondition::ReadOnly => "read-only",
        ZoneCondition::Full => "full",
        ZoneCondition::Offline => "offline",
    };
    json!({
        "start": zone.start, "length": zone.len, "capacity": zone.capacity, "write_pointer": zone.write_pointer,
        "type": kind, "condition": condition,
    })
}

/// One zone as `blkzone report` has it: in sectors, the pointer counted from the zone's start.
struct Line<'a>(&'a Zone);

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Zone { start, len, capacity, write_pointer, kind, condition } = self.0;
        let pointer = write_pointer.map_or(0, |pointer| pointer - start) / 512;
        let short = match condition {
            ZoneCondition::NotWritePointer => "nw",
            ZoneCondition::Empty => "em",
            ZoneCondition::ImplicitOpen => "oi",
            ZoneCondition::ExplicitOpen => "oe",
            ZoneCondition::Closed => "cl",
            ZoneCondition::ReadOnly => "ro",
            ZoneCondition::Full => "fu",
            ZoneCondition::Offline => "of",
        };
        let kind_name = match kind {
            ZoneKind::Conventional => "CONVENTIONAL",
            ZoneKind::SequentialRequired => "SEQ_WRITE_REQUIRED",
            ZoneKind::SequentialPreferred => "SEQ_WRITE_PREFERRED",
        };
        write!(
            f,
            "  start: 0x{:09x}, len 0x{:06x}, cap 0x{:06x}, wptr 0x{pointer:06x} reset:0 non-seq:0, \
             zcond:{:2}({short}) [type: {}({kind_name})]",
            start / 512,
            len / 512,
            capacity / 512,
            condition.number(),
            kind.number(),
        )
    }
}
