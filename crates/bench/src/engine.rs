//! `bench engine`: requests of one worker with the ciphers in software, and with a cipher engine, by request size.
//!
//! The store is in the process's memory. Both cases alternate in slices, and a ratio is the median of the slices'
//! ratios. From the crossover size on, the engine is at least as fast in both directions at every depth.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use inlock_afalg::{AfAlg, AfAlgError, DRIVER_VARIABLE};
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, CipherEngine, Device};
use serde_json::{Value, json};

use crate::environment;
use crate::options::{Options, Print};
use crate::scripted::{Driver, End, Job};
use crate::statistics::{median, ratio};
use crate::tables::size_text;

/// Bytes of a request.
const SIZES: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Requests in flight.
const DEPTHS: [usize; 2] = [1, 8];
/// Bytes of a request in a quick run.
const QUICK_SIZES: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];
/// Length of the device, in bytes.
const LEN: usize = 16 << 20;

/// One row of the table.
#[derive(Clone, Debug)]
struct Row {
    write: bool,
    depth: usize,
    request_size: usize,
    /// Median throughput in software, in bytes per second.
    software: f64,
    /// Median throughput with the engine. `None`: there is none.
    engine: Option<f64>,
    /// Median of the slices' ratios of engine to software.
    ratio: Option<f64>,
}

/// A plan of measurements.
struct Plan<'a> {
    sizes: &'a [usize],
    /// Number of slices of each side.
    rounds: usize,
    /// Approximate length of a slice.
    slice: Duration,
}

pub(crate) fn run(options: &Options, print: &mut Print<'_>) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((15, 25), (5, 5));
    let plan = Plan { sizes: if options.quick { &QUICK_SIZES } else { &SIZES }, rounds, slice };
    let spec = CipherSpec::AES_XTS_PLAIN64;
    let engine = AfAlg::start().and_then(|engine| {
        engine.check(&spec, key().as_bytes(), DataUnitSize::LUKS_MAX, false.into()).map(|()| engine)
    });
    let (engine, missing) = match engine {
        Ok(engine) => (Some(Arc::new(engine) as Arc<dyn CipherEngine>), None),
        Err(error) => (None, Some(error)),
    };
    let driver = engine.as_ref().and_then(|_| match std::env::var(DRIVER_VARIABLE) {
        Ok(driver) if !driver.is_empty() => Some(driver),
        _ => driver_of(&fs::read_to_string("/proc/crypto").ok()?, "xts(aes)"),
    });
    if options.json {
        let rows = measure(engine.as_ref(), &plan, |_| {})?;
        let value = json!({
            "processor": environment::cpu_model(),
            "engine": "afalg",
            "driver": driver,
            "missing": missing.map(|error| error.to_string()),
            "results": rows.iter().map(object).collect::<Vec<Value>>(),
            "crossover": crossover(&rows),
        });
        return print(&format_args!("{value:#}\n"));
    }
    print(&format_args!("# {}\n", environment::cpu_model()))?;
    if let Some(driver) = driver {
        print(&format_args!("# the kernel's driver: {driver}\n"))?;
    }
    print(&"# operation     depth  request  software, MB/s  afalg, MB/s  ratio\n")?;
    let mut printed = Ok(());
    let rows = measure(engine.as_ref(), &plan, |row| {
        if printed.is_ok() {
            printed = print(&line(row));
        }
    })?;
    printed?;
    print(&verdict(&rows, missing.as_ref()))
}

/// Returns the last line: from which size on the engine pays.
fn verdict(rows: &[Row], missing: Option<&AfAlgError>) -> String {
    match (missing, crossover(rows)) {
        (Some(error), _) => format!("# not measured: {error}\n"),
        (None, None) => "# software is faster even at the largest size: use --engine software\n".to_owned(),
        (None, Some(size)) => {
            let text = size_text(size as u64);
            format!("# the engine is at least as fast from {text} on: use --engine afalg --engine-threshold {size}\n")
        }
    }
}

