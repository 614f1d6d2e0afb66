//! Directories of a user that other users cannot write to: for lock files, and for the state of running volumes.
//!
//! `/run/inlock` for root, else `$XDG_RUNTIME_DIR/inlock`, else `/tmp/inlock-UID`.

use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Returns the candidates, the preferred ones first.
pub fn candidates() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let root = user.is_root().then(|| PathBuf::from("/run/inlock"));
    let own = runtime.map(|runtime| runtime.join("inlock"));
    root.into_iter().chain(own).chain([PathBuf::from(format!("/tmp/inlock-{}", user.as_raw()))])
}

/// Whether `dir` exists or can be created, and other users can replace neither it nor its entries.
pub fn is_usable(dir: &Path) -> bool {
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

/// Whether the directory belongs to this user or root, and others can only add files of their own (as in /tmp).
fn is_safe_above(dir: &Path) -> bool {
    let trusted = |metadata: &Metadata| [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    // A symbolic link is trusted if its owner is.
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
    fn directory_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (own, open) = (dir.path().join("own/deep"), dir.path().join("open"));
        assert!(is_usable(&own) && own.is_dir());
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(!is_usable(&open), "others could put sockets into it");
        assert!(!is_usable(&open.join("inner")), "others could put another directory in its place");
        std::os::unix::fs::symlink(&own, dir.path().join("link")).unwrap();
        assert!(!is_usable(&dir.path().join("link")));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(!is_usable(&dir.path().join("file")));
    }
}
