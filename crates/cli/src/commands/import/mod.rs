//! `import`: encrypts a raw image into an existing volume.
//!
//! An input that is longer than the volume is refused before the first byte where its length is known. Holes of the input
//! are not read; in the volume they become encrypted zeroes, since a hole there would decrypt to noise. Zones are written
//! in order ([`zones`]).

mod zones;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Display, PathBuf};

use anyhow::Context;
use inlock_engine::blocking::BlockingDevice;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, Buffer};

use crate::args::CopyArgs;
use crate::backing;
use crate::copy::{self, CHUNK};
use crate::exit::Problem;
use crate::progress::{Progress, Show};
use crate::source::{self, Keys};
use zones::ZoneWriter;

pub(crate) fn run(args: &CopyArgs, batch: bool) -> anyhow::Result<()> {
    let mut input = Input::open(args)?;
    let opened = source::open(&args.source, true, Keys::Asked { stdin_taken: args.other.is_none() })?;
    let attached = opened.attach(IoMode::Sync, engine::Access::default())?;
    if attached.device.access().read_only {
        let message = format!("Device {} is read-only", args.source.image.display());
        return Err(Problem::Refused { message, hint: "export it, and import that into a new volume" }.into());
    }
    let device = BlockingDevice::new(attached.device.clone());
    let (start, room) = copy::within(args.range, device.len())?;
    input.check_len(room, args.range.is_some_and(|range| range.len.is_some()))?;
    let show = Show::from_options(batch, args.progress_json, args.progress_secs);
    let mut progress = Progress::start(show, &args.source.image, input.len, false);

    let image = args.source.image.display();
    let sure = input.len.unwrap_or(0).min(room);
    let mut zones = ZoneWriter::new(&device, start, room, sure).with_context(|| format!("cannot write {image}"))?;
    // Where the device below is written past the kernel's cache, it looks at where the bytes are.
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

/// Where plaintext comes from.
struct Input {
    from: Box<dyn ReadAhead>,
    name: PathBuf,
    /// In bytes, where it is known before the end.
    len: Option<u64>,
}

/// What comes next in the input.
enum Piece {
    /// So many bytes are in the buffer.
    Data(usize),
    /// So many zeroes, at most as many as the buffer has room for.
    Hole(u64),
    /// Nothing more, or no more room.
    End,
}

trait ReadAhead {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece>;
}

impl Input {
    fn open(args: &CopyArgs) -> anyhow::Result<Self> {
        let Some(path) = &args.other else {
            if rustix::termios::isatty(io::stdin()) {
                return Err(Problem::refused(
                    "Standard input is a terminal.",
                    "name the image to read, or pipe one in",
                ));
            }
            return Ok(Self { from: Box::new(Stream(io::stdin().lock())), name: "standard input".into(), len: None });
        };
        let cannot = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        for image in [Some(&args.source.image), args.source.header.as_ref()].into_iter().flatten() {
            if backing::overlap(path, image) {
                return Err(Problem::usage("The input file is the image itself."));
            }
        }
        if metadata.is_dir() {
            return Err(Problem::usage(format!("{} is a directory.", path.display())));
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
            return Err(Problem::refused(
                format!("{name} has {len} bytes, and there is room for {room}. Nothing was written."),
                "make the image longer before (truncate -s SIZE IMAGE), or cut the input",
            ));
        }
        if exact && len < room {
            return Err(Problem::refused(
                format!("{name} has {len} bytes, and the range has {room}. Nothing was written."),
                "--range OFFSET: without a length takes all of the input",
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

    /// Writes what comes next, as much as the buffer has room for, at `at`; how much. 0: nothing more.
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

    /// Fills the buffer, with zeroes for holes, as far as there is anything; how much.
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

    /// A stream that goes on where the volume ends did not fit.
    fn check_end(&mut self, done: u64) -> anyhow::Result<()> {
        match self.next(&mut [0])? {
            Piece::End => Ok(()),
            _ => Err(Problem::refused(
                format!(
                    "{} goes on where the volume or the range ends; its first {done} bytes were written.",
                    self.name.display()
                ),
                "make the image longer, or cut the input",
            )),
        }
    }
}

/// A pipe, a socket, a character device.
struct Stream<R>(R);

impl<R: Read> ReadAhead for Stream<R> {
    /// Fills the buffer as far as there is anything, so that data units are written whole.
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
                // The file system does not know of holes.
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
