#: about   power cuts while the kernel and Inlock write to volumes with integrity protection: both replay to the same state, with all flushed data
#: only    named
#: memory  768
#: cpus    2
#: seconds 300
#: boots   2
#: modules dm_crypt dm_integrity authenc gcm hmac ublk_drv
#: tools   inlock cryptsetup integritysetup dmsetup
#: files   /usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so
#: disk    80M
#: disk    1M
#: disk    16M
#: disk    1M
# shellcheck shell=dash
# /dev/vda: a slot of 8 MiB for each volume       /dev/vdb: a sector for each volume, number of the last flushed write
# /dev/vdc: two slots for copies of one volume    /dev/vdd: the data, 113 pages
# Write n puts 16 pages from page n % 97 of the data to page 16 * (n % 64) of the volume, and is flushed.
MIB=2048   # sectors
FLUSHED=12 # writes of each volume before the power is cut
CHEAP="-q --type luks2 --luks2-metadata-size 16k --luks2-keyslots-size 512k --offset 2048 --key-file /tmp/key"
CHEAP="$CHEAP --pbkdf pbkdf2 --pbkdf-force-iterations 1000"
printf '%064d' 5 > /tmp/key

# Volumes: NUMBER NAME PROGRAM OPTION..., those that create and open a dm-integrity volume, or create a LUKS2 one. An
# even number is written by the kernel, an odd one by Inlock.
rows() {
    local mac="--journal-integrity hmac-sha256 --journal-integrity-key-file /tmp/key --journal-integrity-key-size 32"
    local crypt="--journal-crypt ctr-aes --journal-crypt-key-file /tmp/key --journal-crypt-key-size 32"
    local hmac="-I hmac-sha256 --integrity-key-file /tmp/key --integrity-key-size 32"
    cat << END
0 luks-gcm luks --cipher aes-gcm-random --integrity aead --key-size 256 --sector-size 4096
2 luks-hmac luks --cipher aes-xts-random --integrity hmac-sha256 --key-size 512 --sector-size 512
4 crc32c-journal plain -I crc32c
6 hmac-mac-ctr plain $hmac $mac $crypt
8 crc32c-bitmap plain -I crc32c -B
END
}

# slot NAME DISK SLOT: /dev/mapper/NAME.data
slot() { dmsetup create "$1.data" --table "0 $((8 * MIB)) linear /dev/$2 $(($3 * 8 * MIB))"; }

# formatted PROGRAM NAME OPTION...
formatted() {
    local program=$1 name=$2
    shift 2
    # shellcheck disable=SC2086  # several options in one word
    if [ "$program" = luks ]; then
        cryptsetup luksFormat $CHEAP "$@" "/dev/mapper/$name.data"
    else
        integritysetup format -q --sector-size 512 "$@" "/dev/mapper/$name.data"
    fi
}

# kernel PROGRAM NAME OPTION...: /tmp/NAME is the opened device.
kernel() {
    local program=$1 name=$2
    shift 2
    if [ "$program" = luks ]; then
        cryptsetup open --key-file /tmp/key "/dev/mapper/$name.data" "$name"
    else
        integritysetup open "$@" "/dev/mapper/$name.data" "$name"
    fi && ln -sf "/dev/mapper/$name" "/tmp/$name"
}

# ours PROGRAM NAME OPTION...: the same by Inlock.
ours() {
    local program=$1 name=$2
    shift 2
    if [ "$program" = luks ]; then
        inlock open --key-file /tmp/key --via ublk --threads 1 "/dev/mapper/$name.data" "$name"
    else
        inlock integrity open "$@" --via ublk --threads 1 "/dev/mapper/$name.data" "$name"
    fi && ln -sf "/dev/inlock/$name" "/tmp/$name"
}

# write NAME NUMBER: writes until the power is cut.
write() {
    local n=0
    while dd if=/dev/vdd of="/tmp/$1" bs=4k skip=$((n % 97)) seek=$((n % 64 * 16)) count=16 conv=notrunc,fsync; do
        echo "$n" | dd of=/dev/vdb bs=512 seek="$2" oflag=direct conv=sync,notrunc
        n=$((n + 1))
    done
}

# flushed NUMBER: the number of the last write that was flushed.
flushed() { dd if=/dev/vdb bs=512 skip="$1" count=1 iflag=direct 2> /dev/null | tr -dc 0-9; }

all_written() {
    local number
    for number in 0 1 2 3 4 5 6 7 8 9; do
        [ "$(flushed "$number")" -ge "$FLUSHED" ] || return 1
    done
}

start() {
    local number name program
    dd if=/dev/urandom of=/dev/vdd bs=4k count=113
    while read -r number name program options; do
        for writer in kernel ours; do
            slot "$name-$writer" vda "$number"
            # shellcheck disable=SC2086
            check "format:$name-$writer" formatted "$program" "$name-$writer" $options &&
                check "open:$name-$writer" "$writer" "$program" "$name-$writer" $options || return
            number=$((number + 1))
        done
    done < /tmp/rows
    while read -r number name program options; do
        write "$name-kernel" "$number" > /dev/null 2>&1 &
        write "$name-ours" $((number + 1)) > /dev/null 2>&1 &
    done < /tmp/rows
    check written wait_for 600 all_written
    cut_off
}

# has VIEW N: whether write N is there.
has() { cmp -n 65536 "$1" /tmp/data $(($2 % 64 * 65536)) $(($2 % 97 * 4096)); }

# has_flushed VIEW LAST: whether the writes up to LAST are there, except where a later one may be; one that was not
# begun is not.
has_flushed() {
    local n=$(($2 > 62 ? $2 - 62 : 0))
    while [ "$n" -le "$2" ]; do
        has "$1" "$n" || return
        n=$((n + 1))
    done
    ! has "$1" $(($2 + 2))
}

# seen WHO PROGRAM NAME SLOT OPTION...: what it reads in a copy in this slot, in /tmp/view.WHO.
seen() {
    local who=$1 program=$2 name=$3 at=$4
    shift 4
    slot "$name" vdc "$at" && "$who" "$program" "$name" "$@" || return
    dd if="/tmp/$name" of="/tmp/view.$who" bs=64k iflag=direct || return
    if [ "$who" = ours ]; then inlock close "$name"
    elif [ "$program" = luks ]; then cryptsetup close "$name"
    else integritysetup close "$name"
    fi && dmsetup remove "$name.data"
}

compared() {
    local number name program writer options
    dd if=/dev/vdd of=/tmp/data bs=4k count=113
    while read -r number name program options; do
        for writer in kernel ours; do
            dd if=/dev/vda of=/dev/vdc bs=1M skip=$((number * 8)) count=8 oflag=direct conv=notrunc
            dd if=/dev/vda of=/dev/vdc bs=1M skip=$((number * 8)) seek=8 count=8 oflag=direct conv=notrunc
            # shellcheck disable=SC2086
            check "read-by-kernel:$name-$writer" seen kernel "$program" "k$number" 0 $options
            # shellcheck disable=SC2086
            check "read-by-inlock:$name-$writer" seen ours "$program" "o$number" 1 $options
            check "same:$name-$writer" cmp /tmp/view.kernel /tmp/view.ours
            check "flushed:$name-$writer" has_flushed /tmp/view.ours "$(flushed "$number")"
            note "$name, written by $writer: cut off after $(flushed "$number") flushed writes"
            rm -f /tmp/view.*
            count integrity_volumes_cut_off 1
            number=$((number + 1))
        done
    done < /tmp/rows
}

rows > /tmp/rows
if [ "$BOOT" = 1 ]; then start; else compared; fi
