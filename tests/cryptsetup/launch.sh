#!/bin/bash
# launch.sh SCRIPT: runs one test script of cryptsetup in a mount namespace of its own, in the current directory.
# `cargo xtask cryptsetup-tests` prepares the directory and the environment.
#
# In the namespace /run, with the lock files and the state of running volumes, is empty, and /dev/mapper has Inlock's
# links to open volumes.
set -eu
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

if [ -z "${INLOCK_NAMESPACE:-}" ]; then
    mkdir -p /dev/mapper /dev/inlock
    INLOCK_NAMESPACE=1 exec unshare --mount --propagation private "$here/launch.sh" "$@"
fi
mount -t tmpfs none /run
mkdir /run/lock
if [ -z "${INLOCK_CONTROL:-}" ]; then
    mount -t tmpfs none /dev/inlock
    mount --bind /dev/inlock /dev/mapper
fi

export BASH_ENV=$here/trace.sh LC_ALL=C INLOCK_SCRIPT=$1
export INLOCK_REAL_PATH=$PATH:/usr/sbin:/sbin
export PATH=$here/bin:$PATH:/usr/sbin:/sbin
status=0
timeout --kill-after=10 "$INLOCK_TIMEOUT" bash "$1" < /dev/null || status=$?

unset BASH_ENV
PATH=$INLOCK_REAL_PATH
if [ -z "${INLOCK_CONTROL:-}" ]; then
    # In use or suspended, a volume does not close: without its process all requests to it fail.
    for pid in $("$INLOCK_UNDER_TEST" list --json | jq -r '.[] | select(.state != "gone") | .pid'); do
        kill -KILL "$pid" || true
    done
fi
for file in "$INLOCK_RUN"/*.faulty; do
    [ ! -e "$file" ] || umount --lazy "$file"
done
for ((number = INLOCK_LOOP_BASE; number < INLOCK_LOOP_BASE + 20; number++)); do
    [ ! -e "/sys/block/loop$number/loop/backing_file" ] || "$INLOCK_REAL_LOSETUP" -d "/dev/loop$number"
done
exit "$status"
