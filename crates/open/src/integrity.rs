//! Volumes of dm-integrity: devices, keys, and the device of the library with the thread that maintains it.

use crate::error::{Error, ErrorKind, Result, ResultExt as _, message_of};
use crate::host::Context;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inlock_cipher::VolumeKey;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::threaded::ThreadedStore;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    IntegrityDevice, IntegrityError, IntegrityStore, JournalWriter, Mismatch, Mode, NewBlocks, OpenOptions, Sealing,
    Stores, Superblock, load,
};
use inlock_volume::AuthenticatedSegment;

use super::device::{Device, OpenMode};
use super::freshness::{FreshnessCheck, FreshnessFile};
use super::integrity_line::{DEFAULT_COMMIT_TIME, RunningLine};
use super::integrity_options::JournalOptions;
use super::lock::{self, DeviceLock};
use super::threads::limit_waits;

/// The devices of a volume, opened and locked.
pub struct IntegrityDevices {
    /// The device with the superblock.
    pub metadata: Device,
    /// The device of the data, if it is another one.
    pub data: Option<Device>,
    /// Locks on both.
    pub locks: Vec<DeviceLock>,
}

impl IntegrityDevices {
    /// Opens and locks the devices. `image` has the superblock.
    pub fn open(context: &Context, image: &Path, data: Option<&Path>, open_mode: OpenMode) -> Result<Self> {
        let data = data.map(|path| Device::open(context, path, open_mode)).transpose()?;
        Self::lock(Device::open(context, image, open_mode)?, data, open_mode)
    }

    /// Locks devices that are open.
    pub(crate) fn lock(metadata: Device, data: Option<Device>, open_mode: OpenMode) -> Result<Self> {
        let mode = if open_mode == OpenMode::Read { lock::Mode::Shared } else { lock::Mode::Exclusive };
        let mut locks = vec![lock::whole_device(&metadata, mode)?];
        if let Some(data) = &data {
            if data.identity() == metadata.identity() {
                return Err(Error::new(ErrorKind::SameDataDevice, "The data device names the device itself."));
            }
            // What it starts with is content of the volume.
            locks.push(lock::storage(data, mode)?);
        }
        Ok(Self { metadata, data, locks })
    }
}

/// Returns the stores of a volume for the library, from their first sector.
pub fn stores(metadata: &Device, data: Option<&Device>, io: IoMode, read_only: bool) -> Result<Stores> {
    stores_of(metadata, data, |device| device.store(io, read_only, false))
}

fn stores_of(
    metadata: &Device,
    data: Option<&Device>,
    store: impl Fn(&Device) -> io::Result<Arc<dyn BackingStore>>,
) -> Result<Stores> {
    let store = |device: &Device| store(device).with_context(|| format!("cannot use {}", device.path.display()));
    let metadata = store(metadata)?;
    Ok(match data {
        None => Stores::interleaved(metadata),
        Some(data) => Stores::separate(store(data)?, metadata),
    })
}

/// How to open a volume whose devices are open.
pub struct IntegrityOpening {
    /// Options of the library that opens it.
    pub options: OpenOptions,
    /// Time between two commits of the journal.
    pub every: Duration,
    /// First sector of the volume on the device with its superblock.
    pub start: u64,
    /// `--freshness`
    pub freshness: Option<FreshnessCheck>,
    /// The line of a table.
    pub line: Option<RunningLine>,
    /// Use direct I/O on the block devices.
    pub direct: bool,
    /// Whether the header of LUKS2 says what blocks and tags are.
    pub is_of_header: bool,
}

impl IntegrityOpening {
    /// Returns how to open the volume below a segment.
    pub(crate) fn of_segment(
        segment: &AuthenticatedSegment,
        no_journal: bool,
        journal: JournalOptions,
        freshness: Option<FreshnessCheck>,
    ) -> Self {
        let mode = if no_journal { Mode::Direct } else { Mode::Journal };
        let (tag_size, block_len) = (Some(segment.spec.metadata_len()), Some(segment.unit.bytes()));
        let options = journal.apply(OpenOptions { tag_size, block_len, ..OpenOptions::new(mode) });
        let start = segment.data_offset.0;
        Self { options, every: DEFAULT_COMMIT_TIME, start, freshness, line: None, direct: false, is_of_header: true }
    }

