# shellcheck shell=dash
# For tests of volumes with integrity protection: volumes in slots of disks, written by the kernel, cut off, and read
# again (xtask/src/vm/host/slots.rs).
#
# Each disk has a slot of 8 MiB for each row:
#   vda  volumes of the kernel               vdb  their state in the middle of writing
#   vdc  volumes of Inlock                   vdd  volumes of Inlock that were not closed
#   vde  what the kernel reads on a copy of vdb, vdf on vdc, vdg on vdd
#   vdh  the data to write                   vdi  two slots for copies
# A line of /vm/rows: NAME SLOT PLACE FORMAT OPEN, divided by bars; FORMAT and OPEN are options of the program.
#
# A test sets: SUSPENDED, the parts of a slot that are suspended for a copy, in order; and defines
#   slot NAME DISK SLOT         /dev/mapper/NAME.data over the slot, and the other parts
#   free NAME                   closes the volume too, if a step before has failed, and removes the slot
#   formatted NAME FORMAT PLACE
#   opened NAME OPEN PLACE      /dev/mapper/NAME over its slot
#   closed NAME
#   is_direct OPEN              whether units that are not flushed may not match their tags

# shellcheck disable=SC2034  # for the test
MIB=2048   # sectors

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

# view DEVICE DISK SLOT: what the kernel reads. Of a lazy row it cannot read the blocks that were never written: zeroes
# in their place.
view() {
    # shellcheck disable=SC2154  # of row
    case $name in
        *lazy*) dd if="/dev/mapper/$1" of="/dev/$2" bs=4k seek=$(($3 * 2048)) iflag=direct oflag=direct \
            conv=notrunc,noerror,sync || true ;;
        *) dd if="/dev/mapper/$1" of="/dev/$2" bs=64k seek=$(($3 * 128)) iflag=direct oflag=direct conv=notrunc ;;
    esac
}

# cut NAME DISK SLOT TO: copies the slot at one moment of a running volume. Suspended devices write nothing.
cut() {
    local part
    for part in $SUSPENDED; do
        dmsetup suspend --noflush --nolockfs "$1.$part" || return
    done
    copy "$2" "$3" "$4" "$3" || return
    for part in $SUSPENDED; do
        dmsetup resume "$1.$part" || return
    done
}

# read_by_kernel KIND NAME DISK SLOT PLACE OPEN VIEW SLOT
read_by_kernel() {
    slot "$2" "$3" "$4"
    check "open-$1" opened "$2" "$6" "$5" && check "read-$1" view "$2" "$7" "$8"
}

# tell_tables NAME SLOT: the kernel's tables of a volume, for the host. cryptsetup's device with the tags is NAME_dif.
tell_tables() {
    data "table:$2" "$(dmsetup table --showkeys "$1")"
    ! dmsetup info "$1_dif" > /dev/null 2>&1 || data "table-below:$2" "$(dmsetup table --showkeys "$1_dif")"
}

row() {
    local name=$1 number=$2 place=$3 format=$4 open=$5 stream=$6
    local t="t$stream" c="c$stream" o="o$stream" p="p$stream"
    # The kernel's volume, its state in the middle of writing, and its end.
    slot "$t" vda "$number"
    if check "format:$name" formatted "$t" "$format" "$place" && check "open:$name" opened "$t" "$open" "$place"; then
        check "write:$name" put "$t" 0 0 128 oflag=direct
        check "write-far:$name" put "$t" 128 433 128 conv=fsync
        check "close:$name" closed "$t"
        check "open-again:$name" opened "$t" "$open" "$place"
        tell_tables "$t" "$number"
        check "write-durable:$name" put "$t" 256 184 64 conv=fsync
        is_direct "$open" || put "$t" 320 64 40 oflag=direct
        check "cut:$name" cut "$t" vda "$number" vdb
        check "close-again:$name" closed "$t"
        check "copy:$name" copy vdb "$number" vdi "$stream"
        if read_by_kernel "cut:$name" "$c" vdi "$stream" "$place" "$open" vde "$number"; then
            check "close-cut:$name" closed "$c"
        fi
        free "$c"
    fi
    free "$t"
    # Inlock's volume.
    if read_by_kernel "ours:$name" "$o" vdc "$number" "$place" "$open" vdf "$number"; then
        check "write-ours:$name" put "$o" 400 500 100 conv=fsync
        check "close-ours:$name" closed "$o"
    fi
    free "$o"
    if read_by_kernel "ours-cut:$name" "$p" vdd "$number" "$place" "$open" vdg "$number"; then
        check "close-ours-cut:$name" closed "$p"
    fi
    free "$p"
}

# stream NUMBER OF: every OFth row, from row NUMBER on.
stream() {
    export STREAM=$1
    while IFS='|' read -r name number place format open; do
        if [ $((number % $2)) -eq "$1" ]; then row "$name" "$number" "$place" "$format" "$open" "$1"; fi
    done < /vm/rows
}
