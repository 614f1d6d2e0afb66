//! The background process of a volume: starting it, passing it the key, waiting until it is ready.
//!
//! [`launch`] starts this program again with the same arguments and a socket as standard input. The child opens and
//! locks the device, then requests the volume key over the socket; the parent asks the user, derives and verifies the
//! key, and passes it in a pipe. So the process that stays never has a passphrase or the memory of a key derivation.
//! Until it is [`ready`](Launcher::ready) the child has the parent's output; if it exits before, the parent exits with
//! its status.

use crate::host::library_error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use inlock_volume::VolumeKey;
use rustix::mm::{MlockAllFlags, mlockall};
use sd_notify::NotifyState;

use crate::error::{CliError, Status};
use crate::host::context;
use crate::ui::log_file::LogFile;
use crate::ui::print::warn;
use inlock_open::keyring::LinkedKeys;
use inlock_open::open::{KeyProvider, ask_key};
use inlock_open::source::{OpenOptions, VolumeType};
use inlock_serve::{pipe, socket};

/// Hidden option of the background process.
const LAUNCHED: &str = "--launched";

const KEY_WANTED: u8 = b'k';
const READY: u8 = b'r';

/// Which process serves or attaches a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// This process.
    Foreground,
    /// A child that this process starts.
    Background,
    /// This process, which is that child.
    BackgroundChild,
}

/// Runs this command line in the background. Blocks until the child is ready or has exited, and returns the exit
/// status. Links the volume key as `source` says.
pub(crate) fn launch(source: &OpenOptions) -> anyhow::Result<u8> {
    if let VolumeType::Table(table) = &source.volume_type {
        table.check_for_background()?;
    }
    let (ours, theirs) = UnixStream::pair().context("cannot create a socket")?;
    // The child must not keep inherited descriptors open, such as a pipe that another process reads to its end.
    close_fds::set_fds_cloexec_threadsafe(3, &named(std::env::args_os()));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("inlock").arg(LAUNCHED).args(std::env::args_os().skip(1)).stdin(OwnedFd::from(theirs));
    let mut child = command.spawn().context("cannot start the background process")?;
    // Closes this copy of the child's socket, so that its exit is seen.
    drop(command);
    match wait_until_ready(&ours, source) {
        Ok(true) => Ok(0),
        Ok(false) => exited(child.wait().context("cannot wait for the background process")?),
        Err(error) => {
            // Without its socket the child exits silently.
            drop(ours);
            give_up(&mut child);
            Err(error)
        }
    }
}

/// Returns the descriptors that arguments name as paths, such as an image or a table.
fn named(words: impl Iterator<Item = OsString>) -> Vec<RawFd> {
    let number = |word: &str| {
        let rest = ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|dir| Some(word.split_once(dir)?.1))?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    words.filter_map(|word| number(&word.to_string_lossy())).collect()
}

/// Returns whether the child is ready; `false`: it has exited.
fn wait_until_ready(mut socket: &UnixStream, source: &OpenOptions) -> anyhow::Result<bool> {
    let mut linked = LinkedKeys::default();
    loop {
        let mut word = [0];
        match socket.read(&mut word) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) if word[0] == READY => {
                linked.keep();
                return Ok(true);
            }
            Ok(1) if word[0] == KEY_WANTED => {
                let key = ask_key(context(), source)?;
                linked = LinkedKeys::link(&source.links, &key)?;
                let pipe = pipe::filled(key.as_bytes()).context("cannot pass the key")?;
                // If this fails, the child has exited, and the next read returns that.
                let _ = socket::send(socket, &[KEY_WANTED], Some(&pipe));
            }
            Ok(_) => return Ok(false),
            // The child has closed its end with data unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("cannot read from the background process"),
        }
    }
}

/// Returns the status of the child, which has printed its errors to the same standard error.
fn exited(status: ExitStatus) -> anyhow::Result<u8> {
    match (status.code(), status.signal()) {
        (Some(0), _) => {
            Err(CliError::refused("The background process exited during startup.", "use --foreground to see why"))
        }
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(1)),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            anyhow::bail!("The background process was killed by signal {signal}.")
        }
    }
}

