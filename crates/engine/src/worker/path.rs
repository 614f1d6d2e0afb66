//! Path of a transfer, decided once, when it begins, from operation, store and options.

use crate::mapping::MappedRange;
use crate::store::StoreProfile;

/// Longest transfer in bytes that is made inline if the store is in memory: it is complete before another thread would
/// wake up.
const INLINE_MAX_LEN: usize = 32 << 10;
/// Shortest transfer in bytes for which copying and encrypting in chunks gains more than waking the copy thread costs.
pub(super) const COPY_MIN_LEN: usize = 128 << 10;

/// Returns the length in bytes of the longest transfer that is made inline, for a store that has operations.
pub(super) fn inline_max_len(store: &StoreProfile, writes: bool) -> usize {
    match (store.in_memory, writes) {
        (true, _) => INLINE_MAX_LEN,
        (false, false) => store.inline_read_len,
        (false, true) => store.inline_write_len,
    }
}

/// Returns the length in bytes of the shortest transfer for the copy thread, if the store uses it.
pub(super) fn copy_min_len(store: &StoreProfile) -> Option<usize> {
    store.in_memory.then_some(COPY_MIN_LEN)
}

/// The choices for one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) order: Order,
    pub(super) crypt: Executor,
    /// How the aligned range is transferred to or from the store.
    pub(super) store: Via,
    /// How the data units at its edges are read before a write of partial units.
    pub(super) edge: Via,
    pub(super) durability: Durability,
}

/// Exclusion of other requests from the same data units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing: no data unit is encrypted, and none moves.
    None,
    /// One shared lock on every unit, in one atomic step, for a request that ends before the worker waits.
    AllShared,
    /// The lock on its units, shared.
    Shared,
    /// The lock on its units, exclusive: it reads, changes and writes them.
    Exclusive,
    /// The write queue of its zone.
    ZoneQueue,
}

/// Executor of the cipher work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executor {
    /// By the worker.
    Inline,
    /// By the cipher engine or the cipher threads.
    Pool,
    /// By the copy thread, which moves the data as well.
    Copy,
}

/// Way to access a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// By a call of the worker.
    Inline,
    /// By an operation that completes later, of the ring or of an asynchronous store.
    Operation,
}

/// Step after a write that makes it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// Nothing.
    None,
    /// Nothing: the write was a FUA write of the store.
    Native,
    /// A sync of the stores.
    Sync,
}

/// Facts that determine a [`Path`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Length in bytes of the longest transfer made inline; `None`: all are.
    pub(super) inline_max_len: Option<usize>,
    /// Length in bytes of the shortest transfer for the copy thread; `None`: none is copied.
    pub(super) copy_min_len: Option<usize>,
    /// Whether the failure of a FUA write concerns that write alone.
    pub(super) has_native_fua: bool,
    /// Whether the request is in a zone write queue.
    pub(super) in_zone: bool,
    /// Whether the request is for the cipher engine or the cipher threads.
    pub(super) pool_wanted: bool,
    /// Whether its bytes have to be locked.
    pub(super) needs_lock: bool,
}

impl Path {
    /// Returns whether the write ends on stable storage.
    pub(super) fn is_fua(&self) -> bool {
        self.durability != Durability::None
    }