    /// Opens the volume below a segment, after a comparison with its freshness file. Returns it with the store of its
    /// plaintext.
    pub(crate) fn open_fresh(
        mut self,
        (metadata, data): (&Device, Option<&Device>),
        segment: AuthenticatedSegment,
        key: &VolumeKey,
        io: IoMode,
        read_only: bool,
    ) -> Result<(MaintainedIntegrity, Arc<IntegrityStore>)> {
        let stores = Stores { start: self.start, ..stores(metadata, data, IoMode::Sync, true)? };
        if self.is_of_header {
            check_fits(&segment, &stores, metadata)?;
        }
        let freshness = self.freshness.take();
        let file = freshness.map(|check| check.verify(key, metadata, stores.clone(), &self.options, !read_only));
        let file = file.transpose()?.flatten();
        let (_, layout) = load(&stores, &self.options).map_err(cannot_use(&metadata.path))?;
        let unfit = || misfit(&segment, layout.block_len(), layout.journal.tag_size, &metadata.path);
        // Before the journal is replayed, whose entries have to match.
        let sealing = Sealing::new(segment.aead(key)?, key.as_bytes(), layout.journal.tag_size).map_err(|_| unfit())?;
        if segment.unit.bytes() != layout.block_len() {
            return Err(unfit());
        }
        let integrity = self.open_with(metadata, data, io, read_only, Some(&sealing))?;
        let store = IntegrityStore::sealed(Arc::clone(&integrity.device), sealing).map_err(|_| unfit())?;
        if let Some(file) = file {
            file.attach(&integrity.device)?;
            // There is none yet.
            let _ = integrity.freshness.set(file);
        }
        Ok((integrity, Arc::new(store)))
    }

    /// Opens the volume: replays its journal, and starts its thread.
    pub fn open(
        self,
        metadata: &Device,
        data: Option<&Device>,
        io: IoMode,
        read_only: bool,
    ) -> Result<MaintainedIntegrity> {
        self.open_with(metadata, data, io, read_only, None)
    }

    fn open_with(
        self,
        metadata: &Device,
        data: Option<&Device>,
        io: IoMode,
        read_only: bool,
        sealing: Option<&Sealing>,
    ) -> Result<MaintainedIntegrity> {
        let stores = stores_of(metadata, data, |device| match self.direct {
            true => device.direct_store(read_only),
            false => device.store(io, read_only, false),
        })?;
        let stores = Stores { start: self.start, ..stores };
        let options = OpenOptions { read_only, ..self.options };
        let device = match sealing {
            Some(sealing) => IntegrityDevice::open_sealed(stores, options, sealing),
            None => IntegrityDevice::open(stores, options),
        };
        let device = device.map_err(cannot_use(&metadata.path))?;
        let mismatches = device.metrics().mismatches;
        if mismatches > 0 {
            let path = metadata.path.display();
            let place = device.mismatched_sectors().first().map(|sector| format!(", the first one at sector {sector}"));
            let place = place.unwrap_or_default();
            metadata
                .context()
                .warn(format_args!("{path}: {mismatches} damaged parts of the journal are left out{place}"));
        }
        let (context, path) = (metadata.context().clone(), metadata.path.clone());
        device.observe_mismatches(move |mismatch| warn_of_mismatch(&context, &path, mismatch));
        MaintainedIntegrity::start(metadata.context(), Arc::new(device), &metadata.path, self.every)
    }
}

fn warn_of_mismatch(context: &Context, path: &Path, mismatch: Mismatch) {
    let (path, sector) = (path.display(), mismatch.sector);
    context.warn(format_args!("{path}: the block at sector {sector} does not match its tag and cannot be read"));
    if mismatch.is_last {
        context.warn(format_args!("{path}: further blocks that do not match their tags are counted only"));
    }
}

/// Returns the error of a volume on the device at `path`.
pub fn cannot_use(path: &Path) -> impl FnOnce(IntegrityError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        IntegrityError::NoSuperblock | IntegrityError::OtherData => {
            Error::new(ErrorKind::NotIntegrity, format!("Device {} is not a valid INTEGRITY device.", path.display()))
        }
        IntegrityError::Option { option: "start" | "device", reason } => {
            Error::unusable(ErrorKind::Failed, &path, reason)
        }
        IntegrityError::Option { option, reason } => Error::new(
            ErrorKind::IntegrityOption,
            format!("Option --{option} cannot be used with device {}: {reason}.", path.display()),
        ),
        error @ IntegrityError::NoJournalMac => {
            Error::new(ErrorKind::NoJournalMac, format!("Device {} cannot be used: {error}.", path.display()))
        }
        error @ IntegrityError::Journal(_) => {
            Error::new(ErrorKind::Journal, format!("Device {} cannot be used: {error}.", path.display()))
        }
        error @ IntegrityError::LongJournal { .. } => Error::new(
            ErrorKind::LongJournal,
            format!("Device {} cannot be used: {error}, more than 1 GiB.", path.display()),
        ),
        error => Error::unusable(ErrorKind::Failed, &path, error),
    }
}

