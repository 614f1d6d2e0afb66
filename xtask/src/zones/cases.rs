//! Runs a table of operations on zones, and prints the kernel's results and the resulting states.
//!
//! A line of the table is NAME, a tab, STEP; STEP; ..., and the expected result, which is ignored here, as are lines
//! that start with a tab. A step is a verb with an offset and a length: `write s0+1 4`. Offsets and lengths are sums
//! of: blocks of 4096 bytes (`4`), bytes (`512B`), zones (`2z`), the capacity of a zone (`cap`), the first, second, ...
//! sequential (`s0`), conventional (`c0`), read-only (`ro0`), offline zone (`of0`), the device's end (`end`). After
//! `r:` a step uses a read-only descriptor.
//!
//! Each line starts with all sequential zones empty.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;

use super::aligned::{self, Aligned, BLOCK};
use super::ioctl::{self, Action, CONVENTIONAL, Number, Zone};
use super::text;

const SECTOR: u64 = 512;
/// Maximum length of a read or write in a step.
const LONGEST: u64 = 16 << 20;

/// Prints `NAME`, a tab and `RESULT... | ZONES` for each line of the table.
pub(super) fn run(device: &Path, table: &Path) -> Result<()> {
    let table = std::fs::read_to_string(table).with_context(|| format!("cannot read {}", table.display()))?;
    let mut bench = Bench::new(device)?;
    for (n, line) in table.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '\t'])).enumerate() {
        let mut fields = line.split('\t');
        let (name, steps) = fields.next().zip(fields.next()).with_context(|| format!("cannot parse: {line}"))?;
        let result = bench.case(n as u64, steps).with_context(|| name.to_owned())?;
        println!("{name}\t{result}");
    }
    Ok(())
}

/// A device and its known contents.
struct Bench {
    both: File,
    reading: File,
    zones: Vec<Zone>,
    /// Seeds of the bytes written to sectors; later entries override earlier ones. `None`: unknown.
    written: Vec<(Range<u64>, Option<u64>)>,
    bytes: Aligned,
}

impl Bench {
    fn new(device: &Path) -> Result<Self> {
        let open = |write| aligned::open(device, write).with_context(|| format!("cannot open {}", device.display()));
        let (both, reading) = (open(true)?, open(false)?);
        let zones = ioctl::all_zones(&both)?;
        ensure!(!zones.is_empty(), "{} has no zones", device.display());
        Ok(Self { both, reading, zones, written: Vec::new(), bytes: Aligned::new(LONGEST as usize) })
    }

    fn case(&mut self, number: u64, steps: &str) -> Result<String> {
        self.clear()?;
        let mut results = Vec::new();
        for (n, step) in steps.split(';').enumerate() {
            let Some(result) = self.step(step.trim(), number << 8 | n as u64)? else { return Ok("absent".into()) };
            results.push(result);
        }
        Ok(format!("{} |{}", results.join(" "), self.state()?))
    }

    /// Empties all sequential zones.
    fn clear(&mut self) -> Result<()> {
        self.written.clear();
        for zone in ioctl::all_zones(&self.both)?.iter().filter(|zone| zone.is_usable()) {
            if zone.letters() != "em" {
                ioctl::act(&self.both, Action::Reset, zone.start, zone.len).context("cannot reset a zone")?;
            }
        }
        Ok(())
    }

