//! `bench compare`: Inlock's NBD server and others, in one run.
//!
//! All servers run at once on images of one length in one directory. Short runs of the client visit them in turn, in
//! another order each round, so that a noisy minute affects all of them. Rates are medians over the rounds, ratios the
//! medians of the rounds' ratios; CPU time is the sum over all rounds, divided by the bytes moved.

use std::path::Path;
use std::time::Duration;

use crate::fio::{self, Sample};
use crate::options::Options;
use crate::placement::{Cpus, Placement};
use crate::progress::Progress;
use crate::results::{Measurement, Results, Threshold};
use crate::servers::{Kind, Server};
use crate::statistics::{median, percentile, ratio};
use crate::tables::size_text;
use crate::wire::{self, Client};

/// A load without its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub write: bool,
    pub random: bool,
    pub block: usize,
    pub depth: usize,
    pub placement: Placement,
}

const fn load(write: bool, random: bool, block: usize, depth: usize) -> Load {
    Load { write, random, block, depth, placement: Placement::Any }
}

const fn placed(write: bool, placement: Placement) -> Load {
    Load { write, random: true, block: 4 << 10, depth: 1, placement }
}

/// The loads, in the order of the tables. Those of depth 1 measure latency.
pub(crate) const LOADS: [Load; 10] = [
    load(false, true, 4 << 10, 16),
    load(true, true, 4 << 10, 16),
    load(false, false, 128 << 10, 8),
    load(true, false, 128 << 10, 8),
    load(false, false, 1 << 20, 4),
    load(true, false, 1 << 20, 4),
    placed(false, Placement::OneCpu),
    placed(true, Placement::OneCpu),
    placed(false, Placement::TwoCpus),
    placed(true, Placement::TwoCpus),
];

impl Load {
    pub(crate) fn operation(self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        format!("{order} {}", if self.write { "write" } else { "read" })
    }

    /// Returns a name such as `4 KiB random read, depth 16`, or `4 KiB random read, depth 1, one CPU`.
    pub(crate) fn name(self) -> String {
        let name = format!("{} {}, depth {}", size_text(self.block as u64), self.operation(), self.depth);
        self.placement.name().map_or_else(|| name.clone(), |placement| format!("{name}, {placement}"))
    }

    /// Names of the latency and of the rate in the load's placement.
    pub(crate) fn placed_measures(self) -> [&'static str; 2] {
        match self.placement {
            Placement::TwoCpus => ["median latency, two CPUs", "operations, two CPUs"],
            _ => ["median latency, one CPU", "operations, one CPU"],
        }
    }

    fn is_latency(self) -> bool {
        self.depth == 1
    }

    fn counts_cpu_time(self) -> bool {
        self.block == 1 << 20
    }

    fn timed(self, time: Duration) -> wire::Load {
        wire::Load { write: self.write, random: self.random, block: self.block, depth: self.depth, time }
    }
}

/// Samples of one server under one load.
#[derive(Clone, Debug, Default)]
struct Samples {
    /// Bytes per second of each round.
    rates: Vec<f64>,
    /// Median nanoseconds of each round.
    latencies: Vec<f64>,
    /// Bytes per second that the client could move if it never waited, of each round.
    limits: Vec<f64>,
    cpu_seconds: f64,
    bytes: f64,
}

/// Samples by load, then by server.
type Table = Vec<Vec<Samples>>;

