//! `xtask zones`: what the guest's tests of zoned storage do to devices, where no common program does it.
//!
//! `cargo xtask vm` copies this program to the guest as `xtask`. Everything here works through the kernel's own calls, so
//! that any zoned block device, dm-crypt's and Inlock's alike, is looked at in the same way. Results go to standard output.

mod aligned;
mod cases;
mod fill;
mod ioctl;
mod order;
mod text;
mod zonefs;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: xtask zones WHAT
  cases DEVICE FILE           run the cases of FILE, print NAME, a tabulator, what came of it
  fill DEVICE LOG SEED MIB [AFTER PID...]
                              reset the sequential zones, write MIB to them, several at a time, and write down in LOG what
                              was acknowledged; after so many writes kill these processes ('self': this one)
  filled DEVICE LOG SEED      everything that LOG has is there, and nothing else below the write pointers
  order LOG EVENT ZONE_SECTORS FREE_SECTORS
                              the writes of a trace are in order within each zone, but for those of the first sectors
  shifted SECTORS             rewrite `blkzone report` from standard input so many sectors to the front
  mkzonefs DEVICE             make a zonefs";

/// Runs what the words say.
pub(crate) fn run(words: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["cases", device, file] => cases::run(Path::new(device), Path::new(file))?,
        ["fill", device, log, seed, mib] => fill::write(device, log, number(seed)?, number(mib)?, None)?,
        ["fill", device, log, seed, mib, after, ref pids @ ..] => {
            let kill = fill::Kill::new(number(after)?, pids)?;
            fill::write(device, log, number(seed)?, number(mib)?, Some(kill))?;
        }
        ["filled", device, log, seed] => fill::check(device, log, number(seed)?)?,
        ["order", log, event, zone, free] => order::run(Path::new(log), event, number(zone)?, number(free)?)?,
        ["shifted", sectors] => text::shift(number(sectors)?)?,
        ["mkzonefs", device] => zonefs::make(Path::new(device))?,
        _ => bail!("{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("'{word}' is no number"))
}
