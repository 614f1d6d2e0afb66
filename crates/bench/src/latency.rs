//! `bench latency`: completion latency of 4 KiB requests, with idle and with busy CPUs, and over NBD.
//!
//! The latency of a request is the time from the frontend's submission to its completion. "Busy" means that as many
//! other threads as there are CPUs compute all the time, so a request that goes to another thread waits until the
//! scheduler runs that thread.
//!
//! Over NBD, a client with one request in flight shares a CPU with the server, or each has its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use inlock_engine::ring::BusyPoll;
use inlock_engine::store::file::IoMode;
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};

use crate::options::Options;
use crate::path::{self, CASES, Case, operation};
use crate::placement::{Cpus, Placement, WORKER_THREADS, threads};
use crate::progress::Progress;
use crate::results::{Measurement, Results, Threshold};
use crate::scripted::{Driver, End, Job};
use crate::statistics::{median, percentile, ratio};
use crate::wire::{self, Client, Load as NbdLoad, NULL_SERVER};

const BLOCK: usize = 4 << 10;
/// Requests in flight.
pub(crate) const DEPTHS: [usize; 2] = [1, 4];
/// Percentiles with their names.
pub(crate) const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// Percentiles of each round.
type Rounds = [Vec<f64>; PERCENTILES.len()];

/// Measures every load, first with idle CPUs.
pub(crate) fn run(options: &Options, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((7, 300), (3, 50));
    let store = path::store(&options.dir, path::FILE_LEN, IoMode::Auto)?;
    let cases: Vec<Case> = CASES.into_iter().filter(|case| case.name.starts_with("aes")).collect();
    let deepest = DEPTHS.into_iter().max().unwrap_or(1);
    let mut drivers =
        cases.iter().map(|case| case.driver(&store, &[BLOCK], deepest)).collect::<anyhow::Result<Vec<Driver>>>()?;
    let progress = Progress::new(options, (DEPTHS.len() * 4) as u64);
    let mut busy_ratio = None;
    for busy in [false, true] {
        let _load = busy.then(Load::start);
        for write in [false, true] {
            for depth in DEPTHS {
                let job = Job { write, block: BLOCK, depth, end: End::Time(slice), watch: true };
                let state = if busy { "busy" } else { "idle" };
                progress.step(&format!("latency: {}, depth {depth}, {state}", operation(write)));
                let samples = measure(&mut drivers, job, rounds)?;
                if busy && !write && depth == 4 {
                    busy_ratio = samples.get(1).and_then(|offloaded| ratio(&samples[0][1], &offloaded[1]));
                }
                let names: Vec<String> = cases.iter().map(|case| format!("{}, {state}", case.name)).collect();
                report(&names, operation(write).to_owned(), job, &samples, results);
            }
        }
    }
    let what = "in process, 4 KiB random read, depth 4, CPUs busy: p99 inline over p99 offloaded";
    results.thresholds.push(Threshold::at_most(what, busy_ratio, 0.5));
    over_nbd(options, results)
}

/// Name of an operation over NBD.
pub(crate) fn over_nbd_name(write: bool) -> String {
    format!("{} over NBD", operation(write))
}

/// Length of the served file.
const SERVED_LEN: u64 = 64 << 20;

