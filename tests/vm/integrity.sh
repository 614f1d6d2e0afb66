#: about   dm-integrity and Inlock use the same volumes, both ways, closed and cut off
#: memory  768
#: seconds 300
#: modules dm_integrity dm_mod
#: tools   dmsetup integritysetup
# shellcheck shell=dash
# Each disk has a slot of 8 MiB for each row: 6 MiB for the volume, 2 MiB for its metadata device if it has one.
#   vda  volumes of the kernel               vdb  their state in the middle of writing
#   vdc  volumes of Inlock                   vdd  volumes of Inlock that were not closed
#   vde  what the kernel reads on a copy of vdb, vdf on vdc, vdg on vdd
#   vdh  the data to write                   vdi  two slots for copies
# A line of /vm/rows: NAME SLOT PLACE FORMAT OPEN, divided by bars; PLACE is interleaved or separate; FORMAT and OPEN
# are options of integritysetup.

MIB=2048   # sectors

# slot NAME DISK SLOT PLACE: /dev/mapper/NAME.data, and NAME.meta if PLACE is separate.
slot() {
    dmsetup create "$1.data" --table "0 $((6 * MIB)) linear /dev/$2 $(($3 * 8 * MIB))" &&
        dmsetup create "$1.meta" --table "0 $((2 * MIB)) linear /dev/$2 $((($3 * 8 + 6) * MIB))"
}

# free NAME: closes the volume too, if a step before has failed.
free() {
    dmsetup info "$1" > /dev/null 2>&1 && integritysetup close "$1"
    dmsetup remove "$1.data" && dmsetup remove "$1.meta"
}

# copy FROM SLOT TO SLOT: the whole slot.
copy() {
    dd if="/dev/$1" of="/dev/$3" bs=1M skip=$(($2 * 8)) seek=$(($4 * 8)) count=8 iflag=direct oflag=direct \
        conv=notrunc
}

# put DEVICE FROM TO COUNT OPTION...: data of vdh to the volume, in units of 4 KiB.
put() {
    local device=$1 from=$2 to=$3 count=$4
    shift 4
    dd if=/dev/vdh of="/dev/mapper/$device" bs=4k skip="$from" seek="$to" count="$count" "$@"
}

# view DEVICE DISK SLOT: what the kernel reads.
view() {
    dd if="/dev/mapper/$1" of="/dev/$2" bs=64k seek=$(($3 * 128)) iflag=direct oflag=direct conv=notrunc
}

# opened NAME OPEN PLACE: /dev/mapper/NAME over its slot.
opened() {
    # shellcheck disable=SC2086  # several options in one word
    if [ "$3" = separate ]; then
        integritysetup open $2 --data-device "/dev/mapper/$1.data" "/dev/mapper/$1.meta" "$1"
    else
        integritysetup open $2 "/dev/mapper/$1.data" "$1"
    fi
}

formatted() {
    # shellcheck disable=SC2086
    if [ "$3" = separate ]; then
        integritysetup format -q $2 --data-device "/dev/mapper/$1.data" "/dev/mapper/$1.meta"
    else
        integritysetup format -q $2 "/dev/mapper/$1.data"
    fi
}

# cut NAME DISK SLOT TO: copies the slot at one moment of a running volume. Suspended devices write nothing.
cut() {
    dmsetup suspend --noflush --nolockfs "$1.meta" && dmsetup suspend --noflush --nolockfs "$1.data" &&
        copy "$2" "$3" "$4" "$3" && dmsetup resume "$1.data" && dmsetup resume "$1.meta"
}

# read_by_kernel KIND NAME DISK SLOT PLACE OPEN VIEW
read_by_kernel() {
    slot "$2" "$3" "$4"
    check "open-$1" opened "$2" "$6" "$5" && check "read-$1" view "$2" "$7" "$8"
}

row() {
    local name=$1 number=$2 place=$3 format=$4 open=$5 stream=$6
    local t="t$stream" c="c$stream" o="o$stream" p="p$stream"
    # The kernel's volume, its state in the middle of writing, and its end.
    slot "$t" vda "$number"
    if check "format:$name" formatted "$t" "$format" "$place" && check "open:$name" opened "$t" "$open" "$place"; then
        check "write:$name" put "$t" 0 0 128 oflag=direct
        check "write-far:$name" put "$t" 128 433 128 conv=fsync
        check "close:$name" integritysetup close "$t"
        check "open-again:$name" opened "$t" "$open" "$place"
        check "write-durable:$name" put "$t" 256 184 64 conv=fsync
        # Without journal or bitmap, blocks that are not flushed may not match their tags.
        case $open in *" -D"*) ;; *) put "$t" 320 64 40 oflag=direct ;; esac
        check "cut:$name" cut "$t" vda "$number" vdb
        check "close-again:$name" integritysetup close "$t"
        check "copy:$name" copy vdb "$number" vdi "$stream"
        if read_by_kernel "cut:$name" "$c" vdi "$stream" "$place" "$open" vde "$number"; then
            check "close-cut:$name" integritysetup close "$c"
        fi
        free "$c"
    fi
    free "$t"
    # Inlock's volume.
    if read_by_kernel "ours:$name" "$o" vdc "$number" "$place" "$open" vdf "$number"; then
        check "write-ours:$name" put "$o" 400 500 100 conv=fsync
        check "close-ours:$name" integritysetup close "$o"
    fi
    free "$o"
    if read_by_kernel "ours-cut:$name" "$p" vdd "$number" "$place" "$open" vdg "$number"; then
        check "close-ours-cut:$name" integritysetup close "$p"
    fi
    free "$p"
}

stream() {
    export STREAM=$1
    while IFS='|' read -r name number place format open; do
        if [ $((number % 2)) -eq "$1" ]; then row "$name" "$number" "$place" "$format" "$open" "$1"; fi
    done < /vm/rows
}

stream 0 &
stream 1
wait
ok streams
