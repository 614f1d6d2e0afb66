//! Passphrases and keys: from a user, the input of the program or a key file.
//!
//! Everything read here is kept in buffers that are wiped when dropped.

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::host::{Context, Input};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use inlock_volume::{Secret, VolumeKey};
use zeroize::Zeroizing;

use super::backing;
use super::keyring;
use super::source::{KeyOptions, KeySource, NewKeyOptions, VolumeKeyOptions, VolumeKeyOrigin};

/// Maximum length of a key file, and of a key on standard input, in bytes (cryptsetup's 8192 KiB).
pub(crate) const KEY_FILE_MAX: u64 = 8192 * 1024;

/// Length of the stack that deriving and checking a key may have used.
pub(crate) const SCRUB: usize = 256 << 10;

/// A secret and its origin: a plain volume hashes a typed passphrase, and uses a key file as the key itself.
pub struct Given {
    /// The passphrase or key.
    pub secret: Secret,
    /// Whether the bytes come from a key file that is not standard input.
    pub from_file: bool,
}

/// Context of a passphrase prompt.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The program that asks.
    pub context: &'a Context,
    /// Named in the prompt.
    pub device: &'a Path,
    /// The prompt. `None`: asks for the passphrase of the device.
    pub prompt: Option<&'a str>,
    /// Ask twice.
    pub verify: bool,
}

/// Reads one passphrase or key. `key_len`: bytes of a key file that a plain volume uses; LUKS uses all.
pub fn read(key: &KeyOptions, ask: Ask<'_>, key_len: Option<u64>) -> Result<Given> {
    let host = ask.context.host();
    let typed = |bytes: Zeroizing<Vec<u8>>| Given { secret: bytes.into(), from_file: false };
    match &key.source {
        KeySource::File(path) => {
            let secret = read_file(path, key.offset, key.size.or(key_len))?.into();
            Ok(Given { secret, from_file: true })
        }
        KeySource::Bytes(bytes) => {
            let secret = part_of(bytes.as_bytes(), key.offset, key.size.or(key_len))?.into();
            Ok(Given { secret, from_file: true })
        }
        _ if prompts(key, ask) => prompt(key, ask).map(typed),
        KeySource::Input => match host.read(Input::All { offset: key.offset, size: key.size })? {
            nothing if nothing.is_empty() => Err(Error::nothing_to_read()),
            bytes => Ok(typed(bytes)),
        },
        KeySource::Ask => host.read(Input::Line { size: key.size, verify: key.verify }).map(typed),
    }
}

/// Reads a volume key. `header_len`: the length of the header's key in bytes, if it is known.
pub fn read_volume_key(args: &VolumeKeyOptions, header_len: Option<usize>) -> Result<VolumeKey> {
    let len = args.len.or(header_len).ok_or_else(|| {
        Error::new(ErrorKind::NoKeyLen, "Cannot determine volume key size for LUKS without keyslots.")
    })?;
    let path = match &args.origin {
        VolumeKeyOrigin::File(path) => path,
        VolumeKeyOrigin::Keyring(key) => return keyring::read_volume_key(key, len),
    };
    let file = File::open(path).with_context(|| format!("Cannot read keyfile {}.", path.display()))?;
    let cannot_read = || format!("Cannot read {len} bytes from keyfile {}.", path.display());
    let mut key = VolumeKey::zeroed(len);
    let mut done = 0;
    while done < len {
        match read_some(file.as_fd(), &mut key.as_mut_bytes()[done..]).with_context(cannot_read)? {
            0 => return Err(Error::new(ErrorKind::VolumeKeyFileTooShort, cannot_read())),
            more => done += more,
        }
    }
    Ok(key)
}

/// Asks for a new passphrase with `prompt`, or reads a new key.
pub fn read_new(context: &Context, new: &NewKeyOptions, device: &Path, prompt: &str) -> Result<Secret> {
    let ask = Ask { context, device, prompt: Some(prompt), verify: new.verify };
    Ok(read(&new.key, ask, None)?.secret)
}

/// Whether the secret is typed by a user, who can also be asked again.
pub fn prompts(key: &KeyOptions, ask: Ask<'_>) -> bool {
    match key.source {
        KeySource::File(_) | KeySource::Bytes(_) => false,
        KeySource::Ask | KeySource::Input => can_ask(ask),
    }
}

/// Whether a user can be asked.
pub(crate) fn can_ask(ask: Ask<'_>) -> bool {
    ask.context.host().can_ask()
}

