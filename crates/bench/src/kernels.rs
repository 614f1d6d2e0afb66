//! Throughput of the cipher kernels as a share of the CPU's limit, independent AES rounds back to back (see [`Limit`]).
//!
//! Kernel and limit alternate in slices of half a millisecond, and the share is the median of the slices' ratios: a
//! change of the clock rate, or another program, affects both sides of a ratio.

use std::time::{Duration, Instant};

use inlock_cipher::{
    AesKernel, ChainMode, CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, Limit, SectorCipher,
    new_sector_cipher_on,
};

use crate::statistics::median;

/// Direction of a call.
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

/// A plan of measurements: every combination of the lists.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cipher.
    pub spec: CipherSpec,
    /// Kernels, for example all of [`AesKernel::allowed`].
    pub kernels: Vec<AesKernel>,
    /// Bits of the AES key: 128 or 256 (an XTS key has twice as many).
    pub key_bits: Vec<usize>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Sizes of a data unit.
    pub units: Vec<DataUnitSize>,
    /// Bytes of one call. Sizes without a whole unit are left out.
    pub request_sizes: Vec<usize>,
    /// Number of slices of each side.
    pub slices: usize,
    /// Approximate length of a slice.
    pub slice: Duration,
}

impl Plan {
    /// Returns the whole table: every kernel that `INLOCK_CPU` allows, both key lengths and directions, units of 512,
    /// 4096 and 65536 bytes, requests of 4 KiB to 1 MiB. Takes about three seconds for each kernel.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn full(spec: CipherSpec) -> Result<Self, CipherError> {
        Ok(Self {
            spec,
            kernels: AesKernel::allowed()?,
            key_bits: vec![128, 256],
            directions: vec![Direction::Encrypt, Direction::Decrypt],
            units: [512, 4096, 65536].into_iter().filter_map(|bytes| DataUnitSize::new(bytes).ok()).collect(),
            request_sizes: vec![4 << 10, 64 << 10, 256 << 10, 1 << 20],
            slices: 61,
            slice: Duration::from_micros(500),
        })
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
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
    /// Median throughput of the limit in the same slices.
    pub limit_bytes_per_second: f64,
    /// Median of the slices' ratios.
    pub share_of_limit: f64,
}

/// Measures `plan`, calling `done` after each row.
///
/// # Errors
///
/// Fails if a cipher of the plan cannot be made.
pub fn run(plan: &Plan, mut done: impl FnMut(&Row)) -> Result<Vec<Row>, CipherError> {
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
    kernel: AesKernel,
    spec: &CipherSpec,
    key_bits: usize,
    unit: DataUnitSize,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    let keys = if spec.mode == ChainMode::Xts { 2 } else { 1 };
    let key: Vec<u8> = (0..keys * key_bits / 8).map(|at| (at * 7 + 1) as u8).collect();
    new_sector_cipher_on(kernel, spec, &key, unit, IvNumbering::DataUnits)
}

/// The two sides of one row.
struct Sides<'a> {
    kernel: AesKernel,
    key_bits: usize,
    cipher: &'a dyn SectorCipher,
    direction: Direction,
    data: &'a mut [u8],
}

impl Sides<'_> {
    fn measure(mut self, plan: &Plan) -> Row {
        let limit = Limit::new(self.kernel, self.key_bits);
        let calls = repetitions(plan.slice, |count| self.kernel_calls(count));
        let limit_count = repetitions(plan.slice, |count| {
            std::hint::black_box(limit.run(count));
        });
        let (mut rates, mut limits, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.slices.max(1) {
            let begin = Instant::now();
            self.kernel_calls(calls);
            let rate = (calls * self.data.len()) as f64 / begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let bytes = limit.run(limit_count);
            let limit = bytes as f64 / begin.elapsed().as_secs_f64();
            rates.push(rate);
            limits.push(limit);
            shares.push(rate / limit);
        }
        Row {
            kernel: self.cipher.kernel(),
            cipher: plan.spec,
            key_bits: self.key_bits,
            direction: self.direction,
            unit_size: self.cipher.unit().bytes(),
            request_size: self.data.len(),
            bytes_per_second: median(&rates),
            limit_bytes_per_second: median(&limits),
            share_of_limit: median(&shares),
        }
    }

    fn kernel_calls(&mut self, calls: usize) {
        for call in 0..calls {
            let (first, data) = (IvNumber(call as u64), InOut::InPlace(self.data));
            match self.direction {
                Direction::Encrypt => self.cipher.encrypt(first, data),
                Direction::Decrypt => self.cipher.decrypt(first, data),
            }
        }
    }
}

/// Returns the number of times that `work` fits into `time`.
pub(crate) fn repetitions(time: Duration, mut work: impl FnMut(usize)) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_every_kernel_has_rates_and_limits() {
        let mut plan = Plan::full(CipherSpec::AES_XTS_PLAIN64).unwrap();
        plan.kernels = AesKernel::available();
        plan.slices = 1;
        plan.slice = Duration::from_micros(20);
        plan.request_sizes = vec![4096];
        let mut seen = 0;
        let rows = run(&plan, |_| seen += 1).unwrap();
        // Units of 65536 bytes do not fit a request of 4096.
        assert_eq!(rows.len(), plan.kernels.len() * 2 * 2 * 2);
        assert_eq!(seen, rows.len());
        for row in rows {
            assert!(row.bytes_per_second > 0.0 && row.limit_bytes_per_second > 0.0, "{row:?}");
            let ratio = row.bytes_per_second / row.limit_bytes_per_second;
            assert!((ratio - row.share_of_limit).abs() < 1e-9, "of one slice: {row:?}");
        }
    }
}
