//! The guest's root file system: a cpio archive (format `newc`) in memory, made for each run.
//!
//! It has busybox, the kernel's modules, the test's programs with their libraries, and the guest's scripts.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{output, program, text};

const DIRECTORY: u32 = 0o040_755;
const DEVICE: u32 = 0o020_600;
const FILE: u32 = 0o100_000;

/// A growing archive.
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    inodes: u32,
    names: BTreeSet<String>,
}

impl Initramfs {
    /// Returns an archive with the common files: busybox, empty mount points and a console for `/init`.
    pub(super) fn new() -> Result<Self> {
        let mut archive = Self { bytes: Vec::new(), inodes: 0, names: BTreeSet::new() };
        for folder in ["bin", "dev", "mnt", "proc", "run", "sys", "tmp", "tools", "vm"] {
            archive.folder(folder);
        }
        archive.entry("dev/console", DEVICE, (5, 1), &[]);
        let busybox = find_program("busybox")?;
        let linked = output(program("ldd").arg(&busybox))?;
        ensure!(!linked.status.success(), "{} is not the one of busybox-static", busybox.display());
        archive.file("bin/busybox", 0o755, &read(&busybox)?);
        Ok(archive)
    }

    /// Adds a file by its path in the guest, without the leading `/`, and its directories. The first file of a name
    /// stays.
    pub(super) fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        let folders: Vec<usize> = name.match_indices('/').map(|(place, _)| place).collect();
        for end in folders {
            self.folder(&name[..end]);
        }
        self.entry(name, FILE | permissions, (0, 0), content);
    }

    /// Adds a program of the host as `tools/NAME`, with its libraries.
    pub(super) fn tool(&mut self, name: &str) -> Result<()> {
        let path = find_program(name)?;
        self.program_as(&path, &format!("tools/{name}"))
    }

    /// Adds a program, or a library that programs load by themselves, under a name in the guest, with its libraries.
    pub(super) fn program_as(&mut self, path: &Path, name: &str) -> Result<()> {
        self.file(name, 0o755, &read(path)?);
        for library in libraries(path)? {
            let content = read(&library)?;
            self.file(library.to_string_lossy().trim_start_matches('/'), 0o755, &content);
        }
        Ok(())
    }

    /// Adds everything under a directory of the host to the guest's `/`.
    pub(super) fn tree(&mut self, folder: &Path) -> Result<()> {
        let mut open = vec![folder.to_path_buf()];
        while let Some(place) = open.pop() {
            for entry in fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
                    self.file(&name, 0o644, &read(&path)?);
                }
            }
        }
        Ok(())
    }

    /// Returns the whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.header("TRAILER!!!", 0, (0, 0), 0);
        self.bytes
    }

    fn folder(&mut self, name: &str) {
        self.entry(name, DIRECTORY, (0, 0), &[]);
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        if self.names.insert(name.to_owned()) {
            self.inodes += 1;
            self.header(name, mode, device, content.len());
            self.bytes.extend_from_slice(content);
            self.align();
        }
    }

    fn header(&mut self, name: &str, mode: u32, device: (u32, u32), len: usize) {
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let fields =
            [self.inodes, mode, 0, 0, links, 0, len as u32, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        let mut text = String::from("070701");
        for field in fields {
            write!(text, "{field:08x}").expect("a String takes everything");
        }
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the path of a program: `inlock` is the build under test, `xtask` the running program, others are searched in
/// root's path.
fn find_program(name: &str) -> Result<PathBuf> {
    match name {
        "inlock" => return stripped(&inlock_tests::process::inlock_path()?, name),
        "xtask" => return stripped(&std::env::current_exe()?, name),
        _ => {}
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    let executable = |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    folders.map(|folder| folder.join(name)).find(executable).with_context(|| format!("there is no program {name}"))
}

/// Makes a stripped copy of the program in the same directory: the guest keeps it in memory.
fn stripped(path: &Path, name: &str) -> Result<PathBuf> {
    let directory = path.parent().context("a program without a directory")?;
    let unfinished = tempfile::NamedTempFile::new_in(directory)?;
    text(program("strip").arg("-o").arg(unfinished.path()).arg(path))?;
    let finished = directory.join(format!("{name}.stripped"));
    unfinished.persist(&finished)?;
    Ok(finished)
}

/// Returns the paths of the libraries that `ldd` prints for a program or a library.
fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    let listed = text(program("ldd").arg(path))?;
    ensure!(!listed.contains("not found"), "{}: {listed}", path.display());
    let words = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_lists_added_files() {
        let mut archive = Initramfs { bytes: Vec::new(), inodes: 0, names: BTreeSet::new() };
        archive.file("a/b/c", 0o644, b"five!");
        archive.file("a/b/c", 0o644, b"the second of a name is left out");
        archive.file("a/d", 0o755, b"");
        let bytes = archive.finish();
        let mut at = 0;
        let mut names = Vec::new();
        while at < bytes.len() {
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + 8 * n..at + 14 + 8 * n]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            let name = String::from_utf8_lossy(&bytes[at + 110..at + 109 + field(11)]).into_owned();
            let content = (at + 110 + field(11)).next_multiple_of(4);
            if name == "a/b/c" {
                assert_eq!(&bytes[content..content + field(6)], b"five!");
            }
            at = (content + field(6)).next_multiple_of(4);
            names.push(name);
        }
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/d", "TRAILER!!!"]);
    }
}
