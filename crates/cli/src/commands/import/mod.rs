//! `import`: encrypts a raw image into an existing volume.
//!
//! An input of known length that is longer than the volume is refused before anything is written. Holes of the input
//! are not read; they become encrypted zeroes in the volume, since a hole there would decrypt to noise. Zones are
//! written in order ([`zones`]).

mod zones;

use inlock_open::source::KeySource;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Display, Path, PathBuf};

use anyhow::Context;
use inlock_engine::BlockingDevice;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, Buffer};

use super::copy::{self, CHUNK, CopyArgs, copy_args};
use crate::args::action::{Action, COPY, HOLES, IMAGE, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, TOKENS, UNLOCK};
use crate::error::CliError;
use crate::host::{context, take_stdin_for_data};
use crate::ui::progress::Progress;
use inlock_open::Error;
use inlock_open::backing;
use inlock_open::device;
use inlock_open::open;
use inlock_open::unlocked::LockedStores;
use zones::ZoneWriter;

pub(crate) const ACTION: Action = Action {
    name: "import",
    aliases: &[],
    arguments: &["<input file or ->", IMAGE],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, COPY, SEALED, HOLES, &["table"]],
    about: "encrypt a raw image into an existing volume",
    prepare: |options, mut arguments| {
        let (input, image) = (arguments.path()?, arguments.path()?);
        let args = copy_args(&options, image, input)?;
        Ok(Prepared::new(move || run(&args)))
    },
};

fn run(args: &CopyArgs) -> anyhow::Result<()> {
    if device::is_read_only(&args.source.image) {
        return Err(Error::read_only(&args.source.image).into());
    }
    if args.other.is_none() {
        if matches!(args.source.key.source, KeySource::Input) {
            return Err(CliError::usage("Standard input cannot carry both the key and the data."));
        }
        take_stdin_for_data();
    }
    let mut input = Input::open(args)?;
    let unlocked = open(context(), &args.source, true, None)?;
    let stores = unlocked.into_device(IoMode::Sync, engine::Access::default())?;
    if stores.device.access().read_only {
        let message = format!("Device {} is read-only.", args.source.image.display());
        return Err(CliError::refused(message, "export it, and import the result into a new volume"));
    }
    let copied = copy_in(args, &mut input, &stores);
    stores.check_writes(copied)
}

/// Writes the input to the volume.
fn copy_in(args: &CopyArgs, input: &mut Input, stores: &LockedStores) -> anyhow::Result<()> {
    let device = BlockingDevice::new(stores.device.clone());
    let (start, room) = copy::within(args.range, device.len())?;
    input.check_len(room, args.range.is_some_and(|range| range.len.is_some()))?;
    let mut progress = Progress::start(args.show, &args.source.image, input.len, false);

    let image = args.source.image.display();
    let sure = input.len.unwrap_or(0).min(room);
    let mut zones = ZoneWriter::new(&device, start, room, sure).with_context(|| format!("cannot write {image}"))?;
    // Direct I/O on the underlying device needs aligned memory.
    let mut buffer = Buffer::new(CHUNK);
    let mut done = 0;
    loop {
        let at = start + done;
        let want = (room - done).min(CHUNK as u64);
        let step = match &mut zones {
            Some(zones) if want > 0 => {
                let want = want.min(zones.room(at)?);
                let filled = input.fill(&mut buffer.data_mut()[..want as usize])?;
                let result = zones.write(buffer.data_mut(), filled, at);
                result.with_context(|| format!("cannot write {image}")).map(|()| filled as u64)?
            }
            _ => input.copy_to(&device, &mut buffer.data_mut()[..want as usize], at, &image)?,
        };
        if step == 0 {
            break;
        }
        done += step;
        progress.add(step);
    }
    device.flush().with_context(|| format!("cannot make {image} durable"))?;
    progress.finish();
    input.check_end(done)
}

/// Source of the plaintext.
struct Input {
    from: Box<dyn ReadAhead>,
    name: PathBuf,
    /// In bytes. `None`: unknown before the end.
    len: Option<u64>,
}

/// Next part of the input.
enum Piece {
    /// Number of bytes read into the buffer.
    Data(usize),
    /// Number of zeroes, at most the length of the buffer.
    Hole(u64),
    /// End of the input, or of the buffer.
    End,
}

trait ReadAhead {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece>;
}

