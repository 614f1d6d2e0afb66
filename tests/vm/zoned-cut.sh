#: about   a zoned file on ext4 through power cuts: flushed data are there, write pointers match, no other data are read
#: memory  384
#: cpus    2
#: seconds 120
#: kernel  nvme_core.multipath=0
#: modules dm_mod ublk_drv configfs
#: tools   inlock xtask blkzone dmsetup mkfs.ext4
#: boots   4
#: disk    96M
#: disk    8M
#: disk    8M
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# /dev/vda has a file system with the zoned file, /dev/vdb the log of flushed data, /dev/vdc a log of false claims. The
# volume has the file's second conventional zone and all sequential ones.
# shellcheck disable=SC2034  # used by parts/zones.sh
ZONE=4096 FIRST=4096 SECTORS=$((13 * 4096)) UNIT=4096
KEY=$(echo cut | sha512sum | cut -d ' ' -f 1)
STORE=/mnt/store
# loading FLUSHES [CLAIMS]: starts a load with the number LOADING, and waits until it has flushed FLUSHES times.
loading() {
    # shellcheck disable=SC2086  # no word at all where there is none
    xtask zones load "$NODE" "$SPACE" /dev/vdb "$BOOT" $2 > /tmp/flushes 2> /tmp/said &
    LOADING=$!
    wait_for 60 has_grown /tmp/flushes "$1"
    # At a random moment.
    sleep "0.$(od -A n -t u1 -N 1 /dev/urandom | tr -d ' ')"
    if kill -0 "$LOADING"; then ok "loading-$BOOT${2:+-unflushed}"; else fail "loading-$BOOT" "$(cat /tmp/said)"; fi
}

if [ "$BOOT" = 1 ]; then
    check mkfs mkfs.ext4 -q -F /dev/vda
    check mount mount -t ext4 /dev/vda /mnt || exit 1
    check create inlock zoned create $STORE --size 28M --zone-size 2M --zone-capacity 1M --conventional-zones 2 --max-open-zones 4 --max-active-zones 12
    check open ours $STORE || exit 1
else
    check "mount-$BOOT" mount -t ext4 /dev/vda /mnt || exit 1
    # The report before recovery equals the one after it.
    check "look-$BOOT" reported "$FIRST" 13 $STORE
    cp "/tmp/check.$$" /tmp/looked
    check "open-$BOOT" ours $STORE || exit 1
    check "same-$BOOT" sh -c "inlock zoned report $STORE | tail -n 13 | diff /tmp/looked -"
    check "report-$BOOT" shifted $STORE
    check "flushed-$BOOT" xtask zones flushed "$NODE" /dev/vdb && count power_cuts 1
    note "cut $((BOOT - 1)): $(cat "/tmp/check.$$")"
fi
# Appends go through NVMe, which has only the sequential zones.
if [ "$BOOT" != 4 ]; then
    check "sequential-$BOOT" dmsetup create sequential --table "0 $((SECTORS - ZONE)) linear $NODE $ZONE"
    check "space-$BOOT" namespace cut /dev/mapper/sequential loop || exit 1
    traced "$(basename "$NODE")" 4000 block_bio_queue
fi
case $BOOT in
    1) loading 40 ;;
    2) loading 1 ;;
    3)
        loading 10
        kill -9 "$LOADING"
        wait "$LOADING"
        loading 20 /dev/vdc
        ;;
esac
if [ "$BOOT" != 4 ]; then
    appends=$(grep -c 'block_bio_queue: [0-9,]* N.* + [1-9]' /sys/kernel/tracing/trace)
    if [ "$appends" -gt 0 ]; then ok "appends-$BOOT"; else fail "appends-$BOOT" none; fi
    note "before cut $BOOT: $appends appends"
    cut_off
fi

# Control: the check detects lost data that a false claim calls flushed, and flushed data that are lost or overwritten.
must_fail unflushed-control "flushed\|other bytes" xtask zones flushed "$NODE" /dev/vdb /dev/vdc
note "without flushes: $(tail -n 1 /tmp/said)"
check close ours_closed
at=$(inlock zoned report $STORE | sed -n '/wptr 0x0*[1-9a-f]/s/.*start: \(0x[0-9a-f]*\),.*/\1/p' | head -n 1)
check overwrite dd if=/dev/urandom of=$STORE bs=4096 count=1 seek=$((at / 8)) conv=notrunc
check reopen ours $STORE
must_fail overwritten-control "other bytes" xtask zones flushed "$NODE" /dev/vdb
check reset blkzone reset "$NODE"
must_fail lost-control "it is empty" xtask zones flushed "$NODE" /dev/vdb
check close-again ours_closed
check umount umount /mnt
