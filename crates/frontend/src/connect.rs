//! Unix sockets: listening for the owner alone, and connecting within a time limit. The one place that does it.
//!
//! connect(2) waits without end for a process that is stopped or hangs, once its queue of clients is full.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Time limit of callers without an option for it.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time after which a person is told what a program waits for, unless the limit is short.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Returns the time after which a wait of at most `limit` is reported.
pub fn report_after(limit: Duration) -> Duration {
    REPORT_AFTER.min(limit / 3)
}

/// Connects to a socket with a path of any length. Blocks for at most `limit`, and calls `waiting` once if it takes
/// long.
///
/// # Errors
///
/// `TimedOut` if a process listens and its queue is full all the time; otherwise those of connect(2), of which
/// `ConnectionRefused` means that no process listens.
pub fn unix(path: &Path, limit: Duration, waiting: impl FnOnce()) -> io::Result<UnixStream> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let (short, _dir) = short_path(dir, path)?;
    if fits(&short) {
        return connect(&short, limit, waiting);
    }
    // The file name alone may be too long; the descriptor of the socket has a short path.
    let socket = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    connect(&name_of(&socket), limit, waiting)
}

/// Creates a socket at `path`, of at most 107 bytes, and listens. Only its owner has access, from before the first
/// client can connect: clients read plaintext, or control the process.
///
/// # Errors
///
/// Fails as the system calls do. A path that this created is removed.
pub fn listen(path: &Path, backlog: i32) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &address)?;
    let made = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| Ok(rustix::net::listen(&socket, backlog)?));
    if let Err(error) = made {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket.into())
}

/// Whether a process listens at the path, also one that takes no client now. Does not wait.
pub fn is_listening(path: &Path) -> bool {
    // An error that says nothing about a listener counts as one: its path stays as it is.
    !unix(path, Duration::ZERO, || {}).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn connect(path: &Path, limit: Duration, waiting: impl FnOnce()) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    let started = Instant::now();
    match attempt(&socket, &address, started + report_after(limit)) {
        Err(Errno::AGAIN) if !limit.is_zero() => {
            waiting();
            attempt(&socket, &address, started + limit)
        }
        ended => ended,
    }
    .map_err(|error| if error == Errno::AGAIN { io::ErrorKind::TimedOut.into() } else { io::Error::from(error) })?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(socket.into())
}

/// Connects once, and waits for a full queue until `deadline`.
fn attempt(socket: &OwnedFd, address: &SocketAddrUnix, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The kernel takes no time for endless time.
        rustix::io::ioctl_fionbio(socket, left.is_zero())?;
        if !left.is_zero() {
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(left.max(Duration::from_millis(1))))?;
        }
        match rustix::net::connect(socket, address) {
            Err(Errno::INTR) => {}
            ended => return ended,
        }
    }
}

/// Returns `path`, or if it is too long for a socket, a path through a descriptor of its directory.
///
/// # Errors
///
/// The directory cannot be opened, or the path ends in no name.
pub fn short_path(dir: &Path, path: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    if fits(path) {
        return Ok((path.to_owned(), None));
    }
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = name_of(&dir).join(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    Ok((short, Some(dir)))
}

/// Whether sockaddr_un has room for the path: 108 bytes with the terminating zero.
fn fits(path: &Path) -> bool {
    path.as_os_str().len() <= 107
}

fn name_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Fills the queue of a listener that accepts nothing; returns the clients in it.
    fn fill(path: &Path) -> Vec<UnixStream> {
        std::iter::from_fn(|| unix(path, Duration::ZERO, || panic!("nothing is waited for")).ok()).collect()
    }

    #[test]
    fn path_of_107_bytes_is_used_as_it_is() {
        let path = |len: usize| PathBuf::from(format!("/{}", "s".repeat(len - 1)));
        let (short, dir) = short_path(Path::new("/"), &path(107)).unwrap();
        assert_eq!((short, dir.is_none()), (path(107), true));
        let (short, dir) = short_path(Path::new("/"), &path(108)).unwrap();
        assert!(short.starts_with("/proc/self/fd") && dir.is_some());
    }

    #[test]
    fn full_queue_ends_in_time_and_a_free_place_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let clients = fill(&path);
        assert!(!clients.is_empty() && is_listening(&path));
        let (told, limit, begun) = (Cell::new(0), Duration::from_millis(60), Instant::now());
        let ended = unix(&path, limit, || told.set(told.get() + 1));
        assert_eq!((ended.unwrap_err().kind(), told.get()), (io::ErrorKind::TimedOut, 1));
        assert!(begun.elapsed() >= limit);
        std::thread::scope(|scope| {
            // The wait is reported, and only then a place becomes free.
            let (waits, is_told) = std::sync::mpsc::channel();
            let path = &path;
            let client = scope.spawn(move || unix(path, Duration::from_secs(300), || waits.send(()).unwrap()));
            is_told.recv().unwrap();
            drop(listener.accept().unwrap());
            // Later calls wait as long as it takes.
            for client in [&client.join().unwrap().unwrap(), &clients[0]] {
                assert_eq!(client.write_timeout().unwrap(), None);
                assert!(!rustix::fs::fcntl_getfl(client).unwrap().contains(OFlags::NONBLOCK));
            }
        });
        drop(listener);
        assert!(!is_listening(&path));
        let refused = unix(&path, Duration::from_secs(60), || panic!("nothing is waited for"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
