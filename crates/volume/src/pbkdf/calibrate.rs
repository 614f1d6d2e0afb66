//! Costs of a new keyslot: forced, or measured for a wanted unlocking time, by cryptsetup's rules.

use super::memory::SystemMemory;
use super::{Argon2Cost, Hash, Kdf, KdfError, KdfKind, KdfLimits, at_least, at_most, pbkdf2_blocks};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Request for the key derivation of a new keyslot.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfRequest {
    /// The algorithm.
    pub kind: KdfKind,
    /// PBKDF2's hash.
    pub hash: Hash,
    /// Unlocking time on this machine in milliseconds (`--iter-time`; default: 2000).
    pub iter_time_ms: u32,
    /// Number of iterations or passes, without measurement (`--pbkdf-force-iterations`).
    pub forced_iterations: Option<u32>,
    /// Maximum memory in KiB (`--pbkdf-memory`); `None`: 1 GiB. Never more than half of the memory of the machine or
    /// its cgroup, or three quarters of the available memory.
    pub memory_kib: Option<u32>,
    /// Maximum number of lanes (`--pbkdf-parallel`); `None`: 4. Never more than the number of CPUs.
    pub lanes: Option<u32>,
}

impl KdfRequest {
    /// Default unlocking time of a new keyslot, in milliseconds.
    pub const DEFAULT_ITER_TIME_MS: u32 = 2000;
    const DEFAULT_MEMORY_KIB: u32 = 1 << 20;
    const MIN_MEMORY_KIB: u32 = 32;
    const MAX_LANES: u32 = 4;
    const MIN_PASSES: u32 = 4;
    const MIN_ITERATIONS: u32 = 1000;
    /// Memory at the start of a measurement, and its minimum duration.
    const START_MEMORY_KIB: u32 = 64 << 10;
    const MEASURE: Duration = Duration::from_millis(250);

    /// Returns the default of this kind: 2 seconds, `sha256`.
    pub fn new(kind: KdfKind) -> Self {
        Self {
            kind,
            hash: Hash::Sha256,
            iter_time_ms: Self::DEFAULT_ITER_TIME_MS,
            forced_iterations: None,
            memory_kib: None,
            lanes: None,
        }
    }

