//! `/dev/inlock/NAME`, a link to the node of a volume.

use std::path::{Path, PathBuf};

use inlock_open::Context;

/// Directory of the links. `/dev/mapper` belongs to device-mapper.
const LINKS: &str = "/dev/inlock";

/// A link to a node, removed when dropped.
pub(crate) struct Link {
    path: PathBuf,
    node: PathBuf,
}

impl Link {
    /// Links the name to `node`. Warns if that fails; the volume then has no link.
    pub(crate) fn make(context: &Context, name: &str, node: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let link = Self::of(name, node);
        let make = || {
            std::fs::create_dir_all(LINKS)?;
            let _ = std::fs::remove_file(&link.path);
            std::os::unix::fs::symlink(node, &link.path)
        };
        match make() {
            Ok(()) => Some(link),
            Err(error) => {
                context.warn(format_args!("cannot create {}: {error}", link.path.display()));
                None
            }
        }
    }

    /// Returns the link of a name to `node`, which may not exist.
    pub(crate) fn of(name: &str, node: &Path) -> Self {
        Self { path: Path::new(LINKS).join(name), node: node.to_owned() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The name may link to another device by now.
        if std::fs::read_link(&self.path).is_ok_and(|node| node == self.node) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
