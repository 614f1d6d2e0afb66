//! `umount`: unmounts the file system of a volume, and closes the volume.

use std::path::Path;
use std::process::Command;

use super::{close, mount};
use crate::control::name::Files;
use crate::exit::Problem;
use crate::holders;

pub(crate) fn run(dir: &Path, deferred: bool) -> anyhow::Result<()> {
    let Some(source) = holders::source_mounted_on(dir) else {
        return Err(Problem::usage(format!("Nothing is mounted on {}.", dir.display())));
    };
    let real = std::fs::canonicalize(&source).unwrap_or(source);
    let all = Files::all()?;
    let ours = all.iter().find(|files| files.facts().is_some_and(|facts| facts.node.as_deref() == Some(&real)));
    let Some(ours) = ours else {
        return Err(Problem::refused(
            format!("{} on {} is no volume of Inlock.", real.display(), dir.display()),
            "`inlock list` shows what is open",
        ));
    };
    let mut command = Command::new("umount");
    if deferred {
        command.arg("--lazy");
    }
    command.arg("--").arg(dir);
    mount::helper(command, "umount", dir)?;
    close::run(ours.name(), deferred)
}
