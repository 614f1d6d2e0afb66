//! Tables of devices with integrity protection: opening one, and making one of an opened volume.

use crate::error::{Error, ErrorKind, Result};
use std::time::Duration;

use inlock_cipher::VolumeKey;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{IntegrityError, JournalCipher, Mode, OpenOptions, Stores, TagAlgorithm, TagHash, load};
use inlock_volume::AuthenticatedSegment;
use inlock_volume::table::{CryptOptions, IntegrityLine, IntegrityTable, KeyedName};
use std::path::Path;
use std::sync::Arc;

use super::device::Device;
use super::integrity::{IntegrityOpening, cannot_use, check_fits, stores};
use super::integrity_line::{DEFAULT_COMMIT_TIME, MODES, RunningLine, arguments, mode_in_table};
use super::integrity_options::JournalOptions;
use crate::path_text;

/// Returns the flags of a device that allows discards or not.
pub(crate) fn allow_discards(allowed: bool) -> CryptOptions {
    let mut options = CryptOptions::default();
    options.allow_discards = allowed;
    options
}

/// Checks the superblock against a line, and returns how to open the volume of dm-integrity.
pub(crate) fn opening(
    (line, journal): (&IntegrityLine, JournalOptions),
    is_sealed: bool,
    sectors: u64,
    metadata: &Device,
    data: Option<&Device>,
) -> Result<IntegrityOpening> {
    let given = &line.options;
    if is_sealed == given.internal_hash.is_some() {
        let (has, needs) = if is_sealed { ("has", "a line of crypt brings the tags") } else { ("has no", "they need") };
        return Err(Error::new(
            ErrorKind::IntegrityLineHash,
            format!("The integrity line of the table {has} internal_hash: {needs}."),
        ));
    }
    let Some((_, mode)) = MODES.into_iter().find(|(in_table, _)| *in_table == line.mode) else {
        return Err(Error::new(
            ErrorKind::IntegrityLineMode,
            format!("Device {} cannot be used in mode {}.", line.device, line.mode.letter()),
        ));
    };
    let mut options = journal.apply(OpenOptions::new(mode));
    let unfit_key = || unfit(&metadata.path);
    options.internal_hash = given.internal_hash.as_ref().map(tag_hash).transpose().map_err(unfit_key())?;
    options.journal_mac = given.journal_mac.as_ref().map(tag_hash).transpose().map_err(unfit_key())?;
    options.journal_cipher = given.journal_crypt.as_ref().map(journal_cipher).transpose().map_err(unfit_key())?;
    options.tag_size = line.tag_size.map(usize::from);
    options.block_len = Some(given.block_size.unwrap_or(512) as usize);
    options.sectors_per_bit = given.counts.sectors_per_bit.and_then(|sectors| u32::try_from(sectors).ok());
    options.allow_discards = given.allow_discards;
    options.legacy_recalculate = given.legacy_recalculate;
    let stores = Stores { start: line.offset, ..stores(metadata, data, IoMode::Sync, true)? };
    let (superblock, layout) = load(&stores, &options).map_err(unfit(&metadata.path))?;
    // An unfinished recalculation continues, unless it is to start again.
    options.recalculate = given.reset_recalculate || given.recalculate && !superblock.is_recalculating();
    if layout.provided_data_sectors != sectors {
        return Err(Error::new(
            ErrorKind::IntegrityLineLen,
            format!(
                "The integrity line of the table has {sectors} sectors, its device provides {}.",
                layout.provided_data_sectors
            ),
        ));
    }
    let interval = match mode {
        Mode::Bitmap => given.counts.bitmap_flush_interval,
        _ => given.counts.commit_time,
    };
    let every = interval.map_or(DEFAULT_COMMIT_TIME, Duration::from_millis);
    let running = RunningLine::of_table(line, metadata, data)?;
    let (start, line) = (line.offset, Some(running));
    Ok(IntegrityOpening { options, every, start, freshness: None, line, direct: false, is_of_header: false })
}

/// Returns the error of a line that its volume does not agree with.
fn unfit(path: &Path) -> impl FnOnce(IntegrityError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        IntegrityError::Option { option, reason } if !matches!(option, "start" | "device") => Error::new(
            ErrorKind::IntegrityLineMisfit,
            format!("Device {} does not fit its integrity line: {option}: {reason}.", path.display()),
        ),
        error => cannot_use(&path)(error),
    }
}

fn tag_hash(named: &KeyedName) -> Result<Arc<TagHash>, IntegrityError> {
    let key = named.key.as_ref().map(VolumeKey::as_bytes).unwrap_or_default();
    Ok(Arc::new(TagHash::new(named.name.parse::<TagAlgorithm>()?, key)?))
}

fn journal_cipher(named: &KeyedName) -> Result<Arc<JournalCipher>, IntegrityError> {
    let empty = VolumeKey::zeroed(0);
    Ok(Arc::new(JournalCipher::new(&named.name, named.key.as_ref().unwrap_or(&empty))?))
}

/// Returns the table of a LUKS2 volume with integrity protection, as cryptsetup gives it to the kernel, for a device
/// called `name`. `device` is the underlying device in the table.
pub(crate) fn of_volume(
    data: &Device,
    (name, device): (&str, &Path),
    (segment, key): (AuthenticatedSegment, VolumeKey),
    opening: &IntegrityOpening,
    flags: CryptOptions,
) -> Result<IntegrityTable> {
    let stores = Stores { start: opening.start, ..stores(data, None, IoMode::Sync, true)? };
    check_fits(&segment, &stores, data)?;
    let (superblock, layout) = load(&stores, &opening.options).map_err(cannot_use(&data.path))?;
    let mode = mode_in_table(opening.options.mode)?;
    let mut line = IntegrityLine::new(&path_text::text_of(device), opening.start, Some(superblock.tag_size), mode);
    line.options = arguments(&superblock, &layout, mode);
    Ok(IntegrityTable::new(layout.provided_data_sectors, line).with_sealed(name, segment, key, flags))
}
