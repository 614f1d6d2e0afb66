//! `umount`: unmounts the file system of a volume, and closes the volume.

use std::path::Path;
use std::process::Command;

use super::{close, mount};
use crate::args::action::{Action, Prepared};
use crate::error::CliError;
use inlock_serve::attach::holders;
use inlock_serve::control::files::Files;

pub(crate) const ACTION: Action = Action {
    name: "umount",
    aliases: &[],
    arguments: &["<directory>"],
    options: &[&["deferred"]],
    about: "unmount the file system of a volume, and close it",
    prepare: |options, mut arguments| {
        let dir = arguments.path()?;
        Ok(Prepared::new(move || run(&dir, options.deferred)))
    },
};

fn run(dir: &Path, deferred: bool) -> anyhow::Result<()> {
    let Some(source) = holders::source_mounted_on(dir) else {
        let message = format!("No file system is mounted on {}.", dir.display());
        return Err(CliError::refused(message, "name the directory that `inlock mount` was given"));
    };
    let real = std::fs::canonicalize(&source).unwrap_or(source);
    let Some(ours) = Files::of_node(&real)? else {
        return Err(CliError::refused(
            format!("{} on {} is not a volume of Inlock.", real.display(), dir.display()),
            "run `inlock list` to see active volumes",
        ));
    };
    let mut command = Command::new("umount");
    if deferred {
        command.arg("--lazy");
    }
    command.arg("--").arg(dir);
    mount::run_helper(command, "umount", dir)?;
    Ok(close::run(ours.name(), deferred)?)
}
