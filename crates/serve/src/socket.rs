//! Unix sockets for lines, each with at most one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use inlock_frontend::connect;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Listens at `path`, which only its owner can use. Creates or replaces the path when clients can connect.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Under a short name first: the path of a socket has at most 107 bytes.
    let new = dir.join(format!("~{}", std::process::id()));
    let (short, _dir) = connect::short_path(dir, &new)?;
    let _ = std::fs::remove_file(&new);
    let socket = connect::listen(&short, 64)?;
    if let Err(error) = socket.set_nonblocking(true).and_then(|()| std::fs::rename(&new, path)) {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    Ok(socket)
}

/// Sends `line`, which ends in a newline, with `fd`.
pub fn send(socket: &UnixStream, line: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
    let mut rest = line;
    let mut fd = fd.map(AsFd::as_fd);
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                rest = &rest[sent..];
                fd = None;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives some bytes, and the descriptor that came with them.
pub fn receive(socket: impl AsFd, room: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags)?;
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            fd = fds.last();
        }
    }
    Ok((message.bytes, fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn line_and_descriptor_arrive_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pipe = crate::pipe::filled(b"through").unwrap();
        send(&ours, b"{}\n", Some(&pipe)).unwrap();
        send(&ours, b"[]\n", None).unwrap();
        drop((ours, pipe));
        let mut room = [0; 100];
        let (len, fd) = receive(&theirs, &mut room[..3]).unwrap();
        assert_eq!(&room[..len], b"{}\n");
        let mut text = String::new();
        std::fs::File::from(fd.expect("a descriptor")).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (len, fd) = receive(&theirs, &mut room).unwrap();
        assert_eq!((&room[..len], fd.is_none()), (&b"[]\n"[..], true));
        assert_eq!(receive(&theirs, &mut room).unwrap().0, 0);
    }

    #[test]
    fn path_longer_than_address_connects() {
        let dir = tempfile::tempdir().unwrap();
        for len in [5, 127] {
            let deep = dir.path().join("d".repeat(len));
            std::fs::create_dir(&deep).unwrap();
            let path = deep.join(format!("{}.sock", "n".repeat(len)));
            let listener = listen(&path).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let client = connect::unix(&path, connect::TIME_LIMIT, || {}).unwrap();
            listener.set_nonblocking(false).unwrap();
            let (server, _) = listener.accept().unwrap();
            send(&server, b"hello\n", None).unwrap();
            assert_eq!(receive(&client, &mut [0; 64]).unwrap().0, 6);
            assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 1, "the short name stays");
        }
    }
}
