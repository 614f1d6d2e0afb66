//! Measures the kernels against the limit of the processor: AES rounds of the same width, independent of each other, back
//! to back and nothing else (see [`Limit`]).
//!
//! Candidate and limit take turns in slices far shorter than a second, and the share is the median of the turns' ratios: a
//! clock that drifts, or a neighbour, changes both sides of a ratio.

use crate::isa::AesNi;
use crate::xts::{self, XtsKernel};
use crate::{CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, SectorCipher, new_sector_cipher_on};
use std::time::{Duration, Instant};

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

impl Direction {
    /// `encrypt` or `decrypt`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }
}

/// What to measure: every combination of the lists.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cipher.
    pub spec: CipherSpec,
    /// Kernels, as [`XtsKernel::available`] lists them.
    pub kernels: Vec<XtsKernel>,
    /// Bits of the AES key: 128 or 256 (an XTS key has twice as many).
    pub key_bits: Vec<usize>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Sizes of a data unit.
    pub units: Vec<DataUnitSize>,
    /// Lengths of one call's data, in bytes. One that holds no whole unit is left out.
    pub request_sizes: Vec<usize>,
    /// How many times candidate and limit take turns.
    pub turns: usize,
    /// How long one turn of one side takes, about.
    pub turn_time: Duration,
}

impl Plan {
    /// The whole table: every kernel that `INLOCK_CPU` allows, both key lengths and directions, units of 512, 4096 and 65536
    /// bytes, requests of 4 KiB to 1 MiB. Takes about three seconds a kernel.
    pub fn full(spec: CipherSpec) -> Result<Self, CipherError> {
        Ok(Self {
            spec,
            kernels: XtsKernel::allowed()?,
            key_bits: vec![128, 256],
            directions: vec![Direction::Encrypt, Direction::Decrypt],
            units: [512, 4096, 65536].into_iter().filter_map(|bytes| DataUnitSize::new(bytes).ok()).collect(),
            request_sizes: vec![4 << 10, 64 << 10, 256 << 10, 1 << 20],
            turns: 61,
            turn_time: Duration::from_micros(500),
        })
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// The cipher's specification.
    pub cipher: CipherSpec,
    /// Bits of the AES key.
    pub key_bits: usize,
    /// Direction.
    pub direction: Direction,
    /// Bytes in a data unit.
    pub unit_size: usize,
    /// Bytes in one call.
    pub request_size: usize,
    /// Median throughput.
    pub bytes_per_second: f64,
    /// Median throughput of the limit in the same turns.
    pub limit_bytes_per_second: f64,
    /// Median of the turns' ratios.
    pub share_of_limit: f64,
}

/// What a kernel is measured against: independent AES rounds of its width, back to back, as many for each block as the key
/// length has. The portable kernel's is that of AES-NI; without AES instructions, the block cipher it is made of on
/// independent blocks.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    kernel: XtsKernel,
    key_bits: usize,
}

impl Limit {
    /// The limit of `kernel` under AES keys of `key_bits`: 128, 192 or 256.
    pub fn new(kernel: XtsKernel, key_bits: usize) -> Self {
        let kernel = match (kernel, AesNi::detect()) {
            (XtsKernel::Portable, Some(proof)) => XtsKernel::AesNi(proof),
            _ => kernel,
        };
        Self { kernel, key_bits }
    }

    /// Works `count` times. Gives back the bytes that went through.
    pub fn run(&self, count: usize) -> u64 {
        // One count is some microseconds of work.
        xts::limit(self.kernel, self.key_bits, count * 64)
    }
}

