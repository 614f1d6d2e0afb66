//! Private modules of the NBD store, compiled here from their own files.

#[path = "../../crates/nbd-store/src/dial.rs"]
pub(crate) mod dial;
#[path = "../../crates/nbd-store/src/error.rs"]
pub(crate) mod error;
#[path = "../../crates/nbd-store/src/job.rs"]
pub(crate) mod job;
#[path = "../../crates/nbd-store/src/line.rs"]
pub(crate) mod line;
#[path = "../../crates/nbd-store/src/options.rs"]
pub(crate) mod options;
#[path = "../../crates/nbd-store/src/replay.rs"]
pub(crate) mod replay;
#[path = "../../crates/nbd-store/src/tls.rs"]
pub(crate) mod tls;
#[path = "../../crates/nbd-store/src/uri.rs"]
pub(crate) mod uri;
