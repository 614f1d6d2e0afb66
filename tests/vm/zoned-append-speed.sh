#: about   appends to one zone and to eight: a zoned device, dm-crypt, which has one append per zone in flight, and Inlock; only the ratios are meaningful
#: only    named
#: memory  640
#: cpus    2
#: seconds 900
#: kernel  nvme_core.multipath=0
#: modules dm_crypt ublk_drv
#: tools   inlock xtask dmsetup
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# Devices without storage, with 8 zones of 64 MiB after two outside of the volume.
ZONE=131072 FIRST=262144 SECTORS=$((8 * 131072)) UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
ROUNDS=5

# device NAME CONVENTIONAL NANOSECONDS: creates /dev/NAME, which takes this time for each request; 0: no delay.
device() {
    local timer="irqmode=1"
    [ "$3" -eq 0 ] || timer="irqmode=2 completion_nsec=$3"
    # shellcheck disable=SC2086  # several words
    nullb "$1" "$2" 8 64 64 0 0 4096 memory_backed=0 submit_queues=2 $timer
}
# measure NAME SPACE: measures appends per second, 32 in flight, and adds a line `NAME ZONES BYTES NUMBER` for each to
# /tmp/measured.
measure() {
    local zones bytes total
    for zones in 1 8; do
        for bytes in 4096 65536; do
            # About the same duration each.
            if [ "$bytes" -eq 4096 ]; then total=$((12 << 20)); else total=$((48 << 20)); fi
            xtask zones append "$2" - verify=0 jobs=2 depth=16 zones="$zones" bytes="$bytes" total="$total" > /tmp/said 2>&1 ||
                { fail "$1-$zones-$bytes" "$(cat /tmp/said)"; continue; }
            echo "$1 $zones $bytes $(sed -n 's/.*MiB, \([0-9]*\).s,.*/\1/p' /tmp/said)" >> /tmp/measured
        done
    done
}
# median NAME ZONES BYTES
median() { grep "^$1 $2 $3 " /tmp/measured | cut -d ' ' -f 4 | sort -n | sed -n "$(((ROUNDS + 1) / 2))p"; }
# tell NANOSECONDS: prints the rows of the table.
tell() {
    local zones bytes raw dm inlock
    for zones in 1 8; do
        for bytes in 4096 65536; do
            raw=$(median raw "$zones" "$bytes") dm=$(median dm "$zones" "$bytes") inlock=$(median inlock "$zones" "$bytes")
            note "$(awk -v us=$(($1 / 1000)) -v z="$zones" -v b="$bytes" -v r="$raw" -v d="$dm" -v i="$inlock" 'BEGIN {
                m = b / 1048576
                printf "| %d | %d | %d | %d | %.1f | %d | %.1f | %d | %.1f | %.2f | %.2f |",
                    us, z, b, r, r * m, d, d * m, i, i * m, i / r, i / d }')"
            count speeds_measured 3
        done
    done
}

note "| device's us | zones | bytes | raw /s | MiB/s | dm-crypt /s | MiB/s | Inlock /s | MiB/s | Inlock : raw | Inlock : dm-crypt |"
note "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
for wait in 0 50000 200000; do
    check "raw-$wait" device raw 0 "$wait" || exit 1
    check "under-dm-$wait" device underdm 2 "$wait" || exit 1
    check "under-$wait" device under 2 "$wait" || exit 1
    check "space-$wait" namespace raw /dev/raw loop && RAW=$SPACE
    check "dm-$wait" theirs /dev/underdm && check "dm-space-$wait" namespace dm "$NODE" loop && DM=$SPACE
    check "inlock-$wait" ours /dev/under && check "inlock-space-$wait" namespace inlock "$NODE" loop && INLOCK=$SPACE
    : > /tmp/measured
    round=0
    while [ "$round" -lt "$ROUNDS" ]; do
        measure raw "$RAW"
        measure dm "$DM"
        measure inlock "$INLOCK"
        round=$((round + 1))
    done
    tell "$wait"
    namespace_gone raw && namespace_gone dm && namespace_gone inlock && theirs_closed && ours_closed
    check "gone-$wait" nullb_gone raw && nullb_gone underdm && nullb_gone under
done
