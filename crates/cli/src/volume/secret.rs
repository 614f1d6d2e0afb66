//! Passphrases and keys: from the terminal, standard input or a key file, never from arguments or the environment.
//!
//! Everything read here is kept in buffers that are wiped when dropped. The process writes no core dump, and other
//! processes of the same user cannot trace it ([`harden`]).

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::Context;
use inlock_volume::{Secret, VolumeKey};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use zeroize::Zeroizing;

use super::backing;
use super::keyring;
use super::source::{KeyArgs, KeyFile, NewKeyArgs, VolumeKeyArgs, VolumeKeyOrigin};
use crate::error::CliError;
use crate::ui::print::print_stderr;
use crate::ui::terminal;

/// Maximum length of a key file, and of a key on standard input, in bytes (cryptsetup's 8192 KiB).
pub(super) const KEY_FILE_MAX: u64 = 8192 * 1024;

/// A secret and its origin: a plain volume hashes a typed passphrase, and uses a key file as the key itself.
pub(crate) struct Given {
    pub secret: Secret,
    /// Whether the bytes come from a key file that is not standard input.
    pub from_file: bool,
}

/// Context of a passphrase prompt.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Named in the prompt.
    pub device: &'a Path,
    /// The prompt. `None`: asks for the passphrase of the device.
    pub prompt: Option<&'static str>,
    /// Ask twice.
    pub verify: bool,
    /// Whether standard input carries data, and thus no passphrase.
    pub stdin_taken: bool,
}

/// Keeps keys out of core dumps and away from debuggers of the same user.
pub(crate) fn harden() {
    // If the system refuses, the program continues without.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Reads one passphrase or key. `key_len`: bytes of a key file that a plain volume uses; LUKS uses all.
pub(crate) fn read(key: &KeyArgs, ask: Ask<'_>, key_len: Option<u64>) -> anyhow::Result<Given> {
    let typed = |bytes: Zeroizing<Vec<u8>>| Given { secret: bytes.into(), from_file: false };
    match &key.file {
        Some(KeyFile::Path(path)) => {
            let secret = read_file(path, key.offset, key.size.or(key_len))?.into();
            Ok(Given { secret, from_file: true })
        }
        Some(KeyFile::Stdin) if ask.stdin_taken => {
            Err(CliError::usage("Standard input cannot carry both the key and the data."))
        }
        _ if prompts(key, ask) => prompt(key, ask).map(typed),
        _ if ask.stdin_taken => Err(CliError::refused(
            "Standard input carries the data, and there is no terminal to ask for the passphrase.",
            "give the passphrase in a file with --key-file",
        )),
        Some(KeyFile::Stdin) => match read_all(rustix::stdio::stdin(), key.offset, key.size)? {
            nothing if nothing.is_empty() => Err(CliError::NothingToRead.into()),
            bytes => Ok(typed(bytes)),
        },
        None => {
            if key.verify {
                print_stderr("Can't do passphrase verification on non-tty inputs.");
            }
            first_line(rustix::stdio::stdin(), key.size).map(typed)
        }
    }
}

/// Reads a volume key. `header_len`: the length of the header's key in bytes, if it is known.
pub(crate) fn read_volume_key(args: &VolumeKeyArgs, header_len: Option<usize>) -> anyhow::Result<VolumeKey> {
    let len = args.len.or(header_len).ok_or_else(|| {
        CliError::refused(
            "Cannot determine volume key size for LUKS without keyslots.",
            "set --key-size to the length of the key in bits",
        )
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
            0 => return Err(CliError::refused(cannot_read(), "set --key-size to the length of the key in bits")),
            more => done += more,
        }
    }
    Ok(key)
}

/// Asks for a new passphrase with `prompt`, or reads a new key.
pub(crate) fn read_new(new: &NewKeyArgs, device: &Path, prompt: &'static str) -> anyhow::Result<Secret> {
    let ask = Ask { device, prompt: Some(prompt), verify: new.verify, stdin_taken: false };
    Ok(read(&new.key, ask, None)?.secret)
}

/// Whether the secret is typed by a user at a terminal, who can also be asked again.
pub(crate) fn prompts(key: &KeyArgs, ask: Ask<'_>) -> bool {
    match key.file {
        Some(KeyFile::Path(_)) => false,
        _ => can_ask(ask),
    }
}

/// Whether a user at a terminal can be asked.
pub(super) fn can_ask(ask: Ask<'_>) -> bool {
    if ask.stdin_taken { terminal::has_controlling_terminal() } else { terminal::stdin_is_terminal() }
}

/// Reads one line: from the terminal, or from standard input.
pub(super) fn read_line(prompt: &str, timeout_secs: Option<u64>, ask: Ask<'_>) -> anyhow::Result<Secret> {
    let line = match (can_ask(ask), ask.stdin_taken) {
        (true, _) => terminal::ask_passphrase(prompt, timeout_secs)?,
        (false, false) => first_line(rustix::stdio::stdin(), None)?,
        (false, true) => {
            return Err(CliError::refused(
                "Standard input carries the data, and there is no terminal to ask for the PIN.",
                "use a passphrase in a file with --key-file",
            ));
        }
    };
    Ok(line.into())
}

fn prompt(key: &KeyArgs, ask: Ask<'_>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let of_device = || format!("Enter passphrase for {}: ", backing::shown(ask.device).display());
    let first = terminal::ask_passphrase(&ask.prompt.map_or_else(of_device, ToOwned::to_owned), key.timeout_secs)?;
    if ask.verify {
        let second = terminal::ask_passphrase("Verify passphrase: ", key.timeout_secs)?;
        if *first != *second {
            return Err(CliError::OtherPassphrase.into());
        }
    }
    Ok(first)
}

/// Reads a key file from `offset`: exactly `size` bytes, or to its end.
fn read_file(path: &Path, offset: u64, size: Option<u64>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let name = || format!("Failed to open key file {}.", path.display());
    let mut file = File::open(path).with_context(name)?;
    let metadata = file.metadata().with_context(name)?;
    if metadata.is_dir() {
        return Err(CliError::refused(name(), "name a file, not a directory"));
    }
    let is_block = metadata.file_type().is_block_device();
    let read = if metadata.is_file() || is_block {
        let len = if is_block { file.seek(SeekFrom::End(0)).with_context(name)? } else { metadata.len() };
        if offset > len {
            let message = format!("Cannot seek to requested keyfile offset in {}.", path.display());
            return Err(CliError::refused(message, "use a --keyfile-offset within the key file"));
        }
        file.seek(SeekFrom::Start(offset)).with_context(name)?;
        read_all(file.as_fd(), 0, size)
    } else {
        read_all(file.as_fd(), offset, size)
    };
    read.with_context(|| format!("Failed to read key file {}.", path.display()))
}

/// Skips `offset` bytes and reads exactly `size` bytes, or to the end.
fn read_all(input: BorrowedFd<'_>, offset: u64, size: Option<u64>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    if size.is_some_and(|size| size > KEY_FILE_MAX) {
        return Err(CliError::usage(format!("A key file has at most {} KiB.", KEY_FILE_MAX / 1024)));
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
        Some(size) if (bytes.len() as u64) < size => {
            Err(CliError::refused("Cannot read requested amount of data.", "use a --keyfile-size within the key file"))
        }
        None if bytes.len() as u64 > KEY_FILE_MAX => {
            Err(CliError::refused("Maximum keyfile size exceeded.", "use --keyfile-size to read a part of the file"))
        }
        _ => Ok(bytes),
    }
}