/// Measures `plan`, calling `done` after each row.
pub fn run(plan: &Plan, mut done: impl FnMut(&Measurement)) -> Result<Vec<Measurement>, CipherError> {
    let largest = plan.request_sizes.iter().copied().max().unwrap_or(0);
    let mut buffer = vec![0x5a; largest + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let buffer = &mut buffer[start..start + largest];
    let mut results = Vec::new();
    for &kernel in &plan.kernels {
        for &key_bits in &plan.key_bits {
            for &unit in &plan.units {
                let cipher = cipher_for(kernel, &plan.spec, key_bits, unit)?;
                for &request_size in plan.request_sizes.iter().filter(|&&len| len >= unit.bytes()) {
                    for &direction in &plan.directions {
                        let data = &mut buffer[..request_size - request_size % unit.bytes()];
                        let sides = Sides { kernel, key_bits, cipher: &*cipher, direction, data };
                        let row = sides.measure(plan);
                        done(&row);
                        results.push(row);
                    }
                }
            }
        }
    }
    Ok(results)
}

fn cipher_for(
    kernel: XtsKernel,
    spec: &CipherSpec,
    key_bits: usize,
    unit: DataUnitSize,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    let keys = if spec.mode == crate::ChainMode::Xts { 2 } else { 1 };
    let key: Vec<u8> = (0..keys * key_bits / 8).map(|at| (at * 7 + 1) as u8).collect();
    new_sector_cipher_on(kernel, spec, &key, unit, true)
}

/// The two sides of one row.
struct Sides<'a> {
    kernel: XtsKernel,
    key_bits: usize,
    cipher: &'a dyn SectorCipher,
    direction: Direction,
    data: &'a mut [u8],
}

impl Sides<'_> {
    fn measure(mut self, plan: &Plan) -> Measurement {
        let limit = Limit::new(self.kernel, self.key_bits);
        let calls = repetitions(plan.turn_time, |count| self.candidate(count));
        let limit_count = repetitions(plan.turn_time, |count| {
            std::hint::black_box(limit.run(count));
        });
        let (mut rates, mut limits, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.turns.max(1) {
            let begin = Instant::now();
            self.candidate(calls);
            let rate = (calls * self.data.len()) as f64 / begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let bytes = limit.run(limit_count);
            let limit = bytes as f64 / begin.elapsed().as_secs_f64();
            rates.push(rate);
            limits.push(limit);
            shares.push(rate / limit);
        }
        Measurement {
            kernel: self.cipher.kernel(),
            cipher: plan.spec,
            key_bits: self.key_bits,
            direction: self.direction,
            unit_size: self.cipher.unit().bytes(),
            request_size: self.data.len(),
            bytes_per_second: median(&mut rates),
            limit_bytes_per_second: median(&mut limits),
            share_of_limit: median(&mut shares),
        }
    }

    fn candidate(&mut self, calls: usize) {
        for call in 0..calls {
            let (first, data) = (IvNumber(call as u64), InOut::InPlace(self.data));
            match self.direction {
                Direction::Encrypt => self.cipher.encrypt(first, data),
                Direction::Decrypt => self.cipher.decrypt(first, data),
            }
        }
    }
}

/// How often `work` fits into `time`.
fn repetitions(time: Duration, mut work: impl FnMut(usize)) -> usize {
    let mut count = 1;
    loop {
        let begin = Instant::now();
        work(count);
        let taken = begin.elapsed();
        if taken * 4 >= time || count >= 1 << 30 {
            let wanted = count as f64 * time.as_secs_f64() / taken.as_secs_f64().max(1e-9);
            return (wanted as usize).max(1);
        }
        count *= 2;
    }
}

/// The middle of `values`, of which there is at least one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_rate_and_a_limit() {
        let mut plan = Plan::full(CipherSpec::AES_XTS_PLAIN64).unwrap();
        plan.kernels = XtsKernel::available();
        plan.turns = 1;
        plan.turn_time = Duration::from_micros(20);
        plan.request_sizes = vec![4096];
        let mut seen = 0;
        let rows = run(&plan, |_| seen += 1).unwrap();
        // Units of 65536 bytes do not fit a request of 4096.
        assert_eq!(rows.len(), plan.kernels.len() * 2 * 2 * 2);
        assert_eq!(seen, rows.len());
        for row in rows {
            assert!(row.bytes_per_second > 0.0 && row.limit_bytes_per_second > 0.0, "{row:?}");
            let ratio = row.bytes_per_second / row.limit_bytes_per_second;
            assert!((ratio - row.share_of_limit).abs() < 1e-9, "of one turn: {row:?}");
        }
    }

    /// The portable cipher's own limit too, which processors without AES instructions measure.
    #[test]
    fn every_limit_counts_the_bytes_that_went_through() {
        for kernel in XtsKernel::available() {
            for key_bits in [128, 192, 256] {
                let (one, two) = (xts::limit(kernel, key_bits, 1), xts::limit(kernel, key_bits, 2));
                assert!(one > 0 && two == 2 * one, "{kernel:?}");
                assert!(Limit::new(kernel, key_bits).run(1) > 0);
            }
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [7.0]), 7.0);
    }
}
