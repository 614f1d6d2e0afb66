#: about   a hundred thousand writes in order, and zonefs, btrfs and f2fs on zoned volumes, with a killed process
#: only    named
#: flavour generic
#: memory  1800
#: cpus    2
#: seconds 1800
#: modules dm_crypt ublk_drv zonefs btrfs f2fs
#: tools   inlock xtask dmsetup blkzone fio mkfs.btrfs btrfs mkfs.f2fs fsck.f2fs
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# All volumes start at the third zone of the underlying device.
ZONE=8192 FIRST=16384 UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
uptime_secs() { cut -d. -f1 /proc/uptime; }
# part NAME: notes the name of a part, and the time.
part() { note "$1: at $(uptime_secs) s"; }

# plant DIR FROM TO: writes files of 4 MiB with these numbers, all different, and their checksums to /tmp/sums.
plant() {
    local n=$2
    [ -e /tmp/chunk ] || head -c 4194296 /dev/urandom > /tmp/chunk
    while [ "$n" -lt "$3" ]; do
        { printf '%08d' "$n"; cat /tmp/chunk; } > "$1/f$n" || return
        n=$((n + 1))
    done
    sync
    summed "$1" > /tmp/sums
}
# summed DIR: prints the checksums of all files.
summed() { (cd "$1" && find . -type f | sort | xargs md5sum); }
# intact DIR: checks that all planted files are unchanged.
intact() { summed "$1" > /tmp/now && same_words /tmp/sums /tmp/now; }
# killed_and_back: kills the process of the volume, and opens the volume again.
killed_and_back() { kill -9 "$(ours_pid)" && sleep 1 && ours /dev/under; }
# again NODE's file system, TYPE: unmounts, closes the volume, opens it in Inlock again, and mounts.
again() { umount /mnt && ours_closed && ours /dev/under && mount -t "$1" "$NODE" /mnt; }
# by_dm_crypt TYPE: checks that dm-crypt mounts the file system with the same files.
by_dm_crypt() {
    umount /mnt && ours_closed && theirs /dev/under && mount -t "$1" "$NODE" /mnt && intact /mnt/files &&
        umount /mnt && theirs_closed
}
# ended: closes the volume, and removes the underlying device.
ended() { ours_closed && nullb_gone under; }

part order
SECTORS=$((16 * ZONE))
check order-under nullb under 2 16 4 4 0 0 4096
check order-open ours /dev/under || exit 1
check order-trace traced under 24000
check order-short short_requests 4
check order-load fio --name=load --filename="$NODE" --direct=1 --ioengine=libaio --iodepth=32 --numjobs=4 --size=64m \
    --io_size=100m --zonemode=zbd --rw=randwrite --bs=4k --max_open_zones=8 --group_reporting
check order-traced traced_to /tmp/trace
ordered order /tmp/trace 100000
# Control: two swapped writes of a zone among all these are found.
awk -v zone="$ZONE" '/block_bio_queue.* W/ { for (i = 2; i < NF; i++) if ($i == "+") at = int($(i - 1) / zone)
        if (++n == 50000) { held = $0; of = at; next } }
    { print }
    held != "" && at == of && /block_bio_queue.* W/ { print held; held = "" }' /tmp/trace > /tmp/turned
must_fail order-control "out of order" xtask zones order /tmp/turned block_bio_queue "$ZONE" 0
rm -f /tmp/trace /tmp/turned
check order-report shifted /dev/under
check order-end ended

part zonefs
# A file has 3 MiB, the capacity of a zone of 4 MiB.
SECTORS=$((92 * ZONE))
check zonefs-under nullb under 3 91 4 3 0 0 4096
check zonefs-open ours /dev/under || exit 1
check zonefs-mkfs xtask zones mkzonefs "$NODE"
check zonefs-mount mount -t zonefs "$NODE" /mnt
check zonefs-fio fio --name=z --direct=1 --ioengine=io_uring --iodepth=32 --rw=write --bs=64k --size=3m --numjobs=4 \
    --filename_format=/mnt/seq/\$jobnum --verify=crc32c --create_on_open=0 --allow_file_create=0 --file_append=1 --unlink=0
n=4
while [ "$n" -lt 91 ]; do
    dd if=/dev/urandom of="/mnt/seq/$n" bs=192k count=16 oflag=direct,append conv=notrunc 2> /tmp/said || fail zonefs-write "$n: $(cat /tmp/said)"
    n=$((n + 1))
