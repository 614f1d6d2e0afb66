//! `integrity resize`: gives a volume that is not open another length.

use std::path::PathBuf;

use inlock_engine::store::file::IoMode;
use inlock_integrity::{Mode, OpenOptions, resize};

use crate::args::integrity::integrity_args;
use crate::args::options::Options;
use crate::commands::resize::sectors_of;
use crate::commands::wipe::{wipe, zeroes};
use crate::ui::progress::Show;
use crate::volume::device::OpenMode;
use crate::volume::integrity::{IntegrityDevices, cannot_use, stores};
use crate::volume::integrity_args::IntegrityArgs;

/// Another length of a volume.
pub(super) struct ResizeArgs {
    image: PathBuf,
    integrity: IntegrityArgs,
    /// `None`: as many as fit.
    sectors: Option<u64>,
    wipe: bool,
    show: Show,
}

impl ResizeArgs {
    pub(super) fn new(options: &Options, image: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            image,
            integrity: integrity_args(options)?,
            sectors: sectors_of(options)?,
            wipe: options.wipe,
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
        })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let devices = IntegrityDevices::open(&self.image, self.integrity.data_device.as_deref(), OpenMode::Write)?;
        let options = self.integrity.load()?;
        let stores = stores(&devices.metadata, devices.data.as_ref(), IoMode::Sync, false)?;
        let (before, superblock) = resize(&stores, &options, self.sectors).map_err(cannot_use(&self.image))?;
        if !self.wipe || superblock.provided_data_sectors <= before {
            return Ok(());
        }
        wipe(&self.image, stores, OpenOptions { mode: Mode::Direct, ..options }, before, zeroes, self.show)
    }
}
