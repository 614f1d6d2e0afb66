//! A ublk device: started, recovered after its process died, stopped.

use super::driver::{self, Control, Info, IoDescriptors, State, USER_RECOVERY, USER_RECOVERY_REISSUE, ZONES};
pub use super::options::UblkOptions;
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

/// Maximum time until the driver notices that a device's process has died: with a full queue, the block layer's
/// timeout for requests (30 seconds), and some seconds to act on it.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(40);

/// Maximum length of a logical block.
const LOGICAL_MAX: usize = 4096;

/// Failure to start, recover or stop a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// The kernel has no ublk driver.
    #[error("this kernel has no ublk (/dev/ublk-control is missing)")]
    NoUblk,
    /// The user may not use it.
    #[error("ublk devices are not permitted here: {0}")]
    NotPermitted(#[source] io::Error),
    /// The driver refused a command.
    #[error("ublk cannot {what}: {source}")]
    Driver {
        /// The command.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The driver has no zoned devices.
    #[error("this kernel's ublk has no zoned devices (Linux 6.6)")]
    NoZones,
    /// The last zone is shorter than the others, which the driver does not support.
    #[error(
        "ublk supports whole zones only: {len} bytes in zones of {zone_len} leave {} at the end",
        len % zone_len
    )]
    PartOfZone {
        /// Length of the volume in bytes.
        len: u64,
        /// Length of a zone in bytes.
        zone_len: u64,
    },
    /// Sequential zones are written in longer units than the driver's logical blocks.
    #[error("zones are written in units of {0} bytes; ublk supports at most {LOGICAL_MAX}")]
    ZoneUnit(usize),
    /// The zones cannot be reported.
    #[error("cannot report zones: {0}")]
    Report(#[source] RequestError),
    /// The completion log cannot be created.
    #[error("cannot create the completion log: {0}")]
    Log(#[source] io::Error),
    /// The driver cannot change the length, or could not when the device was started.
    #[error("the ublk device keeps the old length: this kernel's driver lacks UBLK_F_UPDATE_SIZE (Linux 6.16)")]
    CannotResize,
    /// The device is not awaiting recovery.
    #[error("/dev/ublkb{0} is not awaiting recovery")]
    NotAwaitingRecovery(u32),
    /// A worker failed.
    #[error("cannot run a worker: {0}")]
    Worker(#[source] io::Error),
    /// The final flush failed: what was written may not be on stable storage.
    #[error("the final flush failed: {0}")]
    Flush(#[source] RequestError),
}

/// A volume as a block device. If this process dies without [`UblkDevice::stop`], the device awaits recovery.
pub struct UblkDevice {
    info: Info,
    node: PathBuf,
    device: Arc<Device>,
    /// Completion log of a zoned device.
    log: Option<PathBuf>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Returns whether this kernel has the driver.
pub fn is_available() -> bool {
    Path::new("/dev/ublk-control").exists()
}

/// Returns the number of the device with this node.
pub fn number_of(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// Returns whether the device with this number and cookie was started, and its process died.
pub fn is_awaiting_recovery(number: u32, device_cookie: u64) -> bool {
    abandoned(number, device_cookie).is_some_and(|info| matches!(info.state, State::Quiesced | State::Live))
}

/// Returns the number of the device with this cookie whose process died, started or not.
pub fn find_abandoned(device_cookie: u64) -> Option<u32> {
    numbers_in(Path::new("/dev")).into_iter().find(|number| abandoned(*number, device_cookie).is_some())
}

/// Returns the numbers of the devices that have a node in the directory. One that was not started has the node of its
/// driver only.
fn numbers_in(directory: &Path) -> Vec<u32> {
    let nodes = std::fs::read_dir(directory).into_iter().flatten().flatten();
    nodes.filter_map(|node| node.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()).collect()
}

fn abandoned(number: u32, device_cookie: u64) -> Option<Info> {
    let info = open().ok()?.info(number).ok()?;
    (info.is_ours() && info.device_cookie == device_cookie && !has_process(&info)).then_some(info)
}

/// Removes a device whose process died, if it still exists. Requests that wait for its recovery fail.
///
/// # Errors
/// The driver cannot be reached, or refuses.
pub fn remove(number: u32, device_cookie: u64) -> Result<(), UblkError> {
    if abandoned(number, device_cookie).is_none() {
        // It was removed, or its number belongs to another device now.
        return Ok(());
    }
    let mut control = open()?;
    control.stop(number).map_err(failed("stop the device"))?;
    control.delete(number).map_err(failed("remove the device"))
}

impl UblkDevice {
    /// Makes a block device of `device`. It serves requests when this returns.
    ///
    /// A zoned device logs completed requests in the file `log`, which should be on tmpfs, for [`UblkDevice::recover`].
    /// Without a log, an append in flight when the process dies may be carried out twice.
    ///
    /// # Errors
    /// There is no ublk driver, the user may not use it, or the driver does not support such a device.
    pub fn start(device: &Arc<Device>, options: &UblkOptions, log: Option<&Path>) -> Result<Self, UblkError> {
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
        let started = Self::start_added(&mut control, info, &parameters, device, log);
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
        log: Option<&Path>,
    ) -> Result<Self, UblkError> {
        control.set_parameters(info.id, parameters).map_err(failed("take the device's parameters"))?;
        let zoning =
            parameters.zones.map(|zones| Known::new(device, zones.len, info.device_cookie, log)).transpose()?;
        if zoning.is_some() != info.is_zoned() {
            return Err(UblkError::NoZones);
        }
        let mut started = Self::with_workers(info, zoning, device, log)?;
        let id = info.id;
        started.after(control, |control| control.start(id).map_err(failed("start the device")))
    }

    /// Recovers the device with this number and cookie, whose process died. The driver reissues the requests in flight,
    /// so that its users see no error. `log` is the file that [`UblkDevice::start`] had. Blocks.
    ///
    /// # Errors
    /// [`UblkError::NotAwaitingRecovery`], and those of [`UblkDevice::start`].
    pub fn recover(
        device: &Arc<Device>,
        number: u32,
        device_cookie: u64,
        log: Option<&Path>,
    ) -> Result<Self, UblkError> {
        let mut control = open()?;
        let info = control.info(number).map_err(failed("be asked about the device"))?;
        let limits = device.zone_limits();
        let is_another = !info.is_ours() || info.device_cookie != device_cookie || info.is_zoned() != limits.is_some();
        if is_another || has_process(&info) {
            return Err(UblkError::NotAwaitingRecovery(number));
        }
        let max_len = u64::from(info.queues) * u64::from(info.depth) * u64::from(info.longest);
        let recover = |limits: ZoneLimits| Known::recover(device, limits.zone_len, device_cookie, log, max_len);
        let zoning = limits.map(recover).transpose()?;
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        loop {
            match control.start_recovery(number) {
                Ok(()) => break,
                // The driver has not noticed yet that the process died.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(failed("recover the device")(error)),
            }
        }
        let mut started = Self::with_workers(info, zoning, device, log)?;
        started.after(&mut control, |control| control.end_recovery(number).map_err(failed("recover the device")))
    }

    /// Runs the last command of a start. If it fails, the workers end.
    fn after(
        &mut self,
        control: &mut Control,
        command: impl FnOnce(&mut Control) -> Result<(), UblkError>,
    ) -> Result<Self, UblkError> {
        let outcome = command(control);
        if outcome.is_err() {
            let _ = control.stop(self.info.id);
            self.join().ok();
        }
        outcome.map(|()| Self {
            info: self.info,
            node: self.node.clone(),
            device: Arc::clone(&self.device),
            log: self.log.take(),
            workers: std::mem::take(&mut self.workers),
        })
    }

    fn with_workers(
        info: Info,
        zoning: Option<Known>,
        device: &Arc<Device>,
        log: Option<&Path>,
    ) -> Result<Self, UblkError> {
        let log = log.filter(|_| zoning.is_some()).map(Path::to_owned);
        let queues = driver::open_queues(&info).map_err(failed("open the device's queues"))?;
        let mut workers = Vec::new();
        let mut arm = Vec::new();
        for number in 0..info.queues {
            let queues = queues.try_clone().map_err(UblkError::Worker)?;
            let (worker, go) = spawn(number, queues, info, zoning.clone(), Arc::clone(device))?;
            workers.push(worker);
            arm.push(go);
        }
        // Only when all workers can run does any of them wait for requests.
        for go in arm {
            let _ = go.send(());
        }
        let node = PathBuf::from(format!("/dev/ublkb{}", info.id));
        Ok(Self { info, node, device: Arc::clone(device), log, workers })
    }

    /// Returns the path of the block device, `/dev/ublkbN`.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Returns the number of queues, each with a thread.
    pub fn queues(&self) -> usize {
        usize::from(self.info.queues)
    }

    /// Returns whether all workers run.
    pub fn is_healthy(&self) -> bool {
        !self.workers.is_empty() && !self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Sets the length of the block device to that of the volume.
    ///
    /// # Errors
    /// [`UblkError::CannotResize`] before Linux 6.16.
    pub fn update_len(&self) -> Result<(), UblkError> {
        if !self.info.can_resize() {
            return if self.block_device_len() == Some(self.device.len()) {
                Ok(())
            } else {
                Err(UblkError::CannotResize)
            };
        }
        open()?.update_len(self.info.id, self.device.len()).map_err(failed("change the device's length"))
    }

    /// Stops and removes the device, with everything that was written on stable storage. Programs that still use it get
    /// errors. Blocks.
    ///
    /// # Errors
    /// The driver refuses, a worker has failed, or the final flush fails.
    pub fn stop(&mut self) -> Result<(), UblkError> {
        if self.workers.is_empty() {
            return Ok(());
        }
        let mut control = open()?;
        // Requests of a suspended device would wait for ever. The suspension has flushed what was written.
        self.device.end();
        control.stop(self.info.id).map_err(failed("stop the device"))?;
        let ended = self.join();
        let deleted = control.delete(self.info.id).map_err(failed("remove the device"));
        if let Some(log) = &self.log {
            let _ = std::fs::remove_file(log);
        }
        if !self.device.access().read_only && !self.device.is_suspended() {
            BlockingDevice::with_calls(Arc::clone(&self.device), 1).flush().map_err(UblkError::Flush)?;
        }
        ended.and(deleted)
    }

    /// Returns the length of the block device.
    fn block_device_len(&self) -> Option<u64> {
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

/// Starts the thread of one queue. Blocks until it can serve; it begins to when the sender sends, and ends if the
/// sender is dropped.
fn spawn(
    number: u16,
    queues: OwnedFd,
    info: Info,
    zoning: Option<Known>,
    device: Arc<Device>,
) -> Result<(JoinHandle<io::Result<()>>, mpsc::Sender<()>), UblkError> {
    let (ready, is_ready) = mpsc::channel();
    let (go, may_begin) = mpsc::channel();
    let run = move || {
        let signals = Signals { ready, may_begin };
        let made = IoDescriptors::map(&queues, number, info.depth).and_then(|descriptors| {
            // The ring belongs to the thread that uses it, so it is made there.
            let mut ring = Ring::new(IoMode::Uring)?;
            let user_copy = if info.is_zoned() { Some(UserCopy::new(queues.try_clone()?, number)) } else { None };
            let file = driver::add_to_ring(&mut ring, queues, &info)?;
            let zoning = zoning.map(|known| Zoning::new(known, info.depth));
            let queue = Queue::new(file, number, descriptors, &info, device.unit_len(), user_copy, zoning);
            Ok((ring, queue))
        });
        match made {
            Ok((ring, queue)) => serve(device, ring, queue, &info, &signals),
            Err(error) => signals.ready.send(Err(error)).map_err(io::Error::other),
        }
    };
    let thread = std::thread::Builder::new().name(format!("inlock-queue-{number}")).spawn(run);
    let thread = thread.map_err(UblkError::Worker)?;
    is_ready.recv().map_err(|error| UblkError::Worker(io::Error::other(error)))?.map_err(UblkError::Worker)?;
    Ok((thread, go))
}

/// Channels between the thread of a queue and the one that starts it.
struct Signals {
    ready: mpsc::Sender<io::Result<()>>,
    may_begin: mpsc::Receiver<()>,
}

fn serve(device: Arc<Device>, ring: Ring, queue: Queue, info: &Info, signals: &Signals) -> io::Result<()> {
    let mut worker = Worker::new(device, ring, BufferPool::new(&[]), queue);
    // For each tag an operation of the store and a completion in flight.
    let warm = worker.warm_up(2 * usize::from(info.depth));
    let is_warm = warm.is_ok();
    signals.ready.send(warm).map_err(io::Error::other)?;
    // Dropped without a message: another queue cannot begin.
    if !is_warm || signals.may_begin.recv().is_err() {
        return Ok(());
    }
    worker.run()
}

impl Parameters {
    /// Returns the parameters of a block device on `device`.
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
        // Sequential zones are written in logical blocks.
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
            ZoningError::Log(error) => Self::Log(error),
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> UblkError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted(source),
        _ => UblkError::Driver { what, source },
    }
}

/// Whether a device has a process. Until the driver has noticed its end, the process id tells, which another process
/// may have later.
fn has_process(info: &Info) -> bool {
    let is_alive = |pid: i32| pid > 0 && Path::new("/proc").join(pid.to_string()).exists();
    info.state != State::Quiesced && is_alive(info.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_the_nodes_of_the_driver() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["ublkc0", "ublkc17", "ublkb4", "ublk-control", "ublkc", "ublkcx", "sda"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let mut found = numbers_in(directory.path());
        found.sort_unstable();
        assert_eq!(found, [0, 17]);
        assert_eq!(numbers_in(&directory.path().join("missing")), [0; 0]);
    }
}
