#: about   re-encryption of a volume in use over ublk and NBD: fio, a killed process that is recovered, cryptsetup afterwards
#: memory  640
#: cpus    2
#: seconds 400
#: modules dm_crypt ublk_drv nbd
#: tools   inlock cryptsetup fio
#: disk    112M
# shellcheck shell=dash disable=SC2086  # several options in one word
printf secret > /tmp/key
fast="--pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 1"

# opened VIA: /dev/inlock/vol from /dev/vda.
opened() { inlock open /dev/vda vol --via "$1" --threads 4 --key-file /tmp/key; }
pid() { sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/vol.json; }
# field NAME: of the re-encryption.
field() { inlock reencrypt vol --status --json | sed -n "s/^ *\"$1\": *\"*\([0-9a-z]*\)\"*,*$/\1/p"; }
is_state() { [ "$(field state)" = "$1" ]; }
has_done() { [ "$(field done_bytes)" -ge "$1" ]; }
# digest_of DEVICE: that of its data.
digest_of() { dd if="$1" bs=1M iflag=direct 2> /dev/null | sha256sum; }

# load NAME TIMES: in the background, fio writes 64 MiB at depth 8 in two jobs and reads everything back, TIMES times;
# its status goes to /tmp/fio.NAME. A load without a limit would take all of the emulated CPUs, and re-encryption waits.
load() {
    (
        fio --name=load --filename=/dev/inlock/vol --direct=1 --ioengine=io_uring --iodepth=8 --numjobs=2 --size=32m \
            --offset_increment=32m --rw=randwrite --bsrange=4k-64k --bs_unaligned=0 --blockalign=4k --verify=crc32c \
            --verify_backlog=64 --verify_fatal=1 --rate=1m --randseed="${#1}" --loops="$2" --group_reporting \
            > "/tmp/fio.$1" 2>&1
        echo "status $?" >> "/tmp/fio.$1"
    ) &
}

# loaded NAME: checks the status of fio.
loaded() {
    if ! wait_for 300 grep -q '^status' "/tmp/fio.$1"; then
        fail "$1" "fio does not end: $(tail -n 5 "/tmp/fio.$1")"
    elif grep -q '^status 0' "/tmp/fio.$1" && ! grep -q 'verify: bad\|err=[^ ]*[1-9]' "/tmp/fio.$1"; then
        ok "$1"
    else
        fail "$1" "$(grep -v '^$' "/tmp/fio.$1" | head -n 6)"
    fi
}

for via in ublk nbd; do
    check "$via-format" inlock luksFormat -q $fast --key-file /tmp/key /dev/vda
    check "$via-open" opened "$via" || { cat /run/inlock/*.log; continue; }
    load "$via-load" 2
    check "$via-start" inlock reencrypt vol --start --key-file /tmp/key --hotzone-size 1M --rate 4M $fast
    check "$via-half" wait_for 60 has_done 33554432
    cat /run/inlock/vol.log
    if grep -q '^status' "/tmp/fio.$via-load"; then
        fail "$via-under-load" "fio had ended before"
    else
        ok "$via-under-load"
    fi
    check "$via-kill" kill -9 "$(pid)"
    check "$via-back" opened "$via"
    check "$via-interrupted" is_state interrupted
    check "$via-kept" has_done 33554432
    check "$via-resume" inlock reencrypt vol --resume --key-file /tmp/key --hotzone-size 1M --rate 16M
    check "$via-finished" wait_for 240 is_state finished
    loaded "$via-load"
    before=$(digest_of /dev/inlock/vol)
    check "$via-close" inlock close vol
    check "$via-dm-open" cryptsetup open --key-file /tmp/key /dev/vda dm
    if [ "$(digest_of /dev/mapper/dm)" = "$before" ]; then
        ok "$via-dm-data"
    else
        fail "$via-dm-data" "dm-crypt reads something else"
    fi
    check "$via-dm-close" cryptsetup close dm
done
