//! `bench path`: cost of a request in the I/O path of one worker, without a client.
//!
//! Reads and writes the same file in memory raw, with the null cipher, and encrypted. The cases of a load alternate in
//! short slices, in another order each round. The cipher is also measured alone, over as many buffers as the queue is
//! deep: a path without any cost of its own takes the sum of the raw time and that.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use inlock_cipher::{
    ChainMode, Cipher, CipherSpec, DataUnitSize, InOut, IvMode, IvNumber, IvNumbering, KeyCount, SectorCipher, Segment,
    VolumeKey, new_sector_cipher,
};
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::{Access, BackingStore, Device, Offload, OffloadOptions, OffloadPolicy, StatsLevel};

use crate::options::Options;
use crate::progress::Progress;
use crate::results::{Measurement, Results, Threshold};
use crate::scripted::{Driver, End, Job, in_turns};
use crate::statistics::{median, ratio};
use crate::tables::size_text;

/// Request sizes in bytes.
pub(crate) const BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Requests in flight.
pub(crate) const DEPTHS: [usize; 3] = [1, 4, 32];
/// Length of the file.
pub(crate) const FILE_LEN: u64 = 128 << 20;

pub(crate) const RAW: &str = "raw";
/// Raw without counters: shows the cost of counters.
pub(crate) const UNCOUNTED: &str = "raw, no counters";
/// The cipher without the path.
pub(crate) const ALONE: &str = "cipher alone";

/// A way to serve the requests of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub name: &'static str,
    cipher: Option<CipherSpec>,
    /// Whether the cipher work goes to the thread pool.
    offloaded: bool,
    stats: StatsLevel,
}

const NULL: CipherSpec =
    CipherSpec { cipher: Cipher::Null, mode: ChainMode::Ecb, iv: IvMode::Null, keys: KeyCount::ONE };
const AES: CipherSpec = CipherSpec::AES_XTS_PLAIN64;

const fn case(name: &'static str, cipher: Option<CipherSpec>, offloaded: bool) -> Case {
    Case { name, cipher, offloaded, stats: StatsLevel::On }
}

/// The cases, in the order of the tables.
pub(crate) const CASES: [Case; 6] = [
    case(RAW, None, false),
    Case { name: UNCOUNTED, cipher: None, offloaded: false, stats: StatsLevel::Off },
    case("null inline", Some(NULL), false),
    case("null offloaded", Some(NULL), true),
    case("aes-xts inline", Some(AES), false),
    case("aes-xts offloaded", Some(AES), true),
];

fn key() -> VolumeKey {
    VolumeKey::new(&(0u8..64).map(|at| at.wrapping_mul(7)).collect::<Vec<u8>>())
}

fn unit() -> anyhow::Result<DataUnitSize> {
    Ok(DataUnitSize::new(4096)?)
}

/// Returns a store on an unlinked file of noise in `dir`.
pub(crate) fn store(dir: &Path, len: u64, io: IoMode) -> anyhow::Result<Arc<dyn BackingStore>> {
    let file = tempfile::tempfile_in(dir).with_context(|| format!("cannot make a file in {}", dir.display()))?;
    fill(&file, len)?;
    Ok(Arc::new(FileStore::new(file, io)?))
}

/// Writes every page, so that no measurement includes its first use.
fn fill(file: &File, len: u64) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut word = 1u64;
    let mut block = vec![0u8; 1 << 20];
    for bytes in block.chunks_exact_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    for at in (0..len).step_by(block.len()) {
        let part = block.len().min((len - at) as usize);
        file.write_all_at(&block[..part], at).context("cannot fill the file")?;
    }
    Ok(())
}

impl Case {
    /// Returns the device of this case on `store`.
    pub(crate) fn device(&self, store: &Arc<dyn BackingStore>) -> anyhow::Result<Arc<Device>> {
        let (store, access) = (Arc::clone(store), Access::default());
        let Some(cipher) = self.cipher else {
            return Ok(Arc::new(Device::raw(store, access).with_stats(self.stats)));
        };
        let segment = Segment::whole(Some(cipher), unit()?);
        Ok(Arc::new(Device::new(&[segment], &key(), store, access)?.with_stats(self.stats)))
    }