/// Returns the smallest size from which on the engine is at least as fast in every row.
fn crossover(rows: &[Row]) -> Option<usize> {
    let wins = |size: usize| {
        let mut rows = rows.iter().filter(|row| row.request_size >= size);
        rows.all(|row| row.ratio.is_some_and(|ratio| ratio >= 1.0))
    };
    SIZES.into_iter().find(|size| rows.iter().any(|row| row.request_size == *size) && wins(*size))
}

fn key() -> VolumeKey {
    VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|at| at as u8))
}

fn device(engine: Option<&Arc<dyn CipherEngine>>) -> anyhow::Result<Arc<Device>> {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
    let store = Arc::new(MemoryStore::new(vec![0x5a; LEN]));
    let device = Device::new(&[segment], &key(), store, Access::default())?;
    Ok(Arc::new(match engine {
        Some(engine) => device.with_engine(Arc::clone(engine), 1, &[&key()])?,
        None => device,
    }))
}

/// Measures every load, calling `done` after each row.
fn measure(
    engine: Option<&Arc<dyn CipherEngine>>,
    plan: &Plan<'_>,
    mut done: impl FnMut(&Row),
) -> anyhow::Result<Vec<Row>> {
    let mut drivers = vec![driver(None)?];
    if engine.is_some() {
        drivers.push(driver(engine)?);
    }
    let mut rows = Vec::new();
    for write in [false, true] {
        for depth in DEPTHS {
            for &block in plan.sizes {
                let job = Job { write, block, depth, end: End::Count(1), watch: false };
                let row = measure_row(&mut drivers, job, plan)?;
                done(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn driver(engine: Option<&Arc<dyn CipherEngine>>) -> anyhow::Result<Driver> {
    Ok(Driver::new(&device(engine)?, None, &SIZES, DEPTHS.into_iter().max().unwrap_or(1))?)
}

fn measure_row(drivers: &mut [Driver], job: Job, plan: &Plan<'_>) -> anyhow::Result<Row> {
    let counts =
        drivers.iter_mut().map(|driver| driver.count_for(job, plan.slice)).collect::<anyhow::Result<Vec<u64>>>()?;
    let mut nanos = vec![Vec::new(); drivers.len()];
    for round in 0..plan.rounds.max(1) {
        for turn in 0..drivers.len() {
            let at = (turn + round) % drivers.len();
            nanos[at].push(drivers[at].run(Job { end: End::Count(counts[at]), ..job })?.nanos_each());
        }
    }
    let rate = |nanos: &[f64]| job.block as f64 * 1e9 / median(nanos);
    let [software, engine @ ..] = nanos.as_slice() else { unreachable!("the software is measured") };
    Ok(Row {
        write: job.write,
        depth: job.depth,
        request_size: job.block,
        software: rate(software),
        engine: engine.first().map(|engine| rate(engine)),
        ratio: engine.first().and_then(|engine| ratio(software, engine)),
    })
}

fn operation(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

fn line(row: &Row) -> String {
    let (engine, ratio) = match (row.engine, row.ratio) {
        (Some(engine), Some(ratio)) => (format!("{:.0}", engine / 1e6), format!("{ratio:.3}")),
        _ => ("-".to_owned(), "-".to_owned()),
    };
    let (size, software) = (size_text(row.request_size as u64), row.software / 1e6);
    format!("  {:<9} {:>9} {size:>8} {software:>15.0} {engine:>12} {ratio:>6}\n", operation(row.write), row.depth)
}

fn object(row: &Row) -> Value {
    json!({
        "operation": operation(row.write),
        "queue_depth": row.depth,
        "request_size": row.request_size,
        "software_bytes_per_second": row.software,
        "engine_bytes_per_second": row.engine,
        "ratio_to_software": row.ratio,
    })
}

/// Returns the driver that the kernel prefers for an algorithm, from the text of `/proc/crypto`.
fn driver_of(text: &str, algorithm: &str) -> Option<String> {
    let field = |block: &str, name: &str| -> Option<String> {
        let line = block.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let blocks = text.split("\n\n").filter(|block| {
        field(block, "name").as_deref() == Some(algorithm) && field(block, "internal").as_deref() != Some("yes")
    });
    let best = blocks.max_by_key(|block| field(block, "priority").and_then(|priority| priority.parse::<i64>().ok()))?;
    field(best, "driver")
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{InOut, SectorCipher, new_sector_cipher};
    use inlock_engine::{CipherJob, Direction, EngineKey, EngineKeySpec};

    /// An engine that does the work at once.
    struct Instant;

    struct Key(Box<dyn SectorCipher>);

    impl CipherEngine for Instant {
        fn open_key(&self, spec: &EngineKeySpec<'_>) -> Option<Box<dyn EngineKey>> {
            let cipher = new_sector_cipher(spec.cipher, spec.key.as_bytes(), spec.unit, spec.large_iv.into());
            Some(Box::new(Key(cipher.ok()?)))
        }
    }

    impl EngineKey for Key {
        fn submit(&self, mut job: CipherJob) -> Result<(), CipherJob> {
            let (first, direction) = (job.first(), job.direction());
            let data = job.data_mut();
            let len = data.len();
            match direction {
                Direction::Encrypt => self.0.encrypt(first, InOut::InPlace(data)),
                Direction::Decrypt => self.0.decrypt(first, InOut::InPlace(data)),
            }
            job.complete(Ok(len));
            Ok(())
        }
    }

    #[test]
    fn every_size_is_measured_with_and_without_an_engine() {
        let engine: Arc<dyn CipherEngine> = Arc::new(Instant);
        for (engine, sizes) in [(None, &SIZES[..]), (Some(&engine), &QUICK_SIZES)] {
            let mut seen = 0;
            let plan = Plan { sizes, rounds: 1, slice: Duration::from_micros(20) };
            let rows = measure(engine, &plan, |_| seen += 1).unwrap();
            assert_eq!((rows.len(), seen), (2 * DEPTHS.len() * sizes.len(), rows.len()));
            for row in &rows {
                let has_engine = row.engine.is_some_and(|rate| rate > 0.0) && row.ratio.is_some();
                assert!(row.software > 0.0 && has_engine == engine.is_some(), "{row:?}");
                assert_eq!(line(row).split_whitespace().count(), 7, "{}", line(row));
            }
            assert!(engine.is_some() || crossover(&rows).is_none());
        }
    }

    #[test]
    fn crossover_is_size_from_which_no_row_is_slower() {
        let rows = |ratio: fn(bool, usize, usize) -> f64| -> Vec<Row> {
            let all = [false, true].into_iter().flat_map(|write| DEPTHS.map(|depth| (write, depth)));
            all.flat_map(|(write, depth)| SIZES.map(|size| (write, depth, size)))
                .map(|(write, depth, request_size)| {
                    let ratio = Some(ratio(write, depth, request_size));
                    Row { write, depth, request_size, software: 1.0, engine: ratio, ratio }
                })
                .collect()
        };
        assert_eq!(crossover(&rows(|_, _, size| size as f64 / 65536.0)), Some(64 << 10));
        assert_eq!(
            crossover(&rows(|write, _, size| if write { 2.0 } else { size as f64 / 262_144.0 })),
            Some(256 << 10)
        );
        let one_loses = rows(|_, depth, size| if depth == 1 && size == 512 << 10 { 0.99 } else { 1.5 });
        assert_eq!(crossover(&one_loses), Some(1 << 20));
        let loses = rows(|_, _, _| 0.9);
        assert!(verdict(&loses, None).contains("use --engine software"));
        assert!(verdict(&one_loses, None).contains("--engine-threshold 1048576"));
        assert!(verdict(&loses, Some(&AfAlgError::NoSockets)).contains("not measured: the kernel has no AF_ALG"));
    }

    #[test]
    fn driver_is_the_preferred_one_that_is_not_internal() {
        let text = "name         : xts(aes)\ndriver       : slow\npriority     : 100\ninternal     : no\n\n\
                    name         : xts(aes)\ndriver       : fast\npriority     : 500\ninternal     : no\n\n\
                    name         : xts(aes)\ndriver       : inner\npriority     : 900\ninternal     : yes\n\n\
                    name         : cbc(aes)\ndriver       : other\npriority     : 950\ninternal     : no\n";
        assert_eq!(driver_of(text, "xts(aes)").as_deref(), Some("fast"));
        assert_eq!(driver_of(text, "lrw(aes)"), None);
    }
}
