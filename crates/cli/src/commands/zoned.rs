//! `zoned`: creates zoned files, and reports the zones of a file or device.
//!
//! The report has the form of `blkzone report`, so that scripts can read both. JSON has bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use inlock_engine::zoned::{Zone, ZoneCondition, ZoneKind};
use inlock_zoned_file::ZonedLayout;
use serde_json::{Value, json};

use crate::args::action::{Action, Prepared};
use crate::args::options::Options;
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::print;
use inlock_open::device::{Device, OpenMode};
use inlock_open::path_text;
use inlock_open::zones;

pub(crate) const ACTION: Action = Action {
    name: "zoned",
    aliases: &[],
    arguments: &["create|report", "<file or device>"],
    options: &[&["json", "size"], ZONES],
    about: "create a zoned file; report the zones of a file or device",
    prepare: |options, mut arguments| {
        let (command, path) = (arguments.word()?, arguments.path()?);
        let args = ZonedArgs::new(&options, &command, path)?;
        Ok(Prepared::new(move || run(&args)))
    },
};

const ZONES: &[&str] = &[
    "zone-size",
    "zone-capacity",
    "conventional-zones",
    "max-open-zones",
    "max-active-zones",
    "zone-write-granularity",
];

/// A checked `zoned`.
enum ZonedArgs {
    Create {
        path: PathBuf,
        /// With length 0: the length of the file.
        layout: ZonedLayout,
    },
    Report {
        path: PathBuf,
        json: bool,
    },
}

impl ZonedArgs {
    /// Converts the options of `zoned COMMAND PATH`.
    fn new(options: &Options, command: &str, path: PathBuf) -> anyhow::Result<Self> {
        let given = [
            (options.zone_size.is_some(), "zone-size"),
            (options.zone_capacity.is_some(), "zone-capacity"),
            (options.conventional_zones.is_some(), "conventional-zones"),
            (options.max_open_zones.is_some(), "max-open-zones"),
            (options.max_active_zones.is_some(), "max-active-zones"),
            (options.zone_write_granularity.is_some(), "zone-write-granularity"),
            (options.size.is_some(), "size"),
        ];
        match command {
            "create" if options.json => Err(CliError::usage("Option --json is not allowed with zoned create.")),
            "create" => Ok(Self::Create { path, layout: layout(options)? }),
            "report" => match given.iter().find(|(given, _)| *given) {
                Some((_, option)) => {
                    Err(CliError::usage(format!("Option --{option} is not allowed with zoned report.")))
                }
                None => Ok(Self::Report { path, json: options.json }),
            },
            other => Err(CliError::usage(format!("Command '{other}' is neither create nor report."))),
        }
    }
}

fn layout(options: &Options) -> anyhow::Result<ZonedLayout> {
    let zone_len =
        options.zone_size.ok_or_else(|| CliError::usage("Option --zone-size is required for zoned create."))?;
    let granularity = options.zone_write_granularity.unwrap_or(4096);
    let fits = |sectors: u64| sectors.checked_mul(512).filter(|len| *len > 0);
    let len = match options.size {
        None => 0,
        Some(sectors) => fits(sectors).ok_or_else(|| CliError::usage("The size is zero, or exceeds 2^64 bytes."))?,
    };
    Ok(ZonedLayout {
        len,
        zone_len,
        capacity: options.zone_capacity.unwrap_or(zone_len),
        conventional: options.conventional_zones.unwrap_or(0),
        max_open: options.max_open_zones.unwrap_or(0),
        max_active: options.max_active_zones.unwrap_or(0),
        write_granularity: u32::try_from(granularity).unwrap_or(u32::MAX),
    })
}

fn run(args: &ZonedArgs) -> anyhow::Result<()> {
    match args {
        ZonedArgs::Create { path, layout } => Ok(zones::create_file(context(), path, *layout)?),
        ZonedArgs::Report { path, json } => report(path, *json),
    }
}

fn report(path: &Path, json: bool) -> anyhow::Result<()> {
    let device = Device::open(context(), path, OpenMode::Read)?;
    let Some((limits, zones)) = zones::limits_and_zones(&device)? else {
        return Err(not_zoned(if device.is_block() { &device.path } else { path }));
    };
    let kind = if device.is_block() { "device" } else { "file" };
    if json {
        let zones: Vec<Value> = zones.iter().map(zone_value).collect();
        let value = json!({
            "source": path_text::text_of(path), "kind": kind, "zone_length": limits.zone_len, "zone_count": limits.zones,
            "max_open": limits.max_open, "max_active": limits.max_active,
            "write_granularity": limits.write_granularity, "zones": zones,
        });
        return print(format_args!("{value:#}\n"));
    }
    let mut text = String::new();
    for zone in &zones {
        writeln!(text, "{}", Line(zone))?;
    }
    print(text)
}

fn not_zoned(path: &Path) -> anyhow::Error {
    CliError::refused(
        format!("{} is neither a zoned block device nor a zoned file.", path.display()),
        "run `inlock zoned create` to create a zoned file",
    )
}

/// Describes a zone, in bytes.
fn zone_value(zone: &Zone) -> Value {
    let kind = match zone.kind {
        ZoneKind::Conventional => "conventional",
        ZoneKind::SequentialRequired => "sequential-required",
        ZoneKind::SequentialPreferred => "sequential-preferred",
        _ => "unknown",
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
        _ => "unknown",
    };
    json!({
        "start": zone.start, "length": zone.len, "capacity": zone.capacity, "write_pointer": zone.write_pointer,
        "type": kind, "condition": condition,
    })
}

/// A zone in the form of `blkzone report`: in sectors, with the write pointer relative to the start.
struct Line<'a>(&'a Zone);

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Zone { start, len, capacity, write_pointer, kind, condition, .. } = self.0;
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
            _ => "??",
        };
        let kind_name = match kind {
            ZoneKind::Conventional => "CONVENTIONAL",
            ZoneKind::SequentialRequired => "SEQ_WRITE_REQUIRED",
            ZoneKind::SequentialPreferred => "SEQ_WRITE_PREFERRED",
            _ => "UNKNOWN",
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
