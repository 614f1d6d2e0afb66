//! Without root: the volume as a file, through fusermount3, with tools for files.

use anyhow::{Result, ensure};
use inlock_tests::process::{inlock_path, lossy, output, program, text};
use inlock_tests::report::skipped;

use crate::support::{Disk, can_make_disks};

/// Runs a script as the user `nobody`, with udev's permissions of /dev/fuse, in a mount namespace of its own.
const AS_NOBODY: &str = r#"
set -e
mount -t tmpfs -o mode=0777 tmpfs "$1"
mknod -m 0666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
exec setpriv --reuid=65534 --regid=65534 --clear-groups /bin/sh -ec "$2"
"#;

/// Script of the user. `$IMAGE`, `$KEY` and `$INLOCK` are set.
const USER: &str = r#"
test "$(id -u)" = 65534
export XDG_RUNTIME_DIR=$HERE/run
mkdir -m 0700 "$XDG_RUNTIME_DIR"
file=$("$INLOCK" open "$IMAGE" mine --key-file "$KEY")
case $file in "$XDG_RUNTIME_DIR"/*) ;; *) echo "the file is $file"; exit 1 ;; esac
"$INLOCK" status mine | grep -q "served:  fuse $file"
mke2fs -q -t ext4 -d "$TREE" "$file"
e2fsck -fn "$file" > /dev/null
cmp "$file" "$file"
cp "$file" "$HERE/copy"
"$INLOCK" close mine
test ! -e "$file"
"$INLOCK" export -q "$IMAGE" - --key-file "$KEY" | cmp - "$HERE/copy"
# Block devices are not for users, and that is said before anything is asked.
if "$INLOCK" open "$IMAGE" mine --via loop --key-file "$KEY" 2> "$HERE/said"; then exit 1; fi
grep -q "only root can make block devices" "$HERE/said"
grep -q -- "use --via fuse" "$HERE/said"
"#;

#[test]
fn unprivileged_user_opens_volume_as_file() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let disk = Disk::new(48 << 20)?;
    let here = disk.dir.path().join("here");
    std::fs::create_dir(&here)?;
    let tree = disk.dir.path().join("tree");
    std::fs::create_dir(&tree)?;
    crate::support::plant(&tree, 300, 8)?;
    text(program("chown").args(["-R", "65534:65534"]).arg(disk.dir.path()))?;
    // A copy that the user can execute, independent of the build directory.
    let inlock = disk.dir.path().join("inlock");
    std::fs::copy(inlock_path()?, &inlock)?;
    let mut command = program("unshare");
    command.args(["--mount", "/bin/sh", "-c", AS_NOBODY, "sh"]);
    command.arg(&here).arg(USER);
    command
        .env("HERE", &here)
        .env("TREE", &tree)
        .env("IMAGE", &disk.image)
        .env("KEY", &disk.key)
        .env("INLOCK", &inlock);
    command.env_remove("INLOCK_RUN_DIR");
    let ended = output(&mut command)?;
    let said = lossy(&ended.stderr);
    if said.contains("unshare failed") {
        skipped("no mount namespace can be made here");
        return Ok(());
    }
    ensure!(ended.status.success(), "{}: {said}{}", ended.status, lossy(&ended.stdout));
    Ok(())
}
