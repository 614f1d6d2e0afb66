//! The run directory of a user: lock files, and the state of running volumes.
//!
//! `/run/inlock` for root, else `$XDG_RUNTIME_DIR/inlock`, else `/tmp/inlock-UID`: the first that can be created and
//! that other users cannot write to. `INLOCK_RUN_DIR` names another one for the state, not for lock files, which all
//! processes must find.

use std::path::PathBuf;

use inlock_open::run_dir::{candidates, is_usable};

use crate::error::CliError;

/// Returns the directory for the state of running volumes, and creates it if needed.
pub(crate) fn run_dir() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("INLOCK_RUN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = named {
        if dir.is_absolute() && is_usable(&dir) {
            return Ok(dir);
        }
        return Err(CliError::refused(
            format!("Directory {} of INLOCK_RUN_DIR cannot be used.", dir.display()),
            "set INLOCK_RUN_DIR to the absolute path of a directory of your own that other users cannot write to",
        ));
    }
    candidates().find(|dir| is_usable(dir)).ok_or_else(|| {
        CliError::refused(
            "There is no directory for the state of running volumes.",
            "set XDG_RUNTIME_DIR or INLOCK_RUN_DIR to a directory that other users cannot write to",
        )
    })
}
