//! A ublk device: made, taken back after its process died, ended.

use super::driver::{self, Control, Descriptions, Info, State, USER_RECOVERY, USER_RECOVERY_REISSUE, ZONES};
use super::parameters::{Parameters, Zones};
use super::queue::Queue;
use super::user_copy::UserCopy;
use super::zoning::{Known, Zoning, ZoningError};
use inlock_engine::ring::Ring;
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::Worker;
use inlock_engine::zoned::ZoneLimits;
use inlock_engine::{BlockingDevice, BufferPool, Device, RequestError};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the driver may take to see that a device's process has died.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest logical block that the driver takes.
const LOGICAL_MAX: usize = 4096;

/// How a device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkOptions {
    /// Queues, each with a thread.
    pub queues: u16,
    /// Requests at a time in each.
    pub depth: u16,
    /// The longest request in bytes, a multiple of 4096. So much memory is held for each request of each queue.
    pub longest: u32,
    /// By which the device is known when its process has died: numbers are used again, by other volumes too.
    pub mark: u64,
}

impl Default for UblkOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { queues: cpus.min(4) as u16, depth: 64, longest: 256 << 10, mark: 0 }
    }
}

/// A device that cannot be made, taken back or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// There is no ublk here.
    #[error("this kernel has no ublk (/dev/ublk-control is missing)")]
    NoUblk,
    /// Only root may.
    #[error("ublk devices are not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// The driver refuses.
    #[error("ublk cannot {what}: {source}")]
    Driver {
        /// What it was to do.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The driver knows no zones.
    #[error("this kernel's ublk has no zoned devices (Linux 6.6)")]
    NoZones,
    /// The driver leaves a short zone at the end out, and then misses it.
    #[error(
        "ublk takes whole zones only: {len} bytes in zones of {zone_len} leave {} over at the end",
        len % zone_len
    )]
    PartOfZone {
        /// Bytes of the volume.
        len: u64,
        /// Bytes from one zone to the next.
        zone_len: u64,
    },
    /// Sequential zones are written in longer units than the driver's logical blocks can be.
    #[error("zones that are written in units of {0} bytes: ublk takes {LOGICAL_MAX} at most")]
    ZoneUnit(usize),
    /// The device does not say how far its zones are written.
    #[error("cannot see how far zones are written: {0}")]
    Report(#[source] RequestError),
    /// How far they were answered cannot be kept.
    #[error("cannot keep how far zones are written: {0}")]
    Keep(#[source] io::Error),
    /// The driver of this kernel, or that of the kernel's day on which the device was made, keeps to the first length.
    #[error(
        "its ublk device keeps the old length: that takes UBLK_F_UPDATE_SIZE, which this kernel's driver lacks (Linux 6.16)"
    )]
    CannotResize,
    /// The device is not one that waits for its process.
    #[error("/dev/ublkb{0} does not wait for a process")]
    NotWaiting(u32),
    /// A worker cannot run.
    #[error("cannot run a worker: {0}")]
    Worker(#[source] io::Error),
    /// What was written could not be put on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] RequestError),
}

