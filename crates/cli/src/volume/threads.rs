//! Threads that carry out the calls of a volume whose store blocks.

use anyhow::Context;
use inlock_engine::store::threaded::ThreadedStore;

use super::device::Device;
use super::remote;

/// Limits how long operations wait for a thread of `store`, if one of its devices is not on this host: all threads may
/// wait for a server.
pub(super) fn limit_waits<'a>(
    store: ThreadedStore,
    devices: impl IntoIterator<Item = &'a Device>,
) -> anyhow::Result<ThreadedStore> {
    if devices.into_iter().all(|device| device.remote().is_none()) {
        return Ok(store);
    }
    store.with_wait_limit(remote::store_timeout()).context("cannot start a thread")
}
