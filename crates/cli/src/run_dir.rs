//! The directory in which the processes of one user meet: locks, and the state of what is running.
//!
//! `/run/inlock` for root, else `$XDG_RUNTIME_DIR/inlock`, else `/tmp/inlock-UID`; the first that can be made and that nobody
//! else can put anything into. `INLOCK_RUN_DIR` names another one for the state, not for the locks: those must be met.

use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::Problem;

/// Where the state of running volumes is; made if need be.
pub(crate) fn run_dir() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("INLOCK_RUN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let found = match named {
        Some(dir) => Some(dir).filter(|dir| dir.is_absolute() && usable(dir)),
        None => candidates().find(|dir| usable(dir)),
    };
    found.ok_or_else(|| {
        Problem::refused(
            "There is no directory for the state of running volumes.",
            "set XDG_RUNTIME_DIR, or INLOCK_RUN_DIR, to a directory that nobody else can write to",
        )
    })
}

/// The directories that may serve, the best first.
pub(crate) fn candidates() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let root = user.is_root().then(|| PathBuf::from("/run/inlock"));
    let own = runtime.map(|runtime| runtime.join("inlock"));
    root.into_iter().chain(own).chain([PathBuf::from(format!("/tmp/inlock-{}", user.as_raw()))])
}

/// Whether `dir` is, or can be made, a directory in which and above which nobody else can put anything in its place.
pub(crate) fn usable(dir: &Path) -> bool {
    let make = |dir: &Path| DirBuilder::new().mode(0o700).create(dir);
    if make(dir).is_err()
        && let Some(parent) = dir.parent()
        && make(parent).is_ok()
    {
        let _ = make(dir);
    }
    is_own(dir) && dir.parent().is_some_and(is_safe_above)
}

fn is_own(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
    })
}

/// Ours or root's, and not writable for others unless only owners may rename and remove in it (as in /tmp).
fn is_safe_above(dir: &Path) -> bool {
    let trusted = |metadata: &Metadata| [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    // A link is as good as who made it.
    std::fs::symlink_metadata(dir).is_ok_and(|metadata| trusted(&metadata))
        && std::fs::metadata(dir).is_ok_and(|metadata| {
            let closed = metadata.mode() & 0o022 == 0 || metadata.mode() & 0o1000 != 0;
            metadata.is_dir() && trusted(&metadata) && closed
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (own, open) = (dir.path().join("own/deep"), dir.path().join("open"));
        assert!(usable(&own) && own.is_dir());
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(!usable(&open), "others could put sockets into it");
        assert!(!usable(&open.join("inner")), "others could put another directory in its place");
        std::os::unix::fs::symlink(&own, dir.path().join("link")).unwrap();
        assert!(!usable(&dir.path().join("link")));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(!usable(&dir.path().join("file")));
    }
}