done
summed /mnt/seq > /tmp/sums
total=$(du -k /mnt/seq | cut -f 1)
if [ "$total" -ge 262144 ]; then ok zonefs-size; else fail zonefs-size "$total KiB"; fi
check zonefs-again again zonefs
check zonefs-files intact /mnt/seq
# A write beyond the end of a file, and a file that is truncated and rewritten.
must_fail zonefs-not-at-the-end "error writing" dd if=/dev/urandom of=/mnt/seq/9 bs=4k count=1 seek=2 oflag=direct conv=notrunc
check zonefs-empty truncate -s 0 /mnt/seq/9
check zonefs-anew dd if=/dev/urandom of=/mnt/seq/9 bs=64k count=3 oflag=direct,append conv=notrunc
summed /mnt/seq > /tmp/sums
umount /mnt
check zonefs-report shifted /dev/under
ours_closed
check zonefs-dm theirs /dev/under
check zonefs-dm-mount mount -t zonefs "$NODE" /mnt
check zonefs-dm-files intact /mnt/seq
umount /mnt
theirs_closed
nullb_gone under

part btrfs
SECTORS=$((150 * ZONE))
check btrfs-under nullb under 2 150 4 3 0 0 4096
check btrfs-open ours /dev/under || exit 1
check btrfs-mkfs mkfs.btrfs -q -f -O zoned -d single -m single "$NODE"
check btrfs-mount mount -t btrfs "$NODE" /mnt
mkdir /mnt/files
traced "$(basename "$NODE")" 4000
check btrfs-write plant /mnt/files 0 64
traced_to /tmp/trace
appends=$(grep -c 'block_bio_queue: [0-9,]* N.* + [1-9]' /tmp/trace)
note "btrfs: $appends appends to the volume"
if [ "$appends" -gt 1000 ]; then ok btrfs-appends; else fail btrfs-appends "only $appends, of 256 MiB"; fi
rm /tmp/trace
check btrfs-scrub btrfs scrub start -B /mnt
check btrfs-again again btrfs
check btrfs-files intact /mnt/files
# Some files are removed, so that zones are reset; fio verifies while the process is killed.
rm -f /mnt/files/f1? /mnt/files/f2?
summed /mnt/files > /tmp/sums
fio --name=load --directory=/mnt --direct=1 --ioengine=io_uring --iodepth=16 --numjobs=4 --size=16m --rw=randwrite \
    --bsrange=4k-64k --blockalign=4k --verify=crc32c --verify_fatal=1 --loops=2 --group_reporting > /tmp/fio 2>&1 &
loading=$!
for round in 1 2 3; do
    sleep 2
    if kill -0 "$loading"; then ok "btrfs-under-load-$round"; else fail "btrfs-under-load-$round" "fio had ended"; fi
    check "btrfs-killed-$round" killed_and_back
done
if wait "$loading"; then ok btrfs-fio; else fail btrfs-fio "$(tail -n 4 /tmp/fio)"; fi
if grep -q 'verify: bad' /tmp/fio; then fail btrfs-fio-verify "$(grep 'verify: bad' /tmp/fio)"; fi
rm -f /mnt/load.*
check btrfs-scrub-again btrfs scrub start -B /mnt
btrfs scrub status /mnt > /tmp/said
check btrfs-scrub-clean grep 'no errors found' /tmp/said
check btrfs-dm-crypt by_dm_crypt btrfs
check btrfs-reopen ours /dev/under
check btrfs-check btrfs check --readonly "$NODE"
check btrfs-report shifted /dev/under
check btrfs-end ended

part f2fs
SECTORS=$((136 * ZONE))
check f2fs-under nullb under 18 120 4 4 0 0 4096
check f2fs-open ours /dev/under || exit 1
check f2fs-mkfs mkfs.f2fs -q -m -f "$NODE"
check f2fs-mount mount -t f2fs "$NODE" /mnt
mkdir /mnt/files
check f2fs-write plant /mnt/files 0 64
check f2fs-again again f2fs
check f2fs-files intact /mnt/files
rm -f /mnt/files/f1?
summed /mnt/files > /tmp/sums
check f2fs-dm-crypt by_dm_crypt f2fs
check f2fs-reopen ours /dev/under
check f2fs-fsck fsck.f2fs "$NODE"
check f2fs-report shifted /dev/under
check f2fs-end ended

part end
dmesg | grep -i -E 'btrfs.*(error|corrupt)|f2fs.*(error|corrupt)|zonefs.*(error|inval)|hung task|blocked for more' > /tmp/said
if [ -s /tmp/said ]; then fail kernel "$(head -n 3 /tmp/said)"; else ok kernel; fi
