//! Reads and writes at a position of a file, on each system.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

/// Returns the length of a block device, whose metadata have length 0: the offset of its end.
pub(crate) fn len_of_device(file: &File) -> io::Result<u64> {
    // An inherited descriptor shares its offset with other descriptors and processes.
    #[cfg(target_os = "linux")]
    if let Some(mut own) = opened_again(file) {
        return own.seek(SeekFrom::End(0));
    }
    #[cfg(not(unix))]
    let _position = elsewhere::position();
    let mut shared = file;
    let at = shared.stream_position()?;
    let end = shared.seek(SeekFrom::End(0))?;
    shared.seek(SeekFrom::Start(at))?;
    Ok(end)
}

#[cfg(target_os = "linux")]
fn opened_again(file: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::options().read(true).open(&name);
    again.or_else(|_| File::options().write(true).open(&name)).ok()
}

#[cfg(unix)]
pub(crate) use unix::{read_exact_at, write_all_at};

#[cfg(unix)]
mod unix {
    use super::{File, io};
    use std::os::unix::fs::FileExt;

    /// Fills `buf` from `offset`.
    pub(crate) fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(buf, offset)
    }

    /// Writes all of `data` at `offset`.
    pub(crate) fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(data, offset)
    }
}

#[cfg(not(unix))]
pub(crate) use elsewhere::{read_exact_at, write_all_at};

/// Systems whose reads and writes use, or move, the position of the file. Keyslots are read from several threads.
#[cfg(any(not(unix), test))]
mod elsewhere {
    use super::{File, Seek, SeekFrom, io};
    use std::io::{Read, Write};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    static POSITION: Mutex<()> = Mutex::new(());

    /// Keeps the position of all files from other threads.
    pub(crate) fn position() -> MutexGuard<'static, ()> {
        POSITION.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `buf` from `offset`.
    pub(crate) fn read_exact_at(mut file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let _position = position();
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buf)
    }

    /// Writes all of `data` at `offset`.
    pub(crate) fn write_all_at(mut file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        let _position = position();
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_reads_and_writes_alike_on_all_systems() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8).unwrap();
        elsewhere::write_all_at(&file, b"abc", 2).unwrap();
        unix::write_all_at(&file, b"d", 7).unwrap();
        for read in [elsewhere::read_exact_at, unix::read_exact_at] {
            let mut all = [0xff; 8];
            read(&file, &mut all, 0).unwrap();
            assert_eq!(&all, b"\0\0abc\0\0d");
            assert!(read(&file, &mut all, 1).is_err(), "there is no ninth byte");
        }
        assert_eq!(len_of_device(&file).unwrap(), 8);
    }
}
