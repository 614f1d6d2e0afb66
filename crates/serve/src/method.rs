//! Methods of attaching a volume.

/// How a volume is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMethod {
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
    pub(crate) const ALL: [Self; 4] = [Self::Ublk, Self::Nbd, Self::Loop, Self::Fuse];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
            Self::Fuse => "fuse",
        }
    }

    /// Parses [`AttachMethod::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether discards reach the volume.
    pub fn has_discards(self) -> bool {
        matches!(self, Self::Ublk | Self::Nbd)
    }

    /// Whether requests are served by workers with rings of their own.
    pub fn has_workers(self) -> bool {
        matches!(self, Self::Ublk | Self::Nbd)
    }
}
