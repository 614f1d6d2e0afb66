//! Helper programs, which run with a fixed environment, without descriptors of this process, and in a process group of
//! their own that is killed when they end or fail.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Returns the command of a helper, which inherits no descriptor from `first_fd` on.
pub fn command(program: impl AsRef<OsStr>, first_fd: i32) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir("/").process_group(0);
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
    close_fds::set_fds_cloexec_threadsafe(first_fd, &[]);
    command
}

/// A running helper. Killed with its process group when dropped.
pub struct Helper(pub Child);

impl Helper {
    /// Returns the exit status if it has exited. It stays a zombie, so that its process group keeps its number.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.0)), options) {
            Ok(None) | Err(Errno::INTR) => Ok(None),
            Ok(Some(_)) => {
                self.kill();
                self.0.wait().map(Some)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn kill(&self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The process group has this number as long as the child was not waited for.
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.0.wait();
        }
    }
}
