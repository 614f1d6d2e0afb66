//! Overcommitted storage: a file system on a loop device over a full tmpfs. Writes are accepted, and lost at writeback.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{output, program, text};

const BLOCK: usize = 4096;
/// Content of the blocks of the image that lose their storage.
const DOOMED: u8 = 0xa5;

/// A mounted file system with an image whose first part has no storage.
pub(crate) struct ThinDisk {
    dir: tempfile::TempDir,
    /// Ranges of the loop device's file that hold the first part of the image.
    holes: Vec<(u64, u64)>,
}

impl ThinDisk {
    /// Length of the image.
    pub(crate) const LEN: u64 = 16 << 20;
    /// Start of the part of the image that keeps its storage.
    pub(crate) const KEPT: u64 = 12 << 20;

    /// Creates the file system with `mkfs` on `mib` MiB.
    pub(crate) fn new(mkfs: &[&str], mib: u64) -> Result<Self> {
        let mut this = Self { dir: tempfile::tempdir()?, holes: Vec::new() };
        let pool = this.dir.path().join("pool");
        fs::create_dir(&pool)?;
        fs::create_dir(this.dir.path().join("mnt"))?;
        let size = format!("size={}m", mib + 2);
        text(program("mount").args(["-t", "tmpfs", "-o", &size, "inlock-test-pool"]).arg(&pool))?;
        File::create(this.store())?.set_len(mib << 20)?;
        let (name, words) = mkfs.split_first().context("no program makes the file system")?;
        text(program(name).args(words).arg(this.store()))?;
        this.mount()?;
        let image = File::create(this.image())?;
        image.write_all_at(&vec![DOOMED; Self::KEPT as usize], 0)?;
        image.write_all_at(&vec![!DOOMED; (Self::LEN - Self::KEPT) as usize], Self::KEPT)?;
        image.sync_all()?;
        drop(image);
        this.unmount()?;
        // Allocates all storage except for those blocks: the file system itself loses no write.
        text(program("fallocate").args(["--length", &(mib << 20).to_string()]).arg(this.store()))?;
        this.holes = doomed_ranges(&this.store())?;
        let len: u64 = this.holes.iter().map(|(start, end)| end - start).sum();
        ensure!(len == Self::KEPT, "{len} bytes of the image are found on the loop device");
        this.mount()?;
        Ok(this)
    }

    /// Returns the path of the image.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("mnt/image")
    }

    /// Returns a path outside of both file systems.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("pool/store")
    }

    fn mount(&self) -> Result<()> {
        text(program("mount").args(["-o", "loop"]).arg(self.store()).arg(self.dir.path().join("mnt"))).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        text(program("umount").arg(self.dir.path().join("mnt"))).map(drop)
    }

    /// Releases the storage of the first part, and fills the rest of the tmpfs.
    pub(crate) fn exhaust(&self) -> Result<()> {
        self.unmount()?;
        let filler = self.dir.path().join("pool/filler");
        if filler.exists() {
            fs::remove_file(&filler)?;
        }
        for (start, end) in &self.holes {
            let mut punch = program("fallocate");
            punch.args(["--punch-hole", "--offset", &start.to_string(), "--length", &(end - start).to_string()]);
            text(punch.arg(self.store()))?;
        }
        fill(&mut File::create(filler)?)?;
        self.mount()
    }

    /// Makes the kernel write back dirty pages. Errors are ignored.
    pub(crate) fn write_back(&self) -> Result<()> {
        output(program("sync").arg("--file-system").arg(self.dir.path().join("mnt"))).map(drop)
    }

    /// Drops the page cache: from then on the image reads as stored.
    pub(crate) fn forget(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        for name in ["mnt", "pool"] {
            // After a failed test a server may have files open.
            let _ = output(program("umount").arg("--quiet").arg("--lazy").arg(self.dir.path().join(name)));
        }
    }
}

/// Writes until the file system is full.
pub(crate) fn fill(filler: &mut File) -> Result<()> {
    for len in [64 << 10, BLOCK] {
        let written = std::iter::repeat_with(|| filler.write(&vec![1; len])).find_map(Result::err).context("no end")?;
        ensure!(written.kind() == ErrorKind::StorageFull, "cannot fill the file system: {written}");
    }
    Ok(())
}

/// Returns the ranges of a file that consist of doomed blocks.
fn doomed_ranges(path: &Path) -> Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (at, block) in (0..).step_by(BLOCK).zip(fs::read(path)?.chunks(BLOCK)) {
        if block.iter().any(|byte| *byte != DOOMED) {
            continue;
        }
        match ranges.last_mut() {
            Some((_, end)) if *end == at => *end += BLOCK as u64,
            _ => ranges.push((at, at + BLOCK as u64)),
        }
    }
    Ok(ranges)
}