    /// Decides the path of a read or a write.
    pub(super) fn of(writes: bool, fua: bool, range: &MappedRange, facts: &Facts) -> Self {
        let via = |len| if facts.inline_max_len.is_none_or(|max| len <= max) { Via::Inline } else { Via::Operation };
        let (store, edge) = (via(range.aligned_len), via(range.unit_len));
        let is_long = facts.copy_min_len.is_some_and(|min| range.aligned_len >= min);
        let crypt = match () {
            () if facts.pool_wanted => Executor::Pool,
            // The copy thread does not sync, and keeps no order of zones.
            () if is_long && !fua && !facts.in_zone => Executor::Copy,
            () => Executor::Inline,
        };
        let order = match () {
            () if facts.in_zone => Order::ZoneQueue,
            () if !facts.needs_lock => Order::None,
            () if writes && range.is_partial() => Order::Exclusive,
            () if store == Via::Inline && crypt == Executor::Inline => Order::AllShared,
            () => Order::Shared,
        };
        let durability = match (fua, facts.has_native_fua) {
            (false, _) => Durability::None,
            (true, true) => Durability::Native,
            (true, false) => Durability::Sync,
        };
        Self { order, crypt, store, edge, durability }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CryptMapping;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    const DISK: Facts = Facts {
        inline_max_len: Some(0),
        copy_min_len: None,
        has_native_fua: false,
        in_zone: false,
        pool_wanted: false,
        needs_lock: true,
    };
    const TMPFS: Facts = Facts { inline_max_len: Some(INLINE_MAX_LEN), copy_min_len: Some(COPY_MIN_LEN), ..DISK };

    fn range(offset: u64, len: u64) -> MappedRange {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        let mapping = CryptMapping::new(&[segment], &VolumeKey::new(&[3; 64]), 1 << 20).unwrap();
        mapping.locate(offset, len, 1 << 20).unwrap()
    }

    #[test]
    fn store_decides_inline_and_copy_by_length() {
        let path = |len, facts: &Facts| {
            let path = Path::of(false, false, &range(0, len), facts);
            (path.order, path.crypt, path.store)
        };
        assert_eq!(path(4096, &DISK), (Order::Shared, Executor::Inline, Via::Operation));
        assert_eq!(path(32 << 10, &TMPFS), (Order::AllShared, Executor::Inline, Via::Inline));
        assert_eq!(path(64 << 10, &TMPFS), (Order::Shared, Executor::Inline, Via::Operation));
        assert_eq!(path(128 << 10, &TMPFS), (Order::Shared, Executor::Copy, Via::Operation));
        let memory = Facts { inline_max_len: None, ..DISK };
        assert_eq!(path(1 << 20, &memory), (Order::AllShared, Executor::Inline, Via::Inline));
        // A request for other threads waits for them, so it locks its own units.
        let pool = Facts { pool_wanted: true, ..TMPFS };
        assert_eq!(path(4096, &pool), (Order::Shared, Executor::Pool, Via::Inline));
        assert_eq!(path(128 << 10, &pool), (Order::Shared, Executor::Pool, Via::Operation));
    }

    #[test]
    fn unencrypted_data_needs_no_lock() {
        let raw = CryptMapping::raw(1 << 20);
        let range = raw.mapping().locate(1, 4096, 1 << 20).unwrap();
        let facts = Facts { needs_lock: raw.needs_lock(&range), ..DISK };
        for writes in [false, true] {
            assert_eq!(Path::of(writes, false, &range, &facts).order, Order::None);
        }
    }

    #[test]
    fn only_stores_in_memory_are_accessed_inline_and_copied() {
        let lengths = |in_memory| {
            let profile = StoreProfile { in_memory, ..StoreProfile::default() };
            (inline_max_len(&profile, true), copy_min_len(&profile))
        };
        assert_eq!(lengths(true), (32 << 10, Some(128 << 10)));
        assert_eq!(lengths(false), (0, None));
        let profile = StoreProfile { inline_read_len: 512, inline_write_len: 4096, ..StoreProfile::default() };
        assert_eq!([false, true].map(|writes| inline_max_len(&profile, writes)), [512, 4096]);
    }

    #[test]
    fn write_of_partial_units_is_exclusive_and_reads_edges_by_their_length() {
        let path = Path::of(true, false, &range(1, 48 << 10), &TMPFS);
        assert_eq!((path.order, path.store, path.edge), (Order::Exclusive, Via::Operation, Via::Inline));
        let path = Path::of(false, false, &range(1, 48 << 10), &TMPFS);
        assert_eq!(path.order, Order::Shared, "a read changes nothing");
    }

    #[test]
    fn fua_is_native_or_a_sync_and_never_copied() {
        let path = |fua, has_native_fua| {
            let path = Path::of(true, fua, &range(0, 128 << 10), &Facts { has_native_fua, ..TMPFS });
            (path.crypt, path.durability)
        };
        assert_eq!(path(false, true), (Executor::Copy, Durability::None));
        assert_eq!(path(true, true), (Executor::Inline, Durability::Native));
        assert_eq!(path(true, false), (Executor::Inline, Durability::Sync));
    }

    #[test]
    fn zone_write_takes_no_lock_and_is_not_copied() {
        let facts = Facts { in_zone: true, inline_max_len: None, copy_min_len: Some(0), ..DISK };
        let path = Path::of(true, false, &range(0, 4096), &facts);
        assert_eq!((path.order, path.crypt), (Order::ZoneQueue, Executor::Inline));
    }
}
