#: about   swap on a volume over ublk: 160 MiB of memory, more than that in use, for two minutes
#: only    named
#: memory  160
#: cpus    2
#: seconds 900
#: modules ublk_drv
#: tools   inlock
#: disk    320M
# shellcheck shell=dash
# What is in the root file system is in memory, and nothing loads a module any more.
rm -rf /lib/modules
uptime_secs() { cut -d. -f1 /proc/uptime; }
field() { awk -v name="$1:" '$1 == name { print $2 }' "$2"; }

# The key is thrown away: swap is for this boot only.
check open inlock open /dev/vda swap --type plain -c aes-xts-plain64 -s 512 --via ublk --threads 1 \
    --key-file /dev/urandom --keyfile-size 64
pid=$(sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/swap.json)
note "$(field MemTotal /proc/meminfo) KiB of memory, $(field VmLck "/proc/$pid/status") KiB of it locked by the daemon"
check mkswap mkswap /dev/inlock/swap
check swapon swapon /dev/inlock/swap
if inlock close swap 2> /tmp/said; then fail held "swap was closed"; else check held grep -q "used as swap" /tmp/said; fi

# Files in memory, all different, more than fit.
mount -o remount,size=400M /dev/shm
head -c 1048576 /dev/urandom > /dev/shm/chunk
number=0
while [ "$number" -lt 170 ]; do
    { echo "$number"; cat /dev/shm/chunk; } > "/dev/shm/f$number" || fail fill "no room for file $number"
    number=$((number + 1))
done
(cd /dev/shm && md5sum f* > /tmp/sums)
rounds=0
end=$(($(uptime_secs) + 120))
while [ "$(uptime_secs)" -lt "$end" ]; do
    (cd /dev/shm && md5sum -c /tmp/sums > /tmp/checked 2>&1) || { fail read "$(grep -v OK /tmp/checked | head -n 3)"; break; }
    rounds=$((rounds + 1))
    echo "round $rounds at $(uptime_secs) s"
    # Some are written anew, so that pages go out again.
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
if dmesg | grep -i -E "hung task|blocked for more than|out of memory|I/O error"; then
    fail kernel "$(dmesg | grep -i -E "hung task|blocked for more than|out of memory|I/O error" | head -n 2)"
else
    ok kernel
fi
rm -f /dev/shm/f* /dev/shm/chunk
check swapoff swapoff /dev/inlock/swap
check close inlock close swap
