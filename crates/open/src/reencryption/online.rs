//! Re-encrypting a volume while it is open, and clients use it.
//!
//! A thread takes zone after zone: it locks the zone against all clients, writes it as a closed volume's, and moves the
//! boundary of the engine's device behind it. Requests to other zones go on meanwhile, those to the zone wait for it.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inlock_engine::{BackingStore, Content, CryptMapping, Device, MoveDirection, Sides, Target};
use inlock_volume::luks2::Luks2;
use inlock_volume::luks2::reencryption::{Direction, PieceState, Reencryption, ReencryptionKeys};
use inlock_volume::{Segment, VolumeKey};
use serde::{Deserialize, Serialize};

use super::driver::{Devices, Driver};
use super::interrupted::luks2_of;
use crate::device::{Device as Storage, OpenMode};
use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::header::Header;
use crate::host::Context;
use crate::info::SegmentInfo;
use crate::key_check::KeyCheck;
use crate::lock::{self, Lock, Mode};
use crate::source::HeaderOptions;
use crate::staged::StagedHeader;

/// Longest zone unless another one is asked for: clients wait for one, and each has flushes.
const ZONE: u64 = 8 << 20;

/// Niceness of the threads that re-encrypt, from 0 to 19.
const NICENESS: i32 = 10;

/// The re-encryption of an open LUKS2 volume, running or not.
pub struct Online {
    context: Context,
    at: HeaderOptions,
    /// Of the device that the header was read from when the volume was opened.
    identity: Option<String>,
    /// Bytes that were new when it was opened in re-encryption.
    interrupted_at: Option<u64>,
    /// cryptsetup's lock, from the beginning of a re-encryption or the opening in one until it has finished.
    lock: Arc<Mutex<Option<Lock>>>,
    /// Held while one begins.
    beginning: Mutex<()>,
    task: Mutex<Option<Task>>,
}

/// How far the re-encryption of an open volume is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlineStatus {
    /// What it does.
    pub state: OnlineState,
    /// Bytes of the volume that are new.
    pub done_bytes: u64,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Most bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the re-encryption of an open volume does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnlineState {
    /// It takes zone after zone.
    Running,
    /// It waits between two zones.
    Paused,
    /// It was interrupted before the volume was opened, and needs the keys to go on.
    Interrupted,
    /// The volume is new.
    Finished,
    /// A zone could not be written.
    Failed,
}

impl std::fmt::Display for OnlineState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Interrupted => "interrupted",
            Self::Finished => "finished",
            Self::Failed => "failed",
        })
    }
}

/// A volume after its re-encryption.
pub struct Finished {
    /// Its segments.
    pub segments: Vec<SegmentInfo>,
    /// Recognizes its key; `None`: it is not encrypted.
    pub check: Option<KeyCheck>,
}

/// How the re-encryption of an open volume goes on.
pub struct OnlineOptions {
    /// Longest zone in bytes; `None`: the default.
    pub longest_zone: Option<u64>,
    /// Most bytes a second; `None`: no limit.
    pub rate: Option<u64>,
    /// Holes of the store stay holes, and read as other bytes afterwards.
    pub keeps_holes: bool,
    /// It waits before the first zone.
    pub is_paused: bool,
    /// Takes what is going to be new, before the first zone is written.
    pub begun: Box<dyn FnOnce(Finished) + Send>,
    /// Takes what is new when it has finished.
    pub finished: Box<dyn FnOnce(Finished) + Send>,
}

/// A thread that re-encrypts.
struct Task {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    wish: Wish,
    /// The thread waits between two zones.
    is_parked: bool,
    rate: Option<u64>,
    done: u64,
    total: u64,
    /// How it has ended; `None`: it has not.
    outcome: Option<Result<(), String>>,
    /// The header of one that has failed, whose file may have no other name.
    _header: Option<Storage>,
}

/// What the thread is to do after its zone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Run,
    Pause,
    End,
}

impl Online {
    /// The volume has the header at `at`, on the device of that identity. `interrupted`: bytes that are new, and cryptsetup's lock, if it was opened in
    /// re-encryption.
    pub(crate) fn new(
        context: Context,
        (at, identity): (HeaderOptions, Option<String>),
        interrupted: Option<(u64, Lock)>,
    ) -> Self {
        let (interrupted_at, lock) = interrupted.unzip();
        let lock = Arc::new(Mutex::new(lock));
        Self { context, at, identity, interrupted_at, lock, beginning: Mutex::new(()), task: Mutex::new(None) }
    }

