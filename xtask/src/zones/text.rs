//! Names of error numbers, and reports of `blkzone` with shifted zones.

use std::io::Read;

use anyhow::{Context, Result};
use rustix::io::Errno;

/// Returns the name of an error number that block devices return.
pub(super) fn name(errno: Errno) -> String {
    let known = [
        (Errno::IO, "EIO"),
        (Errno::INVAL, "EINVAL"),
        (Errno::BADF, "EBADF"),
        (Errno::PERM, "EPERM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::ROFS, "EROFS"),
        (Errno::NOTTY, "ENOTTY"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NXIO, "ENXIO"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::OVERFLOW, "EOVERFLOW"),
        (Errno::TOOMANYREFS, "ETOOMANYREFS"),
        (Errno::REMOTEIO, "EREMOTEIO"),
        (Errno::TIMEDOUT, "ETIMEDOUT"),
        (Errno::BUSY, "EBUSY"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::FAULT, "EFAULT"),
        (Errno::FBIG, "EFBIG"),
    ];
    known.iter().find(|(e, _)| *e == errno).map_or(format!("E{}", errno.raw_os_error()), |(_, name)| (*name).to_owned())
}

/// Rewrites the report on standard input as if the device started `sectors` later.
pub(super) fn shift(sectors: u64) -> Result<()> {
    let mut report = String::new();
    std::io::stdin().read_to_string(&mut report)?;
    for line in report.lines() {
        println!("{}", shifted(line, sectors)?);
    }
    Ok(())
}

/// Shifts a line `  start: 0x000001000, len ...`; the rest is relative to the start, and stays.
fn shifted(line: &str, sectors: u64) -> Result<String> {
    let (before, rest) = line.split_once("start: 0x").with_context(|| format!("no zone: {line}"))?;
    let (start, behind) = rest.split_once(',').with_context(|| format!("no zone: {line}"))?;
    let start = u64::from_str_radix(start, 16).with_context(|| format!("no zone: {line}"))?;
    let moved = start.checked_sub(sectors).with_context(|| format!("it begins before: {line}"))?;
    Ok(format!("{before}start: 0x{moved:09x},{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_report_moves_zone_starts_only() {
        let line = "  start: 0x000004000, len 0x002000, cap 0x001800, wptr 0x000008 reset:0 non-seq:0, zcond: 2(oi)";
        let moved = shifted(line, 0x2000).unwrap();
        assert_eq!(moved, line.replace("0x000004000", "0x000002000"));
        assert!(shifted(line, 0x4001).is_err() && shifted("nothing", 0).is_err());
    }
}
