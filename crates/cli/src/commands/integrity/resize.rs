//! `integrity resize`: gives a volume another length.

use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{Fill, Marks, Mode, OpenOptions, load, resize};
use serde_json::json;

use crate::args::integrity::integrity_options;
use crate::args::options::Options;
use crate::commands::resize::sectors_of;
use crate::commands::wipe::{fill_of, wipe};
use crate::control::client::Client;
use crate::control::name::Name;
use crate::error::CliError;
use crate::host::context;
use crate::ui::progress::Show;
use inlock_open::device::OpenMode;
use inlock_open::integrity::{IntegrityDevices, cannot_use, stores};
use inlock_open::integrity_options::IntegrityOptions;

/// Another length of a volume.
pub(super) struct ResizeArgs {
    image: PathBuf,
    integrity: IntegrityOptions,
    /// `None`: as many as fit.
    sectors: Option<u64>,
    /// Content of new blocks. `None`: nothing is written.
    fill: Option<Fill>,
    show: Show,
}

impl ResizeArgs {
    pub(super) fn new(options: &Options, image: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            image,
            integrity: integrity_options(options)?,
            sectors: sectors_of(options)?,
            fill: (options.wipe || options.integrity_lazy).then(|| fill_of(options)),
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
        })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        if let Some(mut running) = running(&self.image) {
            if self.fill == Some(Fill::Marks) {
                return Err(CliError::refused(
                    "Option --integrity-lazy is not possible while the volume is open.",
                    "use --wipe, or leave it out: the tags of new blocks are computed",
                ));
            }
            let wipe = self.fill.is_some();
            let command = json!({"command": "resize", "sectors": self.sectors, "wipe": wipe});
            return running.command(&command, None).map(drop);
        }
        let devices =
            IntegrityDevices::open(context(), &self.image, self.integrity.data_device.as_deref(), OpenMode::Write)?;
        for device in std::iter::once(&devices.metadata).chain(&devices.data) {
            device.check_writable()?;
        }
        let options = self.integrity.load()?;
        let stores = stores(&devices.metadata, devices.data.as_ref(), IoMode::Sync, false)?;
        if self.fill == Some(Fill::Marks) {
            // Before anything is changed.
            let (superblock, _) = load(&stores, &options).map_err(cannot_use(&self.image))?;
            let hash = options.internal_hash.clone().context("the tags are not internal")?;
            Marks::of_hash(hash, None, usize::from(superblock.tag_size), superblock.block_len())
                .map_err(cannot_use(&self.image))?;
        }
        let (before, superblock) = resize(&stores, &options, self.sectors).map_err(cannot_use(&self.image))?;
        let Some(fill) = self.fill.filter(|_| superblock.provided_data_sectors > before) else { return Ok(()) };
        wipe(&self.image, stores, OpenOptions { mode: Mode::Direct, ..options }, before, (fill, None), self.show)
    }
}

/// Returns the running volume that is named in place of a device, as integritysetup names it.
fn running(image: &Path) -> Option<Client> {
    let name = image.to_str().filter(|name| !name.contains('/') && !image.exists())?;
    Client::of(&Name::new(name).ok()?).ok()
}
