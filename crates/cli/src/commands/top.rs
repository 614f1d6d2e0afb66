//! `top`: I/O rates of running volumes: on a terminal until `q`, otherwise as a table or JSON each second.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::{Map, Value, json};

use crate::args::action::{Action, Prepared};
use crate::error::CliError;
use crate::host::context;
use crate::system::signals::{self, Caught};
use crate::ui::columns::Columns;
use crate::ui::print::{print, print_controls};
use inlock_serve::Error;
use inlock_serve::control::client::{self, Client, Found};
use inlock_serve::control::files::Files;
use inlock_serve::control::metrics::{Buckets, Percentiles, Sample, Time};
use inlock_serve::control::name::Name;
use inlock_serve::control::servers::ServerFiles;
use inlock_serve::many::control;

pub(crate) const ACTION: Action = Action {
    name: "top",
    aliases: &[],
    arguments: &["[<name>...]"],
    options: &[&["json", "once"]],
    about: "show live I/O statistics of volumes",
    prepare: |options, arguments| {
        let names = arguments.names()?;
        Ok(Prepared::new(move || run(Source::Names(&names), options.once, options.json)))
    },
};

/// Interval of the rates.
const INTERVAL: Duration = Duration::from_secs(1);

/// The volumes to watch.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Volumes with these names; none: all of the run directory.
    Names(&'a [Name]),
    /// The open volumes of the server with this control socket.
    Server(&'a Path),
}

/// Shows the rates of volumes.
pub(super) fn run(source: Source<'_>, once: bool, json: bool) -> anyhow::Result<()> {
    let mut watch = Watch { source, last: BTreeMap::new() };
    let is_named = matches!(source, Source::Names([_, ..]));
    for row in watch.look()?.iter().filter(|row| once && row.rates.is_none() && is_named) {
        if matches!(row.state, "inactive" | "gone") {
            return Err(Error::Inactive { name: row.name.clone() }.into());
        }
    }
    if !once && !json && isatty(rustix::stdio::stdout()) && isatty(rustix::stdio::stdin()) {
        return live(&mut watch);
    }
    loop {
        std::thread::sleep(INTERVAL);
        let rows = watch.look()?;
        if json {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            print(format_args!("{}\n", Value::Array(rows)))?;
        } else {
            print(columns(&rows))?;
        }
        if once {
            return Ok(());
        }
    }
}

/// The volumes to watch, and their last samples.
struct Watch<'a> {
    source: Source<'a>,
    /// Last sample of each volume, by name and process.
    last: BTreeMap<(String, u32), Sample>,
}

/// A volume and its rates.
struct Row {
    name: String,
    state: &'static str,
    /// `None`: there are not two samples of the same process.
    rates: Option<Rates>,
}

struct Rates {
    secs: f64,
    reads: f64,
    writes: f64,
    flushes: f64,
    errors: f64,
    bytes_read: f64,
    bytes_written: f64,
    /// Share of encrypted or decrypted requests.
    inline: Option<f64>,
    units_per_call: f64,
    latency: BTreeMap<String, Percentiles>,
    /// Rates of a dm-integrity volume.
    integrity: Option<IntegrityRates>,
}

struct IntegrityRates {
    commits: f64,
    mismatches: f64,
    /// `None`: clients wrote nothing.
    write_amplification: Option<f64>,
}

impl Watch<'_> {
    fn look(&mut self) -> anyhow::Result<Vec<Row>> {
        let volumes = match self.source {
            Source::Names([]) => all()?,
            Source::Names(names) => names.iter().map(found).collect::<Result<_, _>>()?,
            Source::Server(socket) => samples_of(socket)?,
        };
        let mut now = BTreeMap::new();
        let mut rows = Vec::new();
        for (name, pid, state, sample) in volumes {
            let place = (name.clone(), pid);
            let is_same = |before: &&Sample| sample.as_ref().is_some_and(|now| before.at_ns <= now.at_ns);
            let before = self.last.get(&place).filter(is_same);
            let rates = sample.as_ref().zip(before).map(|(now, before)| Rates::between(before, now));
            now.extend(sample.map(|sample| (place, sample)));
            rows.push(Row { name, state, rates });
        }
        self.last = now;
        Ok(rows)
    }
}