    /// Returns a worker for this case, on the calling thread.
    pub(crate) fn driver(
        &self,
        store: &Arc<dyn BackingStore>,
        blocks: &[usize],
        depth: usize,
    ) -> anyhow::Result<Driver> {
        let device = self.device(store)?;
        let policy = if self.offloaded { OffloadPolicy::Both } else { OffloadPolicy::None };
        let mut options = OffloadOptions::default();
        options.policy = policy;
        let pool = Offload::start(&device, &options)?;
        Ok(Driver::new(&device, pool, blocks, depth)?)
    }
}

/// The cipher alone, over as many buffers as the queue is deep.
struct Alone {
    cipher: Box<dyn SectorCipher>,
    buffers: Vec<Vec<u8>>,
}

impl Alone {
    fn new() -> anyhow::Result<Self> {
        let cipher = new_sector_cipher(&CipherSpec::AES_XTS_PLAIN64, key().as_bytes(), unit()?, IvNumbering::Sectors)?;
        let most = DEPTHS.into_iter().max().unwrap_or(1);
        let largest = BLOCKS.into_iter().max().unwrap_or(0);
        // A load touches only the pages that it uses.
        Ok(Self { cipher, buffers: (0..most).map(|_| vec![0; largest + 4096]).collect() })
    }

    /// Returns nanoseconds per request.
    fn run(&mut self, job: Job, count: u64) -> f64 {
        let began = Instant::now();
        for at in 0..count {
            let buffer = &mut self.buffers[at as usize % job.depth];
            let start = buffer.as_ptr().align_offset(4096);
            let data = InOut::InPlace(&mut buffer[start..start + job.block]);
            if job.write {
                self.cipher.encrypt(IvNumber(at), data);
            } else {
                self.cipher.decrypt(IvNumber(at), data);
            }
        }
        began.elapsed().as_nanos() as f64 / count as f64
    }
}

/// Nanoseconds per request in each round, of every case and of the cipher alone.
struct Samples {
    cases: Vec<Vec<f64>>,
    alone: Vec<f64>,
}

/// Measures every load.
pub(crate) fn run(options: &Options, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((15, 25), (5, 5));
    let store = store(&options.dir, FILE_LEN, IoMode::Auto)?;
    let deepest = DEPTHS.into_iter().max().unwrap_or(1);
    let mut drivers =
        CASES.iter().map(|case| case.driver(&store, &BLOCKS, deepest)).collect::<anyhow::Result<Vec<Driver>>>()?;
    let mut alone = Alone::new()?;
    let mut thresholds = Thresholds::default();
    let progress = Progress::new(options, (BLOCKS.len() * DEPTHS.len() * 2) as u64);
    for write in [false, true] {
        for block in BLOCKS {
            for depth in DEPTHS {
                let job = Job { write, block, depth, end: End::Count(1), watch: false };
                progress.step(&format!("path: {}, {}, depth {depth}", operation(write), size_text(block as u64)));
                let samples = measure(&mut drivers, &mut alone, job, rounds, slice)?;
                report(job, &samples, results);
                thresholds.add(job, &samples);
            }
        }
    }
    results.thresholds.extend(thresholds.rows());
    Ok(())
}

pub(crate) fn operation(write: bool) -> &'static str {
    if write { "random write" } else { "random read" }
}

fn measure(
    drivers: &mut [Driver],
    alone: &mut Alone,
    job: Job,
    rounds: usize,
    slice: Duration,
) -> anyhow::Result<Samples> {
    alone.run(job, job.depth as u64);
    let calls = ((slice.as_nanos() as f64 / 4.0 / alone.run(job, job.depth as u64)) as u64).max(1);
    let mut nanos = Vec::new();
    let cases = in_turns(drivers, job, rounds, slice, || nanos.push(alone.run(job, calls)))?;
    Ok(Samples { cases, alone: nanos })
}

