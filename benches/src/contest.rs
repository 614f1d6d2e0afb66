//! One comparison: all implementations take turns on the same data in one run, and what is told are medians of the turns'
//! ratios, since clocks drift and neighbours come and go.

use crate::peers::{Case, Peer, SLACK};
use serde_json::{Value, json};
use std::error::Error;
use std::time::{Duration, Instant};

const TURNS: usize = 61;
const TURN_TIME: Duration = Duration::from_micros(500);

/// One row for each of `peers`: first the limit, second the implementation that the others are compared with.
pub(crate) fn run(case: &Case<'_>, request: usize, peers: &mut [Box<dyn Peer>]) -> Result<Vec<Value>, Box<dyn Error>> {
    // Requests come in pages. A buffer that crosses cache lines with each vector would slow the widest down.
    let mut room = vec![0; request + SLACK + 4096];
    let start = room.as_ptr().align_offset(4096);
    let data = &mut room[start..start + request + SLACK];
    check_same_bytes(case, request, peers, data)?;
    let calls: Vec<usize> = peers.iter_mut().map(|peer| repetitions(&mut **peer, data, request)).collect();
    let mut rates = vec![Vec::new(); peers.len()];
    for turn in 0..TURNS {
        // Backwards every other time, so that who comes after whom does not matter.
        for at in 0..peers.len() {
            let at = if turn % 2 == 0 { at } else { peers.len() - 1 - at };
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

/// A comparison of speed is worth nothing unless all compute the same.
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

/// How often `peer` is called in a turn.
fn repetitions(peer: &mut dyn Peer, data: &mut [u8], request: usize) -> usize {
    let mut calls = 1;
    loop {
        let (_, taken) = time(peer, data, request, calls);
        if taken * 4 >= TURN_TIME {
            return ((calls as f64 * TURN_TIME.as_secs_f64() / taken.as_secs_f64()) as usize).max(1);
        }
        calls *= 2;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
