//! Searching the memory of another process.

use inlock_tests::memory_search::Needles;
use rustix::process::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// Counts occurrences of `wanted`, which are equally long, in the memory of a process. `None`: skipped, since it
/// cannot be read.
pub(crate) fn count(pid: Pid, wanted: &[&[u8]]) -> Option<usize> {
    let path = |file| format!("/proc/{}/{file}", pid.as_raw_nonzero());
    let (Ok(maps), Ok(memory)) = (File::open(path("maps")), File::open(path("mem"))) else {
        println!("SKIPPED: only root looks into a process that is not dumpable");
        return None;
    };
    let needles = Needles::new(wanted.iter().copied());
    let mut piece = vec![0; 1 << 20];
    let (mut found, mut looked) = (0, 0);
    for line in BufReader::new(maps).lines() {
        let line = line.expect("text");
        let Some((start, end)) = range(&line) else { continue };
        let mut at = start;
        while at < end {
            // Pieces overlap, so that a match across their edge is found once.
            let piece = &mut piece[..(end - at).min(1 << 20) as usize];
            // Pages beyond the end of a file and the kernel's own pages cannot be read.
            let Ok(read) = memory.read_at(piece, at) else { break };
            looked += read;
            found += needles.find(&piece[..read]).len();
            if read < piece.len() || at + read as u64 == end {
                break;
            }
            at += (read - (needles.len() - 1)) as u64;
        }
    }
    assert!(looked > 100_000, "{looked} bytes of memory were looked at");
    Some(found)
}

/// Readable addresses of a line of `/proc/PID/maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let readable = words.next()?.starts_with('r');
    let number = |text| u64::from_str_radix(text, 16).ok();
    readable.then_some((number(start)?, number(end)?))
}