/// Reads a PIN: from a user, or from the input.
pub(crate) fn read_pin(prompt: &str, timeout: Option<Duration>, ask: Ask<'_>) -> Result<Secret> {
    let host = ask.context.host();
    let line = if host.can_ask() { host.ask(prompt, timeout)? } else { host.read(Input::Pin)? };
    Ok(line.into())
}

fn prompt(key: &KeyOptions, ask: Ask<'_>) -> Result<Zeroizing<Vec<u8>>> {
    let of_device = || format!("Enter passphrase for {}: ", backing::shown(ask.device).display());
    let host = ask.context.host();
    let first = host.ask(&ask.prompt.map_or_else(of_device, ToOwned::to_owned), key.timeout)?;
    if ask.verify {
        let second = host.ask("Verify passphrase: ", key.timeout)?;
        if *first != *second {
            return Err(Error::new(ErrorKind::OtherPassphrase, "Passphrases do not match."));
        }
    }
    Ok(first)
}

/// Returns the part of a key from `offset` on: exactly `size` bytes, or to its end.
fn part_of(key: &[u8], offset: u64, size: Option<u64>) -> Result<Zeroizing<Vec<u8>>> {
    let rest = usize::try_from(offset).ok().and_then(|offset| key.get(offset..)).ok_or_else(beyond_key)?;
    let size = size.map_or(Some(rest.len()), |size| usize::try_from(size).ok());
    Ok(Zeroizing::new(size.and_then(|size| rest.get(..size)).ok_or_else(too_short)?.to_vec()))
}

fn beyond_key() -> Error {
    Error::new(ErrorKind::KeyOffset, "Cannot seek to requested keyfile offset.")
}

fn too_short() -> Error {
    Error::new(ErrorKind::KeyFileTooShort, "Cannot read requested amount of data.")
}

/// Reads a key file from `offset`: exactly `size` bytes, or to its end.
fn read_file(path: &Path, offset: u64, size: Option<u64>) -> Result<Zeroizing<Vec<u8>>> {
    let name = || format!("Failed to open key file {}.", path.display());
    let mut file = File::open(path).with_context(name)?;
    let metadata = file.metadata().with_context(name)?;
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::KeyFileIsDirectory, name()));
    }
    let is_block = metadata.file_type().is_block_device();
    let read = if metadata.is_file() || is_block {
        let len = if is_block { file.seek(SeekFrom::End(0)).with_context(name)? } else { metadata.len() };
        if offset > len {
            let message = format!("Cannot seek to requested keyfile offset in {}.", path.display());
            return Err(Error::new(ErrorKind::KeyFileOffset, message));
        }
        file.seek(SeekFrom::Start(offset)).with_context(name)?;
        read_all(file.as_fd(), 0, size)
    } else {
        read_all(file.as_fd(), offset, size)
    };
    read.with_context(|| format!("Failed to read key file {}.", path.display()))
}

/// Skips `offset` bytes and reads exactly `size` bytes, or to the end.
pub fn read_all(input: BorrowedFd<'_>, offset: u64, size: Option<u64>) -> Result<Zeroizing<Vec<u8>>> {
    if size.is_some_and(|size| size > KEY_FILE_MAX) {
        return Err(Error::new(ErrorKind::KeyFileSize, format!("A key file has at most {} KiB.", KEY_FILE_MAX / 1024)));
    }
    skip(input, offset)?;
    let most = size.unwrap_or(KEY_FILE_MAX + 1);
    let mut bytes = Zeroizing::new(Vec::new());
    let mut block = Zeroizing::new([0_u8; 4096]);
    while (bytes.len() as u64) < most {
        let want = block.len().min((most - bytes.len() as u64) as usize);
        match read_some(input, &mut block[..want])? {
            0 => break,
            read => append(&mut bytes, &block[..read]),
        }
    }
    match size {
        Some(size) if (bytes.len() as u64) < size => Err(too_short()),
        None if bytes.len() as u64 > KEY_FILE_MAX => {
            Err(Error::new(ErrorKind::KeyFileTooLong, "Maximum keyfile size exceeded."))
        }
        _ => Ok(bytes),
    }
}

fn skip(input: BorrowedFd<'_>, mut left: u64) -> Result<()> {
    let mut block = Zeroizing::new([0_u8; 4096]);
    while left > 0 {
        let want = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match read_some(input, &mut block[..want])? {
            0 => {
                return Err(beyond_key());
            }
            read => left -= read as u64,
        }
    }
    Ok(())
}