/// A volume as a block device. When this process dies without [`UblkDevice::stop`], the device waits for another one.
pub struct UblkDevice {
    info: Info,
    node: PathBuf,
    device: Arc<Device>,
    /// What another process is left, should this one die.
    kept: Option<PathBuf>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Whether this kernel has the driver.
pub fn is_available() -> bool {
    Path::new("/dev/ublk-control").exists()
}

/// The number of the device with this node.
pub fn number_of(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// Whether the device with this number and mark waits for a process, its own having died.
pub fn is_waiting(number: u32, mark: u64) -> bool {
    left(number, mark).is_some_and(|info| matches!(info.state, State::Quiesced | State::Live))
}

/// Whether there is a device with this number and mark that its process has left, started or not.
pub fn is_left(number: u32, mark: u64) -> bool {
    left(number, mark).is_some()
}

fn left(number: u32, mark: u64) -> Option<Info> {
    let info = open().ok()?.info(number).ok()?;
    (info.is_ours() && info.mark == mark && !has_process(&info)).then_some(info)
}

/// Removes a device whose process died; requests that wait for it fail.
pub fn remove(number: u32, mark: u64) -> Result<(), UblkError> {
    if !is_left(number, mark) {
        // It is gone, or another process has made another one under its number.
        return Ok(());
    }
    let mut control = open()?;
    control.stop(number).map_err(failed("stop the device"))?;
    control.delete(number).map_err(failed("remove the device"))
}

impl UblkDevice {
    /// Makes a block device of `device`. It is there, and answered, when this returns.
    ///
    /// A device with zones keeps in the file `kept`, which should lie in memory, how far each was answered, for
    /// [`UblkDevice::recover`]; without it, an append that was under way when the process died may land twice.
    pub fn start(device: &Arc<Device>, options: &UblkOptions, kept: Option<&Path>) -> Result<Self, UblkError> {
        let mut control = open()?;
        // Kernels before 6.5 cannot say what they can do, and recover all the same.
        let features = control.features().unwrap_or(u64::MAX);
        let recovery = USER_RECOVERY | USER_RECOVERY_REISSUE;
        let parameters = Parameters::of(device, options.longest)?;
        let added = if parameters.zones.is_some() {
            if features & ZONES != ZONES {
                return Err(UblkError::NoZones);
            }
            control.add(options, features & recovery | ZONES)
        } else {
            let added = control.add(options, features & (recovery | driver::UPDATE_SIZE));
            added.or_else(|_| control.add(options, recovery))
        };
        let info = added.map_err(failed("add a device"))?;
        let parameters = Parameters { longest: info.longest, ..parameters };
        let started = Self::start_added(&mut control, info, &parameters, device, kept);
        if started.is_err() {
            let _ = control.delete(info.id);
        }
        started
    }

    fn start_added(
        control: &mut Control,
        info: Info,
        parameters: &Parameters,
        device: &Arc<Device>,
        kept: Option<&Path>,
    ) -> Result<Self, UblkError> {
        control.set_parameters(info.id, parameters).map_err(failed("take the device's parameters"))?;
        let zoning = parameters.zones.map(|zones| Known::new(device, zones.len, info.mark, kept)).transpose()?;
        if zoning.is_some() != info.is_zoned() {
            return Err(UblkError::NoZones);
        }
        let mut started = Self::with_workers(info, zoning, device, kept)?;
        let id = info.id;
        started.seen(control, |control| control.start(id).map_err(failed("start the device")))
    }

    /// Takes back the device with this number and mark, whose process died: what was under way is asked again, and nobody
    /// has seen an error. `kept` as it was given to [`UblkDevice::start`].
    pub fn recover(device: &Arc<Device>, number: u32, mark: u64, kept: Option<&Path>) -> Result<Self, UblkError> {
        let mut control = open()?;
        let info = control.info(number).map_err(failed("be asked about the device"))?;
        let limits = device.zone_limits();
        if !info.is_ours() || info.mark != mark || has_process(&info) || info.is_zoned() != limits.is_some() {
            return Err(UblkError::NotWaiting(number));
        }
        let most = u64::from(info.queues) * u64::from(info.depth) * u64::from(info.longest);
        let zoning = limits.map(|limits| Known::taken_back(device, limits.zone_len, mark, kept, most)).transpose()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match control.start_recovery(number) {
                Ok(()) => break,
                // The driver has not seen everything of the process end yet.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(failed("take the device back")(error)),
            }
        }
        let mut started = Self::with_workers(info, zoning, device, kept)?;
        started.seen(&mut control, |control| control.end_recovery(number).map_err(failed("take the device back")))
    }

    /// Waits until the driver has taken everything; where it does not, the workers end.
    fn seen(
        &mut self,
        control: &mut Control,
        begin: impl FnOnce(&mut Control) -> Result<(), UblkError>,
    ) -> Result<Self, UblkError> {
        let begun = begin(control);
        if begun.is_err() {
            let _ = control.stop(self.info.id);
            self.join().ok();
        }
        begun.map(|()| Self {
            info: self.info,
            node: self.node.clone(),
            device: Arc::clone(&self.device),
            kept: self.kept.take(),
            workers: std::mem::take(&mut self.workers),
        })
    }

    fn with_workers(
        info: Info,
        zoning: Option<Known>,
        device: &Arc<Device>,
        kept: Option<&Path>,
    ) -> Result<Self, UblkError> {
        let kept = kept.filter(|_| zoning.is_some()).map(Path::to_owned);
        let queues = driver::open_queues(&info).map_err(failed("open the device's queues"))?;
        let mut workers = Vec::new();
        let mut arm = Vec::new();
        for number in 0..info.queues {
            let queues = queues.try_clone().map_err(UblkError::Worker)?;
            let (worker, go) = spawn(number, queues, info, zoning.clone(), Arc::clone(device))?;
            workers.push(worker);
            arm.push(go);
        }
        // All of them can run: only now does any of them wait for the driver.
        for go in arm {
            let _ = go.send(());
        }
        let node = PathBuf::from(format!("/dev/ublkb{}", info.id));
        Ok(Self { info, node, device: Arc::clone(device), kept, workers })
    }

    /// `/dev/ublkbN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// How many queues it has, each with a thread.
    pub fn queues(&self) -> usize {
        usize::from(self.info.queues)
    }

    /// Whether every worker still runs.
    pub fn is_healthy(&self) -> bool {
        !self.workers.is_empty() && !self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Makes a new length of the volume known; drivers before Linux 6.16 cannot ([`UblkError::CannotResize`]).
    pub fn update_len(&self) -> Result<(), UblkError> {
        if !self.info.can_resize() {
            // Nothing to be told is no failure.
            return if self.known_len() == Some(self.device.len()) { Ok(()) } else { Err(UblkError::CannotResize) };
        }
        open()?.update_len(self.info.id, self.device.len()).map_err(failed("change the device's length"))
    }

    /// Takes the device away, with everything that was written on stable storage. Whoever still uses it gets errors: ask
    /// before.
    pub fn stop(&mut self) -> Result<(), UblkError> {
        if self.workers.is_empty() {
            return Ok(());
        }
        let mut control = open()?;
        // What waits in a suspended device would wait for ever; what it had written was flushed when it was suspended.
        self.device.end();
        control.stop(self.info.id).map_err(failed("stop the device"))?;
        let ended = self.join();
        let deleted = control.delete(self.info.id).map_err(failed("remove the device"));
        if let Some(kept) = &self.kept {
            let _ = std::fs::remove_file(kept);
        }
        if !self.device.access().read_only && !self.device.is_suspended() {
            BlockingDevice::with_calls(Arc::clone(&self.device), 1).flush().map_err(UblkError::Flush)?;
        }
        ended.and(deleted)
    }

    /// How long the block layer takes the device to be.
    fn known_len(&self) -> Option<u64> {
        let sectors = std::fs::read_to_string(format!("/sys/block/ublkb{}/size", self.info.id)).ok()?;
        sectors.trim_end().parse::<u64>().ok()?.checked_mul(512)
    }

    fn join(&mut self) -> Result<(), UblkError> {
        let mut outcome = Ok(());
        for worker in self.workers.drain(..) {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = Err(UblkError::Worker(error)),
                Err(_) => outcome = Err(UblkError::Worker(io::Error::other("a worker panicked"))),
            }
        }
        outcome
    }
}

/// Starts the thread of one queue, and waits until it could begin. Dropping the sender ends it.
fn spawn(
    number: u16,
    queues: OwnedFd,
    info: Info,
    zoning: Option<Known>,
    device: Arc<Device>,
) -> Result<(JoinHandle<io::Result<()>>, mpsc::Sender<()>), UblkError> {
    let (ready, began) = mpsc::channel();
    let (go, going) = mpsc::channel();
    let run = move || {
        let signals = Signals { ready, going };
        let made = Descriptions::map(&queues, number, info.depth).and_then(|descriptions| {
            // The ring belongs to the thread that uses it, so it is made there.
            let mut ring = Ring::new(IoMode::Uring)?;
            let user_copy = if info.is_zoned() { Some(UserCopy::new(queues.try_clone()?, number)) } else { None };
            let file = driver::add_to_ring(&mut ring, queues, &info)?;
            let zoning = zoning.map(|known| Zoning::new(known, info.depth));
            let queue = Queue::new(file, number, descriptions, &info, device.unit_len(), user_copy, zoning);
            Ok((ring, queue))
        });
        match made {
            Ok((ring, queue)) => serve(device, ring, queue, &info, &signals),
            Err(error) => signals.ready.send(Err(error)).map_err(io::Error::other),
        }
    };
    let thread = std::thread::Builder::new().name(format!("inlock-queue-{number}")).spawn(run);
    let thread = thread.map_err(UblkError::Worker)?;
    began.recv().map_err(|error| UblkError::Worker(io::Error::other(error)))?.map_err(UblkError::Worker)?;
    Ok((thread, go))
}

/// How the thread of a queue and who started it find each other.
struct Signals {
    ready: mpsc::Sender<io::Result<()>>,
    going: mpsc::Receiver<()>,
}

fn serve(device: Arc<Device>, ring: Ring, queue: Queue, info: &Info, signals: &Signals) -> io::Result<()> {
    let mut worker = Worker::new(device, ring, BufferPool::new(&[]), queue);
    // Each place with the store, and its answer on the way.
    let warm = worker.warm_up(2 * usize::from(info.depth));
    let is_warm = warm.is_ok();
    signals.ready.send(warm).map_err(io::Error::other)?;
    // An end without a word: another queue could not begin.
    if !is_warm || signals.going.recv().is_err() {
        return Ok(());
    }
    worker.run()
}

impl Parameters {
    /// What the driver is told of `device`.
    fn of(device: &Device, longest: u32) -> Result<Self, UblkError> {
        let unit_len = device.mapping().unit_len().max(512);
        let mut parameters = Self {
            len: device.len(),
            longest,
            logical_block: unit_len.min(LOGICAL_MAX),
            physical_block: unit_len,
            read_only: device.access().read_only,
            discards: device.access().allow_discards && !device.access().read_only,
            zones: None,
        };
        let Some(ZoneLimits { zone_len, max_open, max_active, write_granularity, longest_write, .. }) =
            device.zone_limits()
        else {
            return Ok(parameters);
        };
        if !parameters.len.is_multiple_of(zone_len) {
            return Err(UblkError::PartOfZone { len: parameters.len, zone_len });
        }
        // Zones are written in logical blocks.
        let block = unit_len.max(write_granularity as usize);
        if block > LOGICAL_MAX {
            return Err(UblkError::ZoneUnit(block));
        }
        (parameters.logical_block, parameters.physical_block) = (block, block);
        parameters.zones = Some(Zones { len: zone_len, max_open, max_active, longest: longest_write });
        Ok(parameters)
    }
}

fn open() -> Result<Control, UblkError> {
    Control::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => UblkError::NoUblk,
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted(error),
        _ => failed("be reached")(error),
    })
}

impl From<ZoningError> for UblkError {
    fn from(error: ZoningError) -> Self {
        match error {
            ZoningError::Report(error) => Self::Report(error),
            ZoningError::Keep(error) => Self::Keep(error),
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> UblkError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted(source),
        _ => UblkError::Driver { what, source },
    }
}

/// Whether a device has a process. The driver says when it has none; before it has seen that, its number tells, which may be
/// another process's later.
fn has_process(info: &Info) -> bool {
    let is_alive = |pid: i32| pid > 0 && Path::new("/proc").join(pid.to_string()).exists();
    info.state != State::Quiesced && is_alive(info.pid)
}