/// Waits shortly for the child, which exits when the socket is closed, and kills it if it hangs in a system call.
fn give_up(child: &mut Child) {
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
}

/// The parent of this background process.
pub(crate) struct Launcher {
    socket: UnixStream,
}

impl Launcher {
    /// Takes the socket to the parent from standard input.
    pub(crate) fn on_stdin() -> anyhow::Result<Self> {
        let input = rustix::stdio::stdin();
        let is_socket =
            rustix::net::sockopt::socket_domain(input).is_ok_and(|domain| domain == rustix::net::AddressFamily::UNIX);
        if !is_socket {
            return Err(CliError::usage(format!("Option {LAUNCHED} is internal.")));
        }
        // Otherwise its name is that of /proc/self/exe, `exe`. Without the name it works as well.
        let _ = rustix::thread::set_name(c"inlock");
        let socket = rustix::io::fcntl_dupfd_cloexec(input, 3).context("cannot use standard input")?;
        Ok(Self { socket: socket.into() })
    }

    /// Reports to the parent, and leaves its terminal, session and directory. Later messages go to `log`.
    pub(crate) fn ready(self, log: LogFile) -> anyhow::Result<()> {
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        // It fails for a process group leader, which a service manager has started without a terminal.
        let _ = rustix::process::setsid();
        rustix::process::chdir("/").context("cannot change to /")?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        log.redirect().context("cannot write the log")?;
        (&self.socket).write_all(&[READY]).map_err(|_| gone())
    }
}

impl KeyProvider for Launcher {
    /// Requests the key of the user's passphrase or key file from the parent.
    fn key(&self) -> inlock_open::Result<VolumeKey> {
        let gone = || library_error(gone());
        (&self.socket).write_all(&[KEY_WANTED]).map_err(|_| gone())?;
        loop {
            match socket::receive(&self.socket, &mut [0]) {
                Ok((1, Some(pipe))) => {
                    let key = pipe::read_key(&pipe).context("cannot receive the key");
                    return key.map_err(library_error);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(gone()),
            }
        }
    }
}

/// Returns the error of a parent that has exited, after printing its own error.
fn gone() -> anyhow::Error {
    CliError::Silent(Status::Wrong).into()
}

/// Notifies the service manager, if there is one, that the volume is ready.
pub(crate) fn notify_ready(status: &str) {
    let pid = NotifyState::MainPid(std::process::id());
    // Without a service manager it fails.
    let _ = sd_notify::notify(&[pid, NotifyState::Status(status), NotifyState::Ready]);
}

/// Notifies the service manager that the process is stopping.
pub(crate) fn notify_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

/// Protects the process of a block device, which the kernel may need to reclaim memory: from the OOM killer, from being
/// swapped out, and from allocations that wait for devices. Call it after the key is derived, since the gigabytes of a
/// derivation must not be locked or exempt from the OOM killer, and before threads are started, which inherit it. Needs
/// root; without it, the device works as long as there is memory.
pub(crate) fn protect() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let warn_of = |what: &str, error: io::Error| {
        // In a container root may lack the capability.
        if error.kind() != io::ErrorKind::PermissionDenied {
            warn(format_args!("{what}: {error}"));
        }
    };
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        warn_of("cannot exempt this process from the OOM killer", error);
    }
    // Now, not on the first fault, when no memory may be left: unused program text may be in a file that was swapped
    // out to this device, and a stack grows in rare branches.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        warn_of("cannot lock this process in memory", error.into());
    }
}

/// Lets no allocation of this thread, and of those that it starts, wait for writes to the own device. Needs root.
pub(crate) fn protect_io() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true)
        && error != rustix::io::Errno::PERM
    {
        warn(format_args!("allocations of this process may wait for its own device: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_is_found_in_argument() {
        let words =
            ["open", "/dev/fd/7", "--table=/proc/self/fd/12", "/dev/fdx", "/dev/fd/", "/dev/fd/99999999999", "8"];
        assert_eq!(named(words.into_iter().map(OsString::from)), [7, 12]);
    }
}
