//! Settings that all openings of a program share.

/// Settings of all openings with a [`Context`](crate::Context).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Headers are not locked against other programs.
    pub no_header_locks: bool,
    /// Copies of volumes that are open may be opened, on storage that cannot be told from theirs.
    pub allow_copies: bool,
    /// Key derivations take turns with those of other processes that do.
    pub serialize_derivations: bool,
    /// Signatures of other formats decide nothing.
    pub ignore_signatures: bool,
    /// Options for devices that are not on this host.
    pub remote: RemoteOptions,
}

/// Options for devices that are not on this host.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// Options for exports.
    pub nbd: inlock_nbd_store::StoreOptions,
    /// Options for images of Ceph RBD.
    pub rbd: inlock_rbd_store::StoreOptions,
}