/// Shortest time between two commits of the journal: options may ask for none.
const SHORTEST: Duration = Duration::from_millis(10);
/// Time within which changed tags are in the page cache, if neither a journal nor a bitmap tells of them.
const TAGS_EVERY: Duration = Duration::from_millis(200);

/// A device of the library, and its threads: one commits its journal, clears its bitmap and computes its tags, the
/// other empties the journal.
pub struct MaintainedIntegrity {
    context: Context,
    /// The device of the library.
    pub device: Arc<IntegrityDevice>,
    path: PathBuf,
    threads: Mutex<Option<Threads>>,
    freshness: Freshness,
    /// Whether a close was tried.
    closed: AtomicBool,
}

struct Threads {
    stop: mpsc::Sender<()>,
    maintaining: JoinHandle<()>,
    journal: Option<JournalWriter>,
}

/// The file that records the states of a volume, once it is known.
type Freshness = Arc<OnceLock<Arc<FreshnessFile>>>;

impl MaintainedIntegrity {
    /// Starts the threads; `every` is the time between two commits, at least 10 ms.
    pub fn start(context: &Context, device: Arc<IntegrityDevice>, path: &Path, every: Duration) -> Result<Self> {
        let every = every.max(SHORTEST);
        let (stop, stopped) = mpsc::channel();
        let journal = JournalWriter::start(Arc::clone(&device)).context("cannot start a thread")?;
        let (maintained, name, freshness) = (Arc::clone(&device), path.to_owned(), Freshness::default());
        let told = context.clone();
        let fresh = Arc::clone(&freshness);
        let maintaining = std::thread::Builder::new()
            .name("inlock-integ".to_owned())
            .spawn(move || maintain(&told, &maintained, &fresh, (&name, every), &stopped))
            .context("cannot start a thread")?;
        let threads = Mutex::new(Some(Threads { stop, maintaining, journal }));
        Ok(Self {
            context: context.clone(),
            device,
            path: path.to_owned(),
            threads,
            freshness,
            closed: AtomicBool::new(false),
        })
    }

    /// Stops the threads, copies the journal to its places and marks the volume as clean.
    pub fn close(&self) -> Result<()> {
        self.stop();
        self.closed.store(true, Ordering::Relaxed);
        self.device
            .close()
            .map_err(|error| Error::writes_lost(&self.path, Some(std::io::Error::from(error).into())))?;
        self.freshness.get().map_or(Ok(()), |file| file.close())
    }

    fn stop(&self) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Threads { stop, maintaining, journal }) = threads {
            drop((stop, journal));
            // It has reported its errors.
            let _ = maintaining.join();
        }
    }
}

impl MaintainedIntegrity {
    /// Returns the device as a store of the engine.
    pub fn store(&self) -> Result<Arc<dyn BackingStore>> {
        Ok(Arc::new(IntegrityStore::new(Arc::clone(&self.device)).map_err(std::io::Error::from)?))
    }
}

/// Refuses a volume of dm-integrity with other blocks or tags than the header of LUKS2 says, before its journal is
/// replayed.
pub(crate) fn check_fits(segment: &AuthenticatedSegment, stores: &Stores, metadata: &Device) -> Result<()> {
    let (superblock, _) = Superblock::read(stores).map_err(cannot_use(&metadata.path))?;
    let (block_len, tag_size) = (superblock.block_len(), usize::from(superblock.tag_size));
    if (block_len, tag_size) == (segment.unit.bytes(), segment.spec.metadata_len()) {
        return Ok(());
    }
    Err(misfit(segment, block_len, tag_size, &metadata.path))
}

fn misfit(segment: &AuthenticatedSegment, block_len: usize, tag_size: usize, path: &Path) -> Error {
    Error::new(
        ErrorKind::IntegrityMisfit,
        format!(
            "Device {} cannot be used: {} with data units of {} bytes needs tags of {} bytes, the volume of \
             dm-integrity has blocks of {block_len} bytes and tags of {tag_size} bytes.",
            path.display(),
            segment.spec,
            segment.unit.bytes(),
            segment.spec.metadata_len(),
        ),
    )
}

/// Threads for the calls of a volume on devices that requests wait for, and most threads of others.
const WAITING_THREADS: usize = 8;
/// Length in bytes of the longest request that takes less time than waking a thread.
const SHORT: usize = 32 << 10;

