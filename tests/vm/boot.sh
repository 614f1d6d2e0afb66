#: about   the machine itself: kernel, block drivers, disks
#: memory  256
#: seconds 300
#: modules dm_crypt dm_integrity ublk_drv nbd brd null_blk loop btrfs xfs
#: tools   dmsetup inlock
#: disk    4M
#: disk    8M
# shellcheck shell=dash
case $(uname -r) in
    6.12.*) ok kernel ;;
    *) fail kernel "this is $(uname -r)" ;;
esac
for name in crypt integrity; do
    if dmsetup targets | grep -q "^$name "; then ok "target-$name"; else fail "target-$name" "$(dmsetup targets)"; fi
done
for node in ublk-control nbd0 ram0 nullb0 loop0; do
    if [ -e "/dev/$node" ]; then ok "$node"; else fail "$node" "no /dev/$node"; fi
done
sizes="$(cat /sys/block/vda/size) $(cat /sys/block/vdb/size)"
if [ "$sizes" = "8192 16384" ]; then ok disks; else fail disks "sizes in sectors: $sizes"; fi
for name in btrfs ext4 xfs; do
    if grep -q "$name\$" /proc/filesystems; then ok "$name"; else fail "$name" "not in /proc/filesystems"; fi
done
check inlock inlock --version
