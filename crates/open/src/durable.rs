//! Making the directory entry of a new file durable.

use crate::error::{Result, ResultExt as _};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Syncs the directory entry of `file`, which was created at `path`.
pub fn sync_name(file: &File, path: &Path) -> Result<()> {
    sync(file, path).with_context(|| format!("cannot make {} durable", path.display()))
}

fn sync(file: &File, path: &Path) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let Some(directory) = path.parent() else { return Ok(()) };
    let synced = match File::open(directory) {
        Ok(directory) => directory.sync_all(),
        // A directory may be write-only.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            rustix::fs::syncfs(file).map_err(io::Error::from)
        }
        Err(error) => Err(error),
    };
    match synced {
        // Some network file systems cannot sync directories, and need not.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        synced => synced,
    }
}
