//! Images that are opened under unique names, mounts that are removed when dropped, and trees of files.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, cryptsetup_format, key_file};
use inlock_tests::process::{inlock, lossy, output, program, text};
use inlock_tests::random::Random;
use inlock_tests::report::skipped;

/// Whether block devices can be made here. Reports a skip otherwise.
pub(crate) fn can_make_disks() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        skipped("only root can make block devices");
    } else if !Path::new("/dev/fuse").exists() {
        skipped("nothing can be mounted with FUSE here");
    } else if !Path::new("/dev/loop-control").exists() {
        skipped("no loop device can be made here");
    } else {
        return true;
    }
    false
}

/// Read by tests that kill the process of a loop device, written around programs that examine all loop devices: those
/// of Btrfs fail if one of them has a backing file that does not answer.
pub(crate) static KILLING: RwLock<()> = RwLock::new(());

/// An image that cryptsetup created, and a unique name to open it under. Closes and unmounts when dropped.
pub(crate) struct Disk {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) image: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) name: String,
}

impl Disk {
    pub(crate) fn new(len: u64) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir()?;
        let key = key_file(dir.path(), "key", b"a real disk")?;
        let image = dir.path().join("image");
        let mut args = vec!["--type=luks2", "--sector-size=4096"];
        args.extend(CHEAP_PBKDF2);
        cryptsetup_format(&image, len, &key, &args)?;
        fs::create_dir(dir.path().join("mnt"))?;
        let name = format!("inlock-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Ok(Self { dir, image, key, name })
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Opens it in the background, and returns its node.
    pub(crate) fn open(&self, args: &[&str]) -> Result<PathBuf> {
        let mut command = inlock()?;
        command.arg("open").arg(&self.image).arg(&self.name).arg("--key-file").arg(&self.key).args(args);
        Ok(PathBuf::from(text(&mut command)?.trim_end()))
    }

    /// Runs `inlock ACTION NAME`, and returns its output.
    pub(crate) fn say(&self, action: &str, args: &[&str]) -> Result<Output> {
        output(inlock()?.arg(action).arg(&self.name).args(args))
    }

    pub(crate) fn close(&self) -> Result<()> {
        let ended = self.say("close", &[])?;
        ensure!(ended.status.success(), "close: {}", lossy(&ended.stderr));
        Ok(())
    }

    pub(crate) fn mount(&self, node: &Path) -> Result<()> {
        text(program("mount").arg(node).arg(self.mount_point())).map(drop)
    }

    pub(crate) fn unmount(&self) -> Result<()> {
        text(program("umount").arg(self.mount_point())).map(drop)
    }

    /// Returns the id of the process that serves it.
    pub(crate) fn pid(&self) -> Result<u32> {
        let status = text(inlock()?.arg("status").arg(&self.name).arg("--json"))?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let pid = status["pid"].as_u64().context("a status without a process")?;
        Ok(u32::try_from(pid)?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Needed only after a failed test; a successful one has cleaned up.
        let _ = output(program("umount").arg("--quiet").arg("--lazy").arg(self.mount_point()));
        let _ = self.say("close", &[]);
    }
}

/// A mounted tmpfs, unmounted when dropped.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output(program("umount").arg("--lazy").arg(&self.0));
    }
}

/// Checks how a command ended, and that standard error has each of `words`.
pub(crate) fn fails(ended: &Output, code: i32, words: &[&str]) -> Result<()> {
    let said = lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(code), "{} instead of {code}: {said}", ended.status);
    for word in words {
        ensure!(said.contains(word), "no '{word}' in: {said}");
    }
    ensure!(!said.contains("panicked"), "{said}");
    Ok(())
}

/// Creates `files` files of many lengths in `dir`, some in subdirectories, and returns the hash of each.
pub(crate) fn plant(dir: &Path, files: usize, seed: u64) -> Result<BTreeMap<PathBuf, u64>> {
    let mut random = Random::new(seed);
    let noise = random.bytes(1 << 20);
    let mut planted = BTreeMap::new();
    for number in 0..files {
        let folder = PathBuf::from(format!("d{}/e{}", number % 37, number % 11));
        if number < 37 * 11 {
            fs::create_dir_all(dir.join(&folder))?;
        }
        let len = if number % 1000 == 0 { 700_000 + number } else { (number * 2_654_435_761) % 7001 };
        let start = (number * 40_503) % (noise.len() - len.min(noise.len() - 1));
        let content = &noise[start..start + len];
        let path = folder.join(format!("file-{number}"));
        fs::write(dir.join(&path), content).with_context(|| format!("{}", path.display()))?;
        planted.insert(path, hash(content));
    }
    Ok(planted)
}

/// Checks that `dir` has the planted files, unchanged.
pub(crate) fn harvest(dir: &Path, planted: &BTreeMap<PathBuf, u64>) -> Result<()> {
    let mut wrong = Vec::new();
    for (path, expected) in planted {
        match fs::read(dir.join(path)) {
            Ok(content) if hash(&content) == *expected => {}
            Ok(content) => wrong.push(format!("{}: {} bytes that are others", path.display(), content.len())),
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
    }
    if !wrong.is_empty() {
        bail!("{} of {} files are wrong, first {}", wrong.len(), planted.len(), wrong[0]);
    }
    Ok(())
}

pub(crate) fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}
