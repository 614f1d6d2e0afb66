//! `convert`: makes a LUKS1 volume a LUKS2 volume, or the reverse.

use std::path::{Path, PathBuf};

use inlock_volume::{Conversion, ConvertError, HeaderBackup};

use crate::args::action::{Action, IMAGE, Prepared, WHOLE_HEADER};
use crate::args::source::volume_type_of;
use crate::error::{CliError, hint_of_requirement};
use crate::host::context;
use crate::ui::print::warn;
use crate::ui::terminal::confirm_change;
use inlock_open::header::{cannot_load_from, load_volume};
use inlock_open::header_access::HeaderAccess;
use inlock_open::header_backup;
use inlock_open::path_text;
use inlock_open::source::{Luks, VolumeType};

pub(crate) const ACTION: Action = Action {
    name: "convert",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[WHOLE_HEADER, &["type"]],
    about: "convert a LUKS1 volume to LUKS2, or the reverse",
    prepare: |options, mut arguments| {
        let version = match volume_type_of(&options) {
            Ok(VolumeType::Luks(Luks::One)) => 1,
            Ok(VolumeType::Luks(Luks::Two)) => 2,
            _ => return Err(CliError::usage("Invalid LUKS type, only luks1 and luks2 are supported.")),
        };
        let image = arguments.path()?;
        let args = ConvertArgs {
            device: options.header.unwrap_or(image),
            version,
            backup: options.header_backup_file,
            batch: options.batch_mode,
        };
        Ok(Prepared::new(move || run(&args)))
    },
};

struct ConvertArgs {
    /// Device with the header.
    device: PathBuf,
    version: u32,
    /// File for a backup of the old header.
    backup: Option<PathBuf>,
    batch: bool,
}

fn run(args: &ConvertArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.backup {
        header_backup::check_new(file)?;
    }
    let access = HeaderAccess::open(context(), &args.device)?;
    access.device.check_writable()?;
    let path = &access.device.path;
    let volume = load_volume(context(), &access.header).map_err(cannot_load_from(path, &access.header))?;
    let conversion =
        Conversion::new(&volume, args.version).map_err(|error| cannot_convert(path, args.version, error))?;
    if !context().settings().ignore_signatures
        && let Some(found) = conversion.find_foreign_metadata(&access.header)?
    {
        let what = if found.is_luksmeta { "LUKSMETA additional metadata" } else { "additional metadata" };
        return Err(CliError::refused(
            format!("Unable to convert header with {what} (device {}, byte {}).", path.display(), found.offset),
            "another program keeps them there, and the new header overwrites them; move them away (clevis luks unbind), \
             or lose them with --disable-blkid",
        ));
    }
    for lost in conversion.loses() {
        warn(format_args!("{}: LUKS1 does not have {lost}", path.display()));
    }
    if conversion.may_lose_keyslot() && args.backup.is_none() {
        warn("all keyslots are in use: a power cut may lose one of them; make a backup with --header-backup-file");
    }
    let warning = format!("This operation will convert {} to LUKS{} format.\n", path_text::shown(path), args.version);
    confirm_change(args.batch, &warning, "Operation aborted, device was NOT converted.")?;
    if let Some(file) = &args.backup {
        let backup = HeaderBackup::of_device(&access.header).map_err(header_backup::cannot_back_up(path))?;
        header_backup::write(context(), &backup, file)?;
    }
    let needed = conversion.header_len();
    if needed > access.device.len && !access.device.is_block() && args.version == 2 {
        // A file with a detached LUKS1 header is shorter than a LUKS2 header.
        access.device.share()?.set_len(needed)?;
    }
    conversion.execute(&access.header).map_err(|error| cannot_convert(path, args.version, error))?;
    Ok(())
}

/// Explains, in cryptsetup's words, why a volume cannot be converted.
fn cannot_convert(path: &Path, version: u32, error: ConvertError) -> anyhow::Error {
    let hint = match &error {
        ConvertError::SameVersion(version) => {
            let message = format!("Device is already LUKS{version} type.");
            return CliError::refused(message, "nothing was changed");
        }
        ConvertError::Requirement(name) => {
            return CliError::refused("Unmet LUKS2 requirements detected.", hint_of_requirement(name.as_str()));
        }
        ConvertError::Keyslot { .. } => "inlock luksConvertKey --pbkdf pbkdf2 may make it compatible",
        ConvertError::KeyslotNumber(_) => "remove the keyslot, or give its passphrase to one of keyslots 0 to 7",
        ConvertError::Tokens(_) => "remove the tokens: inlock token remove --token-id N DEVICE",
        ConvertError::KeyslotDamaged(_) => "run `inlock repair` first",
        ConvertError::NoSpace { .. } => "the format needs more space before the data, which cannot be moved",
        ConvertError::Segments | ConvertError::Segment(_) | ConvertError::Digests(_) => {
            "LUKS1 cannot have this volume; keep LUKS2"
        }
        _ => {
            let context = format!("cannot convert {} to LUKS{version} format", path.display());
            return anyhow::Error::from(error).context(context);
        }
    };
    CliError::refused(format!("Cannot convert to LUKS{version} format - {error}."), hint)
}
