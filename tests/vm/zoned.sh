#: about   zoned devices and files of several shapes through Inlock and dm-crypt: a table of operations and errors, reports, fio, order, both ways, a killed process
#: memory  768
#: cpus    2
#: seconds 600
#: modules dm_crypt ublk_drv nbd
#: tools   inlock xtask dmsetup blkzone fio
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# Devices in memory: `raw`, and `under`, which is two zones longer: its volume starts at the third zone, and has the
# same zones as `raw`. A zoned file, `store`, has the same zones as `under`.
ZONE=4096 FIRST=8192 SECTORS=$((14 * 4096)) UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
# shaped SHAPE: sets the attributes of a shape: CONVENTIONAL of 14 zones, CAPACITY in MiB, the limits OPEN and ACTIVE,
# BLOCK.
shaped() {
    SHAPE=$1
    case $1 in
        mixed) CONVENTIONAL=2 CAPACITY=1 OPEN=4 ACTIVE=6 BLOCK=4096 ;;
        plain) CONVENTIONAL=0 CAPACITY=2 OPEN=0 ACTIVE=0 BLOCK=4096 ;;
        sectors) CONVENTIONAL=2 CAPACITY=1 OPEN=4 ACTIVE=6 BLOCK=512 ;;
        narrow) CONVENTIONAL=2 CAPACITY=1 OPEN=1 ACTIVE=2 BLOCK=4096 ;;
    esac
    UNIT=$BLOCK
}
# longer ZONES: prints the number of conventional zones with ZONES more zones at the front.
longer() { if [ "$CONVENTIONAL" = 0 ]; then echo 0; else echo $((CONVENTIONAL + $1)); fi; }
# made NAME ZONES: creates a device of the shape with ZONES more zones at the front. The last two are read-only and
# offline.
made() {
    local to=/sys/kernel/config/nullb/$1 first
    first=$(longer "$2")
    nullb "$1" "$first" $((14 + $2 - first)) 2 "$CAPACITY" "$OPEN" "$ACTIVE" "$BLOCK" &&
        echo $((($2 + 12) * ZONE)) > "$to/zone_readonly" && echo $((($2 + 13) * ZONE)) > "$to/zone_offline"
}
# made_file FILE ZONES: creates a zoned file of the shape.
made_file() {
    rm -f "$1" "$1.zones"
    inlock zoned create "$1" --size $((2 * (14 + $2)))M --zone-size 2M --zone-capacity "${CAPACITY}M" --conventional-zones "$(longer "$2")" \
        --max-open-zones "$OPEN" --max-active-zones "$ACTIVE" --zone-write-granularity "$BLOCK" &&
        xtask zones retire "$1" $(($2 + 12)) read-only && xtask zones retire "$1" $(($2 + 13)) offline
}
# table COLUMN DEVICE: runs the cases, and sends the results to the host.
table() {
    if xtask zones cases "$2" /vm/zones.txt > /tmp/cases 2> /tmp/said; then
        sed "s,^,data $SHAPE/$1 ," /tmp/cases >&3
    else
        fail "$SHAPE-table-$1" "$(cat /tmp/said)"
    fi
}
# load SEED: runs four jobs at depth 32, each of which writes and reads back two zones.
load() {
    fio --name=load --filename="$NODE" --direct=1 --ioengine=libaio --iodepth=32 --numjobs=4 --offset=4m --size=2z \
        --offset_increment=2z --zonemode=zbd --rw=randwrite --bsrange=4k-64k --blockalign=4k --max_open_zones=4 \
        --job_max_open_zones=1 --verify=crc32c --verify_fatal=1 --randseed="$1" --group_reporting
}
# sums FILE: checksums of all readable data of the volume.
sums() { dd if="$NODE" bs=2M count=13 iflag=direct 2> /dev/null | sha256sum > "$1"; }
# killed NAME STORE: kills the process of the volume on STORE during writes; writers block, and continue after recovery.
killed() {
    local filling
    rm -f /tmp/log
    xtask zones fill "$NODE" /tmp/log 9 9 20 "$(ours_pid)" > /tmp/filled 2>&1 &
    filling=$!
    check "$1-kill" wait_for 60 grep killing /tmp/filled
    sleep 1
    if kill -0 "$filling"; then ok "$1-in-the-middle"; else fail "$1-in-the-middle" "all was written before"; fi
    check "$1-back" ours "$2" || exit 1
    if wait "$filling"; then ok "$1-go-on"; else fail "$1-go-on" "$(cat /tmp/filled)"; fi
    check "$1-nothing-lost" xtask zones filled "$NODE" /tmp/log 9
    must_fail "$1-nothing-lost-control" "other bytes" xtask zones filled "$NODE" /tmp/log 10
    check "$1-report" shifted "$2"
}
# killed_both NAME STORE: kills process and writers; acknowledged data are there, and no other data.
killed_both() {
    local filling
    rm -f /tmp/log
    xtask zones fill "$NODE" /tmp/log 11 9 20 "$(ours_pid)" self > /tmp/filled 2>&1 &
    filling=$!
    check "$1-kill" wait_for 60 grep killing /tmp/filled
    sleep 1
    check "$1-back" ours "$2" || exit 1
    wait "$filling"
    if grep MiB /tmp/filled; then fail "$1-in-the-middle" "all was written before"; else ok "$1-in-the-middle"; fi
    check "$1-acknowledged" xtask zones filled "$NODE" /tmp/log 11
    note "$1: $(cat "/tmp/check.$$")"
    check "$1-report" shifted "$2"
}

