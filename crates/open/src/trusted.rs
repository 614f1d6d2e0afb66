//! Whether a file may be executed, or believed as configuration: whether only root and the user decide its content.
//!
//! Each component of a path is opened below the one before and examined there, symbolic links too: in a directory such
//! as /tmp another user can make a link, and change it after a look at its target. What passes can be replaced by root
//! and the user only, thus not between this examination and its use either.

use crate::error::Result;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

/// Links of a path, as in the kernel.
const MAX_LINKS: usize = 40;

const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a file is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// It cannot be examined.
    #[error("{} cannot be examined: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It, or a directory above, belongs to another user.
    #[error("{} belongs to user {owner}", .path.display())]
    OtherOwner {
        /// The file or directory.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
    /// Other users can write to it, or to a directory above.
    #[error("other users can write to {}", .path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
    },
}

/// Groups that may write to a file or one of its directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// None: not even the user's own group.
    None,
    /// The user's own group, without other members: many systems let all files of a user belong to it, writable.
    Private,
}

/// Checks a program before it is executed by this path.
pub fn check(path: &Path, groups: Groups) -> Result<(), Untrusted> {
    Walk::along(Path::new("/"), path, groups, LOOK).map(drop)
}

/// Opens a file to read it.
pub fn open(path: &Path, groups: Groups) -> Result<File, Untrusted> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Walk::along(Path::new("/"), path, groups, flags).map(File::from)
}

/// A walk along the components of a path.
struct Walk {
    groups: Groups,
    /// Without links, for messages.
    path: PathBuf,
    dir: OwnedFd,
    /// Components that are left, the next one last.
    left: Vec<OsString>,
    links: usize,
}

impl Walk {
    /// Returns the file, opened with `flags`. `root`: the directory with which absolute paths begin.
    fn along(root: &Path, path: &Path, groups: Groups, flags: OFlags) -> Result<OwnedFd, Untrusted> {
        let failed = |source| Untrusted::Unreadable { path: path.to_owned(), source };
        let whole = std::path::absolute(path).map_err(failed)?;
        let root = || openat(CWD, root, LOOK, Mode::empty()).map_err(|error| failed(error.into()));
        let mut walk = Self { groups, path: "/".into(), dir: root()?, left: Vec::new(), links: 0 };
        walk.push(&whole);
        walk.check(&fstat(&walk.dir).map_err(|error| failed(error.into()))?)?;
        while let Some(part) = walk.left.pop() {
            let (before, failed) = (walk.path.clone(), |error: Errno| failed(error.into()));
            match part == ".." {
                true => _ = walk.path.pop(),
                false => walk.path.push(&part),
            }
            let mut file = openat(&walk.dir, &part, LOOK, Mode::empty()).map_err(failed)?;
            let mut stat = fstat(&file).map_err(failed)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                walk.check_owner(&stat)?;
                if is_descriptor(&walk.dir, &part) {
                    // Not a name that others could replace: the caller has opened it.
                    let follow = flags.difference(OFlags::NOFOLLOW);
                    return openat(&walk.dir, &part, follow, Mode::empty()).map_err(failed);
                }
                walk.links += 1;
                if walk.links > MAX_LINKS {
                    return Err(failed(Errno::LOOP));
                }
                let target = readlinkat(&walk.dir, &part, Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                walk.path = if target.is_absolute() { "/".into() } else { before };
                if target.is_absolute() {
                    walk.dir = root()?;
                }
                walk.push(&target);
                continue;
            }
            if walk.left.is_empty() && flags != LOOK {
                file = openat(&walk.dir, &part, flags, Mode::empty()).map_err(failed)?;
                stat = fstat(&file).map_err(failed)?;
            }
            walk.check(&stat)?;
            walk.dir = file;
        }
        Ok(walk.dir)
    }

    fn push(&mut self, path: &Path) {
        let part = |part: Component<'_>| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        };
        self.left.extend(path.components().rev().filter_map(part));
    }

    fn check_owner(&self, stat: &Stat) -> Result<(), Untrusted> {
        match [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) {
            true => Ok(()),
            false => Err(Untrusted::OtherOwner { path: self.path.clone(), owner: stat.st_uid }),
        }
    }

