//! `luksHeaderBackup`: copies header and keyslots to a new file.

use std::path::{Path, PathBuf};

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::options::Options;
use crate::args::source::header_args;
use crate::error::CliError;
use crate::host::context;
use inlock_open::header::Header;
use inlock_open::header_backup;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "luksHeaderBackup",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER, &["header-backup-file"]],
    about: "back up the header and the keyslots of a LUKS volume",
    prepare: |options, mut arguments| {
        let file = backup_file(&options)?;
        let args = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&args, &file)))
    },
};

/// Returns the value of `--header-backup-file`, which is required.
pub(super) fn backup_file(options: &Options) -> anyhow::Result<PathBuf> {
    let file = options.header_backup_file.clone();
    file.ok_or_else(|| CliError::usage("Option --header-backup-file is required."))
}

fn run(args: &HeaderOptions, file: &Path) -> anyhow::Result<()> {
    header_backup::check_new(file)?;
    let header = Header::load(context(), args, false)?;
    Ok(header_backup::create(&header.device, file)?)
}
