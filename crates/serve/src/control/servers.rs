//! Servers of many volumes in the run directory.
//!
//! A server holds `~PID.lock` as long as it lives, and listens at `~PID.sock`: `~` cannot occur in the name of a
//! volume. A server that starts removes what others left that died, and holds their locks meanwhile.

use std::path::{Path, PathBuf};

use inlock_open::lock::{self, Lock};

use super::listener::Listener;
use crate::error::{Error, Result, ResultExt};
use crate::run_dir::run_dir;

/// This process in the run directory, as a server of many volumes. Its files are removed with it.
pub struct Registration {
    server: ServerFiles,
    _lock: Lock,
}

impl Registration {
    /// Registers this process. Returns the socket for the commands that name a volume.
    ///
    /// # Errors
    /// There is no run directory, or the socket cannot be made.
    pub fn new() -> Result<(Self, Listener)> {
        let server = ServerFiles { dir: run_dir()?, pid: std::process::id() };
        let taken = || Error::NameInUse { name: server.name(), pid: Some(server.pid) };
        let lock = lock::exclusive(&server.path("lock"))?.ok_or_else(taken)?;
        let listener = Listener::bind_unix(&server.socket())?;
        for other in ServerFiles::of_dir(&server.dir)?.into_iter().filter(|other| *other != server) {
            // One that starts makes its socket when it has the lock.
            if !other.is_alive() && lock::exclusive(&other.path("lock"))?.is_some() {
                let _ = std::fs::remove_file(other.socket());
            }
        }
        Ok((Self { server, _lock: lock }, listener))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.server.socket());
    }
}

/// Files of a server of many volumes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerFiles {
    dir: PathBuf,
    pid: u32,
}

impl ServerFiles {
    /// Returns the files of all servers that live, sorted by process.
    ///
    /// # Errors
    /// The run directory cannot be read.
    pub fn all() -> Result<Vec<Self>> {
        Self::living_in(&run_dir()?)
    }

    fn living_in(dir: &Path) -> Result<Vec<Self>> {
        let mut all = Self::of_dir(dir)?;
        all.retain(Self::is_alive);
        all.sort();
        Ok(all)
    }

    /// Returns the files of all servers with a socket, also of those that have died.
    fn of_dir(dir: &Path) -> Result<Vec<Self>> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        let server = |file: &str| {
            let pid = file.strip_prefix('~')?.strip_suffix(".sock")?.parse().ok()?;
            Some(Self { dir: dir.to_owned(), pid })
        };
        Ok(entries.filter_map(|entry| server(entry.ok()?.file_name().to_str()?)).collect())
    }

    /// Returns the process of the server.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the path of its control socket.
    pub fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    /// Whether the server lives.
    pub fn is_alive(&self) -> bool {
        lock::is_taken(&self.path("lock"))
    }

    fn name(&self) -> String {
        format!("~{}", self.pid)
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_those_that_hold_their_locks() {
        let dir = tempfile::tempdir().unwrap();
        let server = |pid| ServerFiles { dir: dir.path().to_owned(), pid };
        for pid in [20, 3, 100] {
            std::fs::write(server(pid).socket(), "").unwrap();
        }
        std::fs::write(dir.path().join("data.sock"), "").unwrap();
        let _locks = [100, 3].map(|pid| lock::exclusive(&server(pid).path("lock")).unwrap().unwrap());
        assert_eq!(ServerFiles::living_in(dir.path()).unwrap(), [server(3), server(100)]);
    }
}
