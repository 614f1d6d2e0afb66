#: about   storage that fails after writes were acknowledged (errors, write errors, no room), below a volume over NBD, ublk and FUSE: no flush, no durable write and no end succeeds over lost writes
#: memory  640
#: cpus    2
#: seconds 150
#: modules dm_mod dm_flakey dm_thin_pool ublk_drv nbd fuse xfs
#: tools   inlock xtask dmsetup mkfs.ext4 mkfs.xfs
#: disk    800M
# shellcheck shell=dash
mkdir -p /mnt
# Nothing is written back but what the test asks for.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
xtask faults some /dev/vda >&3
