#: about   swap and a file system on a volume over ublk: 160 MiB of memory, more than that in use, for two minutes
#: only    named
#: memory  160
#: cpus    2
#: seconds 900
#: modules ublk_drv dm_mod
#: tools   inlock dmsetup mkfs.ext4
#: disk    320M
# shellcheck shell=dash
uptime_secs() { cut -d. -f1 /proc/uptime; }
field() { awk -v name="$1:" '$1 == name { print $2 }' "$2"; }

# The key is random and not kept: swap is for this boot only.
check open inlock open /dev/vda swap --type plain -c aes-xts-plain64 -s 512 --via ublk --threads 1 \
    --key-file /dev/urandom --keyfile-size 64
pid=$(sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/swap.json)
note "$(field MemTotal /proc/meminfo) KiB of memory, $(field VmRSS "/proc/$pid/status") KiB of it the process's"
# No memory allocation of a thread of the process waits for devices, including io_uring's threads. The queue has one of
# the latter from the start, and never more.
protected() {
    local stat
    for stat in "/proc/$pid/task"/*/stat; do
        # shellcheck disable=SC2046  # words
        set -- $(sed 's/.*) //' "$stat")
        [ "$(($7 & 0x180000))" -eq "$((0x180000))" ] || return
    done
    [ "$(cat "/proc/$pid/oom_score_adj")" -eq -1000 ]
}
one_helper() {
    local task queue=none
    for task in "/proc/$pid/task"/*; do
        case $(cat "$task/comm") in inlock-queue-*) queue=${task##*/} ;; esac
    done
    # Its name ends with the id of the thread that it works for.
    [ "$(cat "/proc/$pid/task"/*/comm | grep -c "^iou-wrk-$queue\$")" -eq 1 ]
}
check protected protected
check helper one_helper

# Most of it is swap, the rest a file system: flushes of its journal go to an io_uring thread.
sectors=$(($(cat "/sys/block/$(basename "$(readlink /dev/inlock/swap)")/size") - 131072))
dmsetup create swap --table "0 $sectors linear /dev/inlock/swap 0"
dmsetup create files --table "0 131072 linear /dev/inlock/swap $sectors"
check mkswap mkswap /dev/mapper/swap
check swapon swapon /dev/mapper/swap
if inlock close swap 2> /tmp/said; then fail held "swap was closed"; else check held grep -q "used by dm-0" /tmp/said; fi
check mkfs mkfs.ext4 -q /dev/mapper/files
check mount mount -t ext4 /dev/mapper/files /mnt
# The root file system is in memory, and no more modules are loaded.
rm -rf /lib/modules

# Files in memory, all different, larger than the memory together.
mount -o remount,size=400M /dev/shm
head -c 1048576 /dev/urandom > /dev/shm/chunk
number=0
while [ "$number" -lt 170 ]; do
    { echo "$number"; cat /dev/shm/chunk; } > "/dev/shm/f$number" || fail fill "no room for file $number"
    number=$((number + 1))
done
(cd /dev/shm && md5sum f* > /tmp/sums)
# Writes and flushes files until told to stop.
writer() {
    local number=0
    while [ ! -e /tmp/enough ]; do
        dd if=/vm/test.sh of="/mnt/n$((number % 50))" conv=fsync 2> /dev/null || touch /tmp/bad
        number=$((number + 1))
    done
    echo "$number" > /tmp/written
}
writer &
rounds=0
end=$(($(uptime_secs) + 120))
while [ "$(uptime_secs)" -lt "$end" ]; do
    (cd /dev/shm && md5sum -c /tmp/sums > /tmp/checked 2>&1) || { fail read "$(grep -v OK /tmp/checked | head -n 3)"; break; }
    rounds=$((rounds + 1))
    echo "round $rounds at $(uptime_secs) s"
    # Some files are rewritten, so that pages are swapped out again.
    number=$((rounds % 7))
    while [ "$number" -lt 170 ]; do
        { echo "$number $rounds"; cat /dev/shm/chunk; } > "/dev/shm/f$number"
        number=$((number + 7))
    done
    (cd /dev/shm && md5sum f* > /tmp/sums)
done
if [ "$rounds" -gt 0 ]; then ok rounds; else fail rounds "not one in two minutes"; fi
swapped=$(($(field SwapTotal /proc/meminfo) - $(field SwapFree /proc/meminfo)))
in=$(sed -n 's/^pswpin //p' /proc/vmstat) out=$(sed -n 's/^pswpout //p' /proc/vmstat)
note "$rounds rounds over 170 MiB, $swapped KiB in swap, $((in * 4)) KiB read from it, $((out * 4)) KiB written"
if [ "$((out * 4))" -gt 100000 ] && [ "$((in * 4))" -gt 100000 ]; then ok used; else fail used "hardly anything was swapped"; fi
count swapped_kib "$(((in + out) * 4))"
check alive inlock status swap
check still-protected protected
check still-one-helper one_helper
if dmesg | grep -i -E "hung task|blocked for more than|out of memory|I/O error"; then
    fail kernel "$(dmesg | grep -i -E "hung task|blocked for more than|out of memory|I/O error" | head -n 2)"
else
    ok kernel
fi
touch /tmp/enough
wait
note "$(cat /tmp/written) files written and flushed meanwhile"
if [ "$(cat /tmp/written)" -gt 10 ] && [ ! -e /tmp/bad ]; then ok written; else fail written "$(cat /tmp/written), or errors"; fi
rm -f /dev/shm/f* /dev/shm/chunk
umount /mnt
mount -t ext4 /dev/mapper/files /mnt
for file in /mnt/n*; do
    cmp -s "$file" /vm/test.sh || fail files "$file has other bytes"
done
umount /mnt
check swapoff swapoff /dev/mapper/swap
dmsetup remove files
dmsetup remove swap
check close inlock close swap
