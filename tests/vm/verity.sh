#: about   dm-verity and Inlock use the same devices, both ways, whole and with corrupted blocks
#: memory  512
#: seconds 300
#: modules reed_solomon dm_verity dm_crypt dm_mod sha256_generic sha512_generic sha1_generic
#: tools   dmsetup veritysetup
# shellcheck shell=dash
# Each disk has a slot of 4 MiB for each row.
#   vda  data                          vdb  trees of Inlock
#   vdc  trees of veritysetup          vdd  what the kernel reads with Inlock's tree
#   vde  data with corrupted blocks
# A line of /vm/rows: NAME SLOT BLOCK ROOT FORMAT OPEN TABLE, divided by bars; BLOCK is the length of a block of data
# in bytes, FORMAT and OPEN are options of veritysetup, TABLE is Inlock's. /vm/stack.NAME.SLOT is a table of several
# devices, each line with the name of its device. /vm/fec has SLOT ROOT OPEN of a device with parity behind the tree.

SECTORS=8192

# Options that need no other device.
OPTIONS='--ignore-corruption --ignore-zero-blocks --check-at-most-once'

slot() { dmsetup create "$1" --table "0 $SECTORS linear /dev/$2 $(($3 * SECTORS))"; }

# unreadable DEVICE BLOCK: the numbers of the blocks that cannot be read, of the corrupted ones and their neighbours.
unreadable() {
    local at
    for at in 0 1 2 39 40 41 126 127 128; do
        dd if="$1" of=/dev/null bs="$2" skip="$at" count=1 iflag=direct 2> /dev/null || printf '%s ' "$at"
    done
}

opened() {
    # shellcheck disable=SC2086  # several options in one word
    veritysetup open $4 "/dev/mapper/$1" "$2" "/dev/mapper/$3" "$5"
}

row() {
    local name=$1 number=$2 block=$3 root=$4 format=$5 open=$6 table=$7
    slot data vda "$number" && slot ours vdb "$number" && slot theirs vdc "$number" && slot bad vde "$number"
    if check "open:$name" opened data verity ours "$open" "$root"; then
        check "read:$name" dd if=/dev/mapper/verity of=/dev/vdd bs=64k seek=$((number * 64)) conv=notrunc
        data "table:$name" "$(dmsetup table verity)"
        check "close:$name" veritysetup close verity
    fi
    if check "open-options:$name" opened data verity ours "$open $OPTIONS" "$root"; then
        data "options:$name" "$(dmsetup table verity)"
        check "close-options:$name" veritysetup close verity
    fi
    if check "create:$name" dmsetup create verity --readonly --table "$table"; then
        # Over what was read before, which the host compares.
        check "read-by-table:$name" dd if=/dev/mapper/verity of=/dev/vdd bs=64k seek=$((number * 64)) conv=notrunc
        check "remove:$name" dmsetup remove verity
    fi
    if check "open-bad:$name" opened bad verity ours "$open" "$root"; then
        data "unreadable:$name" "$(unreadable /dev/mapper/verity "$block")"
        check "close-bad:$name" veritysetup close verity
    fi
    # shellcheck disable=SC2086
    check "format:$name" veritysetup format $format /dev/mapper/data /dev/mapper/theirs
    data "root:$name" "$(tail -n 20 /tmp/check.$$ | sed -n 's/^Root hash:[[:space:]]*//p')"
    dmsetup remove data && dmsetup remove ours && dmsetup remove theirs && dmsetup remove bad
}

# stack FILE NAME SLOT: creates the devices of a table, and reads the last.
stack() {
    local names='' device line
    slot data vda "$3" && slot ours vdb "$3"
    while read -r device line; do
        check "create:$2:$device" dmsetup create "${device%:}" --readonly --table "$line"
        names="${device%:} $names"
    done < "$1"
    check "read:$2" dd if="/dev/mapper/${names%% *}" of=/dev/vdd bs=64k seek=$(($3 * 64)) conv=notrunc
    for device in $names data ours; do
        check "remove:$2:$device" dmsetup remove "$device"
    done
}

# repaired SLOT ROOT OPEN: reads data with corrupted blocks, which the kernel rebuilds from the parity.
repaired() {
    slot bad vde "$1" && slot ours vdb "$1"
    if check "open:fec" opened bad verity ours "$3" "$2"; then
        check "read:fec" dd if=/dev/mapper/verity of=/dev/vdd bs=64k seek=$(($1 * 64)) conv=notrunc
        data "table:fec" "$(dmsetup table verity)"
        check "close:fec" veritysetup close verity
    fi
    dmsetup remove bad && dmsetup remove ours
}

while IFS='|' read -r name number block root format open table; do
    row "$name" "$number" "$block" "$root" "$format" "$open" "$table"
done < /vm/rows
for file in /vm/stack.*; do
    name=${file#/vm/stack.}
    stack "$file" "${name%.*}" "${name##*.}"
done
IFS='|' read -r number root open < /vm/fec
repaired "$number" "$root" "$open"
ok rows
