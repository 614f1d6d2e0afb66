//! Holders of a block device or a file: mounts, swap, stacked devices, processes that have it open.
//!
//! For error messages, and to refuse detaching a device in use. The list is a snapshot without other mount namespaces;
//! an exclusive open or an unmount by the kernel decides.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use inlock_open::device::is_taken;
use inlock_open::mounts::unescape;

/// Time that a process may have a device open without being a holder: udev's do after a write.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Time that a file system may take to release its device after it was unmounted. Shorter than `close --force` waits
/// until it gives up the store.
const RELEASE_TIME: Duration = Duration::from_secs(3);

/// A holder of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A file system, with its mount point.
    Mount(PathBuf),
    /// Swap space.
    Swap,
    /// A stacked device.
    Device(String),
    /// A process that has it open.
    Process {
        /// Its number.
        pid: u32,
        /// Name of its program.
        name: String,
    },
    /// The kernel refuses an exclusive open for an unknown reason.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(at) => write!(f, "mounted on {}", at.display()),
            Self::Swap => f.write_str("used as swap"),
            Self::Device(name) => write!(f, "used by {name}"),
            Self::Process { pid, name } => write!(f, "open in process {pid} ({name})"),
            Self::Unknown => f.write_str("in use, perhaps in another mount namespace"),
        }
    }
}

/// Joins the descriptions of holders.
pub fn describe(holders: &[Holder]) -> String {
    let words: Vec<String> = holders.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// Returns the holders of a block device. Waits shortly for processes to close it.
pub fn of_device(node: &Path) -> Vec<Holder> {
    let begin = Instant::now();
    loop {
        let found = of_device_now(node);
        // Until when each of them may pass: an exiting process, a file system that is being unmounted.
        let passes = |holder: &Holder| match holder {
            Holder::Process { .. } => SETTLE_TIME,
            Holder::Unknown => RELEASE_TIME,
            _ => Duration::ZERO,
        };
        let wait = found.iter().map(passes).min().unwrap_or_default();
        if begin.elapsed() >= wait {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn of_device_now(node: &Path) -> Vec<Holder> {
    let Ok(number) = fs::metadata(node).map(|metadata| metadata.rdev()) else { return Vec::new() };
    let real = fs::canonicalize(node).unwrap_or_else(|_| node.to_owned());
    let mut found = devices_over(&real);
    found.extend(mounts_of(&real, number).into_iter().map(Holder::Mount));
    found.extend(is_swap(&real).then_some(Holder::Swap));
    if found.is_empty() {
        found = processes(&real);
    }
    if found.is_empty() && is_taken(node) {
        // A file system that is mounted in another namespace.
        found.push(Holder::Unknown);
    }
    found
}

/// Returns the holders of a volume's file. Does not access the file itself, which blocks while its volume is suspended.
pub fn of_file(path: &Path) -> Vec<Holder> {
    let dir = path.parent().and_then(|dir| fs::canonicalize(dir).ok());
    let real = dir.zip(path.file_name()).map_or_else(|| path.to_owned(), |(dir, name)| dir.join(name));
    let mut found = devices_over(&real);
    found.extend(processes(&real));
    found
}

/// Returns the mount points of a block device in this mount namespace.
fn mounts_of(real: &Path, number: u64) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    table.split(|byte| *byte == b'\n').filter_map(|line| mount_of(line, &number, real)).collect()
}

/// Returns the mount point in a line of mountinfo if this device is mounted there. Some file systems show a number of
/// their own, so the source is compared as well.
fn mount_of(line: &[u8], number: &str, real: &Path) -> Option<PathBuf> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let source = unescape(fields.get(separator + 2)?);
    let is_source = || source.starts_with("/dev") && fs::canonicalize(&source).is_ok_and(|path| path == real);
    (*fields.get(2)? == number.as_bytes() || is_source()).then(|| fields.get(4).map(|path| unescape(path)))?
}

/// Returns the source of the mount on `dir`, if there is one.
pub fn source_mounted_on(dir: &Path) -> Option<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let real = fs::canonicalize(dir).ok()?;
    let mut found = None;
    for line in table.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-");
        let source = separator.and_then(|at| fields.get(at + 2));
        if let (Some(at), Some(source)) = (fields.get(4), source)
            && unescape(at) == real
        {
            // The last mount covers earlier ones.
            found = Some(unescape(source));
        }
    }
    found
}

fn is_swap(real: &Path) -> bool {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let mut lines = table.split(|byte| *byte == b'\n').skip(1);
    lines.any(|line| {
        let name = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        !name.is_empty() && fs::canonicalize(unescape(name)).is_ok_and(|path| path == real)
    })
}

/// Returns device-mapper and md devices on a block device, and loop devices on a file or a block device.
fn devices_over(real: &Path) -> Vec<Holder> {
    let mut names = Vec::new();
    if let Some(name) = real.file_name() {
        let holders = Path::new("/sys/class/block").join(name).join("holders");
        names.extend(fs::read_dir(holders).into_iter().flatten().flatten().map(|entry| entry.file_name()));
    }
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.as_bytes().starts_with(b"loop")
            && fs::read(entry.path().join("loop/backing_file")).is_ok_and(|file| path_of(&file) == real)
        {
            names.push(name);
        }
    }
    names.into_iter().map(|name| Holder::Device(name.to_string_lossy().into_owned())).collect()
}

fn path_of(line: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(line.strip_suffix(b"\n").unwrap_or(line)))
}

/// Returns the processes, except this one, that have it open. Only root sees those of other users.
fn processes(real: &Path) -> Vec<Holder> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let fds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let mut open = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        if pid != std::process::id() && open.any(|path| path == real) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(Holder::Process { pid, name: name.trim_end().to_owned() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_found_by_number_or_source() {
        let line = b"36 35 7:3 / /mnt/a\\040b\\134c rw,noatime shared:1 - ext4 /dev/loop3 rw";
        assert_eq!(mount_of(line, "7:3", Path::new("/dev/none")), Some(PathBuf::from("/mnt/a b\\c")));
        assert_eq!(mount_of(line, "7:4", Path::new("/dev/none")), None);
        let btrfs = b"36 35 0:41 /sub /mnt rw - btrfs /dev/null rw,subvol=/sub";
        assert_eq!(mount_of(btrfs, "1:9", Path::new("/dev/null")), Some(PathBuf::from("/mnt")));
        for broken in [&b""[..], b"36", b"36 35 7:3 / /mnt rw", b"1 2 7:3 / /m rw -", b"- - - - -"] {
            assert_eq!(mount_of(broken, "7:3", Path::new("/dev/null")), None);
        }
    }

    #[test]
    fn process_with_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(of_file(&path), []);
        fs::write(&path, "x").unwrap();
        let file = fs::File::open(&path).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
        let found = of_file(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        // Processes that other tests start have the file open, too, until their exec.
        let is_child = |holder: &Holder| matches!(holder, Holder::Process { pid, .. } if *pid == child.id());
        assert_eq!(found.iter().filter(|holder| is_child(holder)).count(), 1, "{found:?}");
    }

    #[test]
    fn source_of_mount_is_found() {
        assert!(source_mounted_on(Path::new("/proc")).is_some());
        assert_eq!(source_mounted_on(tempfile::tempdir().unwrap().path()), None);
    }
}