impl Input {
    fn open(args: &CopyArgs) -> anyhow::Result<Self> {
        // The image may be standard input, too.
        let read = args.other.as_deref().unwrap_or(Path::new("/proc/self/fd/0"));
        for image in [Some(&args.source.image), args.source.header.as_ref()].into_iter().flatten() {
            if backing::overlap(read, image) {
                return Err(CliError::usage("The input file is the image itself."));
            }
        }
        let Some(path) = &args.other else {
            if rustix::termios::isatty(io::stdin()) {
                return Err(CliError::refused("Standard input is a terminal.", "name an input file, or pipe one in"));
            }
            return Ok(Self { from: Box::new(Stream(io::stdin().lock())), name: "standard input".into(), len: None });
        };
        let cannot = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_dir() {
            return Err(CliError::usage(format!("{} is a directory.", path.display())));
        }
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            return Ok(Self { from: Box::new(Stream(file)), name: path.clone(), len: None });
        }
        let len = file.seek(SeekFrom::End(0)).with_context(cannot)?;
        let sparse = metadata.is_file();
        Ok(Self { from: Box::new(Blocks { file, at: 0, len, sparse }), name: path.clone(), len: Some(len) })
    }

    fn check_len(&self, room: u64, exact: bool) -> anyhow::Result<()> {
        let Some(len) = self.len else { return Ok(()) };
        let name = self.name.display();
        if len > room {
            return Err(CliError::refused(
                format!("{name} has {len} bytes, but the volume has only {room}. Nothing was written."),
                "enlarge the image first (truncate -s SIZE IMAGE), or truncate the input",
            ));
        }
        if exact && len < room {
            return Err(CliError::refused(
                format!("{name} has {len} bytes, but the range has {room}. Nothing was written."),
                "use --range OFFSET: without a length for all of the input",
            ));
        }
        Ok(())
    }

    fn next(&mut self, buffer: &mut [u8]) -> anyhow::Result<Piece> {
        if buffer.is_empty() {
            return Ok(Piece::End);
        }
        self.from.next(buffer).with_context(|| format!("cannot read {}", self.name.display()))
    }

    /// Writes the next part, at most the length of the buffer, at `at`, and returns its length; 0 at the end.
    fn copy_to(
        &mut self,
        device: &BlockingDevice,
        buffer: &mut [u8],
        at: u64,
        image: &Display<'_>,
    ) -> anyhow::Result<u64> {
        let written = match self.next(buffer)? {
            Piece::End => return Ok(0),
            Piece::Hole(len) => device.write_zeroes(at, len).map(|()| len),
            Piece::Data(len) => device.write_at(&buffer[..len], at).map(|()| len as u64),
        };
        written.with_context(|| format!("cannot write at {at} of {image}"))
    }

    /// Fills the buffer, with zeroes for holes, and returns the number of bytes.
    fn fill(&mut self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let len = match self.next(&mut buffer[filled..])? {
                Piece::End => break,
                Piece::Data(len) => len,
                Piece::Hole(len) => {
                    let len = len as usize;
                    buffer[filled..filled + len].fill(0);
                    len
                }
            };
            filled += len;
        }
        Ok(filled)
    }

    /// Refuses a stream with more data than were written.
    fn check_end(&mut self, done: u64) -> anyhow::Result<()> {
        match self.next(&mut [0])? {
            Piece::End => Ok(()),
            _ => Err(CliError::refused(
                format!(
                    "{} is longer than the volume or the range; its first {done} bytes were written.",
                    self.name.display()
                ),
                "enlarge the image, or truncate the input",
            )),
        }
    }
}

/// A pipe, a socket, a character device.
struct Stream<R>(R);

impl<R: Read> ReadAhead for Stream<R> {
    /// Fills the buffer unless the stream ends, so that whole data units are written.
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if filled == 0 { Piece::End } else { Piece::Data(filled) })
    }
}

/// A regular file or a block device.
struct Blocks {
    file: File,
    at: u64,
    len: u64,
    sparse: bool,
}

impl ReadAhead for Blocks {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece> {
        let left = self.len - self.at;
        if left == 0 {
            return Ok(Piece::End);
        }
        let want = left.min(buffer.len() as u64);
        if self.sparse {
            let data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(self.at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => self.len,
                // The file system does not support holes.
                Err(_) => self.at,
            };
            if data > self.at {
                let hole = (data - self.at).min(want);
                self.at += hole;
                return Ok(Piece::Hole(hole));
            }
        }
        self.file.read_exact_at(&mut buffer[..want as usize], self.at)?;
        self.at += want;
        Ok(Piece::Data(want as usize))
    }
}
