#: about   storage that fails after writes were acknowledged (errors, write errors, no room), under a volume over NBD, ublk and FUSE: no flush, no durable write and no exit succeeds after lost writes
#: memory  640
#: cpus    2
#: seconds 150
#: modules dm_mod dm_flakey dm_thin_pool ublk_drv nbd fuse xfs
#: tools   inlock xtask dmsetup mkfs.ext4 mkfs.xfs
#: disk    800M
# shellcheck shell=dash
mkdir -p /mnt
# The kernel writes back only when the test requests it.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
xtask faults some /dev/vda >&3
