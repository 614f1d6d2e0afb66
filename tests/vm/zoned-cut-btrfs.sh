#: about   btrfs on a volume in a zoned file through power cuts, with zone appends: synced files are intact
#: only    named
#: memory  768
#: cpus    2
#: seconds 300
#: modules ublk_drv btrfs
#: tools   inlock xtask blkzone mkfs.ext4 mkfs.btrfs btrfs
#: boots   4
#: disk    400M
#: disk    8M
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# /dev/vda has a file system with the zoned file; /dev/vdb one mounted with -o sync, with checksums of synced files.
# shellcheck disable=SC2034  # used by parts/zones.sh
ZONE=8192 FIRST=0 SECTORS=$((64 * 8192)) UNIT=4096
KEY=$(echo cut | sha512sum | cut -d ' ' -f 1)
STORE=/disk/store
mkdir -p /disk /log
# writer NUMBER: writes files until the cut, and records each synced one.
writer() {
    local n=0 name len
    while :; do
        name=f$BOOT-$1-$n len=$((1 + $(od -A n -t u2 -N 2 /dev/urandom) % 64))
        dd if=/dev/urandom of="/mnt/$name" bs=4k count=$len conv=fsync 2> /tmp/said || return
        (cd /mnt && md5sum "$name") > "/tmp/sum$1" && cat "/tmp/sum$1" >> /log/sums || return
        n=$((n + 1))
    done
}
# synced: checks that every recorded file is intact.
synced() {
    (cd /mnt && md5sum -c /log/sums) > /tmp/sums 2>&1 && has_grown /log/sums 10 && return
    grep -v ': OK$' /tmp/sums
    return 1
}

if [ "$BOOT" = 1 ]; then
    check mkfs mkfs.ext4 -q -F /dev/vda
    check mkfs-log mkfs.ext4 -q -F /dev/vdb
    check mount mount -t ext4 /dev/vda /disk || exit 1
    check mount-log mount -t ext4 -o sync /dev/vdb /log || exit 1
    check create inlock zoned create $STORE --size 256M --zone-size 4M --zone-capacity 3M --max-open-zones 0 --max-active-zones 0
    check open ours $STORE || exit 1
    check mkfs-btrfs mkfs.btrfs -q -f -O zoned -d single -m single "$NODE"
    check mount-btrfs mount -t btrfs "$NODE" /mnt || exit 1
else
    check "mount-$BOOT" mount -t ext4 /dev/vda /disk || exit 1
    check "mount-log-$BOOT" mount -t ext4 -o sync /dev/vdb /log || exit 1
    check "open-$BOOT" ours $STORE || exit 1
    check "report-$BOOT" shifted $STORE
    check "mount-btrfs-$BOOT" mount -t btrfs "$NODE" /mnt || exit 1
    check "synced-$BOOT" synced && count power_cuts 1
    note "cut $((BOOT - 1)): $(wc -l < /log/sums) files were synced"
    check "scrub-$BOOT" btrfs scrub start -B /mnt
    must_fail "control-$BOOT" "FAILED" sh -c 'cd /mnt && md5sum -c /log/lie'
    btrfs scrub status /mnt > /tmp/said
    check "scrub-clean-$BOOT" grep 'no errors found' /tmp/said
    # Some files are removed to free space.
    for file in $(head -n 20 /log/sums | sed 's/.* //'); do rm "/mnt/$file"; done
    sync
    sed 1,20d /log/sums > /tmp/kept && cat /tmp/kept > /log/sums
fi
if [ "$BOOT" != 4 ]; then
    before=$(wc -l < /log/sums)
    traced "$(basename "$NODE")" 4000
    for n in 1 2 3; do writer "$n" & done
    wait_for 100 has_grown /log/sums $((before + 30 * BOOT))
    sleep "0.$(od -A n -t u1 -N 1 /dev/urandom | tr -d ' ')"
    appends=$(grep -c 'block_bio_queue: [0-9,]* N.* + [1-9]' /sys/kernel/tracing/trace)
    note "$appends appends"
    if [ "$appends" -ge 30 ]; then ok "appends-$BOOT"; else fail "appends-$BOOT" "only $appends"; fi
    # Control: a recorded file that is not synced.
    dd if=/dev/urandom of="/mnt/lie$BOOT" bs=4k count=9 2> /tmp/said
    (cd /mnt && md5sum "lie$BOOT") > /log/lie
    cut_off
fi

check umount umount /mnt
check close ours_closed
