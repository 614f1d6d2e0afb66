//! Added to each mutated crate as the module `mutant_check`.
//!
//! The environment variable `INLOCK_MUTANT` has the number of the mutant that is active. If `INLOCK_MUTANTS_REACHED` is
//! set instead, each mutant is recorded in that file when its code is first reached. After the first call nothing is
//! allocated.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

struct Check {
    active: u32,
    reached: Option<(File, Vec<AtomicBool>)>,
}

/// Returns whether the mutant with this number is active.
#[inline(never)]
pub(crate) fn is_active(number: u32) -> bool {
    static CHECK: OnceLock<Check> = OnceLock::new();
    let check = CHECK.get_or_init(read);
    if let Some((file, seen)) = &check.reached
        && let Some(seen) = seen.get(number as usize)
        && !seen.load(Ordering::Relaxed)
        && !seen.swap(true, Ordering::Relaxed)
    {
        let mut file: &File = file;
        let _ = file.write_all(&number.to_le_bytes());
    }
    check.active == number
}

fn read() -> Check {
    let active = std::env::var("INLOCK_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX);
    let file = std::env::var_os("INLOCK_MUTANTS_REACHED")
        .and_then(|path| File::options().append(true).create(true).open(path).ok());
    let seen = || (0..60_000).map(|_| AtomicBool::new(false)).collect();
    Check { active, reached: file.map(|file| (file, seen())) }
}
