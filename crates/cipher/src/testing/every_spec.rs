//! Every specification in [`known_specs`]: many units in one call give the same bytes as single calls, on the portable
//! path and on the fastest kernel, in place and copied, and decrypt to the original.
//!
//! Vectors, and the table of digests of an independent implementation below, show that the bytes are right.

use super::noise;
use crate::locked::tests::releases_of;
use crate::spec::known_specs;
use crate::*;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the shortest, the middle and the longest key length: ciphers with keys of any length have dozens.
fn some_key_lens(spec: &CipherSpec) -> Vec<usize> {
    let lens: Vec<_> = spec.key_lens().into_iter().filter(|len| *len != 0).collect();
    let mut some = vec![lens[0], lens[lens.len() / 2], lens[lens.len() - 1]];
    some.dedup();
    some
}

/// Returns key lengths, units and IV numberings to test a specification with. The shortest key is tested with all
/// units.
fn variants(spec: &CipherSpec) -> Vec<(usize, DataUnitSize, bool)> {
    let units = [9, 12, 16].map(|log2| DataUnitSize::new(1 << log2).unwrap());
    let lens = some_key_lens(spec);
    let mut variants: Vec<_> = lens.iter().map(|len| (*len, DataUnitSize::SECTOR, true)).collect();
    for unit in units.into_iter().filter(|unit| *unit > DataUnitSize::SECTOR && spec.can_use_unit(*unit)) {
        variants.extend([(lens[0], unit, true), (lens[0], unit, false)]);
    }
    variants
}

/// Makes a cipher with a key derived from its length, so that an independent implementation can derive it, too.
fn cipher(
    kernel: AesKernel,
    spec: &CipherSpec,
    (key_len, unit, large_iv): (usize, DataUnitSize, bool),
) -> Box<dyn SectorCipher> {
    new_sector_cipher_on(kernel, spec, &pattern(7, key_len), unit, large_iv.into())
        .unwrap_or_else(|error| panic!("{spec} with {key_len} bytes: {error}"))
}

/// Returns bytes that another implementation can compute: the first of SHA-256 over the seed and a counter, each as
/// eight bytes, little-endian.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let blocks = (0..len.div_ceil(32) as u64)
        .map(|at| Sha256::new().chain_update(seed.to_le_bytes()).chain_update(at.to_le_bytes()).finalize());
    let mut bytes: Vec<u8> = blocks.flatten().collect();
    bytes.truncate(len);
    bytes
}

fn compare(spec: &CipherSpec, variant: (usize, DataUnitSize, bool), first: u64, units: usize) {
    let (key_len, unit, large_iv) = variant;
    let name = format!("{spec} {} bits, {unit:?}, large {large_iv}, from {first}", key_len * 8);
    let plain = noise(first, units * unit.bytes());
    let step = if large_iv { 1 } else { unit.sectors() };
    let mut expected = plain.clone();
    let mut number = first;
    let portable = cipher(AesKernel::Portable, spec, variant);
    for unit in expected.chunks_exact_mut(unit.bytes()) {
        portable.encrypt(IvNumber(number), InOut::InPlace(unit));
        number = number.wrapping_add(step);
    }
    assert!(spec.cipher == Cipher::Null || expected != plain, "{name}: nothing was encrypted");
    let best = cipher(AesKernel::best().unwrap(), spec, variant);
    for cipher in [portable, best] {
        let mut data = plain.clone();
        cipher.encrypt(IvNumber(first), InOut::InPlace(&mut data));
        assert!(data == expected, "{name}: encryption in place on {}", cipher.kernel());
        cipher.decrypt(IvNumber(first), InOut::InPlace(&mut data));
        assert!(data == plain, "{name}: decryption in place on {}", cipher.kernel());
        cipher.encrypt(IvNumber(first), InOut::copy(&plain, &mut data));
        assert!(data == expected, "{name}: encryption of a copy on {}", cipher.kernel());
        let ciphertext = data.clone();
        cipher.decrypt(IvNumber(first), InOut::copy(&ciphertext, &mut data));
        assert!(data == plain && ciphertext == expected, "{name}: decryption of a copy on {}", cipher.kernel());
    }
}

/// More units than one batch of IVs, across the wraps of 32 and 64 bits.
#[test]
fn many_units_in_one_call_equal_single_calls() {
    let (specs, next) = (known_specs(), AtomicUsize::new(0));
    let compare_some = || {
        let mut combinations = 0;
        while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
            for variant in variants(spec) {
                let units = match variant.1.bytes() {
                    512 => [1, 67],
                    4096 => [1, 9],
                    _ => [1, 2],
                };
                for (first, units) in [((1 << 32) - 16, units[1]), (u64::MAX - 7, units[0])] {
                    compare(spec, variant, first, units);
                    combinations += 1;
                }
            }
        }
        combinations
    };
    let combinations: usize = thread::scope(|scope| {
        let threads = [scope.spawn(compare_some), scope.spawn(compare_some)];
        threads.map(|thread| thread.join().unwrap()).into_iter().sum()
    });
    println!("{} specifications, {combinations} combinations", specs.len());
}

/// Four units from number 2^32 - 16, against `tests/oracle/cipher_digests.py`, which uses block ciphers of the Python
/// packages `cryptography` and `pycryptodome` and implements modes and IVs itself.
#[test]
fn digests_of_an_independent_implementation() {
    let rows: Vec<_> = include_str!("../../tests/vectors/digests.txt").lines().collect();
    let mut ciphers = std::collections::HashSet::new();
    for row in &rows {
        let [spec, key_len, unit, large, digest] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let spec: CipherSpec = spec.parse().unwrap();
        let unit = DataUnitSize::new(unit.parse().unwrap()).unwrap();
        for kernel in AesKernel::available() {
            let cipher = cipher(kernel, &spec, (key_len.parse().unwrap(), unit, large == "1"));
            let mut data = pattern(1, 4 * unit.bytes());
            cipher.encrypt(IvNumber((1 << 32) - 16), InOut::InPlace(&mut data));
            let got: String = Sha256::digest(&data)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(got, digest, "{row} on {}", cipher.kernel());
        }
        ciphers.insert(spec);
    }
    println!("{} digests of {} specifications", rows.len(), ciphers.len());
    assert!(ciphers.len() >= 150, "only {} specifications", ciphers.len());
}

/// Keys, and values derived from them for IVs, are wiped.
#[test]
fn key_memory_of_every_specification_is_wiped() {
    for spec in known_specs().iter().filter(|spec| spec.cipher != Cipher::Null) {
        let cipher = cipher(AesKernel::best().unwrap(), spec, variants(spec)[0]);
        let releases = releases_of(|| drop(cipher));
        let least = spec.keys.get();
        assert!(releases.len() >= least && releases.iter().all(|wiped| *wiped), "{spec}: {releases:?}");
    }
}
