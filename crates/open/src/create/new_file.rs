//! A file for a detached header that this process creates.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::durable;
use crate::error::{Result, ResultExt as _};
use crate::remote;

/// A new file, or none. It is removed when this is dropped.
#[derive(Default)]
pub(super) struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Creates the file, empty and for its owner only, unless something has the name.
    pub(super) fn create(path: &Path) -> Result<Self> {
        if remote::uri_of(path).is_some() {
            return Ok(Self(None));
        }
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => Ok(Self(Some(path.to_owned()))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self(None)),
            Err(error) => Err(error).with_context(|| format!("cannot create header file {}", path.display())),
        }
    }

    /// Keeps it, and makes its name durable.
    pub(super) fn keep(mut self, file: Option<&File>) -> Result<()> {
        if let (Some(path), Some(file)) = (&self.0, file) {
            durable::sync_name(file, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
