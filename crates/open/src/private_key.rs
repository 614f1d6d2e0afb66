//! Private keys of TLS in files that other users can read or replace.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns a warning if other users can read or replace the private key in a file. A group may read it, as the one of
/// Debian's certificates does.
pub fn warning(file: &Path) -> Option<String> {
    let is_exposed = file.metadata().is_ok_and(|found| found.mode() & 0o026 != 0);
    let what = "other users can read or replace this private key; restrict it: chmod o-rwx,g-w";
    is_exposed.then(|| format!("{}: {what}", file.display()))
}
