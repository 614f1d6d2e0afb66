//! Refused commands with their exit statuses and messages: names and devices in use, missing drivers.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{inlock, lossy, output, program, text};

use crate::support::{Disk, Mounted, can_make_disks, fails};

#[test]
fn open_and_close_of_device_in_use_are_refused() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(64 << 20)?;
    let other = Disk::new(32 << 20)?;
    let node = disk.open(&["--via", "loop"])?;
    text(program("mkfs.ext4").arg("-q").arg(&node))?;
    disk.mount(&node)?;
    let mount_point = disk.mount_point().display().to_string();

    let open = |image: &std::path::Path, name: &str| -> Result<_> {
        output(inlock()?.arg("open").arg(image).arg(name).arg("--key-file").arg(&disk.key))
    };
    fails(&open(&other.image, &disk.name)?, 5, &["already exists", "inlock list"])?;
    fails(&open(&disk.image, &other.name)?, 5, &["is in use"])?;
    fails(&disk.say("close", &[])?, 5, &["is still in use: mounted on", &mount_point, "--deferred"])?;
    fs::write(disk.mount_point().join("still"), "usable")?;

    // A signal waits until the volume is unused, like `close --deferred`.
    text(program("kill").arg(disk.pid()?.to_string()))?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(fs::read(disk.mount_point().join("still"))? == b"usable");
    ensure!(disk.say("status", &[])?.status.success(), "a signal closed a mounted volume");
    disk.unmount()?;
    wait_until_closed(&disk)?;

    let node = disk.open(&["--via", "loop"])?;
    disk.mount(&node)?;
    let deferred = disk.say("close", &["--deferred"])?;
    ensure!(deferred.status.success(), "{deferred:?}");
    ensure!(is_close_deferred(&disk)?);
    fails(&disk.say("close", &["--cancel-deferred"])?, 1, &["detaches when its last user closes it"])?;
    ensure!(fs::read(disk.mount_point().join("still"))? == b"usable");
    disk.unmount()?;
    wait_until_closed(&disk)?;
    fails(&disk.say("close", &[])?, 4, &["is not active"])
}

fn is_close_deferred(disk: &Disk) -> Result<bool> {
    let status = disk.say("status", &["--json"])?;
    Ok(serde_json::from_slice::<serde_json::Value>(&status.stdout)?["close_deferred"] == true)
}

fn wait_until_closed(disk: &Disk) -> Result<()> {
    let begin = Instant::now();
    while disk.say("status", &[])?.status.success() {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the volume is never closed");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn close_of_open_fuse_file_is_refused() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let path = disk.open(&["--via", "fuse"])?;
    let file = File::open(&path)?;
    let own = format!("open in process {}", std::process::id());
    fails(&disk.say("close", &[])?, 5, &["is still in use", &own])?;
    drop(file);
    disk.close()
}

#[test]
fn deferred_close_of_fuse_file_is_cancelled_or_happens() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let path = disk.open(&["--via", "fuse"])?;
    let file = File::open(&path)?;
    let defer = || -> Result<()> {
        let ended = disk.say("close", &["--deferred"])?;
        ensure!(ended.status.success() && is_close_deferred(&disk)?, "{ended:?}");
        Ok(())
    };
    ensure!(!is_close_deferred(&disk)?);
    defer()?;
    let cancelled = disk.say("close", &["--cancel-deferred"])?;
    ensure!(cancelled.status.success() && !is_close_deferred(&disk)?, "{cancelled:?}");
    // The process looks for users several times in this time.
    drop(file);
    std::thread::sleep(Duration::from_secs(2));
    let file = File::open(&path)?;
    defer()?;
    drop(file);
    wait_until_closed(&disk)?;
    fails(&disk.say("close", &["--cancel-deferred"])?, 4, &["is not active"])
}

#[test]
fn close_of_open_device_is_refused() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let node = disk.open(&["--via", "loop"])?;
    let file = File::open(&node)?;
    let own = format!("open in process {}", std::process::id());
    fails(&disk.say("close", &[])?, 5, &["is still in use", &own])?;
    ensure!(disk.say("status", &[])?.status.success());
    drop(file);
    // A process that has it open only briefly does not prevent closing.
    let file = File::open(&node)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(file);
        });
        disk.close()
    })
}