/// Name, process id, state and sample of a volume.
type Volume = (String, u32, &'static str, Option<Sample>);

/// Samples all volumes of the run directory, and the open ones of its servers.
fn all() -> Result<Vec<Volume>, Error> {
    let mut all: Vec<Volume> = Files::all()?
        .into_iter()
        .map(|files| sampled(files.name(), Client::find_at(context(), files.clone())))
        .collect();
    for server in ServerFiles::all()? {
        // One that does not reply is not shown, as it does not tell its volumes.
        let samples = client::samples(context(), &server).unwrap_or_default();
        all.extend(samples.into_iter().map(|(name, sample)| (name, server.pid(), state_of(&sample), Some(sample))));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

fn found(name: &Name) -> Result<Volume, Error> {
    Files::of(name)?;
    Ok(sampled(name, Client::find(context(), name)))
}

fn sampled(name: &Name, found: Result<Found, Error>) -> Volume {
    let mut pid = 0;
    let (state, sample) = match found {
        Ok(Found::Active(mut client)) => {
            pid = client.pid();
            match client.sample() {
                Ok(sample) => (state_of(&sample), Some(sample)),
                Err(_) => ("unreachable", None),
            }
        }
        Ok(Found::Gone(_)) => ("gone", None),
        Ok(Found::Unusable(unusable)) => (unusable.state(), None),
        Ok(Found::Inactive) => ("inactive", None),
        Err(_) => ("unreachable", None),
    };
    (name.to_string(), pid, state, sample)
}

fn samples_of(socket: &Path) -> anyhow::Result<Vec<Volume>> {
    let mut reply = control::call(context(), socket, &control::request("stats", None), None)?;
    let samples: BTreeMap<String, Sample> = serde_json::from_value(reply.remove("samples").unwrap_or_default())?;
    Ok(samples.into_iter().map(|(name, sample)| (name, 0, state_of(&sample), Some(sample))).collect())
}

fn state_of(sample: &Sample) -> &'static str {
    if sample.suspended { "suspended" } else { "active" }
}

impl Rates {
    fn between(before: &Sample, now: &Sample) -> Self {
        let secs = now.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
        let rate = |count: fn(&Sample) -> u64| count(now).saturating_sub(count(before)) as f64 / secs;
        let (inline, offloaded) = (rate(|s| s.counters.inline), rate(|s| s.counters.offloaded));
        let (calls, units) = (rate(|s| s.counters.cipher_calls), rate(|s| s.counters.cipher_units));
        let none = Buckets::default();
        let percentiles = |(name, buckets): (&String, &Buckets)| {
            let before = before.histograms_ns.get(name).unwrap_or(&none);
            (name.clone(), Percentiles::from(&buckets.since(before)))
        };
        Self {
            secs,
            reads: rate(|s| s.counters.reads),
            writes: rate(|s| s.counters.writes + s.counters.write_zeroes),
            flushes: rate(|s| s.counters.flushes),
            errors: rate(|s| s.counters.errors),
            bytes_read: rate(|s| s.counters.bytes_read),
            bytes_written: rate(|s| s.counters.bytes_written),
            inline: (inline + offloaded > 0.0).then(|| inline / (inline + offloaded)),
            units_per_call: if calls > 0.0 { units / calls } else { 0.0 },
            latency: now.histograms_ns.iter().map(percentiles).collect(),
            integrity: now.integrity.zip(before.integrity).map(|(now, before)| {
                let diff = now.since(&before);
                IntegrityRates {
                    commits: diff.commits as f64 / secs,
                    mismatches: diff.mismatches as f64 / secs,
                    write_amplification: diff.write_amplification(),
                }
            }),
        }
    }
}

impl Row {
    fn json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_owned(), self.name.as_str().into());
        fields.insert("state".to_owned(), self.state.into());
        if let Some(rates) = &self.rates {
            let more = json!({
                "interval_s": rates.secs,
                "reads_per_s": rates.reads,
                "writes_per_s": rates.writes,
                "flushes_per_s": rates.flushes,
                "errors_per_s": rates.errors,
                "read_bytes_per_s": rates.bytes_read,
                "write_bytes_per_s": rates.bytes_written,
                "inline_share": rates.inline,
                "units_per_call": rates.units_per_call,
                "latency_ns": rates.latency,
            });
            if let Value::Object(more) = more {
                fields.extend(more);
            }
            if let Some(integrity) = &rates.integrity {
                let integrity = json!({
                    "commits_per_s": integrity.commits,
                    "mismatches_per_s": integrity.mismatches,
                    "write_amplification": integrity.write_amplification,
                });
                fields.insert("integrity".to_owned(), integrity);
            }
        }
        Value::Object(fields)
    }
}

