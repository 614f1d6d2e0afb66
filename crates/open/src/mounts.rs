//! Mounts of this process's namespace, as `/proc/self/mountinfo` lists them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Type of overlayfs, as statfs(2) returns it.
const OVERLAY: u32 = 0x794c_7630;

/// Decodes white space and backslashes, which the kernel writes as three octal digits.
pub fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|d| *first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match digits {
            Some(d) => {
                bytes.push(((d[0] - b'0') << 6).wrapping_add((d[1] - b'0') << 3).wrapping_add(d[2] - b'0'));
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Returns the file of a layer that a file on overlayfs is, at the time of the call: both names mean the same bytes,
/// but the kernel gives them different inodes. `None`: another file system, or a layer that this process does not see.
pub fn file_of_layer(path: &Path) -> Option<PathBuf> {
    // The type of `f_type` differs between architectures, its lowest 32 bits do not.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::statfs(path).ok().filter(|system| system.f_type as u32 == OVERLAY)?;
    let real = fs::canonicalize(path).ok()?;
    let table = fs::read("/proc/self/mountinfo").ok()?;
    layers_of(&table, &real).into_iter().find(|layer| layer.symlink_metadata().is_ok_and(|found| found.is_file()))
}

/// Returns the paths that a path has in the layers of its overlay, the upper one first.
fn layers_of(table: &[u8], path: &Path) -> Vec<PathBuf> {
    let mut deepest: (usize, Vec<PathBuf>) = (0, Vec::new());
    for line in table.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-").unwrap_or(fields.len());
        let (Some(root), Some(at)) = (fields.get(3), fields.get(4)) else { continue };
        let at = unescape(at);
        let Ok(below) = path.strip_prefix(&at) else { continue };
        let depth = at.as_os_str().len();
        // Of mounts at the same place the last one covers the others.
        if depth >= deepest.0 {
            let options = fields.get(separator + 3).filter(|_| fields.get(separator + 1) == Some(&&b"overlay"[..]));
            let inside = unescape(root);
            let inside = inside.strip_prefix("/").unwrap_or(&inside).join(below);
            let layers = options.map(|options| layers(options)).unwrap_or_default();
            deepest = (depth, layers.iter().map(|layer| layer.join(&inside)).collect());
        }
    }
    deepest.1
}

/// Returns the directories of an overlay's options, the upper one first.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    let (mut upper, mut lower) = (Vec::new(), Vec::new());
    // Commas in values are escaped.
    for option in options.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = unescape(&option[at + 1..]);
        match &option[..at] {
            b"upperdir" => upper.push(value),
            b"lowerdir" => lower.extend(split_layers(value.as_os_str())),
            b"lowerdir+" => lower.push(value),
            _ => {}
        }
    }
    upper.into_iter().chain(lower).filter(|dir| dir.is_absolute()).collect()
}

/// Splits a list of directories at colons without a backslash before them.
fn split_layers(list: &OsStr) -> Vec<PathBuf> {
    let (mut found, mut name) = (Vec::new(), Vec::new());
    let mut bytes = list.as_bytes().iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => name.extend(bytes.next()),
            b':' => found.push(std::mem::take(&mut name)),
            _ => name.push(*byte),
        }
    }
    found.push(name);
    found.into_iter().filter(|name| !name.is_empty()).map(|name| OsString::from_vec(name).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_overlay_are_found_for_paths_in_it() {
        let table = b"20 1 0:1 / / rw - ext4 /dev/x rw\n\
            21 20 0:39 / /m\\040m rw - overlay overlay rw,lowerdir=/a\\:b:/c,upperdir=/u\\054v,workdir=/w\n\
            22 20 0:39 /sub /bound rw - overlay overlay rw,lowerdir+=/l,lowerdir+=rel,upperdir=/u\n\
            23 21 0:40 / /m\\040m/other rw - tmpfs tmpfs rw\n";
        for (path, wanted) in [
            ("/m m/d/f", &["/u,v/d/f", "/a:b/d/f", "/c/d/f"][..]),
            ("/bound/f", &["/u/sub/f", "/l/sub/f"]),
            ("/m m/other/f", &[]),
            ("/m/f", &[]),
        ] {
            let wanted: Vec<_> = wanted.iter().map(PathBuf::from).collect();
            assert_eq!(layers_of(table, Path::new(path)), wanted, "{path}");
        }
        assert_eq!(layers_of(b"\n1 2\n- - - - -", Path::new("/f")), Vec::<PathBuf>::new());
    }
}
