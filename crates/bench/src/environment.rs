//! Environment of a run: CPU, kernel, file system, versions of the programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names and values, in display order.
pub(crate) fn describe(dir: &Path, programs: &[&str]) -> Vec<(String, String)> {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let flags = info("/proc/cpuinfo", "flags").or_else(|| info("/proc/cpuinfo", "Features")).unwrap_or_default();
    let wanted = ["aes", "vaes", "vpclmulqdq", "avx2", "avx512f"];
    let present: Vec<&str> = flags.split_whitespace().filter(|flag| wanted.contains(flag)).collect();
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let kernels: Vec<&str> = inlock_cipher::AesKernel::available().iter().map(|kernel| kernel.name()).collect();
    let mut rows = vec![
        ("date", date()),
        ("inlock", env!("CARGO_PKG_VERSION").to_owned()),
        ("processor", cpu_model()),
        ("usable processors", cpus.to_string()),
        ("processor flags", present.join(" ")),
        ("cipher kernels", kernels.join(" ")),
        ("governor", governor.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())),
        ("kernel", fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()),
        ("memory", info("/proc/meminfo", "MemTotal").unwrap_or_default()),
        ("images", format!("{} ({})", dir.display(), file_system(dir))),
        ("volume", "aes-xts-plain64, 512-bit key, data units of 4096 bytes".to_owned()),
    ];
    rows.extend(programs.iter().filter_map(|program| Some((*program, version(program)?))));
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the model name of the CPU.
pub(crate) fn cpu_model() -> String {
    info("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// First line of `PROGRAM --version`; `None` if it cannot be run.
pub(crate) fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

fn info(file: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let (_, value) = text.lines().find(|line| line.starts_with(field))?.split_once(':')?;
    Some(value.trim().to_owned())
}

/// Returns the type of the file system of a directory.
fn file_system(dir: &Path) -> String {
    let Ok(dir) = dir.canonicalize() else { return "unknown".to_owned() };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let found = fields.filter(|(place, _)| dir.starts_with(place)).max_by_key(|(place, _)| place.len());
    found.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

/// Returns today in UTC, as `2026-11-21`.
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(now.as_secs() / 86400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the date of a day since 1970-01-01 in the Gregorian calendar.
fn civil(mut day: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_of_a_day_is_its_date() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11016), (2000, 2, 29));
        assert_eq!(civil(20778), (2026, 11, 21));
        assert_eq!(civil(20818), (2026, 12, 31));
    }

    #[test]
    fn environment_names_kernel_and_cipher_kernels() {
        let rows = describe(Path::new("/"), &["a-program-that-is-not-there"]);
        let value = |name: &str| rows.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        assert!(value("kernel").is_some_and(|text| !text.is_empty()));
        assert!(value("cipher kernels").is_some_and(|text| text.contains("portable")));
        assert_eq!(value("a-program-that-is-not-there"), None);
    }
}
