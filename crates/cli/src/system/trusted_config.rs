//! Configuration of a server: it is used only if root and the user alone decide its content.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use inlock_open::error::cannot_open;
use inlock_open::trusted::{Groups, Untrusted, check, open};

use crate::error::{CliError, Status};

/// Whether what a server is configured with is used without a check.
static UNTRUSTED_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Lets this process use a configuration, and programs that it names, although other users can replace them.
pub(crate) fn allow_untrusted_config() {
    UNTRUSTED_ALLOWED.store(true, Ordering::Relaxed);
}

/// Opens the configuration of a server to read it.
pub(crate) fn open_config(path: &Path) -> anyhow::Result<File> {
    if UNTRUSTED_ALLOWED.load(Ordering::Relaxed) {
        return Ok(File::open(path).map_err(cannot_open(path, false))?);
    }
    open(path, Groups::Private).map_err(|untrusted| match untrusted {
        Untrusted::Unreadable { source, .. } => cannot_open(path, false)(source).into(),
        other => refusal("File", path, &other),
    })
}

/// Checks a program of the configuration of a server before it is executed by this path.
pub(crate) fn check_configured(program: &Path) -> anyhow::Result<()> {
    if UNTRUSTED_ALLOWED.load(Ordering::Relaxed) {
        return Ok(());
    }
    match check(program, Groups::Private) {
        // The kernel says why it cannot be executed.
        Ok(()) | Err(Untrusted::Unreadable { .. }) => Ok(()),
        Err(other) => Err(refusal("Program", program, &other)),
    }
}

fn refusal(what: &str, path: &Path, reason: &Untrusted) -> anyhow::Error {
    let hint = "let root or the user of the server own it and all directories above, and no others write to them; or use \
                --allow-untrusted-config";
    let message = format!("{what} {} is not used, because {reason}.", path.display());
    CliError::Remote(message, Some(hint.to_owned()), Status::Permission).into()
}
