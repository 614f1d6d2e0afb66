//! `bench latency`: completion latency of 4 KiB requests, with idle and with busy CPUs.
//!
//! The latency of a request is the time from the frontend's submission to its completion. "Busy" means that as many
//! other threads as there are CPUs compute all the time, so a request that goes to another thread waits until the
//! scheduler runs that thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::options::Options;
use crate::path::{self, CASES, Case, operation};
use crate::progress::Progress;
use crate::results::{Measurement, Results, Threshold};
use crate::scripted::{Driver, End, Job};
use crate::statistics::{median, percentile, ratio};

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
    let store = path::store(&options.dir)?;
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
                report(&cases, job, state, &samples, results);
            }
        }
    }
    let what = "in process, 4 KiB random read, depth 4, CPUs busy: p99 inline over p99 offloaded";
    results.thresholds.push(Threshold::at_most(what, busy_ratio, 0.5));
    Ok(())
}

fn measure(drivers: &mut [Driver], job: Job, rounds: usize) -> anyhow::Result<Vec<Rounds>> {
    let mut samples: Vec<Rounds> = vec![Rounds::default(); drivers.len()];
    for round in 0..rounds {
        for turn in 0..drivers.len() {
            let at = (turn + round) % drivers.len();
            let mut latencies = drivers[at].run(job)?.latencies;
            latencies.sort_unstable();
            for (place, (_, share)) in samples[at].iter_mut().zip(PERCENTILES) {
                place.push(percentile(&latencies, share) as f64);
            }
        }
    }
    Ok(samples)
}

fn report(cases: &[Case], job: Job, state: &str, samples: &[Rounds], results: &mut Results) {
    for (at, case) in cases.iter().enumerate() {
        for (rank, (name, _)) in PERCENTILES.iter().enumerate() {
            let against = ratio(&samples[at][rank], &samples[0][rank]).filter(|_| at > 0);
            results.measurements.push(Measurement {
                bench: "latency",
                case: format!("{}, {state}", case.name),
                operation: operation(job.write).to_owned(),
                block_size: BLOCK as u64,
                queue_depth: job.depth,
                measure: name,
                value: median(&samples[at][rank]),
                unit: "ns",
                compared: against.map(|ratio| (format!("{}, {state}", cases[0].name), ratio)),
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
