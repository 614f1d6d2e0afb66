//! Claiming the name of a volume for this process, and cleaning up after one that died.

use super::files::{Files, Log};
use super::info::RuntimeInfo;
use super::name::Name;
use crate::attach::stale;
use crate::error::CliError;
use crate::volume::lock::{self, Lock};

/// A name held by this process. Its files are removed with it.
pub(crate) struct Claim {
    files: Files,
    /// State of a process that died and left a device that awaits recovery. Kept if this process fails before it
    /// recovers it.
    stale: Option<RuntimeInfo>,
    keep: Option<Box<dyn FnOnce() -> bool>>,
    /// Keep the log even if it is empty.
    keeps_log: bool,
    _lock: Lock,
}

impl Claim {
    /// Takes the name, and cleans up after a process that died. Fails if its device is in use.
    pub(crate) fn take(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |_| false)
    }

    /// Like [`Claim::take`], but keeps a device that awaits recovery.
    pub(crate) fn take_over(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |info| stale::awaiting_recovery(info.stale_device()).is_some())
    }

    fn take_unless(name: &Name, keep: impl FnOnce(&RuntimeInfo) -> bool) -> anyhow::Result<Self> {
        let files = Files::of(name)?;
        let Some(lock) = lock::exclusive(&files.path("lock"))? else {
            return Err(CliError::NameInUse { name: name.to_string(), pid: files.info().map(|info| info.pid) }.into());
        };
        let stale = match files.info() {
            Some(info) if keep(&info) => Some(info),
            gone => {
                if let Some(gone) = gone {
                    stale::clean_up(gone.stale_device(), &files.volume())?;
                }
                files.remove(Log::Always);
                None
            }
        };
        Ok(Self { files, stale, keep: None, keeps_log: false, _lock: lock })
    }

    pub(crate) fn name(&self) -> &Name {
        self.files.name()
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the state of a process that died and left a device that awaits recovery.
    pub(crate) fn stale(&self) -> Option<&RuntimeInfo> {
        self.stale.as_ref()
    }

    /// Keeps the files if `keep` returns true when the name is released: the device is still attached, and is recovered
    /// or cleaned up by them.
    pub(crate) fn keep_if(&mut self, keep: impl FnOnce() -> bool + 'static) {
        self.keep = Some(Box::new(keep));
    }

    /// Keeps the log, since the process will write its last error to it.
    pub(crate) fn keep_log(&mut self) {
        self.keeps_log = true;
    }

    /// As [`Files::publish`].
    pub(crate) fn publish(&mut self, info: &RuntimeInfo) -> anyhow::Result<()> {
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
        for keep in [true, false] {
            let lock = lock::exclusive(&files.path("lock")).unwrap().unwrap();
            let mut claim = Claim { files: files.clone(), stale: None, keep: None, keeps_log: false, _lock: lock };
            claim.keep_if(move || keep);
            std::fs::write(files.path("json"), "{}").unwrap();
            drop(claim);
            assert_eq!(files.path("json").exists(), keep);
        }
    }
}
