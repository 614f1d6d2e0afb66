//! Methods of attaching a volume, and the choice among them.

use rustix::fs::{Access, access};

use super::drivers::{fuse::loop_device, nbd, ublk};
use crate::error::{CliError, Status};

/// Hint if no method works.
pub(super) const USE_SERVE: &str = "use `inlock serve SOURCE --nbd unix:PATH`; it needs no kernel driver";

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachMethod {
    /// A block device whose driver is the process.
    Ublk,
    /// A block device of the kernel's NBD driver, over the process's own server.
    Nbd,
    /// A loop device on the file of [`AttachMethod::Fuse`].
    Loop,
    /// A file.
    Fuse,
}

impl AttachMethod {
    /// All methods, the preferred ones first.
    const ALL: [Self; 4] = [Self::Ublk, Self::Nbd, Self::Loop, Self::Fuse];

    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
            Self::Fuse => "fuse",
        }
    }

    /// Parses [`AttachMethod::name`].
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether discards reach the volume.
    pub(crate) fn has_discards(self) -> bool {
        matches!(self, Self::Ublk | Self::Nbd)
    }

    /// Whether requests are served by workers with rings of their own.
    pub(crate) fn has_workers(self) -> bool {
        matches!(self, Self::Ublk | Self::Nbd)
    }

    /// Returns the reason why it cannot work here, as far as it is known before trying.
    fn missing(self) -> Option<String> {
        let fuse = || match access("/dev/fuse", Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => None,
            Err(rustix::io::Errno::NOENT) => Some("/dev/fuse is missing (modprobe fuse)".to_owned()),
            Err(error) => Some(format!("/dev/fuse cannot be opened: {error}")),
        };
        let without = |feature: &str| Some(format!("inlock was built without the feature '{feature}'"));
        match self {
            Self::Fuse | Self::Loop if !cfg!(feature = "fuse") => without("fuse"),
            Self::Ublk if !cfg!(feature = "ublk") => without("ublk"),
            Self::Fuse => fuse(),
            Self::Ublk if !ublk::is_available() => Some("/dev/ublk-control is missing (modprobe ublk_drv)".to_owned()),
            Self::Ublk => match access("/dev/ublk-control", Access::READ_OK | Access::WRITE_OK) {
                Ok(()) => None,
                Err(error) => Some(format!("/dev/ublk-control cannot be opened: {error}")),
            },
            Self::Nbd if !nbd::is_available() => Some("the kernel's nbd is missing (modprobe nbd)".to_owned()),
            Self::Nbd | Self::Loop if !rustix::process::geteuid().is_root() => {
                Some("only root can make block devices".to_owned())
            }
            Self::Nbd => None,
            Self::Loop if !loop_device::is_available() => {
                Some("/dev/loop-control is missing (modprobe loop)".to_owned())
            }
            Self::Loop => fuse(),
        }
    }
}

/// Returns the requested method, or for `None` the preferred one of those that work. `zoned`: the volume has sequential
/// zones, and is writable.
pub(crate) fn choose(asked: Option<AttachMethod>, zoned: bool) -> anyhow::Result<AttachMethod> {
    if zoned {
        return choose_for_zones(asked);
    }
    let best = AttachMethod::ALL.into_iter().find(|method| method.missing().is_none());
    let Some(asked) = asked else {
        return best.ok_or_else(|| {
            let missing = |method: &AttachMethod| Some(format!("{}: {}", method.name(), method.missing()?));
            let missing: Vec<String> = AttachMethod::ALL.iter().filter_map(missing).collect();
            CliError::refused(format!("Cannot attach the volume: {}.", missing.join("; ")), USE_SERVE)
        });
    };
    match asked.missing() {
        None => Ok(asked),
        Some(missing) => {
            let message = format!("--via {} does not work here: {missing}.", asked.name());
            let hint = best.map(|method| format!("use --via {}, which works here", method.name()));
            Err(CliError::Remote(message, Some(hint.unwrap_or(USE_SERVE.to_owned())), Status::Wrong).into())
        }
    }
}

fn choose_for_zones(asked: Option<AttachMethod>) -> anyhow::Result<AttachMethod> {
    let refused = |message| Err(CliError::refused(message, "use --read-only; it works with every --via"));
    if let Some(other) = asked.filter(|method| *method != AttachMethod::Ublk) {
        return refused(format!("--via {} does not support zoned volumes.", other.name()));
    }
    match AttachMethod::Ublk.missing() {
        None => Ok(AttachMethod::Ublk),
        Some(missing) => refused(format!("Zoned volumes need --via ublk, which does not work here: {missing}.")),
    }
}