    fn check(&self, stat: &Stat) -> Result<(), Untrusted> {
        self.check_owner(stat)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        let by_group = || self.groups == Groups::None || !has_no_other_member(stat.st_gid);
        let is_writable = mode.contains(Mode::WOTH) || mode.contains(Mode::WGRP) && by_group();
        let is_harmless = match FileType::from_raw_mode(stat.st_mode) {
            // In a directory such as /tmp other users cannot replace a file that is not theirs.
            FileType::Directory => mode.contains(Mode::SVTX),
            // A device such as /dev/null.
            FileType::CharacterDevice => true,
            _ => false,
        };
        match is_writable && !is_harmless {
            true => Err(Untrusted::Writable { path: self.path.clone() }),
            false => Ok(()),
        }
    }
}

/// Whether a link is a descriptor of a process, such as `/dev/fd/3`, and has no target that is a path.
fn is_descriptor(dir: &OwnedFd, name: &OsStr) -> bool {
    name.as_bytes().iter().all(u8::is_ascii_digit) && fstatfs(dir).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
}

/// Whether only this user is in a group.
fn has_no_other_member(group: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    is_private(group, rustix::process::geteuid().as_raw(), &read("/etc/passwd"), &read("/etc/group"))
}

/// Like `has_no_other_member`, with the content of `/etc/passwd` and `/etc/group`. A group that is not there may have
/// any members.
fn is_private(group: u32, user: u32, users: &str, groups: &str) -> bool {
    let number = |field: Option<&str>| field.and_then(|field| field.parse::<u32>().ok());
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let users: Vec<_> = users.lines().map(fields).collect();
    let uid = |line: &[String]| number(line.get(2).map(String::as_str));
    let gid = |line: &[String]| number(line.get(3).map(String::as_str));
    let is_user = |name: &str| users.iter().any(|line| line[0] == name && uid(line) == Some(user));
    let mut known = groups.lines().map(fields).filter(|line| uid(line) == Some(group)).peekable();
    known.peek().is_some()
        && known.all(|line| {
            let members = line.get(3).map_or("", String::as_str);
            members.split(',').filter(|name| !name.is_empty()).all(is_user)
        })
        && users.iter().all(|line| gid(line) != Some(group) || uid(line) == Some(user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn root_directory_that_others_can_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/file"), "").unwrap();
        let check = |mode| {
            std::fs::set_permissions(root.path(), Permissions::from_mode(mode)).unwrap();
            Walk::along(root.path(), Path::new("/etc/file"), Groups::None, LOOK).map(drop)
        };
        check(0o755).unwrap();
        for mode in [0o777, 0o775] {
            let refused = check(mode).unwrap_err();
            assert!(matches!(&refused, Untrusted::Writable { path } if path == Path::new("/")), "{refused}");
        }
        check(0o1777).unwrap();
    }

    /// Such as a part of /proc/self/map_files, whose name has digits, too, and whose file another user may have.
    #[test]
    fn only_a_number_in_proc_is_a_descriptor() {
        let open = |path: &str| openat(CWD, path, LOOK, Mode::empty()).unwrap();
        let (proc, other) = (open("/proc/self/fd"), open("/"));
        for (name, is_number) in [("0", true), ("10", true), ("1000-2000", false), ("a1", false), ("exe", false)] {
            assert_eq!(is_descriptor(&proc, OsStr::new(name)), is_number, "{name}");
            assert!(!is_descriptor(&other, OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn group_with_another_member_is_not_private() {
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
        let own = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\n";
        for (group, user, users, groups, expected) in [
            (1000, 1000, users, own, true),
            (1000, 1000, users, "ann:x:1000:ann\n", true),
            (1000, 1000, users, "ann:x:1000:ann,bob\n", false),
            (1000, 1000, users, "ann:x:1000:\nother:x:1000:bob\n", false),
            (1000, 1000, &users.replace("1001:1001", "1001:1000"), own, false),
            (1001, 1000, users, own, false),
            (1002, 1000, users, own, false),
            (1000, 1001, users, own, false),
            (1000, 1000, users, "", false),
            (0, 0, users, own, true),
        ] {
            assert_eq!(is_private(group, user, users, groups), expected, "{group} {user} {groups:?}");
        }
    }
}
