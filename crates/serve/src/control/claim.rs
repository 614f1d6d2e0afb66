//! Claiming the name of a volume for this process, and cleaning up after one that died.

use super::files::{Files, Log};
use super::info::RuntimeInfo;
use super::name::Name;
use super::state_file::StateFile;
use crate::attach::stale::{self, StaleDevice};
use crate::error::{Error, Result};
use inlock_open::Context;
use inlock_open::lock::{self, Lock};

/// A name held by this process. Its files are removed with it.
pub struct Claim {
    files: Files,
    /// State of a process that died and left a device that awaits recovery. Kept if this process fails before it
    /// recovers it.
    stale: Option<RuntimeInfo>,
    keep: Option<Box<dyn FnOnce() -> bool>>,
    /// Keep the log even if it is empty.
    keeps_log: bool,
    _lock: Lock,
}

/// Purpose of taking a name, which decides about what a process that died has left under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A volume without a device: cleans up, and fails if the state file cannot be used.
    Serve,
    /// Like `Serve`, but a device that awaits recovery stays.
    Attach,
    /// Cleans up, also by the frozen part of a state file.
    Close,
    /// Cleans up, also without a state file that can be read, which is set aside.
    ForcedClose,
}

impl Claim {
    /// Takes the name, and cleans up after a process that died. Fails if its device is in use.
    pub fn take(context: &Context, name: &Name, purpose: Purpose) -> Result<Self> {
        Self::take_files(context, Files::of(name)?, purpose)
    }

    pub(super) fn take_files(context: &Context, files: Files, purpose: Purpose) -> Result<Self> {
        let name = files.name();
        let Some(lock) = lock::exclusive(&files.path("lock"))? else {
            return Err(Error::NameInUse { name: name.to_string(), pid: files.state().pid() });
        };
        let mut this = Self { files, stale: None, keep: None, keeps_log: false, _lock: lock };
        // A failure removes nothing.
        this.keep_if(|| true);
        this.take_stale(context, purpose)?;
        this.keep = None;
        Ok(this)
    }

    fn take_stale(&mut self, context: &Context, purpose: Purpose) -> Result<()> {
        let files = &self.files;
        let file = files.volume();
        let mut aside = None;
        match files.state() {
            StateFile::Whole(info)
                if purpose == Purpose::Attach && stale::awaiting_recovery(info.stale_device()).is_some() =>
            {
                self.stale = Some(*info);
                return Ok(());
            }
            StateFile::Whole(info) => stale::clean_up(info.stale_device(), &file)?,
            StateFile::Missing => stale::clean_up(StaleDevice::unknown(files.name().as_str()), &file)?,
            StateFile::Unusable(unusable) => match (&unusable.remains, purpose) {
                (Some(remains), Purpose::Close | Purpose::ForcedClose) => {
                    stale::clean_up(remains.stale_device(), &file)?;
                }
                (None, Purpose::ForcedClose) => {
                    stale::clean_up(StaleDevice::unknown(files.name().as_str()), &file)?;
                    aside = Some(files.set_aside()?);
                }
                _ => return Err(files.error_of(&unusable)),
            },
        }
        files.remove(Log::Always);
        if let Some(aside) = aside {
            let kept = aside.display();
            let text = format_args!("the state file is now {kept}; a block device that it names may still be attached");
            context.warn(text);
        }
        Ok(())
    }

    /// Returns the name.
    pub fn name(&self) -> &Name {
        self.files.name()
    }

    /// Returns the files of the name.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the state of a process that died and left a device that awaits recovery.
    pub fn stale(&self) -> Option<&RuntimeInfo> {
        self.stale.as_ref()
    }

    /// Keeps the files if `keep` returns true when the name is released: the device is still attached, and is recovered
    /// or cleaned up by them.
    pub fn keep_if(&mut self, keep: impl FnOnce() -> bool + 'static) {
        self.keep = Some(Box::new(keep));
    }

    /// Keeps the log, since the process will write its last error to it.
    pub fn keep_log(&mut self) {
        self.keeps_log = true;
    }

