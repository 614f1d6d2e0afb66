//! `export`: decrypts a volume, or a range of it, to a raw image.
//!
//! Runs of plaintext zeroes become holes of a regular output file, and holes of an unencrypted source are not even read.
//! A hole of an encrypted image is not zero, it is whatever it decrypts to, and is copied as that. What lies behind the write
//! pointer of a zone was never written, and is a hole of the output.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_engine::blocking::BlockingDevice;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, zoned::Zone};

use crate::args::CopyArgs;
use crate::copy::{self, CHUNK};
use crate::exit::Problem;
use crate::progress::{Progress, Show};
use crate::source::{self, Keys};
use crate::terminal;
use crate::zones;

pub(crate) fn run(args: &CopyArgs, batch: bool) -> anyhow::Result<()> {
    check_output(args, batch)?;
    let opened = source::open(&args.source, false, Keys::Asked { stdin_taken: false })?;
    let access = engine::Access { read_only: true, allow_discards: false };
    let attached = opened.attach(IoMode::Sync, access)?;
    let device = BlockingDevice::new(attached.device.clone());
    let (start, len) = copy::within(args.range, device.len())?;
    let mut sink = Sink::open(args.other.as_deref(), len)?;
    let show = Show::from_options(batch, args.progress_json, args.progress_secs);
    let mut progress = Progress::start(show, &args.source.image, Some(len), args.other.is_none());

    let holes = Holes::of(&attached.device, start, len)?;
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(CHUNK as u64);
        let hole = holes.next(start + done, len - done);
        let step = match hole {
            Some(hole) => {
                let step = hole.min(len - done);
                sink.zeroes(step)?;
                step
            }
            None => {
                let want = want.min(holes.written_from(start + done));
                let chunk = &mut buffer[..want as usize];
                device.read_at(chunk, start + done).with_context(|| {
                    format!("cannot read {want} bytes at {} of {}", start + done, args.source.image.display())
                })?;
                sink.write(chunk)?;
                want
            }
        };
        done += step;
        progress.add(step);
    }
    sink.finish()?;
    progress.finish();
    Ok(())
}

/// What of a volume was never written, and is not read: it would decrypt to noise.
struct Holes<'a> {
    device: &'a engine::Device,
    /// Those of a range.
    zones: Vec<Zone>,
}

impl<'a> Holes<'a> {
    fn of(device: &'a engine::Device, start: u64, len: u64) -> anyhow::Result<Self> {
        Ok(Self { device, zones: zones::report(device, start, start + len)? })
    }

    /// The length of the hole that starts at `at`, at most `len`, if one does.
    fn next(&self, at: u64, len: u64) -> Option<u64> {
        if let Some(zone) = zones::at(&self.zones, at) {
            return (at >= zones::written_to(zone)).then(|| zone.start + zone.len - at);
        }
        if self.device.layout().is_encrypted() {
            return None;
        }
        self.device.run_at(at, len).ok().filter(|run| run.hole && run.len > 0).map(|run| run.len)
    }

    /// How many bytes from `at` on, which is in no hole, are in none.
    fn written_from(&self, at: u64) -> u64 {
        zones::at(&self.zones, at).map_or(u64::MAX, |zone| zones::written_to(zone) - at)
    }
}

/// Refuses outputs that would do harm, before a passphrase is asked for.
fn check_output(args: &CopyArgs, batch: bool) -> anyhow::Result<()> {
    let Some(path) = &args.other else {
        if rustix::termios::isatty(io::stdout()) {
            return Err(Problem::refused(
                "Standard output is a terminal.",
                "send it to a file or a program: inlock export ... - | ...",
            ));
        }
        return Ok(());
    };
    let Ok(out) = std::fs::metadata(path) else { return Ok(()) };
    for input in [Some(&args.source.image), args.source.header.as_ref()].into_iter().flatten() {
        if std::fs::metadata(input).is_ok_and(|input| input.dev() == out.dev() && input.ino() == out.ino()) {
            return Err(Problem::usage("The output file is the image itself."));
        }
    }
    let holds_data = out.file_type().is_block_device() || (out.is_file() && out.len() > 0);
    if holds_data && !batch && terminal::stdin_is_terminal() {
        terminal::confirm(&format!("This will overwrite data on {} irrevocably.", path.display()))?;
    }
    Ok(())
}

/// Where plaintext goes.
enum Sink {
    /// A regular file: zeroes are left out.
    Sparse { file: File, path: PathBuf, at: u64 },
    /// Anything else takes every byte in order.
    Stream { out: Box<dyn Write>, name: PathBuf },
}

impl Sink {
    fn open(path: Option<&Path>, len: u64) -> anyhow::Result<Self> {
        let Some(path) = path else {
            // Not through the library's buffer, which looks for ends of lines.
            let out = File::from(io::stdout().as_fd().try_clone_to_owned().context("cannot write standard output")?);
            return Ok(Self::Stream { out: Box::new(out), name: "standard output".into() });
        };
        let cannot = || format!("cannot write {}", path.display());
        // Plaintext is for the owner's eyes; an existing file keeps its own mode.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_file() {
            file.set_len(0).and_then(|()| file.set_len(len)).with_context(cannot)?;
            return Ok(Self::Sparse { file, path: path.to_owned(), at: 0 });
        }
        if metadata.file_type().is_block_device() {
            let room = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).with_context(cannot)?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).with_context(cannot)?;
            if room < len {
                return Err(Problem::refused(
                    format!("{} has {room} bytes, and {len} are to be written.", path.display()),
                    "--range takes a part of the volume",
                ));
            }
        }
        Ok(Self::Stream { out: Box::new(file), name: path.to_owned() })
    }

    fn write(&mut self, data: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Sparse { file, path, at } => {
                for (offset, bytes, zero) in copy::runs(data) {
                    if !zero {
                        let place = *at + offset as u64;
                        file.write_all_at(bytes, place).with_context(|| format!("cannot write {}", path.display()))?;
                    }
                }
                *at += data.len() as u64;
                Ok(())
            }
            Self::Stream { out, name } => out.write_all(data).map_err(|error| closed(error, name)),
        }
    }

    fn zeroes(&mut self, mut len: u64) -> anyhow::Result<()> {
        if let Self::Sparse { at, .. } = self {
            *at += len;
            return Ok(());
        }
        let zeroes = vec![0; CHUNK];
        while len > 0 {
            let step = len.min(CHUNK as u64);
            self.write(&zeroes[..step as usize])?;
            len -= step;
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Sparse { file, path, .. } => {
                file.sync_all().with_context(|| format!("cannot write {}", path.display()))
            }
            Self::Stream { mut out, name } => out.flush().map_err(|error| closed(error, &name)),
        }
    }
}

fn closed(error: io::Error, name: &Path) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Problem::OutputClosed.into();
    }
    anyhow::Error::from(error).context(format!("cannot write {}", name.display()))
}
