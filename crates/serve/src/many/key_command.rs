//! `key-command`: a helper program that prints the passphrase or key of a volume.
//!
//! Its time and its output are limited. Signals stay with the thread that waits for them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::trusted_config::Trust;
use crate::{Error, Result};
use inlock_open::helper_process::{self, Helper};

/// Maximum length of a key: what a pipe holds.
const MAX_LEN: usize = 4096;

/// Runs a helper, and returns what it printed. Blocks, for `timeout` at most.
pub(super) fn run(words: &[OsString], volume: &str, timeout: Duration, trust: Trust) -> Result<Zeroizing<Vec<u8>>> {
    let (program, arguments) = words.split_first().ok_or_else(|| Error::Request("key-command is empty".to_owned()))?;
    let failed = |what: String| Error::KeyCommand { program: program.into(), what };
    trust.check_program(Path::new(program))?;
    let mut command = helper_process::command(program, 3);
    command.args(arguments).env("INLOCK_VOLUME", volume);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let child = command.spawn().map_err(|error| failed(format!("cannot be run: {error}")))?;
    let mut helper = Helper(child);
    let output: OwnedFd = helper.0.stdout.take().ok_or_else(|| failed("has no output".to_owned()))?.into();
    let deadline = Instant::now() + timeout.min(Duration::from_secs(86_400));
    let mut key = Zeroizing::new(Vec::with_capacity(MAX_LEN + 1));
    let mut block = Zeroizing::new([0; 512]);
    loop {
        let late = || failed(format!("did not finish within {} s", timeout.as_secs()));
        let left = deadline.checked_duration_since(Instant::now()).ok_or_else(late)?;
        let most = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&most)) {
            Ok(0) => return Err(late()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(&output, &mut block[..]) {
            Ok(0) => break,
            Ok(len) if key.len() + len > MAX_LEN => return Err(failed(format!("printed more than {MAX_LEN} bytes"))),
            Ok(len) => key.extend_from_slice(&block[..len]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let status = loop {
        match helper.exited()? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                return Err(failed(format!("did not finish within {} s", timeout.as_secs())));
            }
            // Its output is closed, so it is about to exit.
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    match status.code() {
        Some(0) if key.is_empty() => Err(failed("printed no key".to_owned())),
        Some(0) => Ok(key),
        Some(code) => Err(failed(format!("exited with status {code}"))),
        None => Err(failed("was killed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_what_the_helper_prints_up_to_the_longest_one() {
        let shell = |script: &str| {
            let words: Vec<OsString> = ["/bin/sh", "-c", script].map(OsString::from).into();
            run(&words, "the volume", Duration::from_secs(600), Trust::Checked).map(|key| key.to_vec())
        };
        assert_eq!(shell("printf %s \"$INLOCK_VOLUME\"; cat").unwrap(), b"the volume", "nothing comes from outside");
        assert_eq!(shell("head -c 4096 /dev/zero").unwrap(), [0; 4096]);
        let refused = shell("head -c 4097 /dev/zero").unwrap_err().to_string();
        assert_eq!(refused, "/bin/sh printed more than 4096 bytes.");
    }

    #[test]
    fn helper_that_prints_nothing_has_no_more_than_its_time() {
        let words: Vec<OsString> = ["/bin/sh", "-c", "exec sleep 600"].map(OsString::from).into();
        let late = run(&words, "the volume", Duration::ZERO, Trust::Checked).unwrap_err().to_string();
        assert_eq!(late, "/bin/sh did not finish within 0 s.");
    }
}
