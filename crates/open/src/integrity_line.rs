//! The integrity line of a volume: what the kernel shows of it, and the comparison of a running one with a table.

use crate::error::{Error, ErrorKind, Result};
use crate::host::Context;
use std::time::Duration;

use inlock_integrity::{Flags, IntegrityDevice, Layout, Mode, Superblock};
use inlock_volume::KdfError;
use inlock_volume::table::{IntegrityArguments, IntegrityLine, IntegrityMode, IntegrityTable, KeyedName};

use super::device::{Device, OpenMode};
use super::key_check::KeyCheck;
use super::table::open_device;

/// Time between two commits of the journal, or two flushes of the bitmap.
pub const DEFAULT_COMMIT_TIME: Duration = Duration::from_secs(10);
/// Sectors of a buffer, and percentage of the journal at which it is copied: the kernel's defaults.
const BUFFER_SECTORS: u64 = 128;
const WATERMARK: u64 = 50;
/// Modes of a table, and those of the library. Mode `I` has none.
pub(crate) const MODES: [(IntegrityMode, Mode); 4] = [
    (IntegrityMode::Journal, Mode::Journal),
    (IntegrityMode::Bitmap, Mode::Bitmap),
    (IntegrityMode::Direct, Mode::Direct),
    (IntegrityMode::Recovery, Mode::Recovery),
];
/// Sectors of the superblock.
const SUPERBLOCK_SECTORS: u64 = 8;

/// The integrity line of a running volume.
pub struct RunningLine {
    /// Identities of the device with the metadata, and of that with the data if it is another one.
    devices: Vec<String>,
    offset: u64,
    /// Settings of its table. `None`: the volume was opened by its header.
    given: Option<Settings>,
    keys: Keys,
}

