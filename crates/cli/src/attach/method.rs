//! Methods of attaching a volume, and the choice among them.

use std::sync::Arc;

use inlock_engine::Device;

use super::attachment::{AttachOptions, Attachment, Driver, USE_SERVE};
use crate::error::{CliError, Status};

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

    /// Returns its driver, or why this build has none. Nothing else depends on the features.
    pub(super) fn driver(self) -> Result<&'static dyn Driver, &'static str> {
        match self {
            #[cfg(feature = "ublk")]
            Self::Ublk => Ok(&super::ublk::Ublk),
            #[cfg(not(feature = "ublk"))]
            Self::Ublk => Err("inlock was built without the feature 'ublk'"),
            Self::Nbd => Ok(&super::nbd::Nbd),
            #[cfg(feature = "fuse")]
            Self::Loop => Ok(&super::file::Loop),
            #[cfg(feature = "fuse")]
            Self::Fuse => Ok(&super::file::Fuse),
            #[cfg(not(feature = "fuse"))]
            Self::Loop | Self::Fuse => Err("inlock was built without the feature 'fuse'"),
        }
    }

    /// Attaches `device`, or recovers a device for it.
    pub(crate) fn attach(
        self,
        device: &Arc<Device>,
        options: &AttachOptions<'_>,
    ) -> anyhow::Result<Box<dyn Attachment>> {
        self.driver().map_err(anyhow::Error::msg)?.attach(device, options)
    }

    /// Returns the reason why it cannot work here, as far as it is known before trying.
    fn missing(self) -> Option<String> {
        self.driver().map_or_else(|missing| Some(missing.to_owned()), Driver::missing)
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
