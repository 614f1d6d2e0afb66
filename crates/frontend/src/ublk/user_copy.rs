//! Data of requests, if the driver does not copy it: read from and written to the device's character device.
//!
//! These are system calls of the queue's thread that only copy; they do not block.
//! Source: `UBLK_F_USER_COPY` and `UBLKSRV_IO_BUF_OFFSET` of `include/uapi/linux/ublk_cmd.h`.

use inlock_engine::Errno;
use std::io;
use std::os::fd::OwnedFd;

/// Access to the data of the requests of one queue.
pub(super) struct UserCopy {
    character_device: OwnedFd,
    queue: u16,
}

impl UserCopy {
    /// Access to the requests of the queue with this number.
    pub(super) fn new(character_device: OwnedFd, queue: u16) -> Self {
        Self { character_device, queue }
    }

    /// Reads the data of the write with this tag.
    pub(super) fn fetch(&self, tag: u16, into: &mut [u8]) -> Result<(), Errno> {
        let start = position(self.queue, tag);
        whole(into.len(), |at| {
            let read = rustix::io::pread(&self.character_device, &mut into[at..], start + at as u64);
            read.map_err(|error| io::Error::from(error).into())
        })
    }

    /// Writes the data of the read with this tag.
    pub(super) fn hand_over(&self, tag: u16, from: &[u8]) -> Result<(), Errno> {
        let start = position(self.queue, tag);
        whole(from.len(), |at| {
            let written = rustix::io::pwrite(&self.character_device, &from[at..], start + at as u64);
            written.map_err(|error| io::Error::from(error).into())
        })
    }
}

/// Returns the offset of a request's data in the character device.
fn position(queue: u16, tag: u16) -> u64 {
    (1 << 31) + (u64::from(queue) << 41) + (u64::from(tag) << 25)
}

fn whole(len: usize, mut step: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(more) => done += more,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_each_tag_has_its_own_offset() {
        assert_eq!(position(0, 0), 0x8000_0000);
        assert_eq!(position(3, 5), 0x8000_0000 + (3 << 41) + (5 << 25));
    }

    #[test]
    fn copy_continues_until_whole() {
        let mut steps = [Ok(3), Err(Errno::INTR), Ok(7)].into_iter();
        assert_eq!(whole(10, |_| steps.next().unwrap()), Ok(()));
        assert_eq!(whole(10, |at| if at == 0 { Ok(4) } else { Ok(0) }), Err(Errno::IO));
        assert_eq!(whole(10, |_| Err(Errno::INVAL)), Err(Errno::INVAL));
    }
}