pub(crate) fn run(options: &Options, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((5, 1000), (3, 200));
    let payload: u64 = if options.quick { 64 << 20 } else { 256 << 20 };
    let dir = tempfile::Builder::new().prefix("inlock-bench-").tempdir_in(&options.dir)?;
    let with_fio = fio::is_installed();
    let servers = start(dir.path(), payload, results)?;
    for server in &servers {
        Client::connect(&server.socket)?.fill()?;
    }
    let mut samples: Table = vec![vec![Samples::default(); servers.len()]; LOADS.len()];
    let progress = Progress::new(options, (rounds * LOADS.len() * servers.len()) as u64);
    let cpus = Cpus::select()?;
    for round in 0..rounds {
        for (row, load) in samples.iter_mut().zip(LOADS).filter(|(_, load)| cpus.can_place(load.placement)) {
            for turn in 0..servers.len() {
                let at = (turn + round) % servers.len();
                progress.step(&format!("compare: {}, {}", load.name(), servers[at].kind.name()));
                servers[at].place(&cpus, load.placement)?;
                let measured = || one(&servers[at], load.timed(slice), payload, with_fio, &mut row[at]);
                cpus.run_client(load.placement, measured)??;
                servers[at].place(&cpus, Placement::Any)?;
            }
        }
    }
    let kinds: Vec<Kind> = servers.iter().map(|server| server.kind).collect();
    note(&servers, rounds, slice, payload, with_fio, results);
    if !cpus.can_place(Placement::TwoCpus) {
        results.notes.push("this process may use one CPU: latency on two was not measured".to_owned());
    }
    report(&kinds, &samples, results);
    results.thresholds.extend(Thresholds { kinds: &kinds, samples: &samples }.rows());
    Ok(())
}

fn start(dir: &Path, payload: u64, results: &mut Results) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for kind in Kind::ALL {
        match Server::start(kind, dir, payload)? {
            Some(server) => servers.push(server),
            None => results.notes.push(format!("{} is not installed and was not measured", kind.name())),
        }
    }
    Ok(servers)
}

fn note(servers: &[Server], rounds: usize, slice: Duration, payload: u64, with_fio: bool, results: &mut Results) {
    let client =
        if with_fio { "fio's nbd engine" } else { "Inlock's own client (fio with its nbd engine is not installed)" };
    results.notes.push(format!(
        "compare: {rounds} rounds of {} ms for each server and load, interleaved; images of {}; one connection over a unix \
         socket; client: {client}",
        slice.as_millis(),
        size_text(payload),
    ));
    for server in servers {
        results.notes.push(format!("{}: {}", server.kind.name(), server.command_line));
    }
    if with_fio {
        let words = fio::arguments(Path::new("SOCKET"), LOADS[0].timed(slice), payload);
        results.notes.push(format!("client: fio {}", words.join(" ")));
    }
}

fn one(server: &Server, load: wire::Load, payload: u64, with_fio: bool, into: &mut Samples) -> anyhow::Result<()> {
    let before = server.cpu_seconds();
    let sample = if with_fio {
        fio::run(&server.socket, load, payload)?
    } else {
        let done = Client::connect(&server.socket)?.run(load)?;
        let bytes = done.requests as f64 * load.block as f64;
        let median_latency = percentile(&done.latencies, 0.5) as f64;
        Sample { bytes, bytes_per_second: bytes / done.elapsed.as_secs_f64(), median_latency, busy: None }
    };
    into.rates.push(sample.bytes_per_second);
    into.latencies.push(sample.median_latency);
    into.limits.extend(sample.busy.filter(|busy| *busy > 0.0).map(|busy| sample.bytes_per_second / busy));
    if let Some((before, after)) = before.zip(server.cpu_seconds()) {
        into.cpu_seconds += after - before;
        into.bytes += sample.bytes;
    }
    Ok(())
}

/// Seconds of the server's CPU time per GiB.
fn cpu_per_gib(samples: &Samples) -> Option<f64> {
    (samples.bytes > 0.0).then(|| samples.cpu_seconds / (samples.bytes / f64::from(1 << 30)))
}

/// Returns `None` if one of the two moved nothing, or took less than the resolution of the clock.
fn cpu_ratio(over: &Samples, under: &Samples) -> Option<f64> {
    let ratio = cpu_per_gib(over)? / cpu_per_gib(under)?;
    Some(ratio).filter(|ratio| ratio.is_finite())
}

