//! A comparison of implementations, which alternate in short slices on the same data in one run. Results are medians of
//! the slices' ratios, since the clock rate and other load change.

use crate::peers::{Case, Peer, SLACK};
use serde_json::{Value, json};
use std::error::Error;
use std::time::{Duration, Instant};

const SLICES: usize = 61;
const SLICE_TIME: Duration = Duration::from_micros(500);

/// Returns one row for each of `peers`: the first is the limit, the second the implementation to compare with.
pub(crate) fn run(case: &Case<'_>, request: usize, peers: &mut [Box<dyn Peer>]) -> Result<Vec<Value>, Box<dyn Error>> {
    // Requests are page-aligned: a buffer that crosses cache lines with each vector would slow down the widest kernel.
    let mut room = vec![0; request + SLACK + 4096];
    let start = room.as_ptr().align_offset(4096);
    let data = &mut room[start..start + request + SLACK];
    check_same_bytes(case, request, peers, data)?;
    let calls: Vec<usize> = peers.iter_mut().map(|peer| repetitions(&mut **peer, data, request)).collect();
    let mut rates = vec![Vec::new(); peers.len()];
    for slice in 0..SLICES {
        // Backwards every second time, so that no implementation always follows the same one.
        for at in 0..peers.len() {
            let at = if slice % 2 == 0 { at } else { peers.len() - 1 - at };
            let (bytes, taken) = time(&mut *peers[at], data, request, calls[at]);
            rates[at].push(bytes as f64 / taken.as_secs_f64());
        }
    }
    let ratio = |of: &[f64], to: &[f64]| median(of.iter().zip(to).map(|(of, to)| of / to).collect());
    let rows = peers.iter().zip(&rates).map(|(peer, own)| {
        json!({
            "implementation": peer.name(), "cipher": case.spec.to_string(), "key_bits": case.key_bits(),
            "direction": if case.encrypt { "encrypt" } else { "decrypt" },
            "unit_size": case.unit, "request_size": request, "bytes_per_second": median(own.clone()),
            "share_of_limit": ratio(own, &rates[0]), "inlock_is_faster_by": ratio(&rates[1], own),
        })
    });
    Ok(rows.collect())
}

/// Fails unless all implementations compute the same bytes.
fn check_same_bytes(
    case: &Case<'_>,
    request: usize,
    peers: &mut [Box<dyn Peer>],
    data: &mut [u8],
) -> Result<(), Box<dyn Error>> {
    let mut first: Option<(String, Vec<u8>)> = None;
    for peer in peers.iter_mut().filter(|peer| !peer.is_limit()) {
        data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + at / 256) as u8);
        peer.run(1000, data, request);
        let (name, expected) = first.get_or_insert_with(|| (peer.name(), data[..request].to_vec()));
        if *expected != data[..request] {
            let unit = case.unit;
            return Err(format!("{} and {name} compute different bytes, units of {unit} bytes", peer.name()).into());
        }
    }
    Ok(())
}

fn time(peer: &mut dyn Peer, data: &mut [u8], request: usize, calls: usize) -> (usize, Duration) {
    let begin = Instant::now();
    let bytes = (0..calls).map(|call| peer.run(call as u64, data, request)).sum();
    (bytes, begin.elapsed())
}

/// Returns the number of calls of `peer` in a slice.
fn repetitions(peer: &mut dyn Peer, data: &mut [u8], request: usize) -> usize {
    let mut calls = 1;
    loop {
        let (_, taken) = time(peer, data, request, calls);
        if taken * 4 >= SLICE_TIME {
            return ((calls as f64 * SLICE_TIME.as_secs_f64() / taken.as_secs_f64()) as usize).max(1);
        }
        calls *= 2;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
