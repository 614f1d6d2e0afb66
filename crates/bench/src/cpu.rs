//! CPU time of a request over NBD, split into frontend, cipher and store.
//!
//! Inlock's server runs in this process with one worker, and the worker calls the store on its own thread, so that the
//! thread's clock includes all three. The device's counters give the time of cipher and store; the rest is the
//! frontend's: protocol, sockets, the worker's turns.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use inlock_engine::store::file::IoMode;
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};

use crate::options::Options;
use crate::path::{self, BLOCKS, CASES, operation};
use crate::placement::{WORKER_THREADS, threads};
use crate::progress::Progress;
use crate::results::{Measurement, Results};
use crate::tables::size_text;
use crate::wire::{Client, Load};

/// The parts, in the order they are stacked.
pub(crate) const PARTS: [&str; 3] = ["front end", "cipher", "store"];
/// Requests in flight.
pub(crate) const DEPTH: usize = 4;
const FILE_LEN: u64 = 64 << 20;

/// Measures every size and direction, raw and encrypted.
pub(crate) fn run(options: &Options, results: &mut Results) -> anyhow::Result<()> {
    let (rounds, slice) = options.rounds_and_slice((5, 200), (3, 30));
    let time = slice * rounds as u32;
    let progress = Progress::new(options, (BLOCKS.len() * 4) as u64);
    for name in ["raw", "aes-xts inline"] {
        let case = CASES.iter().find(|case| case.name == name).context("a case has another name")?;
        let dir = tempfile::Builder::new().prefix("inlock-bench-").tempdir_in(&options.dir)?;
        // `Sync`: the worker calls the store; no kernel thread works for it.
        let store = path::store(dir.path(), FILE_LEN, IoMode::Sync)?;
        let device = case.device(&store)?;
        let socket = dir.path().join("nbd.sock");
        let mut options = ServerOptions::default();
        options.threads = 1;
        let server = Server::start(Arc::clone(&device), &Listen::Unix(socket.clone()), &options)?;
        for write in [false, true] {
            for block in BLOCKS {
                progress.step(&format!("CPU time: {name}, {}, {}", operation(write), size_text(block as u64)));
                let load = Load { write, random: true, block, depth: DEPTH, time };
                let Some(parts) = measure(&device, &socket, load)? else {
                    results.notes.push("CPU time was not measured: this kernel does not report it".to_owned());
                    return Ok(());
                };
                results.measurements.extend(PARTS.iter().zip(parts).map(|(part, nanos)| Measurement {
                    bench: "path",
                    case: name.trim_end_matches(" inline").to_owned(),
                    operation: operation(write).to_owned(),
                    block_size: block as u64,
                    queue_depth: DEPTH,
                    measure: part,
                    value: nanos,
                    unit: "ns",
                    compared: None,
                }));
            }
        }
        drop(server);
    }
    Ok(())
}

/// Nanoseconds per request of each part. `None`: the kernel does not report CPU time.
fn measure(device: &inlock_engine::Device, socket: &Path, load: Load) -> anyhow::Result<Option<[f64; 3]>> {
    let mut client = Client::connect(socket)?;
    // The first requests touch new buffers and pages.
    client.run(Load { time: Duration::from_millis(2), ..load })?;
    let (before, cpu_before) = (device.stats().snapshot(), worker_nanos());
    let done = client.run(load)?;
    let (after, cpu_after) = (device.stats().snapshot().since(&before), worker_nanos());
    let each = |nanos: u64| nanos as f64 / done.requests as f64;
    let Some((cpu_before, cpu_after)) = cpu_before.zip(cpu_after) else { return Ok(None) };
    let (cipher, store) = (each(after.cipher.sum()), each(after.store.sum()));
    let rest = each(cpu_after.saturating_sub(cpu_before)) - cipher - store;
    Ok(Some([rest.max(0.0), cipher, store]))
}

/// Returns the CPU time so far of the workers and of their io_uring threads. `None`: the kernel does not report it.
fn worker_nanos() -> Option<u64> {
    let mut sum = None;
    for thread in threads("self", |name| name.starts_with(WORKER_THREADS) || name.starts_with("iou-")) {
        let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
        // The thread may have ended since.
        let Ok(text) = fs::read_to_string(path) else { continue };
        let nanos: u64 = text.split_whitespace().next()?.parse().ok()?;
        sum = Some(sum.unwrap_or(0) + nanos);
    }
    sum
}