/// Returns the store of a volume with threads for its calls: long requests are encrypted on several CPUs, and no worker
/// waits for the replies of a server or the reads of a disk. Short writes to local devices go to the journal or the
/// page cache, and short reads of files mostly come from there, so that they stay calls of the worker.
pub(crate) fn threaded(
    store: Arc<dyn BackingStore>,
    metadata: &Device,
    data: Option<&Device>,
) -> Result<Arc<dyn BackingStore>> {
    let devices = || [Some(metadata), data].into_iter().flatten();
    let is_remote = devices().any(|device| device.remote().is_some());
    let must_wait = is_remote || devices().any(Device::is_block);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if must_wait { WAITING_THREADS } else { cpus.min(WAITING_THREADS) };
    let store = ThreadedStore::start(store, threads).context("cannot start a thread")?;
    let store = store.with_inline(if must_wait { 0 } else { SHORT }, if is_remote { 0 } else { SHORT });
    Ok(Arc::new(limit_waits(store, devices())?))
}

/// Returns the cipher of a volume's blocks.
pub(crate) fn sealing_of(segment: &AuthenticatedSegment, key: &VolumeKey, device: &IntegrityDevice) -> Result<Sealing> {
    Ok(Sealing::new(segment.aead(key)?, key.as_bytes(), device.layout().journal.tag_size)?)
}

impl Drop for MaintainedIntegrity {
    fn drop(&mut self) {
        self.end();
    }
}

