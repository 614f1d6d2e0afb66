#!/bin/busybox sh
# shellcheck shell=dash
# /init of the guest: mounts file systems, loads the test's modules, runs the test, reports its status, powers off.
# `cargo xtask vm` puts this file, lib.sh, the test as /vm/test.sh and the names of its modules as /vm/modules into the
# guest.
/bin/busybox --install -s /bin
export PATH=/tools:/bin HOME=/ LC_ALL=C DM_DISABLE_UDEV=1
mkdir -p /sbin && ln -s /bin/modprobe /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/cryptsetup /run/lock/cryptsetup /run/inlock /var /etc
ln -s /run/lock /var/lock
ip link set lo up
# The serial port of the report. Its node exists before /init runs: the driver is built into the kernel.
exec 3> /dev/vport0p1
read -r uptime _ < /proc/uptime
echo "booted $uptime" >&3
for module in virtio_blk $(cat /vm/modules); do
    modprobe "$module" || echo "fail modprobe no module $module" >&3
done
(
    # shellcheck source=tests/vm/lib.sh
    . /vm/lib.sh
    # shellcheck source=/dev/null
    . /vm/test.sh
)
echo "end $?" >&3
sync
reboot -f