fn columns(rows: &[Row]) -> Columns {
    let has_integrity = |row: &Row| row.rates.as_ref().is_some_and(|rates| rates.integrity.is_some());
    let shows_integrity = rows.iter().any(has_integrity);
    let mut headings = vec![
        "NAME",
        "STATE",
        "READ/s",
        "WRITE/s",
        "READ MB/s",
        "WRITE MB/s",
        "p50",
        "p99",
        "p99.9",
        "INLINE",
        "OFFLOADED",
        "ERROR/s",
    ];
    if shows_integrity {
        headings.extend(["COMMIT/s", "MISMATCH/s", "WRITTEN"]);
    }
    let mut columns = Columns::new(&headings);
    for row in rows {
        let mut cells = vec![row.name.clone(), row.state.to_owned()];
        if let Some(rates) = &row.rates {
            let total = rates.latency.get("total").cloned().unwrap_or_default();
            let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            cells.extend([rates.reads, rates.writes].map(|rate| format!("{rate:.0}")));
            cells.extend([rates.bytes_read, rates.bytes_written].map(|rate| format!("{:.1}", rate / 1e6)));
            let time = |ns| if total.count == 0 { "-".to_owned() } else { Time(ns).to_string() };
            cells.extend([total.p50, total.p99, total.p99_9].map(time));
            cells.extend([share(rates.inline), share(rates.inline.map(|inline| 1.0 - inline))]);
            cells.push(format!("{:.0}", rates.errors));
            if shows_integrity {
                let integrity = rates.integrity.as_ref();
                let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
                cells.extend([rate(integrity.map(|i| i.commits)), rate(integrity.map(|i| i.mismatches))]);
                let times = integrity.and_then(|i| i.write_amplification);
                cells.push(times.map_or("-".to_owned(), |times| format!("{times:.2}x")));
            }
        }
        columns.row(cells);
    }
    columns
}

/// The view on a terminal.
fn live(watch: &mut Watch<'_>) -> anyhow::Result<()> {
    let input = rustix::stdio::stdin();
    let caught = signals::catch()?;
    let mut rows = watch.look()?;
    let mut screen = Some(Screen::enter(input)?);
    loop {
        draw(&rows)?;
        match pause(input, &caught)? {
            Woken::Tick => rows = watch.look()?,
            Woken::Quit => return Ok(()),
            Woken::Signal(number) => {
                screen = None;
                if number != Signal::TSTP.as_raw() {
                    return Err(CliError::Interrupted(number).into());
                }
                signals::default_action(number);
            }
        }
        if screen.is_none() {
            screen = Some(Screen::enter(input)?);
        }
    }
}

enum Woken {
    Tick,
    Quit,
    Signal(i32),
}

/// Blocks for the interval, or until a key or a signal.
fn pause(input: BorrowedFd<'_>, caught: &Caught) -> anyhow::Result<Woken> {
    let until = Instant::now() + INTERVAL;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let woken = caught.fd();
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Ok(Woken::Tick),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(number) = caught.take() {
            return Ok(Woken::Signal(number));
        }
        if !fds[0].revents().is_empty() {
            let mut keys = [0; 64];
            match rustix::io::read(input, &mut keys) {
                Ok(0) => return Ok(Woken::Quit),
                Ok(len) if keys[..len].iter().any(|key| b"qQ".contains(key)) => return Ok(Woken::Quit),
                // Otherwise the input would stay readable, and fail again.
                Err(error) if error != rustix::io::Errno::INTR && error != rustix::io::Errno::AGAIN => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
    }
}

fn draw(rows: &[Row]) -> anyhow::Result<()> {
    let size = tcgetwinsize(rustix::stdio::stdout());
    let (width, height) = size.map_or((0, 0), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    // Default size of a terminal that does not report its own.
    let (width, height) = (if width == 0 { 80 } else { width }, if height == 0 { 24 } else { height });
    let body = if rows.is_empty() { "no active volumes\n".to_owned() } else { columns(rows).to_string() };
    let text = format!("inlock top: rates over the last second (q: quit)\n\n{body}");
    let mut frame = String::from("\x1b[H");
    for line in text.lines().take(height.max(2) - 1) {
        frame.extend(line.chars().take(width));
        frame += "\x1b[K\n";
    }
    print_controls(&(frame + "\x1b[J"))
}

/// The alternate screen of the terminal, without echo and line buffering, until dropped.
struct Screen<'a> {
    input: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Screen<'a> {
    fn enter(input: BorrowedFd<'a>) -> anyhow::Result<Self> {
        let before = tcgetattr(input)?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(input, OptionalActions::Now, &keys)?;
        let screen = Self { input, before };
        print_controls("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(screen)
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
        let _ = tcsetattr(self.input, OptionalActions::Now, &self.before);
    }
}
