//! Making a new file's name survive a power cut, as its bytes do.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::Context;
use rustix::io::Errno;

/// Puts the directory entry of `file`, which was made at `path`, on stable storage.
pub(crate) fn sync_name(file: &File, path: &Path) -> anyhow::Result<()> {
    sync(file, path).with_context(|| format!("cannot make {} durable", path.display()))
}

fn sync(file: &File, path: &Path) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let Some(directory) = path.parent() else { return Ok(()) };
    let synced = match File::open(directory) {
        Ok(directory) => directory.sync_all(),
        // A directory may be for writing only.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            rustix::fs::syncfs(file).map_err(io::Error::from)
        }
        Err(error) => Err(error),
    };
    match synced {
        // Some network file systems have no sync of directories, and need none.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        synced => synced,
    }
}
