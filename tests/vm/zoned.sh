#: about   zoned devices through Inlock and dm-crypt: a table of operations and errors, reports, fio, order, both ways, the process killed
#: memory  768
#: cpus    2
#: seconds 600
#: modules dm_crypt ublk_drv
#: tools   inlock xtask dmsetup blkzone fio
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# Devices in memory: `raw`, and `under` which is two conventional zones longer: there a volume begins at its third zone, and
# then has the same zones as `raw`.
ZONE=4096 FIRST=8192 SECTORS=$((14 * 4096)) UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
# shape NAME CONVENTIONAL [CAPACITY OPEN]: with 12 sequential zones, the last two read-only and offline.
shape() {
    nullb "$1" "$2" 12 2 "${3:-1}" "${4:-4}" 6 4096 &&
        echo $((($2 + 10) * ZONE)) > "/sys/kernel/config/nullb/$1/zone_readonly" &&
        echo $((($2 + 11) * ZONE)) > "/sys/kernel/config/nullb/$1/zone_offline"
}
# table COLUMN DEVICE: what became of the cases, for the host.
table() {
    if xtask zones cases "$2" /vm/zones.txt > "/tmp/$1.cases" 2> /tmp/said; then
        sed "s/^/data $1 /" "/tmp/$1.cases" >&3
    else
        fail "table-$1" "$(cat /tmp/said)"
    fi
}
# load SEED: four jobs at depth 32, each with two zones that it writes and reads back.
load() {
    fio --name=load --filename="$NODE" --direct=1 --ioengine=libaio --iodepth=32 --numjobs=4 --offset=4m --size=2z \
        --offset_increment=2z --zonemode=zbd --rw=randwrite --bsrange=4k-64k --blockalign=4k --max_open_zones=4 \
        --job_max_open_zones=1 --verify=crc32c --verify_fatal=1 --randseed="$1" --group_reporting
}
# sums FILE: of all that can be read of the volume.
sums() { dd if="$NODE" bs=2M count=13 iflag=direct 2> /dev/null | sha256sum > "$1"; }

check raw shape raw 2
check under shape under 4
check control shape control 2 2 3
check own-report own_report /dev/under
table raw /dev/raw
table control /dev/control
nullb_gone control

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
# Nothing is merged to less than two hundred writes.
check short-requests short_requests 16
check load load 8
traced_to /tmp/trace
ordered order /tmp/trace 200
check report-loaded shifted /dev/under

# Killed in the middle: writers wait, and go on when the process is back.
xtask zones fill "$NODE" /tmp/log 9 9 20 "$(ours_pid)" > /tmp/filled 2>&1 &
filling=$!
check kill wait_for 60 grep killing /tmp/filled
sleep 1
if kill -0 "$filling"; then ok killed-in-the-middle; else fail killed-in-the-middle "all was written before"; fi
check back ours /dev/under || exit 1
if wait "$filling"; then ok go-on; else fail go-on "$(cat /tmp/filled)"; fi
check nothing-lost xtask zones filled "$NODE" /tmp/log 9
must_fail nothing-lost-control "other bytes" xtask zones filled "$NODE" /tmp/log 10
check report-back shifted /dev/under

# Killed together with who writes: what was acknowledged is there, and nothing else is.
rm /tmp/log
xtask zones fill "$NODE" /tmp/log 11 9 20 "$(ours_pid)" self > /tmp/filled 2>&1 &
filling=$!
check kill-both wait_for 60 grep killing /tmp/filled
sleep 1
check back-again ours /dev/under || exit 1
wait "$filling"
if grep MiB /tmp/filled; then fail killed-both-in-the-middle "all was written before"; else ok killed-both-in-the-middle; fi
check acknowledged xtask zones filled "$NODE" /tmp/log 11
note "$(cat "/tmp/check.$$")"
check report-back-again shifted /dev/under
sums /tmp/ours.sum
check close ours_closed
check dm-reopen theirs /dev/under
sums /tmp/dm.sum
check dm-crypt-reads-what-we-wrote same_words /tmp/ours.sum /tmp/dm.sum
check dm-close-again theirs_closed

# What finds no fault in the order finds one where there is none.
traced raw 1024
fio --name=any --filename=/dev/raw --direct=1 --ioengine=io_uring --iodepth=8 --rw=randwrite --bs=4k --size=256k > /tmp/said
traced_to /tmp/trace
must_fail order-control "out of order" xtask zones order /tmp/trace block_rq_issue "$ZONE" 0
must_fail report-control "^[-+]" diff /tmp/expected /tmp/report.full
