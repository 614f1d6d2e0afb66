//! Servers in this process, and stores that fail or block on demand.

use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{Geometry, StoreProfile};
use inlock_engine::{Access, BackingStore, BlockStatus, BlockingDevice, Device};
use inlock_frontend::nbd::server::{Limits, Listen, Server, ServerError, ServerOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Returns `base` with some of its fields changed.
macro_rules! with {
    ($base:expr; $($field:ident: $value:expr),+ $(,)?) => {{
        let mut value = $base;
        $(value.$field = $value;)+
        value
    }};
}
pub(crate) use with;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const NAME: &str = "export";
pub(crate) const DESCRIPTION: &str = "what it is";

/// Both ring backends, or the only one that works here.
pub(crate) fn rings() -> Vec<IoMode> {
    if inlock_engine::ring::Ring::new(IoMode::Uring).is_ok() {
        return vec![IoMode::Sync, IoMode::Uring];
    }
    println!("SKIPPED: no io_uring here, only the sync backend is tested");
    vec![IoMode::Sync]
}

pub(crate) const READ_WRITE_DISCARD: Access = Access { read_only: false, allow_discards: true };

/// A device of data units of `unit` bytes that begins three sectors into the store.
pub(crate) fn device(store: Arc<dyn BackingStore>, unit: u32, access: Access) -> Arc<Device> {
    let segment = with!(
        Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).expect("tests use valid units"));
        data_offset: Sector(3),
        iv_offset: Sector(8),
    );
    let key = VolumeKey::new(&(0..64u8).map(|i| i * 3 + 2).collect::<Vec<u8>>());
    Arc::new(Device::new(&[segment], &key, store, access).expect("the segment fits"))
}

/// Length of the store of a device of `len` bytes.
pub(crate) fn store_len(len: u64) -> u64 {
    len + 3 * 512
}

pub(crate) fn memory(len: u64) -> Arc<dyn BackingStore> {
    Arc::new(MemoryStore::new(vec![0; store_len(len) as usize]))
}

/// Bytes that depend on their offset and on `seed`.
pub(crate) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let word = |i: u64| (i.wrapping_add(seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes();
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(len as usize);
    bytes
}

/// Time limits of clients.
pub(crate) fn limits(handshake: Duration, stall: Duration, drain: Duration) -> Limits {
    let mut limits = Limits::default();
    (limits.handshake, limits.stall, limits.drain) = (handshake, stall, drain);
    limits
}

pub(crate) struct Served {
    server: Option<Server>,
    pub(crate) device: Arc<Device>,
    socket: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Served {
    pub(crate) fn new(device: Arc<Device>, io: IoMode, threads: usize) -> Self {
        Self::with_limits(device, io, threads, Limits::default())
    }

    pub(crate) fn with_limits(device: Arc<Device>, io: IoMode, threads: usize, limits: Limits) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the socket");
        let mut served = Self::at(&dir.path().join("socket"), device, io, threads, limits).expect("the server starts");
        served._dir = Some(dir);
        served
    }

    pub(crate) fn at(
        socket: &Path,
        device: Arc<Device>,
        io: IoMode,
        threads: usize,
        limits: Limits,
    ) -> Result<Self, ServerError> {
        let mut options = ServerOptions::default();
        options.export_name = NAME.into();
        options.description = DESCRIPTION.into();
        options.threads = threads;
        options.io = io;
        options.limits = limits;
        let server = Server::start(Arc::clone(&device), &Listen::Unix(socket.to_owned()), &options)?;
        Ok(Self { server: Some(server), device, socket: socket.to_owned(), _dir: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn stop(&mut self) -> Result<(), ServerError> {
        self.server.take().expect("stopped once").stop()
    }

    /// Plaintext of the device, read without the server.
    pub(crate) fn plaintext(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.device.len() as usize];
        BlockingDevice::new(Arc::clone(&self.device)).read_at(&mut bytes, 0).expect("memory does not fail");
        bytes
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take()
            && !std::thread::panicking()
        {
            // A test of stopping calls `stop` itself.
            let _ = server.stop();
        }
    }
}

/// Operations of a [`FaultyStore`] that fail or block.
#[derive(Default)]
pub(crate) struct Faults {
    /// Reads that touch these bytes of the device.
    pub(crate) bad_reads: Option<(Range<u64>, Errno)>,
    /// Writes that touch these bytes of the device.
    pub(crate) bad_writes: Option<(Range<u64>, Errno)>,
    /// The next sync.
    pub(crate) bad_sync: Option<Errno>,
    /// Every block status.
    pub(crate) bad_status: Option<Errno>,
    /// Writes block.
    pub(crate) hold_writes: bool,
}

/// A store in memory with faults, which counts its operations.
pub(crate) struct FaultyStore {
    pub(crate) inner: MemoryStore,
    faults: Mutex<Faults>,
    changed: Condvar,
    pub(crate) failed: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    pub(crate) writes: AtomicU64,
    pub(crate) durable_writes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    /// Number of writes that had ended when the last sync began.
    pub(crate) synced_writes: AtomicU64,
    pub(crate) native_fua: AtomicBool,
}

impl FaultyStore {
    pub(crate) fn new(len: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(vec![0; store_len(len) as usize]),
            faults: Mutex::default(),
            changed: Condvar::new(),
            failed: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            writes: AtomicU64::new(0),
            durable_writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            synced_writes: AtomicU64::new(0),
            native_fua: AtomicBool::new(false),
        })
    }

    pub(crate) fn set(&self, faults: Faults) {
        *self.faults.lock().expect("no test panics with it") = faults;
        self.changed.notify_all();
    }

    fn fails(&self, bad: &Option<(Range<u64>, Errno)>, offset: u64, len: usize) -> Result<(), Errno> {
        match bad {
            Some((range, errno)) if offset < store_len(range.end) && offset + len as u64 > store_len(range.start) => {
                self.failed.fetch_add(1, Ordering::SeqCst);
                Err(*errno)
            }
            _ => Ok(()),
        }
    }
}

impl BackingStore for FaultyStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        profile.has_native_fua = self.native_fua.load(Ordering::SeqCst);
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let faults = self.faults.lock().expect("no test panics with it");
        self.fails(&faults.bad_reads, offset, data.len())?;
        self.inner.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let faults = self.faults.lock().expect("no test panics with it");
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let faults = self.changed.wait_while(faults, |m| m.hold_writes).expect("no test panics with it");
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.fails(&faults.bad_writes, offset, data.len())?;
        let written = self.inner.write_at(data, offset)?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(written)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let written = self.write_at(data, offset)?;
        self.durable_writes.fetch_add(1, Ordering::SeqCst);
        Ok(written)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.synced_writes.store(self.writes.load(Ordering::SeqCst), Ordering::SeqCst);
        self.syncs.fetch_add(1, Ordering::SeqCst);
        match self.faults.lock().expect("no test panics with it").bad_sync.take() {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.inner.discard(offset, len)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        match self.faults.lock().expect("no test panics with it").bad_status {
            Some(errno) => Err(errno),
            None => self.inner.block_status(offset, len),
        }
    }
}

/// Lets the writes of a store go on when dropped.
pub(crate) struct Release(pub(crate) Arc<FaultyStore>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.set(Faults::default());
    }
}