impl MaintainedIntegrity {
    /// Returns the number of sectors that [`MaintainedIntegrity::resize`] would give the volume.
    pub(crate) fn planned_len(&self, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<u64> {
        self.device.planned_len(sectors, new_blocks).map_err(cannot_use(&self.path))
    }

    /// Gives the volume another length. No request may run beyond it.
    pub(crate) fn resize(&self, sectors: u64, new_blocks: NewBlocks) -> Result<()> {
        self.device.resize(Some(sectors), new_blocks).map(drop).map_err(cannot_use(&self.path))
    }

    /// Ends the threads, without a close if none was tried.
    pub(crate) fn end(&self) {
        self.stop();
        // The start of a server may fail after the volume was opened: its record must not tell that it is in use.
        if self.freshness.get().is_some()
            && !self.closed.load(Ordering::Relaxed)
            && let Err(error) = self.close()
        {
            self.context.warn(message_of(&error));
        }
    }
}

fn maintain(
    context: &Context,
    device: &IntegrityDevice,
    freshness: &OnceLock<Arc<FreshnessFile>>,
    (path, every): (&Path, Duration),
    stopped: &mpsc::Receiver<()>,
) {
    let read_only = device.options().read_only || device.options().mode == Mode::Recovery;
    let mut last = Instant::now();
    loop {
        let rest = every.saturating_sub(last.elapsed());
        let rest = if device.has_unprotected_tags() { rest.min(TAGS_EVERY) } else { rest };
        let recalculating = !read_only && device.is_recalculating();
        let wait = if recalculating { Duration::ZERO } else { rest };
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let mut result: Result<(), Errno> = device.write_tags_back();
        if recalculating && result.is_ok() {
            result = device.recalculate_step().map(drop);
        }
        if result.is_ok() && last.elapsed() >= every {
            result = device.maintain();
            last = Instant::now();
            if let Some(Err(error)) = freshness.get().map(|file| file.refresh_header()) {
                context.warn(message_of(&error));
            }
        }
        if let Err(error) = result {
            // Later flushes fail too, and tell the clients.
            let error = std::io::Error::from(error);
            context.warn(format_args!("{}: cannot maintain the volume: {error}", path.display()));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Silent, Warned};
    use crate::settings::Settings;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_integrity::{FormatOptions, TagHash, format};
    use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
    use inlock_tests::wait::{eventually, spawn_until_it_waits};
    use std::sync::atomic::AtomicUsize;

    fn silent() -> Context {
        Context::new(Silent, Settings::default())
    }

    fn crc() -> Option<Arc<TagHash>> {
        Some(Arc::new(TagHash::new("crc32c".parse().unwrap(), &[]).unwrap()))
    }

    /// Returns a store with a volume.
    fn formatted(options: FormatOptions) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
        format(&Stores::interleaved(store.clone()), &FormatOptions { internal_hash: crc(), ..options }).unwrap();
        store
    }

    fn opened(store: Arc<dyn BackingStore>, options: OpenOptions) -> IntegrityDevice {
        let options = OpenOptions { internal_hash: crc(), ..options };
        IntegrityDevice::open(Stores::interleaved(store), options).unwrap()
    }

    /// Without a journal a killed process leaves the blocks that it has written with their tags.
    #[test]
    fn changed_tags_without_a_journal_are_soon_on_the_store() {
        let (memory, syncs) = (formatted(FormatOptions::default()), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&syncs);
        let store = ScriptedStore::new(memory.clone(), move |call| {
            counted.fetch_add(usize::from(call == Call::Sync), Ordering::SeqCst);
            Verdict::Pass
        });
        let open = |store| opened(store, OpenOptions::new(Mode::Direct));
        let device = Arc::new(open(Arc::new(store)));
        syncs.store(0, Ordering::SeqCst);
        let hour = Duration::from_secs(3600);
        let volume = MaintainedIntegrity::start(&silent(), device, Path::new("test"), hour).unwrap();
        for value in 1..4 {
            volume.device.write(8, &[value; 512], &[]).unwrap();
            let left = || {
                let mut data = [0; 512];
                let copy = open(Arc::new(MemoryStore::new(memory.contents())));
                copy.read(8, &mut data, &mut []).map(|()| data[0]).ok()
            };
            eventually("the tag is stored", left, |found| *found == Some(value));
        }
        volume.stop();
        // The tags are written more often than that.
        assert_eq!(syncs.load(Ordering::SeqCst), 0, "within the hour");
        volume.close().unwrap();
        assert!(syncs.load(Ordering::SeqCst) > 0);
    }

    /// The locks on the devices are released next.
    #[test]
    fn nothing_is_written_after_a_volume_is_dropped() {
        let gate = Arc::new(Gate::closed());
        let held = Arc::clone(&gate);
        let store = ScriptedStore::new(formatted(FormatOptions::default()), move |call| {
            if matches!(call, Call::Write { .. }) && std::thread::current().name() == Some("inlock-integ") {
                held.pass();
            }
            Verdict::Pass
        });
        let device = Arc::new(opened(Arc::new(store), OpenOptions::new(Mode::Direct)));
        let hour = Duration::from_secs(3600);
        let volume = MaintainedIntegrity::start(&silent(), Arc::clone(&device), Path::new("test"), hour).unwrap();
        device.write(8, &[1; 512], &[]).unwrap();
        eventually("the tag is being written", || gate.waiting(), |waiting| *waiting == 1);
        std::thread::scope(|scope| {
            let dropped = spawn_until_it_waits(scope, || drop(volume));
            assert!(!dropped.is_finished());
            gate.open();
        });
        assert_eq!(Arc::strong_count(&device), 1);
    }

    #[test]
    fn tags_are_computed_if_they_can_be_written_and_then_the_thread_waits() {
        let hour = Duration::from_secs(3600);
        for (recalculate, read_only) in [(false, false), (true, true), (true, false)] {
            let memory = formatted(FormatOptions { recalculate, ..FormatOptions::default() });
            let before = memory.contents();
            let options = OpenOptions { read_only, ..OpenOptions::new(Mode::Direct) };
            let (device, warned) = (opened(memory.clone(), options), Warned::default());
            assert_eq!(device.is_recalculating(), recalculate && !read_only);
            let (stop, stopped) = mpsc::channel();
            let (context, freshness) = (warned.context(), OnceLock::new());
            std::thread::scope(|scope| {
                let (context, device, freshness) = (&context, &device, &freshness);
                let maintaining = spawn_until_it_waits(scope, move || {
                    maintain(context, device, freshness, (Path::new("test"), hour), &stopped);
                });
                eventually("all tags", || device.is_recalculating(), |is_recalculating| !is_recalculating);
                drop(stop);
                maintaining.join().unwrap();
            });
            assert_eq!(warned.heard(), Vec::<String>::new());
            assert_eq!(memory.contents() == before, !recalculate || read_only);
        }
    }

    #[test]
    fn close_that_cannot_write_is_an_error() {
        for fails in [false, true] {
            let is_closing = Arc::new(AtomicBool::new(false));
            let closing = Arc::clone(&is_closing);
            let store = ScriptedStore::new(formatted(FormatOptions::default()), move |call| match call {
                Call::Write { .. } if fails && closing.load(Ordering::SeqCst) => Verdict::Fail(Errno::IO),
                _ => Verdict::Pass,
            });
            let device = Arc::new(opened(Arc::new(store), OpenOptions::new(Mode::Journal)));
            let hour = Duration::from_secs(3600);
            let volume = MaintainedIntegrity::start(&silent(), device, Path::new("test"), hour).unwrap();
            volume.device.write(8, &[1; 512], &[]).unwrap();
            is_closing.store(true, Ordering::SeqCst);
            let closed = volume.close().map_err(|error| error.kind());
            assert_eq!(closed, if fails { Err(ErrorKind::WritesLost) } else { Ok(()) });
        }
    }
}
