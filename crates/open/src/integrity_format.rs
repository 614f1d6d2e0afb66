//! Creating dm-integrity volumes, and giving them another length.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use inlock_engine::store::file::IoMode;
use inlock_integrity::{Fill, FormatOptions, Marks, Mode, OpenOptions, format, load};

use crate::error::{Error, ErrorKind, Result};
use crate::integrity::{IntegrityDevices, cannot_use, stores};
use crate::integrity_options::{HashOptions, IntegrityOptions, JournalCipherOptions};
use crate::signatures;
use crate::wipe::{Wiped, wipe};

/// Bytes of the new superblock, at the start of its device.
const SUPERBLOCK_LEN: u64 = 4096;

/// Creates a volume on `devices`, and wipes it. `image`: the device with the superblock. `fill`: content of the blocks;
/// `None`: nothing is written. `watch` is called before the first write, and after each; it can stop the wipe.
pub fn create(
    devices: &IntegrityDevices,
    image: &Path,
    integrity: &IntegrityOptions,
    mut options: FormatOptions,
    fill: Option<Fill>,
    watch: &mut dyn FnMut(Wiped) -> ControlFlow<()>,
) -> Result<()> {
    let hash = integrity.hash.load()?;
    if fill == Some(Fill::Marks) {
        let tag_size = options.tag_size.unwrap_or(hash.len());
        Marks::of_hash(Arc::clone(&hash), None, tag_size, options.block_len).map_err(cannot_use(image))?;
    }
    options.internal_hash = Some(hash);
    options.journal_mac = integrity.journal_mac.as_ref().map(HashOptions::load).transpose()?;
    options.journal_cipher = integrity.journal_cipher.as_ref().map(JournalCipherOptions::load).transpose()?;
    (options.overwrite, options.long_journal) = (true, integrity.journal.long);
    let stores = stores(&devices.metadata, devices.data.as_ref(), IoMode::Sync, false)?;
    format(&stores, &options).map_err(cannot_use(image))?;
    signatures::wipe(&devices.metadata, SUPERBLOCK_LEN)?;
    let options = OpenOptions {
        tag_size: options.tag_size,
        internal_hash: options.internal_hash,
        journal_mac: options.journal_mac,
        journal_cipher: options.journal_cipher,
        ..integrity.journal.apply(OpenOptions::new(Mode::Direct))
    };
    fill.map_or(Ok(()), |fill| wipe(image, stores, options, 0, (fill, None), watch))
}

/// Gives a volume that is not open `sectors`, `None`: as many as fit, and wipes new blocks. `image`: the device with the
/// superblock. `fill`: content of new blocks; `None`: nothing is written. `watch` is called before the first
/// write, and after each; it can stop the wipe.
pub fn resize(
    devices: &IntegrityDevices,
    image: &Path,
    integrity: &IntegrityOptions,
    sectors: Option<u64>,
    fill: Option<Fill>,
    watch: &mut dyn FnMut(Wiped) -> ControlFlow<()>,
) -> Result<()> {
    for device in std::iter::once(&devices.metadata).chain(&devices.data) {
        device.check_writable()?;
    }
    let options = integrity.load()?;
    let stores = stores(&devices.metadata, devices.data.as_ref(), IoMode::Sync, false)?;
    if fill == Some(Fill::Marks) {
        // Before anything is changed.
        let (superblock, _) = load(&stores, &options).map_err(cannot_use(image))?;
        let hash = options.internal_hash.clone();
        let hash = hash.ok_or_else(|| Error::new(ErrorKind::Failed, "the tags are not internal"))?;
        Marks::of_hash(hash, None, usize::from(superblock.tag_size), superblock.block_len())
            .map_err(cannot_use(image))?;
    }
    let (before, superblock) = inlock_integrity::resize(&stores, &options, sectors).map_err(cannot_use(image))?;
    let fill = fill.filter(|_| superblock.provided_data_sectors > before);
    let options = OpenOptions { mode: Mode::Direct, ..options };
    fill.map_or(Ok(()), |fill| wipe(image, stores, options, before, (fill, None), watch))
}
