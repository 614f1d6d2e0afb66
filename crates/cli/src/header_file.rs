//! Files with a backup of a LUKS header.

use std::path::Path;

use inlock_volume::{BackupError, HeaderBackup};

use crate::error::CliError;
use crate::host::context;
use inlock_open::device::{Device, OpenMode};
use inlock_open::error::cannot_load;
use inlock_open::lock::{self, Mode};
use inlock_open::{ErrorKind, output};

/// Refuses a backup file that exists. Called before anything is done that the backup is of.
pub(crate) fn check_new(file: &Path) -> anyhow::Result<()> {
    // A dangling link exists as well.
    match std::fs::symlink_metadata(file) {
        Ok(_) => Err(exists(file)),
        Err(_) => Ok(()),
    }
}

/// Writes a backup of the header on `device`, which is locked meanwhile, to a new file.
pub(crate) fn create(device: &Device, file: &Path) -> anyhow::Result<()> {
    let backup = {
        let _lock = lock::header(device, Mode::Shared)?;
        HeaderBackup::of_device(&device.header()?).map_err(cannot_back_up(&device.path))?
    };
    write(&backup, file)
}

/// Writes a backup to a new file, for its owner only to read.
pub(crate) fn write(backup: &HeaderBackup, file: &Path) -> anyhow::Result<()> {
    output::write_new(context(), file, backup.bytes()).map_err(|error| {
        if error.kind() == ErrorKind::OutputExists {
            return exists(file);
        }
        let message = format!("Cannot create header backup file {}.", file.display());
        anyhow::Error::from(error)
            .context(CliError::Refused { message, hint: "check the directory, its permissions and its free space" })
    })
}

/// Reads and checks a backup file.
pub(crate) fn read(file: &Path) -> anyhow::Result<HeaderBackup> {
    let opened = Device::open(context(), file, OpenMode::Read)?;
    HeaderBackup::of_file(&opened.header()?).map_err(|error| match error {
        BackupError::Load(error) => anyhow::Error::from(error).context(CliError::Refused {
            message: "Backup file does not contain valid LUKS header.".to_owned(),
            hint: "use a file that `luksHeaderBackup` has created",
        }),
        error => anyhow::Error::from(error).context(format!("Cannot read header backup file {}.", file.display())),
    })
}

fn exists(file: &Path) -> anyhow::Error {
    CliError::refused(
        format!("Requested header backup file {} already exists.", file.display()),
        "choose another name; an old backup is never overwritten",
    )
}

pub(crate) fn cannot_back_up(path: &Path) -> impl FnOnce(BackupError) -> anyhow::Error {
    let path = path.to_owned();
    move |error| match error {
        BackupError::Load(error) => cannot_load(&path)(error).into(),
        error => anyhow::Error::from(error).context(format!("cannot back up the header of {}", path.display())),
    }
}