#[test]
fn close_of_suspended_file_with_waiting_reader_is_refused() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    let path = disk.open(&["--via", "fuse", "--threads", "1"])?;
    ensure!(disk.say("suspend", &[])?.status.success());
    // The only thread blocks, so the kernel gets no reply.
    let mut waiting = Command::new("head").args(["-c", "4096"]).arg(&path).stdout(Stdio::null()).spawn()?;
    // In uninterruptible sleep, where no signal reaches it.
    let blocked =
        || -> Result<bool> { Ok(fs::read_to_string(format!("/proc/{}/stat", waiting.id()))?.contains(") D ")) };
    let begin = Instant::now();
    while !blocked()? {
        ensure!(begin.elapsed() < Duration::from_secs(60), "no process waits for the file");
        std::thread::sleep(Duration::from_millis(20));
    }
    fails(&disk.say("close", &[])?, 5, &["is still in use", &format!("open in process {}", waiting.id())])?;
    let resumed = output(inlock()?.arg("resume").arg(&disk.name).arg("--key-file").arg(&disk.key))?;
    ensure!(resumed.status.success(), "{resumed:?}");
    ensure!(waiting.wait()?.success());
    disk.close()
}

/// The run directory is a file system that is full when `open` creates its N-th file, or has a directory in the place
/// of the control socket, which is made last.
#[test]
fn failed_open_leaves_no_device() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    for via in ["fuse", "loop"] {
        let mut causes = Vec::new();
        // Its root and the lock file need two. The state file comes before the file that is mounted over, so that it
        // is replaced when there is something to detach.
        for inodes in 2.. {
            let place = disk.dir.path().join("full");
            fs::create_dir(&place)?;
            let options = format!("mode=700,nr_inodes={inodes}");
            text(program("mount").args(["-t", "tmpfs", "-o", &options, "inlock-test-full"]).arg(&place))?;
            let full = Mounted(place.clone());
            let open = |name: &str| {
                let mut command = inlock()?;
                command.env("INLOCK_RUN_DIR", &place).arg("open").arg(&disk.image).arg(name);
                output(command.args(["--via", via, "--key-file"]).arg(&disk.key))
            };
            let ended = open(&disk.name)?;
            let is_open = ended.status.success();
            if is_open {
                text(inlock()?.env("INLOCK_RUN_DIR", &place).arg("close").arg(&disk.name))?;
                fs::create_dir(place.join(format!("{}.sock", disk.name)))?;
                fails(&open(&disk.name)?, 1, &["cannot listen on"])?;
                fs::remove_dir(place.join(format!("{}.sock", disk.name)))?;
            } else {
                fails(&ended, 1, &["No space left on device"])?;
                causes.push(lossy(&ended.stderr));
            }
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            ensure!(!mounts.contains(&disk.name), "{via}, {inodes} inodes: a mount stays");
            let loops = text(program("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]))?;
            ensure!(!loops.contains(&disk.name), "{via}, {inodes} inodes: a loop device stays");
            let left: Vec<_> = fs::read_dir(&place)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
            ensure!(left.is_empty(), "{via}, {inodes} inodes: {left:?} stay");
            drop(full);
            fs::remove_dir(place)?;
            if is_open {
                break;
            }
        }
        for cause in ["cannot write", "cannot mount the volume over", "cannot write"] {
            let found = causes.iter().position(|said| said.contains(cause));
            let found = found.with_context(|| format!("{via}: no '{cause}' in {causes:?}"))?;
            causes.drain(..=found);
        }
    }
    Ok(())
}

#[test]
fn error_of_missing_driver_names_other_method() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(32 << 20)?;
    for (via, node) in [("ublk", "/dev/ublk-control"), ("nbd", "/sys/module/nbd")] {
        if std::path::Path::new(node).exists() {
            continue;
        }
        let mut command = inlock()?;
        command.arg("open").arg(&disk.image).arg(&disk.name).args(["--via", via, "--key-file"]).arg(&disk.key);
        let missing = format!("modprobe {}", if via == "ublk" { "ublk_drv" } else { "nbd" });
        fails(&output(&mut command)?, 1, &["does not work here", &missing, "use --via loop"])?;
    }
    // No volume was opened.
    ensure!(!disk.say("status", &[])?.status.success());
    Ok(())
}