/// Compares every server with Inlock's encrypted one, and that with Inlock's raw one.
fn report(kinds: &[Kind], table: &Table, results: &mut Results) {
    for (load, row) in LOADS.iter().zip(table) {
        for (at, kind) in kinds.iter().enumerate() {
            let base = if *kind == Kind::InlockLuks2 { Kind::InlockRaw } else { Kind::InlockLuks2 };
            let base_at = kinds.iter().position(|kind| *kind == base);
            let compared = |of: &dyn Fn(usize) -> Option<f64>| {
                let ratio = base_at.and_then(of)?;
                Some((base.name().to_owned(), ratio))
            };
            let row_of = |measure, value, unit, compared| Measurement {
                bench: "compare",
                case: kind.name().to_owned(),
                operation: load.operation(),
                block_size: load.block as u64,
                queue_depth: load.depth,
                measure,
                value,
                unit,
                compared,
            };
            let rate = median(&row[at].rates);
            let against = compared(&|other| ratio(&row[at].rates, &row[other].rates));
            if load.is_latency() {
                if row[at].rates.is_empty() {
                    continue;
                }
                let latencies = &row[at].latencies;
                let by_latency = compared(&|other| ratio(latencies, &row[other].latencies));
                let [latency, operations] = load.placed_measures();
                results.measurements.push(row_of(latency, median(latencies), "ns", by_latency));
                results.measurements.push(row_of(operations, rate / load.block as f64, "1/s", against));
                continue;
            }
            if load.block == 4 << 10 && !row[at].limits.is_empty() {
                let limit = median(&row[at].limits) / load.block as f64;
                results.measurements.push(row_of("client's limit", limit, "1/s", None));
            }
            results.measurements.push(if load.block == 4 << 10 {
                row_of("operations", rate / load.block as f64, "1/s", against)
            } else {
                row_of("throughput", rate / f64::from(1 << 20), "MiB/s", against)
            });
            if let Some(cpu) = cpu_per_gib(&row[at]).filter(|_| load.counts_cpu_time()) {
                let against = compared(&|other| cpu_ratio(&row[at], &row[other]));
                results.measurements.push(row_of("processor time", cpu, "s/GiB", against));
            }
        }
    }
}

/// Thresholds for the ratios between servers.
struct Thresholds<'a> {
    kinds: &'a [Kind],
    samples: &'a Table,
}