    fn task(&self) -> MutexGuard<'_, Option<Task>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of a thread that has not ended.
    fn running(&self) -> Option<Arc<Shared>> {
        let shared = self.task().as_ref().map(|task| Arc::clone(&task.shared));
        shared.filter(|shared| shared.progress().outcome.is_none())
    }

    /// Returns how far it is. `None`: the volume is not re-encrypted.
    pub fn status(&self, device: &Device) -> Option<OnlineStatus> {
        match &*self.task() {
            Some(task) => Some(task.shared.progress().status()),
            None => self.interrupted_at.map(|done_bytes| OnlineStatus {
                state: OnlineState::Interrupted,
                done_bytes,
                total_bytes: device.len(),
                rate: None,
                error: None,
            }),
        }
    }

    /// Whether the volume has two keys, so that it cannot be suspended, resized or get another table.
    pub(crate) fn is_active(&self) -> bool {
        match &*self.task() {
            Some(task) => !matches!(task.shared.progress().outcome, Some(Ok(()))),
            None => self.interrupted_at.is_some(),
        }
    }

    /// Writes the beginning of a re-encryption, which another process has made, to the header.
    ///
    /// # Errors
    ///
    /// Fails before it writes if one runs already, or the header was changed meanwhile.
    pub fn begin(&self, staged: &StagedHeader) -> Result<()> {
        let _one = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_not_running()?;
        let header = self.load()?;
        let end = match self.at.header {
            Some(_) => header.device.len,
            None => header.volume.data_offset(),
        };
        let _lock = lock::header(&header.device, Mode::Exclusive)?;
        staged.write(&header.device.header()?, end)
    }

    fn check_not_running(&self) -> Result<()> {
        if self.running().is_none() {
            return Ok(());
        }
        let text = format!("The volume on {} is being re-encrypted already.", self.at.image.display());
        Err(Error::new(ErrorKind::AlreadyReencrypted, text))
    }

    fn load(&self) -> Result<Header> {
        let path = self.at.header.as_ref().unwrap_or(&self.at.image);
        let device = Storage::open(&self.context, path, OpenMode::Header)?;
        if self.identity.as_ref().is_some_and(|known| *known != device.identity()) {
            return Err(self.refused(&format!("{} is another file or device than the open one", path.display())));
        }
        Header::load_from(device, self.at.luks, true)
    }

    /// Goes on with the re-encryption that the header has begun. `joined`: both keys, as
    /// [`ReencryptionKeys::joined`] returns them. `check`: of the key of the volume, if it has one.
    ///
    /// # Errors
    ///
    /// Fails if it runs already, if the header has none or the keys are not its, if the data are to move, and if a zone
    /// has to be recovered first. Nothing is changed then.
    pub fn go_on(
        &self,
        device: &Arc<Device>,
        (joined, check): (&VolumeKey, Option<&KeyCheck>),
        options: OnlineOptions,
    ) -> Result<()> {
        let _one = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_not_running()?;
        if device.is_suspended() {
            return Err(self.refused("it is suspended"));
        }
        let (job, lock) = self.job(device, joined, &options)?;
        if let Some(old) = job.keys.of(PieceState::Old) {
            check_key(check, old)?;
        }
        job.map_sides()?;
        if lock.is_some() {
            *held(&self.lock) = lock;
        }
        let shared = Arc::new(Shared::new(&options, &job));
        (options.begun)(job.finished()?);
        let thread = {
            let shared = Arc::clone(&shared);
            let run = move || {
                // Clients come first. The threads that it starts inherit this; it is no fault if it cannot be set.
                let _ = rustix::process::setpriority_process(None, NICENESS);
                shared.run(job, options.finished);
            };
            std::thread::Builder::new().name("inlock-reencrypt".into()).spawn(run)?
        };
        *self.task() = Some(Task { shared, thread: Some(thread) });
        Ok(())
    }

