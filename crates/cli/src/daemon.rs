//! A volume's own process in the background: starting it, giving it the key, knowing that it works.
//!
//! [`launch`] starts this program again with the same words and a socket for standard input. The new process opens and locks
//! the device, then asks over the socket for the volume key; the old one asks the user, derives and verifies the key, and hands it
//! over in a pipe. So passphrases and the memory of a key derivation never are in the process that stays. Until it
//! is [`ready`](Launcher::ready) it has the old one's output, and if it ends before, its exit status is the old one's.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use inlock_volume::VolumeKey;
use rustix::mm::{MlockAllFlags, mlockall};
use sd_notify::NotifyState;

use crate::args::{Kind, SourceArgs};
use crate::control::{pipe, socket};
use crate::exit::{Problem, Status, say};
use crate::source;

/// The option by which the process in the background knows what it is.
pub(crate) const LAUNCHED: &str = "--launched";

const KEY_WANTED: u8 = b'k';
const READY: u8 = b'r';

/// Runs this program's own command line in the background, and returns when it works: the status to exit with.
pub(crate) fn launch(source: &SourceArgs) -> anyhow::Result<u8> {
    if let Kind::Table(table) = &source.kind {
        table.check_for_background()?;
    }
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
    // What whoever called happens to have open, a pipe that others wait for the end of, is not to live as long as the volume.
    close_fds::set_fds_cloexec_threadsafe(3, &named(std::env::args_os()));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("inlock").arg(LAUNCHED).args(std::env::args_os().skip(1)).stdin(OwnedFd::from(theirs));
    let mut child = command.spawn().context("cannot start a process in the background")?;
    // It has the only other end; without that, its end would not be seen.
    drop(command);
    match wait_until_ready(&ours, source) {
        Ok(true) => Ok(0),
        Ok(false) => ended(child.wait().context("cannot wait for the process in the background")?),
        Err(error) => {
            // Without the socket it ends by itself, in silence.
            drop(ours);
            give_up(&mut child);
            Err(error)
        }
    }
}

/// Descriptors that the command line names as paths: an image, a table.
fn named(words: impl Iterator<Item = OsString>) -> Vec<RawFd> {
    let number = |word: &str| {
        let rest = ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|dir| Some(word.split_once(dir)?.1))?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    words.filter_map(|word| number(&word.to_string_lossy())).collect()
}

/// `false`: it has ended.
fn wait_until_ready(mut socket: &UnixStream, source: &SourceArgs) -> anyhow::Result<bool> {
    loop {
        let mut word = [0];
        match socket.read(&mut word) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) if word[0] == READY => return Ok(true),
            Ok(1) if word[0] == KEY_WANTED => {
                let key = source::ask_key(source)?;
                let pipe = pipe::filled(key.as_bytes()).context("cannot hand over the key")?;
                // Where this fails it has ended, which the next read tells.
                let _ = socket::send(socket, &[KEY_WANTED], Some(&pipe));
            }
            Ok(_) => return Ok(false),
            // The other end was closed with a word of ours unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("cannot hear from the process in the background"),
        }
    }
}

/// What it said before it ended is on this process's own standard error.
fn ended(status: ExitStatus) -> anyhow::Result<u8> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Err(Problem::refused("The process in the background ended at once.", "--foreground shows why")),
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(1)),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            anyhow::bail!("the process in the background was ended by signal {signal}")
        }
    }
}

/// It sees the end of the socket and ends; one that hangs in a system call is not waited for.
fn give_up(child: &mut Child) {
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
}

/// The way back to the process that started this one.
pub(crate) struct Launcher {
    socket: UnixStream,
}

impl Launcher {
    /// Standard input is the socket to it.
    pub(crate) fn on_stdin() -> anyhow::Result<Self> {
        let input = rustix::stdio::stdin();
        let is_socket =
            rustix::net::sockopt::socket_domain(input).is_ok_and(|domain| domain == rustix::net::AddressFamily::UNIX);
        if !is_socket {
            return Err(Problem::usage(format!("Option {LAUNCHED} is for Inlock itself.")));
        }
        let socket = rustix::io::fcntl_dupfd_cloexec(input, 3).context("cannot use standard input")?;
        Ok(Self { socket: socket.into() })
    }

    /// The volume key, as the user's passphrase or key file gave it there.
    pub(crate) fn key(&self) -> anyhow::Result<VolumeKey> {
        (&self.socket).write_all(&[KEY_WANTED]).map_err(|_| gone())?;
        loop {
            match socket::receive(&self.socket, &mut [0]) {
                Ok((1, Some(pipe))) => return pipe::read_key(&pipe).context("cannot take the key"),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(gone()),
            }
        }
    }

    /// Says that everything works, and leaves terminal, session and directory. What is said from here on goes to `log`.
    pub(crate) fn ready(self, log: &Path) -> anyhow::Result<()> {
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let log = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(log);
        let log = log.context("cannot write a log")?;
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        // It fails for the leader of a group, which has no terminal to lose then: it was started by a service manager.
        let _ = rustix::process::setsid();
        rustix::process::chdir("/").context("cannot leave the directory")?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(log.as_fd())?;
        rustix::stdio::dup2_stderr(log.as_fd())?;
        (&self.socket).write_all(&[READY]).map_err(|_| gone())
    }
}

/// The other process has ended, and has told the user why.
fn gone() -> anyhow::Error {
    Problem::Silent(Status::Wrong).into()
}

/// Tells the service manager, if one wants to know, that the volume can be used.
pub(crate) fn notify_ready(status: &str) {
    let pid = NotifyState::MainPid(std::process::id());
    // Nobody asked, or nobody listens: neither is a reason not to serve.
    let _ = sd_notify::notify(&[pid, NotifyState::Status(status), NotifyState::Ready]);
}

/// Tells the service manager that the process is ending.
pub(crate) fn notify_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

/// For a process behind a block device, which the kernel may wait for when it frees memory: it is not to be killed for
/// memory, not to be swapped out, and its allocations are not to wait for devices. After the key is derived, whose
/// memory, a gigabyte and more, is neither to be locked nor out of the OOM killer's reach; before threads are started,
/// since they inherit it. Needs root; without, the device works as long as there is memory.
pub(crate) fn protect() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let say = |what: &str, error: io::Error| {
        // In a container root may not have the right to it, and cannot get it.
        if error.kind() != io::ErrorKind::PermissionDenied {
            say(&format!("inlock: warning: {what}: {error}"));
        }
    };
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        say("this process may be killed where memory runs out", error);
    }
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        say("memory for this process may have to wait for its own device", error.into());
    }
    // Not on the first fault, which may come when there is none left: program text that was never used may lie in a file
    // that was itself swapped out to this device, and a stack grows where a rare branch is taken.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        say("this process may be swapped out", error.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_found_in_words() {
        let words =
            ["open", "/dev/fd/7", "--table=/proc/self/fd/12", "/dev/fdx", "/dev/fd/", "/dev/fd/99999999999", "8"];
        assert_eq!(named(words.into_iter().map(OsString::from)), [7, 12]);
    }
}
