//! Exhausted storage that reports the error immediately: a limit of the file size, or a full file system. Only the
//! affected write fails, and all acknowledged data remain.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use inlock_tests::image::{key_file, sparse};
use inlock_tests::nbd::{Connection, Mode, command, errno, flag};
use inlock_tests::process::{bare, inlock, inlock_path, output, program, text};
use inlock_tests::server::Server;

use crate::support::{Mounted, can_make_disks};
use crate::thin::fill;

const PATIENCE: Duration = Duration::from_secs(120);
const LEN: u64 = 4 << 20;
/// Position of the first write that fails.
const END: u64 = 2 << 20;
const BLOCK: usize = 4096;

/// Writes around the end of the storage. `serve` starts a server of the image with further arguments.
fn meet_the_end(image: &Path, key: &Path, serve: impl Fn(&[&str]) -> Result<Server>) -> Result<()> {
    for io in ["uring", "sync"] {
        for flags in [0, flag::FUA] {
            let mut server = serve(&["--type", "plain", "--io", io])?;
            let open = || Connection::open(server.socket(), PATIENCE, Mode::Simple);
            let (mut first, mut second) = (open()?, open()?);
            first.write(0, &[1; BLOCK])?;
            first.flush()?;
            second.write(END - BLOCK as u64, &[2; BLOCK])?;
            for client in [&mut first, &mut second] {
                let refused = client.call(flags, command::WRITE, END, BLOCK as u64, &[3; BLOCK])?.error;
                ensure!(refused == errno::NOSPC, "{io}, flags {flags}: the write ends with {refused}");
            }
            first.write(BLOCK as u64, &[4; BLOCK])?;
            let flushed = second.call(0, command::FLUSH, 0, 0, &[])?.error;
            // A durable write that failed may have reported the error of another one.
            ensure!(flushed == 0 || flags == flag::FUA, "{io}: the flush ends with {flushed}");
            drop((first, second));
            let ended = server.terminate()?;
            ensure!(ended.code().is_some(), "{io}, flags {flags}: {ended}, {}", server.log_text());
            ensure!(ended.success() == (flushed == 0), "{io}, flags {flags}: {ended} after a flush with {flushed}");
            let mut export = inlock()?;
            export.arg("export").arg(image).args(["-", "--type", "plain", "--key-file"]).arg(key);
            let found = output(&mut export)?.stdout;
            ensure!(found.len() == LEN as usize, "{} bytes are exported", found.len());
            for (fill, at) in [(1, 0), (4, BLOCK), (2, END as usize - BLOCK)] {
                ensure!(found[at..][..BLOCK] == [fill; BLOCK], "{io}, flags {flags}: what was written at {at} is lost");
            }
        }
    }
    Ok(())
}

fn files(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let image = dir.join("image");
    sparse(&image, LEN)?;
    Ok((image, key_file(dir, "key", &[9; 32])?))
}

#[test]
fn write_beyond_file_size_limit_fails_and_server_continues() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (image, key) = files(dir.path())?;
    meet_the_end(&image, &key, |words| {
        let socket = dir.path().join("limited.sock");
        let mut command = bare("prlimit");
        command.arg(format!("--fsize={END}")).arg(inlock_path()?).arg("serve").arg(&image).args(words);
        command.arg("--key-file").arg(&key).arg("--nbd").arg(format!("unix:{}", socket.display()));
        Server::start(command, socket)
    })
}

#[test]
fn write_to_full_file_system_fails_and_loses_no_other_write() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("small");
    std::fs::create_dir(&place)?;
    text(program("mount").args(["-t", "tmpfs", "-o", "size=3m", "inlock-test-small"]).arg(&place))?;
    let _mounted = Mounted(place.clone());
    let (image, key) = files(&place)?;
    // Allocates the data before `END`; the rest of the file system is filled.
    let head = ["--offset", "0", "--length", &END.to_string()].map(str::to_owned);
    text(program("fallocate").args(head).arg(&image))?;
    fill(&mut File::create(place.join("filler"))?)?;
    meet_the_end(&image, &key, |words| Server::inlock(dir.path(), "full", &image, Some(&key), words))
}