/// The words of a line by name, without keys and devices.
type Settings = Vec<(&'static str, Option<String>)>;

/// Recognizes the keys of the algorithms.
type Keys = [Option<KeyCheck>; 3];

/// Arguments that opening a volume does not use: they are for a new volume, or for the kernel. A line may leave them
/// out, or have the values that the kernel shows.
const NOT_USED: [&str; 8] = [
    "journal_sectors",
    "interleave_sectors",
    "buffer_sectors",
    "journal_watermark",
    "sectors_per_bit",
    "bitmap_flush_interval",
    "fix_padding",
    "fix_hmac",
];

impl RunningLine {
    /// Describes a volume that is opened by its header.
    pub(crate) fn of_header(device: &Device, offset: u64) -> Self {
        Self { devices: vec![device.identity()], offset, given: None, keys: Keys::default() }
    }

    /// Describes a volume that is opened by this line.
    pub(crate) fn of_table(line: &IntegrityLine, metadata: &Device, data: Option<&Device>) -> Result<Self> {
        Ok(Self {
            devices: std::iter::once(metadata).chain(data).map(Device::identity).collect(),
            offset: line.offset,
            given: Some(settings_of(line)),
            keys: keys(&line.options)?,
        })
    }

    /// Refuses a table that would open the volume with tags of a line of crypt, which runs as `device`, in another way.
    pub fn check_unchanged(&self, context: &Context, table: &IntegrityTable, device: &IntegrityDevice) -> Result<()> {
        let line = &table.integrity;
        self.check_devices(context, line)?;
        let (superblock, layout) = (device.superblock(), device.layout());
        changed("length", &layout.provided_data_sectors.to_string(), &table.sectors.to_string())?;
        changed("offset", &self.offset.to_string(), &line.offset.to_string())?;
        let mode = mode_in_table(device.options().mode)?;
        let shown = arguments(&superblock, &layout, mode);
        let shown = settings(Some(superblock.tag_size), mode, &shown);
        let running = self.given.as_ref().unwrap_or(&shown);
        for (((name, from), (_, shown)), (_, to)) in running.iter().zip(&shown).zip(settings_of(line)) {
            let may_differ = NOT_USED.contains(name) && (to.is_none() || to == *shown);
            if !may_differ {
                changed(name, from.as_deref().unwrap_or("none"), to.as_deref().unwrap_or("none"))?;
            }
        }
        if keys(&line.options)? != self.keys {
            return Err(Error::other_key());
        }
        Ok(())
    }

    fn check_devices(&self, context: &Context, line: &IntegrityLine) -> Result<()> {
        let meta = line.options.meta_device.as_deref();
        let named = |has: bool| if has { "another device" } else { "none" };
        changed("meta_device", named(self.devices.len() > 1), named(meta.is_some()))?;
        for (name, identity) in meta.into_iter().chain([line.device.as_str()]).zip(&self.devices) {
            if open_device(context, name, OpenMode::Read)?.identity() != *identity {
                return Err(Error::new(
                    ErrorKind::IntegrityLineChanges,
                    format!("The volume was not opened on device {name}."),
                ));
            }
        }
        Ok(())
    }
}

/// Refuses a value that is not that of the running volume.
fn changed(name: &str, from: &str, to: &str) -> Result<()> {
    if from == to {
        return Ok(());
    }
    let message = format!("The integrity line of the table changes {name} from {from} to {to}.");
    Err(Error::new(ErrorKind::IntegrityLineChanges, message))
}

fn settings_of(line: &IntegrityLine) -> Settings {
    settings(line.tag_size, line.mode, &line.options)
}

fn settings(tag_size: Option<u16>, mode: IntegrityMode, given: &IntegrityArguments) -> Settings {
    let flag = |set: bool| set.then(|| "set".to_owned());
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let name = |named: &Option<KeyedName>| named.as_ref().map(|named| named.name.clone());
    let counts = &given.counts;
    let default = (mode == IntegrityMode::Journal).then_some(DEFAULT_COMMIT_TIME.as_millis() as u64);
    vec![
        ("mode", Some(mode.letter().to_string())),
        ("tag_size", number(tag_size.map(u64::from))),
        ("block_size", number(Some(given.block_size.unwrap_or(512).into()))),
        ("recalculate", flag(given.recalculate)),
        ("reset_recalculate", flag(given.reset_recalculate)),
        ("allow_discards", flag(given.allow_discards)),
        ("legacy_recalculate", flag(given.legacy_recalculate)),
        ("commit_time", number(counts.commit_time.or(default))),
        ("journal_sectors", number(counts.journal_sectors)),
        ("interleave_sectors", number(counts.interleave_sectors)),
        ("buffer_sectors", number(counts.buffer_sectors)),
        ("journal_watermark", number(counts.journal_watermark)),
        ("sectors_per_bit", number(counts.sectors_per_bit)),
        ("bitmap_flush_interval", number(counts.bitmap_flush_interval)),
        ("fix_padding", flag(given.fix_padding)),
        ("fix_hmac", flag(given.fix_hmac)),
        ("internal_hash", name(&given.internal_hash)),
        ("journal_crypt", name(&given.journal_crypt)),
        ("journal_mac", name(&given.journal_mac)),
    ]
}

fn keys(given: &IntegrityArguments) -> Result<Keys, KdfError> {
    let check = |named: &Option<KeyedName>| {
        let key = named.as_ref().and_then(|named| named.key.as_ref());
        key.map(KeyCheck::of_authenticated).transpose()
    };
    Ok([check(&given.internal_hash)?, check(&given.journal_crypt)?, check(&given.journal_mac)?])
}

/// Returns the mode as a table has it.
pub(crate) fn mode_in_table(mode: Mode) -> Result<IntegrityMode> {
    let in_table = MODES.into_iter().find(|(_, other)| *other == mode);
    in_table.map(|(mode, _)| mode).ok_or_else(|| Error::new(ErrorKind::Failed, "the mode has no letter in a table"))
}

/// Returns the arguments that the kernel shows for a volume.
pub(crate) fn arguments(superblock: &Superblock, layout: &Layout, mode: IntegrityMode) -> IntegrityArguments {
    let mut arguments = IntegrityArguments::default();
    arguments.block_size = u32::try_from(superblock.block_len()).ok();
    arguments.recalculate = superblock.flags.has(Flags::RECALCULATING);
    arguments.fix_padding = superblock.flags.has(Flags::FIXED_PADDING);
    arguments.fix_hmac = superblock.flags.has(Flags::FIXED_HMAC);
    let counts = &mut arguments.counts;
    counts.journal_sectors = Some(layout.initial_sectors - SUPERBLOCK_SECTORS);
    counts.interleave_sectors = Some(1 << superblock.log2_interleave_sectors);
    // A buffer of the kernel does not reach over the end of a tag area.
    counts.buffer_sectors = Some(BUFFER_SECTORS.min(1 << layout.metadata_run.trailing_zeros()));
    if mode == IntegrityMode::Journal {
        counts.journal_watermark = Some(WATERMARK);
        counts.commit_time = u64::try_from(DEFAULT_COMMIT_TIME.as_millis()).ok();
    }
    arguments
}
