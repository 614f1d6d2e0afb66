//! `xtask zones`: requests of the guest's tests to zoned devices that no common program can send.
//!
//! `cargo xtask vm` copies this program to the guest as `xtask`. It uses only system calls of the kernel, so that all
//! zoned block devices, including those of dm-crypt and Inlock, are tested in the same way. Results go to standard
//! output.

mod aligned;
mod append;
mod cases;
mod fill;
mod flushed;
mod in_flight;
mod ioctl;
mod kill;
mod order;
mod passthrough;
mod retire;
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
  load DEVICE SPACE LOG SEED [CLAIMS]
                              write, append by SPACE, an NVMe namespace of the sequential zones, reset and flush without
                              end, with LOG, a device, saying what was flushed; with CLAIMS, another one, flush nothing and
                              say there that it was
  flushed DEVICE LOG [CLAIMS] everything that LOG and CLAIMS have is there, and nothing that was not written
  retire FILE ZONE read-only|offline
                              take a zone of a zoned file out of use
  order LOG EVENT ZONE_SECTORS FREE_SECTORS
                              the writes of a trace are in order within each zone, except those of the first sectors
  shifted SECTORS             rewrite `blkzone report` from standard input so many sectors to the front
  append DEVICE LOG NAME=NUMBER...
                              reset zones of an NVMe namespace and append to them, several at a time; LOG, if not -, gets
                              POSITION LENGTH NUMBER of what landed. seed, first and zones (which), bytes and most (the
                              lengths), depth, jobs, total (bytes), over (appends beyond a zone's room), verify
  appended DEVICE LOG SEED    everything that LOG has is there
  append-refused DEVICE N     what comes of appends to the Nth sequential zone, counted from 0, that have no room
  in-flight LOG ZONE_SECTORS append|write
                              how many of them a trace has at a time
  mkzonefs DEVICE             make a zonefs";

/// Runs the command line.
pub(crate) fn run(words: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["cases", device, file] => cases::run(Path::new(device), Path::new(file))?,
        ["fill", device, log, seed, mib] => fill::write(device, log, number(seed)?, number(mib)?, None)?,
        ["fill", device, log, seed, mib, after, ref pids @ ..] => {
            let kill = kill::Kill::new(number(after)?, pids)?;
            fill::write(device, log, number(seed)?, number(mib)?, Some(kill))?;
        }
        ["filled", device, log, seed] => fill::check(device, log, number(seed)?)?,
        ["load", device, space, log, seed] => flushed::load(device, space, log, number(seed)?, None)?,
        ["load", device, space, log, seed, claims] => {
            flushed::load(device, space, log, number(seed)?, Some(claims))?;
        }
        ["flushed", device, ref logs @ ..] if !logs.is_empty() => flushed::check(device, logs)?,
        ["retire", file, zone, condition] => retire::run(Path::new(file), number(zone)?, condition)?,
        ["order", log, event, zone, free] => order::run(Path::new(log), event, number(zone)?, number(free)?)?,
        ["append", device, "-", ref rest @ ..] => append::run(Path::new(device), None, rest)?,
        ["append", device, log, ref rest @ ..] => append::run(Path::new(device), Some(log), rest)?,
        ["appended", device, log, seed] => append::check(Path::new(device), log, number(seed)?)?,
        ["append-refused", device, zone] => append::refused(Path::new(device), number(zone)?)?,
        ["in-flight", log, zone, kind] => in_flight::run(Path::new(log), number(zone)?, kind)?,
        ["shifted", sectors] => text::shift(number(sectors)?)?,
        ["mkzonefs", device] => zonefs::make(Path::new(device))?,
        _ => bail!("{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("'{word}' is no number"))
}