    /// Returns the result of a step. `None`: the device lacks an object that it names.
    fn step(&mut self, step: &str, seed: u64) -> Result<Option<String>> {
        let (reading, step) = step.strip_prefix("r:").map_or((false, step), |step| (true, step));
        let words: Vec<&str> = step.split_whitespace().collect();
        let (verb, rest) = words.split_first().context("an empty step")?;
        let mut numbers = Vec::new();
        for word in rest {
            let Some(number) = self.sum(word)? else { return Ok(None) };
            numbers.push(number);
        }
        let device = if reading { self.reading.try_clone()? } else { self.both.try_clone()? };
        let result = match (*verb, &numbers[..]) {
            ("write", &[place, len]) => said(self.write(&device, place, len, seed)),
            ("read", &[place, len]) => match self.read(&device, place, len)? {
                Ok(true) => "ok".to_owned(),
                Ok(false) => "differs".to_owned(),
                Err(errno) => text::name(errno),
            },
            ("report", &[place, len]) => match ioctl::report(&device, place / SECTOR, (len / BLOCK) as u32) {
                Ok(zones) => zones.len().to_string(),
                Err(errno) => text::name(errno),
            },
            ("flush", &[]) => said(device.sync_all().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))),
            ("zones", &[]) => ioctl::number(&device, Number::Zones).map_or_else(text::name, |n| n.to_string()),
            ("zone-len", &[]) => ioctl::number(&device, Number::ZoneLen).map_or_else(text::name, |n| n.to_string()),
            (verb, &[place, len]) => {
                let action = action(verb).with_context(|| format!("no step is called {verb}"))?;
                self.act(&device, action, place, len)
            }
            _ => bail!("cannot parse: {step}"),
        };
        Ok(Some(result))
    }

    fn write(&mut self, device: &File, place: u64, len: u64, seed: u64) -> Result<(), Errno> {
        let part = &mut self.bytes.get_mut()[..len as usize];
        aligned::stamp(part, place, seed);
        aligned::write(device, part, place)?;
        self.written.push((place / SECTOR..(place + len) / SECTOR, Some(seed)));
        Ok(())
    }

    /// Whether a read returns the written data.
    fn read(&mut self, device: &File, place: u64, len: u64) -> Result<Result<bool, Errno>> {
        let part = self.bytes.get_mut().get_mut(..len as usize).context("too long")?;
        if let Err(errno) = aligned::read(device, part, place) {
            return Ok(Err(errno));
        }
        let mut sectors = part.chunks(SECTOR as usize).zip(place / SECTOR..);
        Ok(Ok(sectors.all(|(bytes, sector)| {
            let last = self.written.iter().rfind(|(range, _)| range.contains(&sector));
            last.and_then(|(_, seed)| *seed).is_none_or(|seed| aligned::is_stamped(bytes, sector * SECTOR, seed))
        })))
    }

    fn act(&mut self, device: &File, action: Action, place: u64, len: u64) -> String {
        let done = ioctl::act(device, action, place / SECTOR, len / SECTOR);
        if done.is_ok() && !matches!(action, Action::Open | Action::Close | Action::Finish) {
            self.written.push((place / SECTOR..(place + len) / SECTOR, None));
        }
        said(done)
    }

    /// Returns the non-empty sequential zones: index, condition, write pointer in blocks from the start; then the
    /// numbers of implicitly open and of closed zones. Which open zone is closed for another one is the device's
    /// choice.
    fn state(&self) -> Result<String> {
        let (mut state, mut implicit, mut closed) = (String::new(), 0, 0);
        let zones = ioctl::all_zones(&self.both)?;
        for (n, zone) in zones.iter().filter(|zone| zone.is_usable()).enumerate() {
            let at = zone.write_pointer.wrapping_sub(zone.start) * SECTOR;
            let (blocks, rest) = (at / BLOCK, at % BLOCK);
            let rest = if rest == 0 { String::new() } else { format!("+{rest}B") };
            let letters = zone.letters();
            (implicit, closed) = (implicit + u32::from(letters == "oi"), closed + u32::from(letters == "cl"));
            match letters {
                "em" if at == 0 => {}
                // The standards leave the write pointer of a full zone open.
                "fu" => state += &format!(" s{n}:fu"),
                "oi" | "cl" => state += &format!(" s{n}:{blocks}{rest}"),
                letters => state += &format!(" s{n}:{letters}+{blocks}{rest}"),
            }
        }
        if implicit + closed > 0 {
            state += &format!(" oi{implicit} cl{closed}");
        }
        Ok(state)
    }

    /// Parses an offset or a length in bytes. No device has an offset before its first byte.
    fn sum(&self, word: &str) -> Result<Option<u64>> {
        let mut sum = 0u64;
        for part in word.replace('-', "+-").split('+') {
            let (minus, term) = part.strip_prefix('-').map_or((false, part), |term| (true, term));
            let Some(value) = self.term(term).with_context(|| format!("cannot parse: {word}"))? else {
                return Ok(None);
            };
            sum = if minus { sum.wrapping_sub(value) } else { sum.wrapping_add(value) };
        }
        Ok(Some(sum).filter(|sum| i64::try_from(*sum).is_ok()))
    }

    fn term(&self, term: &str) -> Result<Option<u64>> {
        let first = self.zones.iter().find(|zone| zone.is_usable()).context("there is no sequential zone")?;
        let last = self.zones.last().context("there is no zone")?;
        let split = term.find(|c: char| c.is_ascii_digit()).unwrap_or(term.len());
        let (name, rest) = term.split_at(split);
        let digits = rest.trim_end_matches(['B', 'z']);
        let number: u64 = if digits.is_empty() { 0 } else { digits.parse()? };
        let nth = |fits: &dyn Fn(&Zone) -> bool| {
            self.zones.iter().filter(|zone| fits(zone)).nth(number as usize).map(|zone| zone.start * SECTOR)
        };
        Ok(match (name, &rest[digits.len()..]) {
            ("", "B") => Some(number),
            ("", "z") => Some(number * first.len * SECTOR),
            ("", "") => Some(number * BLOCK),
            ("cap", "") => Some(first.capacity * SECTOR),
            ("end", "") => Some((last.start + last.len) * SECTOR),
            ("s", "") => nth(&Zone::is_usable),
            ("c", "") => nth(&|zone| zone.kind == CONVENTIONAL),
            ("ro", "") => nth(&|zone| zone.letters() == "ro"),
            ("of", "") => nth(&|zone| zone.letters() == "of"),
            _ => bail!("there is no '{term}'"),
        })
    }
}

fn action(verb: &str) -> Option<Action> {
    Some(match verb {
        "reset" => Action::Reset,
        "open" => Action::Open,
        "close" => Action::Close,
        "finish" => Action::Finish,
        "discard" => Action::Discard,
        "zeroout" => Action::Zeroout,
        _ => return None,
    })
}

fn said(result: Result<(), Errno>) -> String {
    result.map_or_else(text::name, |()| "ok".to_owned())
}