/// Reads to the first newline, which is left out, or to the end. Consumes nothing after the newline. `size`: reads that
/// many bytes of the line, which must not be shorter.
pub fn first_line(input: BorrowedFd<'_>, size: Option<u64>) -> Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::new());
    let mut byte = Zeroizing::new([0_u8]);
    loop {
        if size == Some(line.len() as u64) {
            return Ok(line);
        }
        let is_end = read_some(input, &mut byte[..])? == 0;
        if is_end && line.is_empty() {
            return Err(Error::nothing_to_read());
        }
        if (is_end || byte[0] == b'\n') && size.is_some() {
            return Err(Error::new(ErrorKind::PassphraseTooShort, "Cannot read requested amount of data."));
        }
        if is_end || byte[0] == b'\n' {
            return Ok(line);
        }
        if line.len() as u64 == KEY_FILE_MAX {
            return Err(Error::new(ErrorKind::PassphraseTooLong, "Maximum keyfile size exceeded."));
        }
        append(&mut line, &byte[..]);
    }
}

fn read_some(input: BorrowedFd<'_>, block: &mut [u8]) -> Result<usize> {
    loop {
        match rustix::io::read(input, &mut *block) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Appends without leaving a copy behind if the buffer is reallocated.
pub(crate) fn append(bytes: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
    if bytes.capacity() - bytes.len() < more.len() {
        let room = (bytes.len() + more.len()).next_power_of_two().max(512);
        let mut larger = Zeroizing::new(Vec::with_capacity(room));
        larger.extend_from_slice(bytes);
        *bytes = larger;
    }
    bytes.extend_from_slice(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pipe_with(bytes: &[u8]) -> std::io::PipeReader {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(bytes).unwrap();
        reader
    }

    #[test]
    fn line_ends_at_newline_and_rest_is_left() {
        let input = pipe_with(b"first\nsecond\n\nlast");
        for wanted in [&b"first"[..], b"second", b"", b"last"] {
            assert_eq!(&**first_line(input.as_fd(), None).unwrap(), wanted);
        }
        assert_eq!(&**first_line(pipe_with(b"first\n").as_fd(), Some(3)).unwrap(), b"fir");
        assert!(first_line(pipe_with(b"first\n").as_fd(), Some(6)).is_err());
        assert!(first_line(input.as_fd(), None).unwrap_err().to_string().starts_with("Nothing to read"));
    }

    #[test]
    fn key_file_is_read_whole_or_in_part() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789\n").unwrap();
        let path = file.path();
        assert_eq!(&**read_file(path, 0, None).unwrap(), b"0123456789\n");
        assert_eq!(&**read_file(path, 4, None).unwrap(), b"456789\n");
        assert_eq!(&**read_file(path, 4, Some(3)).unwrap(), b"456");
        assert_eq!(&**read_file(path, 11, None).unwrap(), b"");
        assert!(read_file(path, 12, None).is_err());
        assert!(read_file(path, 9, Some(3)).is_err());
        assert!(read_file(path, 0, Some(KEY_FILE_MAX + 1)).is_err());
        assert!(read_file(Path::new("/nonexistent"), 0, None).is_err());
        assert!(read_file(Path::new("/"), 0, None).is_err());
    }

    #[test]
    fn key_file_over_8192_kib_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(KEY_FILE_MAX).unwrap();
        assert_eq!(read_file(file.path(), 0, None).unwrap().len() as u64, KEY_FILE_MAX);
        file.as_file().set_len(KEY_FILE_MAX + 1).unwrap();
        assert!(read_file(file.path(), 0, None).is_err());
        assert_eq!(read_file(file.path(), 1, None).unwrap().len() as u64, KEY_FILE_MAX);
        assert_eq!(read_file(file.path(), 0, Some(KEY_FILE_MAX)).unwrap().len() as u64, KEY_FILE_MAX);
    }

    #[test]
    fn offset_in_stream_is_skipped() {
        assert_eq!(&**read_all(pipe_with(b"0123456789").as_fd(), 4, Some(2)).unwrap(), b"45");
        assert_eq!(&**read_all(pipe_with(b"01\n34\n").as_fd(), 0, None).unwrap(), b"01\n34\n");
        assert!(read_all(pipe_with(b"0123").as_fd(), 5, None).is_err());
    }
}
