//! `export`: decrypts a volume, or a range of it, to a raw image.
//!
//! Runs of plaintext zeroes become holes of a regular output file, and holes of an unencrypted source are not even read.
//! A hole of an encrypted image is not zero, it is whatever it decrypts to, and is copied as that. What lies behind the write
//! pointer of a zone was never written, and is a hole of the output.

use std::io;
use std::os::unix::fs::FileTypeExt;

use anyhow::Context;
use inlock_engine::blocking::BlockingDevice;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, zoned::Zone};

use crate::args::CopyArgs;
use crate::backing;
use crate::copy::{self, CHUNK};
use crate::exit::Problem;
use crate::output::Output;
use crate::progress::{Progress, Show};
use crate::source::{self, Keys};
use crate::terminal;
use crate::zones;

pub(crate) fn run(args: &CopyArgs, batch: bool) -> anyhow::Result<()> {
    let mut output = check_output(args, batch)?;
    let opened = source::open(&args.source, false, Keys::Asked { stdin_taken: false })?;
    let access = engine::Access { read_only: true, allow_discards: false };
    let attached = opened.attach(IoMode::Sync, access)?;
    let device = BlockingDevice::new(attached.device.clone());
    let (start, len) = copy::within(args.range, device.len())?;
    output.begin(len)?;
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
                output.zeroes(step)?;
                step
            }
            None => {
                let want = want.min(holes.written_from(start + done));
                let chunk = &mut buffer[..want as usize];
                device.read_at(chunk, start + done).with_context(|| {
                    format!("cannot read {want} bytes at {} of {}", start + done, args.source.image.display())
                })?;
                output.write(chunk)?;
                want
            }
        };
        done += step;
        progress.add(step);
    }
    output.finish()?;
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
        if self.device.mapping().is_encrypted() {
            return None;
        }
        self.device.block_status(at, len).ok().filter(|run| run.hole && run.len > 0).map(|run| run.len)
    }

    /// How many bytes from `at` on, which is in no hole, are in none.
    fn written_from(&self, at: u64) -> u64 {
        zones::at(&self.zones, at).map_or(u64::MAX, |zone| zones::written_to(zone) - at)
    }
}

/// Takes the output before a passphrase is asked for, or refuses one that would do harm.
fn check_output(args: &CopyArgs, batch: bool) -> anyhow::Result<Output> {
    let Some(path) = &args.other else {
        if rustix::termios::isatty(io::stdout()) {
            return Err(Problem::refused(
                "Standard output is a terminal.",
                "send it to a file or a program: inlock export ... - | ...",
            ));
        }
        return Output::take(None);
    };
    for input in [Some(&args.source.image), args.source.header.as_ref()].into_iter().flatten() {
        if backing::overlap(input, path) {
            return Err(Problem::usage("The output file is the image itself."));
        }
    }
    let output = Output::take(Some(path))?;
    let found = std::fs::metadata(path);
    let holds_data = found.is_ok_and(|out| out.file_type().is_block_device() || (out.is_file() && out.len() > 0));
    if holds_data && !batch && terminal::stdin_is_terminal() {
        terminal::confirm(&format!("This will overwrite data on {} irrevocably.", path.display()))?;
    }
    Ok(output)
}
