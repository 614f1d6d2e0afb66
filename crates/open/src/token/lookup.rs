//! Helpers: programs named after the type of a token, in one directory that no other user can write to.
//!
//! The type comes from the header, thus from an attacker in the worst case. It selects among the programs in the
//! directory and nothing else: it cannot form a path, and PATH is not searched.

use crate::error::Result;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::trusted::{self, Groups, Untrusted};

/// Maximum length of the name of a helper.
const MAX_NAME: usize = 64;

/// A helper that must not be run.
#[derive(Debug)]
pub(super) enum HelperError {
    NotAFile(PathBuf),
    NotExecutable(PathBuf),
    Untrusted(Untrusted),
}

impl fmt::Display for HelperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAFile(path) => write!(f, "helper {} is not a regular file", path.display()),
            Self::NotExecutable(path) => write!(f, "helper {} is not executable", path.display()),
            Self::Untrusted(reason) => write!(f, "its helper is not run, because {reason}"),
        }
    }
}

/// Returns the helper for tokens of type `kind`, if there is one.
pub(super) fn find(dir: &Path, kind: &str) -> Result<Option<PathBuf>, HelperError> {
    if !is_name(kind) {
        return Ok(None);
    }
    let path = dir.join(kind);
    if path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    trusted::check(&path, Groups::None).map_err(HelperError::Untrusted)?;
    let unreadable = |source| HelperError::Untrusted(Untrusted::Unreadable { path: path.clone(), source });
    check_program(&path, &path.metadata().map_err(unreadable)?)?;
    // Without links, so that a script finds files of its directory.
    path.canonicalize().map(Some).map_err(unreadable)
}

/// Whether a type of token can be the name of a helper.
fn is_name(kind: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME).contains(&kind.len())
        && kind.as_bytes()[0].is_ascii_alphanumeric()
        && kind.bytes().all(is_allowed)
        && !kind.starts_with("luks2-")
}

fn check_program(path: &Path, metadata: &Metadata) -> Result<(), HelperError> {
    if !metadata.is_file() {
        return Err(HelperError::NotAFile(path.to_owned()));
    }
    if metadata.mode() & 0o111 == 0 {
        return Err(HelperError::NotExecutable(path.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn type_that_is_no_plain_name_selects_no_helper() {
        for name in ["clevis", "systemd-tpm2", "a.b_c-1", "X"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "/bin/sh",
            "../sh",
            "a b",
            "a\n",
            "a\0",
            "ä",
            "-x",
            "luks2-keyring",
            &long,
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(matches!(find(Path::new("/usr/bin"), "../bin/env"), Ok(None)));
        assert!(matches!(find(Path::new("/usr/bin"), "no-such-program"), Ok(None)));
        assert!(matches!(find(Path::new("/nonexistent"), "clevis"), Ok(None)));
    }

    #[test]
    fn helper_that_others_can_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, path) = (dir.path().join("inner"), dir.path().join("inner/x"));
        fs::create_dir(&inner).unwrap();
        fs::write(&path, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let found = || find(&inner, "x").map(|found| found.is_some()).map_err(|error| error.to_string());
        set(&inner, 0o755);
        set(&path, 0o755);
        assert_eq!(found(), Ok(true));
        for mode in [0o775, 0o757] {
            set(&path, mode);
            assert!(found().unwrap_err().contains("other users can write to"), "{mode:o}");
            set(&path, 0o755);
            set(&inner, mode);
            assert!(found().unwrap_err().contains("inner"), "directory {mode:o}");
            set(&inner, 0o755);
        }
        set(&inner, 0o1777);
        assert_eq!(found(), Ok(true), "a sticky directory protects its files");
        set(&inner, 0o755);
        set(&path, 0o644);
        assert!(found().unwrap_err().contains("not executable"));
        // A link is as safe as its target.
        let open = dir.path().join("open");
        fs::write(&open, "").unwrap();
        set(&open, 0o777);
        fs::remove_file(&path).unwrap();
        symlink(&open, &path).unwrap();
        assert!(found().unwrap_err().contains("other users can write to"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(found().unwrap_err().contains("not a regular file"));
    }
}
