//! `integrity format`: creates a volume, and writes zeroes with their tags, or marks, unless `--no-wipe` is set.

use std::path::PathBuf;

use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{Fill, FormatOptions};

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
use inlock_open::integrity::IntegrityDevices;
use inlock_open::integrity_format;
use inlock_open::integrity_options::{HashOptions, IntegrityOptions};
use inlock_open::open;
use inlock_open::path_text;
use inlock_open::signatures;
use inlock_open::source::OpenOptions;

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
        let (image, options, fill) = (&self.image, self.options.clone(), self.fill);
        watch(image, fill.unwrap_or(Fill::Zeroes), self.show, |watch| {
            integrity_format::create(&devices, image, &self.integrity, options, fill, watch)
        })
    }
}

/// Continues an interrupted wipe.
pub(super) fn resume_wipe(source: &OpenOptions, fill: Fill, show: Show) -> anyhow::Result<()> {
    let unlocked = open(context(), source, true, None)?;
    let stores = unlocked.into_device(IoMode::Sync, Access::default())?;
    stores.check_writes(resume(&source.image, &stores, fill, show))
}