    /// Loads the header under the locks, and confirms it with the keys. Returns cryptsetup's lock, too, if the volume
    /// did not have it.
    fn job(&self, device: &Arc<Device>, joined: &VolumeKey, options: &OnlineOptions) -> Result<(Job, Option<Lock>)> {
        let header = self.load()?;
        let syncs_header = self.at.header.is_none() && header.device.remote().is_none();
        let is_locked = held(&self.lock).is_some();
        let lock = || lock::reencryption(&header.device, header.volume.uuid(), Mode::Exclusive);
        let lock = (!is_locked).then(lock).transpose()?;
        // Loaded before the lock: another process may have gone on meanwhile.
        let header = Header { volume: Header::load_again(&header.device, self.at.luks)?, ..header };
        let (state, keys) = header.confirm_reencryption(joined, &self.at.policy)?;
        if state.pieces.hot().is_some() {
            return Err(self.refused("a zone has to be recovered; close it, and open it again for writing"));
        }
        if state.keyslot.resilience.shift.is_some() {
            return Err(self.refused("its data move, which they do not while it is open; close it first"));
        }
        if device.zone_limits().is_some() {
            return Err(self.refused("its zones are written in order, and re-encryption writes in place"));
        }
        let store_len = device.stores()[0].geometry().len;
        if state.len(store_len) != device.len() {
            return Err(self.refused("it has another length than its header says"));
        }
        let data = match &self.at.header {
            None => header.device.unaligned(&device.stores()[0]),
            Some(_) => Storage::open(&self.context, &self.at.image, OpenMode::Read)?.unaligned(&device.stores()[0]),
        };
        let (device, held) = (Arc::clone(device), Arc::clone(&self.lock));
        let OnlineOptions { longest_zone, keeps_holes, .. } = *options;
        Ok((Job { device, data, header, syncs_header, state, keys, longest_zone, keeps_holes, lock: held }, lock))
    }

    /// Stops after the present zone, and waits for that.
    pub fn pause(&self) -> Result<()> {
        self.with_running(|shared| shared.wish_for(Wish::Pause))
    }

    /// Goes on after [`Online::pause`].
    pub fn resume(&self) -> Result<()> {
        self.with_running(|shared| shared.wish_for(Wish::Run))
    }

    /// Limits the bytes that are re-encrypted in a second. `None`: no limit.
    pub fn set_rate(&self, rate: Option<u64>) -> Result<()> {
        self.with_running(|shared| {
            shared.progress().rate = rate;
            shared.changed.notify_all();
        })
    }

    fn with_running(&self, change: impl FnOnce(&Shared)) -> Result<()> {
        let Some(shared) = self.running() else {
            let text = format!("The volume on {} is not being re-encrypted.", self.at.image.display());
            return Err(Error::new(ErrorKind::NotReencrypted, text));
        };
        change(&shared);
        Ok(())
    }

    /// Ends the thread after the present zone. The header says how far it is.
    pub(crate) fn end(&self) {
        let thread = self.task().as_mut().and_then(|task| {
            task.shared.wish_for(Wish::End);
            task.thread.take()
        });
        // A panic is reported by its hook.
        let _ = thread.map(JoinHandle::join);
    }

    fn refused(&self, reason: &str) -> Error {
        let text = format!("The volume on {} cannot be re-encrypted: {reason}.", self.at.image.display());
        Error::new(ErrorKind::CannotReencrypt, text).about(&self.at.image)
    }
}

impl Progress {
    fn status(&self) -> OnlineStatus {
        let state = match &self.outcome {
            Some(Ok(())) => OnlineState::Finished,
            Some(Err(_)) => OnlineState::Failed,
            None if self.is_parked => OnlineState::Paused,
            None => OnlineState::Running,
        };
        OnlineStatus {
            state,
            done_bytes: self.done,
            total_bytes: self.total,
            rate: self.rate,
            error: self.outcome.as_ref().and_then(|outcome| outcome.as_ref().err().cloned()),
        }
    }
}

