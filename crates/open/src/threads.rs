//! Threads that carry out the calls of a volume whose store blocks.

use inlock_engine::store::threaded::ThreadedStore;

use crate::device::Device;
use crate::error::{Result, ResultExt as _};

/// Limits how long operations wait for a thread of `store`, if one of its devices is not on this host: all threads may
/// wait for a server.
pub(crate) fn limit_waits<'a>(
    store: ThreadedStore,
    devices: impl IntoIterator<Item = &'a Device>,
) -> Result<ThreadedStore> {
    match devices.into_iter().find(|device| device.remote().is_some()) {
        None => Ok(store),
        Some(remote) => {
            let limit = remote.context().settings().remote.nbd.store_timeout;
            store.with_wait_limit(limit).context("cannot start a thread")
        }
    }
}
