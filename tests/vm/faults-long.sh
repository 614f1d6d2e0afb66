#: about   each way to lose writes on each storage, and concurrent requests repeatedly
#: only    named
#: memory  640
#: cpus    2
#: seconds 7200
#: modules dm_mod dm_flakey dm_thin_pool ublk_drv nbd fuse xfs
#: tools   inlock xtask dmsetup mkfs.ext4 mkfs.xfs
#: disk    800M
# shellcheck shell=dash
mkdir -p /mnt
# The kernel writes back only when the test requests it.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
xtask faults all /dev/vda >&3
xtask faults race /dev/vda >&3
