//! A connected socket, with TLS or without: the server's side of a client, and the store's side of a server.
//!
//! No call waits. What rustls keeps is bounded: no more than a few records of either direction.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::Connection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that are encrypted before the socket has taken them: one record more may follow.
const UNSENT: usize = 256 << 10;
/// Bytes received with one call.
const RECEIVED: usize = 64 << 10;

/// A connected socket, with TLS or without. No call waits.
pub struct Link {
    socket: Arc<OwnedFd>,
    session: Option<Box<Session>>,
}

/// State of TLS, with bounded buffers: rustls takes no more than a few records.
struct Session {
    connection: Connection,
    received: Box<[u8]>,
    /// Ciphertext in `received` that rustls has not taken.
    rest: std::ops::Range<usize>,
    /// Plaintext that rustls has.
    plaintext: usize,
    /// Whether the peer has said that nothing follows that plaintext.
    has_ended: bool,
}

impl Link {
    /// Takes a socket, and what encrypts it, whose handshake may be done.
    pub fn new(socket: impl Into<Arc<OwnedFd>>, connection: Option<Connection>) -> Self {
        Self { socket: socket.into(), session: connection.map(Session::new) }
    }

    /// Goes over to TLS, whose handshake follows. What the socket has received is part of it.
    pub fn start_tls(&mut self, connection: Connection) {
        self.session = Some(Session::new(connection));
    }

    /// Returns the socket, unless this is TLS, or another has the socket too.
    ///
    /// # Errors
    /// It is TLS, or shared, and returned as it is.
    pub fn into_plain(self) -> Result<OwnedFd, Self> {
        if self.session.is_some() {
            return Err(self);
        }
        Arc::try_unwrap(self.socket).map_err(|socket| Self { socket, session: None })
    }

    /// Takes the handshake of TLS further, and returns whether it is done and sent.
    ///
    /// # Errors
    /// `EPROTO`: the peer does no TLS, or is not accepted. Others: the connection has ended.
    pub fn continue_handshake(&mut self) -> Result<bool, Errno> {
        self.flush()?;
        let Some(session) = self.session.as_mut().filter(|session| session.connection.is_handshaking()) else {
            return Ok(!self.has_unsent());
        };
        if matches!(session.fill(&self.socket, true)?, Filled::End) {
            return Err(Errno::CONNRESET);
        }
        let is_done = !session.connection.is_handshaking();
        self.flush()?;
        Ok(is_done && !self.has_unsent())
    }

    /// Announces the end of what is sent, as far as the socket takes it now.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn announce_end(&mut self) -> Result<(), Errno> {
        if let Some(session) = &mut self.session {
            session.connection.send_close_notify();
        }
        self.flush()
    }

    /// Returns the socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub fn has_unsent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.connection.wants_write())
    }

    /// Sends what was encrypted, as far as the socket takes it now.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn flush(&mut self) -> Result<(), Errno> {
        let Some(session) = &mut self.session else { return Ok(()) };
        while session.connection.wants_write() {
            match session.connection.write_tls(&mut Raw(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Ok(())
    }

    /// Sends from `parts`. With TLS, bytes count once they are encrypted. `None`: nothing can be sent now.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
        self.flush()?;
        let Some(session) = &mut self.session else { return send(&self.socket, parts) };
        if session.connection.wants_write() {
            return Ok(None);
        }
        let sent = session.connection.writer().write_vectored(parts).map_err(|_| Errno::IO)?;
        self.flush()?;
        Ok(Some(sent))
    }

    /// Receives into `parts`, from the socket only if `from_socket`, and once. `None`: nothing has arrived that is for
    /// `parts`. No bytes: the end of the connection.
    ///
    /// # Errors
    /// `EPROTO`: what has arrived is no TLS. Others: the connection has ended.
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>], from_socket: bool) -> Result<Option<usize>, Errno> {
        match &mut self.session {
            Some(session) => session.receive(&self.socket, parts, from_socket),
            None if from_socket => receive(&self.socket, parts),
            None => Ok(None),
        }
    }
}

/// Result of looking for plaintext.
enum Filled {
    /// rustls has some.
    Plaintext,
    /// There is none yet.
    Nothing,
    /// There will be no more.
    End,
}

impl Session {
    fn new(mut connection: Connection) -> Box<Self> {
        connection.set_buffer_limit(Some(UNSENT));
        // Behind the handshake, more may have arrived. An error comes back with what is received next.
        let state = connection.process_new_packets();
        let (plaintext, has_ended) =
            state.map_or((0, false), |state| (state.plaintext_bytes_to_read(), state.peer_has_closed()));
        Box::new(Self { connection, received: vec![0; RECEIVED].into(), rest: 0..0, plaintext, has_ended })
    }

    /// Decrypts until there is plaintext, with at most one call of the socket, and only if `from_socket`.
    fn fill(&mut self, socket: &OwnedFd, from_socket: bool) -> Result<Filled, Errno> {
        let mut may_receive = from_socket;
        while self.plaintext == 0 {
            // That may have come with the last plaintext, and the socket tells nothing more.
            if self.has_ended {
                return Ok(Filled::End);
            }
            if self.rest.is_empty() {
                // Records without content would never end.
                if !std::mem::take(&mut may_receive) {
                    return Ok(Filled::Nothing);
                }
                match receive(socket, &mut [IoSliceMut::new(&mut self.received)])? {
                    None => return Ok(Filled::Nothing),
                    // Without a close_notify before, it is the end all the same: requests and replies have lengths.
                    Some(0) => return Ok(Filled::End),
                    Some(len) => self.rest = 0..len,
                }
            }
            let Ok(taken) = self.connection.read_tls(&mut &self.received[self.rest.clone()]) else {
                return Err(Errno::PROTO);
            };
            self.rest.start += taken;
            let Ok(state) = self.connection.process_new_packets() else {
                // The alert says why.
                let _ = self.connection.write_tls(&mut Raw(socket));
                return Err(Errno::PROTO);
            };
            self.plaintext = state.plaintext_bytes_to_read();
            self.has_ended = state.peer_has_closed();
        }
        Ok(Filled::Plaintext)
    }

    fn receive(
        &mut self,
        socket: &OwnedFd,
        parts: &mut [IoSliceMut<'_>],
        from_socket: bool,
    ) -> Result<Option<usize>, Errno> {
        match self.fill(socket, from_socket)? {
            Filled::Nothing => return Ok(None),
            Filled::End => return Ok(Some(0)),
            Filled::Plaintext => {}
        }
        let mut total = 0;
        for part in parts {
            let mut part = &mut part[..];
            while !part.is_empty() && self.plaintext > 0 {
                let Ok(len @ 1..) = self.connection.reader().read(part) else { return Err(Errno::PROTO) };
                self.plaintext = self.plaintext.saturating_sub(len);
                total += len;
                part = &mut part[len..];
            }
        }
        Ok(Some(total))
    }
}

/// Sends from `parts`. `None`: nothing can be sent now.
///
/// # Errors
/// The connection has ended.
pub fn send(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
        Ok(sent) => Ok(Some(sent)),
        Err(Errno::AGAIN) => Ok(None),
        Err(Errno::INTR) => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

/// Receives into `parts`. `None`: nothing has arrived. No bytes: the end of the connection.
///
/// # Errors
/// The connection has ended.
pub fn receive(socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Errno> {
    loop {
        match rustix::net::recvmsg(socket, parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
            Ok(received) => return Ok(Some(received.bytes)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The socket as rustls writes to it.
struct Raw<'a>(&'a OwnedFd);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0, parts)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
