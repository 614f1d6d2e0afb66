//! The run directory of a user: lock files, and the state of running volumes.
//!
//! `/run/inlock` for root, else `$XDG_RUNTIME_DIR/inlock`, else `/tmp/inlock-UID`: the first that can be created and
//! that other users cannot write to. `INLOCK_RUN_DIR` names another one for the state, not for lock files, which all
//! processes must find.

use std::path::PathBuf;

use inlock_open::run_dir::{candidates, is_usable};

use crate::error::{Error, Result};

/// Returns the directory for the state of running volumes, and creates it if needed.
pub fn run_dir() -> Result<PathBuf> {
    let named = std::env::var_os("INLOCK_RUN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = named {
        if dir.is_absolute() && is_usable(&dir) {
            return Ok(dir);
        }
        return Err(Error::RunDir { dir });
    }
    candidates().find(|dir| is_usable(dir)).ok_or(Error::NoRunDir)
}