shaped mixed
check raw made raw 0
check under made under 2
check own-report own_report /dev/under
table raw /dev/raw

check dm-open theirs /dev/under || exit 1
check dm-report shifted_but_full /dev/under
table dm "$NODE"
check dm-load load 7
check dm-report-loaded shifted_but_full /dev/under
sums /tmp/dm.sum
check dm-close theirs_closed

check open ours /dev/under || exit 1
check report shifted /dev/under
sums /tmp/ours.sum
check reads-what-dm-crypt-wrote same_words /tmp/dm.sum /tmp/ours.sum
table inlock "$NODE"
check report-after-the-table shifted /dev/under
check own-report-after-the-table own_report /dev/under
traced under 4096
# Merging must leave at least two hundred writes.
check short-requests short_requests 16
check load load 8
traced_to /tmp/trace
ordered order /tmp/trace 200
check report-loaded shifted /dev/under
killed killed /dev/under
killed_both killed-both /dev/under
sums /tmp/ours.sum
check close ours_closed
check dm-reopen theirs /dev/under
sums /tmp/dm.sum
check dm-crypt-reads-what-we-wrote same_words /tmp/ours.sum /tmp/dm.sum
check dm-close-again theirs_closed

# Control: the check of the order finds faults in random writes.
traced raw 1024
fio --name=any --filename=/dev/raw --direct=1 --ioengine=io_uring --iodepth=8 --rw=randwrite --bs=4k --size=256k > /tmp/said
traced_to /tmp/trace
must_fail order-control "out of order" xtask zones order /tmp/trace block_rq_issue "$ZONE" 0
must_fail report-control "^[-+]" diff /tmp/expected /tmp/report.full
nullb_gone raw
nullb_gone under

# The other shapes, and zoned files of all shapes.
for shape in plain sectors narrow; do
    shaped "$shape"
    check "$shape-raw" made raw 0
    table raw /dev/raw
    nullb_gone raw
    check "$shape-under" made under 2
    check "$shape-dm-open" theirs /dev/under && table dm "$NODE"
    check "$shape-dm-close" theirs_closed
    if [ "$shape" = sectors ]; then
        UNIT=4096
        must_fail unit-too-large "4096 bytes do not divide the write granularity of 512" ours /dev/under
        UNIT=512
    fi
    check "$shape-open" ours /dev/under && table inlock "$NODE"
    check "$shape-report" shifted /dev/under
    check "$shape-close" ours_closed
    nullb_gone under
done
for shape in plain sectors narrow mixed; do
    shaped "$shape"
    check "$shape-file" made_file /tmp/store 2
    check "$shape-file-open" ours /tmp/store && table file "$NODE"
    check "$shape-file-report" shifted /tmp/store
    [ "$shape" = mixed ] || check "$shape-file-close" ours_closed
done
check file-load load 12
check file-report-loaded shifted /tmp/store
killed file-killed /tmp/store
killed_both file-killed-both /tmp/store
sums /tmp/before.sum
check file-close ours_closed
check file-open-again ours /tmp/store
sums /tmp/after.sum
check file-reads-what-it-wrote same_words /tmp/before.sum /tmp/after.sum
check file-close-again ours_closed

# The driver counts whole zones: a short last zone is refused before a device is created.
check short-file inlock zoned create /tmp/short --size 7M --zone-size 2M
FIRST=0 SECTORS=$((7 * 2048)) UNIT=4096
must_fail short-zone "7340032 bytes in zones of 2097152 leave 1048576 at the end" ours /tmp/short
must_fail short-zone-no-device "No such file" ls /dev/ublkb0
check short-read inlock open --table /tmp/table vol --read-only --via nbd
if [ "$(dd if=/dev/inlock/vol bs=1M 2> /dev/null | wc -c)" = 7340032 ]; then ok short-read-all; else fail short-read-all "not all of it"; fi
check short-read-close ours_closed
SECTORS=$((6 * 2048))
check short-left-out ours /tmp/short
check short-close ours_closed