impl Shared {
    fn new(options: &OnlineOptions, job: &Job) -> Self {
        let total = job.device.len();
        let (done, rate) = (job.state.pieces.done(total), options.rate);
        let wish = if options.is_paused { Wish::Pause } else { Wish::Run };
        let progress = Progress { wish, is_parked: options.is_paused, rate, done, total, outcome: None, _header: None };
        Self { progress: Mutex::new(progress), changed: Condvar::new() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread what to do, and waits until it does unless it is to run.
    fn wish_for(&self, wish: Wish) {
        let mut progress = self.progress();
        progress.wish = wish;
        // A client that has resumed it is not told that it is paused still.
        progress.is_parked &= wish == Wish::Pause;
        self.changed.notify_all();
        let is_awaited =
            |progress: &mut Progress| progress.wish == Wish::Pause && !progress.is_parked && progress.outcome.is_none();
        drop(self.changed.wait_while(progress, is_awaited).unwrap_or_else(PoisonError::into_inner));
    }

    /// Carries out the re-encryption. The device keeps its two sides if it does not reach the end.
    fn run(&self, job: Job, finished: Box<dyn FnOnce(Finished) + Send>) {
        let outcome = match job.run(self) {
            Ok(true) => {
                *held(&job.lock) = None;
                job.map_new_side().map(finished).map_err(|error| error.to_string())
            }
            Ok(false) => Err("it was stopped".to_owned()),
            Err(error) => {
                let text = format!("re-encryption stopped: {}", with_causes(&error));
                job.header.device.context().warn(format_args!("{}: {text}", job.header.path().display()));
                Err(text)
            }
        };
        let mut progress = self.progress();
        progress._header = outcome.is_err().then(|| job.header.device.duplicate());
        progress.outcome = Some(outcome);
        drop(progress);
        self.changed.notify_all();
    }

    /// Waits while it is paused, and until the rate allows the next zone, after `rest`. Returns whether to go on.
    fn may_go_on(&self, since: Instant, moved: u64, rest: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let mut progress = self.progress();
        let mut has_rested = false;
        loop {
            let pause =
                progress.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(moved as f64 / rate.max(1) as f64));
            let left = pause.saturating_sub(since.elapsed());
            if !has_rested && (progress.wish != Wish::Run || !left.is_zero()) {
                drop(progress);
                rest()?;
                (has_rested, progress) = (true, self.progress());
                continue;
            }
            let is_parked = progress.wish == Wish::Pause;
            if progress.is_parked != is_parked {
                progress.is_parked = is_parked;
                self.changed.notify_all();
            }
            progress = match progress.wish {
                Wish::End => return Ok(false),
                Wish::Run if left.is_zero() => return Ok(true),
                Wish::Run => self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0,
                Wish::Pause => self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// What the thread works on.
struct Job {
    device: Arc<Device>,
    /// Its store, for requests of any bytes.
    data: Arc<dyn BackingStore>,
    header: Header,
    state: Reencryption,
    keys: ReencryptionKeys,
    /// The header is on the device of the data, whose sync makes it durable.
    syncs_header: bool,
    longest_zone: Option<u64>,
    keeps_holes: bool,
    /// As [`Online::lock`].
    lock: Arc<Mutex<Option<Lock>>>,
}

impl Job {
    /// Gives the device both sides, with the boundary where the header says.
    fn map_sides(&self) -> Result<()> {
        let (len, state) = (self.device.len(), &self.state);
        let segments = state.sides(len);
        let contents = [self.content(&segments[0], PieceState::Old)?, self.content(&segments[1], PieceState::New)?];
        let side = |at: usize| Target { segment: &segments[at], content: contents[at], store: 0 };
        let done = state.pieces.done(len);
        let (direction, boundary) = match state.keyslot.direction {
            Direction::Forward => (MoveDirection::Forward, done),
            Direction::Backward => (MoveDirection::Backward, len - done),
        };
        let sides = Sides { old: side(0), new: side(1), direction, boundary, len };
        let mapping = CryptMapping::moving(&sides, &self.store_lens()).context("cannot use both ciphers")?;
        let mut keys: Vec<&VolumeKey> = Vec::new();
        for content in contents {
            if let Content::Crypt(key) = content
                && !keys.iter().any(|known| std::ptr::eq(*known, key))
            {
                keys.push(key);
            }
        }
        Ok(self.device.reload_with_keys(mapping, &keys)?)
    }

    fn content(&self, segment: &Segment, side: PieceState) -> Result<Content<'_>> {
        match (segment.cipher, self.keys.of(side)) {
            (None, _) => Ok(Content::Linear),
            (Some(_), Some(key)) => Ok(Content::Crypt(key)),
            (Some(_), None) => Err(Error::no_key()),
        }
    }

    fn store_lens(&self) -> Vec<u64> {
        self.device.stores().iter().map(|store| store.geometry().len).collect()
    }

    /// Re-encrypts zone after zone. Returns whether all are new.
    fn run(&self, shared: &Shared) -> Result<bool> {
        let written = self.header.device.header()?;
        let lock = || lock::header(&self.header.device, Mode::Exclusive);
        // For all clients: the kernel reports a lost write once.
        let sync = || self.device.sync_blocking().map_err(std::io::Error::from).context("cannot flush");
        let syncs_header = self.syncs_header;
        let devices = Devices { header: &written, data: &*self.data, sync: &sync, syncs_header, lock: &lock };
        let luks2: &Luks2 = luks2_of(&self.header)?;
        let zone = Some(self.longest_zone.unwrap_or(ZONE));
        let mut driver = Driver::new(devices, luks2.clone(), self.state.clone(), &self.keys, zone)?;
        if self.keeps_holes {
            driver.keep_holes()?;
        }
        let (mut since, mut moved) = (Instant::now(), 0);
        while let Some(zone) = driver.next_zone() {
            if !shared.may_go_on(since, moved, &mut || driver.rest())? {
                return Ok(false);
            }
            self.check_header_file()?;
            (since, moved) = (Instant::now(), zone.end - zone.start);
            self.write_zone(&mut driver, &zone)?;
            shared.progress().done = driver.done();
        }
        Ok(true)
    }

    /// Fails if nobody could open the volume with the header after this process.
    fn check_header_file(&self) -> Result<()> {
        let device = &self.header.device;
        let Some(file) = device.file() else { return Ok(()) };
        let metadata = file.metadata().with_context(|| format!("cannot look at {}", device.path.display()))?;
        match metadata.is_file() && metadata.nlink() == 0 {
            true => {
                let (path, process, fd) = (device.path.display(), std::process::id(), file.as_raw_fd());
                let text = format!(
                    "The file with the header, {path}, was removed or replaced; copy /proc/{process}/fd/{fd} before the \
                     volume is closed."
                );
                Err(Error::new(ErrorKind::CannotReencrypt, text).about(&device.path))
            }
            false => Ok(()),
        }
    }

    fn write_zone(&self, driver: &mut Driver<'_>, zone: &Range<u64>) -> Result<()> {
        let locked = self.device.lock_zone(zone.clone()).map_err(std::io::Error::from).context("cannot lock a zone")?;
        match driver.step(zone, Some(&|plaintext| locked.serve_reads(Arc::clone(plaintext)))) {
            Ok(()) => {}
            // It is as it was.
            Err(error) if !driver.is_writing() => return Err(error),
            Err(error) => {
                if driver.mend().is_err() {
                    locked.fail();
                    return Err(error);
                }
            }
        }
        locked.move_boundary();
        Ok(())
    }

    /// Gives the device the new side alone.
    fn map_new_side(&self) -> Result<Finished> {
        let segments = [self.state.sides(self.device.len())[1]];
        let content = self.content(&segments[0], PieceState::New)?;
        let line = Target { segment: &segments[0], content, store: 0 };
        let mapping = CryptMapping::stacked(&[line], &self.store_lens()).context("cannot use the new cipher")?;
        let key = match content {
            Content::Crypt(key) => Some(key),
            _ => None,
        };
        self.device.reload_with_keys(mapping, &key.into_iter().collect::<Vec<_>>())?;
        self.finished()
    }

    /// Returns what is new when all zones are.
    fn finished(&self) -> Result<Finished> {
        let segments = [self.state.sides(self.device.len())[1]];
        let key = match self.content(&segments[0], PieceState::New)? {
            Content::Crypt(key) => Some(key),
            _ => None,
        };
        Ok(Finished {
            segments: segments.iter().map(|one| SegmentInfo::of(one, key.map_or(0, VolumeKey::len))).collect(),
            check: key.and_then(|key| KeyCheck::new(&segments, key).ok()),
        })
    }
}

/// Fails unless `key` is that of the volume with this check.
///
/// # Errors
///
/// [`ErrorKind::OtherKey`]. A check of several keys refuses none.
pub fn check_key(check: Option<&KeyCheck>, key: &VolumeKey) -> Result<()> {
    match check {
        Some(check) if check.is_of_one_key() && !check.is_made_with(key) => Err(Error::other_key()),
        _ => Ok(()),
    }
}

fn held(lock: &Mutex<Option<Lock>>) -> MutexGuard<'_, Option<Lock>> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an error with all its causes.
fn with_causes(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
