#: about   appends to zones, many at a time, on a zoned device, dm-crypt and Inlock: where they land, what is refused, fio, the process killed
#: memory  768
#: cpus    2
#: seconds 200
#: kernel  nvme_core.multipath=0
#: modules dm_crypt ublk_drv
#: tools   inlock xtask dmsetup blkzone fio
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# Devices in memory: `raw`, and `under`, where a volume begins at the third zone. A zone holds 3 MiB of its 4.
ZONE=8192 FIRST=16384 SECTORS=$((8 * 8192)) UNIT=4096
KEY=$(head -c 64 /dev/urandom | xxd -p -c 64)
said() { tr '\n' ' ' < "/tmp/check.$$"; }
# verified TEXT...: what a check of appends says, with this in front; the first word is how many they were.
verified() {
    count zone_appends_verified "$(cut -d ' ' -f 1 "/tmp/check.$$" | head -n 1)"
    note "$*: $(said)"
}

# many NAME: three zones filled to their ends by four threads with 32 appends each under way, of all lengths.
many() {
    check "$1-many" xtask zones append "$SPACE" "/tmp/$1.many" seed=5 zones=3 most=65536 && verified "$1"
}
# one NAME: the same with one zone and short appends, fifty of which have no room.
one() {
    check "$1-one" xtask zones append "$SPACE" "/tmp/$1.one" seed=6 first=3 over=50 && verified "$1, one zone"
}
# refused NAME: what comes of appends that have no room, in /tmp/NAME.refused.
refused() { check "$1-refused" xtask zones append-refused "$SPACE" 4 && cp "/tmp/check.$$" "/tmp/$1.refused"; }
# landed NAME THROUGH: what was appended under NAME is there, looked at through NODE.
landed() {
    check "$1-many-by-$2" xtask zones appended "$NODE" "/tmp/$1.many" 5
    check "$1-one-by-$2" xtask zones appended "$NODE" "/tmp/$1.one" 6
}
# sums FILE: of the zones that were appended to.
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

# Plain writes as NVMe commands. The way to the volume may still turn two of them round, on every device alike; then there is
# nothing to learn from what came of it, and it is done again.
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
    note "fio, round $round: turned round on the way: $(tail -n 1 /tmp/said)"
    [ "$round" -lt 4 ] || fail fio "never in order on the way to the volume"
done
check fio-space-gone namespace_gone fio

# Killed in the middle: what was asked for comes again, lands once, and is told where.
check last-space namespace last "$NODE" loop || exit 1
xtask zones append "$SPACE" /tmp/log seed=9 zones=4 most=65536 kill="50,$(ours_pid)" > /tmp/appended 2>&1 &
appending=$!
check kill wait_for 60 grep killing /tmp/appended
sleep 0.5
if kill -0 "$appending"; then ok killed-in-the-middle; else fail killed-in-the-middle "all was appended before"; fi
check back ours /dev/under || exit 1
if wait "$appending"; then ok go-on; else fail go-on "$(cat /tmp/appended)"; fi
note "killed and back: $(tr '\n' ' ' < /tmp/appended)"
check report-back shifted /dev/under

# Killed together with who appends.
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
