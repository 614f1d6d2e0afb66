//! A file for a detached header that this process creates.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::durable;
use crate::error::{Result, ResultExt as _};
use crate::remote;

/// A new file, or none. It is removed when this is dropped, unless another one has its name by then.
#[derive(Default)]
pub(super) struct NewFile(Option<(PathBuf, File)>);

impl NewFile {
    /// Creates the file, empty and for its owner only, unless something has the name.
    pub(super) fn create(path: &Path) -> Result<Self> {
        if remote::uri_of(path).is_some() {
            return Ok(Self(None));
        }
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => Ok(Self(Some((path.to_owned(), file)))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self(None)),
            Err(error) => Err(error).with_context(|| format!("cannot create header file {}", path.display())),
        }
    }

    /// Keeps it, and makes its name durable.
    pub(super) fn keep(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |(path, file)| durable::sync_name(&file, &path))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let Some((path, file)) = &self.0 else { return };
        let own = file.metadata().map(|own| (own.dev(), own.ino()));
        if let (Ok(own), Ok(found)) = (own, path.symlink_metadata())
            && own == (found.dev(), found.ino())
        {
            let _ = std::fs::remove_file(path);
        }
    }
}