impl Thresholds<'_> {
    fn of(&self, load: usize, kind: Kind) -> Option<&Samples> {
        let at = self.kinds.iter().position(|k| *k == kind)?;
        self.samples[load].get(at)
    }

    fn rate(&self, load: usize, kind: Kind) -> Option<f64> {
        ratio(&self.of(load, Kind::InlockLuks2)?.rates, &self.of(load, kind)?.rates)
    }

    /// Returns the ratio to the faster of the two plain servers; `None` unless both ran.
    fn over_plain(&self, load: usize) -> Option<f64> {
        Some(self.rate(load, Kind::NbdkitFile)?.min(self.rate(load, Kind::QemuRaw)?))
    }

    fn rows(&self) -> Vec<Threshold> {
        let mut rows = Vec::new();
        for (at, load) in LOADS.into_iter().enumerate() {
            let name = format!("encrypted NBD, {}", load.name());
            let mut over = |kind: Kind, limit| {
                rows.push(Threshold::at_least(format!("{name}: over {}", kind.name()), self.rate(at, kind), limit));
            };
            match (load.block, load.is_latency(), load.write) {
                (_, true, _) if load.placement == Placement::OneCpu => {
                    over(Kind::QemuRaw, 1.0);
                    continue;
                }
                (_, true, _) => {
                    let of = |kind| self.of(at, kind).map(|samples| &samples.latencies[..]);
                    let found =
                        of(Kind::InlockLuks2).zip(of(Kind::NbdkitFile)).and_then(|(own, other)| ratio(own, other));
                    let what = format!("{name}: median latency over nbdkit file");
                    rows.push(Threshold::at_most(what, found, 1.0));
                    continue;
                }
                (0x1000, _, false) => {
                    over(Kind::NbdkitFile, 1.5);
                    over(Kind::Null, 0.9);
                }
                (0x1000, _, true) => {
                    over(Kind::NbdkitFile, 1.2);
                    over(Kind::QemuRaw, 1.5);
                }
                _ => {
                    over(Kind::NbdkitLuks, 2.5);
                    over(Kind::QemuLuks, 5.0);
                    over(Kind::Null, 0.4);
                    let what = format!("{name}: over the faster of nbdkit file and qemu-nbd raw");
                    rows.push(Threshold::at_least(what, self.over_plain(at), 1.0));
                }
            }
            rows.push(Threshold::at_least(format!("{name}: over own raw"), self.rate(at, Kind::InlockRaw), 0.9));
            if load.counts_cpu_time() {
                let own = self.of(at, Kind::InlockLuks2);
                let found = own.zip(self.of(at, Kind::NbdkitLuks)).and_then(|(own, other)| cpu_ratio(own, other));
                rows.push(Threshold::at_most(format!("{name}: CPU time over nbdkit luks"), found, 0.4));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rate: f64, latency: f64, cpu_seconds: f64) -> Samples {
        let limits = vec![rate / 0.9];
        Samples { rates: vec![rate], latencies: vec![latency], limits, cpu_seconds, bytes: f64::from(1 << 30) }
    }

    #[test]
    fn thresholds_with_all_servers_are_all_decided() {
        let kinds = Kind::ALL;
        let row: Vec<Samples> = [
            (10.0, 5.0, 1.0),
            (10.0, 5.0, 1.0),
            (10.0, 5.0, 1.0),
            (5.0, 6.0, 1.0),
            (4.0, 6.0, 1.0),
            (2.0, 9.0, 4.0),
            (1.0, 9.0, 9.0),
        ]
        .into_iter()
        .chain([(10.0, 4.0, 0.0)])
        .map(|(rate, latency, cpu)| samples(rate, latency, cpu))
        .collect();
        let table = vec![row; LOADS.len()];
        let thresholds = Thresholds { kinds: &kinds, samples: &table }.rows();
        let undecided: Vec<&Threshold> = thresholds.iter().filter(|row| row.met() != Some(true)).collect();
        assert!(undecided.is_empty(), "{undecided:?}");
        assert_eq!(thresholds.len(), 3 + 3 + 4 * 5 + 2 + 4);
    }

    #[test]
    fn cpu_ratio_without_time_is_none() {
        assert_eq!(cpu_ratio(&samples(1.0, 1.0, 1.0), &samples(1.0, 1.0, 0.0)), None);
        assert_eq!(cpu_ratio(&samples(1.0, 1.0, 1.0), &samples(1.0, 1.0, 4.0)), Some(0.25));
        assert_eq!(cpu_ratio(&samples(1.0, 1.0, 1.0), &Samples::default()), None);
    }

    #[test]
    fn thresholds_of_a_missing_server_are_not_measured() {
        let kinds = [Kind::InlockLuks2, Kind::InlockRaw];
        let table = vec![vec![samples(8.0, 1.0, 1.0), samples(10.0, 1.0, 1.0)]; LOADS.len()];
        let thresholds = Thresholds { kinds: &kinds, samples: &table }.rows();
        let decided: Vec<&Threshold> = thresholds.iter().filter(|row| row.ratio.is_some()).collect();
        assert_eq!(decided.len(), 6);
        assert!(decided.iter().all(|row| row.met() == Some(false)), "0.8 of raw is too little");
        let mut results = Results::default();
        report(&kinds, &table, &mut results);
        let (limits, others): (Vec<_>, Vec<_>) =
            results.measurements.iter().partition(|row| row.measure == "client's limit");
        assert!(others.iter().all(|row| row.compared.is_some()));
        assert_eq!(limits.len(), 2 * kinds.len(), "of reads and of writes of 4 KiB");
        assert!(limits.iter().all(|row| row.compared.is_none()));
    }
}
