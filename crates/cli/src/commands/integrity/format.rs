//! `integrity format`: creates a volume, and writes zeroes with their tags, or marks, unless `--no-wipe` is set.

use std::path::PathBuf;
use std::sync::Arc;

use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{Fill, FormatOptions, Marks, Mode, OpenOptions as IntegrityOpenOptions, format};

use crate::args::integrity::integrity_options;
use crate::args::options::Options;
use crate::commands::wipe::{fill_of, resume, watch};
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::warn;
use crate::ui::progress::Show;
use crate::ui::terminal;
use inlock_open::backing;
use inlock_open::device::OpenMode;
use inlock_open::integrity::{IntegrityDevices, cannot_use, stores};
use inlock_open::integrity_options::{HashOptions, IntegrityOptions, JournalCipherOptions};
use inlock_open::open;
use inlock_open::path_text;
use inlock_open::signatures;
use inlock_open::source::OpenOptions;
use inlock_open::wipe::wipe;

/// Bytes of the new superblock, at the start of its device.
const SUPERBLOCK_LEN: u64 = 4096;

/// A volume to create.
pub(super) struct FormatArgs {
    image: PathBuf,
    integrity: IntegrityOptions,
    options: FormatOptions,
    batch: bool,
    /// Content of the blocks. `None`: nothing is written.
    fill: Option<Fill>,
    show: Show,
}

impl FormatArgs {
    pub(super) fn new(options: &Options, image: PathBuf) -> anyhow::Result<Self> {
        let integrity = integrity_options(options)?;
        if options.integrity_recovery_mode || options.read_only {
            return Err(CliError::usage("A volume cannot be created in recovery mode or read-only."));
        }
        if options.integrity_lazy && (options.no_wipe || integrity.recalculate) {
            let option = if options.no_wipe { "no-wipe" } else { "integrity-recalculate" };
            return Err(CliError::usage(format!("Option --{option} is not allowed with --integrity-lazy.")));
        }
        let mut format = FormatOptions::default();
        format.tag_size = integrity.tag_size;
        format.block_len = options.sector_size.map_or(512, |size| size as usize);
        format.interleave_sectors = options.interleave_sectors.unwrap_or(format.interleave_sectors);
        format.journal_sectors = options.journal_size.map(|bytes| bytes / 512);
        format.sectors_per_bit = options.bitmap_sectors_per_bit.unwrap_or(format.sectors_per_bit);
        format.fix_padding = !options.integrity_legacy_padding;
        format.fix_hmac = !options.integrity_legacy_hmac;
        format.recalculate = integrity.recalculate;
        Ok(Self {
            image,
            options: format,
            batch: options.batch_mode,
            // The tags are computed when the volume is opened.
            fill: (!options.no_wipe && !integrity.recalculate).then(|| fill_of(options)),
            integrity,
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
        })
    }

    /// Returns whether the tags need a key, and the superblock has no MAC with one.
    fn is_superblock_without_key(&self) -> bool {
        let is_keyed = |hash: &HashOptions| hash.algorithm.is_keyed();
        is_keyed(&self.integrity.hash) && !self.integrity.journal_mac.as_ref().is_some_and(is_keyed)
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let data = self.integrity.data_device.as_deref();
        let devices = IntegrityDevices::open(context(), &self.image, data, OpenMode::Create)?;
        let both = || [Some(&devices.metadata), devices.data.as_ref()].into_iter().flatten();
        if !self.batch {
            // Without a fill, a data device of its own keeps its content.
            let overwritten = both().take(if self.fill.is_some() { 2 } else { 1 });
            overwritten.map(|device| signatures::warn_of(device, "")).collect::<Result<Vec<_>, _>>()?;
        }
        if !self.batch && self.is_superblock_without_key() {
            warn(
                "nothing protects the superblock from changes; add --journal-integrity hmac-sha256 and \
                 --journal-integrity-key-file, which each opening then needs",
            );
        }
        if !self.batch && terminal::stdin_is_terminal() {
            for device in both() {
                let shown = backing::shown(&device.path);
                let text = format!("This will overwrite data on {} irrevocably.", path_text::shown(&shown));
                terminal::confirm(&text, CliError::NotConfirmed)?;
            }
        }
        let mut options = self.options.clone();
        let hash = self.integrity.hash.load()?;
        if self.fill == Some(Fill::Marks) {
            let tag_size = options.tag_size.unwrap_or(hash.len());
            Marks::of_hash(Arc::clone(&hash), None, tag_size, options.block_len).map_err(cannot_use(&self.image))?;
        }
        options.internal_hash = Some(hash);
        options.journal_mac = self.integrity.journal_mac.as_ref().map(HashOptions::load).transpose()?;
        options.journal_cipher = self.integrity.journal_cipher.as_ref().map(JournalCipherOptions::load).transpose()?;
        (options.overwrite, options.long_journal) = (true, self.integrity.journal.long);
        let stores = stores(&devices.metadata, devices.data.as_ref(), IoMode::Sync, false)?;
        format(&stores, &options).map_err(cannot_use(&self.image))?;
        signatures::wipe(&devices.metadata, SUPERBLOCK_LEN)?;
        let Some(fill) = self.fill else { return Ok(()) };
        let options = IntegrityOpenOptions {
            tag_size: options.tag_size,
            internal_hash: options.internal_hash,
            journal_mac: options.journal_mac,
            journal_cipher: options.journal_cipher,
            ..self.integrity.journal.apply(IntegrityOpenOptions::new(Mode::Direct))
        };
        watch(&self.image, fill, self.show, |watch| wipe(&self.image, stores, options, 0, (fill, None), watch))
    }
}

/// Continues an interrupted wipe.
pub(super) fn resume_wipe(source: &OpenOptions, fill: Fill, show: Show) -> anyhow::Result<()> {
    let unlocked = open(context(), source, true, None)?;
    let stores = unlocked.into_device(IoMode::Sync, Access::default())?;
    stores.check_writes(resume(&source.image, &stores, fill, show))
}
