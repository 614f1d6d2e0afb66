//! How much a key derivation may cost, whatever a header says.

use std::fs;

/// The most that one key derivation may cost. A header that asks for more is refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfLimits {
    /// Argon2 memory in KiB. Default: 4 GiB, but never more than half of the machine's memory.
    pub memory_kib: u64,
    /// Argon2 time cost. Default: 10 000 passes.
    pub argon2_time: u32,
    /// Argon2 memory in KiB times time cost. Default: 2^30, a thousand passes over 1 GiB.
    pub argon2_work_kib: u64,
    /// Argon2 lanes. Default: 16 (cryptsetup makes at most 4).
    pub argon2_lanes: u32,
    /// PBKDF2 iterations. Default: 10^9, minutes of computing.
    pub pbkdf2_iterations: u32,
}

impl KdfLimits {
    /// The most memory for Argon2 that the reference implementation ever asks for, in KiB.
    pub const MAX_MEMORY_KIB: u64 = 4 << 20;
}

impl Default for KdfLimits {
    fn default() -> Self {
        Self {
            memory_kib: Self::MAX_MEMORY_KIB.min(SystemMemory::read().total_kib / 2),
            argon2_time: 10_000,
            argon2_work_kib: 1 << 30,
            argon2_lanes: 16,
            pbkdf2_iterations: 1_000_000_000,
        }
    }
}

/// The machine's memory in KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemMemory {
    pub(super) total_kib: u64,
    pub(super) available_kib: u64,
    pub(super) swap_kib: u64,
}

impl SystemMemory {
    /// What the system says; where it says nothing, 2 GiB, so that the limit is the 1 GiB of a default volume.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn parse(meminfo: &str) -> Self {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
        };
        let total_kib = field("MemTotal").unwrap_or(2 << 20);
        Self {
            total_kib,
            available_kib: field("MemAvailable").unwrap_or(total_kib),
            swap_kib: field("SwapTotal").unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_and_its_absence_is_bounded() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nSwapTotal:     4 kB\n";
        let memory = SystemMemory::parse(text);
        assert_eq!((memory.total_kib, memory.available_kib, memory.swap_kib), (16384, 8192, 4));
        assert_eq!(SystemMemory::parse("").total_kib, 2 << 20);
        assert_eq!(SystemMemory::parse("MemTotal: 99999999999999999999999 kB").total_kib, 2 << 20);
        assert!(KdfLimits::default().memory_kib <= KdfLimits::MAX_MEMORY_KIB);
    }
}
