//! Throughput of the kernels for several messages of a hash, as a ratio to one stream of the hash's library.
//!
//! Both alternate in slices of half a millisecond, and the ratio is the median of the slices' ratios.

use std::time::{Duration, Instant};

use inlock_cipher::{Hash, HashBatch, HashKernel};

use crate::kernels::repetitions;
use crate::statistics::median;

/// Hashes that have kernels; other lengths of their digests take the same time.
const HASHES: [Hash; 3] = [Hash::Sha256, Hash::Sha512, Hash::Blake2b512];
/// Lengths of messages.
const LENGTHS: [usize; 4] = [64, 512, 4096, 65536];
/// Messages in one call.
const COUNTS: [usize; 4] = [1, 2, 4, 64];
/// The salt of a hash tree.
const SALT: [u8; 32] = [0x5a; 32];
const SLICE: Duration = Duration::from_micros(500);

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct HashRow {
    /// Name of the kernel.
    pub(crate) kernel: &'static str,
    pub(crate) hash: Hash,
    /// Bytes in a message, without the salt of 32 bytes.
    pub(crate) message_size: usize,
    /// Messages in one call.
    pub(crate) messages: usize,
    /// Median throughput.
    pub(crate) bytes_per_second: f64,
    /// Median of the slices' ratios to one stream.
    pub(crate) ratio: f64,
}

/// Measures every kernel that this CPU has in `slices` slices, calling `done` after each row.
pub(crate) fn run(slices: usize, mut done: impl FnMut(&HashRow)) -> Vec<HashRow> {
    let mut rows = Vec::new();
    for hash in HASHES {
        for kernel in HashKernel::available(hash) {
            for message_size in LENGTHS {
                for messages in COUNTS {
                    let row = measure(hash, kernel, message_size, messages, slices);
                    done(&row);
                    rows.push(row);
                }
            }
        }
    }
    rows
}

fn measure(hash: Hash, kernel: HashKernel, message_size: usize, messages: usize, slices: usize) -> HashRow {
    let data = vec![0x5a; message_size * messages];
    let mut digests = vec![0; messages * hash.len()];
    let batch = HashBatch::new_on(kernel, hash, &SALT, &[]);
    let mut several = |calls: usize| {
        for _ in 0..calls {
            batch.digest_blocks(std::hint::black_box(&data), message_size, &mut digests, hash.len());
        }
    };
    let one = |calls: usize| {
        for message in (0..calls).flat_map(|_| std::hint::black_box(&data).chunks_exact(message_size)) {
            std::hint::black_box(hash.digest(&[&SALT, message]));
        }
    };
    let (calls, one_calls) = (repetitions(SLICE, &mut several), repetitions(SLICE, one));
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..slices.max(1) {
        let begin = Instant::now();
        several(calls);
        let rate = (calls * data.len()) as f64 / begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        one(one_calls);
        let one_rate = (one_calls * data.len()) as f64 / begin.elapsed().as_secs_f64();
        rates.push(rate);
        ratios.push(rate / one_rate);
    }
    let (bytes_per_second, ratio) = (median(&rates), median(&ratios));
    HashRow { kernel: kernel.name(), hash, message_size, messages, bytes_per_second, ratio }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_every_hash_kernel_has_rates_and_ratios() {
        let rows = run(1, |_| {});
        let kernels: usize = HASHES.into_iter().map(|hash| HashKernel::available(hash).len()).sum();
        assert_eq!(rows.len(), kernels * LENGTHS.len() * COUNTS.len());
        assert!(rows.iter().all(|row| row.bytes_per_second > 0.0 && row.ratio > 0.0), "{rows:?}");
    }
}
