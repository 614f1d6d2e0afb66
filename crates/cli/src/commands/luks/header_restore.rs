//! `luksHeaderRestore`: writes a backup of header and keyslots to a device.

use std::path::Path;

use inlock_volume::{HeaderBackup, Replaced, RestoreError, Volume};

use super::header_backup::backup_file;
use crate::args::action::{Action, IMAGE, Prepared, WHOLE_HEADER};
use crate::error::CliError;
use crate::host::context;
use crate::ui::terminal;
use inlock_open::header_access::HeaderAccess;
use inlock_open::header_backup;
use inlock_open::path_text;
use inlock_open::signatures;
use inlock_open::{Error, ErrorKind};

pub(crate) const ACTION: Action = Action {
    name: "luksHeaderRestore",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[WHOLE_HEADER],
    about: "restore the header and the keyslots of a LUKS volume",
    prepare: |options, mut arguments| {
        let (file, batch) = (backup_file(&options)?, options.batch_mode);
        let image = arguments.path()?;
        let device = options.header.unwrap_or(image);
        Ok(Prepared::new(move || run(&device, &file, batch)))
    },
};

fn run(device: &Path, file: &Path, batch: bool) -> anyhow::Result<()> {
    let access = HeaderAccess::open(context(), device)?;
    access.device.check_writable()?;
    // Of the file, not of the device: status 1, as in cryptsetup.
    let backup = header_backup::read(context(), file).map_err(|error| match error.kind() {
        ErrorKind::NoDevice { .. } | ErrorKind::NotADevice => {
            let hint = "use a file that `luksHeaderBackup` has created";
            anyhow::Error::from(error)
                .context(CliError::Refused { message: "Header backup file cannot be used.".to_owned(), hint })
        }
        _ => error.into(),
    })?;
    let path = &access.device.path;
    let replaced = backup.compare(&access.header).map_err(cannot_restore(path, file))?;
    if !batch {
        signatures::warn_of(&access.device, "")?;
    }
    // Declining is status 1 here, as in cryptsetup; of other changes of a header it is 2.
    if !batch && terminal::stdin_is_terminal() {
        terminal::confirm(&warning(path, &backup, replaced), CliError::NotConfirmed)?;
    }
    backup.restore(&access.header).map_err(cannot_restore(path, file))
}

/// Returns cryptsetup's warning.
fn warning(path: &Path, backup: &HeaderBackup, replaced: Replaced) -> String {
    let path = path_text::shown(path);
    let kind = if matches!(backup.volume(), Volume::Luks1(_)) { "LUKS" } else { "LUKS2" };
    let Replaced::Header { same_uuid, has_requirements } = replaced else {
        return format!(
            "Device {path} does not contain {kind} header. Replacing header can destroy data on that device."
        );
    };
    let mut text =
        format!("Device {path} already contains {kind} header. Replacing header will destroy existing keyslots.");
    if !same_uuid {
        text += "\nWARNING: real device header has different UUID than backup!";
    }
    if has_requirements {
        text += "\nWARNING: unknown LUKS2 requirements detected in real device header!\n\
                 Replacing header with backup may corrupt the data on that device!";
    }
    text
}

fn cannot_restore(path: &Path, file: &Path) -> impl FnOnce(RestoreError) -> anyhow::Error {
    let (path, file) = (path.to_owned(), file.to_owned());
    move |error| {
        let (message, hint) = match error {
            RestoreError::DeviceTooSmall { needed, len } => return Error::too_small(&path, len, needed).into(),
            RestoreError::OtherKeyLength => (
                "Data offset or key size differs on device and backup, restore failed.".to_owned(),
                "the backup belongs to another volume; compare `inlock luksDump` of both",
            ),
            RestoreError::OtherDataOffset { device, backup } => (
                format!("Data offset differ on device and backup, restore failed: {device} and {backup} bytes."),
                "the backup belongs to another volume; compare `inlock luksDump` of both",
            ),
            RestoreError::Requirements => (
                format!("Forbidden LUKS2 requirements detected in backup {}.", file.display()),
                "the backup was made during an operation that only cryptsetup can finish",
            ),
            error => {
                let context = format!("cannot restore the header of {}", path.display());
                return anyhow::Error::from(error).context(context);
            }
        };
        CliError::refused(message, hint)
    }
}