fn report(job: Job, samples: &Samples, results: &mut Results) {
    let raw = &samples.cases[0];
    let row = |case: &str, nanos: &[f64], compared| Measurement {
        bench: "path",
        case: case.to_owned(),
        operation: operation(job.write).to_owned(),
        block_size: job.block as u64,
        queue_depth: job.depth,
        measure: "operations",
        value: 1e9 / median(nanos),
        unit: "1/s",
        compared,
    };
    for (case, nanos) in CASES.iter().zip(&samples.cases) {
        let compared = ratio(raw, nanos).filter(|_| case.name != RAW).map(|ratio| (RAW.to_owned(), ratio));
        results.measurements.push(row(case.name, nanos, compared));
    }
    results.measurements.push(row(ALONE, &samples.alone, None));
}

/// Ratios for the thresholds, of every round at every depth.
#[derive(Default)]
struct Thresholds {
    null: [Vec<f64>; 2],
    counted: [Vec<f64>; 2],
    aes: [[Vec<f64>; 2]; 2],
}

impl Thresholds {
    fn add(&mut self, job: Job, samples: &Samples) {
        let of = |name: &str| CASES.iter().position(|case| case.name == name).map_or(&[][..], |at| &samples.cases[at]);
        let shares = |over: &[f64], under: &[f64]| -> Vec<f64> { over.iter().zip(under).map(|(o, u)| o / u).collect() };
        let write = usize::from(job.write);
        let raw = &samples.cases[0];
        if job.block == 4 << 10 {
            self.null[write].extend(shares(raw, of("null inline")));
            self.counted[write].extend(shares(of(UNCOUNTED), raw));
        }
        let size = match job.block {
            0x1000 => 0,
            0x10_0000 => 1,
            _ => return,
        };
        let both: Vec<f64> = raw.iter().zip(&samples.alone).map(|(raw, alone)| raw + alone).collect();
        self.aes[size][write].extend(shares(&both, of("aes-xts inline")));
    }

    fn rows(&self) -> Vec<Threshold> {
        let share = |shares: &[f64]| Some(median(shares)).filter(|share| share.is_finite());
        let mut rows = Vec::new();
        for write in [false, true] {
            let what = format!("in process, null cipher, 4 KiB {}: share of raw (all depths)", operation(write));
            rows.push(Threshold::at_least(what, share(&self.null[usize::from(write)]), 0.97));
        }
        for write in [false, true] {
            let what = format!(
                "in process, counters kept, 4 KiB {}: share of raw without them (all depths)",
                operation(write)
            );
            rows.push(Threshold::at_least(what, share(&self.counted[usize::from(write)]), 0.99));
        }
        for (size, bytes) in ["4 KiB", "1 MiB"].iter().enumerate() {
            for write in [false, true] {
                let what = format!(
                    "in process, AES-256-XTS, {bytes} {}: raw + cipher alone over encrypted (all depths)",
                    operation(write)
                );
                rows.push(Threshold::at_least(what, share(&self.aes[size][usize::from(write)]), 0.95));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_overhead_has_share_one_and_a_slow_path_misses_its_threshold() {
        let job = Job { write: false, block: 4096, depth: 1, end: End::Count(1), watch: false };
        let samples = |null: f64, aes: f64| Samples {
            cases: [1000.0, 1000.0, null, 9000.0, aes, 9000.0].map(|nanos| vec![nanos]).to_vec(),
            alone: vec![300.0],
        };
        let mut thresholds = Thresholds::default();
        thresholds.add(job, &samples(1000.0, 1300.0));
        let shares: Vec<Option<f64>> = thresholds.rows().iter().map(|row| row.ratio).collect();
        assert_eq!(shares, [Some(1.0), None, Some(1.0), None, Some(1.0), None, None, None]);
        for depth in [4, 32] {
            thresholds.add(Job { depth, ..job }, &samples(1100.0, 1600.0));
        }
        let missed: Vec<bool> = thresholds.rows().iter().map(|row| row.met() == Some(false)).collect();
        assert_eq!(missed, [true, false, false, false, true, false, false, false], "most depths are slow");
    }
}
