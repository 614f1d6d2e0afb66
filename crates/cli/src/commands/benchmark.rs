//! `benchmark`: cryptsetup's benchmark of key derivations and ciphers, for Inlock's implementations.

use std::time::{Duration, Instant};

use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, VolumeKey, new_sector_cipher};
use inlock_volume::{Hash, Kdf, KdfKind, KdfRequest};

use crate::args::action::{Action, KDF, Prepared};
use crate::args::keyslot::{KdfArgs, kdf_args};
use crate::args::options::Options;
use crate::args::source::{cipher_of, hash_of, key_bytes, key_len_of};
use crate::ui::print::print;

pub(crate) const ACTION: Action = Action {
    name: "benchmark",
    aliases: &[],
    arguments: &[],
    options: &[&["cipher", "key-size", "hash"], KDF],
    about: "benchmark key derivation and ciphers",
    prepare: |options, _| {
        let args = benchmark_args(&options)?;
        Ok(Prepared::new(move || run(&args)))
    },
};

/// Algorithms to benchmark: all unless some are given.
struct BenchmarkArgs {
    cipher: Option<CipherSpec>,
    key_len: Option<usize>,
    hash: Option<Hash>,
    kdf: KdfArgs,
}

fn benchmark_args(options: &Options) -> anyhow::Result<BenchmarkArgs> {
    let cipher = options.cipher.as_ref().map(|name| cipher_of(options).or_else(|error| with_iv(name, error)));
    let cipher = cipher.transpose()?;
    options.key_size.map(key_bytes).transpose()?;
    let key_len = cipher.map(|cipher| key_len_of(options, cipher, true)).transpose()?;
    Ok(BenchmarkArgs { cipher, key_len, kdf: kdf_args(options)?, hash: hash_of(options)? })
}

/// Returns the cipher of a specification without IV, as cryptsetup's benchmark takes it, or else the error.
fn with_iv(name: &str, error: anyhow::Error) -> anyhow::Result<CipherSpec> {
    format!("{name}-plain64").parse().map_err(|_| error)
}

/// Bytes encrypted in one call.
const BUFFER: usize = 1 << 20;
/// Duration of a measurement of one cipher in one direction.
const MEASURE: Duration = Duration::from_millis(200);
/// Ciphers of cryptsetup's benchmark in its order, then the others, with the length of the key in bytes.
const CIPHERS: &[(&str, usize)] = &[
    ("aes-cbc-plain64", 16),
    ("serpent-cbc-plain64", 16),
    ("twofish-cbc-plain64", 16),
    ("aes-cbc-plain64", 32),
    ("serpent-cbc-plain64", 32),
    ("twofish-cbc-plain64", 32),
    ("aes-xts-plain64", 32),
    ("serpent-xts-plain64", 32),
    ("twofish-xts-plain64", 32),
    ("aes-xts-plain64", 64),
    ("serpent-xts-plain64", 64),
    ("twofish-xts-plain64", 64),
    ("camellia-xts-plain64", 64),
    ("aria-xts-plain64", 64),
    ("sm4-xts-plain64", 32),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("xchacha20,aes-adiantum-plain64", 32),
    ("des3_ede-cbc-plain64", 24),
    ("blowfish-cbc-plain64", 16),
    ("cast5-cbc-plain64", 16),
];
/// Length of the derived key, as in cryptsetup's benchmark.
const KEY_LEN: usize = 32;

fn run(args: &BenchmarkArgs) -> anyhow::Result<()> {
    print("# Tests are approximate using memory only (no storage IO).\n")?;
    if let Some(spec) = args.cipher {
        header()?;
        return cipher_line(spec, args.key_len.unwrap_or(32));
    }
    let everything = args.kdf.kind.is_none() && args.hash.is_none();
    for kind in [KdfKind::Pbkdf2, KdfKind::Argon2i, KdfKind::Argon2id] {
        let wanted = args.kdf.kind.unwrap_or(if args.hash.is_some() { KdfKind::Pbkdf2 } else { kind });
        if kind != wanted {
            continue;
        }
        match kind {
            KdfKind::Pbkdf2 => {
                for hash in Hash::ALL.into_iter().filter(|hash| args.hash.is_none_or(|only| only == *hash)) {
                    pbkdf2_line(hash)?;
                }
            }
            _ => argon2_line(args, kind)?,
        }
    }
    if everything {
        header()?;
        for &(spec, key_len) in CIPHERS {
            cipher_line(spec.parse()?, key_len)?;
        }
    }
    Ok(())
}

fn pbkdf2_line(hash: Hash) -> anyhow::Result<()> {
    let mut request = KdfRequest::new(KdfKind::Pbkdf2);
    (request.hash, request.iter_time_ms) = (hash, 1000);
    let Kdf::Pbkdf2 { iterations, .. } = request.resolve(KEY_LEN)? else { return Ok(()) };
    let name = hash.name();
    print(format_args!("PBKDF2-{name:<9} {iterations:7} iterations per second for {}-bit key\n", KEY_LEN * 8))
}

fn argon2_line(args: &BenchmarkArgs, kind: KdfKind) -> anyhow::Result<()> {
    let iter_time_ms = args.kdf.iter_time_ms.unwrap_or(KdfRequest::DEFAULT_ITER_TIME_MS);
    let mut request = KdfRequest::new(kind);
    request.iter_time_ms = iter_time_ms;
    request.forced_iterations = args.kdf.force_iterations;
    request.memory_kib = args.kdf.memory_kib;
    request.lanes = args.kdf.parallel;
    let (Kdf::Argon2i(cost) | Kdf::Argon2id(cost)) = request.resolve(KEY_LEN)? else { return Ok(()) };
    print(format_args!(
        "{:<10} {:4} iterations, {:5} memory, {} parallel threads (CPUs) for {}-bit key (requested {iter_time_ms} ms time)\n",
        kind.name(),
        cost.time,
        cost.memory_kib,
        cost.lanes,
        KEY_LEN * 8,
    ))
}

fn header() -> anyhow::Result<()> {
    print("#     Algorithm |       Key |      Encryption |      Decryption\n")
}

fn cipher_line(spec: CipherSpec, key_len: usize) -> anyhow::Result<()> {
    let mut key = VolumeKey::zeroed(key_len);
    // XTS may refuse a key with equal halves.
    key.as_mut_bytes().iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
    let cipher = new_sector_cipher(&spec, key.as_bytes(), DataUnitSize::LUKS_MAX, IvNumbering::Sectors)?;
    let mut data = vec![0x5a; BUFFER];
    let encryption = speed(|| cipher.encrypt(IvNumber(0), InOut::InPlace(&mut data)));
    let decryption = speed(|| cipher.decrypt(IvNumber(0), InOut::InPlace(&mut data)));
    let (name, mode) = spec.luks1_names();
    let mode = mode.split('-').next().unwrap_or_default();
    let bits = key_len * 8;
    let name = format!("{name:>11}-{mode}");
    let room = 26_usize.saturating_sub(name.len());
    print(format_args!("{name}{bits:>room$}b  {encryption:>10.1} MiB/s  {decryption:>10.1} MiB/s\n"))
}

/// Returns the speed of a call that processes [`BUFFER`] bytes, in MiB/s.
fn speed(mut call: impl FnMut()) -> f64 {
    call();
    let started = Instant::now();
    let mut bytes = 0_u64;
    while started.elapsed() < MEASURE {
        call();
        bytes += BUFFER as u64;
    }
    bytes as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64()
}
