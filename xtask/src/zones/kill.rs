//! Kills processes in the middle of a load, more precisely than a script can.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

/// Processes to kill in the middle of a load.
pub(super) struct Kill {
    /// Number of acknowledged requests before the kill.
    after: u64,
    pids: Vec<Pid>,
    acknowledged: AtomicU64,
}

impl Kill {
    /// Parses `pids`: numbers, or `self`.
    pub(super) fn new(after: u64, pids: &[&str]) -> Result<Self> {
        let pid = |word: &&str| match *word {
            "self" => Ok(rustix::process::getpid()),
            word => word.parse().ok().and_then(Pid::from_raw).with_context(|| format!("'{word}' is no process")),
        };
        let pids = pids.iter().map(pid).collect::<Result<_>>()?;
        Ok(Self { after, pids, acknowledged: AtomicU64::new(0) })
    }

    /// Counts an acknowledged request.
    pub(super) fn count(&self) -> Result<()> {
        if self.acknowledged.fetch_add(1, Ordering::Relaxed) + 1 == self.after {
            println!("killing after {} are acknowledged", self.after);
            for pid in &self.pids {
                rustix::process::kill_process(*pid, Signal::KILL)?;
            }
        }
        Ok(())
    }
}
