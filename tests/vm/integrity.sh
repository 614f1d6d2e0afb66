#: about   dm-integrity and Inlock use the same volumes, both ways, closed and cut off
#: memory  768
#: seconds 300
#: modules dm_integrity dm_mod
#: tools   dmsetup integritysetup
# shellcheck shell=dash
# A slot has 6 MiB for the volume, and 2 MiB for its metadata device if PLACE is separate; it is interleaved otherwise.
# shellcheck source=tests/vm/parts/slots.sh
. /vm/parts/slots.sh
# shellcheck disable=SC2034  # for slots.sh
SUSPENDED="meta data"

slot() {
    dmsetup create "$1.data" --table "0 $((6 * MIB)) linear /dev/$2 $(($3 * 8 * MIB))" &&
        dmsetup create "$1.meta" --table "0 $((2 * MIB)) linear /dev/$2 $((($3 * 8 + 6) * MIB))"
}

free() {
    dmsetup info "$1" > /dev/null 2>&1 && integritysetup close "$1"
    dmsetup remove "$1.data" && dmsetup remove "$1.meta"
}

# twice COMMAND...: runs it once more, if a device that the other stream is removing was in the way.
twice() { "$@" || { sleep 1 && "$@"; }; }
opened() { twice opened_once "$@"; }
formatted() { twice formatted_once "$@"; }

opened_once() {
    # shellcheck disable=SC2086  # several options in one word
    if [ "$3" = separate ]; then
        integritysetup open $2 --data-device "/dev/mapper/$1.data" "/dev/mapper/$1.meta" "$1"
    else
        integritysetup open $2 "/dev/mapper/$1.data" "$1"
    fi
}

formatted_once() {
    # shellcheck disable=SC2086
    if [ "$3" = separate ]; then
        integritysetup format -q $2 --data-device "/dev/mapper/$1.data" "/dev/mapper/$1.meta"
    else
        integritysetup format -q $2 "/dev/mapper/$1.data"
    fi
}

closed() { integritysetup close "$1"; }

is_direct() {
    case $1 in *" -D"*) ;; *) return 1 ;; esac
}

stream 0 2 &
stream 1 2
wait
ok streams
