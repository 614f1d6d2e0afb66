//! Files behind others: a loop device, or a partition of one, is a range of a file, and a name on overlayfs is a file
//! of a layer.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::device;
use crate::mounts::file_of_layer;
use crate::range::Range;

/// Greatest depth of loop devices on loop devices.
const DEPTH_MAX: usize = 8;

/// All bytes of a file.
pub const ALL: Range = Range { offset: 0, len: None };

/// Returns the part `inner` of a range. A part beyond its end is empty, and returned with one byte.
pub(crate) fn part(outer: Range, inner: Range) -> Range {
    let room = outer.len.map(|len| len.saturating_sub(inner.offset).max(1));
    let len = match (room, inner.len) {
        (None, len) | (len, None) => len,
        (Some(room), Some(len)) => Some(len.min(room)),
    };
    Range { offset: outer.offset.saturating_add(inner.offset), len }
}

fn ranges_overlap(one: Range, other: Range) -> bool {
    let end = |range: Range| range.len.map_or(u64::MAX, |len| range.offset.saturating_add(len));
    one.offset < end(other) && other.offset < end(one)
}

/// A range of a file or of a block device.
#[derive(Debug)]
pub struct BackingRange {
    /// A path that leads to it.
    pub path: PathBuf,
    /// As [`device::identity`] returns it.
    pub identity: String,
    /// Its bytes.
    pub range: Range,
}

/// Returns the backing files of an open file or device, the nearest first: those of loop devices, and of a file on
/// overlayfs that of its layer. Ends at the first file that this process's mount namespace does not have.
pub fn ranges_of(file: &File) -> Vec<BackingRange> {
    ranges_behind(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

fn ranges_behind(path: &Path) -> Vec<BackingRange> {
    let mut found: Vec<BackingRange> = Vec::new();
    let (mut path, mut range) = (path.to_owned(), ALL);
    while found.len() < DEPTH_MAX {
        let Ok(metadata) = fs::metadata(&path) else { break };
        let next = match metadata.file_type().is_block_device() {
            true => backing_file(metadata.rdev()),
            false => file_of_layer(&path).map(|path| (path, ALL)),
        };
        let Some((next, inner)) = next else { break };
        let Ok(metadata) = fs::metadata(&next) else { break };
        (path, range) = (next, part(inner, range));
        found.push(BackingRange { path: path.clone(), identity: device::identity(&metadata), range });
    }
    found
}

/// Returns the name of a device in a prompt: of a loop device the file behind it, as in cryptsetup.
pub fn shown(device: &Path) -> PathBuf {
    let file = |metadata: Metadata| match metadata.file_type().is_block_device() {
        true => backing_file(metadata.rdev()).map(|(path, _)| path),
        false => None,
    };
    fs::metadata(device).ok().and_then(file).unwrap_or_else(|| device.to_owned())
}

/// Whether two files or block devices share bytes.
pub fn overlap(one: &Path, other: &Path) -> bool {
    distance(one, other).is_some()
}

/// Returns the position of the first byte of `one` on `other`, in bytes, if they share bytes. It may be negative.
pub fn distance(one: &Path, other: &Path) -> Option<i128> {
    let ranges = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        let own = BackingRange { path: path.to_owned(), identity: device::identity(&metadata), range: ALL };
        Some(std::iter::once(own).chain(ranges_behind(path)).collect::<Vec<_>>())
    };
    let (one, other) = (ranges(one)?, ranges(other)?);
    let same = |a: &BackingRange, b: &BackingRange| a.identity == b.identity && ranges_overlap(a.range, b.range);
    let both = |a: &BackingRange| Some((a.range.offset, other.iter().find(|b| same(a, b))?.range.offset));
    one.iter().find_map(both).map(|(a, b)| i128::from(a) - i128::from(b))
}

/// Whether a header of `len` bytes at the start of `header` reaches into the payload, which `data` has from byte
/// `start` on.
pub fn has_header_in_payload(data: &Path, start: u64, header: &Path, len: u64) -> bool {
    distance(header, data).is_some_and(|at| at + i128::from(len) > i128::from(start))
}

/// Returns a loop device over a file that is in use, as a mounted one is.
pub fn loop_device_in_use(file: &Metadata) -> Option<PathBuf> {
    let identity = device::identity(file);
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut nodes =
        devices.filter(|name| name.as_bytes().starts_with(b"loop")).map(|name| Path::new("/dev").join(name));
    nodes.find(|node| ranges_behind(node).iter().any(|at| at.identity == identity) && device::is_taken(node))
}

/// Returns the file of a loop device, and the device's range of it.
fn backing_file(number: u64) -> Option<(PathBuf, Range)> {
    let own = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let own = Path::new(&own);
    let value = |path: PathBuf| fs::read_to_string(path).ok()?.trim_end().parse::<u64>().ok();
    let is_partition = own.join("partition").exists();
    // `own` is a link to a directory, so its parent is the disk's directory.
    let disk = if is_partition { own.join("..") } else { own.to_owned() };
    let mut path = fs::read(disk.join("loop/backing_file")).ok()?;
    path.pop_if(|byte| *byte == b'\n');
    let limit = value(disk.join("loop/sizelimit"))?;
    let all = Range { offset: value(disk.join("loop/offset"))?, len: Some(limit).filter(|limit| *limit > 0) };
    let range = match is_partition {
        true => {
            let sectors = |name: &str| Some(value(own.join(name))?.saturating_mul(512));
            part(all, Range { offset: sectors("start")?, len: Some(sectors("size")?) })
        }
        false => all,
    };
    Some((PathBuf::from(OsString::from_vec(path)), range))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> Range {
        Range { offset, len: Some(len).filter(|len| *len > 0) }
    }

    #[test]
    fn part_of_range_stays_within_it() {
        for (outer, inner, wanted) in [
            (ALL, ALL, ALL),
            (ALL, range(5, 7), range(5, 7)),
            (range(100, 0), range(5, 0), range(105, 0)),
            (range(100, 50), ALL, range(100, 50)),
            (range(100, 50), range(10, 0), range(110, 40)),
            (range(100, 50), range(10, 20), range(110, 20)),
            (range(100, 50), range(10, 90), range(110, 40)),
            (range(100, 50), range(60, 5), range(160, 1)),
        ] {
            assert_eq!(part(outer, inner), wanted, "{inner:?} of {outer:?}");
        }
    }

    #[test]
    fn adjacent_ranges_do_not_overlap() {
        for (one, other, overlap) in [
            (range(0, 0), range(1 << 40, 1), true),
            (range(0, 10), range(9, 0), true),
            (range(0, 10), range(10, 0), false),
            (range(10, 5), range(0, 10), false),
            (range(10, 5), range(12, 1), true),
        ] {
            assert_eq!(ranges_overlap(one, other), overlap, "{one:?} {other:?}");
            assert_eq!(ranges_overlap(other, one), overlap, "{one:?} {other:?}");
        }
    }

    #[test]
    fn header_may_end_where_the_payload_begins() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        fs::write(&one, [0; 8192]).unwrap();
        fs::write(&other, [0; 8192]).unwrap();
        for (header, len, reaches) in
            [(&one, 4095, false), (&one, 4096, false), (&one, 4097, true), (&other, 8192, false)]
        {
            assert_eq!(has_header_in_payload(&one, 4096, header, len), reaches, "{} {len}", header.display());
        }
    }
}