/// Measures an encrypted volume and the null server over NBD, at depth 1, in both placements.
fn over_nbd(options: &Options, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((7, 300), (3, 50));
    let dir = tempfile::Builder::new().prefix("inlock-bench-").tempdir_in(&options.dir)?;
    let served = serve(dir.path(), "nbd", BusyPoll::Never)?;
    let polling = serve(dir.path(), "polling", BusyPoll::Adaptive)?;
    let null = dir.path().join("null.sock");
    wire::serve_null(&null, SERVED_LEN).context("cannot start the null server")?;
    let servers = [("null server", &null), ("aes-xts", &served.1), ("polling", &polling.1)];
    let cpus = Cpus::select()?;
    let placements: Vec<Placement> =
        [Placement::OneCpu, Placement::TwoCpus].into_iter().filter(|placement| cpus.can_place(*placement)).collect();
    let progress = Progress::new(options, (placements.len() * 2) as u64);
    for placement in placements {
        let name = placement.name().unwrap_or_default();
        for write in [false, true] {
            progress.step(&format!("latency: NBD, {}, {name}", operation(write)));
            let threads = threads("self", |thread| thread == NULL_SERVER || thread.starts_with(WORKER_THREADS));
            cpus.place_server(placement, &threads)?;
            let job = Job { write, block: BLOCK, depth: 1, end: End::Time(slice), watch: true };
            let samples = cpus.run_client(placement, || measure_nbd(&servers, job, slice, rounds))??;
            let cases = servers.map(|(server, _)| format!("{server}, {name}"));
            report(&cases, over_nbd_name(write), job, &samples, results);
        }
    }
    Ok(())
}

/// Serves an encrypted file from this process, as `inlock serve` does, with one worker.
fn serve(dir: &Path, name: &str, busy_poll: BusyPoll) -> anyhow::Result<(Server, PathBuf)> {
    let case = CASES.iter().find(|case| case.name == "aes-xts inline").context("a case has another name")?;
    let store = path::store(dir, SERVED_LEN, IoMode::Auto)?;
    let socket = dir.join(format!("{name}.sock"));
    let mut options = ServerOptions::default();
    options.threads = 1;
    options.busy_poll = busy_poll;
    Ok((Server::start(case.device(&store)?, &Listen::Unix(socket.clone()), &options)?, socket))
}

fn measure_nbd(servers: &[(&str, &PathBuf)], job: Job, slice: Duration, rounds: usize) -> anyhow::Result<Vec<Rounds>> {
    let mut clients = Vec::new();
    for (_, socket) in servers {
        clients.push(Client::connect(socket)?);
    }
    let load = NbdLoad { write: job.write, random: true, block: job.block, depth: job.depth, time: slice };
    in_turns(&mut clients, rounds, |client| Ok(client.run(load)?.latencies))
}

fn measure(drivers: &mut [Driver], job: Job, rounds: usize) -> anyhow::Result<Vec<Rounds>> {
    in_turns(drivers, rounds, |driver| {
        let mut latencies = driver.run(job)?.latencies;
        latencies.sort_unstable();
        Ok(latencies)
    })
}

/// Measures each subject once a round, in another order each round. `run` returns latencies in ascending order.
fn in_turns<T>(
    subjects: &mut [T],
    rounds: usize,
    mut run: impl FnMut(&mut T) -> anyhow::Result<Vec<u64>>,
) -> anyhow::Result<Vec<Rounds>> {
    let mut samples: Vec<Rounds> = vec![Rounds::default(); subjects.len()];
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let at = (turn + round) % subjects.len();
            let latencies = run(&mut subjects[at])?;
            for (place, (_, share)) in samples[at].iter_mut().zip(PERCENTILES) {
                place.push(percentile(&latencies, share) as f64);
            }
        }
    }
    Ok(samples)
}

/// Reports cases, compared with the first one.
fn report(cases: &[String], operation: String, job: Job, samples: &[Rounds], results: &mut Results) {
    for (at, case) in cases.iter().enumerate() {
        for (rank, (name, _)) in PERCENTILES.iter().enumerate() {
            let against = ratio(&samples[at][rank], &samples[0][rank]).filter(|_| at > 0);
            results.measurements.push(Measurement {
                bench: "latency",
                case: case.clone(),
                operation: operation.clone(),
                block_size: BLOCK as u64,
                queue_depth: job.depth,
                measure: name,
                value: median(&samples[at][rank]),
                unit: "ns",
                compared: against.map(|ratio| (cases[0].clone(), ratio)),
            });
        }
    }
}

/// Threads that keep every CPU busy until this value is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = |stop: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(|_| spin(Arc::clone(&stop))).collect();
        // Gives the scheduler time to spread them.
        std::thread::sleep(Duration::from_millis(20));
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
