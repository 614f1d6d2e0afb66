//! Files with a backup of a LUKS header.

use std::path::Path;

use inlock_volume::{BackupError, HeaderBackup};

use crate::device::{Device, OpenMode};
use crate::error::{Error, ErrorKind, Result, cannot_load};
use crate::host::Context;
use crate::lock::{self, Mode};
use crate::output;

/// Refuses a backup file that exists. Called before anything is done that the backup is of.
pub fn check_new(file: &Path) -> Result<()> {
    // A dangling link exists as well.
    match std::fs::symlink_metadata(file) {
        Ok(_) => Err(exists(file)),
        Err(_) => Ok(()),
    }
}

/// Writes a backup of the header on `device`, which is locked meanwhile, to a new file.
pub fn create(device: &Device, file: &Path) -> Result<()> {
    let backup = {
        let _lock = lock::header(device, Mode::Shared)?;
        HeaderBackup::of_device(&device.header()?).map_err(cannot_back_up(&device.path))?
    };
    write(device.context(), &backup, file)
}

/// Writes a backup to a new file, for its owner only to read.
pub fn write(context: &Context, backup: &HeaderBackup, file: &Path) -> Result<()> {
    output::write_new(context, file, backup.bytes()).map_err(|error| {
        if error.kind() == ErrorKind::OutputExists {
            return exists(file);
        }
        let text = format!("Cannot create header backup file {}.", file.display());
        Error::with_source(ErrorKind::BackupNotWritten, text, error)
    })
}

/// Reads and checks a backup file.
pub fn read(context: &Context, file: &Path) -> Result<HeaderBackup> {
    let opened = Device::open(context, file, OpenMode::Read)?;
    HeaderBackup::of_file(&opened.header()?).map_err(|error| match error {
        BackupError::Load(error) => {
            Error::with_source(ErrorKind::NotABackup, "Backup file does not contain valid LUKS header.", error)
        }
        error => {
            let text = format!("Cannot read header backup file {}.", file.display());
            Error::with_source(ErrorKind::Failed, text, error)
        }
    })
}

fn exists(file: &Path) -> Error {
    let text = format!("Requested header backup file {} already exists.", file.display());
    Error::new(ErrorKind::BackupExists, text)
}

/// Explains why the header at `path` cannot be backed up.
pub fn cannot_back_up(path: &Path) -> impl FnOnce(BackupError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        BackupError::Load(error) => cannot_load(&path)(error),
        error => {
            let text = format!("cannot back up the header of {}", path.display());
            Error::with_source(ErrorKind::Failed, text, error)
        }
    }
}
