//! Counters of a device.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Bytes of data that clients wrote.
    pub client_bytes: u64,
    /// Bytes that were written to the stores for them. Divided by `client_bytes`: the write amplification.
    pub stored_bytes: u64,
    /// Blocks that did not match their tags when they were read or replayed.
    pub mismatches: u64,
    /// Sections of the journal in use.
    pub journal_sections_used: u64,
    /// Commits of the journal, each with one sync for all requests that waited.
    pub commits: u64,
}

#[derive(Default)]
pub(super) struct Metrics {
    client: AtomicU64,
    stored: AtomicU64,
    used: AtomicU64,
    commits: AtomicU64,
}

impl Metrics {
    pub(super) fn count_client(&self, bytes: u64) {
        self.client.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_stored(&self, bytes: u64) {
        self.stored.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_sections_used(&self, sections: usize) {
        self.used.store(sections as u64, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, mismatches: u64) -> MetricsSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MetricsSnapshot {
            client_bytes: get(&self.client),
            stored_bytes: get(&self.stored),
            mismatches,
            journal_sections_used: get(&self.used),
            commits: get(&self.commits),
        }
    }
}
