//! Sockets of the family AF_ALG.
//!
//! A socket that is bound to an algorithm has the key; sockets accepted from it carry out operations, one at a time,
//! with an IV of their own. An operation is a message with IV, direction and data, and a read of the result. `pipeline`
//! has operations on several sockets in flight; without io_uring they are system calls on one socket.

use crate::api::{CryptoApi, Session, Transform};
use crate::error::AfAlgError;
use crate::pipeline::Pipeline;
use inlock_engine::Direction;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, AlgAddr, ControlMessage, MsgFlags, SockFlag, SockType, bind, sendmsg, setsockopt, socket, sockopt,
};
use rustix::net::SocketFlags;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Length of the kernel's field for a name, which a zero ends.
const NAME_LEN: usize = 64;

/// The crypto API of the running kernel.
pub(crate) struct Sockets;

impl Sockets {
    /// Checks that the kernel has the family.
    pub(crate) fn new() -> Result<Self, AfAlgError> {
        unbound().map(|_| Self)
    }
}

fn unbound() -> Result<OwnedFd, AfAlgError> {
    socket(AddressFamily::Alg, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(|errno| match errno {
        Errno::EAFNOSUPPORT => AfAlgError::NoSockets,
        errno => AfAlgError::System { action: "make an AF_ALG socket", source: errno.into() },
    })
}

impl CryptoApi for Sockets {
    fn open(&self, algorithm: &str, key: &[u8]) -> Result<Box<dyn Transform>, AfAlgError> {
        let bound = unbound()?;
        if algorithm.len() >= NAME_LEN {
            return Err(AfAlgError::Algorithm(algorithm.to_owned()));
        }
        bind(bound.as_raw_fd(), &AlgAddr::new("skcipher", algorithm)).map_err(|errno| match errno {
            Errno::ENOENT => AfAlgError::Algorithm(algorithm.to_owned()),
            errno => AfAlgError::System { action: "use the kernel's algorithm", source: errno.into() },
        })?;
        setsockopt(&bound, sockopt::AlgSetKey::default(), &key).map_err(|errno| match errno {
            Errno::EINVAL => AfAlgError::Key { algorithm: algorithm.to_owned(), bits: key.len() * 8 },
            errno => AfAlgError::System { action: "give the key to the kernel", source: errno.into() },
        })?;
        Ok(Box::new(Bound(bound)))
    }
}

/// A socket with algorithm and key.
struct Bound(OwnedFd);

impl Transform for Bound {
    fn session(&self) -> io::Result<Box<dyn Session>> {
        // Without io_uring each operation is two system calls.
        if let Ok(pipeline) = Pipeline::new(self.0.as_fd()) {
            return Ok(Box::new(pipeline));
        }
        let operations = rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC)?;
        Ok(Box::new(Operations::new(operations)))
    }
}

/// A socket for operations.
pub(crate) struct Operations {
    socket: OwnedFd,
    /// Result of an operation: a failed one may have written a part of it.
    result: Vec<u8>,
}

impl Operations {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, result: Vec::new() }
    }

    fn process_unit(&mut self, direction: Direction, iv: &[u8; 16], unit: &mut [u8]) -> io::Result<()> {
        let operation = match direction {
            Direction::Encrypt => libc::ALG_OP_ENCRYPT,
            Direction::Decrypt => libc::ALG_OP_DECRYPT,
        };
        let control = [ControlMessage::AlgSetOp(&operation), ControlMessage::AlgSetIv(iv)];
        let sent = sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(unit)], &control, MsgFlags::empty(), None)?;
        let result = &mut self.result[..unit.len()];
        if sent != unit.len() || rustix::io::read(&self.socket, &mut *result)? != unit.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        unit.copy_from_slice(result);
        Ok(())
    }
}

impl Session for Operations {
    fn process(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &mut [u8]) -> usize {
        let unit = data.len() / ivs.len().max(1);
        self.result.resize(unit.max(self.result.len()), 0);
        let mut units = ivs.iter().zip(data.chunks_exact_mut(unit.max(1)));
        let failed = units.position(|(iv, unit)| self.process_unit(direction, iv, unit).is_err());
        failed.unwrap_or(ivs.len())
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        // A decrypted unit.
        zeroize::Zeroize::zeroize(&mut self.result);
    }
}