fn skip(input: BorrowedFd<'_>, mut left: u64) -> anyhow::Result<()> {
    let mut block = Zeroizing::new([0_u8; 4096]);
    while left > 0 {
        let want = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match read_some(input, &mut block[..want])? {
            0 => {
                return Err(CliError::refused(
                    "Cannot seek to requested keyfile offset.",
                    "use a --keyfile-offset within the key",
                ));
            }
            read => left -= read as u64,
        }
    }
    Ok(())
}

/// Reads to the first newline, which is left out, or to the end. Consumes nothing after the newline. `size`: reads that
/// many bytes of the line, which must not be shorter.
fn first_line(input: BorrowedFd<'_>, size: Option<u64>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::new());
    let mut byte = Zeroizing::new([0_u8]);
    loop {
        if size == Some(line.len() as u64) {
            return Ok(line);
        }
        let is_end = read_some(input, &mut byte[..])? == 0;
        if is_end && line.is_empty() {
            return Err(CliError::NothingToRead.into());
        }
        if (is_end || byte[0] == b'\n') && size.is_some() {
            return Err(CliError::refused(
                "Cannot read requested amount of data.",
                "use a --keyfile-size within the passphrase",
            ));
        }
        if is_end || byte[0] == b'\n' {
            return Ok(line);
        }
        if line.len() as u64 == KEY_FILE_MAX {
            return Err(CliError::refused("Maximum keyfile size exceeded.", "pass a passphrase of one line of text"));
        }
        append(&mut line, &byte[..]);
    }
}

fn read_some(input: BorrowedFd<'_>, block: &mut [u8]) -> anyhow::Result<usize> {
    loop {
        match rustix::io::read(input, &mut *block) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Appends without leaving a copy behind if the buffer is reallocated.
pub(super) fn append(bytes: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
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
    }

    #[test]
    fn offset_in_stream_is_skipped() {
        assert_eq!(&**read_all(pipe_with(b"0123456789").as_fd(), 4, Some(2)).unwrap(), b"45");
        assert_eq!(&**read_all(pipe_with(b"01\n34\n").as_fd(), 0, None).unwrap(), b"01\n34\n");
        assert!(read_all(pipe_with(b"0123").as_fd(), 5, None).is_err());
    }
}
