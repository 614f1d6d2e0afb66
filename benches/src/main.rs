//! Compares Inlock's kernels with other implementations: `inlock-benches [--json]`.
//!
//! Every peer is called as its users call it, once a data unit: OpenSSL through EVP, with the cipher context kept and only the
//! IV set anew; the `xts-mode` crate through `encrypt_sector`. Inlock gets the whole request in one call. All take turns in
//! one run, and each figure is the median of the turns' ratios to Inlock's best kernel, since clocks drift.

mod peers;

use inlock_cipher::{CipherSpec, XtsKernel};
use peers::{InlockPeer, OpenSslPeer, Peer, XtsModePeer};
use std::error::Error;
use std::time::{Duration, Instant};

const TURNS: usize = 31;
const TURN_TIME: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let json = std::env::args().any(|argument| argument == "--json");
    let mut rows = Vec::new();
    let xts = CipherSpec::AES_XTS_PLAIN64;
    let essiv: CipherSpec = "aes-cbc-essiv:sha256".parse()?;
    if !json {
        println!("{}; Inlock's {}", openssl::version::version(), XtsKernel::best()?.name());
    }
    for (spec, key_len) in [(xts, 64), (xts, 32), (essiv, 32)] {
        for (request, unit) in [(256 << 10, 65536), (256 << 10, 4096), (256 << 10, 512), (4096, 4096), (4096, 512)] {
            for encrypt in [true, false] {
                rows.extend(compare(&spec, key_len, unit, request, encrypt, json)?);
            }
        }
    }
    if json {
        println!("{}", serde_json::json!({ "openssl": openssl::version::version(), "results": rows }));
    }
    Ok(())
}

/// One row for each implementation. The first is Inlock's best kernel, which the others are compared with.
fn compare(
    spec: &CipherSpec,
    key_len: usize,
    unit: u32,
    request: usize,
    encrypt: bool,
    json: bool,
) -> Result<Vec<serde_json::Value>, Box<dyn Error>> {
    let key: Vec<u8> = (0..key_len).map(|at| (at * 7 + 1) as u8).collect();
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    for kernel in XtsKernel::available().into_iter().rev() {
        peers.push(Box::new(InlockPeer::new(kernel, spec, &key, unit)?));
    }
    peers.push(Box::new(OpenSslPeer::new(spec, &key, unit as usize, encrypt)?));
    if *spec == CipherSpec::AES_XTS_PLAIN64 {
        peers.push(Box::new(XtsModePeer::new(&key, unit as usize)?));
    }
    check_same_bytes(&mut peers, request)?;
    let mut data = vec![0x5a; request];
    let calls: Vec<usize> = peers.iter_mut().map(|peer| repetitions(&mut **peer, &mut data, encrypt)).collect();
    let mut rates = vec![Vec::new(); peers.len()];
    for _ in 0..TURNS {
        for ((peer, calls), rates) in peers.iter_mut().zip(&calls).zip(&mut rates) {
            let taken = time(&mut **peer, &mut data, encrypt, *calls);
            rates.push((calls * request) as f64 / taken.as_secs_f64());
        }
    }
    let mut rows = Vec::new();
    for (peer, own) in peers.iter().zip(&rates) {
        // How many times as fast Inlock's best kernel is.
        let mut ratios: Vec<f64> = rates[0].iter().zip(own).map(|(best, own)| best / own).collect();
        let (rate, ratio) = (median(&mut own.clone()), median(&mut ratios));
        let (name, direction) = (peer.name(), if encrypt { "encrypt" } else { "decrypt" });
        let key_bits = if *spec == CipherSpec::AES_XTS_PLAIN64 { key_len * 4 } else { key_len * 8 };
        if !json {
            let speed = rate / 1e9;
            println!(
                "{spec} {key_bits} {direction} request {request:6} unit {unit:5}  {name:18} {speed:6.2} GB/s  x{ratio:.2}"
            );
        }
        rows.push(serde_json::json!({
            "implementation": name, "cipher": spec.to_string(), "key_bits": key_bits, "direction": direction,
            "unit_size": unit, "request_size": request, "bytes_per_second": rate, "best_kernel_is_faster_by": ratio,
        }));
    }
    Ok(rows)
}

/// A comparison of speed is worth nothing unless all compute the same.
fn check_same_bytes(peers: &mut [Box<dyn Peer>], request: usize) -> Result<(), Box<dyn Error>> {
    let plain: Vec<u8> = (0..request).map(|at| (at * 31 + at / 256) as u8).collect();
    for encrypt in [true, false] {
        let mut results = Vec::new();
        for peer in &mut *peers {
            if peer.directions().contains(&encrypt) {
                let mut data = plain.clone();
                peer.run(1000, &mut data, encrypt, true);
                results.push((peer.name(), data));
            }
        }
        if let Some((name, _)) = results.iter().find(|(_, data)| *data != results[0].1) {
            return Err(format!("{name} and {} compute different bytes", results[0].0).into());
        }
    }
    Ok(())
}

fn time(peer: &mut dyn Peer, data: &mut [u8], encrypt: bool, calls: usize) -> Duration {
    let begin = Instant::now();
    for call in 0..calls {
        peer.run(call as u64, data, encrypt, false);
    }
    begin.elapsed()
}

fn repetitions(peer: &mut dyn Peer, data: &mut [u8], encrypt: bool) -> usize {
    let mut calls = 1;
    loop {
        let taken = time(peer, data, encrypt, calls);
        if taken * 4 >= TURN_TIME {
            return ((calls as f64 * TURN_TIME.as_secs_f64() / taken.as_secs_f64()) as usize).max(1);
        }
        calls *= 2;
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
