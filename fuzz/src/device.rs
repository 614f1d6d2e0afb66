//! A read-only device: given bytes, then zeroes to a length that takes no memory.

use std::io;

use inlock_volume::HeaderDevice;

/// A device with bytes at its start, and its length.
pub(crate) struct Prefixed<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) len: u64,
}

impl HeaderDevice for Prefixed<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = self.bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let known = &self.bytes[from..];
        let known = &known[..known.len().min(buf.len())];
        buf[..known.len()].copy_from_slice(known);
        buf[known.len()..].fill(0);
        Ok(())
    }

    fn write_all_at(&self, _: &[u8], offset: u64) -> io::Result<()> {
        panic!("a header was written at {offset} while it was only read");
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
