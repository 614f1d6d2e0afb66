#: about   appends to zones, many in flight, on a zoned device, dm-crypt and Inlock: positions, refusals, fio, a killed process
#: memory  768
#: cpus    2
#: seconds 200
#: kernel  nvme_core.multipath=0
#: modules dm_crypt ublk_drv
#: tools   inlock xtask dmsetup blkzone fio
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# Devices in memory: `raw`, and `under`, where the volume starts at the third zone. The capacity of a zone is 3 of 4
# MiB.
ZONE=8192 FIRST=16384 SECTORS=$((8 * 8192)) UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
said() { tr '\n' ' ' < "/tmp/check.$$"; }
# verified TEXT...: notes the result of a check of appends after TEXT, and counts them; the first word is their number.
verified() {
    count zone_appends_verified "$(cut -d ' ' -f 1 "/tmp/check.$$" | head -n 1)"
    note "$*: $(said)"
}

# many NAME: four threads fill three zones, with 32 appends of all lengths in flight each.
many() {
    check "$1-many" xtask zones append "$SPACE" "/tmp/$1.many" seed=5 zones=3 most=65536 && verified "$1"
}
# one NAME: the same with one zone and short appends, of which fifty exceed the capacity.
one() {
    check "$1-one" xtask zones append "$SPACE" "/tmp/$1.one" seed=6 first=3 over=50 && verified "$1, one zone"
}
# refused NAME: writes the results of appends without space to /tmp/NAME.refused.
refused() { check "$1-refused" xtask zones append-refused "$SPACE" 4 && cp "/tmp/check.$$" "/tmp/$1.refused"; }
# landed NAME THROUGH: checks that all data appended under NAME can be read through NODE.
landed() {
    check "$1-many-by-$2" xtask zones appended "$NODE" "/tmp/$1.many" 5
    check "$1-one-by-$2" xtask zones appended "$NODE" "/tmp/$1.one" 6
}
# sums FILE: checksums of the appended zones.
sums() { dd if="$NODE" bs=1M count=16 iflag=direct 2> /dev/null | sha256sum > "$1"; }

check raw nullb raw 0 8 4 3 0 0 4096 || exit 1
check under nullb under 2 8 4 3 0 0 4096 || exit 1
check space namespace raw /dev/raw loop || exit 1
many raw
one raw
refused raw
must_fail control "other bytes" xtask zones appended "$SPACE" /tmp/raw.many 6
sed '20s/^[0-9]*/4096/' /tmp/raw.many > /tmp/moved
must_fail control-of-places "where another one lies" xtask zones appended "$SPACE" /tmp/moved 5
check space-gone namespace_gone raw

check dm theirs /dev/under || exit 1
check dm-space namespace dm "$NODE" loop || exit 1
many dm
traced under 4096 block_rq_issue block_rq_complete
one dm
traced_to /tmp/trace
check dm-in-flight xtask zones in-flight /tmp/trace "$ZONE" write
note "dm-crypt: writes below it at a time: $(said)"
refused dm
check dm-same-errors same_words /tmp/raw.refused /tmp/dm.refused
check dm-space-gone namespace_gone dm
theirs_closed
check open ours /dev/under || exit 1
landed dm inlock

check our-space namespace inlock "$NODE" loop || exit 1
many inlock
traced "$(basename "$NODE")" 4096 block_rq_issue block_rq_complete
one inlock
traced_to /tmp/trace
check in-flight xtask zones in-flight /tmp/trace "$ZONE" append
note "Inlock: appends at a time: $(said)"
if [ "$(cut -d ' ' -f 1 "/tmp/check.$$")" -ge 16 ]; then ok many-in-flight; else fail many-in-flight "$(said)"; fi
refused inlock
check same-errors same_words /tmp/raw.refused /tmp/inlock.refused
check report shifted /dev/under
sums /tmp/inlock.sum
check our-space-gone namespace_gone inlock
check close ours_closed
check dm-again theirs /dev/under
landed inlock dm
sums /tmp/dm.sum
check same-data same_words /tmp/inlock.sum /tmp/dm.sum
theirs_closed
check open-again ours /dev/under || exit 1

# Plain writes as NVMe commands. They may be reordered before they reach the volume, on every device alike; the result
# then means nothing, and the test is repeated.
check fio-space namespace fio "$NODE" tcp || exit 1
for round in 1 2 3 4; do
    traced "$(basename "$NODE")" 4096 block_bio_queue
    fio --name=load --filename="/dev/ng${SPACE#/dev/nvme}" --ioengine=io_uring_cmd --cmd_type=nvme --iodepth=32 --numjobs=4 \
        --size=2z --offset_increment=2z --zonemode=zbd --rw=randwrite --bsrange=4k-64k --blockalign=4k --verify=crc32c \
        --verify_fatal=1 --randseed="$round" --group_reporting > /tmp/fio 2>&1
    status=$?
    traced_to /tmp/trace
    if xtask zones order /tmp/trace block_bio_queue "$ZONE" 0 > /tmp/said 2>&1; then
        if [ "$status" -eq 0 ]; then ok fio; else fail fio "$(grep -m 3 -i error /tmp/fio)"; fi
        break
    fi
    note "fio, round $round: reordered before the volume: $(tail -n 1 /tmp/said)"
    [ "$round" -lt 4 ] || fail fio "reordered before the volume each time"
done
check fio-space-gone namespace_gone fio

# The process is killed under load: its requests are reissued, land once, and report their positions.
check last-space namespace last "$NODE" loop || exit 1
xtask zones append "$SPACE" /tmp/log seed=9 zones=4 most=65536 kill="50,$(ours_pid)" > /tmp/appended 2>&1 &
appending=$!
check kill wait_for 60 grep killing /tmp/appended
sleep 0.5
if kill -0 "$appending"; then ok killed-in-the-middle; else fail killed-in-the-middle "all appends had completed before"; fi
check back ours /dev/under || exit 1
if wait "$appending"; then ok go-on; else fail go-on "$(cat /tmp/appended)"; fi
note "killed and back: $(tr '\n' ' ' < /tmp/appended)"
check report-back shifted /dev/under

# The process and the appending one are killed together.
rm /tmp/log
xtask zones append "$SPACE" /tmp/log seed=10 zones=8 most=65536 kill="50,$(ours_pid),self" > /tmp/appended 2>&1 &
appending=$!
check kill-both wait_for 60 grep killing /tmp/appended
sleep 0.5
check back-again ours /dev/under || exit 1
wait "$appending"
if grep MiB /tmp/appended; then fail killed-both-in-the-middle "all was appended before"; else ok killed-both-in-the-middle; fi
check acknowledged xtask zones appended "$NODE" /tmp/log 10
verified "killed both"
must_fail acknowledged-control "other bytes" xtask zones appended "$NODE" /tmp/log 9
check report-back-again shifted /dev/under
check last-space-gone namespace_gone last
check end ours_closed
