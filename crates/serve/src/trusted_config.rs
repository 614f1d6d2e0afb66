//! Configuration of a server: it is used only if root and the user alone decide its content.

use std::fs::File;
use std::path::Path;

use crate::{Error, Result};
use inlock_open::error::cannot_open;
use inlock_open::trusted::{Groups, Untrusted, check, open};

/// Trust in what a server is configured with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Root and the user alone can change it.
    #[default]
    Checked,
    /// It is used without a check, although other users may replace it.
    All,
}

impl Trust {
    /// Opens the configuration of a server to read it.
    pub(crate) fn open_config(self, path: &Path) -> Result<File> {
        if self == Self::All {
            return Ok(File::open(path).map_err(cannot_open(path, false))?);
        }
        open(path, Groups::Private).map_err(|untrusted| match untrusted {
            Untrusted::Unreadable { source, .. } => cannot_open(path, false)(source).into(),
            other => refusal("File", path, &other),
        })
    }

    /// Checks a program of the configuration of a server before it is executed by this path.
    pub(crate) fn check_program(self, program: &Path) -> Result<()> {
        if self == Self::All {
            return Ok(());
        }
        match check(program, Groups::Private) {
            // The kernel says why it cannot be executed.
            Ok(()) | Err(Untrusted::Unreadable { .. }) => Ok(()),
            Err(other) => Err(refusal("Program", program, &other)),
        }
    }
}

fn refusal(what: &'static str, path: &Path, reason: &Untrusted) -> Error {
    Error::Untrusted { what, path: path.to_owned(), reason: reason.to_string() }
}