    /// As [`Files::publish`].
    pub fn publish(&mut self, info: &RuntimeInfo) -> Result<()> {
        self.files.publish(info)?;
        self.stale = None;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let keep = self.keep.take().is_some_and(|keep| keep());
        if self.stale.is_none() && !keep {
            self.files.remove(if self.keeps_log { Log::Kept } else { Log::IfEmpty });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_kept_device_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        for keep in [Some(true), Some(false), None] {
            let lock = lock::exclusive(&files.path("lock")).unwrap().unwrap();
            let mut claim = Claim { files: files.clone(), stale: None, keep: None, keeps_log: false, _lock: lock };
            keep.into_iter().for_each(|keep| claim.keep_if(move || keep));
            std::fs::write(files.path("json"), "{}").unwrap();
            drop(claim);
            assert_eq!(files.path("json").exists(), keep == Some(true));
        }
    }

    fn data(dir: &tempfile::TempDir) -> Files {
        Files::within(dir.path().to_owned(), &Name::new("data").unwrap())
    }

    fn take(files: &Files, purpose: Purpose) -> Result<Claim> {
        let context = Context::new(inlock_open::host::Silent, inlock_open::Settings::default());
        Claim::take_files(&context, files.clone(), purpose)
    }

    /// Returns what a process that died has left: a file over which nothing is mounted.
    fn left(version: u32) -> String {
        serde_json::json!({
            "version": version, "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx",
            "segments": [], "read_only": false, "allow_discards": false, "offload": "none", "via": "fuse",
            "ring": "sync", "threads": 1
        })
        .to_string()
    }

    #[test]
    fn name_that_is_taken_has_no_files_of_a_process_that_died() {
        let dir = tempfile::tempdir().unwrap();
        let files = data(&dir);
        for purpose in [Purpose::Serve, Purpose::Attach, Purpose::Close, Purpose::ForcedClose] {
            for (version, is_usable) in [(1, true), (99, matches!(purpose, Purpose::Close | Purpose::ForcedClose))] {
                std::fs::write(files.path("json"), left(version)).unwrap();
                std::fs::write(files.log(), "line").unwrap();
                std::fs::write(files.volume(), "").unwrap();
                let claim = take(&files, purpose);
                assert_eq!(claim.is_ok(), is_usable, "{purpose:?}, version {version}");
                assert_eq!(files.path("json").exists() || files.log().exists(), !is_usable);
                assert_eq!(files.volume().exists(), !is_usable);
                if let Ok(claim) = claim {
                    assert!(matches!(take(&files, purpose), Err(Error::NameInUse { .. })));
                    std::fs::write(files.path("json"), left(1)).unwrap();
                    drop(claim);
                    assert!(!files.path("json").exists(), "nothing keeps it");
                }
            }
        }
    }

    #[test]
    fn state_that_cannot_be_read_is_set_aside_by_force_only() {
        let dir = tempfile::tempdir().unwrap();
        let files = data(&dir);
        std::fs::write(files.path("json"), "text").unwrap();
        std::fs::write(files.volume(), "").unwrap();
        for purpose in [Purpose::Serve, Purpose::Attach, Purpose::Close] {
            assert!(take(&files, purpose).is_err() && files.volume().exists(), "{purpose:?}");
        }
        drop(take(&files, Purpose::ForcedClose).unwrap());
        assert!(!files.volume().exists() && !files.path("json").exists());
        assert_eq!(std::fs::read_to_string(files.path("unreadable")).unwrap(), "text");
    }

    #[test]
    fn state_that_is_not_published_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = data(&dir);
        let mut claim = take(&files, Purpose::Serve).unwrap();
        let info: RuntimeInfo = serde_json::from_str(&left(1)).unwrap();
        claim.publish(&info).unwrap();
        assert!(matches!(files.state(), StateFile::Whole(_)));
        std::fs::remove_file(files.path("json")).unwrap();
        std::fs::create_dir(files.path("json")).unwrap();
        claim.publish(&info).unwrap_err();
    }
}
