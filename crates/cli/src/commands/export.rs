//! `export`: decrypts a volume, or a range of it, to a raw image.
//!
//! Runs of plaintext zeroes become holes of a regular output file, and holes of an unencrypted source are not read. A
//! hole of an encrypted image does not decrypt to zeroes, so its decryption is copied. The part of a zone behind its
//! write pointer was never written, and becomes a hole of the output.

use std::io;
use std::path::Path;

use anyhow::Context;
use inlock_engine::BlockingDevice;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, zoned::Zone};

use super::copy::{self, CHUNK, CopyArgs, copy_args};
use crate::args::action::{Action, COPY, HOLES, IMAGE, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, TOKENS, UNLOCK};
use crate::error::CliError;
use crate::host::context;
use crate::output::{self, Existing};
use crate::ui::progress::Progress;
use inlock_open::open;
use inlock_open::output::Output;
use inlock_open::zones;

pub(crate) const ACTION: Action = Action {
    name: "export",
    aliases: &[],
    arguments: &[IMAGE, "<output file or ->"],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, COPY, SEALED, HOLES, &["table"]],
    about: "decrypt a volume, or a part of it, to a raw image",
    prepare: |options, mut arguments| {
        let (image, output) = (arguments.path()?, arguments.path()?);
        let args = copy_args(&options, image, output)?;
        let stdout_is_data = args.other.is_none();
        Ok(Prepared::new(move || run(&args)).with_data_on_stdout(stdout_is_data))
    },
};

fn run(args: &CopyArgs) -> anyhow::Result<()> {
    let mut output = check_output(args)?;
    let unlocked = open(context(), &args.source, false, None)?;
    let access = engine::Access { read_only: true, allow_discards: false };
    let stores = unlocked.into_device(IoMode::Sync, access)?;
    let device = BlockingDevice::new(stores.device.clone());
    let (start, len) = copy::within(args.range, device.len())?;
    output.begin(len)?;
    let mut progress = Progress::start(args.show, &args.source.image, Some(len), args.other.is_none());

    let holes = Holes::of(&stores.device, start, len)?;
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
                write(&mut output, chunk)?;
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

/// Parts of a volume that were never written, and would decrypt to noise, or are holes that read as zeroes.
struct Holes<'a> {
    device: &'a engine::Device,
    /// Zones of a range.
    zones: Vec<Zone>,
}

impl<'a> Holes<'a> {
    fn of(device: &'a engine::Device, start: u64, len: u64) -> anyhow::Result<Self> {
        Ok(Self { device, zones: zones::report(device, start, start + len)? })
    }

    /// Returns the length of a hole that starts at `at`, at most `len`.
    fn next(&self, at: u64, len: u64) -> Option<u64> {
        if let Some(zone) = zones::at(&self.zones, at) {
            return (at >= zones::written_to(zone)).then(|| zone.start + zone.len - at);
        }
        let mapping = self.device.mapping();
        if mapping.is_encrypted() && !mapping.has_zero_holes() {
            return None;
        }
        self.device.block_status(at, len).ok().filter(|run| run.hole && run.len > 0).map(|run| run.len)
    }

    /// Returns the number of bytes from `at`, which is in no hole, to the next hole.
    fn written_from(&self, at: u64) -> u64 {
        zones::at(&self.zones, at).map_or(u64::MAX, |zone| zones::written_to(zone) - at)
    }
}

/// Writes data without the zeroes that the output need not have.
fn write(output: &mut Output, data: &[u8]) -> inlock_open::Result<()> {
    if !output.is_sparse() {
        return output.write(data);
    }
    copy::runs(data).try_for_each(|(_, bytes, zero)| match zero {
        true => output.zeroes(bytes.len() as u64),
        false => output.write(bytes),
    })
}

/// Opens and locks the output before a passphrase is asked for.
fn check_output(args: &CopyArgs) -> anyhow::Result<Output> {
    if args.other.is_none() && rustix::termios::isatty(io::stdout()) {
        return Err(CliError::refused(
            "Standard output is a terminal.",
            "redirect it to a file or a program: inlock export ... - | ...",
        ));
    }
    let inputs: Vec<&Path> = std::iter::once(&*args.source.image).chain(args.source.header.as_deref()).collect();
    output::take(args.other.as_deref(), &inputs, Existing::Asked { batch: args.batch })
}
