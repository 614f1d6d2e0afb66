#: about   LUKS2 with integrity protection, both ways with cryptsetup and the kernel, closed and cut off
#: memory  768
#: seconds 400
#: modules dm_crypt dm_integrity authenc gcm ccm aegis128 chacha20poly1305 chacha_generic poly1305_generic hmac sha512_generic
#: tools   cryptsetup dmsetup
#: files   /usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so
# shellcheck shell=dash
# shellcheck source=tests/vm/parts/slots.sh
. /vm/parts/slots.sh
# shellcheck disable=SC2034  # for slots.sh
SUSPENDED=data

slot() {
    dmsetup create "$1.data" --table "0 $((8 * MIB)) linear /dev/$2 $(($3 * 8 * MIB))"
}

free() {
    dmsetup info "$1" > /dev/null 2>&1 && cryptsetup close "$1"
    dmsetup remove "$1.data"
}

opened() {
    # shellcheck disable=SC2086  # several options in one word
    # The table is to have the key.
    cryptsetup open $2 --disable-keyring --key-file /vm/key "/dev/mapper/$1.data" "$1"
}

formatted() {
    # shellcheck disable=SC2086
    cryptsetup luksFormat -q $2 --key-file /vm/key "/dev/mapper/$1.data"
}

closed() { cryptsetup close "$1"; }

is_direct() { [ -n "$1" ]; }

# One after the other: without udev, device nodes of two cryptsetup at a time may be mixed up.
stream 0 1