    /// Returns costs for keys of `key_len` bytes. Unless iterations are forced, it measures for about twice the wanted
    /// time.
    ///
    /// # Errors
    ///
    /// Fails if a request is out of range, or if the measurement gets no memory.
    pub fn resolve(&self, key_len: usize) -> Result<Kdf, KdfError> {
        self.check()?;
        let target = Duration::from_millis(self.iter_time_ms.max(1).into());
        if self.kind == KdfKind::Pbkdf2 {
            let iterations = match self.forced_iterations {
                Some(iterations) => iterations,
                None => pbkdf2_iterations(self.hash, key_len, target)?,
            };
            return Ok(Kdf::Pbkdf2 { hash: self.hash, iterations });
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let lanes = self.lanes.unwrap_or(Self::MAX_LANES).min(cpus);
        let most = usable_memory_kib(SystemMemory::read()).max(Self::MIN_MEMORY_KIB);
        let memory_kib = self.memory_kib.unwrap_or(Self::DEFAULT_MEMORY_KIB).min(most);
        match self.forced_iterations {
            Some(time) => Ok(self.argon2(Argon2Cost { time, memory_kib, lanes })),
            None => self.measure_argon2(memory_kib, lanes, key_len, target),
        }
    }

    fn check(&self) -> Result<(), KdfError> {
        let argon2 = self.kind != KdfKind::Pbkdf2;
        if let Some(iterations) = self.forced_iterations {
            let (what, min) = match argon2 {
                true => ("argon2 time cost", Self::MIN_PASSES),
                false => ("pbkdf2 iterations", Self::MIN_ITERATIONS),
            };
            at_least(what, iterations.into(), min.into())?;
        }
        if let (true, Some(memory)) = (argon2, self.memory_kib) {
            at_least("argon2 memory in KiB", memory.into(), Self::MIN_MEMORY_KIB.into())?;
            at_most("argon2 memory in KiB", memory.into(), KdfLimits::MAX_MEMORY_KIB)?;
        }
        if let (true, Some(lanes)) = (argon2, self.lanes) {
            at_least("argon2 lanes", lanes.into(), 1)?;
            at_most("argon2 lanes", lanes.into(), Self::MAX_LANES.into())?;
        }
        Ok(())
    }

    fn argon2(&self, cost: Argon2Cost) -> Kdf {
        if self.kind == KdfKind::Argon2i { Kdf::Argon2i(cost) } else { Kdf::Argon2id(cost) }
    }

    /// Measures Argon2: first the memory grows, up to `max_kib`, then the number of passes.
    fn measure_argon2(&self, max_kib: u32, lanes: u32, key_len: usize, target: Duration) -> Result<Kdf, KdfError> {
        let mut cost = Argon2Cost { time: Self::MIN_PASSES, memory_kib: Self::START_MEMORY_KIB.min(max_kib), lanes };
        for _ in 0..8 {
            let took = measure(&self.argon2(cost), key_len)?;
            // A short run is imprecise, so it only leads to a longer one.
            let aim = if took * 4 < target { target.min(took.max(Self::MEASURE) * 4) } else { target };
            let ratio = aim.as_secs_f64() / took.as_secs_f64().max(1e-6);
            if aim == target && (0.95..=1.10).contains(&(1.0 / ratio)) {
                break;
            }
            let next = scaled(cost, ratio, max_kib);
            if next == cost {
                break;
            }
            cost = next;
        }
        Ok(self.argon2(cost))
    }
}

/// Scales the work of `cost` by `ratio`.
fn scaled(cost: Argon2Cost, ratio: f64, max_kib: u32) -> Argon2Cost {
    let work = f64::from(cost.time) * f64::from(cost.memory_kib) * ratio;
    let memory_kib = (work / f64::from(KdfRequest::MIN_PASSES)) as u32;
    let memory_kib = memory_kib.clamp(KdfRequest::MIN_MEMORY_KIB.min(max_kib), max_kib);
    let time = ((work / f64::from(memory_kib)) as u32).clamp(KdfRequest::MIN_PASSES, 10_000);
    Argon2Cost { time, memory_kib, lanes: cost.lanes }
}

/// Returns half of the memory, at most three quarters of the available memory, since other programs allocate meanwhile;
/// on a small machine without swap, half of the available memory.
fn usable_memory_kib(memory: SystemMemory) -> u32 {
    let small = memory.total_kib < 4 << 20 && memory.swap_kib == 0;
    let half = if small { memory.available_kib.min(memory.total_kib) / 2 } else { memory.total_kib / 2 };
    u32::try_from(half.min(memory.available_kib / 4 * 3).min(KdfLimits::MAX_MEMORY_KIB)).unwrap_or(u32::MAX)
}

/// Returns the number of PBKDF2 iterations that take `target` for a key of `key_len` bytes; at least 1000.
pub(crate) fn pbkdf2_iterations(hash: Hash, key_len: usize, target: Duration) -> Result<u32, KdfError> {
    let mut iterations = 1u32 << 12;
    let took = loop {
        let took = measure(&Kdf::Pbkdf2 { hash, iterations }, key_len)?;
        if took >= KdfRequest::MEASURE / 2 || iterations >= 1 << 28 {
            break took;
        }
        iterations *= 2;
    };
    let wanted = f64::from(iterations) * target.as_secs_f64() / took.as_secs_f64().max(1e-9);
    let most = KdfLimits::default().pbkdf2_iterations / pbkdf2_blocks(hash, key_len);
    Ok((wanted as u32).clamp(KdfRequest::MIN_ITERATIONS, u32::try_from(most).unwrap_or(u32::MAX)))
}

fn measure(kdf: &Kdf, key_len: usize) -> Result<Duration, KdfError> {
    let mut key = Zeroizing::new(vec![0; key_len.max(4)]);
    let start = Instant::now();
    kdf.derive(b"foobarfo", b"0123456789abcdef0123456789abcdef", &mut key, &KdfLimits::default())?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_cost_keeps_its_bounds() {
        for kind in [KdfKind::Argon2i, KdfKind::Argon2id] {
            let request =
                KdfRequest { iter_time_ms: 10, memory_kib: Some(2048), lanes: Some(1), ..KdfRequest::new(kind) };
            match request.resolve(32) {
                Ok(Kdf::Argon2i(cost) | Kdf::Argon2id(cost)) => {
                    assert!(cost.time >= 4 && (32..=2048).contains(&cost.memory_kib) && cost.lanes == 1, "{cost:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        let request = KdfRequest { iter_time_ms: 1, ..KdfRequest::new(KdfKind::Pbkdf2) };
        assert!(matches!(request.resolve(64), Ok(Kdf::Pbkdf2 { iterations: 1000.., .. })));
    }

    #[test]
    fn memory_grows_before_passes() {
        let start = Argon2Cost { time: 4, memory_kib: 1000, lanes: 1 };
        assert_eq!(scaled(start, 2.0, 4000), Argon2Cost { time: 4, memory_kib: 2000, lanes: 1 });
        assert_eq!(scaled(start, 8.0, 4000), Argon2Cost { time: 8, memory_kib: 4000, lanes: 1 });
        assert_eq!(scaled(start, 1e-9, 4000), Argon2Cost { time: 4, memory_kib: 32, lanes: 1 });
        assert_eq!(scaled(start, 1e30, 4000), Argon2Cost { time: 10_000, memory_kib: 4000, lanes: 1 });
    }

    #[test]
    fn small_machine_without_swap_keeps_half_of_what_is_available() {
        let memory = |total_kib, available_kib, swap_kib| SystemMemory { total_kib, available_kib, swap_kib };
        assert_eq!(usable_memory_kib(memory(2 << 20, 1 << 20, 0)), 1 << 19);
        assert_eq!(usable_memory_kib(memory(2 << 20, 1 << 20, 1)), 3 << 18);
        assert_eq!(usable_memory_kib(memory(64 << 20, 60 << 20, 0)), 4 << 20);
        assert_eq!(usable_memory_kib(memory(64 << 20, 1 << 20, 0)), 3 << 18, "the rest is in use");
    }

    #[test]
    fn costs_out_of_the_format_s_range_are_refused() {
        let argon2 = KdfRequest::new(KdfKind::Argon2id);
        for bad in [
            KdfRequest { forced_iterations: Some(3), ..argon2 },
            KdfRequest { memory_kib: Some(31), ..argon2 },
            KdfRequest { memory_kib: Some((4 << 20) + 1), ..argon2 },
            KdfRequest { lanes: Some(0), ..argon2 },
            KdfRequest { lanes: Some(5), ..argon2 },
            KdfRequest { forced_iterations: Some(999), ..KdfRequest::new(KdfKind::Pbkdf2) },
        ] {
            assert!(bad.resolve(32).is_err(), "{bad:?}");
        }
    }
}
