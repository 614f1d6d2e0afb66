#: about   LUKS volumes on zoned devices: placement, cryptsetup and Inlock, import and export, refusals
#: memory  512
#: seconds 300
#: modules dm_crypt ublk_drv
#: tools   inlock xtask cryptsetup blkzone
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/zones.sh
. /vm/parts/zones.sh
# `mixed` has eight conventional zones, which just fit a header, and twelve sequential ones; `ordered` has only
# sequential ones.
# shellcheck disable=SC2034  # used by parts/zones.sh
ZONE=4096 FIRST=32768 SECTORS=$((12 * 4096))
FAST="--pbkdf-force-iterations 4 --pbkdf-memory 32 --pbkdf-parallel 1"
printf secret > /tmp/key

# format OPTION...: creates a volume.
format() {
    # shellcheck disable=SC2086  # several options in one word
    inlock luksFormat -q $FAST "$@" /tmp/key
}
# opened DEVICE OPTION...: opens the volume on it as NODE.
opened() {
    local device=$1
    shift
    inlock open --key-file /tmp/key "$@" "$device" vol --via ublk && NODE=$(readlink -f /dev/inlock/vol)
}
# put ZONE: fills a zone of NODE to its capacity.
put() { head -c 1048576 /dev/urandom | dd of="$NODE" bs=256k seek=$(($1 * 8)) iflag=fullblock oflag=direct conv=notrunc 2> /dev/null; }
# sums FILE: checksums of the capacity of zones 0 to 3 of NODE.
sums() {
    local zone
    for zone in 0 1 2 3; do
        dd if="$NODE" bs=256k skip=$((zone * 8)) count=4 iflag=direct 2> /dev/null | sha256sum
    done > "$1"
}
has() { grep -q -- "$1" "$2" || { cat "$2"; false; }; }

check mixed nullb mixed 8 12 2 1 4 6 4096 || exit 1
check ordered nullb ordered 0 8 2 2 0 0 512 || exit 1
check format format /dev/mixed
check placed sh -c "inlock luksDump --dump-json-metadata /dev/mixed | tr -d ' \n' > /tmp/json"
check offset has '"offset":"16777216","size":"dynamic"' /tmp/json
check unit has '"sector_size":4096' /tmp/json
check cryptsetup-reads-the-header cryptsetup luksDump /dev/mixed

check open opened /dev/mixed || exit 1
check report shifted /dev/mixed
inlock status vol > /tmp/status
check status has 'zones:   12 of 2097152 .bytes., 0 conventional, max open 4, max active 6' /tmp/status
check put put 0
must_fail refresh-discards "was created without discard support" inlock refresh vol --allow-discards
check refresh inlock refresh vol --perf-no_read_workqueue
inlock status vol > /tmp/status
check refreshed has 'flags:   no_read_workqueue' /tmp/status
key=$(head -c 64 /dev/urandom | xxd -p -c 64)
line="0 $SECTORS crypt aes-xts-plain64 $key 0 /dev/mixed 0 1 sector_size:4096"
must_fail reload "does not have the same zones" inlock reload vol --table "$line"
# A writer blocks while the volume is suspended.
check suspend inlock suspend vol
put 1 &
writing=$!
sleep 1
if kill -0 "$writing"; then ok waits; else fail waits "the write was done while the volume was suspended"; fi
check resume sh -c 'inlock resume vol --key-file /tmp/key'
check written wait "$writing"
check report-written shifted /dev/mixed
sums /tmp/ours.sum
check close inlock close vol

check theirs cryptsetup open --key-file /tmp/key /dev/mixed dm || exit 1
NODE=/dev/mapper/dm
sums /tmp/theirs.sum
check cryptsetup-reads-what-we-wrote same_words /tmp/ours.sum /tmp/theirs.sum
check put-theirs put 2
sums /tmp/theirs.sum
check theirs-closed cryptsetup close dm
check open-again opened /dev/mixed
sums /tmp/ours.sum
check we-read-what-was-written-there same_words /tmp/theirs.sum /tmp/ours.sum
check close-again inlock close vol

# Export and import: every zone gets its write pointer back.
blkzone report -o "$FIRST" /dev/mixed | sed 's/zcond:[^[]*//' > /tmp/before
check export inlock export -q --key-file /tmp/key /dev/mixed /tmp/image
must_fail import-onto-data "write pointer .*, but data is for" inlock import --key-file /tmp/key /tmp/image /dev/mixed
check reset blkzone reset -o "$FIRST" /dev/mixed
check import inlock import --key-file /tmp/key /tmp/image /dev/mixed
blkzone report -o "$FIRST" /dev/mixed | sed 's/zcond:[^[]*//' > /tmp/after
check import-pointers diff /tmp/before /tmp/after
check theirs-again cryptsetup open --key-file /tmp/key /dev/mixed dm
NODE=/dev/mapper/dm
sums /tmp/imported.sum
check imported same_words /tmp/ours.sum /tmp/imported.sum
check theirs-closed-again cryptsetup close dm

# No part of a header is written to a zone where it could not be rewritten.
must_fail no-room "a header takes the first 2097152 bytes, but only the first 0 are in conventional" format /dev/ordered
must_fail unit-too-large "4096 bytes do not divide the write granularity of 512" format --header /tmp/header --sector-size 4096 /dev/ordered
must_fail offset-inside "start at sector 64, inside a zone of 4096 sectors: 0 or 4096" format --header /tmp/header -o 64 /dev/ordered
check detached format --header /tmp/header /dev/ordered
blkzone report /dev/ordered | sed 's/zcond:[^[]*//' > /tmp/report
check untouched sh -c '! grep -v "wptr 0x000000" /tmp/report'
for via in nbd loop fuse; do
    must_fail "via-$via" "does not support zoned volumes" inlock open --key-file /tmp/key --header /tmp/header /dev/ordered vol --via $via
done
must_fail serve "is zoned; NBD clients can only read it" inlock serve --key-file /tmp/key --header /tmp/header /dev/ordered --nbd unix:/tmp/s
check open-detached opened /dev/ordered --header /tmp/header
FIRST=0 SECTORS=32768
check put-detached put 3
check report-detached shifted /dev/ordered
check close-detached inlock close vol
