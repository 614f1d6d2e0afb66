//! The files in which the bytes of a block device lie: a loop device, or a partition of one, is a range of a file.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::device;

/// Loop devices stand on loop devices at most this often.
const DEPTH_MAX: usize = 8;

/// A range in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: u64,
    /// 0: to the end, whatever that is.
    pub len: u64,
}

impl Range {
    /// All bytes of a file.
    pub(crate) const ALL: Self = Self { start: 0, len: 0 };

    /// The part `inner` of this range. A part that begins behind the end has no bytes, and one is taken for it.
    fn part(self, inner: Self) -> Self {
        let start = self.start.saturating_add(inner.start);
        let room = self.len.saturating_sub(inner.start).max(1);
        let len = match (self.len, inner.len) {
            (0, len) => len,
            (_, 0) => room,
            (_, len) => len.min(room),
        };
        Self { start, len }
    }

    fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| if range.len == 0 { u64::MAX } else { range.start.saturating_add(range.len) };
        self.start < end(other) && other.start < end(self)
    }
}

/// A range of a file or of a block device.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Where it is found.
    pub path: PathBuf,
    /// What it is under any name, as [`device::identity`] has it.
    pub identity: String,
    pub range: Range,
}

/// What lies below a device, the nearest first: nothing below a regular file. What cannot be found in this process's mount
/// namespace is left out, with what lies below it.
pub(crate) fn below(device: &Metadata) -> Vec<Extent> {
    let mut found: Vec<Extent> = Vec::new();
    let (mut metadata, mut range) = (device.clone(), Range::ALL);
    while metadata.file_type().is_block_device() && found.len() < DEPTH_MAX {
        let Some((path, inner)) = backing_file(metadata.rdev()) else { break };
        let Ok(next) = fs::metadata(&path) else { break };
        metadata = next;
        range = inner.part(range);
        found.push(Extent { path, identity: device::identity(&metadata), range });
    }
    found
}

/// Whether bytes of one file or block device are bytes of the other.
pub(crate) fn overlap(one: &Path, other: &Path) -> bool {
    let extents = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        let own = Extent { path: path.to_owned(), identity: device::identity(&metadata), range: Range::ALL };
        Some(std::iter::once(own).chain(below(&metadata)).collect::<Vec<_>>())
    };
    let (one, other) = (extents(one).unwrap_or_default(), extents(other).unwrap_or_default());
    let same = |a: &Extent, b: &Extent| a.identity == b.identity && a.range.overlaps(b.range);
    one.iter().any(|a| other.iter().any(|b| same(a, b)))
}

/// The file of a loop device, and the range of it that the device is.
fn backing_file(number: u64) -> Option<(PathBuf, Range)> {
    let own = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let own = Path::new(&own);
    let value = |path: PathBuf| fs::read_to_string(path).ok()?.trim_end().parse::<u64>().ok();
    let is_partition = own.join("partition").exists();
    // A link leads to the directory, so that this is the disk's.
    let disk = if is_partition { own.join("..") } else { own.to_owned() };
    let mut path = fs::read(disk.join("loop/backing_file")).ok()?;
    path.pop_if(|byte| *byte == b'\n');
    let all = Range { start: value(disk.join("loop/offset"))?, len: value(disk.join("loop/sizelimit"))? };
    let range = match is_partition {
        true => {
            let sectors = |name: &str| Some(value(own.join(name))?.saturating_mul(512));
            all.part(Range { start: sectors("start")?, len: sectors("size")? })
        }
        false => all,
    };
    Some((PathBuf::from(OsString::from_vec(path)), range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_range_stays_within_it() {
        let range = |start, len| Range { start, len };
        for (outer, inner, part) in [
            (Range::ALL, Range::ALL, Range::ALL),
            (Range::ALL, range(5, 7), range(5, 7)),
            (range(100, 0), range(5, 0), range(105, 0)),
            (range(100, 50), Range::ALL, range(100, 50)),
            (range(100, 50), range(10, 0), range(110, 40)),
            (range(100, 50), range(10, 20), range(110, 20)),
            (range(100, 50), range(10, 90), range(110, 40)),
            (range(100, 50), range(60, 5), range(160, 1)),
        ] {
            assert_eq!(outer.part(inner), part, "{inner:?} of {outer:?}");
        }
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let range = |start, len| Range { start, len };
        assert!(range(0, 0).overlaps(range(1 << 40, 1)));
        assert!(range(0, 10).overlaps(range(9, 0)) && range(9, 0).overlaps(range(0, 10)));
        assert!(!range(0, 10).overlaps(range(10, 0)) && !range(10, 5).overlaps(range(0, 10)));
    }
}
