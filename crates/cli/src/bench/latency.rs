//! `bench latency`: how long a request of 4 KiB takes, on a machine with time and on one without.
//!
//! Every request's time is noted, from the moment the front end asks to the moment it is told. "Busy" means that as many
//! other threads as there are processors do nothing but compute. Whoever hands a request to another thread then waits for
//! that thread to get its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::figures::{Bar, Figure, Results, median, ratio};
use super::path::{self, CASES, Case, operation};
use super::scripted::{Driver, End, Job};
use super::{BenchArgs, Progress};

const BLOCK: usize = 4 << 10;
/// Requests under way at a time.
pub(crate) const DEPTHS: [usize; 2] = [1, 4];
/// Percentiles, and what they are called.
pub(crate) const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// The percentiles of each round.
type Rounds = [Vec<f64>; PERCENTILES.len()];

/// Every load in turn, first with the processors idle.
pub(crate) fn run(args: &BenchArgs, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = args.rounds_and_slice((7, 300), (3, 50));
    let store = path::store(&args.dir)?;
    let cases: Vec<Case> = CASES.into_iter().filter(|case| case.name.starts_with("aes")).collect();
    let deepest = DEPTHS.into_iter().max().unwrap_or(1);
    let mut drivers =
        cases.iter().map(|case| case.driver(&store, &[BLOCK], deepest)).collect::<anyhow::Result<Vec<Driver>>>()?;
    let progress = Progress::new(args, (DEPTHS.len() * 4) as u64);
    let mut bar = None;
    for busy in [false, true] {
        let _load = busy.then(Load::start);
        for write in [false, true] {
            for depth in DEPTHS {
                let job = Job { write, block: BLOCK, depth, end: End::Time(slice), watch: true };
                let state = if busy { "busy" } else { "idle" };
                progress.step(&format!("latency: {}, depth {depth}, {state}", operation(write)));
                let samples = measure(&mut drivers, job, rounds)?;
                if busy && !write && depth == 4 {
                    bar = samples.get(1).and_then(|offloaded| ratio(&samples[0][1], &offloaded[1]));
                }
                report(&cases, job, state, &samples, results);
            }
        }
    }
    let what = "in process, 4 KiB random read, depth 4, processors busy: p99 inline over p99 offloaded";
    results.bars.push(Bar::at_most(what, bar, 0.5));
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

/// The least of the sorted values that `share` of them do not exceed.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn report(cases: &[Case], job: Job, state: &str, samples: &[Rounds], results: &mut Results) {
    for (at, case) in cases.iter().enumerate() {
        for (rank, (name, _)) in PERCENTILES.iter().enumerate() {
            let against = ratio(&samples[at][rank], &samples[0][rank]).filter(|_| at > 0);
            results.figures.push(Figure {
                bench: "latency",
                case: format!("{}, {state}", case.name),
                operation: operation(job.write).to_owned(),
                block_size: BLOCK as u64,
                queue_depth: job.depth,
                measure: name,
                figure: median(&samples[at][rank]),
                unit: "ns",
                compared: against.map(|ratio| (format!("{}, {state}", cases[0].name), ratio)),
            });
        }
    }
}

/// Threads that keep every processor busy until this is dropped.
struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = |over: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(|_| spin(Arc::clone(&over))).collect();
        // The scheduler gets a moment to spread them.
        std::thread::sleep(Duration::from_millis(20));
        Self { over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(PERCENTILES.map(|(_, share)| percentile(&values, share)), [500, 990, 999]);
        assert_eq!(percentile(&[7], 0.999), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}
