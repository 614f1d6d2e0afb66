//! Generic netlink, as far as the kernel's NBD driver needs it: one request, its acknowledgement, its attributes.
//!
//! Pure functions make and read messages; [`Socket`] sends one and reads what the kernel answers. Source: `netlink(7)`
//! and `include/uapi/linux/{netlink,genetlink}.h` of Linux. Numbers are in the machine's own order.

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;

const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Message flags: it asks, and it wants to be acknowledged.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// An attribute that holds attributes.
const NESTED: u16 = 1 << 15;
/// The type of an acknowledgement, with an error number.
const ERROR: u16 = 2;
/// The family that knows the others, its command and its attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Attributes, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    /// Appends an attribute.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (4 + value.len()) as u16;
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute that holds others.
    pub(super) fn with_nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind | NESTED, &inner.0)
    }
}

/// Returns the value of the first attribute of a kind.
pub(super) fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [l0, l1, k0, k1, ..] = *attributes {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

fn message(kind: u16, command: u8, version: u8, attributes: &Attributes) -> Vec<u8> {
    let len = (HEADER + GENERIC_HEADER + attributes.0.len()) as u32;
    let mut bytes = Vec::with_capacity(len as usize);
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(REQUEST | ACK).to_ne_bytes());
    // Number of the message, and of the sender, which the kernel knows: only one message is in flight.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[command, version, 0, 0]);
    bytes.extend_from_slice(&attributes.0);
    bytes
}

/// Content of datagrams from the kernel: attributes of an answer, and the acknowledgement.
#[derive(Default)]
pub(super) struct Answer {
    pub attributes: Option<Vec<u8>>,
    pub acknowledged: Option<Result<(), Errno>>,
}

/// Parses a datagram into `answer`. A broken or truncated message is an error.
pub(super) fn read_answer(mut datagram: &[u8], answer: &mut Answer) -> io::Result<()> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "a netlink message is broken");
    while datagram.len() >= HEADER {
        let word = |at: usize| u16::from_ne_bytes([datagram[at], datagram[at + 1]]);
        let len = u32::from_ne_bytes([datagram[0], datagram[1], datagram[2], datagram[3]]) as usize;
        let body = datagram.get(HEADER..len).ok_or_else(broken)?;
        if word(4) == ERROR {
            let number = body.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(broken)?;
            answer.acknowledged = Some(match i32::from_ne_bytes(number) {
                0 => Ok(()),
                number @ -4095..0 => Err(Errno::from_raw_os_error(-number)),
                // The kernel has no other error numbers.
                _ => return Err(broken()),
            });
        } else {
            answer.attributes = Some(body.get(GENERIC_HEADER..).ok_or_else(broken)?.to_vec());
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

/// Socket to a generic netlink family.
pub(super) struct Socket {
    socket: OwnedFd,
    family: u16,
}

impl Socket {
    /// Opens a socket to the family of this name; `NotFound` if the kernel has no such family.
    pub(super) fn open(family: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::GENERIC);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let mut opened = Self { socket, family: CONTROL };
        let name = [family.as_bytes(), &[0]].concat();
        let asked = Attributes::default().with(FAMILY_NAME, &name);
        let found = opened.request(GET_FAMILY, 1, &asked)?;
        let id = find(&found, FAMILY_ID).and_then(|id| id.try_into().ok());
        opened.family = u16::from_ne_bytes(id.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?);
        Ok(opened)
    }

    /// Sends a command to the family and returns the attributes of its answer. Blocks.
    pub(super) fn request(&mut self, command: u8, version: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        let bytes = message(self.family, command, version, attributes);
        rustix::net::sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut room = vec![0; 16 << 10];
        let mut answer = Answer::default();
        loop {
            let receive = || rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty());
            let (len, _) = rustix::io::retry_on_intr(receive)?;
            read_answer(&room[..len], &mut answer)?;
            if let Some(acknowledged) = answer.acknowledged {
                acknowledged?;
                return Ok(answer.attributes.unwrap_or_default());
            }
        }
    }
}

/// Returns the number in the first attribute of a kind.
pub(super) fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    find(attributes, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found() {
        let inner = Attributes::default().with(1, &7u32.to_ne_bytes());
        let all = Attributes::default().with(5, b"abc\0\0").with_nested(7, &inner).with(9, &3u32.to_ne_bytes());
        assert_eq!(all.0.len(), 12 + 12 + 8);
        assert_eq!(find(&all.0, 5), Some(&b"abc\0\0"[..]));
        assert_eq!(number(find(&all.0, 7).unwrap(), 1), Some(7));
        assert_eq!(number(&all.0, 9), Some(3));
        assert_eq!(number(&all.0, 5), None);
        assert_eq!(find(&all.0, 8), None);
        for broken in [&[0, 0, 5, 0][..], &[3, 0, 5, 0], &[255, 255, 5, 0, 1], &[4, 0, 1]] {
            assert_eq!(find(broken, 5), None, "{broken:?}");
        }
    }

    #[test]
    fn reply_has_attributes_and_an_acknowledgement() {
        let mut bytes = message(33, 1, 1, &Attributes::default().with(1, &4u32.to_ne_bytes()));
        let mut ack = message(ERROR, 0, 0, &Attributes::default());
        ack[HEADER..].copy_from_slice(&(-16i32).to_ne_bytes());
        bytes.extend_from_slice(&ack);
        let mut answer = Answer::default();
        read_answer(&bytes, &mut answer).unwrap();
        assert_eq!(number(&answer.attributes.unwrap(), 1), Some(4));
        assert_eq!(answer.acknowledged, Some(Err(Errno::BUSY)));
        // A family whose number has the low byte of an acknowledgement.
        let mut answer = Answer::default();
        read_answer(&message(0x100 | ERROR, 1, 1, &Attributes::default()), &mut answer).unwrap();
        assert_eq!((answer.attributes, answer.acknowledged), (Some(Vec::new()), None));
        for len in [HEADER, HEADER + 3] {
            let mut cut = ack[..len].to_vec();
            cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            assert!(read_answer(&cut, &mut Answer::default()).is_err());
        }
        assert!(read_answer(&ack[..HEADER], &mut Answer::default()).is_err());
        for number in [1, -4096, i32::MIN] {
            ack[HEADER..HEADER + 4].copy_from_slice(&number.to_ne_bytes());
            assert!(read_answer(&ack, &mut Answer::default()).is_err(), "{number} is no error number");
        }
    }

    #[test]
    fn kernel_knows_its_own_families() {
        let mut socket = match Socket::open("nlctrl") {
            Ok(socket) => socket,
            // A sandbox may have no netlink at all. Where there is netlink, this family exists.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                println!("SKIPPED: netlink is not allowed here");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(socket.family, CONTROL);
        assert!(socket.request(255, 1, &Attributes::default()).is_err());
        // More than the socket sends: there is no answer to wait for.
        assert!(socket.request(255, 1, &Attributes(vec![0; 16 << 20])).is_err());
        assert_eq!(Socket::open("no such family").err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
    }
}
