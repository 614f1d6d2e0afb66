//! Compares Inlock's kernels with other implementations, and with the limit of the CPU.
//!
//! Every peer is called as its users call it: once per data unit, with the key set up once. Inlock gets the whole
//! request in one call. Each instruction set is measured in a process of its own, since OpenSSL and AWS-LC read the
//! variable that limits theirs at startup.

mod aead;
#[cfg(feature = "aws-lc")]
#[allow(unsafe_code)] // Calls C.
mod aws_lc;
mod contest;
mod peers;
mod picture;
mod table;
mod wide;

use inlock_cipher::{AesKernel, CipherSpec, Limit};
use peers::{Case, InlockPeer, LimitPeer, OpenSslPeer, Peer, XtsModePeer};
use serde_json::{Value, json};
use std::error::Error;
use std::process::Command;

const USAGE: &str = "usage: inlock-benches [--aead | --wide] [--json FILE] [--svg FILE] [--from FILE]
  Prints tables. --json writes all figures; --svg plots them; --from takes them from such a JSON file and runs nothing.
  --aead compares authenticated modes instead, --wide the kernels of other ciphers with their libraries.";

/// Instruction sets, and the value of `OPENSSL_ia32cap` that disables wider ones: bits of CPUID leaf 7, AVX-512 F, DQ,
/// BW and VL (16, 17, 30, 31), VAES and VPCLMULQDQ (41, 42).
const LEVELS: [(&str, Option<&str>); 3] =
    [("vaes512", None), ("vaes256", Some(":~0xc0030000")), ("aesni", Some(":~0x600c0030000"))];
const LIMIT_VARIABLE: &str = "OPENSSL_ia32cap";
/// Option of a process that measures one instruction set.
const ONE_LEVEL: &str = "--one-level";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut json_file, mut svg_file, mut from) = (None, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--aead" {
            return aead::run();
        }
        if argument == "--wide" {
            return wide::run();
        }
        let value = arguments.next();
        match (argument.as_str(), value) {
            ("--json", Some(file)) => json_file = Some(file),
            ("--svg", Some(file)) => svg_file = Some(file),
            ("--from", Some(file)) => from = Some(file),
            (ONE_LEVEL, Some(level)) => return one_level(&level),
            _ => return Err(USAGE.into()),
        }
    }
    let results = match from {
        Some(file) => serde_json::from_str(&std::fs::read_to_string(file)?)?,
        None => all_levels()?,
    };
    print!("{}", table::markdown(&results)?);
    if let Some(file) = json_file {
        std::fs::write(file, table::json_lines(&results)?)?;
    }
    if let Some(file) = svg_file {
        std::fs::write(file, picture::svg(&results)?)?;
    }
    Ok(())
}

fn all_levels() -> Result<Value, Box<dyn Error>> {
    let mut results = Vec::new();
    let known: Vec<&str> = AesKernel::available().iter().map(|kernel| kernel.name()).collect();
    for (level, limit) in LEVELS.into_iter().filter(|(level, _)| known.contains(level)) {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ONE_LEVEL, level]).env_remove(LIMIT_VARIABLE);
        if let Some(limit) = limit {
            command.env(LIMIT_VARIABLE, limit);
        }
        let output = command.stderr(std::process::Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("the run for {level} failed").into());
        }
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        results.extend(rows);
    }
    Ok(json!({ "openssl": openssl::version::version(), "results": results }))
}

/// Runs all cases on one instruction set, and prints their rows as JSON.
fn one_level(level: &str) -> Result<(), Box<dyn Error>> {
    let kernel = AesKernel::available().into_iter().find(|kernel| kernel.name() == level);
    let kernel = kernel.ok_or_else(|| format!("this CPU has no {level}"))?;
    let mut rows = Vec::new();
    for (spec, key_len, request, unit) in cases()? {
        for encrypt in [true, false] {
            let key: Vec<u8> = (0..key_len).map(|at| (at * 7 + 1) as u8).collect();
            let case = Case { spec, key: &key, unit, encrypt };
            for mut row in contest::run(&case, request, &mut peers_of(kernel, &case)?)? {
                row["level"] = level.into();
                rows.push(row);
            }
        }
    }
    println!("{}", Value::from(rows));
    Ok(())
}

/// Cipher, key length, request length and unit length in bytes.
type Row = (CipherSpec, usize, usize, usize);

fn cases() -> Result<Vec<Row>, Box<dyn Error>> {
    const LARGE: usize = 256 << 10;
    let xts = CipherSpec::AES_XTS_PLAIN64;
    let mut cases = Vec::new();
    for key_len in [64, 32] {
        cases.extend((9..=16).rev().map(|log2| (xts, key_len, LARGE, 1 << log2)));
        cases.extend([(xts, key_len, 4096, 4096), (xts, key_len, 4096, 512)]);
    }
    let essiv: CipherSpec = "aes-cbc-essiv:sha256".parse()?;
    cases.extend([(essiv, 32, LARGE, 4096), (essiv, 32, LARGE, 512), (essiv, 16, LARGE, 4096)]);
    Ok(cases)
}

/// Returns the limit and Inlock's kernel, then the peers to compare with. Slow peers run once, on the widest level.
fn peers_of(kernel: AesKernel, case: &Case<'_>) -> Result<Vec<Box<dyn Peer>>, Box<dyn Error>> {
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(LimitPeer(Limit::new(kernel, case.key_bits()))),
        Box::new(InlockPeer::new(kernel, case, false)?),
        Box::new(InlockPeer::new(kernel, case, true)?),
        Box::new(OpenSslPeer::new(case)?),
    ];
    #[cfg(feature = "aws-lc")]
    if let Some(peer) = aws_lc::AwsLcPeer::new(case) {
        peers.push(Box::new(peer));
    }
    if AesKernel::available().last() == Some(&kernel) && case.is_xts() {
        peers.push(Box::new(InlockPeer::new(AesKernel::Portable, case, false)?));
        peers.push(Box::new(XtsModePeer::new(case)?));
    }
    Ok(peers)
}
