#: about   LUKS2 with integrity protection, both ways with cryptsetup and the kernel, closed and cut off
#: only    named
#: memory  768
#: seconds 400
#: modules dm_crypt dm_integrity authenc gcm ccm aegis128 chacha20poly1305 chacha_generic poly1305_generic hmac sha512_generic
#: tools   cryptsetup dmsetup
#: files   /usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so
# shellcheck shell=dash
# Each disk has a slot of 8 MiB for each row:
#   vda  volumes of the kernel               vdb  their state in the middle of writing
#   vdc  volumes of Inlock                   vdd  volumes of Inlock that were not closed
#   vde  what the kernel reads on a copy of vdb, vdf on vdc, vdg on vdd
#   vdh  the data to write                   vdi  a slot for copies
# A line of /vm/rows: NAME SLOT FORMAT OPEN, divided by bars; FORMAT and OPEN are options of cryptsetup.

MIB=2048   # sectors

# slot NAME DISK SLOT: /dev/mapper/NAME.data
slot() {
    dmsetup create "$1.data" --table "0 $((8 * MIB)) linear /dev/$2 $(($3 * 8 * MIB))"
}

# free NAME: closes the volume too, if a step before has failed.
free() {
    dmsetup info "$1" > /dev/null 2>&1 && cryptsetup close "$1"
    dmsetup remove "$1.data"
}

# copy FROM SLOT TO SLOT
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

# opened NAME OPEN: /dev/mapper/NAME over its slot.
opened() {
    # shellcheck disable=SC2086  # several options in one word
    cryptsetup open $2 --key-file /vm/key "/dev/mapper/$1.data" "$1"
}

formatted() {
    # shellcheck disable=SC2086
    cryptsetup luksFormat -q $2 --key-file /vm/key "/dev/mapper/$1.data"
}

# cut NAME DISK SLOT TO: copies the slot at one moment of a running volume. A suspended device writes nothing.
cut() {
    dmsetup suspend --noflush --nolockfs "$1.data" && copy "$2" "$3" "$4" "$3" && dmsetup resume "$1.data"
}

# read_by_kernel KIND NAME DISK SLOT OPEN VIEW SLOT
read_by_kernel() {
    slot "$2" "$3" "$4"
    check "open-$1" opened "$2" "$5" && check "read-$1" view "$2" "$6" "$7"
}

row() {
    local name=$1 number=$2 format=$3 open=$4
    local t=theirs c=cut o=ours p=ours-cut
    # The kernel's volume, its state in the middle of writing, and its end.
    slot "$t" vda "$number"
    if check "format:$name" formatted "$t" "$format" && check "open:$name" opened "$t" "$open"; then
        check "write:$name" put "$t" 0 0 128 oflag=direct
        check "write-far:$name" put "$t" 128 433 128 conv=fsync
        check "write-durable:$name" put "$t" 256 184 64 conv=fsync
        # Without the journal, units that are not flushed may not match their tags.
        [ -n "$open" ] || put "$t" 320 64 40 oflag=direct
        check "cut:$name" cut "$t" vda "$number" vdb
        check "close:$name" cryptsetup close "$t"
        check "copy:$name" copy vdb "$number" vdi 0
        if read_by_kernel "cut:$name" "$c" vdi 0 "$open" vde "$number"; then
            check "close-cut:$name" cryptsetup close "$c"
        fi
        free "$c"
    fi
    free "$t"
    # Inlock's volumes.
    if read_by_kernel "ours:$name" "$o" vdc "$number" "$open" vdf "$number"; then
        check "write-ours:$name" put "$o" 400 500 100 conv=fsync
        check "close-ours:$name" cryptsetup close "$o"
    fi
    free "$o"
    if read_by_kernel "ours-cut:$name" "$p" vdd "$number" "$open" vdg "$number"; then
        check "close-ours-cut:$name" cryptsetup close "$p"
    fi
    free "$p"
}

# One after the other: without udev, device nodes of two cryptsetup at a time may be mixed up.
while IFS='|' read -r name number format open; do
    row "$name" "$number" "$format" "$open"
done < /vm/rows
